package driver

import (
	"fmt"
	"runtime"
	"unsafe"
)

// Device is a GPU in use. One goroutine, locked to its thread, makes all calls
// to it: the methods of Device and of everything made from it, Do and Close
// apart, must be called inside [Device.Do].
type Device struct {
	Info DeviceInfo

	cuda *CUDA
	api  *cudaAPI
	dev  int32
	ctx  uintptr
	tid  int
	work chan request
	stop chan struct{} // closed by Close
	dead chan struct{} // closed when the goroutine has ended
	err  error         // of opening or closing; read after ready or dead
}

type request struct {
	fn   func() error
	done chan error
}

// OpenDevice takes GPU i into use: it retains the GPU's primary context, which
// cuBLAS shares, and starts the goroutine.
func (c *CUDA) OpenDevice(i int) (*Device, error) {
	info, err := c.DeviceInfo(i)
	if err != nil {
		return nil, err
	}
	api, err := c.ready()
	if err != nil {
		return nil, err
	}
	d := &Device{
		Info: info, cuda: c, api: api,
		work: make(chan request), stop: make(chan struct{}), dead: make(chan struct{}),
	}
	if d.dev, err = api.device(i); err != nil {
		return nil, err
	}
	ready := make(chan error, 1)
	go d.serve(ready)
	if err := <-ready; err != nil {
		return nil, fmt.Errorf("GPU %d: %w", i, err)
	}
	return d, nil
}

// Beside returns the same GPU in use by another goroutine, beside which this one goes on. Both have one context, so that addresses, modules
// and streams hold in either. It is closed by itself.
func (d *Device) Beside() (*Device, error) { return d.cuda.OpenDevice(d.Info.Index) }

// serve runs the device's goroutine.
func (d *Device) serve(ready chan<- error) {
	runtime.LockOSThread() // never unlocked: the thread ends with the goroutine, and the context's thread state with it
	defer close(d.dead)
	a := d.api
	if err := a.check("cuDevicePrimaryCtxRetain", call(a.primaryCtxRetain, uintptr(unsafe.Pointer(&d.ctx)), uintptr(d.dev))); err != nil {
		ready <- err
		return
	}
	defer func() {
		d.err = a.check("cuDevicePrimaryCtxRelease_v2", call(a.primaryCtxRelease, uintptr(d.dev)))
	}()
	if err := a.check("cuCtxSetCurrent", call(a.ctxSetCurrent, d.ctx)); err != nil {
		ready <- err
		return
	}
	d.tid = threadID()
	ready <- nil
	for {
		select {
		case r := <-d.work:
			r.run()
		case <-d.stop:
			return
		}
	}
}

// run carries out a request. A function that ends its goroutine, as
// testing.T.Fatal does, must not leave the caller waiting.
func (r request) run() {
	err := fmt.Errorf("%w: the function ended its goroutine", ErrClosed)
	defer func() { r.done <- err }()
	err = r.fn()
}

// Do runs fn on the device's goroutine and returns its error. Functions run
// one after the other. Inside of one, Do runs its function at once. Changing
// threads takes some ten microseconds, so loops belong inside.
func (d *Device) Do(fn func() error) error {
	if threadID() == d.tid {
		return fn()
	}
	r := request{fn, make(chan error, 1)}
	select {
	case d.work <- r:
		return <-r.done
	case <-d.dead:
		return ErrClosed
	case <-d.stop:
		return ErrClosed
	}
}

// Close waits for the function that is running and releases the GPU. Memory
// that was not freed goes with the process's last device on it. It must not be
// called inside Do, and only once.
func (d *Device) Close() error {
	close(d.stop)
	<-d.dead
	return d.err
}

// Sync waits until everything that was queued on the device is done, and
// returns the error of a kernel that failed.
func (d *Device) Sync() error {
	return d.api.check("cuCtxSynchronize", call(d.api.ctxSynchronize))
}

// Memory returns the bytes of free and of all memory.
func (d *Device) Memory() (free, total int64, err error) {
	var f, t uint64
	err = d.api.check("cuMemGetInfo_v2", call(d.api.memGetInfo, uintptr(unsafe.Pointer(&f)), uintptr(unsafe.Pointer(&t))))
	return int64(f), int64(t), err
}
