// Package source opens models, whatever their weights are stored as.
package source

import (
	"github.com/lutq/lutq/formats/awq"
	"github.com/lutq/lutq/formats/bnb"
	"github.com/lutq/lutq/formats/ct"
	"github.com/lutq/lutq/formats/gguf"
	"github.com/lutq/lutq/formats/gptq"
	"github.com/lutq/lutq/formats/hf"
	"github.com/lutq/lutq/formats/layout"
	"github.com/lutq/lutq/formats/mlx"
	"github.com/lutq/lutq/formats/modelopt"
	"github.com/lutq/lutq/formats/mxfp4"
)

// Schemes lists the ways to store weights that are decoded.
func Schemes() []hf.Scheme {
	var schemes []hf.Scheme
	for _, l := range layout.All() { // before GPTQ, which MARLIN calls itself
		schemes = append(schemes, l)
	}
	return append(schemes,
		hf.FP8Scheme{},
		mxfp4.Scheme{},
		ct.Scheme{},
		gptq.Scheme{},
		awq.Scheme{},
		bnb.Scheme{},
		mlx.Scheme{},
		modelopt.Scheme{},
	)
}

// Open opens a model folder as [hf.Open] does, with all schemes, or a GGUF file as [gguf.OpenModel]
// does, see [GGUF].
func Open(model string) (*hf.Checkpoint, error) {
	path, err := GGUF(model)
	if err != nil {
		return nil, err
	}
	if path != "" {
		return gguf.OpenModel(path)
	}
	return hf.Open(model, Schemes()...)
}
