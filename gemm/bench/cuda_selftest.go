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

	"github.com/lutq/lutq/gemm/conform"
	"github.com/lutq/lutq/gemm/cuda"
	"github.com/lutq/lutq/gemm/cuda/driver"
	"github.com/lutq/lutq/quantize/lut24"
	"github.com/lutq/lutq/quantize/weight"
	"github.com/lutq/lutq/repack"
)

// CUDASelftestOptions narrow [SelftestCUDA] down. What is empty means all.
type CUDASelftestOptions struct {
	Seed   uint64
	Bits   []int
	Groups []int // 0 is one scale a row
	Scales []weight.ScaleType
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

// SelftestCUDA runs every kernel on the first GPU: matrices of every format and awkward
// shapes under every configuration for numbers of rows of every kind, as package conform draws
// and checks them. Kernels that the cache does not have are compiled on all processors
// meanwhile. Then each is multiplied by up to 600 rows of X in one of the ways for many. Failures are reported in the result; the error is for a test
// that could not be run, [driver.ErrNoGPU] among them.
func SelftestCUDA(ctx context.Context, o CUDASelftestOptions) (*CUDASelftestResult, error) {
	formats, sparse, err := o.formats()
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
		tests := make([]*formatTest, 0, len(formats)+len(sparse))
		for i, f := range formats {
			tests = append(tests, t.test(c, i, f, o.Seed))
		}
		for i, f := range sparse {
			tests = append(tests, t.sparseTest(c, i, f, o.Seed))
		}
		codes := o.bcqFormats()
		if g.dev.CanCompile() != nil {
			codes = nil // whose kernels are not built ahead of time
		}
		done := func() {
			t.Formats++
			if o.Done != nil {
				o.Done(t.Formats, len(tests)+len(codes))
			}
		}
		err := inOrder(ctx, tests, (*formatTest).preparation, func(f *formatTest) error {
			if err := t.run(ctx, f); err != nil {
				return err
			}
			done()
			return nil
		})
		if err != nil {
			return err
		}
		return t.binaryCodes(ctx, c, codes, o.Seed, done)
	})
	t.Kernels = len(t.kernels)
	return &t.CUDASelftestResult, err
}

// formats returns those that the options ask for: of tables, and of what is kept where two columns in four are.
func (o *CUDASelftestOptions) formats() (formats, sparse []cuda.Format, err error) {
	for _, name := range o.DTypes {
		if _, err := halfType(name); err != nil {
			return nil, nil, err
		}
	}
	asked := func(all []cuda.Format, of int) []cuda.Format {
		return slices.DeleteFunc(all, func(f cuda.Format) bool {
			return len(o.Bits) > 0 && !slices.Contains(o.Bits, f.Bits) ||
				len(o.Groups) > 0 && !slices.Contains(o.Groups, f.Group*of) ||
				len(o.Scales) > 0 && !slices.Contains(o.Scales, f.Scale) ||
				len(o.DTypes) > 0 && !slices.Contains(o.DTypes, f.Type.String())
		})
	}
	formats, sparse = asked(cuda.Formats(), 1), asked(cuda.SparseFormats(), lut24.Chunk/lut24.Kept)
	if len(formats) == 0 {
		return nil, nil, errors.New("no kernel has such a format")
	}
	return formats, sparse, nil
}

// cudaSelftest is a run of [SelftestCUDA].
type cudaSelftest struct {
	CUDASelftestResult
	*gpu
	kernels map[string]bool // by what the compiler is told
}

// formatTest is the test of the kernels of one format on one matrix.
type formatTest struct {
	*conform.Case
	tiles *repack.CUDATiles
	kept  *repack.SparseTiles // of a test of weights of which two columns in four are kept, instead
	many  int                 // rows of X that it is multiplied by besides
	way   cuda.Way            // in which
	steps []func() error      // that fill the case and compile the kernels, in any order
}

func (f *formatTest) preparation() []func() error { return f.steps }

