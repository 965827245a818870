package cpu

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	"pgregory.net/rapid"

	"github.com/lutq/lutq/formats/racetest"
	"github.com/lutq/lutq/formats/weight"
	"github.com/lutq/lutq/gemm/ref"
)

func plainCase() weightCase {
	return weightCase{"plain", func(r *rand.Rand, n, k int) (Weights, []float32, error) {
		v := normal(r, n*k)
		return NewPlain(n, k, v), v, nil
	}}
}

func TestPlain(t *testing.T) {
	es := engines(t)
	r := rand.New(rand.NewPCG(1, 2))
	for _, shape := range [][3]int{{1, 1, 1}, {3, 17, 300}, {29, 40, 64}} {
		m, n, k := shape[0], shape[1], shape[2]
		v, x := normal(r, n*k), normal(r, m*k)
		dense, err := NewDense(n, k, "F32", encodeF32(v))
		if err != nil {
			t.Fatal(err)
		}
		want := make([]float32, m*n)
		for _, e := range es {
			e.MatMul(want, x, m, dense)
			got := poisoned(m * n)
			e.MatMul(got, x, m, NewPlain(n, k, v))
			if i := diff(got, want); i >= 0 {
				t.Errorf("%d×%d×%d, %s: element %d is %v: want %v as of stored weights", m, n, k, e.label(), i, got[i], want[i])
			}
		}
	}
}

func encodeF32(v []float32) []byte {
	b := make([]byte, 4*len(v))
	weight.F32.Encode(b, v)
	return b
}

// backCases are weights of every form.
func backCases() []weightCase {
	return []weightCase{plainCase(), denseCase("F32"), denseCase("F16"), denseCase("BF16"), lutCase(3, 32, weight.F16), lutCase(4, 50, weight.BF16), lutCase(5, 1<<20, weight.F32)}
}

// TestMatMulBack compares with a product by the transposed matrix: with the
// reference by distance, with the engine's own bit for bit, in one piece and in several.
func TestMatMulBack(t *testing.T) {
	es := engines(t)
	size := rapid.OneOf(rapid.SampledFrom([]int{1, 14, 15, 16, 17, 31, 32, 33, 63, 64}), rapid.IntRange(1, 70))
	for _, wc := range backCases() {
		t.Run(wc.name, func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) {
				m, k := size.Draw(t, "m"), size.Draw(t, "k")
				n := rapid.OneOf(size, rapid.SampledFrom([]int{255, 256, 257, 511, 512, 530})).Draw(t, "n")
				add, inPieces := rapid.Bool().Draw(t, "add"), rapid.Bool().Draw(t, "in pieces")
				r := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 1))
				w, values, err := wc.make(r, n, k)
				if err != nil {
					t.Fatal(err)
				}
				turned := make([]float32, k*n)
				for i := range n {
					for j := range k {
						turned[j*n+i] = values[i*k+j]
					}
				}
				dy, before := normal(r, m*n), normal(r, m*k)
				var want []float32
				var exact []float64
				var shrunk float64
				if add {
					exact = ref.MatMul(dy, turned, m, k, n)
					for i, v := range before {
						exact[i] += float64(v)
					}
					shrunk = cancelled(exact, dy, turned, k, n)
				} else {
					want = checkMatMul(t, es, NewPlain(k, n, turned), turned, dy, m, nil)
				}
				elements := backElements
				if inPieces {
					elements = 1
				}
				for _, e := range es {
					dx := poisoned(m*k + 3)
					if add {
						copy(dx, before)
					}
					e.matMulBack(dx, dy, m, w, add, elements)
					if i := slices.IndexFunc(dx[m*k:], func(v float32) bool { return v == v }); i >= 0 {
						t.Fatalf("%s: wrote past the end", e.label())
					}
					dx = dx[:m*k]
					if want == nil {
						want = dx
						if err := ref.RelErr(dx, exact) * shrunk; !(err <= 1e-5) {
							t.Fatalf("%s: relative error %g", e.label(), err)
						}
					}
					if i := diff(dx, want); i >= 0 {
						t.Fatalf("%s: row %d, column %d: got %g, want %g", e.label(), i/k, i%k, dx[i], want[i])
					}
				}
			})
		})
	}
}

