package cuda

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/lutq/lutq/formats/num"
	"github.com/lutq/lutq/formats/weight/trellis"
	"github.com/lutq/lutq/gemm/cuda/driver"
)

// TestGPUViterbi compares the codes of rings with those of an encoder in float64.
func TestGPUViterbi(t *testing.T) {
	onGPU(t, func(t *testing.T, o *Ops, i int) {
		if i != 0 {
			return
		}
		for rate := 2; rate <= 12; rate++ {
			testViterbi(t, o, trellis.Pairs, rate, 9)
		}
		for _, rate := range []int{2, 4, 6, 8, 12, 16} {
			testViterbi(t, o, trellis.MCG, rate, 3)
		}
		testViterbiFar(t, o)
	})
}

// testViterbiFar codes rings where shared memory has no room for values.
func testViterbiFar(t *testing.T, o *Ops) {
	most := o.dev.Info.SharedPerBlock
	defer func() { o.dev.Info.SharedPerBlock = most }()
	o.dev.Info.SharedPerBlock = 99 << 10
	testViterbi(t, o, trellis.Pairs, 4, 2)
}

// testViterbi codes some rings, and the same again.
func testViterbi(t *testing.T, o *Ops, codebook string, rate, rings int) {
	t.Run(fmt.Sprintf("%s %v", codebook, float64(rate)/2), func(t *testing.T) {
		code, err := trellis.NewCode(codebook, rate)
		if err != nil {
			t.Fatal(err)
		}
		l := code.Layout()
		size := l.Rows * l.Cols
		r := rand.New(rand.NewPCG(uint64(rate), 5))
		weights := make([]float32, rings*size) // in the order of steps
		for i := range weights {
			weights[i] = float32(r.NormFloat64())
		}
		weights[3], weights[size-1] = 300, -70 // beyond all values
		windows := encodeRings(t, o, code, weights)
		if again := encodeRings(t, o, code, weights); !slices.Equal(again, windows) {
			t.Error("other windows the second time")
		}
		values, bits := code.Values(), l.Bits(0)
		limit := 2 * slices.Max(values[0]) // beyond which weights are nearest to the same values, more or less
		for i, x := range weights {
			weights[i] = min(max(x, -limit), limit)
		}
		var got, want float64
		for ring := range rings {
			w, x := weights[ring*size:(ring+1)*size], windows[ring*l.Steps():(ring+1)*l.Steps()]
			for i := range x {
				if before := x[(i+l.Steps()-1)%l.Steps()]; x[i]>>bits != before&(1<<(trellis.Window-bits)-1) {
					t.Fatalf("ring %d: window %#04x of step %d does not follow %#04x", ring, x[i], i, before)
				}
				for j := range l.Together {
					d := float64(w[i*l.Together+j]) - float64(values[j][x[i]])
					got += d * d
				}
			}
			want += leastCost(code, w)
		}
		t.Logf("mean squared error %.5f, in float64 %.5f", got/float64(len(weights)), want/float64(len(weights)))
		// Paths around a beginning that cost nearly the same may leave it by different edges: of one ring that is not little.
		if d := got/want - 1; !(math.Abs(d) <= .005+.01/float64(rings)) {
			t.Errorf("cost %v, want %v", got, want)
		}
	})
}

// encodeRings returns the windows that are chosen for weights of rings, in the order of steps.
func encodeRings(t *testing.T, o *Ops, code *trellis.Code, weights []float32) []uint16 {
	t.Helper()
	l := code.Layout()
	size := l.Rows * l.Cols
	rings := len(weights) / size
	windows := make([]uint16, rings*l.Steps())
	o.do(func() {
		v := o.newViterbi(code)
		if v == nil {
			return
		}
		defer v.close()
		w := v.work(rings)
		defer v.release(w)
		o.upload(w.steps, driver.Bytes(ringSteps(v, weights)))
		v.choose(w)
		o.fail(o.dev.Read(driver.Bytes(windows), w.windows))
	})
	if err := o.Err(); err != nil {
		t.Fatal(err)
	}
	return windows
}

