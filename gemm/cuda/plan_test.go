package cuda

import (
	"testing"

	"github.com/lutq/lutq/gemm/cuda/driver"
	"github.com/lutq/lutq/quantize/lut"
)

// TestSlices holds the split of K to where it changes, and sixteen slices to what they
// are for: one run over a block's tiles, each warp with columns of its own.
func TestSlices(t *testing.T) {
	h200 := limits{sms: 132, sharedBlock: 227 << 10, sharedSM: 228 << 10}
	for _, test := range []struct{ n, k, m, want int }{
		{4096, 3840, 1, minSlices},
		{4096, 3872, 1, maxSlices},
		{28672, 4096, 8, maxSlices},
		{28672, 4096, 9, minSlices},
		{32768, 4096, 8, maxSlices},
		{32769, 4096, 1, minSlices},
		{16384, 28672, 16, maxSlices},
		{16385, 28672, 16, minSlices},
	} {
		if got := slicesOf(test.n, test.k, test.m); got != test.want {
			t.Errorf("%d×%d, %d rows: %d slices, want %d", test.n, test.k, test.m, got, test.want)
		}
		for bits := 2; bits <= 4 && test.want == maxSlices; bits++ {
			f := Format{bits, 128, lut.F16, driver.F16}
			p, _, err := f.plan(f.configs(test.m)[0], test.n, test.k, test.m, h200)
			if err != nil {
				t.Fatal(err)
			}
			if tiles := p.tilesEach + min(p.tilesOver, 1); p.run < tiles || p.slices > p.units {
				t.Errorf("%d bits, %d×%d, %d rows: %d tiles of a block in runs of %d, %d slices of %d units",
					bits, test.n, test.k, test.m, tiles, p.run, p.slices, p.units)
			}
		}
	}
}