// TestOuter compares with a product of the transposed operands, bit for bit.
func TestOuter(t *testing.T) {
	racetest.Skip(t)
	es := engines(t)
	size := rapid.OneOf(rapid.SampledFrom([]int{1, 15, 16, 17, 33}), rapid.IntRange(1, 70))
	rapid.Check(t, func(t *rapid.T) {
		m := rapid.OneOf(size, rapid.SampledFrom([]int{255, 256, 257, 520})).Draw(t, "m")
		n := rapid.OneOf(size, rapid.SampledFrom([]int{112, 113, 250})).Draw(t, "n")
		k := rapid.OneOf(size, rapid.SampledFrom([]int{256, 257, 300})).Draw(t, "k")
		n = min(n, max(1, 1_000_000/(m*k))) // portable code is slow
		r := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 1))
		dy, x := normal(r, m*n), normal(r, m*k)
		left, right := make([]float32, n*m), make([]float32, k*m)
		for i := range m {
			for j := range n {
				left[j*m+i] = dy[i*n+j]
			}
			for j := range k {
				right[j*m+i] = x[i*k+j]
			}
		}
		want := checkMatMul(t, es, NewPlain(k, m, right), right, left, n, nil)
		for _, e := range es {
			got := poisoned(n * k)
			var mu sync.Mutex
			e.Outer(dy, x, m, n, k, func(worker, n0 int, g []float32) {
				mu.Lock()
				defer mu.Unlock()
				if n0%16 != 0 || len(g)%k != 0 || len(g) == 0 || worker >= e.Threads() {
					t.Errorf("%s: worker %d got %d elements from row %d", e.label(), worker, len(g), n0)
				}
				copy(got[n0*k:], g)
			})
			if i := diff(got, want); i >= 0 {
				t.Fatalf("%s: row %d, column %d: got %g, want %g", e.label(), i/k, i%k, got[i], want[i])
			}
		}
	})
}

func TestRows(t *testing.T) {
	es := engines(t)
	r := rand.New(rand.NewPCG(1, 2))
	for _, wc := range backCases() {
		for _, shape := range [][2]int{{1, 1}, {40, 70}, {33, 300}, {16, 256}} {
			n, k := shape[0], shape[1]
			w, values, err := wc.make(r, n, k)
			if err != nil {
				t.Fatal(err)
			}
			for _, e := range es {
				for r0 := 0; r0 < n; r0 += 16 {
					rows := min(16, n-r0)
					got := poisoned(rows * k)
					e.Rows(got, w, r0)
					if i := diff(got, values[r0*k:][:rows*k]); i >= 0 {
						t.Fatalf("%s, %d×%d, %s: row %d column %d is %v: want %v", wc.name, n, k, e.label(), r0+i/k, i%k, got[i], values[r0*k+i])
					}
				}
			}
		}
	}
}

// TestGram compares with an outer product of x with itself, bit for bit.
func TestGram(t *testing.T) {
	es := engines(t)
	rapid.Check(t, func(t *rapid.T) {
		m := rapid.OneOf(rapid.IntRange(1, 40), rapid.SampledFrom([]int{256, 257, 520})).Draw(t, "m")
		k := rapid.OneOf(rapid.IntRange(1, 70), rapid.SampledFrom([]int{112, 113, 256, 257, 300})).Draw(t, "k")
		m = min(m, 4_000_000/(k*k)) // portable code is slow
		x := normal(rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 1)), m*k)
		want := make([]float32, k*k)
		es[0].Outer(x, x, m, k, k, func(_, n0 int, g []float32) { copy(want[n0*k:], g) })
		for _, e := range es {
			got := poisoned(k * k)
			e.Gram(x, m, k, func(_, n0 int, g []float32) {
				for r := range len(g) / (k - n0) {
					for c, v := range g[r*(k-n0):][:k-n0] {
						got[(n0+r)*k+n0+c], got[(n0+c)*k+n0+r] = v, v
					}
				}
			})
			if i := diff(got, want); i >= 0 {
				t.Fatalf("%s: row %d, column %d: got %g, want %g", e.label(), i/k, i%k, got[i], want[i])
			}
		}
	})
}

// BenchmarkBack reports the GFLOP/s of the gradients of a product beside its own.
func BenchmarkBack(b *testing.B) {
	r := rand.New(rand.NewPCG(1, 2))
	for _, shape := range [][3]int{{512, 384, 384}, {512, 1536, 576}, {512, 576, 1536}, {2048, 2048, 2048}} {
		m, n, k := shape[0], shape[1], shape[2]
		x, y, v := normal(r, m*k), normal(r, m*n), normal(r, n*k)
		b.Run(fmt.Sprintf("%dx%dx%d", m, n, k), func(b *testing.B) {
			for _, threads := range []int{1, 2} {
				e, err := New(Options{Threads: threads})
				if err != nil {
					b.Fatal(err)
				}
				for _, test := range []struct {
					name string
					run  func()
				}{
					{"forward", func() { e.MatMul(y, x, m, NewPlain(n, k, v)) }},
					{"back", func() { e.MatMulBack(x, y, m, NewPlain(n, k, v), false) }},
					{"outer", func() { e.Outer(y, x, m, n, k, func(int, int, []float32) {}) }},
					{"gram", func() { e.Gram(x, m, k, func(int, int, []float32) {}) }},
				} {
					b.Run(fmt.Sprintf("%s/%d", test.name, threads), func(b *testing.B) {
						for b.Loop() {
							test.run()
						}
						perNano(b, 2*m*n*k, "GFLOP/s")
					})
				}
				e.Close()
			}
		})
	}
}
