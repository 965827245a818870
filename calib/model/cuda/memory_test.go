package cuda

import "testing"

// TestPooled: memory is no more than a sixteenth larger than what is asked for, and there are few sizes.
func TestPooled(t *testing.T) {
	for _, c := range []struct{ n, want int }{
		{0, 512},
		{1, 512},
		{512, 512},
		{513, 1024},
		{16384, 16384},
		{16385, 17408},
		{1 << 20, 1 << 20},
		{1<<20 + 1, 1<<20 + 1<<16},
		{3 << 20, 3 << 20},
		{28 << 20, 28 << 20},
		{1<<21 - 1, 1 << 21},
	} {
		if got := pooled(c.n); got != c.want {
			t.Errorf("%d bytes take %d: want %d", c.n, got, c.want)
		}
	}
	sizes := make(map[int]bool)
	for n := 1; n < 1<<26; n += 4099 {
		got := pooled(n)
		if sizes[got] = true; got < n || got > n+max(n/16, poolStep) {
			t.Fatalf("%d bytes take %d", n, got)
		}
	}
	if len(sizes) > 250 {
		t.Errorf("%d sizes", len(sizes))
	}
}
