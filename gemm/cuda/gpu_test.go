package cuda

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/lutq/lutq/formats/weight"
	"github.com/lutq/lutq/formats/weight/lut"
	"github.com/lutq/lutq/gemm/conform"
	"github.com/lutq/lutq/gemm/cuda/driver"
	"github.com/lutq/lutq/repack"
)

// onGPU runs a test inside Do of the first GPU, with an engine.
func onGPU(t testing.TB, test func(e *Engine, s *driver.Stream)) {
	t.Helper()
	onGPUWith(t, driver.Options{CacheDir: t.TempDir()}, test)
}

func onGPUWith(t testing.TB, o driver.Options, test func(e *Engine, s *driver.Stream)) {
	t.Helper()
	c, err := driver.Open(o)
	if err != nil {
		t.Skip(err)
	}
	n, err := c.DeviceCount()
	if err != nil {
		t.Skip(err)
	}
	if n == 0 {
		t.Skip("no GPU")
	}
	d, err := c.OpenDevice(0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	}()
	err = d.Do(func() error {
		e, err := New(d, c.Cache())
		if err != nil {
			t.Skip(err)
		}
		s, err := d.NewStream()
		if err != nil {
			return err
		}
		test(e, s)
		return errors.Join(s.Close(), e.Close())
	})
	switch { // the function may have ended the device's goroutine, and ends this one too
	case err != nil && t.Skipped():
		t.SkipNow()
	case err != nil && t.Failed():
		t.FailNow()
	case err != nil:
		t.Fatal(err)
	}
}

