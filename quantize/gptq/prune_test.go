package gptq

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"gonum.org/v1/gonum/mat"

	"github.com/lutq/lutq/formats/racetest"
	"github.com/lutq/lutq/formats/weight"
	"github.com/lutq/lutq/formats/weight/lut"
	"github.com/lutq/lutq/formats/weight/lut24"
	"github.com/lutq/lutq/quantize/prune"
	"github.com/lutq/lutq/quantize/rounding"
	"github.com/lutq/lutq/quantize/rtn"
)

// pruned quantizes rows of k weights, which keep two of four.
func pruned(t testing.TB, s *State, stats rounding.Stats, o lut.Format, w []float32, k int) (*lut24.Matrix, []rounding.RowError) {
	t.Helper()
	columns, err := stats.Diagonal()
	if err != nil {
		t.Fatal(err)
	}
	inner, err := prune.NewQuantizer(prune.Options{Format: o, Columns: columns})
	if err != nil {
		t.Fatal(err)
	}
	q, err := s.Quantizer(inner)
	if err != nil {
		t.Fatal(err)
	}
	n := len(w) / k
	half := o.Group / 2
	m := &lut24.Matrix{
		Kept: &lut.Matrix{
			N: n, K: k / 2, Bits: o.Codebook.Bits(), Group: half, ScaleType: o.ScaleType, Codebook: o.Codebook.Values,
			Codes:  make([]byte, n*lut.RowBytes(k/2, o.Codebook.Bits())),
			Scales: make([]byte, n*weight.GroupsIn(k/2, half)*o.ScaleType.Size()),
		},
		Pattern: make([]byte, n*lut24.PatternBytes(k)),
	}
	errs := make([]rounding.RowError, n)
	parts := [][]byte{nil, m.Kept.Scales, m.Kept.Codes, m.Pattern}
	if err := q.Rows(parts, errs, w); err != nil {
		t.Fatal(err)
	}
	if err := m.Validate(); err != nil {
		t.Fatal(err)
	}
	return m, errs
}

// reference is SparseGPT as it is published, in float64: with the upper Cholesky factor U of the inverse of H,
// columns in an order, of which each four drop the two with the least w²/U². level rounds.
func reference(w []float64, h *mat.SymDense, order []int, level func(col int, v float64) float64) ([]float64, error) {
	k := len(w)
	turned := mat.NewSymDense(k, nil)
	for i, a := range order {
		for j, b := range order[:i+1] {
			turned.SetSym(i, j, h.At(a, b))
		}
	}
	var of, back mat.Cholesky
	of.Factorize(turned)
	var inverse mat.SymDense
	if err := of.InverseTo(&inverse); err != nil {
		return nil, err
	}
	back.Factorize(&inverse)
	var u mat.TriDense
	back.UTo(&u)
	v, out := make([]float64, k), make([]float64, k)
	for i, c := range order {
		v[i] = w[c]
	}
	var drop [4]bool
	for i := range v {
		if i%4 == 0 {
			rank := []int{0, 1, 2, 3}
			slices.SortStableFunc(rank, func(a, b int) int {
				x, y := v[i+a]/u.At(i+a, i+a), v[i+b]/u.At(i+b, i+b)
				if x*x < y*y {
					return -1
				}
				return 1
			})
			drop = [4]bool{}
			drop[rank[0]], drop[rank[1]] = true, true
		}
		var q float64
		if !drop[i%4] {
			q = level(order[i], v[i])
		}
		out[order[i]] = q
		e := (v[i] - q) / u.At(i, i)
		for j := i; j < k; j++ {
			v[j] -= e * u.At(i, j)
		}
	}
	return out, nil
}

