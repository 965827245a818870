package gemm

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"

	"golang.org/x/sync/errgroup"

	"github.com/lutq/lutq/gemm/cuda"
	"github.com/lutq/lutq/gemm/cuda/driver"
	"github.com/lutq/lutq/quantize/lut"
	"github.com/lutq/lutq/repack"
)

// CUDASelftestOptions narrow [SelftestCUDA] down. What is empty means all.
type CUDASelftestOptions struct {
	Seed   uint64
	Bits   []int
	Groups []int    // 0 is one scale a row
	DTypes []string // f16, bf16

	// Done is called after each format, if not nil, with the number of formats
	// done and in all.
	Done func(done, total int)
}

// CUDASelftestResult is the outcome of [SelftestCUDA].
type CUDASelftestResult struct {
	GPU      string
	Formats  int // of width, group, scale type and type of activations
	Kernels  int // compiled: formats and configurations
	Checks   int
	WorstErr map[string]float64 // relative, by type of activations
	Failures []string           // a line each
}

// SelftestCUDA runs every kernel on the first GPU: random matrices of every
// format and awkward shapes, with and without a bias, under every configuration
// for numbers of rows of every kind. Results start out poisoned, are compared
// with the float64 reference, and must have the same bits under all
// configurations and the second time. An X of unit vectors must give the
// weights exactly. Failures are reported in the result; the error is for a test
// that could not be run, [ErrNoGPU] among them.
func SelftestCUDA(ctx context.Context, o CUDASelftestOptions) (*CUDASelftestResult, error) {
	formats, err := o.formats()
	if err != nil {
		return nil, err
	}
	c, err := openCUDA()
	if err != nil {
		return nil, err
	}
	t := &cudaSelftest{rand: rand.New(rand.NewPCG(o.Seed, 2)), kernels: make(map[string]bool)}
	t.WorstErr = make(map[string]float64)
	err = onGPU(c, func(g *gpu) error {
		t.gpu, t.GPU = g, g.dev.Info.Name
		for i, f := range formats {
			if err := t.compile(ctx, c, formats[i:]); err != nil {
				return err
			}
			if err := t.format(ctx, i, f); err != nil {
				return fmt.Errorf("%+v: %w", f, err)
			}
			t.Formats++
			if o.Done != nil {
				o.Done(t.Formats, len(formats))
			}
		}
		return nil
	})
	t.Kernels = len(t.kernels)
	return &t.CUDASelftestResult, err
}

// formats returns those that the options ask for.
func (o *CUDASelftestOptions) formats() ([]cuda.Format, error) {
	for _, name := range o.DTypes {
		if _, err := halfType(name); err != nil {
			return nil, err
		}
	}
	formats := slices.DeleteFunc(cuda.Formats(), func(f cuda.Format) bool {
		return len(o.Bits) > 0 && !slices.Contains(o.Bits, f.Bits) ||
			len(o.Groups) > 0 && !slices.Contains(o.Groups, f.Group) ||
			len(o.DTypes) > 0 && !slices.Contains(o.DTypes, f.Type.String())
	})
	if len(formats) == 0 {
		return nil, errors.New("no kernel has such a format")
	}
	return formats, nil
}

// cudaSelftest is a run of [SelftestCUDA].
type cudaSelftest struct {
	CUDASelftestResult
	*gpu
	rand     *rand.Rand
	compiled int             // formats that have been
	kernels  map[string]bool // by what the compiler is told
}

// selftestRows are the numbers of rows of X: for both ends of each kind of
// kernel, and for a launch after others.
func selftestRows() []int { return []int{1, 2, 5, 8, 9, 16, 33} }

// selftestShapes have odd numbers of rows, and columns that end anywhere in a
// unit of 256. Every group size goes into each.
func selftestShapes() []Shape {
	return []Shape{{95, 1056}, {17, 288}, {1, 992}, {201, 544}, {33, 2080}}
}

// compile compiles the kernels of the next formats on all processors at once.
// They come from the cache when they are loaded.
func (t *cudaSelftest) compile(ctx context.Context, c *driver.CUDA, next []cuda.Format) error {
	if t.compiled > t.Formats {
		return nil
	}
	next = next[:min(len(next), runtime.GOMAXPROCS(0))]
	t.compiled += len(next)
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(runtime.GOMAXPROCS(0))
	for i, f := range next {
		s := t.shape(t.Formats + i)
		for _, m := range selftestRows() {
			for _, config := range t.engine.Configs(f, s.N, s.K, m) {
				k := f.Kernel(config, min(m, cuda.MaxRows))
				k.Options.Arch = t.dev.Info.Arch()
				key := fmt.Sprint(k.Name, k.Options.Defines)
				if t.kernels[key] {
					continue
				}
				t.kernels[key] = true
				group.Go(func() error {
					if err := ctx.Err(); err != nil {
						return err
					}
					_, _, err := c.Cubin(k)
					return err
				})
			}
		}
	}
	return group.Wait()
}

