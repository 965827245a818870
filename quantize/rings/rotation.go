package rings

import (
	"math"
	"runtime"

	"golang.org/x/sync/errgroup"

	"github.com/lutq/lutq/formats/weight/trellis"
	"github.com/lutq/lutq/quantize/rounding"
)

// A Rotation is that of a layer's columns. It does not change, and goroutines share it.
type Rotation struct {
	factors []float64 // of columns
}

// NewRotation returns that of k columns with the factors of the formula.
func NewRotation(k int) *Rotation {
	r := &Rotation{make([]float64, k)}
	for i := range r.factors {
		r.factors[i] = float64(trellis.Sign(i))
	}
	return r
}

// Factors returns those of columns.
func (r *Rotation) Factors() []float32 {
	factors := make([]float32, len(r.factors))
	for i, f := range r.factors {
		factors[i] = float32(f)
	}
	return factors
}

// Rows writes w′ of rows of weights w, as many numbers as dst has.
func (r *Rotation) Rows(dst, w []float32) {
	k := len(r.factors)
	row := make([]float64, k)
	for at := 0; at < len(w); at += k {
		for i, f := range r.factors {
			row[i] = float64(w[at+i]) / f
		}
		mix(row)
		for i, v := range row {
			dst[at+i] = float32(v)
		}
	}
}

// mix multiplies a row by normed Hadamard matrices.
func mix(row []float64) {
	trellis.Blocks(len(row), func(from, to int) {
		block := row[from:to]
		trellis.Hadamard(block)
		norm := 1 / math.Sqrt(float64(len(block)))
		for i := range block {
			block[i] *= norm
		}
	})
}

// Stats returns the statistics of x′ where those of x are given. They are turned when they are asked for.
func (r *Rotation) Stats(of rounding.Stats) rounding.Stats { return &turned{Stats: of, rotation: r} }

// turned are statistics of x′.
type turned struct {
	rounding.Stats
	rotation *Rotation
	hessian  []float32 // once it was asked for
}

// Diagonal implements [rounding.Stats].
func (t *turned) Diagonal() ([]float32, error) {
	h, err := t.Hessian()
	if err != nil {
		return nil, err
	}
	k := t.K()
	d := make([]float32, k)
	for i := range d {
		d[i] = h[i*k+i]
	}
	return d, nil
}

// Hessian implements [rounding.Stats].
func (t *turned) Hessian() ([]float32, error) {
	if t.hessian != nil {
		return t.hessian, nil
	}
	h, err := t.Stats.Hessian()
	if err != nil {
		return nil, err
	}
	t.hessian = t.rotation.both(h)
	return t.hessian, nil
}

// Drift implements [rounding.Stats].
func (t *turned) Drift() ([]float32, error) {
	d, err := t.Stats.Drift()
	if d == nil || err != nil {
		return nil, err
	}
	return t.rotation.both(d), nil
}

// both returns Bᵀ·D·h·D·B of a matrix [K, K]. Rows are mixed with those of their block alone, so blocks go by themselves.
func (r *Rotation) both(h []float32) []float32 {
	k := len(r.factors)
	out := make([]float32, len(h))
	var g errgroup.Group
	g.SetLimit(runtime.GOMAXPROCS(0))
	trellis.Blocks(k, func(from, to int) {
		g.Go(func() error {
			n := to - from
			strip := make([]float64, n*k)
			for i := range n {
				row := strip[i*k : (i+1)*k]
				for j, f := range r.factors {
					row[j] = float64(h[(from+i)*k+j]) * f * r.factors[from+i]
				}
				mix(row)
			}
			column := make([]float64, n)
			for j := range k {
				for i := range column {
					column[i] = strip[i*k+j]
				}
				mix(column)
				for i, v := range column {
					out[(from+i)*k+j] = float32(v)
				}
			}
			return nil
		})
	})
	_ = g.Wait() // none fails
	return out
}
