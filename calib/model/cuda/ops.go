package cuda

import (
	"errors"
	"fmt"
	"sync"

	"github.com/lutq/lutq/calib/model"
	gemmcuda "github.com/lutq/lutq/gemm/cuda"
	"github.com/lutq/lutq/gemm/cuda/driver"
	"github.com/lutq/lutq/gemm/cuda/peers"
)

var (
	_ model.Ops    = (*Ops)(nil)
	_ model.Queuer = (*Ops)(nil)
)

// Options adjust [New].
type Options struct {
	// Type is the type of activations: F16, BF16, or F32, in which packed weights are
	// multiplied as dense ones.
	Type driver.DType

	// Reserve is how many bytes of the device's memory dense weights leave free for what
	// comes after them, besides an eighth of it. What finds no room is streamed from the host.
	Reserve int64
	// Resident, if not 0, is instead how many bytes of dense weights the device holds.
	Resident int64

	// Ahead is what products of steps that are recorded read ahead. It changes no bit of a result.
	Ahead gemmcuda.Ahead

	// Seat, if not nil, is the device's among several that have a part of a model each.
	Seat *peers.Seat
}

// Ops are the operations on one device. They may be called from any goroutine, not
// from several at a time.
type Ops struct {
	dev    *driver.Device
	engine *gemmcuda.Engine
	acts   driver.DType
	stream *driver.Stream
	blas   *driver.BLAS
	fp8    *driver.FP8BLAS // of [FP8Ops], or nil
	kept   kept
	seat   *peers.Seat // nil: it is by itself
	ahead  gemmcuda.Ahead

	kernels   []driver.Kernel // to be loaded
	modules   []*driver.Module
	functions map[string]*driver.Function
	flashes   map[flashShape]*driver.Function // nil where there is none
	trellises map[string]*driver.Module       // by name
	args      driver.Args

	pool    pool
	homes   homes
	limit   int64 // Options.Resident
	reserve int64
	staging *driver.HostBuffer
	staged  int                // bytes of staging that a queued copy may still read
	fetched *driver.HostBuffer // the same the other way, or nil

	dequantized struct { // the trainable weight at hand
		at driver.Ptr
		n  int // bytes
	}

	rounding sync.Mutex // layers are rounded by several goroutines, which take turns
	lanes    lanes      // where columns are
	main     *Ops       // whose lane these are, or nil

	recording *recording // what is being recorded

	err error // the first; touched on the device's goroutine only
}

// stagingBytes is the page-locked memory through which the host's data goes.
const stagingBytes = 4 << 20

// New returns the operations on a device, with e to multiply by packed weights.
// Kernels are compiled, or taken from the device's cache, when they are first needed.
func New(dev *driver.Device, e *gemmcuda.Engine, o Options) (*Ops, error) {
	if _, ok := actsDefine[o.Type]; !ok {
		return nil, fmt.Errorf("activations of type %v: want f16, bf16 or f32", o.Type)
	}
	ops := &Ops{dev: dev, engine: e, acts: o.Type, seat: o.Seat, ahead: o.Ahead, limit: o.Resident, reserve: o.Reserve, functions: map[string]*driver.Function{}, flashes: map[flashShape]*driver.Function{}, trellises: map[string]*driver.Module{}}
	ops.homes.buffers = map[*driver.HostBuffer]struct{}{}
	ops.pool.init()
	if err := dev.Do(ops.open); err != nil {
		return nil, errors.Join(err, ops.Close())
	}
	return ops, nil
}

func (o *Ops) open() (err error) {
	if err = o.openStream(); err != nil {
		return err
	}
	// The rest is loaded when it is first needed.
	o.kernels = loading(o.acts)
	if err := o.load(); err != nil || o.seat == nil {
		return err
	}
	return o.sit()
}

