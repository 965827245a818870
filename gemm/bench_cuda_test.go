package gemm

import (
	"context"
	"errors"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/lutq/lutq/gemm/cuda"
	"github.com/lutq/lutq/gemm/cuda/driver"
	"github.com/lutq/lutq/gemm/ref"
	"github.com/lutq/lutq/quantize/lut"
)

func TestGraphCalls(t *testing.T) {
	for ring, want := range map[int]int{1: 64, 2: 64, 3: 66, 5: 65, 63: 126, 64: 64, 100: 100} {
		if got := graphCalls(ring); got != want {
			t.Errorf("ring of %d: got %d calls, want %d", ring, got, want)
		}
	}
}

func TestRingIsLong(t *testing.T) {
	for _, test := range []struct {
		n, bytes, least int
		want            bool
	}{
		{0, 100, 1000, false},
		{1, 5000, 1000, false},
		{2, 5000, 1000, true},
		{9, 100, 1000, false},
		{10, 100, 1000, true},
		{maxRing - 1, 1, 1 << 20, false},
		{maxRing, 1, 1 << 20, true},
	} {
		if got := ringIsLong(test.n, test.bytes, test.least); got != test.want {
			t.Errorf("%d matrices of %d bytes for %d: got %v", test.n, test.bytes, test.least, got)
		}
	}
}

func TestLayerSets(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	layer := func(name string, n, bits int, st lut.ScaleType) Layer {
		return Layer{name, randomMatrix(r, Shape{n, 64}, bits, 32, st)}
	}
	var got [][]string
	for _, set := range layerSets([]Layer{
		layer("a", 8, 4, lut.F16), layer("b", 16, 4, lut.F16), layer("c", 8, 3, lut.F16),
		layer("d", 8, 4, lut.F16), layer("e", 8, 4, lut.BF16), layer("f", 16, 4, lut.F16),
	}) {
		var names []string
		for _, l := range set {
			names = append(names, l.Name)
		}
		got = append(got, names)
	}
	if diff := cmp.Diff([][]string{{"a", "d"}, {"b", "f"}, {"c"}, {"e"}}, got); diff != "" {
		t.Errorf("sets (-want +got):\n%s", diff)
	}
}

// TestReference holds results that are rounded once, as the kernels round, to
// the bounds, and lets each kind of mistake be found.
func TestReference(t *testing.T) {
	const m = 3
	for _, dtype := range []driver.DType{driver.F16, driver.BF16} {
		t.Run(dtype.String(), func(t *testing.T) {
			r := rand.New(rand.NewPCG(1, 2))
			w := randomMatrix(r, Shape{300, 96}, 4, 32, lut.F16)
			x := make([]float32, m*w.K)
			for i := range x {
				x[i] = fromHalf(dtype, toHalf(dtype, float32(r.NormFloat64())))
			}
			held := *w
			held.Codebook = roundedTable(w.Codebook, dtype)
			y := make([]uint16, m*w.N)
			for i, v := range ref.LUT(x, &held, m) {
				y[i] = toHalf(dtype, float32(v))
			}
			if err := checkWritten(y, dtype); err != nil {
				t.Error(err)
			}
			f := newReference(r, w, x, m, 1, dtype)
			if len(f.columns) != w.N {
				t.Errorf("got %d columns, want all %d", len(f.columns), w.N)
			}
			rel, largest := f.errors(y, dtype)
			bound := ErrorBound(dtype.String())
			if !(rel <= bound) || rel < bound/10 {
				t.Errorf("relative error: got %g, want a little less than %g", rel, bound)
			}
			if !(largest >= rel) || largest > 20*rel {
				t.Errorf("largest error: got %g beside a relative error of %g", largest, rel)
			}
			if !(f.tableErr > bound/100) || f.tableErr > 2*bound {
				t.Errorf("error of the table: got %g", f.tableErr)
			}
			exact := newReference(r, &held, x, m, 1, dtype)
			if exact.tableErr != 0 {
				t.Errorf("error of a rounded table: got %g, want none", exact.tableErr)
			}

			// One weight's share in one element.
			y[5] = toHalf(dtype, fromHalf(dtype, y[5])+0.5)
			if rel, _ := f.errors(y, dtype); rel <= bound {
				t.Errorf("a wrong element: relative error %g", rel)
			}
			y[5] = poisoned
			if rel, _ := f.errors(y, dtype); rel <= bound {
				t.Errorf("a poisoned element: relative error %g", rel)
			}
			if err := checkWritten(y, dtype); !errors.Is(err, ErrMismatch) {
				t.Errorf("a poisoned element: got error %v", err)
			}
			y[5] = toHalf(dtype, float32(math.Inf(-1)))
			if err := checkWritten(y, dtype); !errors.Is(err, ErrMismatch) {
				t.Errorf("an infinite element: got error %v", err)
			}
		})
	}

	// Large matrices are sampled, the last column included.
	r := rand.New(rand.NewPCG(1, 2))
	w := randomMatrix(r, Shape{3000, 1024}, 2, 128, lut.F16)
	f := newReference(r, w, make([]float32, 8*w.K), 8, 20, driver.F16)
	if len(f.columns) != referenceWork/(1024*8*20) || f.columns[0] != w.N-1 {
		t.Errorf("got %d columns, the first %d", len(f.columns), f.columns[0])
	}
}

