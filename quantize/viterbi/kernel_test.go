package viterbi

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/lutq/lutq/formats/num"
	"github.com/lutq/lutq/formats/weight/trellis"
)

// layouts calls f with the codebook and the rate of each layout.
func layouts(f func(codebook string, rate int)) {
	for rate := 2; rate <= 16; rate++ {
		for _, codebook := range []string{trellis.Pairs, trellis.Mul1} {
			if _, err := trellis.NewCode(codebook, rate); err == nil {
				f(codebook, rate)
			}
		}
	}
}

func newEncoder(t testing.TB, codebook string, rate int) (*trellis.Code, *Encoder) {
	t.Helper()
	code, err := trellis.NewCode(codebook, rate)
	if err != nil {
		t.Fatal(err)
	}
	e, err := New(code)
	if err != nil {
		t.Fatal(err)
	}
	return code, e
}

// drawCosts draws those of edges: of paths as they come, of some that are saturated, or any.
func drawCosts(t *rapid.T, rng *rand.Rand, edges int) moment {
	m := moment{m: make([]uint16, edges), least: math.MaxUint16}
	one := rng.IntN(edges)
	kind := rapid.SampledFrom([]string{"near", "equal", "one", "any", "far"}).Draw(t, "costs")
	for i := range m.m {
		switch kind {
		case "near":
			m.m[i] = uint16(rng.IntN(4000))
		case "one":
			if i != one {
				m.m[i] = math.MaxUint16
			}
		case "any":
			m.m[i] = uint16(rng.Uint32())
		case "far":
			m.m[i] = math.MaxUint16 - uint16(rng.IntN(3))
		}
		m.least = min(m.least, m.m[i])
	}
	return m
}

// TestStepsAgree holds the assembly to the results of the Go kernels: any weights and values within the limit, any costs.
func TestStepsAgree(t *testing.T) {
	var all []*Encoder
	layouts(func(codebook string, rate int) {
		_, e := newEncoder(t, codebook, rate)
		all = append(all, e)
	})
	for some := range slices.Chunk(all, 4) {
		t.Run(fmt.Sprint("rates from ", some[0].layout.Rate), func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) {
				e := *rapid.SampledFrom(some).Draw(t, "encoder")
				compareSteps(t, &e)
			})
		})
	}
}

func compareSteps(t *rapid.T, e *Encoder) {
	rng := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 1))
	limit := int(e.limit)
	if rapid.Bool().Draw(t, "any values") {
		e.ints = make([]int16, len(e.ints))
		for i := range e.ints {
			e.ints[i] = int16(rng.IntN(2*limit+1) - limit)
			if rng.IntN(50) == 0 {
				e.ints[i] = int16(limit * (2*rng.IntN(2) - 1))
			}
		}
	}
	weight := rapid.OneOf(rapid.IntRange(-limit, limit), rapid.SampledFrom([]int{-limit, 0, limit}))
	w := [2]int16{int16(weight.Draw(t, "first")), int16(weight.Draw(t, "second"))}
	s := e.steps[rapid.IntRange(0, 1).Draw(t, "step")]
	before := drawCosts(t, rng, s.before())

	const guard = 64
	run := func(k kernels) moment {
		m := moment{m: slices.Repeat([]uint16{7}, s.after()+guard)[:s.after()]}
		if s.next >= swept {
			m.parts = make([]uint16, chunks<<swept)
		}
		k.step(e, &s, &w, &m, &before)
		m.m = m.m[:s.after()+guard]
		return m
	}
	want := run(portable())
	for _, k := range available() {
		if got := run(k); got.least != want.least || !slices.Equal(got.m, want.m) || !slices.Equal(got.parts, want.parts) {
			t.Fatalf("%s, %d weights a step, rate %d: what is known after it is not what Go says", k.isa, e.layout.Together, e.layout.Rate)
		}
	}
}

// TestRingsAgree encodes the same rings by each implementation.
func TestRingsAgree(t *testing.T) {
	awkward := []float32{float32(math.NaN()), float32(math.Inf(1)), float32(math.Inf(-1)), math.MaxFloat32, 1e-40, -3}
	rng := rand.New(rand.NewPCG(1, 2))
	rings := map[string]func() float32{
		"gaussian": func() float32 { return float32(rng.NormFloat64()) },
		"awkward":  func() float32 { return awkward[rng.IntN(len(awkward))] },
		"zeros":    func() float32 { return 0 },
		"huge":     func() float32 { return -math.MaxFloat32 },
	}
	for _, c := range []struct {
		codebook string
		rate     int
	}{{trellis.Pairs, 3}, {trellis.Pairs, 8}, {trellis.Pairs, 12}, {trellis.Mul1, 5}} {
		code, e := newEncoder(t, c.codebook, c.rate)
		for name, draw := range rings {
			t.Run(fmt.Sprint(c.codebook, c.rate, name), func(t *testing.T) {
				ring := make([]float32, e.layout.Rows*e.layout.Cols)
				for i := range ring {
					ring[i] = draw()
				}
				all := available()
				e.kernels = all[len(all)-1]
				want, values := encode(e.Worker(), e.layout, ring)
				checkRing(t, code, want, values)
				for _, k := range all[:len(all)-1] {
					e.kernels = k
					if got, _ := encode(e.Worker(), e.layout, ring); !slices.Equal(got, want) {
						t.Errorf("%s chooses other codes", k.isa)
					}
				}
			})
		}
	}
}

