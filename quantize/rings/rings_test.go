package rings

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/lutq/lutq/formats/weight"
	"github.com/lutq/lutq/formats/weight/trellis"
	"github.com/lutq/lutq/quantize/rounding"
)

func normal(seed uint64, n int) []float32 {
	rng := rand.New(rand.NewPCG(seed, 0))
	w := make([]float32, n)
	for i := range w {
		w[i] = float32(rng.NormFloat64())
	}
	return w
}

func quantizer(t testing.TB, rate int, st weight.ScaleType) *Quantizer {
	t.Helper()
	c, err := trellis.NewCode(trellis.Pairs, rate)
	if err != nil {
		t.Fatal(err)
	}
	q, err := NewQuantizer(Options{Code: c, ScaleType: st})
	if err != nil {
		t.Fatal(err)
	}
	return q
}

// quantize quantizes n rows of weights, some of them at a time, and opens what is stored.
func quantize(t testing.TB, q *Quantizer, w []float32, n, some int) (*trellis.Matrix, []rounding.RowError) {
	t.Helper()
	k := len(w) / n
	spec := weight.Spec{Kind: trellis.Name, Bits: q.layout.Rate / 2, Half: q.layout.Rate%2 != 0, Group: weight.RowGroup, ScaleType: q.o.ScaleType}
	of, err := trellis.Kind{}.Parts(spec, n, k)
	if err != nil {
		t.Fatal(err)
	}
	rings := slices.Repeat([]byte{0xA5}, of[trellis.RingsPart].Entries(n)*of[trellis.RingsPart].Shape[2]*of[trellis.RingsPart].Shape[3])
	scales := slices.Repeat([]byte{0xA5}, n*q.o.ScaleType.Size())
	band := len(rings) / of[trellis.RingsPart].Entries(n)
	errs := make([]rounding.RowError, n)
	for from := 0; from < n; from += some {
		to := min(from+some, n)
		parts := [][]byte{
			trellis.RingsPart:  rings[from/trellis.RingRows*band : of[trellis.RingsPart].Entries(to)*band],
			trellis.ScalesPart: scales[from*q.o.ScaleType.Size() : to*q.o.ScaleType.Size()],
		}
		if err := q.Rows(parts, errs[from:to], w[from*k:to*k]); err != nil {
			t.Fatal(err)
		}
		q.Shared(parts)
	}
	m, err := trellis.Kind{}.Open(spec, n, k, [][]byte{rings, scales})
	if err != nil {
		t.Fatal(err)
	}
	return m.(*trellis.Matrix), errs
}

// TestRows: what is stored is as near to the weights as it is said to be, whatever the shape, and as near as the rate allows.
func TestRows(t *testing.T) {
	for _, tc := range []struct {
		n, k, rate int
		most       float64 // squared error, of the weights' own
	}{
		{8, 128, 4, .085},
		{16, 16, 5, .046},
		{3, 40, 4, .09}, // rows and columns with padding
		{11, 21, 6, .03},
		{8, 128, 8, .0075},
	} {
		t.Run(fmt.Sprintf("%d×%d, rate %d", tc.n, tc.k, tc.rate), func(t *testing.T) {
			w := normal(7, tc.n*tc.k)
			for i := range w {
				w[i] *= float32(i/tc.k + 1) // rows of other sizes
			}
			m, errs := quantize(t, quantizer(t, tc.rate, weight.F16), w, tc.n, tc.n)
			got := weight.Dequantize(m)
			for n, e := range errs {
				var want rounding.RowError
				for i := n * tc.k; i < (n+1)*tc.k; i++ {
					want.Add(w[i], got[i])
				}
				if math.Abs(e.Energy-want.Energy) > 1e-5*want.Energy || math.Abs(e.Squared-want.Squared) > 1e-4*want.Squared || e.Wants != 0 {
					t.Errorf("row %d: error %+v: want %+v", n, e, want)
				}
			}
			var energy, squared float64
			for _, e := range errs {
				energy += e.Energy
				squared += e.Squared
			}
			if !(squared < tc.most*energy) {
				t.Errorf("squared error %.4f of the weights': want less than %v", squared/energy, tc.most)
			}
		})
	}
}

// TestDivided: rows that share no ring do not depend on each other, nor on what was quantized before.
func TestDivided(t *testing.T) {
	const n, k = 20, 32
	w, q := normal(3, n*k), quantizer(t, 4, weight.F16)
	all, _ := quantize(t, q, w, n, n)
	some, _ := quantize(t, q, w, n, 8)
	if !bytes.Equal(all.Rings, some.Rings) || !bytes.Equal(all.Scales, some.Scales) {
		t.Error("eight rows at a time are stored otherwise than all")
	}
}

// TestZeros: rows of zeros stay zeros beside others.
func TestZeros(t *testing.T) {
	const n, k = 8, 16
	w := normal(5, n*k)
	clear(w[2*k : 4*k])
	m, errs := quantize(t, quantizer(t, 4, weight.F16), w, n, n)
	got := weight.Dequantize(m)
	if slices.ContainsFunc(got[2*k:4*k], func(v float32) bool { return v != 0 }) || errs[2] != (rounding.RowError{}) {
		t.Errorf("rows of zeros are %v, %+v", got[2*k:4*k], errs[2])
	}
	if errs[1].Squared > .3*errs[1].Energy {
		t.Errorf("beside them: %+v", errs[1])
	}
}

