package table

import (
	"math"
	"math/bits"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/lutq/lutq/formats/weight"
	"github.com/lutq/lutq/formats/weight/lut"
	"github.com/lutq/lutq/gemm/cuda"
	"github.com/lutq/lutq/gemm/cuda/cudatest"
	"github.com/lutq/lutq/gemm/cuda/driver"
	"github.com/lutq/lutq/repack"
)

// TestSlices holds the split of K to where it changes, and sixteen slices to one run over a block's
// tiles.
func TestSlices(t *testing.T) {
	h200 := Limits{SMs: 132, Shared: 227 << 10}
	for _, test := range []struct {
		n, k, m, want int
		in3           bool // at 4 bits
	}{
		{OneTile, 2048, 8, 16, false},
		{OneTile + 1, 2048, 1, 8, false},
		{OneTile + 1, 2080, 1, 16, false},
		{TwoTiles, 3072, 5, 16, false},
		{TwoTiles, 3104, 4, 16, false},
		{TwoTiles, 3104, 5, 8, false},
		{TwoTiles, 6144, 4, 16, false},
		{TwoTiles, 6144, 5, 8, false},
		{TwoTiles, 6176, 5, 16, false},
		{TwoTiles + 1, 3104, 5, 16, false},
		{TwoTiles + 1, 4096, 5, 16, false},
		{TwoTiles + 1, 4128, 1, 8, false},
		{27648, 6144, 1, 8, false},
		{27648, 6176, 1, 16, false},
		{28672, 4096, 8, 16, false},
		{28672, 4096, 9, 4, false},
		{32768, 4096, 8, 16, false},
		{32769, 4096, 1, 8, false},
		{8192, 28672, 4, 16, false},
		{8192, 28672, 8, 16, false},
		{8192, 28672, 16, 8, false},
		{14784, 4096, 16, 8, false},
		{14785, 4096, 16, 4, false},
		{8192, 2048, 16, 8, false},
		{8192, 2080, 16, 4, false},
		{8192, 3072, 16, 4, false},
		{8192, 3104, 16, 8, false},
		{TwoTiles, 3072, 16, 8, false},
		{29568, 4096, 16, 4, false},
		{29569, 4096, 16, 2, false},
		{44352, 4096, 8, 8, false},
		{44353, 4096, 4, 8, false},
		{44353, 4096, 5, 8, true},
		{44353, 4096, 8, 8, true},
		{44353, 4096, 16, 2, false},
	} {
		for bits := lut.MinBits; bits <= lut.MaxBits; bits++ {
			f := Format{bits, 128, weight.F16, driver.F16}
			want := test.want
			if test.in3 && bits == 4 {
				want = 3
			}
			if got := shapeOf(f, test.n, test.k, test.m).slices; got != want {
				t.Errorf("%d bits, %d×%d, %d rows: %d slices, want %d", bits, test.n, test.k, test.m, got, want)
			}
			if want != 16 || bits == 5 {
				continue
			}
			p, _, err := shapeOf(f, test.n, test.k, test.m).Plan(lutgemm{}.variants(f, test.m)[0], h200)
			if err != nil {
				t.Fatal(err)
			}
			if tiles := p.tilesEach + min(p.tilesOver, 1); p.run < tiles {
				t.Errorf("%d bits, %d×%d, %d rows: %d tiles of a block in runs of %d",
					bits, test.n, test.k, test.m, tiles, p.run)
			}
		}
	}
}

