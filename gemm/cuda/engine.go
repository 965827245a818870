package cuda

import (
	"errors"
	"fmt"

	"github.com/lutq/lutq/gemm/cuda/driver"
)

// minMajor is the compute capability that the kernels need: bfloat16 on tensor
// cores.
const minMajor = 8

// Engine multiplies by quantized matrices on one device. Its methods are called
// inside [driver.Device.Do], as everything of a device.
type Engine struct {
	dev     *driver.Device
	cache   *driver.Cache
	device  driver.DeviceInfo
	gpu     GPU // the device with a limit of blocks
	modules map[Kernel]*module
	choices map[choice]Way
	flags   map[zeros]driver.Ptr
	args    driver.Args
}

// module is a compiled kernel with the functions of it that were asked for.
type module struct {
	module    *driver.Module
	functions map[string]*driver.Function
}

// New returns an engine on a device. The results of [Engine.Tune] are kept in
// cache, which may be nil.
func New(d *driver.Device, cache *driver.Cache) (*Engine, error) {
	if d.Info.Major < minMajor {
		return nil, fmt.Errorf("%s has compute capability %d.%d: the kernels need %d.0", d.Info.Name, d.Info.Major, d.Info.Minor, minMajor)
	}
	e := Planner(GPU{d.Info, d.CanCompile()}, cache)
	e.dev = d
	return e, nil
}

// Planner returns an engine that chooses for a GPU that is not at hand. It can neither upload nor multiply.
func Planner(g GPU, cache *driver.Cache) *Engine {
	return &Engine{cache: cache, gpu: g, device: g.DeviceInfo, modules: map[Kernel]*module{}, choices: map[choice]Way{}, flags: map[zeros]driver.Ptr{}}
}

// GPU returns what families know of the device.
func (e *Engine) GPU() GPU { return e.gpu }

// LimitBlocks makes grids of at most so many blocks, for small matrices to be multiplied as large
// ones are, many tiles a block. It changes no bit of a result.
func (e *Engine) LimitBlocks(most int) { e.gpu.SMs = min(most, e.device.SMs) }

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
	return errors.Join(errs...)
}

// MatMul queues Y = X·Ŵᵀ + Bias, as was found to be the fastest or is the best guess, but never by [AsNumbers] or [InFP8]: see
// [Unpacked] and [Folded]. Without
// scratch memory it is done [InTurns]. Kernels are launched with programmatic dependent launch: one that follows and is launched so may
// begin early, and must wait before it touches Y. They are compiled when they are first needed.
func (e *Engine) MatMul(s *driver.Stream, w *Matrix, o Operands) error {
	var by Way = InTurns
	var err error
	switch {
	case o.Experts != nil:
		by, err = e.mixed(w.Tiles, o.Experts.Count, o.M, o.Gates)
	case o.Gates != Gates{}:
		by, err = e.gated(w.Tiles, o.M, o.Gates)
	case o.M > MaxRows && o.Scratch != 0:
		if by = e.Way(w.Tiles, o.M); by == AsNumbers {
			by = InTurns
		}
	}
	if err != nil {
		return err
	}
	return e.MatMulWay(s, w, o, by)
}

// MatMulWay is MatMul in one of [Engine.Ways] or [Engine.Configs] but AsNumbers, or reading by one of [Engine.Twins], with scratch memory of
// [Engine.MostScratch].
func (e *Engine) MatMulWay(s *driver.Stream, w *Matrix, o Operands, by Way) error {
	n, k := w.Shape()
	if by == InTurns {
		rows := w.AtOnce(e.gpu, o.M)
		checked := o
		if o.M <= rows {
			checked.Form = nil // which the one launch is asked about
		}
		if err := checked.check(w); err != nil {
			return err
		}
		config, err := e.choice(w.Tiles, rows)
		if err != nil {
			return err
		}
		return each(n, k, o, rows, func(o Operands) error { return e.multiply(s, w, o, config) })
	}
	if rows := by.Rows(); rows > 0 && o.M > rows {
		if err := o.check(w); err != nil {
			return err
		}
		return each(n, k, o, Parts(o.M, rows), func(o Operands) error { return e.multiply(s, w, o, by) })
	}
	return e.multiply(s, w, o, by)
}

// multiply queues a product that takes one launch, and prepares X if need be.
func (e *Engine) multiply(s *driver.Stream, w *Matrix, o Operands, by Way) error {
	n, k := w.Shape()
	needs := by.Needs(n, k, o.M)
	prepared := needs.Form != nil && o.Form == needs.Form
	if prepared {
		o.Form = nil // as all others are
	}
	if err := o.check(w); err != nil {
		return err
	}
	if needs.Scratch(o.M, k) > 0 && o.Scratch == 0 {
		return fmt.Errorf("no scratch memory for %d rows of X", o.M)
	}
	if needs.Form != nil && !prepared {
		to := o.Scratch + driver.Ptr(needs.Sums)
		if err := e.Prepare(s, needs.Form, w.Format().Type, to, o.X, o.M, k); err != nil {
			return err
		}
		o.X = to
	}
	words := 0
	switch {
	case needs.Flags:
		words = FlagWords
	case needs.Left:
		words = LeftWords
	}
	if words > 0 {
		var err error
		if o.Flags, err = e.zerosOf(s, words); err != nil {
			return err
		}
	}
	if o.Step != nil {
		step := *o.Step
		step.Reads = e.readsOf(step.Behind, step.Ahead)
		o.Step = &step
	}
	launches, err := w.Launch(e.gpu, w.at, by, o)
	if err != nil {
		return err
	}
	for _, l := range launches {
		if err := e.launch(s, l); err != nil {
			return err
		}
	}
	return nil
}

