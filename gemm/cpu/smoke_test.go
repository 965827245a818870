package cpu

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
)

func BenchmarkMatMul(b *testing.B) {
	for _, shape := range [][3]int{{2048, 2048, 2048}, {2048, 576, 576}, {2048, 1536, 576}, {2048, 576, 1536}, {1, 2048, 2048}, {8, 2048, 2048}} {
		m, n, k := shape[0], shape[1], shape[2]
		for _, name := range ISAs()[1:] {
			for _, threads := range []int{1, 2} {
				b.Run(fmt.Sprintf("%dx%dx%d/%s/%d", m, n, k, name, threads), func(b *testing.B) {
					e, err := New(Options{Threads: threads, ISA: name})
					if err != nil {
						b.Fatal(err)
					}
					defer e.Close()
					r := rand.New(rand.NewPCG(1, 2))
					x, y := make([]float32, m*k), make([]float32, m*n)
					data := make([]byte, 4*n*k)
					for i := range x {
						x[i] = float32(r.NormFloat64())
					}
					for i := range n * k {
						binary.LittleEndian.PutUint32(data[4*i:], math.Float32bits(float32(r.NormFloat64())))
					}
					w, _ := NewDense(n, k, "F32", data)
					for b.Loop() {
						e.MatMul(y, x, m, w)
					}
					b.ReportMetric(2*float64(m)*float64(n)*float64(k)*float64(b.N)/b.Elapsed().Seconds()/1e9, "GFLOP/s")
				})
			}
		}
	}
}

func TestSmoke(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 300 {
		m, n, k := 1+r.IntN(60), 1+r.IntN(90), 1+r.IntN(600)
		x := make([]float32, m*k)
		data := make([]byte, 4*n*k)
		for i := range x {
			x[i] = float32(r.NormFloat64())
		}
		wf := make([]float32, n*k)
		for i := range n * k {
			wf[i] = float32(r.NormFloat64())
			binary.LittleEndian.PutUint32(data[4*i:], math.Float32bits(wf[i]))
		}
		w, _ := NewDense(n, k, "F32", data)
		var first []float32
		for _, name := range ISAs() {
			e, err := New(Options{Threads: 2, ISA: name})
			if err != nil {
				t.Fatal(err)
			}
			y := make([]float32, m*n)
			for i := range y {
				y[i] = float32(math.NaN())
			}
			e.MatMul(y, x, m, w)
			e.Close()
			if first == nil {
				first = y
				var d, s float64
				for i := range m {
					for j := range n {
						var a float64
						for l := range k {
							a += float64(x[i*k+l]) * float64(wf[j*k+l])
						}
						d += (a - float64(y[i*n+j])) * (a - float64(y[i*n+j]))
						s += a * a
					}
				}
				if !(math.Sqrt(d/s) < 1e-6) {
					t.Fatalf("%d %d %d: %g", m, n, k, math.Sqrt(d/s))
				}
				continue
			}
			for i := range y {
				if math.Float32bits(y[i]) != math.Float32bits(first[i]) {
					t.Fatalf("%d %d %d %s: %d: %g %g", m, n, k, name, i, y[i], first[i])
				}
			}
		}
	}
}
