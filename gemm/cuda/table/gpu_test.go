package table

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
	"github.com/lutq/lutq/gemm/cuda"
	"github.com/lutq/lutq/gemm/cuda/cudatest"
	"github.com/lutq/lutq/gemm/cuda/driver"
	"github.com/lutq/lutq/repack"
)

// upload uploads a matrix.
func upload(t testing.TB, g *cudatest.GPU, m *lut.Matrix, dtype driver.DType) *cuda.Matrix {
	t.Helper()
	tiles, parts, err := Of(cudatest.Must(repack.CUDA(m))(t), dtype)
	if err != nil {
		t.Fatal(err)
	}
	return g.Upload(t, tiles, parts)
}

// gpuMatrix is a matrix on the GPU, for the suite.
type gpuMatrix struct {
	*cudatest.GPU
	w *cuda.Matrix

	of *conform.Product // whose operands these are
	o  cuda.Operands
}

func (m *gpuMatrix) Configs(rows int) []cuda.Way {
	return slices.Concat(m.Engine.Configs(m.w.Tiles, rows), m.Others(m.w.Tiles, rows))
}

func (m *gpuMatrix) Slices(c cuda.Way, rows int) int { return m.Order(m.w.Tiles, c, rows) }

func (m *gpuMatrix) MatMul(c cuda.Way, p *conform.Product, blocks int, y []uint16) error {
	if err := m.load(p); err != nil {
		return err
	}
	m.LimitBlocks(blocks)
	if !m.w.Tiles.(*Tiles).hasIntegers(m.Engine.GPU()) {
		return m.multiply(m.w, c, y)
	}
	same := slices.Clone(y)
	table, err1 := With(m.Engine.GPU(), m.w, Replicated)
	integers, err2 := With(m.Engine.GPU(), m.w, Integers)
	err := errors.Join(err1, err2, m.multiply(integers, c, y), m.multiply(table, c, same))
	if err == nil && !slices.Equal(y, same) {
		err = fmt.Errorf("%v: with the table other bits than by arithmetic", c)
	}
	return err
}

func (m *gpuMatrix) multiply(w *cuda.Matrix, c cuda.Way, y []uint16) error {
	return errors.Join(m.Dev.Write(m.o.Y, driver.Bytes(y)), m.MatMulWay(m.Stream, w, m.o, c),
		m.Stream.Sync(), m.Dev.Read(driver.Bytes(y), m.o.Y))
}

// load uploads the operands of a product, unless they are there.
func (m *gpuMatrix) load(p *conform.Product) (err error) {
	if m.of == p {
		return nil
	}
	if err := m.free(); err != nil {
		return err
	}
	n, _ := m.w.Shape()
	m.of, m.o.M = p, p.Rows
	if m.o.X, err = m.Dev.Upload(driver.Bytes(p.X)); err != nil {
		return err
	}
	if m.o.Y, err = m.Dev.Alloc(2 * (p.Rows*n + conform.Guard)); err != nil || p.Bias == nil {
		return err
	}
	m.o.Bias, err = m.Dev.Upload(driver.Bytes(p.Bias))
	return err
}

func (m *gpuMatrix) free() error {
	var errs []error
	for _, p := range []driver.Ptr{m.o.X, m.o.Y, m.o.Bias} {
		if p != 0 {
			errs = append(errs, m.Dev.Free(p))
		}
	}
	m.of, m.o = nil, cuda.Operands{}
	return errors.Join(errs...)
}

func (m *gpuMatrix) close(t testing.TB) {
	if err := errors.Join(m.free(), m.w.Close()); err != nil {
		t.Error(err)
	}
}

// run multiplies on a grid of any size and returns Y.
func (m *gpuMatrix) run(t testing.TB, c cuda.Way, p *conform.Product) []uint16 {
	t.Helper()
	n, _ := m.w.Shape()
	y := conform.Poisoned(p.Rows * n)
	err := m.MatMul(c, p, math.MaxInt, y)
	cudatest.SkipMissing(t, err)
	if err = errors.Join(err, conform.CheckWritten(y, m.w.Type())); err != nil {
		t.Fatal(err)
	}
	return y
}

// TestGPU holds the engine to the suite, in some formats or many; the self-test does it in all.
func TestGPU(t *testing.T) {
	for i, f := range testFormats() {
		if *cudatest.Long || i%3 == 0 {
			t.Run(f.name(), func(t *testing.T) { checkOnGPU(t, i, f) })
		}
	}
}