func (o *Ops) openStream() (err error) {
	if o.stream, err = o.dev.NewStream(); err != nil {
		return err
	}
	if o.blas, err = o.dev.NewBLAS(o.stream); err != nil {
		return err
	}
	if err = o.blas.SumInFloat32(); err != nil {
		return err
	}
	o.staging, err = o.dev.AllocHost(stagingBytes)
	return err
}

// Close waits for what is queued and gives everything back, but for packed weights
// that were not freed.
func (o *Ops) Close() error {
	lanes := o.lanes.close()
	return errors.Join(lanes, o.dev.Do(func() error {
		var errs []error
		if o.stream != nil {
			errs = append(errs, o.stream.Sync())
		}
		errs = append(errs, o.homes.close(), o.pool.close(o.dev))
		for _, m := range o.modules {
			errs = append(errs, m.Close())
		}
		for _, b := range []*driver.HostBuffer{o.staging, o.fetched} {
			if b != nil {
				errs = append(errs, b.Close())
			}
		}
		if o.fp8 != nil {
			errs = append(errs, o.fp8.Close())
		}
		if o.blas != nil {
			errs = append(errs, o.blas.Close())
		}
		if o.stream != nil {
			errs = append(errs, o.stream.Close())
		}
		return errors.Join(errs...)
	}))
}

// Name returns "cuda".
func (o *Ops) Name() string { return "cuda" }

// Err waits for what is queued and returns the first error.
func (o *Ops) Err() error {
	return o.dev.Do(func() error {
		if o.err == nil {
			o.fail(o.stream.Sync())
		}
		return o.err
	})
}

// Queue runs f on the device's goroutine, so that no operation has to change threads.
func (o *Ops) Queue(f func()) {
	// An error of Do itself, that the device is closed, shows in Err.
	_ = o.dev.Do(func() error {
		f()
		return nil
	})
}

// do runs f on the device's goroutine, unless something failed before. What f calls
// of o does nothing once something has failed, so f need not look.
func (o *Ops) do(f func()) {
	// An error of Do itself, that the device is closed, shows in Err.
	_ = o.dev.Do(func() error {
		if o.err == nil {
			f()
		}
		return nil
	})
}

// fail keeps the first error.
func (o *Ops) fail(err error) {
	if err != nil && o.seat != nil { // who waits for it
		o.seat.Team().Fail()
	}
	if o.err == nil {
		o.err = err
	}
}

// launch queues a kernel. Arguments are arrays, also nil ones, and their addresses,
// int (a 32-bit integer), int64, uint32, float32, float64 and the bytes of a struct. It is called inside do.
func (o *Ops) launch(name string, grid, block driver.Dim, args ...any) {
	o.launchAs(name, driver.Launch{Grid: grid, Block: block}, args)
}

// launchEarly queues a kernel that waits for those before it by itself, so that it may begin before they end.
func (o *Ops) launchEarly(name string, grid, block driver.Dim, args ...any) {
	o.launchAs(name, driver.Launch{Grid: grid, Block: block, Programmatic: o.dev.Info.Major >= 9}, args)
}

func (o *Ops) launchAs(name string, l driver.Launch, args []any) {
	if o.err != nil {
		return
	}
	f, err := o.function(name)
	if err != nil {
		o.fail(err)
		return
	}
	o.start(f, l, args)
}

// start queues a kernel that is loaded.
func (o *Ops) start(f *driver.Function, l driver.Launch, args []any) {
	if o.err != nil {
		return
	}
	a := o.args.Reset()
	for _, v := range args {
		addArg(a, v)
	}
	o.fail(f.Launch(o.stream, l, a))
}

// gemm queues a product. It is called inside do.
func (o *Ops) gemm(g driver.GEMM) {
	if o.err == nil {
		o.fail(o.blas.GEMM(g))
	}
}

// check panics with a message unless sizes fit.
func check(ok bool, format string, args ...any) {
	if !ok {
		panic(fmt.Sprintf("cuda: "+format, args...))
	}
}

// ceil returns ⌈a/b⌉.
func ceil(a, b int) int { return (a + b - 1) / b }
