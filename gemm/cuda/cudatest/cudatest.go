// Package cudatest has what tests of families of kernels have in common.
package cudatest

import (
	"bufio"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/lutq/lutq/formats/input"
	"github.com/lutq/lutq/formats/weight"
	"github.com/lutq/lutq/formats/weight/lut"
	"github.com/lutq/lutq/gemm/conform"
	"github.com/lutq/lutq/gemm/cuda"
	"github.com/lutq/lutq/gemm/cuda/driver"
	"github.com/lutq/lutq/gemm/cuda/kerneltest"
)

// Flags of the tests.
var (
	Long   = flag.Bool("long", false, "compile all kernels, and multiply in more formats")
	Cover  = flag.Bool("covering", false, "compile kernels that cover what all are compiled for")
	Update = flag.Bool("update", false, "write what is compared")
)

// Stamps returns the stamps of a test that runs kernels on the host.
func Stamps(t *testing.T) *kerneltest.Stamps {
	t.Helper()
	return kerneltest.NewStamps(t, kerneltest.StampOptions{Update: *Update, All: *Long})
}

// GPU is the first GPU, with an engine on it.
type GPU struct {
	*cuda.Engine
	Dev    *driver.Device
	Cache  *driver.Cache
	Stream *driver.Stream
}

// First opens the first GPU until the test ends, and skips the test where there is none.
func First(t testing.TB, o driver.Options) (*driver.CUDA, *driver.Device) {
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
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	})
	return c, d
}

// OnGPU runs a test inside Do of the first GPU.
func OnGPU(t testing.TB, test func(g *GPU)) {
	t.Helper()
	OnGPUWith(t, driver.Options{CacheDir: t.TempDir()}, test)
}