// test returns the test of format i, to be prepared.
func (t *cudaSelftest) test(c *driver.CUDA, i int, f cuda.Format, seed uint64) *formatTest {
	test := &formatTest{Case: conform.Draw(seed, i, conform.Format(f))}
	test.steps = append(test.steps, func() (err error) {
		test.Fill()
		test.tiles, err = repack.CUDA(test.Matrix)
		return err
	})
	compiled := func(k driver.Kernel) { t.compiled(c, test, k) }
	for _, m := range test.Rows {
		for _, config := range slices.Concat(t.engine.Configs(f, test.N, test.K, m), t.engine.OtherConfigs(f, test.N, test.K, m)) {
			compiled(f.Kernel(config))
		}
	}
	r := rand.New(rand.NewPCG(seed, uint64(i)))
	test.many = cuda.MaxRows + 1 + r.IntN(100)
	if i%2 == 0 {
		test.many = cuda.MaxRows + 1 + r.IntN(mostMany-cuda.MaxRows)
	}
	w := &cuda.Matrix{N: test.N, K: test.K, Format: f}
	if i%3 == 0 {
		t.engine.RoundToFP8(w)
	}
	ways := slices.DeleteFunc(t.engine.Ways(w, test.many), cuda.Way.Unpacked) // which is checked by itself
	if len(ways) > 0 {
		test.way = ways[i/3%len(ways)]
	}
	for _, k := range test.way.Kernels(f) {
		compiled(k)
	}
	return test
}

// compiled has a test compile a kernel, unless another does.
func (t *cudaSelftest) compiled(c *driver.CUDA, test *formatTest, k driver.Kernel) {
	k.Options.Arch = t.dev.Info.Arch()
	key := fmt.Sprint(k.Name, k.Options.Defines)
	if t.kernels[key] {
		return
	}
	t.kernels[key] = true
	test.steps = append(test.steps, func() error {
		_, _, _ = c.Cubin(k) // for the cache; what is wrong, loading it will say
		return nil
	})
}

// run checks the kernels of one format.
func (t *cudaSelftest) run(ctx context.Context, f *formatTest) (err error) {
	if f.kept != nil {
		return t.runSparse(ctx, f)
	}
	w, err := t.engine.Upload(f.tiles, f.Type)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.Close()) }()
	k := &engineKernels{operands: operands{gpu: t.gpu, n: w.N, mem: memory{dev: t.dev}}, w: w}
	defer func() { err = errors.Join(err, k.mem.free()) }()
	r, err := conform.Check(ctx, f.Case, k)
	if err != nil {
		return err
	}
	t.add(f, r)
	if err := t.manyRows(f, w); err != nil {
		return err
	}
	*f = formatTest{} // for others' room
	return nil
}

// add adds what has come of a test's checks.
func (t *cudaSelftest) add(f *formatTest, r *conform.Result) {
	t.Checks += r.Checks
	t.WorstErr[f.Type.String()] = max(t.WorstErr[f.Type.String()], r.WorstErr)
	t.Failures = append(t.Failures, r.Failures...)
}

// mostMany are the rows of X that ways for many are drawn for at most, and manyMore is what their results may be off by
// in terms of a kernel's for few: they round weights, too.
const (
	mostMany = 600
	manyMore = 1.5
)

