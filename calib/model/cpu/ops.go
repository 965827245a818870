// Package cpu implements a decoder's operations, model.Ops, on the host's processors.
//
// Products are those of gemm/cpu, in assembly where the processor has it. Activations, residuals, gradients and norms
// are float32; sums over rows and losses are float64.
package cpu

import (
	"github.com/lutq/lutq/calib/model"
	"github.com/lutq/lutq/formats/hf"
	"github.com/lutq/lutq/formats/num"
	"github.com/lutq/lutq/formats/weight"
	"github.com/lutq/lutq/formats/weight/bcq"
	"github.com/lutq/lutq/formats/weight/lut"
	"github.com/lutq/lutq/formats/weight/trellis"
	gemmcpu "github.com/lutq/lutq/gemm/cpu"
	"github.com/lutq/lutq/repack"
)

var _ model.BackwardOps = (*Ops)(nil)

// Ops implements [model.BackwardOps], and learn.Ops, on the processors of the host. Arrays are float32 and weights
// stay as they are stored, dense ones in their own type and quantized ones
// packed. Its methods may not be called concurrently: they share scratch memory.
// Results do not depend on the number of threads.
type Ops struct {
	engine *gemmcpu.Engine

	attention attentionScratch
	recalls   []recall // of Recall
	back      attentionBackScratch
	rows      [][]float32 // scratch of each worker, see row
	products  [][]float32 // of Linear, that are added to something
	bad       []bool      // of NotFinite
}

// New returns operations that run on an engine, which the caller closes.
func New(e *gemmcpu.Engine) *Ops {
	return &Ops{engine: e, rows: make([][]float32, e.Threads())}
}

// Name implements [model.Ops].
func (c *Ops) Name() string { return "cpu" }

// Err implements [model.Ops]: nothing here fails while it runs.
func (c *Ops) Err() error { return nil }

// MLPRows implements [model.Ops].
func (c *Ops) MLPRows() int { return model.HostMLPRows }

// floats is memory of the host.
type floats []float32

func (f floats) Len() int { return len(f) }

func (f floats) Slice(from, to int) model.Array { return f[from:to:to] }

// host returns the elements of an array, nil of a nil one.
func host(a model.Array) []float32 {
	if a == nil {
		return nil
	}
	return a.(floats)
}

// Floats implements [model.Ops].
func (c *Ops) Floats(n int) model.Array { return make(floats, n) }

// Acts implements [model.Ops].
func (c *Ops) Acts(n int) model.Array { return make(floats, n) }

// Free implements [model.Ops]: the garbage collector does it.
func (c *Ops) Free(...model.Array) {}

// Write implements [model.Ops].
func (c *Ops) Write(dst model.Array, src []float32) { copySame(host(dst), src) }

// Read implements [model.Ops].
func (c *Ops) Read(dst []float32, src model.Array) { copySame(dst, host(src)) }

// Copy implements [model.Ops].
func (c *Ops) Copy(dst, src model.Array) { copySame(host(dst), host(src)) }

func copySame(dst, src []float32) {
	if len(dst) != len(src) {
		panic(badSize)
	}
	copy(dst, src)
}

// badSize is what operations panic with on arrays that do not fit.
const badSize = "cpu: array of the wrong size"

// Zero implements [model.Ops].
func (c *Ops) Zero(a model.Array) { clear(host(a)) }

// hostWeight is a matrix that the engine multiplies by.
type hostWeight interface {
	model.Weight
	operand() gemmcpu.Weights
}

// stored is a matrix in one of the engine's own forms.
type stored struct{ w gemmcpu.Weights }

func (w stored) Shape() (n, k int) { return w.w.Rows(), w.w.Cols() }

func (w stored) operand() gemmcpu.Weights { return w.w }

// operand returns what the engine multiplies by.
func operand(w model.Weight) gemmcpu.Weights { return w.(hostWeight).operand() }

// Dense implements [model.Ops]. It keeps data.
func (c *Ops) Dense(n, k int, t hf.DType, data []byte) (model.Weight, error) {
	w, err := gemmcpu.NewDense(n, k, string(t), data)
	if err != nil {
		return nil, err
	}
	return stored{w}, nil
}

// Packed implements [model.Ops]. There are kernels for the kinds lut and bcq, and for pairs of trellis; others
// become float32.
func (c *Ops) Packed(m weight.Matrix) (model.Weight, error) {
	w, err := gemmcpu.Pack(m)
	if err != nil {
		return nil, err
	}
	if w != nil {
		return stored{w}, nil
	}
	if err := m.Validate(); err != nil {
		return nil, err
	}
	n, k := m.Shape()
	data := make([]byte, 4*n*k)
	c.engine.Parallel((n+weight.Together-1)/weight.Together, func(_, i int) {
		from, to := i*weight.Together, min((i+1)*weight.Together, n)
		rows := make([]float32, (to-from)*k)
		weight.RowsTo(rows, m, from, to-from)
		num.EncodeF32(data[4*from*k:4*to*k], rows)
	})
	return c.Dense(n, k, hf.F32, data)
}

// Multiplies implements [model.Ops]. Of kind trellis, EXL3's layouts become float32 all the same.
func (c *Ops) Multiplies(kind string) bool {
	return kind == lut.Name || kind == bcq.Name || kind == trellis.Name
}

// Layout implements [model.Ops]. It keeps panels.
func (c *Ops) Layout(l lut.Layout) (model.Weight, error) {
	panels, ok := l.(*repack.CPUPanels)
	if !ok {
		m, err := l.Matrix()
		if err != nil {
			return nil, err
		}
		return c.Packed(m)
	}
	w, err := gemmcpu.NewLUT(panels)
	if err != nil {
		return nil, err
	}
	return stored{w}, nil
}

// FreeWeight implements [model.Ops]: the garbage collector does it.
func (c *Ops) FreeWeight(model.Weight) {}

// rowsPerTask is how many rows a task of a row-wise operation takes.
const rowsPerTask = 16

// overRows runs f for stretches [from, to) of rows in parallel.
func (c *Ops) overRows(rows int, f func(worker, from, to int)) {
	c.engine.Parallel((rows+rowsPerTask-1)/rowsPerTask, func(worker, i int) {
		f(worker, i*rowsPerTask, min((i+1)*rowsPerTask, rows))
	})
}

// elementsPerTask is how many elements a task of an elementwise operation takes: its
// arrays lie in a level 1 cache.
const elementsPerTask = 1 << 12

// overElements runs f for stretches [from, to) of n elements in parallel.
func (c *Ops) overElements(n int, f func(from, to int)) {
	c.engine.Parallel((n+elementsPerTask-1)/elementsPerTask, func(_, i int) {
		f(i*elementsPerTask, min((i+1)*elementsPerTask, n))
	})
}

// row returns n elements of a worker's scratch.
func (c *Ops) row(worker, n int) []float32 {
	if len(c.rows[worker]) < n {
		c.rows[worker] = make([]float32, n)
	}
	return c.rows[worker][:n]
}
