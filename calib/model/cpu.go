package model

import (
	"fmt"

	"github.com/lutq/lutq/formats/hf"
	"github.com/lutq/lutq/gemm/cpu"
	"github.com/lutq/lutq/quantize/lut"
	"github.com/lutq/lutq/repack"
)

// CPU implements [Ops] on the processors of the host. Arrays are float32 and weights
// stay as they are stored, dense ones in their own type and quantized ones
// packed. Its methods may not be called concurrently: they share scratch memory.
// Results do not depend on the number of threads.
type CPU struct {
	engine *cpu.Engine
}

// NewCPU returns operations that run on an engine, which the caller closes.
func NewCPU(e *cpu.Engine) *CPU { return &CPU{engine: e} }

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
		return nil, fmt.Errorf("pack: %w", err)
	}
	w, err := cpu.NewLUT(panels)
	if err != nil {
		return nil, fmt.Errorf("pack: %w", err)
	}
	return weight{w}, nil
}

// FreeWeight implements [Ops]: the garbage collector does it.
func (c *CPU) FreeWeight(Weight) {}
