// Package opstest checks implementations of model.Ops against what they have to compute.
//
// [Reference] is one in float64, where each operation is written as its formula reads. [Run] compares any other with
// it, operation by operation. So it says which operation is wrong, where a comparison of whole models could not.
//
// The package is for tests.
package opstest

import (
	"github.com/lutq/lutq/calib/learn"
	"github.com/lutq/lutq/calib/model"
)

// Ops are all operations of a device.
type Ops interface {
	model.BackwardOps
	model.StatsOps
	model.RecurrentOps
	model.ShortConvOps
	model.StateSpaceOps
	model.LatentOps
	learn.Ops
}