// TestWide holds lutwide.cu to where it is for, and to warps that hold all tiles of a block in
// registers where they are up to 28.
func TestWide(t *testing.T) {
	h200 := Limits{SMs: 132, Shared: 227 << 10}
	for _, test := range []struct {
		n, k, m int
		passes  uint32 // over X, the fewest; 0 where there is no configuration
	}{
		{8192, 8192, 1, 1},
		{8192, 8192, 8, 1},
		{8192, 8192, 16, 1},
		{8192, 5120, 1, 1},
		{4096, 4096, 8, 1},
		{2048, 2048, 8, 1},
		{fourTiles, 8192, 8, 1},
		{fourTiles + 1, 8192, 8, 0},
		{14336, 4096, 9, 1},
		{16896, 4096, 9, 1},
		{28672, 4096, 8, 0},
		{28672, 4096, 16, 1},
		{29568, 4096, 16, 1},
		{33792, 4096, 16, 1},
		{57344, 8192, 16, 1},
		{61440, 8192, 16, 2},
		{16, 32, 16, 1},
		{8192, 8192, 32, 1},
		{28672, 4096, 24, 1},
		{28672, 4096, 32, 1},
		{57344, 8192, 24, 1},
		{57344, 8192, 32, 1},
	} {
		for bits := lut.MinBits; bits <= lut.MaxBits; bits++ {
			f := Format{bits, 128, weight.F16, driver.F16}
			fewest := ^uint32(0)
			s, wide := shapeOf(f, test.n, test.k, test.m), lutwide{}
			for _, c := range wide.variants(f, test.m) {
				if p, launch, err := s.Plan(c, h200); err == nil && slices.Contains(s.order(), kernel(wide)) {
					fewest = min(fewest, p.passes())
					if launch.Shared > h200.Shared || p.run > p.groups*uint32(c.(wideVariant).tiles) {
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
	f := Format{4, 128, weight.F16, driver.F16}
	const n, k, m = 57344, 8192, 8
	for _, shared := range []int{227 << 10, 72 << 10} {
		all := 0
		s := shapeOf(f, n, k, m)
		for _, c := range append(lutgemm{}.variantsFor(s), lutwide{}.variants(f, m)...) {
			if p, _, err := s.Plan(c, Limits{132, shared}); err == nil {
				all++
				if p.slices != 3 || int(p.groups) != c.Warps()/3 || c.kernel() == (lutgemm{}) && c.Rows() != cuda.MaxRows {
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
	h200 := Limits{SMs: 132, Shared: 227 << 10}
	f := Format{5, 128, weight.F16, driver.F16}
	for _, test := range []struct {
		k  int
		ok bool
	}{{maxWideColumns, true}, {maxWideColumns + 32, false}} {
		wide, narrow := lutwide{}.variants(f, cuda.MaxRows), lutgemm{}.variants(f, cuda.MaxRows)[0]
		for _, c := range wide {
			n := map[int]int{8: 16, 4: sevenTiles + 1, 2: 2*sevenTiles + 1}[c.(wideVariant).slices]
			s := shapeOf(f, n, test.k, cuda.MaxRows)
			p, _, err := s.Plan(c, h200)
			if (err == nil) != test.ok {
				t.Errorf("%v, %d Columns: error %v", c, test.k, err)
			}
			if far := uint64(p.run) * uint64(p.units) * 2 * 256 * 5; far >= 1<<32 {
				t.Errorf("%v, %d Columns: a run spans %d bytes", c, test.k, far)
			}
			if _, _, err := s.Plan(narrow, h200); err != nil {
				t.Errorf("lutgemm, %d Columns: %v", test.k, err)
			}
		}
	}
}

// TestScalesOfAByte holds scales of a byte to their values, and to one scale after the other.
func TestScalesOfAByte(t *testing.T) {
	for _, st := range []weight.ScaleType{weight.E4M4, weight.S1E4M3} {
		tiles := &repack.CUDATiles{K: 512, Bits: 4, Group: 64, ScaleType: st}
		for b := range 256 {
			tiles.Scales = append(tiles.Scales, byte(b))
		}
		f := cudatest.Must(FormatOf(tiles, driver.F16))(t)
		var want, got [256]float32
		st.Decode(want[:], tiles.Scales)
		f.Scale.Decode(got[:], f.Scales(tiles))
		if f.Scale != weight.F16 || got != want {
			t.Errorf("%v becomes %v, %v", st, f.Scale, got)
		}
		tiles.Group = 32
		if f := cudatest.Must(FormatOf(tiles, driver.F16))(t); f.Scale != st {
			t.Errorf("groups of 32: %v becomes %v", st, f.Scale)
		}
	}
}

// TestPowersOfTwo: scales that are powers of two are the same numbers in bfloat16, in groups of any size.
func TestPowersOfTwo(t *testing.T) {
	for _, group := range []int{32, 64, 512} {
		tiles := &repack.CUDATiles{K: 512, Bits: 4, Group: group, ScaleType: weight.E8M0}
		for b := range 255 {
			tiles.Scales = append(tiles.Scales, byte(b))
		}
		f := cudatest.Must(FormatOf(tiles, driver.BF16))(t)
		got := make([]float32, 255)
		f.Scale.Decode(got, f.Scales(tiles))
		for b, s := range got {
			if want := float32(math.Ldexp(1, b-127)); f.Scale != weight.BF16 || s != want {
				t.Errorf("groups of %d: scale %d becomes %v, %v: want %v", group, b, f.Scale, s, want)
			}
		}
		if !slices.Contains(Formats(), f) {
			t.Errorf("groups of %d: no kernel for %v", group, f)
		}
	}
}

// TestConfigs holds what is tried for a product, and guessed without trying, to one kernel of
// lutwide.cu with as few tiles as its warps have, and to those of lutgemm.cu.
func TestConfigs(t *testing.T) {
	g := cuda.GPU{DeviceInfo: driver.DeviceInfo{SMs: 132, SharedPerBlock: 227 << 10}}
	for _, test := range []struct {
		n, k, m int
		want    string
	}{
		{1024, 4096, 1, "a2 d2, a2 d4, t2 d4 k16 w16"},
		{4096, 4096, 8, "t2 d4 k8 w8, a2 d2, a2 d4"},
		{5120, 5120, 1, "t4 d8 k8 w8, a2 d4, a2 d2"},
		{5120, 13824, 8, "t3 d6 k16 w16, a2 d4, a2 d2"},
		{8192, 8192, 8, "t4 d4 k16 w16, a2 d4, a2 d2"},
		{14336, 4096, 8, "a2 d4, a2 d2"},
		{57344, 8192, 4, "a2 d4, a2 d2"},
		{57344, 8192, 8, "t7 d7 k3 w12, a1 d2"},
		{4096, 4096, 16, "t2 d4 k8 w8, a1 d2"},
		{8192, 8192, 16, "t4 d8 k8 w8, a1 d2"},
		{8192, 8192, 24, "t4 d8 k8 w8 m24"},
		{8192, 8192, 32, "t4 d4 k8 w8 m32"},
		{28672, 4096, 17, "t7 d7 k4 w8 m24"},
		{28672, 4096, 100, "t4 d4 k2 w8 m32"},
		{57344, 8192, 32, "t4 d4 k1 w8 m32"},
		{57344, 8192, 33, "t7 d7 k2 w8 m24"}, // twice 17 rows at most
		{18944, 3584, 16, "t5 d10 k4 w8, a1 d2"},
		{28672, 4096, 16, "t7 d7 k4 w8, a1 d2"},
		{61440, 8192, 16, "t5 d10 k2 w8, a1 d2"}, // twice 15 tiles, of which four warps hold 20
	} {
		var got []string
		w := Like(Format{4, 128, weight.F16, driver.F16}, test.n, test.k)
		configs, _ := w.Configs(g, w.AtOnce(g, test.m))
		for _, c := range configs {
			got = append(got, c.String())
		}
		if got := strings.Join(got, ", "); got != test.want {
			t.Errorf("%d×%d, %d rows: %s, want %s", test.n, test.k, test.m, got, test.want)
		}
	}
}

// TestPlan holds plans to all tiles, to the shared memory that they ask for, and to slots beside the
// table, whatever is multiplied.
func TestPlan(t *testing.T) {
	formats := Formats()
	rapid.Check(t, func(t *rapid.T) {
		f := rapid.SampledFrom(formats).Draw(t, "format")
		s := Shape{
			Format: f,
			n:      rapid.IntRange(1, 70000).Draw(t, "n"),
			k:      32 * rapid.IntRange(1, 1000).Draw(t, "k/32"),
			m:      rapid.IntRange(1, mostRows).Draw(t, "m"),
		}
		if len(f.variants(s.m)) == 0 {
			s.m = 1
		}
		c := rapid.SampledFrom(f.variants(s.m)).Draw(t, "configuration")
		s.slices = rapid.SampledFrom(c.Splits()).Draw(t, "slices")
		l := Limits{rapid.IntRange(1, 132).Draw(t, "multiprocessors"), 227 << 10}
		p, launch, err := s.Plan(c, l)
		if err != nil {
			t.Fatal(err)
		}
		tiles, grid := uint32(s.n+repack.TileRows-1)/repack.TileRows, launch.Grid.X
		if p.tilesEach*grid+p.tilesOver != tiles || p.tilesOver >= grid || grid > uint32(l.SMs) {
			t.Errorf("%d blocks of %d tiles and %d more: want %d", grid, p.tilesEach, p.tilesOver, tiles)
		}
		if most := p.tilesEach + min(p.tilesOver, 1); p.run%p.groups != 0 || p.run >= most+p.groups {
			t.Errorf("runs of %d of %d tiles, by %d groups", p.run, most, p.groups)
		}
		if warps := p.groups * p.slices; warps*32 > launch.Block.X {
			t.Errorf("%d groups for %d slices in %d threads", p.groups, p.slices, launch.Block.X)
		}
		if launch.Shared > l.Shared {
			t.Errorf("%d bytes of shared memory", launch.Shared)
		}
		if p.slotPitch == 0 { // lutwide.cu has slots where the table was
			end := int(p.run*p.slices) * c.Rows() * slotRow
			if end > launch.Shared {
				t.Errorf("slots of %d bytes in %d", end, launch.Shared)
			}
			if at := int(p.slotBase); c.Rows() > cuda.MaxRows && (at < end || at%8 != 0 || at+phasesBytes > launch.Shared) {
				t.Errorf("phases at %d of %d bytes, behind slots of %d", at, launch.Shared, end)
			}
			return
		}
		slots := p.run * p.slices * p.pairs
		if end := p.slotBase + (slots-1)*p.slotPitch + pairBytes; int(end) > launch.Shared {
			t.Errorf("slots to %d in %d bytes of shared memory", end, launch.Shared)
		}
		table, gaps := f.tableBytes()
		inGaps := gaps && p.slotBase == pairBytes && p.slotPitch == 2*pairBytes
		if behind := int(p.slotBase) >= table && p.slotPitch == pairBytes; !inGaps && !behind {
			t.Errorf("slots from %d, each %d, in a table of %d bytes", p.slotBase, p.slotPitch, table)
		}
		// How lutgemm.cu finds the tile of a pair.
		for i := range p.run * p.pairs {
			if tile, _ := bits.Mul32(i, p.pairsInverse); p.pairs > 1 && tile != i/p.pairs {
				t.Fatalf("pair %d is of tile %d, want %d", i, tile, i/p.pairs)
			}
		}
	})
}
