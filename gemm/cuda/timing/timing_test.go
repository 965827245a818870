package timing

import "testing"

func TestGraphCalls(t *testing.T) {
	for ring, want := range map[int]int{1: 64, 2: 64, 3: 66, 5: 65, 63: 126, 64: 64, 100: 100} {
		if got := graphCalls(ring, leastCalls); got != want {
			t.Errorf("ring of %d: got %d calls, want %d", ring, got, want)
		}
	}
}