// shape returns the shape of format i. Formats come in order of width, group
// size (five), scale type (five) and type (two): each of these meets every
// shape.
func (t *cudaSelftest) shape(i int) Shape {
	shapes := selftestShapes()
	return shapes[(i+i/10+i/50)%len(shapes)]
}

// format checks the kernels of one format on one shape.
func (t *cudaSelftest) format(ctx context.Context, i int, f cuda.Format) (err error) {
	s := t.shape(i)
	group := f.Group
	if group == 0 {
		group = s.K
	}
	m := randomMatrix(t.rand, s, f.Bits, group, f.Scale)
	tiles, err := repack.CUDA(m)
	if err != nil {
		return err
	}
	w, err := t.engine.Upload(tiles, f.Type)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.Close()) }()
	for j, rows := range selftestRows() {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := t.random(m, w, rows, (i+j)%2 == 0); err != nil {
			return err
		}
		if err := t.identity(m, w, rows); err != nil {
			return err
		}
	}
	return nil
}

// random checks products with a random X.
func (t *cudaSelftest) random(m *lut.Matrix, w *cuda.Matrix, rows int, withBias bool) error {
	dtype := w.Format.Type
	x := make([]uint16, rows*m.K)
	for i := range x {
		x[i] = toHalf(dtype, float32(t.rand.NormFloat64()))
	}
	var bias []uint16
	r := newReference(t.rand, m, fromHalves(dtype, x), rows, 1, dtype)
	if withBias {
		for range m.N {
			bias = append(bias, toHalf(dtype, float32(t.rand.NormFloat64())))
		}
		for _, row := range r.want {
			for j, n := range r.columns {
				row[j] += float64(fromHalf(dtype, bias[n]))
			}
		}
	}
	// The fewer elements, the further from its mean can the error of rounding be.
	limit := ErrorBound(dtype.String())
	if rows*m.N < 256 {
		limit *= 2
	}
	return t.configs(w, x, bias, rows, func(y []uint16) string {
		rel, _ := r.errors(y, dtype)
		if !(rel <= limit) {
			return fmt.Sprintf("relative error %.3g", rel)
		}
		t.WorstErr[dtype.String()] = max(t.WorstErr[dtype.String()], rel)
		return ""
	})
}

// identity checks that an X of unit vectors gives the weights of their columns,
// rounded once.
func (t *cudaSelftest) identity(m *lut.Matrix, w *cuda.Matrix, rows int) error {
	dtype := w.Format.Type
	if rows > cuda.MaxRows {
		rows = m.K // all columns
	}
	x := make([]uint16, rows*m.K)
	columns := t.rand.Perm(m.K)[:rows]
	for i, k := range columns {
		x[i*m.K+k] = toHalf(dtype, 1)
	}
	held := *m
	held.Codebook = roundedTable(m.Codebook, dtype)
	weights := held.Dequantize()
	return t.configs(w, x, nil, rows, func(y []uint16) string {
		for i, k := range columns {
			for n := range m.N {
				got, want := fromHalf(dtype, y[i*m.N+n]), fromHalf(dtype, toHalf(dtype, weights[n*m.K+k]))
				if got != want {
					return fmt.Sprintf("identity: weight %d,%d is %g, want %g", n, k, got, want)
				}
			}
		}
		return ""
	})
}

// configs multiplies under every configuration, twice each, and has the first
// result checked, which all others must equal.
func (t *cudaSelftest) configs(w *cuda.Matrix, x, bias []uint16, rows int, check func(y []uint16) string) (err error) {
	mem := memory{dev: t.dev}
	defer func() { err = errors.Join(err, mem.free()) }()
	o := cuda.Operands{M: rows, X: mem.upload(driver.Bytes(x)), Y: mem.alloc(2 * (rows*w.N + guardElements))}
	if bias != nil {
		o.Bias = mem.upload(driver.Bytes(bias))
	}
	if mem.err != nil {
		return mem.err
	}
	configs := t.engine.Configs(w.Format, w.N, w.K, rows)
	if len(configs) == 0 {
		return fmt.Errorf("no configuration for %d rows", rows)
	}
	var first []uint16
	for _, c := range configs {
		fail := func(what any) {
			t.Failures = append(t.Failures, fmt.Sprintf("%+v, %d×%d, %d rows, %v: %v", w.Format, w.N, w.K, rows, c, what))
		}
		for range 2 {
			t.Checks++
			if err := t.dev.Fill8(o.Y, poison, 2*(rows*w.N+guardElements)); err != nil {
				return err
			}
			if err := t.engine.MatMulWith(t.stream, w, o, c); err != nil {
				return err
			}
			y, err := t.readResult(o.Y, rows*w.N)
			if err == nil {
				err = checkWritten(y, w.Format.Type)
			}
			switch {
			case errors.Is(err, ErrMismatch):
				fail(err)
				continue
			case err != nil:
				return err
			}
			if first == nil {
				first = y
				if what := check(y); what != "" {
					fail(what)
				}
			}
			if !slices.Equal(y, first) {
				fail("not the bits of the first time")
			}
		}
	}
	return nil
}
