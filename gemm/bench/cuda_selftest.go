package bench

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync/atomic"

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
	Groups []int // 0 is one scale a row
	Scales []lut.ScaleType
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
// configurations of as many slices of K and the second time. An X of unit vectors must give the
// weights exactly. Kernels that the cache does not have are compiled on all processors
// meanwhile. Failures are reported in the result; the error is for a test
// that could not be run, [driver.ErrNoGPU] among them.
func SelftestCUDA(ctx context.Context, o CUDASelftestOptions) (*CUDASelftestResult, error) {
	formats, err := o.formats()
	if err != nil {
		return nil, err
	}
	c, err := driver.OpenGPU()
	if err != nil {
		return nil, err
	}
	t := &cudaSelftest{kernels: make(map[string]bool)}
	t.WorstErr = make(map[string]float64)
	err = onGPU(c, func(g *gpu) error {
		t.gpu, t.GPU = g, g.dev.Info.Name
		tests := make([]*formatTest, len(formats))
		for i, f := range formats {
			tests[i] = t.test(c, i, f, o.Seed)
		}
		return inOrder(ctx, tests, (*formatTest).preparation, func(f *formatTest) error {
			if err := t.run(ctx, f); err != nil {
				return fmt.Errorf("%+v: %w", f.format, err)
			}
			t.Formats++
			if o.Done != nil {
				o.Done(t.Formats, len(formats))
			}
			return nil
		})
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
			len(o.Scales) > 0 && !slices.Contains(o.Scales, f.Scale) ||
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
	kernels map[string]bool // by what the compiler is told
}

// selftestRows are the numbers of rows of X: for both ends of each kind of
// kernel, and for a launch after others.
func selftestRows() []int { return []int{1, 2, 5, 8, 9, 16, 33} }

// selftestShapes have odd numbers of rows, and columns that end anywhere in a
// unit of 256; so many in one that all warps of a block split them. Every group size
// goes into each.
func selftestShapes() []Shape {
	return []Shape{{95, 1056}, {17, 288}, {1, 992}, {473, 544}, {33, 2080}, {21, 8288}}
}

// selftestShape returns the shape of format i. Formats come in order of width, group size, scale
// type and type: each of these meets every shape.
func selftestShape(i int) Shape {
	shapes := selftestShapes()
	return shapes[(i+i/8)%len(shapes)]
}

// formatTest is the test of the kernels of one format on one shape.
type formatTest struct {
	format   cuda.Format
	tiles    *repack.CUDATiles
	products []productTest
	steps    []func() error // that make the above and compile the kernels, in any order
}

func (f *formatTest) preparation() []func() error { return f.steps }

// productTest is a product with the check of its result, which returns what is wrong.
type productTest struct {
	rows    int
	x, bias []uint16
	check   func(y []uint16) string
}

// test returns the test of format i, to be prepared.
func (t *cudaSelftest) test(c *driver.CUDA, i int, f cuda.Format, seed uint64) *formatTest {
	s := selftestShape(i)
	test := &formatTest{format: f}
	test.steps = append(test.steps, func() error {
		r := rand.New(rand.NewPCG(seed, uint64(i)))
		group := f.Group
		if group == 0 {
			group = s.K
		}
		m := randomMatrix(r, s, f.Bits, group, f.Scale)
		held := *m
		held.Codebook = roundedTable(m.Codebook, f.Type)
		weights := held.Dequantize()
		for j, rows := range selftestRows() {
			test.products = append(test.products,
				t.random(r, m, f.Type, rows, (i+j)%2 == 0), identity(r, weights, s, f.Type, rows))
		}
		var err error
		test.tiles, err = repack.CUDA(m)
		return err
	})
	for _, m := range selftestRows() {
		for _, config := range slices.Concat(t.engine.Configs(f, s.N, s.K, m), t.engine.OtherConfigs(f, s.N, s.K, m)) {
			k := f.Kernel(config)
			k.Options.Arch = t.dev.Info.Arch()
			key := fmt.Sprint(k.Name, k.Options.Defines)
			if t.kernels[key] {
				continue
			}
			t.kernels[key] = true
			test.steps = append(test.steps, func() error {
				_, _, _ = c.Cubin(k) // for the cache; what is wrong, loading it will say
				return nil
			})
		}
	}
	return test
}

// run checks the kernels of one format.
func (t *cudaSelftest) run(ctx context.Context, f *formatTest) (err error) {
	w, err := t.engine.Upload(f.tiles, f.format.Type)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.Close()) }()
	for i, p := range f.products {
		if err := ctx.Err(); err != nil {
			return err
		}
		// A block for each tile, or one for all of them, and so other ways through a kernel: for
		// each number of rows one with a random X and the other with unit vectors.
		blocks := math.MaxInt
		if (i+i/2+t.Formats)%2 == 1 {
			blocks = 1
		}
		t.engine.LimitBlocks(blocks)
		if err := t.configs(w, p); err != nil {
			return err
		}
	}
	*f = formatTest{} // for others' room
	return nil
}