// OnGPUWith is OnGPU with options.
func OnGPUWith(t testing.TB, o driver.Options, test func(g *GPU)) {
	t.Helper()
	c, d := First(t, o)
	err := d.Do(func() error {
		e, err := cuda.New(d, c.Cache())
		if err != nil {
			t.Skip(err)
		}
		s, err := d.NewStream()
		if err != nil {
			return err
		}
		test(&GPU{e, d, c.Cache(), s})
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

// Must returns a function that returns v, or ends the test if there was an error.
func Must[T any](v T, err error) func(testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

// SkipMissing skips the test where there is no compiler.
func SkipMissing(t testing.TB, err error) {
	var missing *driver.MissingError
	if errors.As(err, &missing) {
		t.Skip(err)
	}
}

// Upload packs a matrix of a family and uploads it.
func (g *GPU) Upload(t testing.TB, tiles cuda.Tiles, parts [][]byte) *cuda.Matrix {
	t.Helper()
	w, err := g.Engine.Upload(tiles, parts)
	SkipMissing(t, err)
	if err != nil {
		t.Fatal(err)
	}
	return w
}

// Product returns a product by an N×K matrix, with a bias or without.
func Product(n, k, rows int, t driver.DType, bias bool) *conform.Product {
	r := rand.New(rand.NewPCG(1, 3))
	p := &conform.Product{Rows: rows, X: conform.RandomHalves(r, rows*k, t)}
	if bias {
		p.Bias = conform.RandomHalves(r, n, t)
	}
	return p
}

// Operands uploads those of a product, with Y as it is. Free frees them.
func (g *GPU) Operands(t testing.TB, p *conform.Product, y []uint16) cuda.Operands {
	t.Helper()
	o := cuda.Operands{M: p.Rows, X: Must(g.Dev.Upload(driver.Bytes(p.X)))(t), Y: Must(g.Dev.Upload(driver.Bytes(y)))(t)}
	if p.Bias != nil {
		o.Bias = Must(g.Dev.Upload(driver.Bytes(p.Bias)))(t)
	}
	return o
}

// Free frees operands.
func (g *GPU) Free(t testing.TB, o cuda.Operands) {
	t.Helper()
	for _, at := range []driver.Ptr{o.X, o.Y, o.Bias, o.Scratch} {
		if at != 0 {
			Must(0, g.Dev.Free(at))(t)
		}
	}
}

// Check multiplies rows of X by a matrix as f does, holds the result to a reference, and returns its bits.
func (g *GPU) Check(t testing.TB, what string, w *cuda.Matrix, p *conform.Product, want *conform.Reference, bound float64, f func(o cuda.Operands) error) []uint16 {
	t.Helper()
	n, k := w.Shape()
	y := conform.Poisoned(p.Rows * n)
	o := g.Operands(t, p, y)
	if size := g.NeedsOf(w.Tiles, cuda.InTurns, p.Rows).Scratch(p.Rows, k); size > 0 {
		o.Scratch = Must(g.Dev.Alloc(size))(t)
	}
	if err := errors.Join(f(o), g.Stream.Sync(), g.Dev.Read(driver.Bytes(y), o.Y)); err != nil {
		SkipMissing(t, err)
		t.Fatalf("%s: %v", what, err)
	}
	g.Free(t, o)
	if err := conform.CheckWritten(y, w.Type()); err != nil {
		t.Errorf("%s: %v", what, err)
	}
	if rel, _ := want.Errors(y); !(rel <= bound) {
		t.Errorf("%s: relative error %.3g", what, rel)
	}
	return y
}

// CheckWays multiplies by a matrix in some ways, on grids of up to some numbers of blocks, which give the same bits.
func (g *GPU) CheckWays(t testing.TB, what string, w *cuda.Matrix, p *conform.Product, want *conform.Reference, bound float64, ways []cuda.Way, blocks []int) {
	t.Helper()
	n, k := w.Shape()
	o := g.Operands(t, p, conform.Poisoned(p.Rows*n))
	scratch := 16
	for _, by := range ways {
		scratch = max(scratch, g.NeedsOf(w.Tiles, by, p.Rows).Scratch(p.Rows, k))
	}
	o.Scratch = Must(g.Dev.Alloc(scratch))(t)
	for _, by := range ways {
		what := fmt.Sprintf("%s, %v, %d rows by %d×%d", what, by, p.Rows, n, k)
		var first []uint16
		for _, most := range blocks {
			g.LimitBlocks(most)
			y := conform.Poisoned(p.Rows * n)
			err := errors.Join(g.Dev.Write(o.Y, driver.Bytes(y)), g.MatMulWay(g.Stream, w, o, by), g.Stream.Sync(), g.Dev.Read(driver.Bytes(y), o.Y))
			SkipMissing(t, err)
			if err = errors.Join(err, conform.CheckWritten(y, w.Type())); err != nil {
				t.Fatalf("%s: %v", what, err)
			}
			if first != nil && !slices.Equal(y, first) {
				t.Errorf("%s: other bits on up to %d blocks", what, most)
			}
			first = y
		}
		if rel, _ := want.Errors(first); !(rel <= bound) {
			t.Errorf("%s: relative error %.3g", what, rel)
		}
	}
	g.LimitBlocks(g.Dev.Info.SMs)
	g.Free(t, o)
}

// ModelShapes returns the shapes of layers of known models, or some where the list is not at hand.
func ModelShapes(t testing.TB) (shapes [][2]int) {
	f, err := input.Open("../../../../shared/configs/shapes.tsv")
	if err != nil {
		return [][2]int{{4096, 4096}, {1024, 4096}, {14336, 4096}, {4096, 14336}, {192, 576}, {128256, 4096}, {28672, 8192}}
	}
	defer f.Close()
	for s := bufio.NewScanner(f); s.Scan(); {
		for _, field := range strings.Fields(s.Text()) {
			var n, k int
			if _, err := fmt.Sscanf(field, "%dx%d", &n, &k); err == nil && n < 1<<17 && !slices.Contains(shapes, [2]int{n, k}) {
				shapes = append(shapes, [2]int{n, k})
			}
		}
	}
	if len(shapes) < 50 {
		t.Fatalf("only %d shapes", len(shapes))
	}
	return shapes
}

// Formats covers every width, group, scale type and type of X, if not every
// combination.
func Formats() []cuda.Format {
	groups := []int{32, 64, 128, 256, 0}
	scales := []weight.ScaleType{weight.F16, weight.BF16, weight.F32, weight.E4M4, weight.S1E4M3}
	var all []cuda.Format
	for bits := lut.MinBits; bits <= lut.MaxBits; bits++ {
		for i, group := range groups {
			dtype := driver.F16
			if (bits+i)%2 == 1 {
				dtype = driver.BF16
			}
			f := cuda.Format{Bits: bits, Group: group, Scale: scales[(bits+i)%len(scales)], Type: dtype}
			if group != 32 && f.Scale.Size() == 1 {
				f.Scale = scales[(bits+i)%3]
			}
			all = append(all, f)
		}
	}
	return all
}

// Launch launches a kernel that was compiled for the host.
func Launch(t testing.TB, host *kerneltest.Host, mem *kerneltest.Memory, l cuda.Launch, reverse bool) {
	t.Helper()
	args := make([]any, len(l.Args))
	for i, a := range l.Args {
		args[i] = kerneltest.Struct(a)
	}
	host.Launch(t, mem, l.Function, l.Launch, reverse, args...)
}

// Fields is a product for many rows that is divided into fields, on the host.
type Fields struct {
	Variant   fmt.Stringer
	Type      driver.DType
	Form      cuda.Form
	Sums      int // bytes of all workers' sums
	Tiles     int // of a field
	N, K      int
	Product   *conform.Product
	Workers   int
	Reference *conform.Reference
	Bound     float64
	// Multiply prepares X, which lies row by row, to o.X, and multiplies it.
	Multiply func(mem *kerneltest.Memory, x driver.Ptr, o cuda.Operands, sms int, reverse bool)
}

// Run multiplies in both orders of a block's threads, on as many blocks as there are workers and on half as many, checks the
// results, and returns their bits.
func (f Fields) Run(t testing.TB) (first []byte) {
	t.Helper()
	p, m := f.Product, f.Product.Rows
	what := fmt.Sprintf("%v, %d rows by %d×%d, %d workers", f.Variant, m, f.N, f.K, f.Workers)
	for _, reverse := range []bool{false, true} {
		var mem kerneltest.Memory
		y := conform.Poisoned(m * f.N)[:m*f.N]
		o := cuda.Operands{M: m, X: mem.Upload(slices.Repeat([]byte{0xff}, f.Form.Bytes(m, f.K))), Scratch: mem.Upload(slices.Repeat([]byte{0xff}, f.Sums))}
		o.Flags = mem.Upload(make([]byte, 4*f.Workers*f.Tiles))
		alignment, sms := 16, f.Workers
		if reverse {
			alignment, sms = 2, (f.Workers+1)/2
		}
		o.Y = mem.UploadAligned(driver.Bytes(y), alignment)
		if p.Bias != nil {
			o.Bias = mem.UploadAligned(driver.Bytes(p.Bias), alignment)
		}
		f.Multiply(&mem, mem.Upload(driver.Bytes(p.X)), o, sms, reverse)
		got := mem.Read(o.Y)
		if first == nil {
			first = got
		} else if !slices.Equal(got, first) {
			t.Errorf("%s: other bits in another order and on fewer blocks", what)
		}
		copy(driver.Bytes(y), got)
		if slices.Max(mem.Read(o.Flags)) != 0 {
			t.Errorf("%s: flags are not left 0", what)
		}
		if err := conform.CheckWritten(append(y, conform.Poisoned(0)...), f.Type); err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		if rel, _ := f.Reference.Errors(y); !(rel <= f.Bound) {
			t.Errorf("%s: relative error %.3g", what, rel)
		}
	}
	return first
}
