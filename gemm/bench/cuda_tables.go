package bench

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"

	"github.com/lutq/lutq/formats/weight/lut24"
	"github.com/lutq/lutq/gemm/conform"
	"github.com/lutq/lutq/gemm/cuda"
	"github.com/lutq/lutq/gemm/cuda/driver"
	"github.com/lutq/lutq/repack"
)

// tested is a matrix with a table, of all columns or of two in four. Until it is uploaded it has a shape and a format alone, by
// which choices are made.
type tested interface {
	cuda.Packed
	// configs returns the configurations for a number of rows of X, with others those that are not chosen as well.
	configs(rows int, others bool) []cuda.Config
	slices(c cuda.Config, rows int) int
	// by multiplies under a configuration, and in in one of the ways for many rows of X.
	by(o cuda.Operands, c cuda.Config) error
	in(o cuda.Operands, way cuda.Way) error
	// upload copies what was laid out to the GPU.
	upload() error
}

// tableTest is the test of one format of matrices with a table.
type tableTest struct {
	*cudaSelftest
	*conform.Case
	*formatTest
	w tested

	many   int // rows of X that it is multiplied by besides,
	way    cuda.Way
	inMany *part // if that is run
	unpack *part
}

// tableVariant is a configuration of a kernel in a format.
type tableVariant struct {
	cuda.Format
	cuda.Config
}

func (v tableVariant) traits() []string { return v.Format.Traits(v.Config) }

// tables returns the test of a case whose matrices are multiplied by as w is, by many rows of X in one of some ways, and laid out by pack.
func (t *cudaSelftest) tables(c *conform.Case, f cuda.Format, w tested, many int, way cuda.Way, unpack []driver.Kernel, pack func() error) *formatTest {
	test := &tableTest{cudaSelftest: t, Case: c, formatTest: new(formatTest), w: w, many: many, way: way}
	for i, m := range c.Rows {
		for _, config := range w.configs(m, true) {
			test.add(tableVariant{f, config}, fmt.Sprintf(" for rows %d", i), f.Kernel(config))
		}
	}
	if many > 0 {
		test.inMany = test.add(nil, " for many rows", way.Kernels(f)...)
	}
	test.unpack = test.add(nil, "", unpack...)
	test.fill = func() error {
		test.Fill()
		return pack()
	}
	test.formatTest.run = test.run
	return test.formatTest
}

// lutTested is a matrix of a table.
type lutTested struct {
	*cuda.Matrix
	*gpu
	tiles *repack.CUDATiles
}

func (w *lutTested) upload() (err error) {
	w.Matrix, err = w.engine.Upload(w.tiles, w.Format.Type)
	return err
}

func (w *lutTested) configs(rows int, others bool) []cuda.Config {
	all := w.engine.Configs(w.Format, w.N, w.K, rows)
	if others {
		all = slices.Concat(all, w.engine.OtherConfigs(w.Format, w.N, w.K, rows))
	}
	return all
}

func (w *lutTested) slices(c cuda.Config, rows int) int {
	return w.engine.Slices(w.Format, c, w.N, w.K, rows)
}

func (w *lutTested) by(o cuda.Operands, c cuda.Config) error {
	return w.engine.MatMulWith(w.stream, w.Matrix, o, c)
}

func (w *lutTested) in(o cuda.Operands, way cuda.Way) error {
	if way.FP8() {
		w.engine.RoundToFP8(w.Matrix)
	}
	return w.engine.MatMulWay(w.stream, w.Matrix, o, way)
}

// tableTests returns the tests of formats of tables.
func (t *cudaSelftest) tableTests(o *CUDASelftestOptions) []*formatTest {
	var all []*formatTest
	for i, f := range o.asked(cuda.Formats(), 1) {
		c := conform.Draw(o.Seed, i, conform.Format(f))
		w := &lutTested{Matrix: &cuda.Matrix{N: c.N, K: c.K, Format: f}, gpu: t.gpu}
		r := rand.New(rand.NewPCG(o.Seed, uint64(i)))
		many := cuda.MaxRows + 1 + r.IntN(100)
		if i%2 == 0 {
			many = cuda.MaxRows + 1 + r.IntN(mostMany-cuda.MaxRows)
		}
		like := *w.Matrix
		if i%3 == 0 {
			t.engine.RoundToFP8(&like)
		}
		var way cuda.Way
		ways := slices.DeleteFunc(t.engine.Ways(&like, many), cuda.Way.Unpacked) // which is checked by itself
		if len(ways) > 0 {
			way = ways[i/3%len(ways)]
		}
		all = append(all, t.tables(c, f, w, many, way, f.UnpackKernels(), func() (err error) {
			w.tiles, err = repack.CUDA(c.Matrix)
			return err
		}))
	}
	return all
}

// sparseTested is a matrix of which every four columns keep two.
type sparseTested struct {
	*cuda.SparseMatrix
	*gpu
	tiles *repack.SparseTiles
}

func (w *sparseTested) upload() (err error) {
	w.SparseMatrix, err = w.engine.UploadSparse(w.tiles, w.Format.Type)
	return err
}

func (w *sparseTested) configs(rows int, others bool) []cuda.Config {
	return w.engine.SparseConfigs(w.SparseMatrix, rows, others)
}

func (w *sparseTested) slices(c cuda.Config, rows int) int {
	return w.engine.SparseSlices(w.SparseMatrix, c, rows)
}

func (w *sparseTested) by(o cuda.Operands, c cuda.Config) error {
	return w.engine.MatMulSparseWith(w.stream, w.SparseMatrix, o, c)
}

func (w *sparseTested) in(o cuda.Operands, way cuda.Way) error {
	return w.engine.MatMulSparseWay(w.stream, w.SparseMatrix, o, way)
}

