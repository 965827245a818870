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
	"github.com/lutq/lutq/formats/weight/lut24"
	"github.com/lutq/lutq/gemm/conform"
	"github.com/lutq/lutq/gemm/cuda"
	"github.com/lutq/lutq/gemm/cuda/driver"
	"github.com/lutq/lutq/repack"
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
	formats, sparse, err := o.formats()
	if err != nil {
		return nil, err
	}
	c, err := driver.OpenGPU()
	if err != nil {
		return nil, err
	}
	var t *cudaSelftest
	err = onGPU(c, func(g *gpu) error {
		t = newSelftest(g, &o)
		tests, codes := t.tests(c, &o, formats, sparse)
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
		return t.binaryCodes(ctx, codes, done)
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

// tests returns the tests that are to be run, to be prepared: of tables and of what is kept of some formats, and of binary codes.
func (t *cudaSelftest) tests(c *driver.CUDA, o *CUDASelftestOptions, formats, sparse []cuda.Format) (tests []*formatTest, codes []*bcqTest) {
	for i, f := range formats {
		tests = append(tests, t.test(i, f, o.Seed))
	}
	for i, f := range sparse {
		tests = append(tests, t.sparseTest(i, f, o.Seed))
	}
	t.cover(tests)
	for i, f := range tests {
		if o.mine(i) {
			t.prepare(c, f)
		}
	}
	return slices.DeleteFunc(tests, func(f *formatTest) bool { return len(f.steps) == 0 }), t.codes(c, o)
}

// formats returns those that the options ask for: of tables, and of what is kept where two columns in four are.
func (o *CUDASelftestOptions) formats() (formats, sparse []cuda.Format, err error) {
	for _, name := range o.DTypes {
		if _, err := driver.ParseHalf(name); err != nil {
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

// mine reports whether a format is in the share.
func (o *CUDASelftestOptions) mine(i int) bool { return o.Shares == 0 || i%o.Shares == o.Share }

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
	*conform.Case
	format cuda.Format
	sparse bool // whether it is the format of what is kept where that is two columns in four

	// configsFor returns the configurations that there are for a number of rows of X, and configs are those that are run.
	configsFor func(rows int) []cuda.Config
	configs    []cuda.Config

	tiles  *repack.CUDATiles
	kept   *repack.SparseTiles // instead, if sparse
	many   int                 // rows of X that it is multiplied by besides, unless that is 0
	way    cuda.Way            // in which
	unpack bool                // whether it is unpacked
	steps  []func() error      // that fill the case and compile the kernels, in any order
}

func (f *formatTest) preparation() []func() error { return f.steps }

// addConfigs fills in what there is for the numbers of rows of the case.
func (f *formatTest) addConfigs() {
	for _, m := range f.Rows {
		for _, c := range f.configsFor(m) {
			if !slices.Contains(f.configs, c) {
				f.configs = append(f.configs, c)
			}
		}
	}
}

// test returns the test of format i, to be prepared, with all configurations.
func (t *cudaSelftest) test(i int, f cuda.Format, seed uint64) *formatTest {
	test := &formatTest{Case: conform.Draw(seed, i, conform.Format(f)), format: f}
	test.configsFor = func(m int) []cuda.Config {
		return slices.Concat(t.engine.Configs(f, test.N, test.K, m), t.engine.OtherConfigs(f, test.N, test.K, m))
	}
	test.addConfigs()
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
	return test
}

// prepare adds the steps of a test, unless it has nothing to run.
func (t *cudaSelftest) prepare(c *driver.CUDA, test *formatTest) {
	var kernels []driver.Kernel
	add := func(purpose string, some []driver.Kernel) bool {
		for _, k := range some {
			t.of[t.key(k)] = true
		}
		if !t.fresh(purpose, some...) {
			return false
		}
		kernels = append(kernels, some...)
		return true
	}
	for _, m := range test.Rows {
		for _, config := range test.configsFor(m) {
			k := test.format.Kernel(config)
			t.of[t.key(k)] = true
			if slices.Contains(test.configs, config) {
				kernels = append(kernels, k)
			}
		}
	}
	if test.many > 0 && !add(" for many rows", test.way.Kernels(test.format)) {
		test.many = 0
	}
	test.unpack = add("", test.unpackKernels())
	if len(kernels) == 0 {
		return
	}
	test.steps = append(test.steps, func() (err error) {
		test.Fill()
		if test.sparse {
			test.kept, err = repack.SparseCUDA(test.Sparse)
		} else {
			test.tiles, err = repack.CUDA(test.Matrix)
		}
		return err
	})
	for _, k := range kernels {
		t.compiled(c, &test.steps, k)
	}
}

// key returns what the compiler is told.
func (t *cudaSelftest) key(k driver.Kernel) string { return fmt.Sprint(k.Name, k.Options.Defines) }

// compiled has a test's steps compile a kernel, unless another's do.
func (t *cudaSelftest) compiled(c *driver.CUDA, steps *[]func() error, k driver.Kernel) {
	k.Options.Arch = t.dev.Info.Arch()
	key := t.key(k)
	if t.kernels[key] {
		return
	}
	t.kernels[key] = true
	*steps = append(*steps, func() error {
		_, _, _ = c.Cubin(k) // for the cache; what is wrong, loading it will say
		return nil
	})
}

// run checks the kernels of one format.
func (t *cudaSelftest) run(ctx context.Context, f *formatTest) (err error) {
	if f.sparse {
		return t.runSparse(ctx, f)
	}
	w, err := t.engine.Upload(f.tiles, f.Type)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.Close()) }()
	k := &engineKernels{operands: operands{gpu: t.gpu, n: w.N, mem: memory{dev: t.dev}}, w: w, test: f}
	defer func() { err = errors.Join(err, k.mem.free()) }()
	r, err := conform.Check(ctx, f.Case, k)
	if err != nil {
		return err
	}
	t.add(f, r)
	if f.many > 0 {
		if err := t.manyRows(f, w); err != nil {
			return err
		}
	}
	if err := t.unpacked(f, w); err != nil {
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
func (t *cudaSelftest) manyRows(f *formatTest, w *cuda.Matrix) error {
	newReference := conform.NewReference
	if f.way.FP8() {
		t.engine.RoundToFP8(w)
		newReference = conform.NewFP8Reference
	}
	return t.manyRowsBy(f, w.N, w.K, newReference, func(o cuda.Operands) error {
		return t.engine.MatMulWay(t.stream, w, o, f.way)
	})
}

// referenceOf is [conform.NewReference] or one like it.
type referenceOf func(r *rand.Rand, w *lut.Matrix, x, bias []uint16, m, share int, t driver.DType) *conform.Reference

// manyRowsBy is manyRows by an n×k matrix of any kind.
func (t *cudaSelftest) manyRowsBy(f *formatTest, n, k int, newReference referenceOf, multiply func(cuda.Operands) error) (err error) {
	r := rand.New(rand.NewPCG(uint64(f.many), uint64(n)))
	mem := memory{dev: t.dev}
	defer func() { err = errors.Join(err, mem.free()) }()
	x, bias := conform.RandomHalves(r, f.many*k, f.Type), conform.RandomHalves(r, n, f.Type)
	o := cuda.Operands{
		M: f.many, X: mem.upload(driver.Bytes(x)), Bias: mem.upload(driver.Bytes(bias)), Y: mem.alloc(2 * (f.many*n + conform.Guard)),
	}
	if scratch := f.way.ScratchBytes(f.many, k); scratch > 0 {
		o.Scratch = mem.alloc(scratch)
	}
	if mem.err != nil {
		return mem.err
	}
	reference := newReference(r, f.Matrix, x, bias, f.many, 1, f.Type)
	what := fmt.Sprintf("%v, %d rows, %v", f.Case, f.many, f.way)
	var first []uint16
	for _, blocks := range []int{math.MaxInt, 5} {
		t.engine.LimitBlocks(blocks)
		err := errors.Join(t.dev.Fill8(o.Y, conform.Poison, 2*(f.many*n+conform.Guard)), multiply(o))
		if err != nil {
			return fmt.Errorf("%s: %w", what, err)
		}
		y, err := t.readResult(o.Y, f.many*n, f.Type)
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

// unpackKernels returns those that write its weights as numbers.
func (f *formatTest) unpackKernels() []driver.Kernel {
	if f.sparse {
		return cuda.SparseUnpackKernels(f.format)
	}
	return f.format.UnpackKernels()
}

// unpacked checks the weights of a matrix as numbers of its type, all at once and the last of them.
func (t *cudaSelftest) unpacked(f *formatTest, w cuda.Packed) error {
	if !f.unpack {
		return nil
	}
	held := *f.Matrix
	held.Codebook = conform.RoundedTable(held.Codebook, f.Type)
	return t.checkRows(w, held.Dequantize(), f.Case)
}

// checkRows checks the rows of a matrix, all as numbers of its type and the last as float32.
func (t *cudaSelftest) checkRows(w cuda.Packed, weights []float32, what any) (err error) {
	mem := memory{dev: t.dev}
	defer func() { err = errors.Join(err, mem.free()) }()
	n, k := w.Shape()
	halves, last := make([]uint16, n*k), make([]float32, k)
	all, row := mem.alloc(2*n*k), mem.alloc(4*k)
	if mem.err != nil {
		return mem.err
	}
	err = errors.Join(
		w.Rows(t.stream, all, w.Type(), 0, 0, n), w.Rows(t.stream, row, driver.F32, 0, n-1, 1), t.stream.Sync(),
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

// engineKernels multiplies by a matrix on a GPU.
type engineKernels struct {
	operands
	w    *cuda.Matrix
	test *formatTest
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
	return k.test.run(rows, k.engine.Configs(k.w.Format, k.w.N, k.w.K, rows))
}

// run returns the configurations that are run for a number of rows of X, and for more than one launch takes what is chosen, if all
// that may be are.
func (f *formatTest) run(rows int, chosen []cuda.Config) []engineConfig {
	var all []engineConfig
	for _, c := range f.configsFor(rows) {
		if slices.Contains(f.configs, c) {
			all = append(all, engineConfig{Config: c})
		}
	}
	if rows > cuda.MaxRows && !slices.ContainsFunc(chosen, func(c cuda.Config) bool { return !slices.Contains(f.configs, c) }) {
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
