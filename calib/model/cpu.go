package model

import (
	"github.com/lutq/lutq/formats/hf"
	"github.com/lutq/lutq/gemm/cpu"
	"github.com/lutq/lutq/quantize/lut"
	"github.com/lutq/lutq/repack"
)

// CPU implements [Gradients] on the processors of the host. Arrays are float32 and weights
// stay as they are stored, dense ones in their own type and quantized ones
// packed. Its methods may not be called concurrently: they share scratch memory.
// Results do not depend on the number of threads.
type CPU struct {
	engine *cpu.Engine

	attention attentionScratch
	back      attentionBackScratch
	rows      [][]float32 // scratch of each worker, see row
	products  [][]float32 // of Linear, that are added to something
	bad       []bool      // of NotFinite
}

// NewCPU returns operations that run on an engine, which the caller closes.
func NewCPU(e *cpu.Engine) *CPU {
	return &CPU{engine: e, rows: make([][]float32, e.Threads())}
}

// Name implements [Ops].
func (c *CPU) Name() string { return "cpu" }

// Err implements [Ops]: nothing here fails while it runs.
func (c *CPU) Err() error { return nil }

// MLPRows implements [Ops]: enough rows to decode packed weights seldom, few enough
// for the wide activations to stay in cache.
func (c *CPU) MLPRows() int { return mlpRows }

const mlpRows = 512

// floats is memory of the host.
type floats []float32

func (f floats) Len() int { return len(f) }

func (f floats) Slice(from, to int) Array { return f[from:to:to] }

// host returns the elements of an array, nil of a nil one.
func host(a Array) []float32 {
	if a == nil {
		return nil
	}
	return a.(floats)
}

// Floats implements [Ops].
func (c *CPU) Floats(n int) Array { return make(floats, n) }

// Acts implements [Ops].
func (c *CPU) Acts(n int) Array { return make(floats, n) }

// Free implements [Ops]: the garbage collector does it.
func (c *CPU) Free(...Array) {}

// Write implements [Ops].
func (c *CPU) Write(dst Array, src []float32) { copySame(host(dst), src) }

// Read implements [Ops].
func (c *CPU) Read(dst []float32, src Array) { copySame(dst, host(src)) }

// Copy implements [Ops].
func (c *CPU) Copy(dst, src Array) { copySame(host(dst), host(src)) }

func copySame(dst, src []float32) {
	if len(dst) != len(src) {
		panic(badSize)
	}
	copy(dst, src)
}

// badSize is what operations panic with on arrays that do not fit.
const badSize = "model: array of the wrong size"

// Zero implements [Ops].
func (c *CPU) Zero(a Array) { clear(host(a)) }

// hostWeight is a matrix that the engine multiplies by.
type hostWeight interface {
	Weight
	operand() cpu.Weights
}

// weight is a matrix in one of the engine's own forms.
type weight struct{ w cpu.Weights }

func (w weight) Shape() (n, k int) { return w.w.Rows(), w.w.Cols() }

func (w weight) operand() cpu.Weights { return w.w }

// operand returns what the engine multiplies by.
func operand(w Weight) cpu.Weights { return w.(hostWeight).operand() }

// Dense implements [Ops]. It keeps data.
func (c *CPU) Dense(n, k int, t hf.DType, data []byte) (Weight, error) {
	w, err := cpu.NewDense(n, k, string(t), data)
	if err != nil {
		return nil, err
	}
	return weight{w}, nil
}

// Packed implements [Ops].
func (c *CPU) Packed(m *lut.Matrix) (Weight, error) {
	panels, err := repack.CPU(m)
	if err != nil {
		return nil, err
	}
	w, err := cpu.NewLUT(panels)
	if err != nil {
		return nil, err
	}
	return weight{w}, nil
}

// FreeWeight implements [Ops]: the garbage collector does it.
func (c *CPU) FreeWeight(Weight) {}

// rowsPerTask is how many rows a task of a row-wise operation takes.
const rowsPerTask = 16

// overRows runs f for stretches [from, to) of rows in parallel.
func (c *CPU) overRows(rows int, f func(worker, from, to int)) {
	c.engine.Parallel((rows+rowsPerTask-1)/rowsPerTask, func(worker, i int) {
		f(worker, i*rowsPerTask, min((i+1)*rowsPerTask, rows))
	})
}

// elementsPerTask is how many elements a task of an elementwise operation takes: its
// arrays lie in a level 1 cache.
const elementsPerTask = 1 << 12

// overElements runs f for stretches [from, to) of n elements in parallel.
func (c *CPU) overElements(n int, f func(from, to int)) {
	c.engine.Parallel((n+elementsPerTask-1)/elementsPerTask, func(_, i int) {
		f(i*elementsPerTask, min((i+1)*elementsPerTask, n))
	})
}

// row returns n elements of a worker's scratch.
func (c *CPU) row(worker, n int) []float32 {
	if len(c.rows[worker]) < n {
		c.rows[worker] = make([]float32, n)
	}
	return c.rows[worker][:n]
}
