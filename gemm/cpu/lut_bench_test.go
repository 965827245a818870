package cpu

import (
	"fmt"
	"testing"

	"github.com/lutq/lutq/quantize/lut"
	"github.com/lutq/lutq/repack"
)

func BenchmarkDecode(b *testing.B) {
	for bits := 2; bits <= 5; bits++ {
		m := &lut.Matrix{N: 16, K: 4096, Bits: bits, Group: 64, ScaleType: lut.F16, Codebook: make([]float32, 1<<bits)}
		m.Codes = make([]byte, 16*m.RowBytes())
		for i := range m.Codes {
			m.Codes[i] = byte(i * 37)
		}
		m.Scales = make([]byte, 16*m.Groups()*2)
		p, err := repack.CPU(m)
		if err != nil {
			b.Fatal(err)
		}
		w, _ := NewLUT(p)
		dst := make([]float32, 4096)
		b.Run(fmt.Sprint(bits), func(b *testing.B) {
			for b.Loop() {
				for k := 0; k < 4096; k += 256 {
					w.decode(avx512, dst, 0, k, 256)
				}
			}
			b.ReportMetric(16*4096*float64(b.N)/float64(b.Elapsed().Nanoseconds()), "w/ns")
		})
	}
	b.Run("gemmGeneric", func(b *testing.B) {
		x, p, y := make([]float32, 256), make([]float32, 4096), make([]float32, 16)
		for i := range x {
			x[i] = float32(i) * 0.37
		}
		for i := range p {
			p[i] = float32(i) * 0.37
		}
		for b.Loop() {
			gemmGeneric(1, y, 16, x, 256, p, 256, 1, false)
		}
		b.ReportMetric(16*256*float64(b.N)/float64(b.Elapsed().Nanoseconds()), "mac/ns")
	})
}
