package bench

import (
	"context"
	"encoding/json"
	"errors"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lutq/lutq/formats/weight"
	"github.com/lutq/lutq/formats/weight/bcq"
	"github.com/lutq/lutq/formats/weight/lut24"
	"github.com/lutq/lutq/gemm/conform"
	"github.com/lutq/lutq/gemm/cpu"
	"github.com/lutq/lutq/repack"
)

func quick(o Options) Options {
	o.PoolBytes, o.Time = 1<<16, time.Millisecond
	return o
}

func TestBench(t *testing.T) {
	for _, isa := range cpu.ISAs() {
		t.Run(isa, func(t *testing.T) { testBench(t, isa) })
	}
}

func testBench(t *testing.T, isa string) {
	layer := conform.RandomMatrix(rand.New(rand.NewPCG(1, 2)), 24, 80, 3, 32, weight.E4M4)
	calls := 0
	rows, err := CPU(context.Background(), quick(Options{
		Shapes:  []Shape{{40, 100}, {33, 31}},
		Bits:    []int{2, 4},
		Layers:  []Layer{{Name: "layer", Matrix: layer}},
		M:       []int{1, 20},
		Threads: 2,
		ISA:     isa,
		Done: func(row Row, total int) {
			calls++
			if total != 10 {
				t.Errorf("total: got %d, want 10", total)
			}
		},
	}))
	if err != nil {
		t.Fatal(err)
	}
	if calls != 10 {
		t.Errorf("%d products were announced: want 10", calls)
	}
	fixed := 0
	type key struct {
		name                 string
		n, k, m, bits, group int
	}
	var got []key
	for _, r := range rows {
		bound, at := 1e-6, key{r.Name, r.N, r.K, r.M, r.Bits, r.Group}
		switch r.Kernel {
		case "lut-" + isa:
			got = append(got, at)
		case "fixed-" + isa:
			fixed++
			bound = cpu.FixedError
			if at != got[len(got)-1] || r.RelErr < 1e-6 || r.ErrorBound() != bound {
				t.Errorf("%+v after %+v, error %g of %g", at, got[len(got)-1], r.RelErr, r.ErrorBound())
			}
		default:
			t.Errorf("kernel %s", r.Kernel)
		}
		for name, v := range map[string]float64{
			"us": r.Us, "read_only_us": r.ReadOnlyUs, "read_only_ratio": r.ReadOnlyRatio,
			"dense_us": r.DenseUs, "dense_ratio": r.DenseRatio, "rel_err": r.RelErr,
			"dense_f16_us": r.DenseF16Us, "dense_f16_ratio": r.DenseF16Ratio,
			"gb_per_s": r.GBPerS, "gflop_per_s": r.GFLOPPerS,
		} {
			if !(v > 0) || math.IsInf(v, 0) {
				t.Errorf("%+v: %s is %g", got[len(got)-1], name, v)
			}
		}
		if math.Abs(r.ReadOnlyRatio*r.Us/r.ReadOnlyUs-1) > 1e-9 || math.Abs(r.DenseRatio*r.Us/r.DenseUs-1) > 1e-9 {
			t.Errorf("%+v: ratios do not fit the times", r)
		}
		if r.RelErr > bound {
			t.Errorf("%+v: relative error %g", got[len(got)-1], r.RelErr)
		}
	}
	all := 0
	if fixes(t, isa) {
		all = 10
	}
	if fixed != all {
		t.Errorf("%d rows in fixed point: want %d", fixed, all)
	}
	want := []key{
		{"layer", 24, 80, 1, 3, 32},
		{"layer", 24, 80, 20, 3, 32},
		{"", 40, 100, 1, 2, 64},
		{"", 40, 100, 20, 2, 64},
		{"", 40, 100, 1, 4, 64},
		{"", 40, 100, 20, 4, 64},
		{"", 33, 31, 1, 2, 31},
		{"", 33, 31, 20, 2, 31},
		{"", 33, 31, 1, 4, 31},
		{"", 33, 31, 20, 4, 31},
	}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(key{})); diff != "" {
		t.Errorf("rows (-want +got):\n%s", diff)
	}
}

func TestRowKeys(t *testing.T) {
	text, err := json.Marshal(Row{})
	if err != nil {
		t.Fatal(err)
	}
	var keys map[string]any
	if err := json.Unmarshal(text, &keys); err != nil {
		t.Fatal(err)
	}
	for _, k := range []string{
		"device", "n", "k", "m", "bits", "group", "dtype", "kernel", "us", "read_only_us",
		"read_only_ratio", "dense_us", "dense_ratio", "rel_err",
	} {
		if _, ok := keys[k]; !ok {
			t.Errorf("no key %q in %s", k, text)
		}
	}
}

