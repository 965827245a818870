package bench

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync/atomic"

	"golang.org/x/sync/errgroup"

	"github.com/lutq/lutq/formats/weight"
	"github.com/lutq/lutq/formats/weight/lut"
	"github.com/lutq/lutq/gemm/conform"
	"github.com/lutq/lutq/gemm/cuda"
	"github.com/lutq/lutq/gemm/cuda/driver"
	"github.com/lutq/lutq/gemm/cuda/families"
)

// CUDASelftestOptions narrow [SelftestCUDA] down. What is empty means all.
type CUDASelftestOptions struct {
	Seed   uint64
	Bits   []int
	Groups []int // 0 is one scale a row
	Scales []weight.ScaleType
	DTypes []string // f16, bf16

	Coverage Coverage

	// Share and Shares have only the formats run whose numbers are Share, from 0 on, modulo Shares, unless that is 0, for several
	// self-tests to share the work.
	Share, Shares int

	// Done is called after each format, if not nil, with the number of formats
	// done and in all.
	Done func(done, total int)
}

// CUDASelftestResult is the outcome of [SelftestCUDA].
type CUDASelftestResult struct {
	GPU      string
	Formats  int // of width, group, scale type and type of activations
	Kernels  int // compiled: formats and configurations
	Of       int // that there are of the formats asked for
	Checks   int
	WorstErr map[string]float64 // relative, by type of activations
	Failures []string           // a line each
}

// SelftestCUDA runs every kernel on the first GPU: matrices of every format and awkward
// shapes under every configuration for numbers of rows of every kind, as package conform draws
// and checks them. Kernels that the cache does not have are compiled on all processors
// meanwhile. Then each is multiplied by up to 600 rows of X in one of the ways for many. Failures are reported in the result; the error is for a test
// that could not be run, [driver.ErrNoGPU] among them.
func SelftestCUDA(ctx context.Context, o CUDASelftestOptions) (*CUDASelftestResult, error) {
	if err := o.check(); err != nil {
		return nil, err
	}
	c, err := driver.OpenGPU()
	if err != nil {
		return nil, err
	}
	var t *cudaSelftest
	err = onGPU(c, func(g *gpu) error {
		t = newSelftest(g, &o)
		tests := t.tests(c, &o)
		return inOrder(ctx, tests, (*formatTest).preparation, func(f *formatTest) error {
			if err := f.run(ctx); err != nil {
				return err
			}
			*f = formatTest{} // for others' room
			t.Formats++
			if o.Done != nil {
				o.Done(t.Formats, len(tests))
			}
			return nil
		})
	})
	if t == nil {
		return nil, err
	}
	t.Kernels, t.Of = len(t.kernels), len(t.of)
	return &t.CUDASelftestResult, err
}

func newSelftest(g *gpu, o *CUDASelftestOptions) *cudaSelftest {
	t := &cudaSelftest{gpu: g, coverage: o.Coverage, kernels: make(map[string]bool), of: make(map[string]bool), sources: make(map[string]bool)}
	t.GPU, t.WorstErr = g.dev.Info.Name, make(map[string]float64)
	return t
}

// tests returns the tests that are to be run, to be prepared, of all families.
func (t *cudaSelftest) tests(c *driver.CUDA, o *CUDASelftestOptions) []*formatTest {
	var all []*formatTest
	for _, f := range families.All() {
		all = append(all, t.familyTests(f, o)...)
	}
	t.cover(all)
	for i, f := range all {
		if o.Shares == 0 || i%o.Shares == o.Share {
			t.prepare(c, f)
		}
	}
	return slices.DeleteFunc(all, func(f *formatTest) bool { return len(f.steps) == 0 })
}

// check refuses what no family has a format for.
func (o *CUDASelftestOptions) check() error {
	for _, name := range o.DTypes {
		if _, err := driver.ParseHalf(name); err != nil {
			return err
		}
	}
	if len(o.asked(families.Of(lut.Name))) == 0 {
		return errors.New("no kernel has such a format")
	}
	return nil
}

// asked returns those of a family's formats that the options ask for.
func (o *CUDASelftestOptions) asked(of cuda.Family) []cuda.Format {
	return slices.DeleteFunc(of.Formats(), func(f cuda.Format) bool {
		return len(o.Bits) > 0 && !slices.Contains(o.Bits, f.Bits) ||
			len(o.Groups) > 0 && !slices.Contains(o.Groups, cuda.Columns(of, f)) ||
			len(o.Scales) > 0 && !slices.Contains(o.Scales, f.Scale) ||
			len(o.DTypes) > 0 && !slices.Contains(o.DTypes, f.Type.String())
	})
}

// cudaSelftest is a run of [SelftestCUDA].
type cudaSelftest struct {
	CUDASelftestResult
	*gpu
	coverage Coverage
	kernels  map[string]bool // that are run, by what the compiler is told
	of       map[string]bool // all, likewise
	sources  map[string]bool // and purposes that are run, where each is run once
}

// formatTest is the test of the kernels of one format on one matrix.
type formatTest struct {
	parts []*part
	fill  func() error                    // makes the matrix
	run   func(ctx context.Context) error // the parts that are to be
	steps []func() error                  // that fill the case and compile the kernels, in any order
}

// part is something that a test has kernels for.
type part struct {
	variant variant // what is run where its pairs of traits are to be; nil: it is in any case
	purpose string  // for which each source is run, where each is run once
	kernels []driver.Kernel
	run     bool // whether it is to be
}

