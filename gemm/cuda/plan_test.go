package cuda

import (
	"testing"

	"github.com/lutq/lutq/gemm/cuda/driver"
	"github.com/lutq/lutq/quantize/lut"
	"github.com/lutq/lutq/repack"
)

// TestSlices holds the split of K to where it changes, and sixteen slices to what they
// are for: one run over a block's tiles, each warp with columns of its own.
func TestSlices(t *testing.T) {
	h200 := limits{sms: 132, sharedBlock: 227 << 10}
	for _, test := range []struct {
		n, k, m, want int
		in3           bool // at 4 bits
	}{
		{4096, 3840, 1, 8, false},
		{4096, 3872, 1, 16, false},
		{28672, 4096, 8, 16, false},
		{28672, 4096, 9, 4, false},
		{32768, 4096, 8, 16, false},
		{32769, 4096, 1, 8, false},
		{8192, 28672, 4, 16, false},
		{8192, 28672, 8, 16, false},
		{8192, 28672, 16, 8, false},
		{14784, 4096, 16, 8, false},
		{14785, 4096, 16, 4, false},
		{8192, 1792, 16, 4, false},
		{8192, 1824, 16, 8, false},
		{29568, 4096, 16, 4, false},
		{29569, 4096, 16, 2, false},
		{44352, 4096, 8, 8, false},
		{44353, 4096, 4, 8, false},
		{44353, 4096, 5, 8, true},
		{44353, 4096, 8, 8, true},
		{44353, 4096, 16, 2, false},
	} {
		for bits := lut.MinBits; bits <= lut.MaxBits; bits++ {
			f := Format{bits, 128, lut.F16, driver.F16}
			want := test.want
			if test.in3 && bits == 4 {
				want = 3
			}
			if got := f.slicesOf(test.n, test.k, test.m); got != want {
				t.Errorf("%d bits, %d×%d, %d rows: %d slices, want %d", bits, test.n, test.k, test.m, got, want)
			}
			if want != 16 || bits == 5 {
				continue
			}
			p, _, err := f.plan(f.configs(test.n, test.m)[0], test.n, test.k, test.m, h200)
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

// TestWide holds lutwide.cu to where it is for, and to warps that hold all tiles of a block in
// registers where they are up to 28.
func TestWide(t *testing.T) {
	h200 := limits{sms: 132, sharedBlock: 227 << 10}
	for _, test := range []struct {
		n, k, m int
		passes  uint32 // over X, the fewest; 0 where there is no configuration
	}{
		{8192, 8192, 2, 0},
		{8192, 8192, 3, 1},
		{8192, 8192, 8, 1},
		{8192, 8192, 16, 1},
		{8192, 4096, 8, 0},
		{2112, 8192, 8, 0},
		{16896, 8192, 8, 0},
		{14336, 4096, 9, 1},
		{16896, 4096, 9, 1},
		{28672, 4096, 8, 0},
		{28672, 4096, 16, 1},
		{29568, 4096, 16, 1},
		{33792, 4096, 16, 1},
		{57344, 8192, 16, 1},
		{61440, 8192, 16, 2},
		{16, 32, 16, 1},
	} {
		for bits := lut.MinBits; bits <= lut.MaxBits; bits++ {
			f := Format{bits, 128, lut.F16, driver.F16}
			fewest := ^uint32(0)
			for _, c := range f.wideConfigs(test.m) {
				if p, launch, err := f.plan(c, test.n, test.k, test.m, h200); err == nil && f.wide(test.n, test.k, test.m) {
					fewest = min(fewest, p.passes())
					if launch.Shared > h200.sharedBlock || p.run > p.groups*uint32(c.Tiles) {
						t.Errorf("%d bits, %d×%d, %d rows, %v: %d bytes of shared memory, runs of %d tiles", bits, test.n, test.k, test.m, c, launch.Shared, p.run)
					}
				}
			}
			if test.passes == 0 && fewest != ^uint32(0) || test.passes != 0 && fewest != test.passes {
				t.Errorf("%d bits, %d×%d, %d rows: %d passes over X, want %d", bits, test.n, test.k, test.m, int32(fewest), test.passes)
			}
		}
	}
}

// TestInThree holds three slices to a kernel of twelve warps, and to one of lutgemm.cu where that
// finds no room.
func TestInThree(t *testing.T) {
	f := Format{4, 128, lut.F16, driver.F16}
	const n, k, m = 57344, 8192, 8
	for _, shared := range []int{227 << 10, 72 << 10} {
		all := 0
		for _, c := range append(f.configs(n, m), f.wideConfigs(m)...) {
			if p, _, err := f.plan(c, n, k, m, limits{132, shared}); err == nil {
				all++
				if p.slices != 3 || int(p.groups) != c.warps()/3 || c.Tiles == 0 && c.Rows != MaxRows {
					t.Errorf("%v: %d slices, %d groups", c, p.slices, p.groups)
				}
			}
		}
		if want := 1 + shared/(227<<10); all != want {
			t.Errorf("%d bytes of shared memory: %d configurations, want %d", shared, all, want)
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
			n := map[int]int{8: 16, 4: sevenTiles + 1, 2: 2*sevenTiles + 1}[c.Slices]
			p, _, err := f.plan(c, n, test.k, MaxRows, h200)
			if (err == nil) != test.ok {
				t.Errorf("%v, %d columns: error %v", c, test.k, err)
			}
			if far := uint64(p.run) * uint64(p.units) * 2 * 256 * 5; far >= 1<<32 {
				t.Errorf("%v, %d columns: a run spans %d bytes", c, test.k, far)
			}
			if _, _, err := f.plan(f.configs(n, MaxRows)[0], n, test.k, MaxRows, h200); err != nil {
				t.Errorf("lutgemm, %d columns: %v", test.k, err)
			}
		}
	}
}

// TestScalesOfAByte holds scales of a byte to their values, and to one scale after the other.
func TestScalesOfAByte(t *testing.T) {
	for _, st := range []lut.ScaleType{lut.E4M4, lut.S1E4M3} {
		tiles := &repack.CUDATiles{K: 512, Bits: 4, Group: 64, ScaleType: st}
		for b := range 256 {
			tiles.Scales = append(tiles.Scales, byte(b))
		}
		f := must(FormatOf(tiles, driver.F16))(t)
		var want, got [256]float32
		st.Decode(want[:], tiles.Scales)
		f.Scale.Decode(got[:], f.scales(tiles))
		if f.Scale != lut.F16 || got != want {
			t.Errorf("%v becomes %v, %v", st, f.Scale, got)
		}
		tiles.Group = 32
		if f := must(FormatOf(tiles, driver.F16))(t); f.Scale != st {
			t.Errorf("groups of 32: %v becomes %v", st, f.Scale)
		}
	}
}