// checkOnGPU holds the engine to case i of the suite.
func checkOnGPU(t *testing.T, i int, f Format) {
	cudatest.OnGPU(t, func(g *cudatest.GPU) {
		c := conform.Draw(1, i, conform.Format(f))
		c.Fill()
		m := &gpuMatrix{GPU: g, w: upload(t, g, c.Matrix, f.Type)}
		res, err := conform.Check(t.Context(), c, m)
		cudatest.SkipMissing(t, err)
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

// heldWeights returns Ŵ as the kernels have it, whose table is rounded.
func heldWeights(m *lut.Matrix, t driver.DType) []float32 {
	held := *m
	held.Codebook = conform.RoundedTable(m.Codebook, t)
	return held.Dequantize()
}

// testFormats covers every width, group, scale type and type of X, if not every
// combination.
func testFormats() []Format {
	var all []Format
	for _, f := range cudatest.Formats() {
		all = append(all, Format(f))
	}
	return all
}

// TestGPUPrebuilt multiplies with the kernels that need no compiler. They give the
// bits that the compiled ones give.
func TestGPUPrebuilt(t *testing.T) {
	const n, k = 200, 544
	rows := []int{1, 2, 5, 8, 9, 16} // more may be in other slices without a compiler
	type result struct {
		of string
		y  []uint16
	}
	multiply := func(g *cudatest.GPU) (all []result) {
		for i, f := range Formats() {
			if !f.prebuilt() || !*cudatest.Long && i%3 != 0 {
				continue
			}
			m := &gpuMatrix{GPU: g, w: upload(t, g, testMatrix(uint64(i), n, k, f), f.Type)}
			for _, r := range rows {
				p := cudatest.Product(n, k, r, f.Type, true)
				name := fmt.Sprintf("%s, %d rows", f.name(), r)
				configs := g.Engine.Configs(m.w.Tiles, r)
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
	cudatest.OnGPU(t, func(g *cudatest.GPU) {
		if err := g.Engine.GPU().NoCompiler; err != nil {
			t.Skip(err)
		}
		want = multiply(g)
	})
	cudatest.OnGPUWith(t, driver.Options{CacheDir: t.TempDir(), NoCompiler: true}, func(g *cudatest.GPU) {
		got = multiply(g)
		tiles, parts, err := Of(cudatest.Must(repack.CUDA(testMatrix(1, n, k, Format{4, 32, weight.E4M4, driver.F16})))(t), driver.F16)
		if err != nil {
			t.Fatal(err)
		}
		var missing *driver.MissingError
		if _, err := g.Engine.Upload(tiles, parts); !errors.As(err, &missing) {
			t.Errorf("a format that is not prebuilt: got error %v, want the missing compiler's", err)
		}
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

// TestGPUTune tunes and looks for the choice in a new engine.
func TestGPUTune(t *testing.T) {
	cudatest.OnGPU(t, func(g *cudatest.GPU) {
		f := Format{4, 128, weight.F16, driver.F16}
		m := &gpuMatrix{GPU: g, w: upload(t, g, testMatrix(1, 512, 1024, f), f.Type)}
		p := cudatest.Product(512, 1024, 1, f.Type, false)
		before := m.run(t, lutgemm{}.variants(f, 1)[0], p)
		timings := cudatest.Must(g.Tune(g.Stream, []*cuda.Matrix{m.w}, m.o))(t)
		if len(timings) != len(g.Engine.Configs(m.w.Tiles, 1)) || timings[0].Us <= 0 {
			t.Errorf("got timings %v", timings)
		}
		again := cudatest.Must(cuda.New(g.Dev, g.Cache))(t)
		if got, want := cudatest.Must(again.Chosen(m.w.Tiles, 1))(t), timings[0].Way; got != want {
			t.Errorf("a new engine chooses %v, want %v", got, want)
		}
		if y := m.run(t, cudatest.Must(g.Chosen(m.w.Tiles, 1))(t), p); !slices.Equal(y, before) {
			t.Error("tuning changed the result")
		}
		m.close(t)
	})
}

func TestBadOperands(t *testing.T) {
	l := Limits{132, 227 << 10}
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
		if _, _, err := shapeOf(f, test.n, test.k, test.m).Plan(lutgemm{}.variants(f, min(test.m, cuda.MaxRows))[0], l); (err == nil) != test.ok {
			t.Errorf("%s: got error %v", test.name, err)
		}
	}
	if _, _, err := shapeOf(f, 64, 256, 1).Plan(lutgemm{}.variants(f, 1)[0], Limits{100, 48 << 10}); err == nil {
		t.Error("a GPU of little shared memory: no error")
	}
	if _, err := FormatOf(&repack.CUDATiles{K: 8, Group: 8}, driver.F32); err == nil {
		t.Error("float32 activations: no error")
	}
}