// Prepare queues the writing of X [m, k], row by row, to memory of f.Bytes(m, k), in a form for a matrix's products, at a multiple
// of 16.
func (e *Engine) Prepare(s *driver.Stream, f Form, t driver.DType, to, x driver.Ptr, m, k int) error {
	if x == 0 || to == 0 || (x|to)%16 != 0 {
		return fmt.Errorf("preparing activations at %#x to %#x: want multiples of 16", uint64(x), uint64(to))
	}
	return e.launch(s, f.Prepare(e.gpu, t, to, x, m, k))
}

// launch launches a kernel.
func (e *Engine) launch(s *driver.Stream, l Launch) error {
	f, err := e.function(l)
	if err != nil {
		return err
	}
	l.Programmatic = l.Programmatic && e.device.Major >= 9
	args := e.args.Reset()
	for _, a := range l.Args {
		args.Struct(a)
	}
	return f.Launch(s, l.Launch, args)
}

// function returns a compiled function.
func (e *Engine) function(l Launch) (*driver.Function, error) {
	m := e.modules[l.Of]
	if m == nil {
		loaded, err := e.dev.LoadKernel(l.Of.Kernel())
		if err != nil {
			return nil, err
		}
		m = &module{loaded, map[string]*driver.Function{}}
		e.modules[l.Of] = m
	}
	if f := m.functions[l.Function]; f != nil {
		return f, nil
	}
	f, err := m.module.Function(l.Function)
	if err == nil && l.Shared > 0 {
		// No more of the cache becomes shared memory than is needed: what is left holds the lines
		// of loads under way, and with a seventh of it lutwide.cu takes up to 12 % longer.
		err = f.SetMaxDynamicShared(e.device.SharedPerBlock) // for launches that follow too
	}
	if err != nil {
		return nil, err
	}
	m.functions[l.Function] = f
	return f, nil
}

// zeros are so many words of a stream that are 0 before and after each product.
type zeros struct {
	stream *driver.Stream
	words  int
}

// zerosOf returns the words by which the workers of a product tell each other of sums: 0 before and after, and of one stream, whose
// products follow each other.
func (e *Engine) zerosOf(s *driver.Stream, words int) (driver.Ptr, error) {
	at, ok := e.flags[zeros{s, words}]
	if ok {
		return at, nil
	}
	at, err := e.dev.Alloc(4 * words)
	if err != nil {
		return 0, err
	}
	if err := s.Fill32(at, 0, words); err != nil {
		return 0, errors.Join(err, e.dev.Free(at))
	}
	e.flags[zeros{s, words}] = at
	return at, nil
}

// GateNeeds is [Engine.Needs] of a product with gates, of which [Engine.CanGate] reports that there is a kernel.
func (e *Engine) GateNeeds(t Tiles, m int, g Gates) Needs {
	by, err := e.gated(t, m, g)
	if err != nil {
		return Needs{}
	}
	n, k := t.Shape()
	return by.Needs(n, k, m)
}

// CanGate reports whether there is a kernel for gates of a matrix and m rows of X.
func (e *Engine) CanGate(t Tiles, m int, g Gates) bool {
	_, err := e.gated(t, m, g)
	return err == nil
}

func (e *Engine) gated(t Tiles, m int, g Gates) (Way, error) {
	gater, ok := t.(Gater)
	if !ok {
		return nil, fmt.Errorf("no kernel with gates for %d rows of activations and %s", m, t.Format().Name())
	}
	var chosen Way
	if m > MaxRows {
		chosen = e.Way(t, m)
	} else {
		var err error
		if chosen, err = e.choice(t, m); err != nil {
			return nil, err
		}
	}
	return gater.Gated(e.gpu, chosen, m, g)
}

// CanMix reports whether there is a kernel for a matrix of so many experts, with gates or without.
func (e *Engine) CanMix(t Tiles, experts int, g Gates) bool {
	_, err := e.mixed(t, experts, GroupRows, g)
	return err == nil
}

func (e *Engine) mixed(t Tiles, experts, m int, g Gates) (Way, error) {
	mixer, ok := t.(Mixer)
	if !ok {
		return nil, fmt.Errorf("no kernel for experts of %s", t.Format().Name())
	}
	return mixer.Mixed(e.gpu, experts, m, g)
}

// WaveEfficiency returns how evenly m rows of X are multiplied by a matrix on the engine's multiprocessors, in the way
// and under the configuration that [Engine.MatMul] chooses: the mean work of one over the work of the fullest, so 1 where
// all have as much. It is 0 where that is not known: of what is multiplied as numbers cuBLAS divides the work.
func (e *Engine) WaveEfficiency(t Tiles, m int) (float64, error) {
	w, ok := t.(Waver)
	by := e.Way(t, m)
	switch {
	case !ok || by == AsNumbers || by == InFP8:
		return 0, nil
	case by == InTurns:
		m = t.AtOnce(e.gpu, m)
		var err error
		if by, err = e.choice(t, m); err != nil {
			return 0, err
		}
	}
	return w.WaveEfficiency(e.gpu, by, m)
}
