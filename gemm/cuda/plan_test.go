package cuda

import (
	"testing"

	"github.com/lutq/lutq/gemm/cuda/driver"
	"github.com/lutq/lutq/quantize/lut"
)

// TestSlices holds the split of K to where it changes, and sixteen slices to what they
// are for: one run over a block's tiles, each warp with columns of its own.
func TestSlices(t *testing.T) {
	h200 := limits{sms: 132, sharedBlock: 227 << 10}
	for _, test := range []struct{ n, k, m, want, wantOf5 int }{
		{4096, 3840, 1, 8, 8},
		{4096, 3872, 1, 16, 16},
		{28672, 4096, 8, 16, 16},
		{28672, 4096, 9, 4, 4},
		{32768, 4096, 8, 16, 16},
		{32769, 4096, 1, 8, 8},
		{8192, 28672, 4, 16, 16},
		{8192, 28672, 5, 8, 16},
		{8193, 28672, 8, 16, 16},
		{8192, 28672, 16, 8, 4},
		{8193, 28672, 16, 8, 4},
		{14336, 4096, 16, 8, 4},
		{14337, 4096, 16, 4, 4},
		{8192, 1792, 16, 4, 4},
		{8192, 1824, 16, 8, 4},
		{8192, 4096, 8, 16, 16},
		{8192, 4128, 8, 8, 16},
		{2048, 8192, 8, 16, 16},
		{2049, 8192, 8, 8, 16},
		{28673, 4096, 8, 16, 16},
		{28673, 4096, 9, 2, 2},
	} {
		for bits := lut.MinBits; bits <= lut.MaxBits; bits++ {
			f := Format{bits, 128, lut.F16, driver.F16}
			want := test.want
			if bits == 5 {
				want = test.wantOf5
			}
			if got := f.slicesOf(test.n, test.k, test.m); got != want {
				t.Errorf("%d bits, %d×%d, %d rows: %d slices, want %d", bits, test.n, test.k, test.m, got, want)
			}
			if want != 16 || bits == 5 {
				continue
			}
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

// TestWide holds lutwide.cu to where it is for: a large GPU has a configuration of it exactly
// where wide says so, and one whose warps hold all tiles of a block in registers where they are
// up to 28.
func TestWide(t *testing.T) {
	h200 := limits{sms: 132, sharedBlock: 227 << 10}
	for _, test := range []struct {
		n, k, m int
		want    bool
		passes  uint32
	}{
		{8192, 8192, 4, false, 0},
		{8192, 8192, 5, true, 1},
		{8192, 8192, 16, true, 1},
		{8192, 4096, 8, false, 0},
		{16896, 4096, 8, false, 0},
		{14336, 4096, 9, true, 1},
		{16896, 4096, 9, true, 1},
		{28672, 4096, 8, false, 0},
		{28672, 4096, 16, true, 1},
		{29568, 4096, 16, true, 1},
		{57344, 8192, 16, true, 1},
		{61440, 8192, 16, true, 2},
		{16, 32, 16, true, 1},
	} {
		for bits := lut.MinBits; bits <= lut.MaxBits; bits++ {
			f := Format{bits, 128, lut.F16, driver.F16}
			if got, want := f.wide(test.n, test.k, test.m), test.want && (test.m > rowsOfB || bits < 5); got != want {
				t.Errorf("%d bits, %d×%d, %d rows: wide is %v", bits, test.n, test.k, test.m, got)
				continue
			} else if !want {
				continue
			}
			fewest := ^uint32(0)
			for _, c := range f.wideConfigs(test.m) {
				if p, launch, err := f.plan(c, test.n, test.k, test.m, h200); err == nil {
					fewest = min(fewest, p.passes())
					if launch.Shared > h200.sharedBlock || p.run > p.groups*uint32(c.Tiles) {
						t.Errorf("%d bits, %d×%d, %d rows, %v: %d bytes of shared memory, runs of %d tiles", bits, test.n, test.k, test.m, c, launch.Shared, p.run)
					}
				}
			}
			if fewest != test.passes {
				t.Errorf("%d bits, %d×%d, %d rows: %d passes over X, want %d", bits, test.n, test.k, test.m, fewest, test.passes)
			}
		}
	}
}

// TestMostColumns holds lutwide.cu to offsets of 32 bits; what it refuses lutgemm.cu takes.
func TestMostColumns(t *testing.T) {
	h200 := limits{sms: 132, sharedBlock: 227 << 10}
	f := Format{5, 128, lut.F16, driver.F16}
	for _, test := range []struct {
		k  int
		ok bool
	}{{maxWideColumns, true}, {maxWideColumns + 32, false}} {
		for _, c := range f.wideConfigs(MaxRows) {
			n := map[int]int{4: 16, 2: 2*sevenTiles + 1}[c.Slices]
			p, _, err := f.plan(c, n, test.k, MaxRows, h200)
			if (err == nil) != test.ok {
				t.Errorf("%v, %d columns: error %v", c, test.k, err)
			}
			if far := uint64(p.run) * uint64(p.units) * 2 * 256 * 5; far >= 1<<32 {
				t.Errorf("%v, %d columns: a run spans %d bytes", c, test.k, far)
			}
			if _, _, err := f.plan(f.configs(MaxRows)[0], n, test.k, MaxRows, h200); err != nil {
				t.Errorf("lutgemm, %d columns: %v", test.k, err)
			}
		}
	}
}