// must returns a function that returns v, or ends the test if there was an error.
func must[T any](v T, err error) func(testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

// gpuMatrix is a matrix on the GPU.
type gpuMatrix struct {
	e *Engine
	s *driver.Stream
	w *Matrix

	of *conform.Product // whose operands these are
	o  Operands
}

func newGPUMatrix(t testing.TB, e *Engine, s *driver.Stream, m *lut.Matrix, dtype driver.DType) *gpuMatrix {
	t.Helper()
	return &gpuMatrix{e: e, s: s, w: must(e.Upload(must(repack.CUDA(m))(t), dtype))(t)}
}

func (m *gpuMatrix) Configs(rows int) []Config {
	return slices.Concat(m.e.Configs(m.w.Format, m.w.N, m.w.K, rows), m.e.OtherConfigs(m.w.Format, m.w.N, m.w.K, rows))
}

func (m *gpuMatrix) Slices(c Config, rows int) int {
	return m.e.Slices(m.w.Format, c, m.w.N, m.w.K, rows)
}

func (m *gpuMatrix) MatMul(c Config, p *conform.Product, blocks int, y []uint16) error {
	if err := m.load(p); err != nil {
		return err
	}
	m.e.LimitBlocks(blocks)
	if !m.w.integers {
		return m.multiply(m.w, c, y)
	}
	same := slices.Clone(y)
	table, err1 := m.w.With(Replicated)
	integers, err2 := m.w.With(Integers)
	err := errors.Join(err1, err2, m.multiply(integers, c, y), m.multiply(table, c, same))
	if err == nil && !slices.Equal(y, same) {
		err = fmt.Errorf("%v: with the table other bits than by arithmetic", c)
	}
	return err
}

func (m *gpuMatrix) multiply(w *Matrix, c Config, y []uint16) error {
	return errors.Join(m.e.dev.Write(m.o.Y, driver.Bytes(y)), m.e.MatMulWith(m.s, w, m.o, c),
		m.s.Sync(), m.e.dev.Read(driver.Bytes(y), m.o.Y))
}

// load uploads the operands of a product, unless they are there.
func (m *gpuMatrix) load(p *conform.Product) (err error) {
	if m.of == p {
		return nil
	}
	if err := m.free(); err != nil {
		return err
	}
	m.of, m.o.M = p, p.Rows
	if m.o.X, err = m.e.dev.Upload(driver.Bytes(p.X)); err != nil {
		return err
	}
	if m.o.Y, err = m.e.dev.Alloc(2 * (p.Rows*m.w.N + conform.Guard)); err != nil || p.Bias == nil {
		return err
	}
	m.o.Bias, err = m.e.dev.Upload(driver.Bytes(p.Bias))
	return err
}

func (m *gpuMatrix) free() error {
	var errs []error
	for _, p := range []driver.Ptr{m.o.X, m.o.Y, m.o.Bias} {
		if p != 0 {
			errs = append(errs, m.e.dev.Free(p))
		}
	}
	m.of, m.o = nil, Operands{}
	return errors.Join(errs...)
}

func (m *gpuMatrix) close(t testing.TB) {
	if err := errors.Join(m.free(), m.w.Close()); err != nil {
		t.Error(err)
	}
}

// run multiplies on a grid of any size and returns Y.
func (m *gpuMatrix) run(t testing.TB, c Config, p *conform.Product) []uint16 {
	t.Helper()
	y := conform.Poisoned(p.Rows * m.w.N)
	err := m.MatMul(c, p, math.MaxInt, y)
	skipMissing(t, err)
	if err = errors.Join(err, conform.CheckWritten(y, m.w.Format.Type)); err != nil {
		t.Fatal(err)
	}
	return y
}

// skipMissing skips the test where there is no compiler.
func skipMissing(t testing.TB, err error) {
	var missing *driver.MissingError
	if errors.As(err, &missing) {
		t.Skip(err)
	}
}

// TestGPU holds the engine to the suite, in some formats or many; the self-test does it in all.
func TestGPU(t *testing.T) {
	for i, f := range testFormats() {
		if *long || i%3 == 0 {
			t.Run(f.name(), func(t *testing.T) { checkOnGPU(t, i, f) })
		}
	}
}

// checkOnGPU holds the engine to case i of the suite.
func checkOnGPU(t *testing.T, i int, f Format) {
	onGPU(t, func(e *Engine, s *driver.Stream) {
		c := conform.Draw(1, i, conform.Format(f))
		c.Fill()
		m := newGPUMatrix(t, e, s, c.Matrix, f.Type)
		res, err := conform.Check(t.Context(), c, m)
		skipMissing(t, err)
		if err != nil {
			t.Fatal(err)
		}
		for _, failure := range res.Failures {
			t.Error(failure)
		}
		m.close(t)
	})
}

// testMatrix returns a matrix of a format.
func testMatrix(seed uint64, n, k int, f Format) *lut.Matrix {
	group := f.Group
	if group == 0 {
		group = k
	}
	return conform.RandomMatrix(rand.New(rand.NewPCG(seed, 2)), n, k, f.Bits, group, f.Scale)
}

// testProduct returns a product by a matrix of a format, with a bias or without.
func testProduct(n, k, rows int, t driver.DType, bias bool) *conform.Product {
	r := rand.New(rand.NewPCG(1, 3))
	p := &conform.Product{Rows: rows, X: conform.RandomHalves(r, rows*k, t)}
	if bias {
		p.Bias = conform.RandomHalves(r, n, t)
	}
	return p
}

// heldWeights returns Ŵ as the kernels have it, whose table is rounded.
func heldWeights(m *lut.Matrix, t driver.DType) []float32 {
	held := *m
	held.Codebook = conform.RoundedTable(m.Codebook, t)
	return held.Dequantize()
}

// testFormats covers every width, group, scale type and type of X, if not every
// combination.
func testFormats() []Format {
	groups := []int{32, 64, 128, 256, 0}
	scales := []weight.ScaleType{weight.F16, weight.BF16, weight.F32, weight.E4M4, weight.S1E4M3}
	var all []Format
	for bits := lut.MinBits; bits <= lut.MaxBits; bits++ {
		for i, group := range groups {
			dtype := driver.F16
			if (bits+i)%2 == 1 {
				dtype = driver.BF16
			}
			f := Format{bits, group, scales[(bits+i)%len(scales)], dtype}
			if group != 32 && f.Scale.Size() == 1 {
				f.Scale = scales[(bits+i)%3]
			}
			all = append(all, f)
		}
	}
	return all
}

// TestGPUPrebuilt multiplies with the kernels that need no compiler. They give the
// bits that the compiled ones give, or by what is kept and by binary codes results as good.
func TestGPUPrebuilt(t *testing.T) {
	const n, k = 200, 544
	rows := []int{1, 2, 5, 8, 9, 16} // more may be in other slices without a compiler
	type result struct {
		of string
		y  []uint16
	}
	multiply := func(e *Engine, s *driver.Stream) (all []result) {
		for i, f := range Formats() {
			if !f.prebuilt() || !*long && i%3 != 0 {
				continue
			}
			m := newGPUMatrix(t, e, s, testMatrix(uint64(i), n, k, f), f.Type)
			for _, r := range rows {
				p := testProduct(n, k, r, f.Type, true)
				name := fmt.Sprintf("%s, %d rows", f.name(), r)
				configs := e.Configs(f, n, k, r)
				for _, c := range configs {
					y := m.run(t, c, p)
					if c == configs[0] {
						all = append(all, result{name, y})
					} else if !slices.Equal(y, all[len(all)-1].y) {
						t.Fatalf("%s: %v and %v give different bits", name, configs[0], c)
					}
				}
			}
			m.close(t)
		}
		return all
	}
	var want, got []result
	onGPU(t, func(e *Engine, s *driver.Stream) {
		if e.noCompiler != nil {
			t.Skip(e.noCompiler)
		}
		want = multiply(e, s)
	})
	onGPUWith(t, driver.Options{CacheDir: t.TempDir(), NoCompiler: true}, func(e *Engine, s *driver.Stream) {
		got = multiply(e, s)
		m := testMatrix(1, n, k, Format{4, 32, weight.E4M4, driver.F16})
		var missing *driver.MissingError
		if _, err := e.Upload(must(repack.CUDA(m))(t), driver.F16); !errors.As(err, &missing) {
			t.Errorf("a format that is not prebuilt: got error %v, want the missing compiler's", err)
		}
		checkPrebuiltKinds(t, e, s)
	})
	if len(got) != len(want) {
		t.Fatalf("%d products without a compiler, %d with one", len(got), len(want))
	}
	for i := range want {
		if !slices.Equal(want[i].y, got[i].y) {
			t.Fatalf("%s: the prebuilt kernel gives other bits than the compiled one", want[i].of)
		}
	}
}

// checkPrebuiltKinds multiplies by what is kept of every four columns and by binary codes, and reads their rows, with an engine that need
// not have a compiler.
func checkPrebuiltKinds(t *testing.T, e *Engine, s *driver.Stream) {
	const n, k = 200, 1088
	check := func(name string, w Packed, of weight.Matrix, err error) {
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		for _, rows := range []int{1, 8, 9, 16, 37} {
			p := testProduct(n, k, rows, w.Type(), rows%2 == 1)
			y := conform.Poisoned(rows * n)
			o := Operands{M: rows, X: must(e.dev.Upload(driver.Bytes(p.X)))(t), Y: must(e.dev.Upload(driver.Bytes(y)))(t)}
			if p.Bias != nil {
				o.Bias = must(e.dev.Upload(driver.Bytes(p.Bias)))(t)
			}
			err := errors.Join(w.MatMul(s, o), s.Sync(), e.dev.Read(driver.Bytes(y), o.Y), conform.CheckWritten(y, w.Type()))
			if err != nil {
				t.Fatalf("%s, %d rows: %v", name, rows, err)
			}
			ref := conform.NewRowReference(rand.New(rand.NewPCG(1, 1)), of, p.X, p.Bias, rows, 1, w.Type())
			if rel, _ := ref.Errors(y); !(rel <= conform.Bound(w.Type())) {
				t.Errorf("%s, %d rows: relative error %.3g", name, rows, rel)
			}
			for _, at := range []driver.Ptr{o.X, o.Y, o.Bias} {
				if at != 0 {
					must(0, e.dev.Free(at))(t)
				}
			}
		}
		got, want, largest, worst := make([]float32, n*k), make([]float32, k), 0.0, 0.0
		dst := must(e.dev.Alloc(4 * n * k))(t)
		if err := errors.Join(w.Rows(s, dst, driver.F32, 0, 0, n), s.Sync(), e.dev.Read(driver.Bytes(got), dst), e.dev.Free(dst), w.Close()); err != nil {
			t.Fatalf("rows of %s: %v", name, err)
		}
		for i := range n {
			of.Row(want, i)
			for j, v := range want {
				largest, worst = max(largest, math.Abs(float64(v))), max(worst, math.Abs(float64(got[i*k+j]-v)))
			}
		}
		if !(worst <= 1e-6*largest) {
			t.Errorf("rows of %s are off by %.3g of %.3g", name, worst, largest)
		}
	}
	for i, f := range SparseFormats() {
		if f.prebuiltSparse() && (*long || i%3 == 0) {
			of := conform.RandomSparse(rand.New(rand.NewPCG(uint64(i), 24)), n, k, f.Bits, 2*f.Group, f.Scale)
			of.Kept.Codebook = conform.RoundedTable(of.Kept.Codebook, f.Type)
			w, err := e.UploadSparse(must(repack.SparseCUDA(of))(t), f.Type)
			check("what is kept of "+f.name(), w, of, err)
		}
	}
	for i, f := range BCQFormats() {
		if f.prebuilt() && (*long || i%3 == 0) {
			of := conform.RandomBCQ(rand.New(rand.NewPCG(uint64(i), 4)), n, k, f.Bits, f.Group, f.Scale, i%2 == 0)
			w, err := e.UploadBCQ(must(repack.BCQ(of))(t), f.Type)
			check("binary codes "+f.name(), w, of, err)
		}
	}
}

// TestGPUTune tunes and looks for the choice in a new engine.
func TestGPUTune(t *testing.T) {
	onGPU(t, func(e *Engine, s *driver.Stream) {
		f := Format{4, 128, weight.F16, driver.F16}
		m := newGPUMatrix(t, e, s, testMatrix(1, 512, 1024, f), f.Type)
		p := testProduct(512, 1024, 1, f.Type, false)
		before := m.run(t, lutgemm{}.variants(f, 1)[0], p)
		timings := must(e.Tune(s, []*Matrix{m.w}, m.o))(t)
		if len(timings) != len(e.Configs(f, 512, 1024, 1)) || timings[0].Us <= 0 {
			t.Errorf("got timings %v", timings)
		}
		again := must(New(e.dev, e.cache))(t)
		if got, want := must(again.choice(m.w, 1))(t), timings[0].Config; got != want {
			t.Errorf("a new engine chooses %v, want %v", got, want)
		}
		if y := m.run(t, must(e.choice(m.w, 1))(t), p); !slices.Equal(y, before) {
			t.Error("tuning changed the result")
		}
		m.close(t)
	})
}

func TestBadOperands(t *testing.T) {
	l := limits{132, 227 << 10}
	f := Format{4, 128, weight.F16, driver.F16}
	for _, test := range []struct {
		name    string
		n, k, m int
		ok      bool
	}{
		{"good", 100, 992, 16, true},
		{"no rows", 100, 992, 0, false},
		{"too many rows", 100, 992, 17, false},
		{"K", 100, 1000, 1, false},
		{"no features", 0, 992, 1, false},
		{"huge", 1, math.MaxInt32 - 31, 1, false},
	} {
		if _, _, err := shapeOf(f, test.n, test.k, test.m).plan(lutgemm{}.variants(f, min(test.m, MaxRows))[0], l); (err == nil) != test.ok {
			t.Errorf("%s: got error %v", test.name, err)
		}
	}
	if _, _, err := shapeOf(f, 64, 256, 1).plan(lutgemm{}.variants(f, 1)[0], limits{100, 48 << 10}); err == nil {
		t.Error("a GPU of little shared memory: no error")
	}
	open := &Matrix{N: 8, K: 32, Format: f, codes: 1}
	for _, test := range []struct {
		name string
		w    *Matrix
		o    Operands
	}{
		{"closed", &Matrix{}, Operands{X: 16, Y: 16, M: 1}},
		{"no rows", open, Operands{X: 16, Y: 16}},
		{"no X", open, Operands{Y: 16, M: 1}},
		{"X not aligned", open, Operands{X: 8, Y: 16, M: 1}},
		{"Y not aligned", open, Operands{X: 16, Y: 17, M: 1}},
	} {
		if err := test.o.check(test.w); err == nil {
			t.Errorf("%s: no error", test.name)
		}
	}
	if err := (Operands{X: 16, Y: 16, M: 99}).check(open); err != nil {
		t.Error(err)
	}
	if _, err := FormatOf(&repack.CUDATiles{K: 8, Group: 8}, driver.F32); err == nil {
		t.Error("float32 activations: no error")
	}
}
