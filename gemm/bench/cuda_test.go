package bench

import (
	"context"
	"errors"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/lutq/lutq/formats/weight"
	"github.com/lutq/lutq/formats/weight/bcq"
	"github.com/lutq/lutq/formats/weight/lut24"
	"github.com/lutq/lutq/gemm/conform"
	"github.com/lutq/lutq/gemm/cuda"
	"github.com/lutq/lutq/gemm/cuda/driver"
	"github.com/lutq/lutq/gemm/cuda/families"
	"github.com/lutq/lutq/gemm/cuda/kerneltest"
	"github.com/lutq/lutq/gemm/cuda/sparse"
	"github.com/lutq/lutq/gemm/cuda/table"
	"github.com/lutq/lutq/repack"
)

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
	layer := func(name string, n, bits int, st weight.ScaleType) Layer {
		return Layer{Name: name, Matrix: conform.RandomMatrix(r, n, 64, bits, 32, st)}
	}
	codes := func(name string, offsets bool) Layer {
		return Layer{Name: name, Matrix: conform.RandomBCQ(r, 8, 64, 4, 32, weight.F16, offsets)}
	}
	steps := conform.RandomMatrix(r, 8, 64, 4, 32, weight.F16)
	for c := range steps.Codebook {
		steps.Codebook[c] = float32(c-8) / 8
	}
	equal, err := bcq.FromLUT(steps, weight.F16)
	if err != nil {
		t.Fatal(err)
	}
	b := &cudaBench{dtype: driver.F16}
	sets, err := layerSets(b.tables([]Layer{
		layer("a", 8, 4, weight.F16), layer("b", 16, 4, weight.F16), layer("c", 8, 3, weight.F16),
		layer("d", 8, 4, weight.F16), layer("e", 8, 4, weight.BF16), layer("f", 16, 4, weight.F16),
		codes("g", true),
		{Name: "h", Matrix: conform.RandomSparse(r, 8, 64, 4, 64, weight.F16)},
		codes("i", false),
		{Name: "j", Matrix: equal},
	}))
	if err != nil {
		t.Fatal(err)
	}
	var got [][]string
	for _, set := range sets {
		var names []string
		for _, l := range set {
			names = append(names, l.Name)
		}
		got = append(got, names)
	}
	if diff := cmp.Diff([][]string{{"a", "d", "j"}, {"b", "f"}, {"c"}, {"e"}, {"g", "i"}, {"h"}}, got); diff != "" {
		t.Errorf("sets (-want +got):\n%s", diff)
	}
}

func TestDenseHalves(t *testing.T) {
	m := conform.RandomMatrix(rand.New(rand.NewPCG(1, 2)), 33, 64, 3, 32, weight.F16)
	for i, v := range m.Dequantize() {
		if got, want := denseHalves(m, driver.BF16)[i], conform.ToHalf(driver.BF16, v); got != want {
			t.Fatalf("weight %d: got %#x, want %#x", i, got, want)
		}
	}
}

