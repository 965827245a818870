package table

import (
	"errors"
	"math/rand/v2"
	"testing"

	"github.com/lutq/lutq/formats/weight"
	"github.com/lutq/lutq/gemm/conform"
	"github.com/lutq/lutq/gemm/cuda"
	"github.com/lutq/lutq/gemm/cuda/cudatest"
	"github.com/lutq/lutq/gemm/cuda/driver"
)

// planner returns an engine that chooses for an H200, or for a GPU before that.
func planner(t *testing.T, major int) *cuda.Engine {
	return cuda.Planner(cuda.GPU{DeviceInfo: driver.DeviceInfo{Major: major, SMs: 132, SharedPerBlock: HopperShared}}, driver.NewCache(t.TempDir()))
}

// TestWay holds the choice of how to multiply many rows to the rule, where nothing was measured.
func TestWay(t *testing.T) {
	for _, major := range []int{8, 9} {
		e := planner(t, major)
		w, rest := Like(Format{4, 128, weight.F16, driver.F16}, 4096, 4096), Like(Format{4, 128, weight.F16, driver.F16}, 14336, 4096)
		for _, test := range []struct {
			name  string
			w     *Tiles
			m     int
			want  string
			want9 string // what there is on Hopper alone
		}{
			{"as many as a kernel takes", w, 16, "packed", "packed"},
			{"few", w, 17, "packed", "packed"},
			{"up to the rule", w, 80, "packed", "many"},
			{"more", w, 97, "unpacked", "many"},
			{"many", w, 129, "unpacked", "many"},
			{"very many", w, 500, "unpacked", "many"},
			{"more than any bucket", w, 10000, "unpacked", "many"},
			{"another shape, by the rule", rest, 100, "packed", "many"},
			{"another shape, above", rest, 129, "unpacked", "many"},
		} {
			want := test.want
			if major == 9 {
				want = test.want9
			}
			for range 2 { // and remembered
				way := e.Way(test.w, test.m)
				got := way.String()
				if _, ok := way.(Many); ok {
					got = "many"
				}
				if got != want || e.Unpacks(test.w, test.m) != (want == "unpacked") {
					t.Errorf("%s: %d rows: got %v", test.name, test.m, way)
				}
				if (e.ScratchBytes(test.w, test.m) > 0) != (want == "many") || e.ScratchBytes(test.w, test.m) > e.MostScratch(test.w, test.m) {
					t.Errorf("%s: %d rows want %d bytes of %d", test.name, test.m, e.ScratchBytes(test.w, test.m), e.MostScratch(test.w, test.m))
				}
			}
		}
	}
}

// TestPackedRows: where nothing was measured, each shape has the kernel for 16 rows up to as many rows as an H200 has it faster.
func TestPackedRows(t *testing.T) {
	e := planner(t, 8)
	for _, tt := range []struct{ n, k, rows int }{
		{8192, 4096, 128},
		{8191, 4096, 80},
		{1024, 32768, 128},
		{1024, 32767, 48},
		{4096, 4096, 80},
		{2048, 4096, 80},
		{2047, 8192, 48},
		{2048, 4095, 64},
		{2048, 1536, 64},
		{2047, 1537, 48},
		{2048, 1535, 48},
		{64, 64, 48},
	} {
		w := Like(Format{4, 128, weight.F16, driver.F16}, tt.n, tt.k)
		if at, above := e.Way(w, tt.rows), e.Way(w, tt.rows+1); at.String() != "packed" || above.String() != "unpacked" {
			t.Errorf("%d×%d: %v for %d rows, %v for one more", tt.n, tt.k, at, tt.rows, above)
		}
	}
}

