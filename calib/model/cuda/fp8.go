package cuda

import (
	"errors"

	"github.com/lutq/lutq/calib/model"
	"github.com/lutq/lutq/formats/weight"
	"github.com/lutq/lutq/formats/weight/lut"
	"github.com/lutq/lutq/gemm/cuda/driver"
)

var _ model.Ops = (*FP8Ops)(nil)

// FP8Ops are operations that multiply many rows of activations by quantized weights with both rounded to E4M3, as package
// gemm/fp8 does. Everything else is that of [Ops], and weights that are no kind lut, or in groups of 32, are multiplied as there.
type FP8Ops struct {
	*Ops
	others int
}

// NewFP8Ops returns operations that use those of o for what they do not do themselves. It fails where the GPU, the type of
// activations or cuBLASLt has no such products.
func NewFP8Ops(o *Ops) (*FP8Ops, error) {
	switch {
	case o.dev.Info.Major != 9:
		return nil, errors.New("products in fp8 need a GPU of compute capability 9.0")
	case o.acts == driver.F32:
		return nil, errors.New("products in fp8 need activations of type f16 or bf16")
	}
	err := o.dev.Do(func() (err error) {
		if o.fp8 == nil {
			o.fp8, err = o.dev.NewFP8BLAS()
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	return &FP8Ops{Ops: o}, nil
}

// Others returns how many of the quantized weights are not multiplied so.
func (o *FP8Ops) Others() int { return o.others }

// Packed implements [model.Ops].
func (o *FP8Ops) Packed(m weight.Matrix) (model.Weight, error) { return o.marked(o.Ops.Packed(m)) }

// Layout implements [model.Ops].
func (o *FP8Ops) Layout(l lut.Layout) (model.Weight, error) { return o.marked(o.Ops.Layout(l)) }

func (o *FP8Ops) marked(w model.Weight, err error) (model.Weight, error) {
	if err != nil {
		return nil, err
	}
	packed, rounds := w.(operand).base().packed, false
	if packed != nil {
		err = o.dev.Do(func() error {
			rounds = o.engine.RoundToFP8(packed)
			return nil
		})
	}
	if !rounds {
		o.others++
	}
	return w, err
}
