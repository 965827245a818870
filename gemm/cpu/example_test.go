package cpu_test

import (
	"fmt"
	"log"

	"github.com/lutq/lutq/formats/weight"
	"github.com/lutq/lutq/formats/weight/lut"
	"github.com/lutq/lutq/gemm/cpu"
	"github.com/lutq/lutq/quantize/rtn"
	"github.com/lutq/lutq/repack"
)

// Two rows of activations are multiplied by a layer of 2 output features with 3 input features each, Y = X·Ŵᵀ. The codes
// are laid out for the kernels once.
func ExampleEngine_MatMul() {
	w := []float32{
		3, -8, 2,
		-8, 0, 1,
	}
	book, err := lut.NewCodebook("q4", 4, 3)
	if err != nil {
		log.Fatal(err)
	}
	m, err := rtn.Quantize(w, 2, 3, lut.Format{Codebook: book, Group: 3, Scale: weight.Absmax, ScaleType: weight.F32})
	if err != nil {
		log.Fatal(err)
	}
	panels, err := repack.CPU(m)
	if err != nil {
		log.Fatal(err)
	}
	layer, err := cpu.NewLUT(panels)
	if err != nil {
		log.Fatal(err)
	}
	engine, err := cpu.New(cpu.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer engine.Close()

	x := []float32{
		1, 1, 1,
		0, 2, -1,
	}
	y := make([]float32, 2*2)
	engine.MatMul(y, x, 2, layer)
	fmt.Println(m.Dequantize())
	fmt.Println(y[:2], y[2:])
	// Output:
	// [3 -8 2 -8 0 1]
	// [-3 -7] [-18 -1]
}
