// Package opstest holds implementations of [Ops] to what they have to compute.
//
// [Reference] is one in float64, each operation written as its formula reads.
// [Run] compares any other with it, operation by operation, and so says which
// one is wrong where a comparison of whole models could not.
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
	learn.Ops
}
