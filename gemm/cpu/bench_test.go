package cpu

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/lutq/lutq/formats/weight"
	"github.com/lutq/lutq/formats/weight/lut"
	"github.com/lutq/lutq/repack"
)

// perNano reports how much work a nanosecond does.
func perNano(b *testing.B, work int, unit string) {
	b.ReportMetric(float64(work)*float64(b.N)/float64(b.Elapsed().Nanoseconds()), unit)
}

func forISAs(b *testing.B, f func(b *testing.B, e *Engine)) {
	for _, name := range ISAs() {
		for _, threads := range []int{1, 2} {
			e, err := New(Options{Threads: threads, ISA: name})
			if err != nil {
				b.Fatal(err)
			}
			b.Run(fmt.Sprintf("%s/%d", name, threads), func(b *testing.B) { f(b, e) })
			e.Close()
		}
	}
}

// BenchmarkMatMul reports GFLOP/s. Weights are warm; package gemm has the
// measurements with cold ones.
func BenchmarkMatMul(b *testing.B) {
	r := rand.New(rand.NewPCG(1, 2))
	for _, shape := range [][3]int{{2048, 2048, 2048}, {2048, 576, 576}, {2048, 1536, 576}, {2048, 576, 1536}, {1, 2048, 2048}, {8, 2048, 2048}} {
		m, n, k := shape[0], shape[1], shape[2]
		x, y := normal(r, m*k), make([]float32, m*n)
		for _, wc := range []weightCase{denseCase("F32"), denseCase("BF16"), lutCase(4, 64, weight.F16)} {
			w, _, err := wc.make(r, n, k)
			if err != nil {
				b.Fatal(err)
			}
			b.Run(fmt.Sprintf("%dx%dx%d/%s", m, n, k, wc.name), func(b *testing.B) {
				forISAs(b, func(b *testing.B, e *Engine) {
					for b.Loop() {
						e.MatMul(y, x, m, w)
					}
					perNano(b, 2*m*n*k, "GFLOP/s")
				})
			})
		}
	}
}

// BenchmarkDecode reports the weights that one thread decodes in a
// nanosecond.
func BenchmarkDecode(b *testing.B) {
	r := rand.New(rand.NewPCG(1, 2))
	const k = 4096
	dst := make([]float32, 16*kBlock)
	for bits := lut.MinBits; bits <= lut.MaxBits; bits++ {
		p, err := repack.CPU(randomMatrix(r, 16, k, bits, 64, weight.F16))
		if err != nil {
			b.Fatal(err)
		}
		w, err := NewLUT(p)
		if err != nil {
			b.Fatal(err)
		}
		for s := generic; s <= avx512; s++ {
			if !s.available() {
				continue
			}
			b.Run(fmt.Sprintf("%d bits/%v", bits, s), func(b *testing.B) {
				for b.Loop() {
					for k0 := 0; k0 < k; k0 += kBlock {
						w.decode(s, dst, 0, k0, kBlock)
					}
				}
				perNano(b, 16*k, "w/ns")
			})
		}
	}
}

func BenchmarkExpSum(b *testing.B) {
	r := rand.New(rand.NewPCG(1, 2))
	x, y := normal(r, 4096), make([]float32, 4096)
	forISAs(b, func(b *testing.B, e *Engine) {
		for b.Loop() {
			e.ExpSum(y, x, 3)
		}
		perNano(b, len(x), "elements/ns")
	})
}
