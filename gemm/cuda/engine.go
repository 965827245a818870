package cuda

import (
	"errors"
	"fmt"
	"strings"

	"github.com/lutq/lutq/gemm/cuda/driver"
	"github.com/lutq/lutq/gemm/cuda/ptx"
	"github.com/lutq/lutq/repack"
)

// minMajor is the compute capability that the kernels need: bfloat16 on tensor
// cores.
const minMajor = 8

// Engine multiplies by quantized matrices on one device. Its methods are called
// inside [driver.Device.Do], as everything of a device.
type Engine struct {
	dev     *driver.Device
	cache   *driver.Cache
	limits  limits
	modules map[moduleKey]*module
	tuned   map[tuningKey]Config
	many    map[tuningKey]Way    // what is chosen for more than MaxRows
	others  functions            // of kernels for them, and for what is not multiplied
	sparse  map[tuningKey]Config // what is chosen by matrices of which two columns in four are kept
	args    driver.Args

	flags map[*driver.Stream]driver.Ptr // of products of very many rows

	noCompiler error // why only prebuilt kernels can be loaded, or nil
}

// moduleKey says what is compiled.
type moduleKey struct {
	format Format
	config Config
	gates  string // the activation of gates, or none

	experts bool
	lookup  Lookup
}

// kernel is [Format.Kernel] with gates and a lookup of its own, if any. With one there is none built ahead of time.
func (m moduleKey) kernel() driver.Kernel {
	k := m.format.Kernel(m.config)
	if m.experts {
		return m.format.expertKernel(m.config, m.gates)
	}
	if m.gates == "" && m.lookup == Replicated {
		return k
	}
	gates := ""
	if m.gates != "" {
		gates = ptx.GLU()
		k.Options.Defines = append(k.Options.Defines, "GATES=1", "ACTIVATION="+strings.ToUpper(m.gates))
	}
	k.Source = ptx.Instructions() + gates + lutSource + m.lookup.source() + m.config.kernel().source()
	k.Options.Defines = append(k.Options.Defines, m.lookup.defines()...)
	k.PTX = nil
	return k
}

type module struct {
	module *driver.Module
	gemm   *driver.Function
	read   *driver.Function // or nil
}

// New returns an engine on a device. The results of [Engine.Tune] are kept in
// cache, which may be nil.
func New(d *driver.Device, cache *driver.Cache) (*Engine, error) {
	if d.Info.Major < minMajor {
		return nil, fmt.Errorf("%s has compute capability %d.%d: the kernels need %d.0", d.Info.Name, d.Info.Major, d.Info.Minor, minMajor)
	}
	return &Engine{
		dev: d, cache: cache, limits: limitsOf(d.Info),
		modules: map[moduleKey]*module{}, tuned: map[tuningKey]Config{}, many: map[tuningKey]Way{}, others: functions{d, map[compiled]loaded{}},
		sparse: map[tuningKey]Config{}, flags: map[*driver.Stream]driver.Ptr{}, noCompiler: d.CanCompile(),
	}, nil
}

// LimitBlocks makes grids of at most so many blocks, for small matrices to be multiplied as large
// ones are, many tiles a block. It changes no bit of a result.
func (e *Engine) LimitBlocks(most int) { e.limits.sms = min(most, e.dev.Info.SMs) }

// Close unloads the kernels. Matrices are closed before.
func (e *Engine) Close() error {
	var errs []error
	for _, m := range e.modules {
		errs = append(errs, m.module.Close())
	}
	clear(e.modules)
	for _, at := range e.flags {
		errs = append(errs, e.dev.Free(at))
	}
	clear(e.flags)
	return errors.Join(append(errs, e.others.close())...)
}

// Matrix is a quantized matrix in a GPU's memory, for activations of one type.
type Matrix struct {
	N, K   int
	Format Format

	engine        *Engine
	codes, scales driver.Ptr
	codebook      []uint32
	lookup        Lookup
	integers      bool     // whether the lookup may be Integers
	exponent      int      // of the power of two by which lutmany.cu multiplies the scales
	fp8           bool     // whether products of many rows may be in E4M3
	codebook8     []uint32 // of lutfp8.cu, with its factor
	factor8       float32
	bytes         int64
	part          bool // of a matrix that has the memory
}