// manyRows checks a way to multiply many rows: twice, on as many blocks as the GPU takes and on few, which gives the same bits.
func (t *cudaSelftest) manyRows(f *formatTest, w *cuda.Matrix) (err error) {
	r := rand.New(rand.NewPCG(uint64(f.many), uint64(w.N)))
	mem := memory{dev: t.dev}
	defer func() { err = errors.Join(err, mem.free()) }()
	x, bias := conform.RandomHalves(r, f.many*w.K, f.Type), conform.RandomHalves(r, w.N, f.Type)
	o := cuda.Operands{
		M: f.many, X: mem.upload(driver.Bytes(x)), Bias: mem.upload(driver.Bytes(bias)), Y: mem.alloc(2 * (f.many*w.N + conform.Guard)),
	}
	newReference := conform.NewReference
	if f.way.FP8() {
		t.engine.RoundToFP8(w)
		newReference = conform.NewFP8Reference
	}
	if most := t.engine.MostScratch(w, f.many); most > 0 {
		o.Scratch = mem.alloc(most)
	}
	if mem.err != nil {
		return mem.err
	}
	reference := newReference(r, f.Matrix, x, bias, f.many, 1, f.Type)
	what := fmt.Sprintf("%v, %d rows, %v", f.Case, f.many, f.way)
	var first []uint16
	for _, blocks := range []int{math.MaxInt, 5} {
		t.engine.LimitBlocks(blocks)
		err := errors.Join(t.dev.Fill8(o.Y, conform.Poison, 2*(f.many*w.N+conform.Guard)), t.engine.MatMulWay(t.stream, w, o, f.way))
		if err != nil {
			return fmt.Errorf("%s: %w", what, err)
		}
		y, err := t.readResult(o.Y, f.many*w.N, f.Type)
		if errors.Is(err, ErrMismatch) {
			t.Failures = append(t.Failures, fmt.Sprintf("%s: %v", what, err))
			break
		}
		if err != nil {
			return fmt.Errorf("%s: %w", what, err)
		}
		t.Checks++
		switch rel, _ := reference.Errors(y); {
		case first != nil && !slices.Equal(y, first):
			t.Failures = append(t.Failures, what+": not the bits of the first time")
		case !(rel <= manyMore*conform.Bound(f.Type)):
			t.Failures = append(t.Failures, fmt.Sprintf("%s: relative error %.3g", what, rel))
		}
		first = y
	}
	return nil
}

// engineKernels multiplies by a matrix on a GPU.
type engineKernels struct {
	operands
	w *cuda.Matrix
}

// operands are those of a product by a matrix of n rows, on a GPU.
type operands struct {
	*gpu
	n   int
	of  *conform.Product // whose operands these are
	o   cuda.Operands
	mem memory
}

// engineConfig is a configuration, or what the engine chooses for each launch.
type engineConfig struct {
	cuda.Config
	chosen bool
}

func (c engineConfig) String() string {
	if c.chosen {
		return "chosen"
	}
	return c.Config.String()
}

func (k *engineKernels) Configs(rows int) []engineConfig {
	var all []engineConfig
	f, n, cols := k.w.Format, k.w.N, k.w.K
	for _, c := range slices.Concat(k.engine.Configs(f, n, cols, rows), k.engine.OtherConfigs(f, n, cols, rows)) {
		all = append(all, engineConfig{Config: c})
	}
	if rows > cuda.MaxRows {
		all = append(all, engineConfig{chosen: true})
	}
	return all
}

func (k *engineKernels) Slices(c engineConfig, rows int) int {
	return k.engine.Slices(k.w.Format, c.Config, k.w.N, k.w.K, rows)
}

func (k *engineKernels) MatMul(c engineConfig, p *conform.Product, blocks int, y []uint16) error {
	return k.multiply(p, blocks, y, func() error {
		if c.chosen {
			return k.engine.MatMul(k.stream, k.w, k.o)
		}
		return k.engine.MatMulWith(k.stream, k.w, k.o, c.Config)
	})
}

// multiply has f multiply by the operands of a product, on up to so many blocks, and reads the result.
func (k *operands) multiply(p *conform.Product, blocks int, y []uint16, f func() error) error {
	if err := k.load(p); err != nil {
		return err
	}
	if err := k.dev.Write(k.o.Y, driver.Bytes(y)); err != nil {
		return err
	}
	k.engine.LimitBlocks(blocks)
	return errors.Join(f(), k.stream.Sync(), k.dev.Read(driver.Bytes(y), k.o.Y))
}

// load uploads the operands of a product, unless they are there.
func (k *operands) load(p *conform.Product) error {
	if k.of == p {
		return nil
	}
	k.of = nil
	if err := k.mem.free(); err != nil {
		return err
	}
	k.o = cuda.Operands{
		M: p.Rows, X: k.mem.upload(driver.Bytes(p.X)), Y: k.mem.alloc(2 * (p.Rows*k.n + conform.Guard)),
	}
	if p.Bias != nil {
		k.o.Bias = k.mem.upload(driver.Bytes(p.Bias))
	}
	k.of = p
	return k.mem.err
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