// variant is a format with what else kernels of it are compiled for: a value that can be compared.
type variant interface{ traits() []string }

// add adds a part.
func (f *formatTest) add(v variant, purpose string, kernels ...driver.Kernel) *part {
	p := &part{variant: v, purpose: purpose, kernels: kernels}
	f.parts = append(f.parts, p)
	return p
}

func (f *formatTest) preparation() []func() error { return f.steps }

// prepare adds the steps of a test, unless it has nothing to run.
func (t *cudaSelftest) prepare(c *driver.CUDA, test *formatTest) {
	for _, p := range test.parts {
		for _, k := range p.kernels {
			key := t.key(k)
			t.of[key] = true
			if !p.run {
				continue
			}
			if len(test.steps) == 0 {
				test.steps = append(test.steps, test.fill)
			}
			if t.kernels[key] {
				continue // another compiles it
			}
			t.kernels[key] = true
			k.Options.Arch = t.dev.Info.Arch()
			test.steps = append(test.steps, func() error {
				_, _, _ = c.Cubin(k) // for the cache; what is wrong, loading it will say
				return nil
			})
		}
	}
}

// key returns what the compiler is told.
func (t *cudaSelftest) key(k driver.Kernel) string { return fmt.Sprint(k.Name, k.Options.Defines) }

// repeated is a product that is multiplied twice, on grids of up to so many blocks.
type repeated struct {
	what       string
	rows, n, k int
	dtype      driver.DType
	scratch    int // bytes
	blocks     func() [2]int
	reference  func(x, bias []uint16) *conform.Reference
	bound      float64
	multiply   func(o cuda.Operands) error
}

// repeat checks that both times give the same bits, near the reference, and returns the largest error.
func (t *cudaSelftest) repeat(r *rand.Rand, p repeated) (worst float64, err error) {
	mem := memory{dev: t.dev}
	defer func() { err = errors.Join(err, mem.free()) }()
	x, bias := conform.RandomHalves(r, p.rows*p.k, p.dtype), conform.RandomHalves(r, p.n, p.dtype)
	size := 2 * (p.rows*p.n + conform.Guard)
	o := cuda.Operands{M: p.rows, X: mem.upload(driver.Bytes(x)), Bias: mem.upload(driver.Bytes(bias)), Y: mem.alloc(size)}
	if p.scratch > 0 {
		o.Scratch = mem.alloc(p.scratch)
	}
	if mem.err != nil {
		return 0, mem.err
	}
	want := p.reference(x, bias)
	var first []uint16
	defer t.engine.LimitBlocks(math.MaxInt)
	for _, blocks := range p.blocks() {
		t.engine.LimitBlocks(blocks)
		err := errors.Join(t.dev.Fill8(o.Y, conform.Poison, size), p.multiply(o))
		var y []uint16
		if err == nil {
			y, err = t.readResult(o.Y, p.rows*p.n, p.dtype)
		}
		if err != nil && !errors.Is(err, ErrMismatch) {
			return 0, fmt.Errorf("%s: %w", p.what, err)
		}
		t.Checks++
		rel := 0.0
		if err == nil {
			if rel, _ = want.Errors(y); !(rel <= p.bound) {
				err = fmt.Errorf("relative error %.3g", rel)
			}
		}
		switch {
		case err != nil:
			t.Failures = append(t.Failures, fmt.Sprintf("%s, up to %d blocks: %v", p.what, blocks, err))
			continue
		case first != nil && !slices.Equal(y, first):
			t.Failures = append(t.Failures, fmt.Sprintf("%s, up to %d blocks: not the bits of the first time", p.what, blocks))
		}
		first, worst = y, max(worst, rel)
	}
	return worst, nil
}

// manyMore is what results for many rows of X may be off by in terms of a kernel's for few: they round weights, too.
const manyMore = 1.5

// checkRows checks the rows of a matrix, all as numbers of its type and the last as float32.
func (t *cudaSelftest) checkRows(w *cuda.Matrix, weights []float32, what any) (err error) {
	mem := memory{dev: t.dev}
	defer func() { err = errors.Join(err, mem.free()) }()
	n, k := w.Shape()
	halves, last := make([]uint16, n*k), make([]float32, k)
	all, row := mem.alloc(2*n*k), mem.alloc(4*k)
	if mem.err != nil {
		return mem.err
	}
	err = errors.Join(
		w.Rows(t.stream, cuda.Rows{To: all, Type: w.Type(), Count: n}), w.Rows(t.stream, cuda.Rows{To: row, Type: driver.F32, First: n - 1, Count: 1}), t.stream.Sync(),
		t.dev.Read(driver.Bytes(halves), all), t.dev.Read(driver.Bytes(last), row))
	if err != nil {
		return err
	}
	t.Checks += 2
	for i, v := range weights {
		if halves[i] != conform.ToHalf(w.Type(), v) {
			t.Failures = append(t.Failures, fmt.Sprintf("%v: weight %d,%d is unpacked as %g", what, i/k, i%k, conform.FromHalf(w.Type(), halves[i])))
			return nil
		}
		if i >= (n-1)*k && last[i-(n-1)*k] != v {
			t.Failures = append(t.Failures, fmt.Sprintf("%v: weight %d,%d is unpacked as %g in float32", what, i/k, i%k, last[i-(n-1)*k]))
			return nil
		}
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