// Upload copies a matrix to the GPU and rounds its table to the type of the
// activations, F16 or BF16. K must be a multiple of 32.
func (e *Engine) Upload(t *repack.CUDATiles, dtype driver.DType) (*Matrix, error) {
	if err := t.Validate(); err != nil {
		return nil, err
	}
	f, err := FormatOf(t, dtype)
	if err != nil {
		return nil, err
	}
	// Whatever stands in the way of multiplying shows here.
	configs, err := e.tried(shapeOf(f, t.N, t.K, 1))
	if err != nil {
		return nil, err
	}
	if e.noCompiler != nil {
		if _, err := f.Kernel(configs[0]).PTX(e.dev.Info); err != nil {
			return nil, fmt.Errorf("%w; %w", e.noCompiler, err)
		}
	}
	scales := f.scales(t)
	m := &Matrix{N: t.N, K: t.K, Format: f, engine: e, bytes: int64(len(t.Codes)) + int64(len(scales)), exponent: f.scaleExponent(scales, t.Codebook)}
	if m.codebook, err = f.table(t.Codebook); err != nil {
		return nil, err
	}
	m.codebook8, m.factor8 = table8(t.Codebook)
	m.lookup, m.integers = chosen, e.noCompiler == nil && f.areIntegers(m.codebook)
	if m.codes, err = e.dev.Upload(t.Codes); err != nil {
		return nil, err
	}
	if m.scales, err = e.dev.Upload(scales); err != nil {
		return nil, errors.Join(err, m.Close())
	}
	return m, nil
}

// Bytes returns what the matrix takes of the GPU's memory, which a
// multiplication reads once.
func (m *Matrix) Bytes() int64 { return m.bytes }

// Close frees the matrix.
func (m *Matrix) Close() error {
	var errs []error
	for _, p := range []*driver.Ptr{&m.codes, &m.scales} {
		if *p != 0 && !m.part {
			errs = append(errs, m.engine.dev.Free(*p))
		}
		*p = 0
	}
	return errors.Join(errs...)
}

// Operands are the dense sides of a multiplication, in the matrix's type and
// row-major: X [M, K] and Y [M, N]; Bias [N] may be 0. Addresses are multiples of
// 16 bytes; Y and Bias need only their type's alignment.
type Operands struct {
	Y, X, Bias driver.Ptr
	M          int

	// Scratch is memory of [Engine.ScratchBytes], at a multiple of 16, or 0. Products that share it are in one stream.
	Scratch driver.Ptr
	// Form is how X lies: [RowByRow], or as [Matrix.Form] has it, in which case Scratch need be of [Matrix.SumBytes] only.
	Form Form
}

func (o Operands) check(w *Matrix) error { return o.checkFor(w.codes) }

// checkFor is check for a matrix whose codes are at an address.
func (o Operands) checkFor(codes driver.Ptr) error {
	switch {
	case codes == 0:
		return errors.New("the matrix has been closed")
	case o.M < 1:
		return fmt.Errorf("%d rows of activations", o.M)
	case o.X == 0 || o.Y == 0:
		return errors.New("no memory for activations or results")
	case o.Form != RowByRow:
		return errors.New("activations are prepared for another product")
	case o.X%16 != 0:
		return fmt.Errorf("activations at %#x: want a multiple of 16", uint64(o.X))
	case o.Y%2 != 0 || o.Bias%2 != 0:
		return errors.New("results or bias at an odd address")
	case o.Scratch%16 != 0:
		return fmt.Errorf("scratch memory at %#x: want a multiple of 16", uint64(o.Scratch))
	}
	return nil
}

// MatMul queues Y = X·Ŵᵀ + Bias. It launches one kernel for up to 32 rows of X, or up to 16 where lutwide.cu
// is not to be had, and for more as few as that takes, of about as many rows and under one configuration; or with
// scratch memory, where [Engine.Way] has it so, one that prepares X and one for all rows:
// each with programmatic dependent launch: a kernel that follows and is launched
// so may begin early, and must wait before it touches Y. Kernels are compiled when
// they are first needed.
func (e *Engine) MatMul(s *driver.Stream, w *Matrix, o Operands) error {
	if o.M <= MaxRows || o.Scratch == 0 {
		return e.MatMulWay(s, w, o, Way{})
	}
	way := e.Way(w, o.M)
	way.unpacked = false // which is for who asked
	return e.MatMulWay(s, w, o, way)
}

