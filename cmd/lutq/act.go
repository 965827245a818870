package main

import (
	"fmt"

	"github.com/spf13/pflag"

	"github.com/lutq/lutq/calib/model"
	modelcpu "github.com/lutq/lutq/calib/model/cpu"
	modelcuda "github.com/lutq/lutq/calib/model/cuda"
)

// actFlag says what both sides of products of many rows by quantized weights are rounded to.
type actFlag struct{ act string }

const (
	noRounding = "none"
	fp8Act     = "fp8"
)

func (a *actFlag) addAct(f *pflag.FlagSet) {
	f.Var(newWord(&a.act, noRounding, noRounding, fp8Act), "act", "round activations to `NAME`: none or fp8")
}

func (a *actFlag) fp8() bool { return a.act == fp8Act }

// fp8Ops are operations that multiply in fp8 where they can.
type fp8Ops interface {
	model.Ops
	Others() int // quantized weights that are multiplied otherwise
}

// rounding returns operations that round as the flag has it, or ops themselves.
func (a *actFlag) rounding(ops model.Ops) (model.Ops, error) {
	if !a.fp8() {
		return ops, nil
	}
	switch ops := ops.(type) {
	case *modelcpu.Ops:
		return modelcpu.NewFP8Ops(ops), nil
	case *modelcuda.Ops:
		rounding, err := modelcuda.NewFP8Ops(ops)
		if err != nil {
			return nil, fmt.Errorf("--act fp8: %w", err)
		}
		return rounding, nil
	}
	return nil, usage("--act fp8 is for models on the cpu or on cuda")
}

// noteRounding tells of layers that are not rounded, once models are open.
func (u *ui) noteRounding(ops model.Ops) {
	if o, ok := ops.(fp8Ops); ok && o.Others() > 0 {
		u.note("--act fp8: %d quantized layers are multiplied without it, which takes codes of a table in groups of 64, 128, 256 or a row", o.Others())
	}
}
