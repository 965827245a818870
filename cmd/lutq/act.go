package main

import (
	"fmt"

	"github.com/spf13/pflag"

	"github.com/lutq/lutq/calib/model"
	modelcpu "github.com/lutq/lutq/calib/model/cpu"
	modelcuda "github.com/lutq/lutq/calib/model/cuda"
)

// actFlag says what both sides of products of many rows by quantized weights are rounded to, and which weights a GPU keeps unpacked
// for those.
type actFlag struct{ act, prefill string }

const (
	noRounding = "none"
	fp8Act     = "fp8"
)

func (a *actFlag) addAct(f *pflag.FlagSet) {
	f.Var(newWord(&a.act, noRounding, noRounding, fp8Act), "act", "round activations to `NAME`: none or fp8")
}

// addPrefill adds --prefill-cache, for commands that run models.
func (a *actFlag) addPrefill(f *pflag.FlagSet) {
	f.Var(newWord(&a.prefill, "auto", "auto", "on", "off"), "prefill-cache", "keep weights unpacked for prompts on cuda: `WHEN` auto (with fp8), on or off")
}

func (a *actFlag) fp8() bool { return a.act == fp8Act }

// fp8Ops are operations that multiply in fp8 where they can.
type fp8Ops interface {
	model.Ops
	Others() int // quantized weights that are multiplied otherwise
}

// keepingOps are operations that keep weights as numbers.
type keepingOps interface {
	KeptWeights() (count int, bytes int64, full bool)
}

// rounding returns operations that round as the flag has it, or ops themselves, and has them keep weights.
func (a *actFlag) rounding(ops model.Ops) (model.Ops, error) {
	switch ops := ops.(type) {
	case *modelcpu.Ops:
		if a.prefill == "on" {
			return nil, usage("--prefill-cache on is for models on cuda")
		}
		if a.fp8() {
			return modelcpu.NewFP8Ops(ops), nil
		}
	case *modelcuda.Ops:
		switch a.prefill {
		case "on":
			ops.PrefillCache(modelcuda.KeepAll)
		case "off":
			ops.PrefillCache(modelcuda.KeepNone)
		}
		if a.fp8() {
			rounding, err := modelcuda.NewFP8Ops(ops)
			if err != nil {
				return nil, fmt.Errorf("--act fp8: %w", err)
			}
			return rounding, nil
		}
	default:
		if a.fp8() {
			return nil, usage("--act fp8 is for models on the cpu or on cuda")
		}
	}
	return ops, nil
}

// noteRounding tells of layers that are not rounded, once models are open.
func (u *ui) noteRounding(ops model.Ops) {
	if o, ok := ops.(fp8Ops); ok && o.Others() > 0 {
		u.note("--act fp8: %d quantized layers are multiplied without it, which takes codes of a table in groups of 64, 128, 256 or a row", o.Others())
	}
}

// noteKept tells what devices have kept for prompts, at the end.
func (u *ui) noteKept(devices ...model.Ops) {
	layers, bytes, full := 0, int64(0), false
	for _, ops := range devices {
		if o, ok := ops.(keepingOps); ok {
			n, size, none := o.KeptWeights()
			layers, bytes, full = layers+n, bytes+size, full || none
		}
	}
	switch {
	case full && layers == 0:
		u.note("--prefill-cache: no memory to keep weights unpacked")
	case full:
		u.note("--prefill-cache: %d layers kept unpacked in %s, and no memory for others", layers, formatBytes(bytes))
	case layers > 0:
		u.note("--prefill-cache: %d layers kept unpacked in %s", layers, formatBytes(bytes))
	}
}