func TestSelftestFormats(t *testing.T) {
	formats := func(o CUDASelftestOptions) (all, kept []cuda.Format, err error) {
		return o.asked(table.Family{}), o.asked(sparse.Family{}), o.check()
	}
	all, kept, err := formats(CUDASelftestOptions{})
	if err != nil || len(all) != len(table.Formats()) || len(kept) != len(sparse.Formats()) {
		t.Errorf("got %d formats and %d of what is kept, %v: want all", len(all), len(kept), err)
	}
	some, kept, err := formats(CUDASelftestOptions{Bits: []int{3, 5}, Groups: []int{0, 128}, DTypes: []string{"bf16"}})
	if err != nil || len(some) != 2*2*3 || len(kept) != 2*2*2 {
		t.Errorf("got %d formats and %d of what is kept, %v: want two widths and groups with three scale types, and two", len(some), len(kept), err)
	}
	for _, f := range kept {
		if f.Group != 0 && f.Group != 64 {
			t.Errorf("got format %+v of what is kept", f)
		}
	}
	for _, f := range some {
		if f.Bits%2 == 0 || f.Group != 0 && f.Group != 128 || f.Type != driver.BF16 {
			t.Errorf("got format %+v", f)
		}
	}
	for name, o := range map[string]CUDASelftestOptions{
		"bits": {Bits: []int{7}}, "group": {Groups: []int{48}}, "type": {DTypes: []string{"f32"}},
	} {
		if o.check() == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

func TestCUDAErrors(t *testing.T) {
	shapes := []Shape{{64, 64}}
	for name, o := range map[string]CUDAOptions{
		"shape":   {Shapes: []Shape{{0, 4}}},
		"bits":    {Shapes: shapes, Bits: []int{6}},
		"m":       {Shapes: shapes, M: []int{0}},
		"type":    {Shapes: shapes, DType: "f32"},
		"ring":    {Shapes: shapes, RingBytes: -1},
		"replays": {Shapes: shapes, Replays: -1},
	} {
		if _, err := CUDA(context.Background(), o); err == nil || errors.Is(err, driver.ErrNoGPU) {
			t.Errorf("%s: got error %v", name, err)
		}
	}
	if _, err := driver.FirstGPU(); err == nil {
		t.Skip("there is a GPU")
	}
	if _, err := CUDA(context.Background(), CUDAOptions{Shapes: shapes}); !errors.Is(err, driver.ErrNoGPU) {
		t.Errorf("without a GPU: got error %v", err)
	}
	if _, err := SelftestCUDA(context.Background(), CUDASelftestOptions{}); !errors.Is(err, driver.ErrNoGPU) {
		t.Errorf("self-test without a GPU: got error %v", err)
	}
	if _, err := ReadRateCUDA(context.Background()); !errors.Is(err, driver.ErrNoGPU) {
		t.Errorf("read rate without a GPU: got error %v", err)
	}
}

// TestReadRateCUDA reads what is much larger than a cache where there is a GPU.
func TestReadRateCUDA(t *testing.T) {
	rate, err := ReadRateCUDA(context.Background())
	var missing *driver.MissingError
	if errors.Is(err, driver.ErrNoGPU) || errors.As(err, &missing) {
		t.Skip(err)
	}
	if err != nil || rate < 1e10 || rate > 1e14 {
		t.Errorf("got %g bytes a second, %v", rate, err)
	}
}

// TestCUDA measures small matrices where there is a GPU.
func TestCUDA(t *testing.T) {
	if _, err := driver.FirstGPU(); err != nil {
		t.Skip(err)
	}
	r := rand.New(rand.NewPCG(1, 2))
	layer := func(name string) Layer {
		return Layer{Name: name, Matrix: conform.RandomMatrix(r, 512, 1024, 3, 64, weight.F16)}
	}
	rows, err := CUDA(context.Background(), CUDAOptions{
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
		if row.RelErr > row.ErrorBound() || row.Device != "cuda" || row.DType != "bf16" {
			t.Errorf("got row %+v", row)
		}
		if want := i < 2; (len(row.Layers) == 3) != want {
			t.Errorf("row %d has layers %v", i, row.Layers)
		}
	}
}

func TestInOrder(t *testing.T) {
	type job struct{ prepared [3]bool }
	const n = 100
	broken := errors.New("broken")
	for _, tc := range []struct {
		name           string
		failsIn        int // a job's step
		endsAt, stopAt int // a job that fails, and that cancels
		want           error
		ran            int
	}{
		{"all", -1, -1, -1, nil, n},
		{"a step fails", 40, -1, -1, broken, 40},
		{"a job fails", -1, 30, -1, broken, 30},
		{"both, the job first", 90, 3, -1, broken, 3},
		{"cancelled", -1, -1, 20, context.Canceled, 21},
	} {
		t.Run(tc.name, func(t *testing.T) {
			ctx, cancel := context.WithCancel(context.Background())
			defer cancel()
			jobs := make([]*job, n)
			for i := range jobs {
				jobs[i] = new(job)
			}
			ran := 0
			err := inOrder(ctx, jobs, func(j *job) []func() error {
				i := slices.Index(jobs, j)
				var steps []func() error
				for s := range j.prepared {
					steps = append(steps, func() error {
						if i == tc.failsIn && s == 1 {
							return broken
						}
						j.prepared[s] = true
						return nil
					})
				}
				return steps
			}, func(j *job) error {
				switch {
				case j != jobs[ran]:
					t.Errorf("job %d in the place of %d", slices.Index(jobs, j), ran)
				case j.prepared != [3]bool{true, true, true}:
					t.Errorf("job %d is prepared %v", ran, j.prepared)
				case ran == tc.endsAt:
					return broken
				case ran == tc.stopAt:
					cancel()
				}
				ran++
				return nil
			})
			if !errors.Is(err, tc.want) {
				t.Errorf("got error %v, want %v", err, tc.want)
			}
			// A step's error may come before jobs ahead of its own have run.
			if ran > tc.ran || ran < tc.ran && tc.failsIn < 0 {
				t.Errorf("%d jobs have run, want %d", ran, tc.ran)
			}
		})
	}
}

// TestSelftestBCQ chooses kernels, and runs the self-test of a format of binary codes on a GPU that is the host's processor, and finds a
// bit that is turned.
func TestSelftestBCQ(t *testing.T) {
	if testing.Short() {
		t.Skip("compiles kernels for the host")
	}
	kerneltest.HostGPU(t, 9, false)
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	c, err := driver.OpenGPU()
	if err != nil {
		t.Fatal(err)
	}
	t.Run("coverage", func(t *testing.T) { checkCoverage(t, c) })
	t.Run("survey", func(t *testing.T) { checkSurvey(t, c) })
	o := CUDASelftestOptions{Seed: 1, Bits: []int{2}, Groups: []int{128}, Scales: []weight.ScaleType{weight.F16}, DTypes: []string{"f16"}}
	var codes []cuda.Family
	for _, f := range families.All() {
		if f.Kind() == bcq.Name {
			codes = append(codes, f)
		}
	}
	err = onGPU(c, func(g *gpu) error {
		s := newSelftest(g, &o)
		var tests []*formatTest
		for _, f := range codes {
			tests = append(tests, s.familyTests(f, &o)...)
		}
		s.cover(tests)
		err := inOrder(context.Background(), tests, func(f *formatTest) []func() error {
			s.prepare(c, f)
			return f.steps
		}, func(f *formatTest) error { return f.run(context.Background()) })
		if err != nil {
			return err
		}
		if len(s.Failures) > 0 || s.Checks != 24 || !(s.WorstErr["f16"] > 1e-5) {
			t.Errorf("%d checks, worst error %g, failures %q", s.Checks, s.WorstErr["f16"], s.Failures)
		}
		for _, f := range codes {
			test := s.drawnTest(f, 0, o.asked(f)[0], 1)
			if err := test.fill(); err != nil {
				return err
			}
			for i := range test.laid[0][:512] {
				test.laid[0][i] ^= 0xff
			}
			if err := test.run(context.Background()); err != nil {
				return err
			}
		}
		byTables := 0
		for _, f := range s.Failures {
			if strings.HasPrefix(f, "gather:") {
				byTables++
			}
		}
		if byTables != 12 || len(s.Failures) <= byTables {
			t.Errorf("turned bits are found %d times, %d by tables", len(s.Failures), byTables)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

// checkSurvey times products on what is no GPU, and holds matrices over common memory to their results.
func checkSurvey(t *testing.T, c *driver.CUDA) {
	rows, err := Survey(context.Background(), CUDAOptions{
		Shapes: []Shape{{16, 288}, {40, 64}}, Bits: []int{4}, Group: 64, M: []int{1}, RingBytes: 4000, Replays: 1, NoTune: true,
	})
	if err != nil || len(rows) != 2 {
		t.Fatalf("%d rows, %v: want 2", len(rows), err)
	}
	for i, r := range rows {
		if s := []Shape{{16, 288}, {40, 64}}[i]; r.N != s.N || r.K != s.K || r.M != 1 || r.Bits != 4 || !(r.Us > 0) || r.Ring < 2 || !(r.DenseRatio > 0) {
			t.Errorf("row %d: %+v", i, r)
		}
	}
	err = onGPU(c, func(g *gpu) error {
		o := CUDAOptions{Shapes: []Shape{{40, 96}}, Bits: []int{4}, Group: 64, M: []int{1}, RingBytes: 8000, DType: "f16"}
		b := cudaBench{CUDAOptions: o, gpu: g, dtype: driver.F16, rand: rand.New(rand.NewPCG(1, 1))}
		mem, err := b.surveyMemory()
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, mem.free()) }()
		m := conform.RandomMatrix(b.rand, 40, 96, 4, 64, weight.F16)
		m.Codebook = mem.codebooks[4]
		tiles, err := repack.CUDA(m)
		if err != nil {
			return err
		}
		f := b.format(o.Shapes[0], 4)
		codes, scales := f.Sizes(m.N, m.K)
		if codes != len(tiles.Codes) || scales != len(tiles.Scales) {
			t.Fatalf("%d and %d bytes, want %d and %d", codes, scales, len(tiles.Codes), len(tiles.Scales))
		}
		like, err := table.New(f, m.N, m.K, m.Codebook, mem.someScales)
		if err != nil {
			return err
		}
		ring, err := g.engine.Over(like, 2, mem.codes, mem.scales)
		if err != nil {
			return err
		}
		if err := errors.Join(g.dev.Write(mem.codes+driver.Ptr(codes), tiles.Codes), g.dev.Write(mem.scales+driver.Ptr(scales), tiles.Scales)); err != nil {
			return err
		}
		x := conform.RandomHalves(b.rand, m.K, driver.F16)
		y := make([]uint16, m.N)
		err = errors.Join(
			g.dev.Write(mem.x, driver.Bytes(x)), g.engine.MatMul(g.stream, ring[1], cuda.Operands{M: 1, X: mem.x, Y: mem.y}),
			g.stream.Sync(), g.dev.Read(driver.Bytes(y), mem.y), ring[1].Close())
		if rel, _ := conform.NewReference(b.rand, m, x, nil, 1, 1, driver.F16).Errors(y); !(rel <= 2*conform.Bound(driver.F16)) {
			t.Errorf("relative error %g", rel)
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}

// checkCoverage holds what a self-test runs to pairs that leave nothing out, to all, in shares, and to each source once.
func checkCoverage(t *testing.T, c *driver.CUDA) {
	err := onGPU(c, func(g *gpu) error {
		prepare := func(o CUDASelftestOptions) (s *cudaSelftest, pairs map[[2]string]bool) {
			s = newSelftest(g, &o)
			tests := s.tests(c, &o)
			pairs = make(map[[2]string]bool)
			add := func(traits []string) {
				for i, a := range traits {
					for _, b := range traits[i+1:] {
						pairs[[2]string{a, b}] = true
					}
				}
			}
			for _, f := range tests {
				for _, p := range f.parts {
					if p.variant != nil && p.run {
						add(p.variant.traits())
					}
				}
			}
			return s, pairs
		}
		widths := []int{3, 4} // of all it takes longer
		all, every := prepare(CUDASelftestOptions{Coverage: CoverAll, Bits: widths})
		some, pairs := prepare(CUDASelftestOptions{Bits: widths})
		if len(all.kernels) != len(all.of) || len(some.of) != len(all.of) {
			t.Errorf("%d kernels of %d, and pairs of %d", len(all.kernels), len(all.of), len(some.of))
		}
		if len(some.kernels) > len(all.kernels)/3 {
			t.Errorf("pairs take %d kernels of %d", len(some.kernels), len(all.kernels))
		}
		for pair := range every {
			if !pairs[pair] {
				t.Errorf("no kernel has %v", pair)
			}
		}
		shared := 0
		for share := range 3 {
			s, _ := prepare(CUDASelftestOptions{Coverage: CoverAll, Share: share, Shares: 3, Bits: widths})
			shared += len(s.kernels)
			for k := range s.kernels {
				if !all.kernels[k] {
					t.Errorf("share %d has %s", share, k)
				}
			}
		}
		if shared < len(all.kernels) || shared > len(all.kernels)+6 { // three prepare X, for several shares
			t.Errorf("shares have %d kernels of %d", shared, len(all.kernels))
		}
		each, _ := prepare(CUDASelftestOptions{Coverage: CoverSources, Bits: []int{4}, Groups: []int{128}})
		var sources []string
		for k := range each.kernels {
			name, _, _ := strings.Cut(k, ".")
			sources = append(sources, name)
		}
		slices.Sort(sources)
		want := []string{"bcqdigits", "bcqgather", "bcqplanes", "bcqrows", "lutbytes", "lutcolumns", "lutdense", "lutfp8", "lutgemm", "lutmany", "lutrows", "lutsparse", "lutwide", "sparserows"}
		if diff := cmp.Diff(want, slices.Compact(slices.Clone(sources))); diff != "" {
			t.Errorf("sources (-want +got):\n%s", diff)
		}
		if len(sources) > 3*len(want) {
			t.Errorf("%d kernels for each source once", len(sources))
		}
		t.Logf("%d kernels, %d for pairs, %d for sources", len(all.kernels), len(some.kernels), len(sources))
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

// TestSelftestHost runs the self-test of one format, which both kernels are for, on a GPU that is
// the host's processor. No kernel may be compiled that is not compiled ahead.
func TestSelftestHost(t *testing.T) {
	if testing.Short() {
		t.Skip("compiles kernels for the host")
	}
	kerneltest.HostGPU(t, 9, false)
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	done := 0
	r, err := SelftestCUDA(context.Background(), CUDASelftestOptions{
		Seed: 6, Bits: []int{4}, Groups: []int{32}, Scales: []weight.ScaleType{weight.E4M4}, DTypes: []string{"bf16"},
		Done: func(int, int) { done++ },
	})
	if err != nil {
		t.Fatal(err)
	}
	if r.Formats != 1 || done != 1 || r.Checks < 50 || len(r.Failures) > 0 {
		t.Errorf("%d formats, told %d times, %d checks, failures %q: want 1 format, many checks, no failures", r.Formats, done, r.Checks, r.Failures)
	}
	if e := r.WorstErr["bf16"]; !(e > 1e-4) || e > conform.Bound(driver.BF16) {
		t.Errorf("worst error %g", e)
	}
	entries, _, err := driver.NewCache(driver.DefaultCacheDir()).Size()
	if err != nil || entries != r.Kernels {
		t.Errorf("%d kernels in the cache, %v: want the %d compiled ahead", entries, err, r.Kernels)
	}
}

// TestCUDAHost measures layers of every kind, of which two are alike, on a GPU that is the host's processor.
func TestCUDAHost(t *testing.T) {
	if testing.Short() {
		t.Skip("compiles kernels for the host")
	}
	kerneltest.HostGPU(t, 9, false)
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	r := rand.New(rand.NewPCG(1, 2))
	codes := func(name string) Layer {
		return Layer{Name: name, Matrix: conform.RandomBCQ(r, 48, 288, 2, 32, weight.F16, true)}
	}
	kept := conform.RandomSparse(r, 32, 512, 4, 128, weight.F16)
	var doing []string
	rows, err := CUDA(context.Background(), CUDAOptions{
		Layers: []Layer{codes("a"), {Name: "b", Matrix: kept}, codes("c")}, M: []int{3}, NoTune: true, RingBytes: 1, Replays: 1,
		Doing: func(what string) { doing = append(doing, what) },
	})
	if err != nil {
		t.Fatal(err)
	}
	type key struct {
		name, kind, kernel   string
		layers               []string
		n, k, m, bits, group int
		ring                 int
	}
	var got []key
	for _, row := range rows {
		got = append(got, key{row.Name, row.Kind, row.Kernel, row.Layers, row.N, row.K, row.M, row.Bits, row.Group, row.Ring})
		if !(row.RelErr <= row.ErrorBound()) || row.RelErr == 0 || row.Us != 1000/64. || row.DenseUs != row.Us {
			t.Errorf("row %+v", row)
		}
	}
	want := []key{{"a", bcq.Name, "planes", []string{"a", "c"}, 48, 288, 3, 2, 32, 2}, {"b", lut24.Name, "mma.sp", nil, 32, 512, 3, 4, 128, 2}}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(key{})); diff != "" {
		t.Errorf("rows (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"compiling and timing 48x288, 2 bits, m 3", "compiling and timing 32x512, 4 bits, m 3"}, doing); diff != "" {
		t.Errorf("was doing (-want +got):\n%s", diff)
	}
	if _, err := CUDA(context.Background(), CUDAOptions{Layers: []Layer{codes("a")}, Lookups: []table.Lookup{table.Replicated}}); err == nil || !strings.Contains(err.Error(), "a: weights of kind bcq: lookups") {
		t.Errorf("lookups of binary codes: got error %v", err)
	}
}
