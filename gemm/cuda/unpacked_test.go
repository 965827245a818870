package cuda

import (
	"errors"
	"math/rand/v2"
	"testing"

	"github.com/lutq/lutq/gemm/conform"
	"github.com/lutq/lutq/gemm/cuda/driver"
	"github.com/lutq/lutq/quantize/weight"
)

// TestUnpacks holds the choice of how to multiply many rows to what was kept, and else to the rule.
func TestUnpacks(t *testing.T) {
	e := &Engine{dev: &driver.Device{}, cache: driver.NewCache(t.TempDir()), many: map[tuningKey]string{}}
	w := &Matrix{N: 4096, K: 4096, Format: Format{4, 128, weight.F16, driver.F16}}
	rest := &Matrix{N: 14336, K: 4096, Format: w.Format}
	for rows, kept := range map[int]string{64: keptUnpacked, 128: keptPacked, unpackAlways: keptPacked} {
		if err := e.cache.Put(e.cacheKey(tuningKey{w.Format, w.N, w.K, rows}), []byte(kept)); err != nil {
			t.Fatal(err)
		}
	}
	for _, test := range []struct {
		name string
		w    *Matrix
		m    int
		want bool
	}{
		{"as many as a kernel takes", w, 16, false},
		{"few", w, 17, false},
		{"kept as faster unpacked", w, 33, true},
		{"the same, at the end of its range", w, 64, true},
		{"kept as faster packed", w, 65, false},
		{"nothing kept", w, 129, true},
		{"whatever is kept", w, 257, true},
		{"another shape, by the rule", rest, 128, false},
		{"another shape, above", rest, 129, true},
	} {
		for range 2 { // from the file, and remembered
			if got := e.Unpacks(test.w, test.m); got != test.want {
				t.Errorf("%s: %d rows: got %v", test.name, test.m, got)
			}
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
		u := Unpacked{Dequantizer: NewDequantizer(e.dev), BLAS: must(blas, err)(t)}
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
			for _, u.Bytes = range []int{m.w.ScratchBytes(), 2 * k * 150} {
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
			u.Bytes = m.w.ScratchBytes()
			u.Scratch = must(e.dev.Alloc(u.Bytes))(t)
			if i == 0 {
				packed, unpacked, err := e.TuneMany(s, []*Matrix{m.w}, m.o, &u)
				if err != nil || !(packed > 0) || !(unpacked > 0) {
					t.Fatalf("got times %g and %g, error %v", packed, unpacked, err)
				}
				again := must(New(e.dev, e.cache))(t)
				if got := again.Unpacks(m.w, rows); got != (unpacked < packed) {
					t.Errorf("a new engine unpacks: %v, where packed takes %g µs and unpacked %g", got, packed, unpacked)
				}
			}
			if err := errors.Join(e.dev.Free(u.Scratch), e.dev.Free(sums)); err != nil {
				t.Fatal(err)
			}
			m.close(t)
		}
		if err := errors.Join(u.Dequantizer.Close(), blas.Close()); err != nil {
			t.Error(err)
		}
	})
}
