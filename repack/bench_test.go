package repack

import (
	"fmt"
	"testing"

	"github.com/lutq/lutq/formats/weight"
	"github.com/lutq/lutq/formats/weight/lut"
)

// BenchmarkLayout lays out a matrix and turns it back, in bytes of codes.
func BenchmarkLayout(b *testing.B) {
	for bits := lut.MinBits; bits <= lut.MaxBits; bits++ {
		m := random(1, 1024, 4096, bits, 128, weight.F16)
		b.Run(fmt.Sprintf("cuda/%d bits", bits), func(b *testing.B) {
			b.SetBytes(int64(len(m.Codes)))
			for b.Loop() {
				if _, err := CUDA(m); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(m.N*m.K), "ns/weight")
		})
		b.Run(fmt.Sprintf("cpu/%d bits", bits), func(b *testing.B) {
			b.SetBytes(int64(len(m.Codes)))
			for b.Loop() {
				if _, err := CPU(m); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(m.N*m.K), "ns/weight")
		})
	}
}
