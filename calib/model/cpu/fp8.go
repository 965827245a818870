package cpu

import (
	"encoding/binary"
	"math"

	"github.com/lutq/lutq/calib/model"
	"github.com/lutq/lutq/formats/hf"
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
	folded  []byte    // the same
}

// NewFP8Ops returns operations that use those of o for what they do not do themselves.
func NewFP8Ops(o *Ops) *FP8Ops { return &FP8Ops{Ops: o} }

// MLPRows returns 0: how products round hangs on their rows, which are as many as elsewhere.
func (c *FP8Ops) MLPRows() int { return 0 }

// Others returns how many of the quantized weights are not multiplied so.
func (c *FP8Ops) Others() int { return c.others }

// fp8Weight is a matrix as it is, and with its table rounded, and what folds it, if it can be.
type fp8Weight struct {
	stored
	rounded gemmcpu.Weights
	of      *lut.Matrix
	folder  *fp8.Folder
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
	return c.rounding(panels, l)
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
	return c.rounding(panels, nil)
}

// rounding returns a weight from panels and, unless it is nil, the matrix that they hold.
func (c *FP8Ops) rounding(panels *repack.CPUPanels, m *lut.Matrix) (model.Weight, error) {
	if !fp8.Fits(panels.K, panels.Group) {
		c.others++
		return c.Ops.Layout(panels)
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
	w := fp8Weight{stored: stored{exact}, rounded: rounded}
	if !fp8.Folds(panels.N, panels.K) {
		return w, nil
	}
	w.of, w.folder = m, fp8.NewFolder(panels.Codebook)
	if m == nil {
		if w.of, err = panels.Matrix(); err != nil {
			return nil, err
		}
	}
	return w, nil
}

// Linear implements [model.Ops].
func (c *FP8Ops) Linear(x model.Array, rows int, to ...model.Product) {
	var rounded, folded, others []model.Product
	for _, p := range to {
		w, ok := p.W.(fp8Weight)
		switch {
		case !ok || rows < fp8.FewestRows:
			others = append(others, p)
		case w.folder != nil && rows >= fp8.FoldedRows:
			folded = append(folded, p)
		default:
			p.W = stored{w.rounded}
			rounded = append(rounded, p)
		}
	}
	if len(others) > 0 {
		c.Ops.Linear(x, rows, others...)
	}
	if len(others) == len(to) {
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
	if len(rounded) > 0 {
		c.Ops.Linear(floats(y), rows, rounded...)
	}
	for _, p := range folded {
		p.W = c.fold(p.W.(fp8Weight))
		c.Ops.Linear(floats(y), rows, p)
	}
}

// fold returns a weight as numbers, folded, that hold until the next one is.
func (c *FP8Ops) fold(w fp8Weight) model.Weight {
	n, k := w.Shape()
	if len(c.folded) < 4*n*k {
		c.folded = make([]byte, 4*n*k)
	}
	data := c.folded[:4*n*k]
	c.overRows(n, func(_, from, to int) {
		codes, scales := make([]uint8, k), make([]float32, w.of.Groups())
		values := make([]float32, len(w.of.Codebook))
		for i := from; i < to; i++ {
			w.of.RowCodes(codes, i)
			w.of.RowScales(scales, i)
			scale, row := w.folder.Scale(scales), data[4*i*k:4*(i+1)*k]
			for g, s := range scales {
				fp8.FoldTable(values, w.of.Codebook, s, scale)
				first := g * w.of.Group
				for j, code := range codes[first:min(first+w.of.Group, k)] {
					binary.LittleEndian.PutUint32(row[4*(first+j):], math.Float32bits(values[code]))
				}
			}
		}
	})
	dense, err := c.Ops.Dense(n, k, hf.F32, data)
	if err != nil {
		panic(err) // of another length than the shape says
	}
	return dense
}
