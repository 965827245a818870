package cuda

import (
	"cmp"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

// TestGPURank compares what stands first in rows with all of them sorted.
func TestGPURank(t *testing.T) {
	onGPU(t, func(t *testing.T, o *Ops, i int) {
		if i == 0 { // logits are always floats
			testRank(t, o, 128256, 262144)
		}
	})
}

func testRank(t *testing.T, o *Ops, long ...int) {
	r := rand.New(rand.NewPCG(1, 2))
	for _, cols := range append([]int{1, 31, 256, 257, 2048, 2049, 9000}, long...) {
		const rows, temperature = 3, 0.7
		v := make([]float32, rows*cols)
		for i := range v {
			v[i] = float32(r.NormFloat64() * 4)
		}
		for i := range cols { // the second has many equals, of both signs of zero among them
			v[cols+i] = float32(math.Trunc(float64(v[cols+i]) / 3))
			if r.IntN(2) == 0 {
				v[cols+i] = -v[cols+i]
			}
		}
		if cols > 300 { // and the third its largest side by side, and what has no likelihood
			for i := range 128 {
				v[2*cols+32+i] += 50
			}
			v[2*cols+5] = float32(math.Inf(-1))
		}
		x := o.Floats(len(v))
		o.Write(x, v)
		got, weighed := o.Rank(x, rows, cols, temperature), o.Weigh(x, rows, cols, temperature)
		o.Free(x)
		if err := o.Err(); err != nil {
			t.Fatal(err)
		}
		for row, g := range got {
			all := v[row*cols : (row+1)*cols]
			order := make([]int, cols)
			for i := range order {
				order[i] = i
			}
			slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(all[b], all[a]) })
			if least := min(cols, 100); len(g.Tokens) < least || len(g.Tokens) != len(g.Values) {
				t.Fatalf("row %d of %d: %d tokens, %d values", row, cols, len(g.Tokens), len(g.Values))
			}
			if !slices.Equal(g.Tokens, order[:len(g.Tokens)]) {
				t.Errorf("row %d of %d: %d tokens are not the first", row, cols, len(g.Tokens))
			}
			var sum float64
			for i, token := range order {
				if i < len(g.Values) && g.Values[i] != all[token] {
					t.Fatalf("row %d of %d: token %d has %v: want %v", row, cols, token, g.Values[i], all[token])
				}
				sum += math.Exp(float64(all[token])/temperature - float64(all[order[0]])/temperature)
			}
			w, parts := weighed[row], 0
			for part := range slices.Chunk(all, w.Part) {
				top, sum := slices.Max(part), 0.0
				for _, v := range part {
					sum += math.Exp(float64(v)/temperature - float64(top)/temperature)
				}
				if w.Tops[parts] != top || math.Abs(w.Sums[parts]-sum) > 1e-12*sum {
					t.Errorf("row %d of %d, part %d: %v beside %v, want %v beside %v", row, cols, parts, w.Sums[parts], w.Tops[parts], sum, top)
				}
				parts++
			}
			if parts != len(w.Sums) || parts != len(w.Tops) {
				t.Errorf("row %d of %d: %d sums and %d numbers of %d parts", row, cols, len(w.Sums), len(w.Tops), parts)
			}
			if math.Abs(g.Sum-sum) > (1e-15+2e-16*float64(cols))*sum { // as one after the other is added here
				t.Errorf("row %d of %d: the sum is %.17g: want %.17g", row, cols, g.Sum, sum)
			}
		}
	}
	none := make([]float32, 3000)
	for i := range none {
		none[i] = float32(math.Inf(-1))
	}
	none[1] = 3
	x := o.Floats(len(none))
	o.Write(x, none)
	if got := o.Weigh(x, 1, len(none), 2)[0]; !slices.Equal(got.Sums, []float64{1, 0}) {
		t.Errorf("a part without likelihood: %v", got)
	}
	o.Free(x)
	for _, bad := range []float64{math.NaN(), math.Inf(1)} {
		v := make([]float32, 5000)
		v[4000] = float32(bad)
		x := o.Floats(len(v))
		o.Write(x, v)
		if got := o.Rank(x, 1, len(v), 1); !math.IsNaN(got[0].Sum) {
			t.Errorf("beside %v the sum is %v", bad, got[0].Sum)
		}
		if got := o.Weigh(x, 1, len(v), 1)[0].Sums; !math.IsNaN(got[1]) || got[0] != 2048 {
			t.Errorf("beside %v the sums are %v", bad, got)
		}
		o.Free(x)
	}
}
