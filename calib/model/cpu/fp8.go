package cpu

import (
	"github.com/lutq/lutq/calib/model"
	"github.com/lutq/lutq/formats/weight"
	"github.com/lutq/lutq/formats/weight/lut"
	gemmcpu "github.com/lutq/lutq/gemm/cpu"
	"github.com/lutq/lutq/gemm/fp8"
	"github.com/lutq/lutq/repack"
)

var _ model.Ops = (*FP8Ops)(nil)

// FP8Ops are operations that round both sides of products by quantized weights to E4M3, as package gemm/fp8 does, where
// calib/model/cuda does, and multiply them in float32: to find out what that does to a model. Everything else
// is that of [Ops].
type FP8Ops struct {
	*Ops
	others  int
	rounded []float32 // scratch
}

// NewFP8Ops returns operations that use those of o for what they do not do themselves.
func NewFP8Ops(o *Ops) *FP8Ops { return &FP8Ops{Ops: o} }

// Others returns how many of the quantized weights are not multiplied so.
func (c *FP8Ops) Others() int { return c.others }

// fp8Weight is a matrix as it is, and with its table rounded.
type fp8Weight struct {
	stored
	rounded gemmcpu.Weights
}

// Packed implements [model.Ops].
func (c *FP8Ops) Packed(m weight.Matrix) (model.Weight, error) {
	l, ok := m.(*lut.Matrix)
	if !ok {
		c.others++
		return c.Ops.Packed(m)
	}
	panels, err := repack.CPU(l)
	if err != nil {
		return nil, err
	}
	return c.Layout(panels)
}

// Layout implements [model.Ops].
func (c *FP8Ops) Layout(l lut.Layout) (model.Weight, error) {
	panels, ok := l.(*repack.CPUPanels)
	if !ok {
		m, err := l.Matrix()
		if err != nil {
			return nil, err
		}
		return c.Packed(m)
	}
	if !fp8.Fits(panels.K, panels.Group) {
		c.others++
		return c.Ops.Layout(l)
	}
	exact, err := gemmcpu.NewLUT(panels)
	if err != nil {
		return nil, err
	}
	of := *panels // which have the codes in common
	of.Codebook = fp8.RoundTable(panels.Codebook)
	rounded, err := gemmcpu.NewLUT(&of)
	if err != nil {
		return nil, err
	}
	return fp8Weight{stored{exact}, rounded}, nil
}

// Linear implements [model.Ops].
func (c *FP8Ops) Linear(x model.Array, rows int, to ...model.Product) {
	var rounded, others []model.Product
	for _, p := range to {
		if w, ok := p.W.(fp8Weight); ok && rows >= fp8.FewestRows {
			p.W = stored{w.rounded}
			rounded = append(rounded, p)
		} else {
			others = append(others, p)
		}
	}
	if len(others) > 0 {
		c.Ops.Linear(x, rows, others...)
	}
	if len(rounded) == 0 {
		return
	}
	from := host(x)
	if len(c.rounded) < len(from) {
		c.rounded = make([]float32, len(from))
	}
	y, k := c.rounded[:len(from)], len(from)/rows
	c.overRows(rows, func(_, first, end int) {
		for i := first; i < end; i++ {
			fp8.RoundRow(y[i*k:(i+1)*k], from[i*k:(i+1)*k])
		}
	})
	c.Ops.Linear(floats(y), rows, rounded...)
}
