package model

import (
	"github.com/lutq/lutq/gemm/cpu"
	"github.com/lutq/lutq/quantize/lut"
	"github.com/lutq/lutq/repack"
)

// newLUT lays a quantized matrix out for the CPU kernels.
func newLUT(m *lut.Matrix) (cpu.Weights, error) {
	panels, err := repack.CPU(m)
	if err != nil {
		return nil, err
	}
	w, err := cpu.NewLUT(panels)
	if err != nil {
		return nil, err
	}
	return w, nil
}

// lutRows decodes rows of the canonical form.
func lutRows(m *lut.Matrix) rowReader {
	codes, scales := make([]uint8, m.K), make([]float32, m.Groups())
	return func(dst []float32, i int) { m.Row(dst, i, codes, scales) }
}
