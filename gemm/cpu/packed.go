package cpu

import (
	"github.com/lutq/lutq/formats/weight"
	"github.com/lutq/lutq/formats/weight/bcq"
	"github.com/lutq/lutq/formats/weight/lut"
	"github.com/lutq/lutq/formats/weight/trellis"
	"github.com/lutq/lutq/gemm/lookup"
	"github.com/lutq/lutq/repack"
)

// Packed is a quantized matrix in the layout that the kernels of its kind read.
type Packed interface {
	Weights
	// Kernel names the kernels.
	Kernel() string
	// Parts returns the memory that a product reads, but for a table.
	Parts() [][]byte
	// Over returns the same matrix with its parts elsewhere: in mem, one behind the other, which it keeps.
	Over(mem []byte) Packed
	// Matrix returns the canonical form. It fails where padding is not 0.
	Matrix() (weight.Matrix, error)
	// Rounded returns how products can round more than float32 does, or nil.
	Rounded() *Rounded
}

// Rounded is how products by a matrix round more than float32 does.
type Rounded struct {
	Kernel  string
	Error   float64 // relative, that results stay below
	Weights Packed  // to multiply by, which may be the matrix itself
	// Serves reports whether products are faster so on an engine.
	Serves func(e *Engine) bool
	// By returns products of rows of x by weights like those. What it makes of x is no part of them.
	By func(e *Engine, x []float32, rows int) func(y []float32, w Weights)
}

// Pack lays a matrix out, or returns nil where there are no kernels for its kind, or none for some of its rows: it is multiplied by as dense weights.
func Pack(m weight.Matrix) (Packed, error) {
	switch m := m.(type) {
	case *lut.Matrix:
		panels, err := repack.CPU(m)
		if err != nil {
			return nil, err
		}
		return NewLUT(panels)
	case *bcq.Matrix:
		panels, err := repack.Planes(m)
		if err != nil {
			return nil, err
		}
		return NewPlanes(panels)
	case *trellis.Matrix:
		if m.Code.Codebook != trellis.Pairs || !m.Whole() {
			return nil, nil
		}
		panels, err := repack.Rings(m)
		if err != nil {
			return nil, err
		}
		return NewRings(panels)
	}
	return nil, nil
}

// Memory is what products by a matrix take, in bytes.
type Memory struct {
	Packed  int // [Packed.Parts], 0 where there are no kernels
	Rounded int // the same of [Rounded.Weights], where those are others
	Column  int // for a column of a row of x, beside it, at most
}

// MemoryFor returns what an N×K matrix takes on an engine that [Engine.Fixes] or not, with or without the optional parts of its kind.
func MemoryFor(s weight.Spec, n, k int, optional, fixes bool) Memory {
	switch s.Kind {
	case lut.Name:
		p := repack.CPUPanels{N: n, K: k, Bits: s.Bits, Group: s.Columns(k), ScaleType: s.ScaleType}
		m := Memory{Packed: p.PanelCount() * (p.PanelBytes() + p.PanelScaleBytes())}
		if fixes {
			m.Rounded, m.Column = m.Packed, 2
		}
		return m
	case bcq.Name:
		p := repack.CPUPlanes{N: n, K: k, Bits: s.Bits, Group: s.Columns(k), ScaleType: s.ScaleType, Offsets: optional}
		return Memory{Packed: p.PanelCount() * (p.PanelBytes() + p.PanelFactorBytes()), Column: 10} // of its tables
	case trellis.Name:
		if s = (trellis.Kind{}).Fit(s); s.Codebook == trellis.Pairs {
			p := repack.CPURings{N: n, K: k, Code: &trellis.Code{Rate: s.Rate()}}
			return Memory{Packed: p.PanelCount()*p.PanelBytes() + n*s.ScaleType.Size(), Column: 4} // rotated
		}
	}
	return Memory{}
}

// Kernel implements [Packed].
func (w *LUT) Kernel() string { return "lut" }

// Parts implements [Packed]: codes, after [LUT.Fix] by bytes, and scales.
func (w *LUT) Parts() [][]byte { return [][]byte{w.p.Panels, w.p.Scales} }

// Over implements [Packed].
func (w *LUT) Over(mem []byte) Packed {
	to, panels := *w, *w.p
	codes := len(panels.Panels)
	panels.Panels, panels.Scales = mem[:codes:codes], mem[codes:]
	to.p = &panels
	return &to
}

// Matrix implements [Packed].
func (w *LUT) Matrix() (weight.Matrix, error) { return w.p.Matrix() }

// Rounded implements [Packed] by [LUT.Fix].
func (w *LUT) Rounded() *Rounded {
	fixed := *w
	if !fixed.Fix() {
		return nil
	}
	return &Rounded{
		Kernel: "fixed", Error: FixedError, Weights: &fixed, Serves: (*Engine).Fixes,
		By: func(e *Engine, x []float32, rows int) func(y []float32, w Weights) {
			return func(y []float32, w Weights) { e.MatMul(y, x, rows, w) }
		},
	}
}

// Kernel implements [Packed].
func (w *Planes) Kernel() string { return "planes" }

// Parts implements [Packed]: planes and factors.
func (w *Planes) Parts() [][]byte { return [][]byte{w.p.Planes, w.p.Factors} }

// Over implements [Packed].
func (w *Planes) Over(mem []byte) Packed {
	p := *w.p
	planes := len(p.Planes)
	p.Planes, p.Factors = mem[:planes:planes], mem[planes:]
	return &Planes{&p}
}

// Matrix implements [Packed].
func (w *Planes) Matrix() (weight.Matrix, error) { return w.p.Matrix() }

// How many tables of activations in 8 bits share a scale, and what the relative error of a product through them stays below.
const (
	tabledShared = 16
	TabledError  = .02
)

// Rounded implements [Packed] by tables of activations in 8 bits.
func (w *Planes) Rounded() *Rounded {
	if !w.Tabled() {
		return nil
	}
	return &Rounded{
		Kernel: "int8", Error: TabledError, Weights: w, Serves: func(*Engine) bool { return true },
		By: func(e *Engine, x []float32, rows int) func(y []float32, w Weights) {
			var tables PlaneTables
			tables.Reset(lookup.Precision{Shared: tabledShared}, rows, w.Cols())
			for r := range rows {
				e.FillTables(&tables, 0, r, x[r*w.Cols():(r+1)*w.Cols()])
			}
			return func(y []float32, w Weights) { e.MatMulTables(&tables, 0, rows, Op{Y: y, W: w}) }
		},
	}
}

// Kernel implements [Packed].
func (w *Rings) Kernel() string { return "rings" }

// Parts implements [Packed]: rings and scales.
func (w *Rings) Parts() [][]byte { return [][]byte{w.p.Panels, w.p.Scales} }

// Over implements [Packed].
func (w *Rings) Over(mem []byte) Packed {
	to, p := *w, *w.p
	rings := len(p.Panels)
	p.Panels, p.Scales = mem[:rings:rings], mem[rings:]
	to.p = &p
	return &to
}

// Matrix implements [Packed].
func (w *Rings) Matrix() (weight.Matrix, error) { return w.p.Matrix() }

// Rounded implements [Packed] by fixed point.
func (w *Rings) Rounded() *Rounded {
	return &Rounded{
		Kernel: "fixed", Error: FixedError, Weights: w, Serves: (*Engine).fixesRings,
		By: func(e *Engine, x []float32, rows int) func(y []float32, w Weights) {
			return func(y []float32, w Weights) {
				fixed := *w.(*Rings)
				fixed.fixed = true
				e.MatMul(y, x, rows, &fixed)
			}
		},
	}
}