// sparseTests returns the tests of formats of what is kept of every four columns.
func (t *cudaSelftest) sparseTests(o *CUDASelftestOptions) []*formatTest {
	var all []*formatTest
	for i, f := range o.asked(cuda.SparseFormats(), lut24.Chunk/lut24.Kept) {
		c := conform.DrawSparse(o.Seed, i, conform.Format(f))
		w := &sparseTested{SparseMatrix: &cuda.SparseMatrix{N: c.N, K: c.K, Format: f}, gpu: t.gpu}
		r := rand.New(rand.NewPCG(o.Seed, uint64(i)))
		many := cuda.MaxRows + 1 + r.IntN(mostMany-cuda.MaxRows)
		var way cuda.Way
		ways := slices.DeleteFunc(t.engine.SparseWays(w.SparseMatrix, many), func(w cuda.Way) bool { return w.Kernel() == "" })
		if len(ways) == 0 {
			many = 0
		} else {
			way = ways[i%len(ways)]
		}
		all = append(all, t.tables(c, f, w, many, way, cuda.SparseUnpackKernels(f), func() (err error) {
			w.tiles, err = repack.SparseCUDA(c.Sparse)
			return err
		}))
	}
	return all
}

// mostMany are the rows of X that ways for many are drawn for at most.
const mostMany = 600

// run checks the kernels of the format.
func (f *tableTest) run(ctx context.Context) (err error) {
	if err := f.w.upload(); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.w.Close()) }()
	k := &configured{tableTest: f, mem: memory{dev: f.dev}}
	defer func() { err = errors.Join(err, k.mem.free()) }()
	r, err := conform.Check(ctx, f.Case, k)
	if err != nil {
		return err
	}
	f.Checks += r.Checks
	f.WorstErr[f.Type.String()] = max(f.WorstErr[f.Type.String()], r.WorstErr)
	f.Failures = append(f.Failures, r.Failures...)
	if f.inMany != nil && f.inMany.run {
		if err := f.manyRows(); err != nil {
			return err
		}
	}
	if !f.unpack.run {
		return nil
	}
	held := *f.Matrix
	held.Codebook = conform.RoundedTable(held.Codebook, f.Type)
	return f.checkRows(f.w, held.Dequantize(), f.Case)
}

// manyRows checks the way to multiply many rows.
func (f *tableTest) manyRows() error {
	r := rand.New(rand.NewPCG(uint64(f.many), uint64(f.N)))
	reference := conform.NewReference
	if f.way.FP8() {
		reference = conform.NewFP8Reference
	}
	_, err := f.repeat(r, repeated{
		what: fmt.Sprintf("%v, %d rows, %v", f.Case, f.many, f.way),
		rows: f.many, n: f.N, k: f.K, dtype: f.Type, scratch: f.way.ScratchBytes(f.many, f.K),
		blocks: func() [2]int { return [2]int{math.MaxInt, 5} },
		reference: func(x, bias []uint16) *conform.Reference {
			return reference(r, f.Matrix, x, bias, f.many, 1, f.Type)
		},
		bound: manyMore * conform.Bound(f.Type), multiply: func(o cuda.Operands) error { return f.w.in(o, f.way) },
	})
	return err
}

// configured multiplies by the matrix of a test under its configurations.
type configured struct {
	*tableTest
	of  *conform.Product // whose operands these are
	o   cuda.Operands
	mem memory
}

// tableConfig is a configuration, or what the engine chooses for each launch.
type tableConfig struct {
	cuda.Config
	chosen bool
}

func (c tableConfig) String() string {
	if c.chosen {
		return "chosen"
	}
	return c.Config.String()
}

// Configs returns the configurations that are run for a number of rows of X, and for more than one launch takes what is chosen, if
// all that may be are.
func (k *configured) Configs(rows int) []tableConfig {
	run := make(map[cuda.Config]bool)
	for _, p := range k.parts {
		if v, ok := p.variant.(tableVariant); ok && p.run {
			run[v.Config] = true
		}
	}
	var all []tableConfig
	for _, c := range k.w.configs(rows, true) {
		if run[c] {
			all = append(all, tableConfig{Config: c})
		}
	}
	if rows > cuda.MaxRows && !slices.ContainsFunc(k.w.configs(rows, false), func(c cuda.Config) bool { return !run[c] }) {
		all = append(all, tableConfig{chosen: true})
	}
	return all
}

func (k *configured) Slices(c tableConfig, rows int) int { return k.w.slices(c.Config, rows) }

func (k *configured) MatMul(c tableConfig, p *conform.Product, blocks int, y []uint16) error {
	if err := k.load(p); err != nil {
		return err
	}
	if err := k.dev.Write(k.o.Y, driver.Bytes(y)); err != nil {
		return err
	}
	k.engine.LimitBlocks(blocks)
	multiply := k.w.MatMul
	if !c.chosen {
		multiply = func(_ *driver.Stream, o cuda.Operands) error { return k.w.by(o, c.Config) }
	}
	return errors.Join(multiply(k.stream, k.o), k.stream.Sync(), k.dev.Read(driver.Bytes(y), k.o.Y))
}

// load uploads the operands of a product, unless they are there.
func (k *configured) load(p *conform.Product) error {
	if k.of == p {
		return nil
	}
	k.of = nil
	if err := k.mem.free(); err != nil {
		return err
	}
	k.o = cuda.Operands{M: p.Rows, X: k.mem.upload(driver.Bytes(p.X)), Y: k.mem.alloc(2 * (p.Rows*k.N + conform.Guard))}
	if p.Bias != nil {
		k.o.Bias = k.mem.upload(driver.Bytes(p.Bias))
	}
	k.of = p
	return k.mem.err
}