func TestBenchErrors(t *testing.T) {
	bad := conform.RandomMatrix(rand.New(rand.NewPCG(1, 2)), 4, 4, 3, 4, weight.F16)
	bad.Codes = bad.Codes[1:]
	for _, test := range []struct {
		name string
		o    Options
	}{
		{"shape", Options{Shapes: []Shape{{0, 4}}}},
		{"bits", Options{Shapes: []Shape{{4, 4}}, Bits: []int{6}}},
		{"m", Options{Shapes: []Shape{{4, 4}}, M: []int{0}}},
		{"group", Options{Shapes: []Shape{{4, 4}}, Group: -1}},
		{"instruction set", Options{Shapes: []Shape{{4, 4}}, ISA: "mmx"}},
		{"layer", Options{Layers: []Layer{{Name: "x", Matrix: bad}}}},
	} {
		if _, err := CPU(context.Background(), quick(test.o)); err == nil {
			t.Errorf("%s: no error", test.name)
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := CPU(ctx, quick(Options{Shapes: []Shape{{4, 4}}})); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: got error %v", err)
	}
}

// TestMismatch lets the bench see weights that are not those of the matrix.
func TestMismatch(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	m := conform.RandomMatrix(r, 20, 70, 4, 32, weight.F16)
	e, err := cpu.New(cpu.Options{Threads: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	o := quick(Options{M: []int{3}, Layers: []Layer{{Matrix: m}}})
	p, err := o.plan(e.Fixes())
	if err != nil {
		t.Fatal(err)
	}
	b := bench{Options: o, engine: e, rand: r, plan: p}
	f, err := formOf(m)
	if err != nil {
		t.Fatal(err)
	}
	panels, err := repack.CPU(m)
	if err != nil {
		t.Fatal(err)
	}
	dense, err := b.densePool(context.Background(), m, "F32")
	if err != nil {
		t.Fatal(err)
	}
	half, err := b.densePool(context.Background(), m, "F16")
	if err != nil {
		t.Fatal(err)
	}
	for _, spoil := range []struct {
		name string
		do   func(p *repack.CPUPanels)
	}{
		{"nothing", func(*repack.CPUPanels) {}},
		{"a code", func(p *repack.CPUPanels) { p.Panels[0] ^= 15 }},
		{"a scale", func(p *repack.CPUPanels) { p.Scales[1] ^= 0x40 }},
	} {
		c := *panels
		c.Panels, c.Scales = slices.Clone(panels.Panels), slices.Clone(panels.Scales)
		spoil.do(&c)
		w, err := cpu.NewLUT(&c)
		if err != nil {
			t.Fatal(err)
		}
		all := pools{f32: dense, f16: half}
		if err := b.packedPools(context.Background(), &all, w); err != nil {
			t.Fatal(err)
		}
		_, err = b.row(context.Background(), subject{m, f}, all, 3)
		if want := spoil.name != "nothing"; errors.Is(err, ErrMismatch) != want {
			t.Errorf("%s changed: got error %v", spoil.name, err)
		}
	}
}

func TestSelftest(t *testing.T) {
	res, err := Selftest(context.Background(), 1)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range res.Failures {
		t.Error(f)
	}
	// In fixed point are those of 38 groups and shapes, through tables in 8 bits binary codes of 6 shapes. Rings have 11 rates, in 4 or 3 shapes.
	if want := 4*6*7*(1+3*2*2*len(cpu.ISAs())) + 4*38*3*2*len(cpu.ISAs()) + 8*7*(1+3*2*len(cpu.ISAs())) + 8*6*3*2*len(cpu.ISAs()) + 39*(1+3*2*2*len(cpu.ISAs())); res.Checks != want {
		t.Errorf("got %d checks, want %d", res.Checks, want)
	}
	t.Logf("largest relative error %.3g", res.WorstErr)
}

func TestParse(t *testing.T) {
	for _, test := range []struct {
		in   string
		want Shape
	}{
		{"4096x11008", Shape{4096, 11008}},
		{"1x1", Shape{1, 1}},
		{"", Shape{}},
		{"4096", Shape{}},
		{"0x5", Shape{}},
		{"5x-5", Shape{}},
		{"axb", Shape{}},
		{"1x2x3", Shape{}},
		{"2000000000x2000000000", Shape{}},
	} {
		got, err := ParseShape(test.in)
		if got != test.want || (err != nil) != (test.want == Shape{}) {
			t.Errorf("shape %q: got %v, %v", test.in, got, err)
		}
	}
	for in, want := range map[string]int{"32768K": 32 << 20, "32M": 32 << 20, "512": 512, "": 0, "K": 0, "-1K": 0, "big": 0} {
		if got := parseSize(in); got != want {
			t.Errorf("size %q: got %d, want %d", in, got, want)
		}
	}
	if got := lastCache(); got < 1<<10 {
		t.Errorf("last cache: got %d bytes", got)
	}
}

func TestReadRate(t *testing.T) {
	rate, err := ReadRate(context.Background(), Options{Threads: 1, LastCache: 1 << 20})
	if err != nil || rate < 1e7 || rate > 1e13 {
		t.Errorf("got %g bytes a second, %v", rate, err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := ReadRate(ctx, Options{Threads: 1, LastCache: 1 << 20}); !errors.Is(err, context.Canceled) {
		t.Errorf("interrupted: got error %v", err)
	}
}

// TestBenchLayers times layers of every kind: those without a kernel of their own by dense weights, of which then as many bytes are read.
func TestBenchLayers(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	rows, err := CPU(context.Background(), quick(Options{Threads: 1, Layers: []Layer{
		{Name: "table", Matrix: conform.RandomMatrix(r, 24, 96, 3, 32, weight.F16)},
		{Name: "codes", Matrix: conform.RandomBCQ(r, 40, 64, 2, 32, weight.F16, true)},
		{Name: "kept", Matrix: conform.RandomSparse(r, 16, 128, 4, 64, weight.F16)},
	}}))
	if err != nil {
		t.Fatal(err)
	}
	type key struct {
		name, kind        string
		n, k, bits, group int
		bytes             int64
	}
	want := []key{{"table", "", 24, 96, 3, 32, 0}, {"codes", bcq.Name, 40, 64, 2, 32, 0}, {"kept", lut24.Name, 16, 128, 4, 64, 4 * 16 * 128}}
	var got []key
	for _, row := range rows {
		at := key{row.Name, row.Kind, row.N, row.K, row.Bits, row.Group, 0}
		if strings.HasPrefix(row.Kernel, "dense-") {
			at.bytes = row.Bytes
		}
		if len(got) == 0 || got[len(got)-1] != at {
			got = append(got, at)
		}
		if !(row.RelErr <= row.ErrorBound()) || !(row.Us > 0) || row.Bytes <= 0 {
			t.Errorf("row %+v", row)
		}
	}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(key{})); diff != "" {
		t.Errorf("rows (-want +got):\n%s", diff)
	}
}

// TestBenchKinds times binary codes, as they are and through tables in 8 bits.
func TestBenchKinds(t *testing.T) {
	rows, err := CPU(context.Background(), quick(Options{Shapes: []Shape{{40, 100}}, Kind: bcq.Name, Bits: []int{1, 8}, M: []int{1, 20}, Group: 32, Threads: 2}))
	if err != nil {
		t.Fatal(err)
	}
	if len(rows) != 8 {
		t.Fatalf("%d rows, want 8", len(rows))
	}
	e, err := cpu.New(cpu.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	isa := e.ISA()
	for i, r := range rows {
		kernel, bound, least := "planes-"+isa, 1e-5, 0.0
		if i%2 == 1 {
			kernel, bound, least = "int8-"+isa, .02, 1e-4
		}
		if r.Kernel != kernel || r.Kind != bcq.Name || r.Bits != 1+7*(i/4) || r.M != 1+19*(i/2%2) || r.ErrorBound() != bound {
			t.Errorf("row %d is %+v", i, r)
		}
		if !(r.RelErr <= bound && r.RelErr >= least) || !(r.Us > 0) || !(r.ReadOnlyRatio > 0) {
			t.Errorf("row %d has an error of %g, takes %g µs", i, r.RelErr, r.Us)
		}
	}
	for want, o := range map[string]Options{
		`kind "nf": want bcq, lut24, trellis`: {Kind: "nf"},
		"9 bits a code: want 1 to 8":          {Kind: bcq.Name, Bits: []int{9}},
	} {
		if _, err := CPU(context.Background(), o); err == nil || err.Error() != want {
			t.Errorf("got error %v, want %s", err, want)
		}
	}
}