// TestFP8Way: whether products round to E4M3 hangs on the matrix and the rows of X, never on what was found to be the fastest.
func TestFP8Way(t *testing.T) {
	e := planner(t, 9)
	for _, group := range []int{32, 64} {
		w := cuda.Tiles(Like(Format{4, group, weight.F16, driver.F16}, 4096, 4096))
		rounded := w.(cuda.Rounder).RoundToFP8(e.GPU())
		if rounded != nil {
			w = rounded
		}
		if (rounded != nil) != (group != 32) {
			t.Errorf("groups of %d: rounded: %v", group, rounded != nil)
		}
		for _, rows := range []int{24, 64, 128, 256, 1024} {
			if way := e.Way(w, rows); cuda.RoundsToFP8(way) != (group != 32) || way == cuda.AsNumbers && group != 32 {
				t.Errorf("groups of %d, %d rows: got %v", group, rows, way)
			}
			for _, way := range e.Ways(w, rows) {
				if cuda.RoundsToFP8(way) != (group != 32) {
					t.Errorf("groups of %d, %d rows: %v is worth trying", group, rows, way)
				}
			}
		}
		if way := e.Way(w, cuda.MaxRows); cuda.RoundsToFP8(way) {
			t.Errorf("%d rows: got %v", cuda.MaxRows, way)
		}
	}
}

// TestGPUUnpacked multiplies by unpacked weights at once and in parts, writing and adding, and tunes.
func TestGPUUnpacked(t *testing.T) {
	cudatest.OnGPU(t, func(g *cudatest.GPU) {
		blas, err := g.Dev.NewBLAS(g.Stream)
		var missing *driver.MissingError
		if errors.As(err, &missing) {
			t.Skip(err)
		}
		u := cuda.Unpacked{BLAS: cudatest.Must(blas, err)(t)}
		for i, f := range testFormats() {
			const n, k, rows = 403, 800, 37
			p := cudatest.Product(n, k, rows, f.Type, false)
			of := testMatrix(uint64(i), n, k, f)
			w := upload(t, g, of, f.Type)
			o := g.Operands(t, p, make([]uint16, rows*n))
			want := conform.NewReference(rand.New(rand.NewPCG(1, 1)), of, p.X, nil, rows, 1, f.Type)
			sums := cudatest.Must(g.Dev.Alloc(4 * rows * n))(t)
			for _, u.Bytes = range []int{cuda.UnpackedScratch(w.Tiles), 2 * k * 150} {
				u.Scratch = cudatest.Must(g.Dev.Alloc(u.Bytes))(t)
				y := make([]uint16, rows*n)
				twice := make([]float32, rows*n)
				err := errors.Join(
					u.MatMul(g.Stream, w, o, f.Type, false), g.Stream.Sync(), g.Dev.Read(driver.Bytes(y), o.Y),
					u.MatMul(g.Stream, w, cuda.Operands{X: o.X, Y: sums, M: rows}, driver.F32, false),
					u.MatMul(g.Stream, w, cuda.Operands{X: o.X, Y: sums, M: rows}, driver.F32, true),
					g.Stream.Sync(), g.Dev.Read(driver.Bytes(twice), sums), g.Dev.Free(u.Scratch))
				if err != nil {
					t.Fatal(err)
				}
				if rel, _ := want.Errors(y); !(rel <= 1.5*conform.Bound(f.Type)) {
					t.Errorf("%s in %d bytes: relative error %.3g", f.name(), u.Bytes, rel)
				}
				for j, v := range twice {
					y[j] = f.convert(v / 2)
				}
				if rel, _ := want.Errors(y); !(rel <= 1.5*conform.Bound(f.Type)) {
					t.Errorf("%s in %d bytes, added: relative error %.3g", f.name(), u.Bytes, rel)
				}
			}
			u.Bytes = cuda.UnpackedScratch(w.Tiles)
			u.Scratch = cudatest.Must(g.Dev.Alloc(u.Bytes))(t)
			if i == 0 {
				o.Scratch = cudatest.Must(g.Dev.Alloc(g.MostScratch(w.Tiles, rows)))(t)
				timings := cudatest.Must(g.TuneWays(g.Stream, []*cuda.Matrix{w}, o, &u))(t)
				again := cudatest.Must(cuda.New(g.Dev, g.Cache))(t)
				if got := again.Way(w.Tiles, rows); got != timings[0].Way {
					t.Errorf("a new engine chooses %v of %v", got, timings)
				}
			}
			if err := errors.Join(g.Dev.Free(u.Scratch), g.Dev.Free(sums), w.Close()); err != nil {
				t.Fatal(err)
			}
			g.Free(t, o)
		}
		if err := blas.Close(); err != nil {
			t.Error(err)
		}
	})
}
