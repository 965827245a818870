package driver

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"sync"
	"unsafe"
)

const purposeNCCL = "add up large arrays over several GPUs"

// ncclAPI holds the functions of NCCL.
type ncclAPI struct {
	lib     *library
	version string

	getVersion, getErrorString, getLastText uintptr
	commInitAll, commDestroy                uintptr
	allReduce, allGather                    uintptr
}

func openNCCL(p places) (*ncclAPI, error) {
	lib, err := p.find(purposeNCCL, []string{"libnccl.so.2"}, nil)
	if err != nil {
		return nil, err
	}
	a := &ncclAPI{lib: lib}
	err = lib.resolve(purposeNCCL, []symbol{
		{"ncclGetVersion", &a.getVersion},
		{"ncclGetErrorString", &a.getErrorString},
		{"ncclGetLastError", &a.getLastText},
		{"ncclCommInitAll", &a.commInitAll},
		{"ncclCommDestroy", &a.commDestroy},
		{"ncclAllReduce", &a.allReduce},
		{"ncclAllGather", &a.allGather},
	})
	if err != nil {
		return nil, err
	}
	var v int32
	if err := a.check("ncclGetVersion", call(a.getVersion, uintptr(unsafe.Pointer(&v)))); err != nil {
		return nil, err
	}
	a.version = fmt.Sprintf("%d.%d.%d", v/10000, v/100%100, v%100)
	return a, nil
}

func (a *ncclAPI) check(op string, result uintptr) error {
	code := int32(result)
	if code == 0 {
		return nil
	}
	text := call(a.getErrorString, uintptr(code)) // a static string
	e := &Error{Op: op, Code: int(code), Name: goString(*(**byte)(unsafe.Pointer(&text)))}
	if last := call(a.getLastText, 0); last != 0 {
		e.Detail = goString(*(**byte)(unsafe.Pointer(&last)))
	}
	return e
}

// Comm is a device's part in the sums that several make by NCCL. Each device calls the same methods in the same order, on its own
// goroutine, and none of them has done its part before all have been asked. Their order of adding depends on the number of
// devices and of elements alone.
type Comm struct {
	api    *ncclAPI
	handle uintptr
	args   [7]uintptr
}

// noMulticast keeps NCCL from adding in the switches between GPUs, whose failures outlive a program.
var noMulticast = sync.OnceFunc(func() {
	if _, set := os.LookupEnv("NCCL_NVLS_ENABLE"); !set {
		_ = os.Setenv("NCCL_NVLS_ENABLE", "0")
	}
})

// NewComms opens NCCL for some devices and returns the part of each. It must not be called inside Do.
func (c *CUDA) NewComms(devs []*Device) ([]*Comm, error) {
	noMulticast()
	a, err := c.nccl()
	if err != nil {
		return nil, err
	}
	handles, list := make([]uintptr, len(devs)), make([]int32, len(devs))
	for i, d := range devs {
		list[i] = int32(d.Info.Index)
	}
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // which ends with the goroutine: NCCL makes contexts current
		done <- a.check("ncclCommInitAll", call(a.commInitAll,
			uintptr(unsafe.Pointer(unsafe.SliceData(handles))), uintptr(len(devs)), uintptr(unsafe.Pointer(unsafe.SliceData(list)))))
	}()
	if err := <-done; err != nil {
		return nil, err
	}
	comms := make([]*Comm, len(devs))
	for i, h := range handles {
		comms[i] = &Comm{api: a, handle: h}
	}
	return comms, nil
}

// ncclType returns NCCL's number of a type.
func ncclType(t DType) uintptr {
	switch t {
	case F16:
		return 6
	case BF16:
		return 9
	}
	return 7
}

const ncclSum = 0

// AllReduce queues dst[i] = Σ src[i] over all devices, n elements of a type. dst may be src.
func (m *Comm) AllReduce(s *Stream, dst, src Ptr, n int, t DType) error {
	m.args = [7]uintptr{uintptr(src), uintptr(dst), uintptr(n), ncclType(t), ncclSum, m.handle, s.handle}
	return m.api.check("ncclAllReduce", call(m.api.allReduce, m.args[:]...))
}

// AllGather queues the copying of n elements of each device, one device's behind the other's, to dst of all.
func (m *Comm) AllGather(s *Stream, dst, src Ptr, n int, t DType) error {
	m.args = [7]uintptr{uintptr(src), uintptr(dst), uintptr(n), ncclType(t), m.handle, s.handle}
	return m.api.check("ncclAllGather", call(m.api.allGather, m.args[:6]...))
}

// CloseComms gives the parts of all devices back, when what was queued is done. It must not be called inside Do.
func CloseComms(comms []*Comm) error {
	done := make(chan error)
	go func() {
		runtime.LockOSThread()
		var errs []error
		for _, m := range comms {
			errs = append(errs, m.api.check("ncclCommDestroy", call(m.api.commDestroy, m.handle)))
		}
		done <- errors.Join(errs...)
	}()
	return <-done
}