func TestGuard(t *testing.T) {
	y := []uint16{poisoned, poisoned, poisoned}
	if err := checkGuard(y); err != nil {
		t.Error(err)
	}
	y[2] = 0
	if err := checkGuard(y); !errors.Is(err, ErrMismatch) {
		t.Errorf("a changed element: got error %v", err)
	}
}

func TestDenseHalves(t *testing.T) {
	m := randomMatrix(rand.New(rand.NewPCG(1, 2)), Shape{33, 64}, 3, 32, lut.F16)
	for i, v := range m.Dequantize() {
		if got, want := denseHalves(m, driver.BF16)[i], toHalf(driver.BF16, v); got != want {
			t.Fatalf("weight %d: got %#x, want %#x", i, got, want)
		}
	}
}

func TestSelftestFormats(t *testing.T) {
	all, err := (&CUDASelftestOptions{}).formats()
	if err != nil || len(all) != len(cuda.Formats()) {
		t.Errorf("got %d formats, %v: want all", len(all), err)
	}
	some, err := (&CUDASelftestOptions{Bits: []int{3, 5}, Groups: []int{0, 128}, DTypes: []string{"bf16"}}).formats()
	if err != nil || len(some) != 2*2*5 {
		t.Errorf("got %d formats, %v: want two widths and groups with all five scale types", len(some), err)
	}
	for _, f := range some {
		if f.Bits%2 == 0 || f.Group != 0 && f.Group != 128 || f.Type != driver.BF16 {
			t.Errorf("got format %+v", f)
		}
	}
	for name, o := range map[string]CUDASelftestOptions{
		"bits": {Bits: []int{7}}, "group": {Groups: []int{48}}, "type": {DTypes: []string{"f32"}},
	} {
		if _, err := o.formats(); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	met := make(map[any]map[Shape]bool)
	for i, f := range all {
		for _, part := range []any{f.Bits, [1]int{f.Group}, f.Scale, f.Type} {
			if met[part] == nil {
				met[part] = make(map[Shape]bool)
			}
			met[part][(&cudaSelftest{}).shape(i)] = true
		}
	}
	for part, shapes := range met {
		if len(shapes) != len(selftestShapes()) {
			t.Errorf("%T %v meets %d shapes, want all", part, part, len(shapes))
		}
	}
	// Every format has a group that fits into every shape, and K that is no
	// group of its own.
	for _, s := range selftestShapes() {
		if s.K <= 256 || s.K%32 != 0 {
			t.Errorf("%d columns", s.K)
		}
	}
}

func TestBenchCUDAErrors(t *testing.T) {
	shapes := []Shape{{64, 64}}
	for name, o := range map[string]CUDAOptions{
		"shape":   {Shapes: []Shape{{0, 4}}},
		"bits":    {Shapes: shapes, Bits: []int{6}},
		"m":       {Shapes: shapes, M: []int{0}},
		"type":    {Shapes: shapes, DType: "f32"},
		"ring":    {Shapes: shapes, RingBytes: -1},
		"replays": {Shapes: shapes, Replays: -1},
	} {
		if _, err := BenchCUDA(context.Background(), o); err == nil || errors.Is(err, ErrNoGPU) {
			t.Errorf("%s: got error %v", name, err)
		}
	}
	if _, err := GPU(); err == nil {
		t.Skip("there is a GPU")
	}
	if _, err := BenchCUDA(context.Background(), CUDAOptions{Shapes: shapes}); !errors.Is(err, ErrNoGPU) {
		t.Errorf("without a GPU: got error %v", err)
	}
	if _, err := SelftestCUDA(context.Background(), CUDASelftestOptions{}); !errors.Is(err, ErrNoGPU) {
		t.Errorf("self-test without a GPU: got error %v", err)
	}
}

// TestBenchCUDA measures small matrices where there is a GPU.
func TestBenchCUDA(t *testing.T) {
	if _, err := GPU(); err != nil {
		t.Skip(err)
	}
	r := rand.New(rand.NewPCG(1, 2))
	layer := func(name string) Layer { return Layer{name, randomMatrix(r, Shape{512, 1024}, 3, 64, lut.F16)} }
	rows, err := BenchCUDA(context.Background(), CUDAOptions{
		Shapes: []Shape{{1000, 992}}, Bits: []int{4, 5}, Layers: []Layer{layer("a"), layer("b"), layer("c")},
		M: []int{1, 21}, DType: "bf16", RingBytes: 8 << 20, Replays: 3,
	})
	var missing *driver.MissingError
	if errors.As(err, &missing) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	if len(rows) != 6 {
		t.Fatalf("got %d rows, want 6", len(rows))
	}
	for i, row := range rows {
		for name, v := range map[string]float64{
			"us": row.Us, "read_only_us": row.ReadOnlyUs, "rel_err": row.RelErr, "max_err": row.MaxErr,
			"table_rel_err": row.TableRelErr, "gb_per_s": row.GBPerS,
		} {
			if !(v > 0) || math.IsInf(v, 0) {
				t.Errorf("row %d: %s is %g", i, name, v)
			}
		}
		if row.RelErr > ErrorBound("bf16") || row.Device != "cuda" || row.DType != "bf16" {
			t.Errorf("got row %+v", row)
		}
		if want := i < 2; (len(row.Layers) == 3) != want {
			t.Errorf("row %d has layers %v", i, row.Layers)
		}
	}
}