// TestScales: what scales cannot hold is said.
func TestScales(t *testing.T) {
	const n, k = 8, 16
	for _, tc := range []struct {
		name   string
		factor float32
		st     weight.ScaleType
		large  bool
		wants  weight.ScaleType
	}{
		{"too large for f16", 1e7, weight.F16, true, 0},
		{"too small for f16", 1e-7, weight.F16, false, weight.BF16},
		{"small for bf16", 1e-7, weight.BF16, false, 0},
		{"large for f32", 1e20, weight.F32, false, 0},
		{"too large for the kind", 3e38, weight.F32, true, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			w := normal(5, n*k)
			for i := 3 * k; i < 4*k; i++ {
				w[i] = min(max(w[i], -1), 1) * tc.factor
			}
			q := quantizer(t, 4, tc.st)
			parts := [][]byte{make([]byte, 32), make([]byte, n*tc.st.Size())}
			errs := make([]rounding.RowError, n)
			err := q.Rows(parts, errs, w)
			var scale *rounding.ScaleError
			if tc.large != errors.As(err, &scale) || tc.large && scale.Row != 3 || !tc.large && err != nil {
				t.Fatalf("error %v", err)
			}
			if !tc.large && errs[3].Wants != tc.wants {
				t.Errorf("row 3 wants %v: want %v", errs[3].Wants, tc.wants)
			}
		})
	}
}

// TestNotFinite: such a weight is named by its place in the layer, for it is everywhere once rows are mixed.
func TestNotFinite(t *testing.T) {
	w := normal(1, 8*16)
	w[5*16+3] = float32(math.Inf(-1))
	err := quantizer(t, 4, weight.F16).Rows([][]byte{make([]byte, 32), make([]byte, 16)}, make([]rounding.RowError, 8), w)
	var bad *rounding.NotFiniteError
	if !errors.As(err, &bad) || bad.Row != 5 || bad.Col != 3 || !math.IsInf(float64(bad.Value), -1) {
		t.Errorf("error %v", err)
	}
}

// TestParts: parts of other sizes are refused.
func TestParts(t *testing.T) {
	q := quantizer(t, 4, weight.F16)
	for _, parts := range [][][]byte{{make([]byte, 31), make([]byte, 16)}, {make([]byte, 32), make([]byte, 14)}, {make([]byte, 32)}} {
		if err := q.Rows(parts, make([]rounding.RowError, 8), normal(1, 8*16)); err == nil {
			t.Errorf("parts of %d are taken", len(parts[0]))
		}
	}
}

// second are second moments in memory.
type second struct {
	k    int
	h, d []float32
}

func (s second) K() int                       { return s.k }
func (s second) Tokens() int                  { return 1 }
func (s second) Diagonal() ([]float32, error) { return nil, errors.New("that of other inputs") }
func (s second) Hessian() ([]float32, error)  { return s.h, nil }
func (s second) Drift() ([]float32, error)    { return s.d, nil }

// gram returns Σ a·bᵀ of [tokens, k].
func gram(a, b []float32, k int) []float32 {
	h := make([]float32, k*k)
	for i := range k {
		for j := range k {
			var sum float64
			for t := 0; t < len(a); t += k {
				sum += float64(a[t+i]) * float64(b[t+j])
			}
			h[i*k+j] = float32(sum)
		}
	}
	return h
}

// TestStats: statistics are those of what is read in the place of x, which is what products turn x into, and its products with rotated rows
// are those of x with the rows.
func TestStats(t *testing.T) {
	for _, k := range []int{16, 40, 256} {
		t.Run(fmt.Sprint(k), func(t *testing.T) {
			const tokens = 6
			signs := make([]float32, k)
			for i := range signs {
				signs[i] = trellis.Sign(i)
			}
			x, y := normal(1, tokens*k), normal(2, tokens*k)
			turn := func(x []float32) []float32 {
				out := make([]float32, len(x))
				trellis.Rotate(out, x, signs)
				// Products of blocks are as large as those of 128 columns: here they are rotations.
				for at := 0; at < len(out); at += k {
					trellis.Blocks(k, func(from, to int) {
						by := float32(math.Sqrt(trellis.Block/float64(to-from))) / trellis.Even(to-from)
						for i := from; i < to; i++ {
							out[at+i] *= by
						}
					})
				}
				return out
			}
			r := NewRotation(k)
			s := r.Stats(second{k, gram(x, x, k), gram(y, x, k)})
			tx, ty := turn(x), turn(y)
			wantH, wantD := gram(tx, tx, k), gram(ty, tx, k)
			near := func(name string, got, want []float32) {
				t.Helper()
				if len(got) != len(want) {
					t.Fatalf("%s: %d numbers, want %d", name, len(got), len(want))
				}
				for i, v := range got {
					if math.Abs(float64(v-want[i])) > 1e-4 {
						t.Fatalf("%s: number %d is %v, want %v", name, i, v, want[i])
					}
				}
			}
			h, err := s.Hessian()
			if err != nil {
				t.Fatal(err)
			}
			near("Hessian", h, wantH)
			d, err := s.Drift()
			if err != nil {
				t.Fatal(err)
			}
			near("drift", d, wantD)
			diagonal, err := s.Diagonal()
			if err != nil {
				t.Fatal(err)
			}
			for i, v := range diagonal {
				if v != h[i*k+i] {
					t.Errorf("diagonal %d is %v: want %v", i, v, h[i*k+i])
				}
			}
			if d, err := r.Stats(second{k: k, h: wantH}).Drift(); d != nil || err != nil {
				t.Errorf("drift of none is %v, %v", d, err)
			}
			w := normal(9, k)
			rotated := make([]float32, k)
			r.Rows(rotated, w)
			for at := 0; at < len(x); at += k {
				var want, got float64
				for i, v := range w {
					want += float64(v) * float64(x[at+i])
					got += float64(rotated[i]) * float64(tx[at+i])
				}
				if math.Abs(got-want) > 1e-4 {
					t.Errorf("product %v: want %v", got, want)
				}
			}
		})
	}
}
