package source

import (
	"github.com/lutq/lutq/formats/awq"
	"github.com/lutq/lutq/formats/bnb"
	"github.com/lutq/lutq/formats/ct"
	"github.com/lutq/lutq/formats/exl3"
	"github.com/lutq/lutq/formats/gptq"
	"github.com/lutq/lutq/formats/hf"
	"github.com/lutq/lutq/formats/kernels"
	"github.com/lutq/lutq/formats/mlx"
	"github.com/lutq/lutq/formats/modelopt"
	"github.com/lutq/lutq/formats/mxfp4"
)

// schemes lists the ways to store weights that are decoded.
func schemes() []hf.Scheme {
	var all []hf.Scheme
	for _, l := range kernels.All() { // before GPTQ, which MARLIN calls itself
		all = append(all, l)
	}
	return append(all,
		hf.FP8Scheme{},
		mxfp4.Scheme{},
		ct.Scheme{},
		gptq.Scheme{},
		awq.Scheme{},
		bnb.Scheme{},
		mlx.Scheme{},
		modelopt.Scheme{},
		exl3.Scheme{},
	)
}