// TestBestPath goes through all paths of a few steps from an edge: none costs less than the one that is found.
func TestBestPath(t *testing.T) {
	layouts(func(codebook string, rate int) {
		t.Run(fmt.Sprint(codebook, rate), func(t *testing.T) {
			_, e := newEncoder(t, codebook, rate)
			rng := rand.New(rand.NewPCG(3, uint64(rate)))
			w := e.Worker()
			for i := range w.weights {
				for j := range e.layout.Together {
					w.weights[i][j] = e.quantize(float32(rng.NormFloat64()))
				}
			}
			n, bits := 0, 0
			for bits+e.steps[n].bits <= 16 {
				bits += e.steps[n].bits
				n++
			}
			begin := rng.IntN(e.steps[0].before())
			fill(w.history[0].m)
			w.history[0].m[begin], w.history[0].least = 0, 0
			w.forward(0, n)
			cost := func(path []int) (sum uint32) {
				for i, x := range path {
					sum += e.cost(x, &w.weights[i])
				}
				return sum
			}
			path := make([]int, n)
			var search func(i, edge int) uint32
			search = func(i, edge int) uint32 {
				if i == n {
					return cost(path)
				}
				least := uint32(math.MaxUint32)
				for symbol := range 1 << e.steps[i].bits {
					path[i] = edge<<e.steps[i].bits | symbol
					least = min(least, search(i+1, path[i]&(e.steps[i].after()-1)))
				}
				return least
			}
			want := search(0, begin)
			w.back(n, w.best(n), begin, 0)
			if got := cost(w.trace[:n]); w.edge(0) != begin || got != want {
				t.Errorf("%d steps from edge %d: a path from %d that costs %d: the best one costs %d", n, begin, w.edge(0), got, want)
			}
			for i := range n - 1 {
				if w.trace[i]&(e.steps[i].after()-1) != w.edge(i+1) {
					t.Fatalf("step %d does not follow the one before it", i+1)
				}
			}
		})
	})
}

func TestChooseKernels(t *testing.T) {
	have := map[string]bool{"": true}
	for _, k := range available() {
		have[k.isa] = true
	}
	code, err := trellis.NewCode(trellis.Mul1, 8)
	if err != nil {
		t.Fatal(err)
	}
	for _, isa := range []string{"", "avx512", "avx2", "neon", "generic", "sse9"} {
		t.Setenv("LUTQ_ISA", isa)
		e, err := New(code)
		if got := err == nil; got != have[isa] {
			t.Errorf("LUTQ_ISA=%s: got error %v", isa, err)
		}
		if err != nil && !strings.HasPrefix(err.Error(), "LUTQ_ISA="+isa+": ") {
			t.Errorf("LUTQ_ISA=%s: the error does not name the variable: %v", isa, err)
		}
		if err == nil && isa != "" && e.kernels.isa != isa {
			t.Errorf("LUTQ_ISA=%s: got %s", isa, e.kernels.isa)
		}
	}
}

func TestNewRefuses(t *testing.T) {
	code, err := trellis.NewCode(trellis.Pairs, 4)
	if err != nil {
		t.Fatal(err)
	}
	code.Table = slices.Clone(code.Table)
	code.Table[3] = uint32(num.F32ToF16(float32(math.Inf(1))))
	if _, err := New(code); err == nil || !strings.Contains(err.Error(), "value of window") {
		t.Errorf("an infinite value: got error %v", err)
	}
}

func BenchmarkEncode(b *testing.B) {
	layouts(func(codebook string, rate int) {
		_, e := newEncoder(b, codebook, rate)
		rng := rand.New(rand.NewPCG(1, 2))
		n := e.layout.Rows * e.layout.Cols
		values, symbols := make([]float32, n), make([]uint16, e.layout.Steps())
		ring := make([]float32, n)
		for _, k := range available() {
			e.kernels = k
			b.Run(fmt.Sprintf("%s/%s%d", k.isa, codebook, rate), func(b *testing.B) {
				w := e.Worker()
				for b.Loop() {
					for i := range ring {
						ring[i] = float32(rng.NormFloat64())
					}
					w.Encode(symbols, values, ring)
				}
				b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(n), "ns/weight")
			})
		}
	})
}