// leastCost is that of a ring by Viterbi's algorithm in float64: a pass around the beginning gives the edge there, and one from there to there
// the cost.
func leastCost(code *trellis.Code, w []float32) float64 {
	l := code.Layout()
	values, bits, together, steps, ahead := code.Values(), l.Bits(0), l.Together, l.Steps(), (&viterbi{layout: l}).ahead()
	edges := 1 << trellis.Window >> bits
	cost := func(step, x int) float64 {
		var sum float64
		for j := range together {
			d := float64(w[step*together+j]) - float64(values[j][x])
			sum += d * d
		}
		return sum
	}
	pass := func(first, count int, m []float64) (last []float64, from [][]uint16) {
		for i := range count {
			next, by := make([]float64, edges), make([]uint16, edges)
			for e := range next {
				next[e] = math.Inf(1)
			}
			for x := range 1 << trellis.Window {
				before := m[x>>bits]
				if c := before + cost((first+i)%steps, x); c < next[x&(edges-1)] {
					next[x&(edges-1)], by[x&(edges-1)] = c, uint16(x)
				}
			}
			m, from = next, append(from, by)
		}
		return m, from
	}
	m, from := pass(steps-ahead, 2*ahead, make([]float64, edges))
	edge := 0
	for e, c := range m {
		if c < m[edge] {
			edge = e
		}
	}
	for i := 2*ahead - 1; i >= ahead; i-- {
		edge = int(from[i][edge]) >> bits
	}
	begin := slices.Repeat([]float64{math.Inf(1)}, edges)
	begin[edge] = 0
	m, _ = pass(0, steps, begin)
	return m[edge]
}

// BenchmarkGPUViterbi times a block of columns of a layer of some rows, and says how long a model of 8 billion weights takes.
func BenchmarkGPUViterbi(b *testing.B) {
	benchmarkGPU(b, func(o *Ops) {
		for _, c := range []struct {
			codebook string
			rate     int
			rows     int
		}{
			{trellis.Pairs, 4, 4096},
			{trellis.Pairs, 4, 14336},
			{trellis.Pairs, 4, 1024},
			{trellis.Pairs, 6, 4096},
			{trellis.Pairs, 6, 14336},
			{trellis.Pairs, 8, 4096},
			{trellis.Pairs, 8, 14336},
			{trellis.Pairs, 3, 4096},
			{trellis.Pairs, 5, 4096},
			{trellis.Pairs, 12, 4096},
			{trellis.MCG, 6, 4096},
		} {
			code, err := trellis.NewCode(c.codebook, c.rate)
			if err != nil {
				b.Fatal(err)
			}
			l := code.Layout()
			size, rings := l.Rows*l.Cols, c.rows/l.Rows
			weights := make([]float32, rings*size)
			r := rand.New(rand.NewPCG(1, 1))
			for i := range weights {
				weights[i] = float32(r.NormFloat64())
			}
			b.Run(fmt.Sprintf("%s %v bits %d rows", c.codebook, float64(c.rate)/2, c.rows), func(b *testing.B) {
				var v *viterbi
				var w *work
				o.do(func() {
					if v = o.newViterbi(code); v != nil {
						w = v.work(rings)
						o.upload(w.steps, driver.Bytes(ringSteps(v, weights)))
					}
				})
				if err := o.Err(); err != nil {
					b.Fatal(err)
				}
				windows := make([]uint16, rings*l.Steps())
				once := func() {
					o.do(func() {
						v.choose(w)
						o.fail(o.dev.Read(driver.Bytes(windows), w.windows))
					})
				}
				once()
				values := code.Values()
				var sum float64
				for i, x := range windows {
					for j := range l.Together {
						d := float64(weights[i*l.Together+j]) - float64(values[j][x])
						sum += d * d
					}
				}
				for b.Loop() {
					once()
				}
				b.ReportMetric(sum/float64(len(weights)), "MSE")
				b.ReportMetric(b.Elapsed().Seconds()/float64(b.N)*7e9/float64(len(weights)), "s/model")
				o.do(func() {
					v.release(w)
					v.close()
				})
			})
		}
	})
}

// ringSteps returns weights of rings, in the order of steps, as the kernels read them.
func ringSteps(v *viterbi, weights []float32) []uint16 {
	size := v.size()
	steps := make([]uint16, 2*size*ceil(len(weights)/size, 2))
	for i, x := range weights {
		ring, at := i/size, i%size
		steps[(ring/2*size+at)*2+ring%2] = num.F32ToF16(-min(max(x*v.unit, -v.limit), v.limit))
	}
	return steps
}