// random returns the test of a product with a random X.
func (t *cudaSelftest) random(r *rand.Rand, m *lut.Matrix, dtype driver.DType, rows int, withBias bool) productTest {
	p := productTest{rows: rows, x: make([]uint16, rows*m.K)}
	for i := range p.x {
		p.x[i] = toHalf(dtype, float32(r.NormFloat64()))
	}
	f := newReference(r, m, fromHalves(dtype, p.x), rows, 1, dtype)
	if withBias {
		for range m.N {
			p.bias = append(p.bias, toHalf(dtype, float32(r.NormFloat64())))
		}
		for _, row := range f.want {
			for j, n := range f.columns {
				row[j] += float64(fromHalf(dtype, p.bias[n]))
			}
		}
	}
	// The fewer elements, the further from its mean can the error of rounding be.
	limit := ErrorBound(dtype.String())
	if rows*m.N < 256 {
		limit *= 2
	}
	p.check = func(y []uint16) string {
		rel, _ := f.errors(y, dtype)
		if !(rel <= limit) {
			return fmt.Sprintf("relative error %.3g", rel)
		}
		t.WorstErr[dtype.String()] = max(t.WorstErr[dtype.String()], rel)
		return ""
	}
	return p
}

// identity returns the test that an X of unit vectors gives the weights of their columns,
// rounded once.
func identity(r *rand.Rand, weights []float32, s Shape, dtype driver.DType, rows int) productTest {
	if rows > cuda.MaxRows {
		rows = min(s.K, 2080) // all columns, or many
	}
	p := productTest{rows: rows, x: make([]uint16, rows*s.K)}
	columns := r.Perm(s.K)[:rows]
	for i, k := range columns {
		p.x[i*s.K+k] = toHalf(dtype, 1)
	}
	p.check = func(y []uint16) string {
		for i, k := range columns {
			for n := range s.N {
				got, want := fromHalf(dtype, y[i*s.N+n]), fromHalf(dtype, toHalf(dtype, weights[n*s.K+k]))
				if got != want {
					return fmt.Sprintf("identity: weight %d,%d is %g, want %g", n, k, got, want)
				}
			}
		}
		return ""
	}
	return p
}

// configs multiplies under every configuration, and what takes several launches as
// MatMul chooses too, twice each, and has the first result checked, which all
// others must equal that add in the same order.
func (t *cudaSelftest) configs(w *cuda.Matrix, p productTest) (err error) {
	mem := memory{dev: t.dev}
	defer func() { err = errors.Join(err, mem.free()) }()
	n := p.rows * w.N
	o := cuda.Operands{M: p.rows, X: mem.upload(driver.Bytes(p.x)), Y: mem.alloc(2 * (n + guardElements))}
	if p.bias != nil {
		o.Bias = mem.upload(driver.Bytes(p.bias))
	}
	if mem.err != nil {
		return mem.err
	}
	chosen := t.engine.Configs(w.Format, w.N, w.K, p.rows)
	if len(chosen) == 0 {
		return fmt.Errorf("no configuration for %d rows", p.rows)
	}
	results := map[int][]uint16{} // by slices of K
	check := func(name string, slicesOfK int, multiply func() error) error {
		fail := func(what any) {
			t.Failures = append(t.Failures, fmt.Sprintf("%+v, %d×%d, %d rows, %s: %v", w.Format, w.N, w.K, p.rows, name, what))
		}
		for range 2 {
			t.Checks++
			if err := t.dev.Fill8(o.Y, poison, 2*(n+guardElements)); err != nil {
				return err
			}
			if err := multiply(); err != nil {
				return err
			}
			y, err := t.readResult(o.Y, n)
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
			first, ok := results[slicesOfK]
			if !ok {
				results[slicesOfK], first = y, y
				if what := p.check(y); what != "" {
					fail(what)
				}
			}
			if !slices.Equal(y, first) {
				fail("not the bits of the first time")
			}
		}
		return nil
	}
	own := w.Format.Slices(chosen[0], w.N, w.K, min(p.rows, cuda.MaxRows))
	for _, c := range slices.Concat(chosen, t.engine.OtherConfigs(w.Format, w.N, w.K, p.rows)) {
		slicesOfK := cmp.Or(c.Slices, own)
		if err := check(c.String(), slicesOfK, func() error { return t.engine.MatMulWith(t.stream, w, o, c) }); err != nil {
			return err
		}
	}
	if p.rows > cuda.MaxRows {
		return check("chosen", own, func() error { return t.engine.MatMul(t.stream, w, o) })
	}
	return nil
}

// inOrder takes the steps of each job on all processors, in any order and ahead of the job
// that is run, and runs jobs whose steps are done in their order, on this goroutine.
// A job has at least one step. It returns the first error and then leaves the rest.
func inOrder[T any](ctx context.Context, jobs []T, steps func(T) []func() error, run func(T) error) error {
	ctx, stop := context.WithCancel(ctx)
	group, ctx := errgroup.WithContext(ctx)
	defer func() {
		stop()
		_ = group.Wait() // its error, if it has one, has been returned
	}()
	processors := runtime.GOMAXPROCS(0)
	group.SetLimit(processors + 1)           // and what starts them
	ahead := make(chan struct{}, processors) // jobs begun and not yet run
	prepared := make([]chan struct{}, len(jobs))
	for i := range jobs {
		prepared[i] = make(chan struct{})
	}
	group.Go(func() error {
		for i, job := range jobs {
			select {
			case ahead <- struct{}{}:
			case <-ctx.Done():
				return nil
			}
			var done atomic.Int64
			all := steps(job)
			for _, step := range all {
				group.Go(func() error {
					if ctx.Err() != nil {
						return nil
					}
					if err := step(); err != nil {
						return err
					}
					if done.Add(1) == int64(len(all)) {
						close(prepared[i])
					}
					return nil
				})
			}
		}
		return nil
	})
	for i, job := range jobs {
		select {
		case <-prepared[i]:
		case <-ctx.Done():
		}
		if ctx.Err() != nil { // also where both have come
			return context.Cause(ctx)
		}
		if err := run(job); err != nil {
			return err
		}
		<-ahead
	}
	return nil
}
