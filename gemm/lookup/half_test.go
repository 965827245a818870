package lookup

import (
	"testing"

	"pgregory.net/rapid"
)

// TestHalf: half a table, with a sign, has every sum, and its other half is the negative of it.
func TestHalf(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		x := rapid.SliceOfN(rapid.Int32Range(-128, 127), 1, 8).Draw(t, "x")
		k := len(x)
		table := make([]int32, Entries(k))
		Half(table, x)
		for w := range 1 << k {
			var want int32
			for j, v := range x {
				want += int32(2*(w>>j&1)-1) * v
			}
			at := Remap(uint8(w), k)
			if got := Sum(table, at, k); got != want {
				t.Errorf("weights %0*b: got %d, want %d", k, w, got, want)
			}
			if got := Sum(table, Remap(uint8(1<<k-1-w), k), k); got != -want {
				t.Errorf("inverse of weights %0*b: got %d, want %d", k, w, got, -want)
			}
			if back := Remap(at, k); int(back) != w {
				t.Errorf("%0*b becomes %0*b and then %0*b", k, w, k, at, k, back)
			}
		}
	})
}

// TestAdds counts the additions of a table by hand: K − 1 for the sum, and one for each other entry.
func TestAdds(t *testing.T) {
	for k, want := range map[int]int{1: 0, 2: 2, 4: 10, 8: 134} {
		if got := Adds(k); got != want {
			t.Errorf("%d elements: %d, want %d", k, got, want)
		}
	}
}

// TestSymmetric: s·(q − z) = s'·(q' − z'), a dot product by planes is one by weights, and its sum over x is
// minus the first entries of the tables.
func TestSymmetric(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b := rapid.IntRange(1, 8).Draw(t, "bits")
		z := rapid.IntRange(-3, 300).Draw(t, "z")
		x := rapid.SliceOfN(rapid.Int32Range(-128, 127), 4, 4).Draw(t, "x")
		q := rapid.SliceOfN(rapid.IntRange(0, 1<<b-1), 4, 4).Draw(t, "q")
		table := make([]int32, Entries(4))
		Half(table, x)
		var twice, sum int32 // of Σ x·(q − z), for s' is s/2
		for k, v := range x {
			twice += 2 * v * int32(q[k]-z)
			sum += v
		}
		got := -Zero(z, b) * sum
		if table[0] != -sum {
			t.Errorf("entry 0 is %d, want %d", table[0], -sum)
		}
		for i := range b {
			var w uint8
			for k, c := range q {
				w |= uint8(c>>i&1) << k
			}
			got += Sum(table, Remap(w, 4), 4) << i
		}
		if got != twice {
			t.Errorf("got %d, want %d", got, twice)
		}
	})
}
