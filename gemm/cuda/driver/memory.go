package driver

import (
	"fmt"
	"unsafe"
)

// Ptr is an address in a GPU's memory.
type Ptr uint64

// Alloc reserves n bytes of the GPU's memory, aligned to at least 256. The
// contents are undefined. For n = 0 it returns 0.
func (d *Device) Alloc(n int) (Ptr, error) {
	if n == 0 {
		return 0, nil
	}
	if n < 0 {
		return 0, fmt.Errorf("allocating %d bytes", n)
	}
	var p Ptr
	if err := d.api.check("cuMemAlloc_v2", call(d.api.memAlloc, uintptr(unsafe.Pointer(&p)), uintptr(n))); err != nil {
		return 0, fmt.Errorf("allocating %d bytes on GPU %d: %w", n, d.Info.Index, err)
	}
	return p, nil
}

// Free gives memory back, once what uses it is done. Free(0) does nothing.
func (d *Device) Free(p Ptr) error {
	if p == 0 {
		return nil
	}
	return d.api.check("cuMemFree_v2", call(d.api.memFree, uintptr(p)))
}

// Write copies src to the GPU. Like all methods of Device that move or set
// memory, it waits for everything queued before and returns when it is done:
// for set-up and tests. Streams have their asynchronous counterparts.
func (d *Device) Write(dst Ptr, src []byte) error {
	if len(src) == 0 {
		return nil
	}
	a := d.api
	return d.ordered("cuMemcpyHtoD_v2", func() uintptr {
		return call(a.memcpyHtoD, uintptr(dst), uintptr(unsafe.Pointer(unsafe.SliceData(src))), uintptr(len(src)))
	})
}

// Read copies len(dst) bytes from the GPU.
func (d *Device) Read(dst []byte, src Ptr) error {
	if len(dst) == 0 {
		return nil
	}
	a := d.api
	return d.ordered("cuMemcpyDtoH_v2", func() uintptr {
		return call(a.memcpyDtoH, uintptr(unsafe.Pointer(unsafe.SliceData(dst))), uintptr(src), uintptr(len(dst)))
	})
}

// Copy copies n bytes within the GPU's memory.
func (d *Device) Copy(dst, src Ptr, n int) error {
	if n == 0 {
		return nil
	}
	a := d.api
	return d.ordered("cuMemcpyDtoD_v2", func() uintptr { return call(a.memcpyDtoD, uintptr(dst), uintptr(src), uintptr(n)) })
}

// Fill8 sets n bytes to v.
func (d *Device) Fill8(dst Ptr, v byte, n int) error {
	if n == 0 {
		return nil
	}
	a := d.api
	return d.ordered("cuMemsetD8_v2", func() uintptr { return call(a.memsetD8, uintptr(dst), uintptr(v), uintptr(n)) })
}

// Fill32 sets n words of 32 bits to v. dst must be a multiple of 4.
func (d *Device) Fill32(dst Ptr, v uint32, n int) error {
	if n == 0 {
		return nil
	}
	a := d.api
	return d.ordered("cuMemsetD32_v2", func() uintptr { return call(a.memsetD32, uintptr(dst), uintptr(v), uintptr(n)) })
}

// ordered runs an operation after everything queued so far and waits for its
// end. The driver alone does neither for streams that do not wait for the
// default stream, and a write from ordinary memory returns before it has
// arrived.
func (d *Device) ordered(op string, f func() uintptr) error {
	if err := d.Sync(); err != nil {
		return err
	}
	if err := d.api.check(op, f()); err != nil {
		return err
	}
	return d.Sync()
}

// Upload allocates memory for src and copies it there.
func (d *Device) Upload(src []byte) (Ptr, error) {
	p, err := d.Alloc(len(src))
	if err != nil {
		return 0, err
	}
	if err := d.Write(p, src); err != nil {
		_ = d.Free(p)
		return 0, err
	}
	return p, nil
}

// HostBuffer is page-locked memory of the host, from and to which the GPU
// copies while the program goes on.
type HostBuffer struct {
	api *cudaAPI
	mem []byte
}

// AllocHost reserves n > 0 bytes of page-locked memory.
func (d *Device) AllocHost(n int) (*HostBuffer, error) {
	if n <= 0 {
		return nil, fmt.Errorf("allocating %d bytes of page-locked memory", n)
	}
	var p unsafe.Pointer
	err := d.api.check("cuMemHostAlloc", call(d.api.memHostAlloc, uintptr(unsafe.Pointer(&p)), uintptr(n), cuMemHostAllocPortable))
	if err != nil {
		return nil, fmt.Errorf("allocating %d bytes of page-locked memory: %w", n, err)
	}
	return &HostBuffer{d.api, unsafe.Slice((*byte)(p), n)}, nil
}

// Bytes returns the memory. It must not be used after Close, nor touched while
// a copy that uses it may be running.
func (h *HostBuffer) Bytes() []byte { return h.mem }

// Ptr returns the address by which kernels read and write the memory: the host's own, as addresses are unified.
func (h *HostBuffer) Ptr() Ptr { return Ptr(uintptr(unsafe.Pointer(unsafe.SliceData(h.mem)))) }

// Close gives the memory back.
func (h *HostBuffer) Close() error {
	p := unsafe.SliceData(h.mem)
	h.mem = nil
	return h.api.check("cuMemFreeHost", call(h.api.memFreeHost, uintptr(unsafe.Pointer(p))))
}

// part returns the address of n bytes from offset.
func (h *HostBuffer) part(offset, n int) (unsafe.Pointer, error) {
	if offset < 0 || n < 0 || offset > len(h.mem)-n {
		return nil, fmt.Errorf("bytes %d to %d of a page-locked buffer of %d", offset, offset+n, len(h.mem))
	}
	return unsafe.Add(unsafe.Pointer(unsafe.SliceData(h.mem)), offset), nil
}

// Number is what [Bytes] can see the memory of.
type Number interface {
	~int8 | ~uint8 | ~int16 | ~uint16 | ~int32 | ~uint32 | ~int64 | ~uint64 | ~float32 | ~float64
}

// Bytes returns the memory of s, in the machine's byte order, without copying.
func Bytes[T Number](s []T) []byte {
	var zero T
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(s))), len(s)*int(unsafe.Sizeof(zero)))
}
