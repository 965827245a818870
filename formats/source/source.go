// Package source opens model folders, whatever their weights are stored as.
package source

import (
	"github.com/lutq/lutq/formats/ct"
	"github.com/lutq/lutq/formats/hf"
)

// Schemes lists the ways to store weights that are decoded.
func Schemes() []hf.Scheme {
	return []hf.Scheme{
		hf.FP8Scheme{},
		hf.MXFP4Scheme{},
		ct.Scheme{},
	}
}

// Open opens a model folder as [hf.Open] does, with all schemes.
func Open(dir string) (*hf.Checkpoint, error) { return hf.Open(dir, Schemes()...) }
