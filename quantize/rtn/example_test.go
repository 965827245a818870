package rtn_test

import (
	"fmt"
	"log"

	"github.com/lutq/lutq/formats/weight"
	"github.com/lutq/lutq/formats/weight/lut"
	"github.com/lutq/lutq/quantize/rtn"
)

// A layer of 2 output features and 8 input features takes 3 bits a weight, and a scale for every 4 columns.
func ExampleQuantize() {
	w := []float32{
		0.9, -0.3, 0.1, 0.4, -0.2, 0.05, 0.2, -0.1,
		-0.5, 0.5, 0.25, 0, 1.5, -1, 0.75, 0.1,
	}
	book, err := lut.NewCodebook("int", 3, 4)
	if err != nil {
		log.Fatal(err)
	}
	m, err := rtn.Quantize(w, 2, 8, lut.Format{Codebook: book, Group: 4, Scale: weight.Absmax, ScaleType: weight.F16})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(len(m.Codes), "bytes of codes,", len(m.Scales), "bytes of scales")
	fmt.Printf("%.2f\n", m.Dequantize()[:8])
	// Output:
	// 6 bytes of codes, 8 bytes of scales
	// [0.90 -0.30 0.00 0.30 -0.20 0.07 0.20 -0.13]
}
