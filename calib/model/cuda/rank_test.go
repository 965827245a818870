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
		got := o.Rank(x, rows, cols, temperature)
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
			if math.Abs(g.Sum-sum) > (1e-15+2e-16*float64(cols))*sum { // as one after the other is added here
				t.Errorf("row %d of %d: the sum is %.17g: want %.17g", row, cols, g.Sum, sum)
			}
		}
	}
	for _, bad := range []float64{math.NaN(), math.Inf(1)} {
		v := make([]float32, 5000)
		v[4000] = float32(bad)
		x := o.Floats(len(v))
		o.Write(x, v)
		if got := o.Rank(x, 1, len(v), 1); !math.IsNaN(got[0].Sum) {
			t.Errorf("beside %v the sum is %v", bad, got[0].Sum)
		}
		o.Free(x)
	}
}