// TestPrune holds what is kept, and its codes, against the published algorithm.
func TestPrune(t *testing.T) {
	racetest.Skip(t)
	const n, k, tokens, damp = 12, 264, 1200, 0.01 // more than two blocks
	rng := rand.New(rand.NewPCG(1, 2))
	x := inputs(rng, tokens, k)
	stats := fixed{k: k, tokens: tokens, h: gram(x, x, k)}
	w := normal(rng, n*k)
	o := lut.Format{Codebook: table(t, "js", 4, 32), Group: 32, Scale: weight.MSE, ScaleType: weight.F32}
	s := state(t, stats, Options{Damp: damp, Chunk: 4})
	m, errs := pruned(t, s, stats, o, w, k)

	var mean float64
	for i := range k {
		mean += float64(stats.h[i*k+i]) / k
	}
	h := mat.NewSymDense(k, nil)
	for i := range k {
		for j := range i + 1 {
			h.SetSym(i, j, float64(stats.h[i*k+j]))
		}
		h.SetSym(i, i, h.At(i, i)+damp*mean)
	}
	if order := slices.Clone(s.order); !slices.IsSorted(order[:4]) || slices.IsSorted(order) {
		t.Fatalf("order %v", order)
	}
	row, scales := make([]float32, k), make([]float32, m.Kept.Groups())
	var fed, nearest float64
	for r := range n {
		m.Row(row, r)
		m.Kept.RowScales(scales, r)
		of := make([]float64, k)
		for i := range of {
			of[i] = float64(w[r*k+i])
		}
		want, err := reference(of, h, s.order, func(col int, v float64) float64 {
			best := math.Inf(1)
			for _, c := range o.Codebook.Values {
				if l := float64(c * scales[col/32]); math.Abs(v-l) < math.Abs(v-best) {
					best = l
				}
			}
			return best
		})
		if err != nil {
			t.Fatal(err)
		}
		// What a row loses, by both: roundings in float32 may tip one code, and all after it.
		loss := func(at func(i int) float64) (sum float64) {
			d := mat.NewVecDense(k, nil)
			for i := range k {
				d.SetVec(i, of[i]-at(i))
			}
			return mat.Inner(d, h, d) / tokens
		}
		got, published := loss(func(i int) float64 { return float64(row[i]) }), loss(func(i int) float64 { return want[i] })
		if math.Abs(got-errs[r].Loss) > 1e-3*got {
			t.Errorf("row %d loses %v: it was said to lose %v", r, got, errs[r].Loss)
		}
		same := 0
		for i := range k {
			if row[i] == float32(want[i]) {
				same++
			}
		}
		if same < k && math.Abs(got-published) > 0.02*published || same < k/4 {
			t.Errorf("row %d: %d of %d weights are those of the published algorithm, and %v is lost, not %v", r, same, k, got, published)
		}
		fed, nearest = fed+errs[r].Loss, nearest+errs[r].NearestLoss
		for c := 0; c < k; c += 4 {
			zeros := 0
			for _, v := range row[c : c+4] {
				if math.Float32bits(v) == 0 {
					zeros++
				}
			}
			if zeros < 2 {
				t.Fatalf("row %d, columns from %d: %v", r, c, row[c:c+4])
			}
		}
	}
	if !(fed < 0.8*nearest) {
		t.Errorf("%v is lost with errors fed on, %v without", fed, nearest)
	}
}

// TestPruneNearest: without statistics to go by, what is kept is chosen by the inputs' squares.
func TestPruneNearest(t *testing.T) {
	const k = 32
	rng := rand.New(rand.NewPCG(3, 4))
	x := inputs(rng, k/2, k)
	stats := fixed{k: k, tokens: k / 2, h: gram(x, x, k)}
	o := lut.Format{Codebook: table(t, "js", 4, 32), Group: 32, Scale: weight.MSE, ScaleType: weight.F16}
	w := normal(rng, 3*k)
	m, errs := pruned(t, state(t, stats, Options{Chunk: 4}), stats, o, w, k)
	if errs[0].Loss != 0 {
		t.Errorf("a loss of %v", errs[0].Loss)
	}
	columns, _ := stats.Diagonal()
	for r := range 3 {
		for c := range k / 4 {
			p := lut24.Nibble(m.RowPattern(r), c)
			score := func(i uint8) float64 {
				v := float64(w[r*k+4*c+int(i)])
				return v * v * float64(columns[4*c+int(i)])
			}
			for i := range uint8(4) {
				if i != p&3 && i != p>>2 && score(i) > min(score(p&3), score(p>>2)) {
					t.Errorf("row %d, chunk %d: column %d is dropped", r, c, i)
				}
			}
		}
	}
}

// TestPruneOptions: chunks that cannot be, and quantizers that cannot prune.
func TestPruneOptions(t *testing.T) {
	for _, chunk := range []int{-4, 3, 128} {
		if (Options{Chunk: chunk}).Check() == nil {
			t.Errorf("chunks of %d columns", chunk)
		}
	}
	stats := fixed{k: 6, tokens: 8, h: make([]float32, 36)}
	if _, err := NewState(stats, Options{Chunk: 4}); err == nil || err.Error() != "6 columns in chunks of 4" {
		t.Errorf("got error %v", err)
	}
	rng := rand.New(rand.NewPCG(5, 6))
	x := inputs(rng, 64, 8)
	q, err := rtn.NewQuantizer(lut.Format{Codebook: table(t, "js", 4, 32), Group: 8, Scale: weight.MSE, ScaleType: weight.F16})
	if err != nil {
		t.Fatal(err)
	}
	for _, chunk := range []int{2, 4} {
		s := state(t, fixed{k: 8, tokens: 64, h: gram(x, x, 8)}, Options{Damp: 0.1, Chunk: chunk})
		if _, err := s.Quantizer(q); err == nil || err.Error() != "weights that cannot be pruned" {
			t.Errorf("chunks of %d columns: got error %v", chunk, err)
		}
	}
}
