package cuda

import (
	"errors"
	"math/rand/v2"
	"testing"

	"github.com/lutq/lutq/formats/weight"
	"github.com/lutq/lutq/gemm/conform"
	"github.com/lutq/lutq/gemm/cuda/driver"
)

// TestWay holds the choice of how to multiply many rows to what was kept, and else to the rule.
func TestWay(t *testing.T) {
	for _, major := range []int{8, 9} {
		e := &Engine{dev: &driver.Device{Info: driver.DeviceInfo{Major: major}}, limits: limits{132, hopperShared}, cache: driver.NewCache(t.TempDir()), many: map[tuningKey]Way{}}
		w := &Matrix{N: 4096, K: 4096, Format: Format{4, 128, weight.F16, driver.F16}}
		rest := &Matrix{N: 14336, K: 4096, Format: w.Format}
		for rows, kept := range map[int]string{64: "unpacked", 128: "packed", 512: "no such way"} {
			e.keep(ofWay, w, w.tuningKey(rows), kept)
		}
		for _, test := range []struct {
			name  string
			w     *Matrix
			m     int
			want  string
			want9 string // what there is on Hopper alone
		}{
			{"as many as a kernel takes", w, 16, "packed", "packed"},
			{"few", w, 17, "packed", "packed"},
			{"kept as faster unpacked", w, 49, "unpacked", "unpacked"},
			{"the same, at the end of its range", w, 64, "unpacked", "unpacked"},
			{"nothing kept", w, 97, "unpacked", "many"},
			{"kept as faster packed", w, 128, "packed", "packed"},
			{"nothing kept, many", w, 129, "unpacked", "many"},
			{"something else kept", w, 500, "unpacked", "many"},
			{"more than any bucket", w, 10000, "unpacked", "many"},
			{"another shape, by the rule", rest, 100, "packed", "many"},
			{"another shape, above", rest, 129, "unpacked", "many"},
		} {
			want := test.want
			if major == 9 {
				want = test.want9
			}
			for range 2 { // from the file, and remembered
				way := e.Way(test.w, test.m)
				got := way.String()
				if way.many != (manyVariant{}) {
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
	e := &Engine{dev: &driver.Device{Info: driver.DeviceInfo{Major: 8}}, limits: limits{132, hopperShared}, cache: driver.NewCache(t.TempDir()), many: map[tuningKey]Way{}}
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
		w := &Matrix{N: tt.n, K: tt.k, Format: Format{4, 128, weight.F16, driver.F16}}
		if at, above := e.Way(w, tt.rows), e.Way(w, tt.rows+1); at.String() != "packed" || above.String() != "unpacked" {
			t.Errorf("%d×%d: %v for %d rows, %v for one more", tt.n, tt.k, at, tt.rows, above)
		}
	}
}

// TestFP8Way: whether products round to E4M3 hangs on the matrix and the rows of X, never on what was kept as the fastest.
func TestFP8Way(t *testing.T) {
	e := &Engine{dev: &driver.Device{Info: driver.DeviceInfo{Major: 9}}, limits: limits{132, hopperShared}, cache: driver.NewCache(t.TempDir()), many: map[tuningKey]Way{}}
	for _, group := range []int{32, 64} {
		w := &Matrix{N: 4096, K: 4096, Format: Format{4, group, weight.F16, driver.F16}}
		if got := e.RoundToFP8(w); got != (group != 32) {
			t.Errorf("groups of %d: rounded: %v", group, got)
		}
		for rows, kept := range map[int]string{24: "packed", 64: "unpacked", 128: "c64 g4", 256: "fp8 c96 g2", 1024: "unpacked"} {
			e.keep(ofWay, w, w.tuningKey(rows), kept)
			if way := e.Way(w, rows); way.FP8() != (group != 32) || way.Unpacked() && group != 32 {
				t.Errorf("groups of %d, %d rows, kept as %s: got %v", group, rows, kept, way)
			} else if rows == 256 && group != 32 && way.String() != kept {
				t.Errorf("%d rows: got %v, want what was kept, %s", rows, way, kept)
			}
			for _, way := range e.Ways(w, rows) {
				if way.FP8() != (group != 32) {
					t.Errorf("groups of %d, %d rows: %v is worth trying", group, rows, way)
				}
			}
		}
		if way := e.Way(w, MaxRows); way.FP8() {
			t.Errorf("%d rows: got %v", MaxRows, way)
		}
	}
}

// TestGPUUnpacked multiplies by unpacked weights at once and in parts, writing and adding, and tunes.
func TestGPUUnpacked(t *testing.T) {
	onGPU(t, func(e *Engine, s *driver.Stream) {
		blas, err := e.dev.NewBLAS(s)
		var missing *driver.MissingError
		if errors.As(err, &missing) {
			t.Skip(err)
		}
		u := Unpacked{BLAS: must(blas, err)(t)}
		for i, f := range testFormats() {
			const n, k, rows = 403, 800, 37
			p := testProduct(n, k, rows, f.Type, false)
			of := testMatrix(uint64(i), n, k, f)
			m := newGPUMatrix(t, e, s, of, f.Type)
			if err := m.load(p); err != nil {
				t.Fatal(err)
			}
			want := conform.NewReference(rand.New(rand.NewPCG(1, 1)), of, p.X, nil, rows, 1, f.Type)
			sums := must(e.dev.Alloc(4 * rows * n))(t)
			for _, u.Bytes = range []int{UnpackedScratch(m.w), 2 * k * 150} {
				u.Scratch = must(e.dev.Alloc(u.Bytes))(t)
				y := make([]uint16, rows*n)
				twice := make([]float32, rows*n)
				err := errors.Join(
					u.MatMul(s, m.w, m.o, f.Type, false), s.Sync(), e.dev.Read(driver.Bytes(y), m.o.Y),
					u.MatMul(s, m.w, Operands{X: m.o.X, Y: sums, M: rows}, driver.F32, false),
					u.MatMul(s, m.w, Operands{X: m.o.X, Y: sums, M: rows}, driver.F32, true),
					s.Sync(), e.dev.Read(driver.Bytes(twice), sums), e.dev.Free(u.Scratch))
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
			u.Bytes = UnpackedScratch(m.w)
			u.Scratch = must(e.dev.Alloc(u.Bytes))(t)
			if i == 0 {
				m.o.Scratch = must(e.dev.Alloc(e.MostScratch(m.w, rows)))(t)
				timings := must(e.TuneMany(s, []*Matrix{m.w}, m.o, &u))(t)
				again := must(New(e.dev, e.cache))(t)
				if got := again.Way(m.w, rows); got != timings[0].Way {
					t.Errorf("a new engine chooses %v of %v", got, timings)
				}
				if err := e.dev.Free(m.o.Scratch); err != nil {
					t.Fatal(err)
				}
				m.o.Scratch = 0
			}
			if err := errors.Join(e.dev.Free(u.Scratch), e.dev.Free(sums)); err != nil {
				t.Fatal(err)
			}
			m.close(t)
		}
		if err := blas.Close(); err != nil {
			t.Error(err)
		}
	})
}