// matMulPacked is MatMul without scratch memory.
func (e *Engine) matMulPacked(s *driver.Stream, w *Matrix, o Operands) error {
	if err := o.check(w); err != nil {
		return err
	}
	rows := e.rowsAtOnce(w.Format, w.N, w.K, o.M)
	c, err := e.choice(w, rows)
	if err != nil {
		return err
	}
	return each(w.N, w.K, o, rows, func(o Operands) error { return e.launch(s, w, o, c, gemmName) })
}

// MatMulWith is MatMul under a given configuration, with one kernel for all rows, that of
// f.Kernel(c). See [Engine.Slices] for when the bits differ.
func (e *Engine) MatMulWith(s *driver.Stream, w *Matrix, o Operands, c Config) error {
	return e.launchAll(s, w, o, c, gemmName)
}

// Read queues the read-only twin of a multiplication under one of [Engine.ReadConfigs]: the
// same grids and launch attributes, and the same bytes of the matrix read in the same order,
// without arithmetic or a result. It bounds what MatMul could reach.
func (e *Engine) Read(s *driver.Stream, w *Matrix, o Operands, c Config) error {
	return e.launchAll(s, w, o, c, readName)
}

// launchAll launches one kernel for all rows.
func (e *Engine) launchAll(s *driver.Stream, w *Matrix, o Operands, c Config, kernel string) error {
	if err := o.check(w); err != nil {
		return err
	}
	return each(w.N, w.K, o, parts(o.M, max(c.rowsOfX(), MaxRows)), func(o Operands) error { return e.launch(s, w, o, c, kernel) })
}

// each calls f with up to so many rows at a time of a product by an n×k matrix.
func each(n, k int, o Operands, rows int, f func(Operands) error) error {
	for m := 0; m < o.M; m += rows {
		part := Operands{
			Y: o.Y + driver.Ptr(2*m*n), X: o.X + driver.Ptr(2*m*k),
			Bias: o.Bias, M: min(rows, o.M-m),
		}
		if err := f(part); err != nil {
			return err
		}
	}
	return nil
}

// launch launches a kernel for as many rows as it is compiled for, or fewer.
func (e *Engine) launch(s *driver.Stream, w *Matrix, o Operands, c Config, kernel string) error {
	return e.launchGated(s, w, o, Gates{}, c, kernel)
}

func (e *Engine) launchGated(s *driver.Stream, w *Matrix, o Operands, g Gates, c Config, kernel string) error {
	product := shapeOf(w.Format, w.N, w.K, o.M).under(c)
	if !w.lookup.has(c.kernel()) {
		return fmt.Errorf("no kernel of configuration %v with lookup %v", c, w.lookup)
	}
	product.gated, product.lookup = g.Activation != "", w.lookupIn(c, o.M)
	p, launch, err := product.plan(c, e.limits)
	if err != nil {
		return err
	}
	launch.Programmatic = e.dev.Info.Major >= 9
	mod, err := e.module(moduleKey{format: w.Format, config: c, gates: g.Activation, lookup: product.lookup})
	if err != nil {
		return err
	}
	p.codes, p.scales = uint64(w.codes), uint64(w.scales)
	p.x, p.y, p.bias = uint64(o.X), uint64(o.Y), uint64(o.Bias)
	p.alpha, p.limit = g.Alpha, g.Limit
	p.codebook = w.codebook
	f := mod.gemm
	if kernel == readName {
		f = mod.read
	}
	return f.Launch(s, launch, e.args.Reset().Struct(p.bytes()))
}

// module returns the compiled kernels.
func (e *Engine) module(key moduleKey) (*module, error) {
	if mod, ok := e.modules[key]; ok {
		return mod, nil
	}
	loaded, err := e.dev.LoadKernel(key.kernel())
	if err != nil {
		return nil, err
	}
	mod := &module{module: loaded}
	// No more of the cache becomes shared memory than is needed: what is left holds the lines
	// of loads under way, and with a seventh of it lutwide.cu takes up to 12 % longer.
	if mod.gemm, err = loaded.Function(gemmName); err == nil {
		err = mod.gemm.SetMaxDynamicShared(e.limits.sharedBlock)
	}
	if err == nil && key.config.kernel().twin() && !key.experts {
		if mod.read, err = loaded.Function(readName); err == nil {
			err = mod.read.SetMaxDynamicShared(e.limits.sharedBlock)
		}
	}
	if err != nil {
		return nil, errors.Join(err, loaded.Close())
	}
	e.modules[key] = mod
	return mod, nil
}
