package driver

import (
	"time"
	"unsafe"
)

// Stream is a queue of work that the GPU does in order. It does not wait for
// the default stream nor for others.
type Stream struct {
	api    *cudaAPI
	handle uintptr
	args   [4]uintptr // for calls that must not allocate
}

// NewStream makes a stream.
func (d *Device) NewStream() (*Stream, error) {
	s := &Stream{api: d.api}
	err := d.api.check("cuStreamCreate", call(d.api.streamCreate, uintptr(unsafe.Pointer(&s.handle)), cuStreamNonBlocking))
	if err != nil {
		return nil, err
	}
	return s, nil
}

// Close releases the stream once its work is done.
func (s *Stream) Close() error {
	return s.api.check("cuStreamDestroy_v2", call(s.api.streamDestroy, s.handle))
}

// Sync waits until the queue is empty.
func (s *Stream) Sync() error {
	return s.api.check("cuStreamSynchronize", call(s.api.streamSynchronize, s.handle))
}

// Wait makes the work queued from now on wait for an event.
func (s *Stream) Wait(e *Event) error {
	return s.api.check("cuStreamWaitEvent", call(s.api.streamWaitEvent, s.handle, e.handle, 0))
}

// Write queues a copy of n bytes of src from offset to the GPU.
func (s *Stream) Write(dst Ptr, src *HostBuffer, offset, n int) error {
	p, err := src.part(offset, n)
	if err != nil || n == 0 {
		return err
	}
	s.args = [4]uintptr{uintptr(dst), uintptr(p), uintptr(n), s.handle}
	return s.api.check("cuMemcpyHtoDAsync_v2", call(s.api.memcpyHtoDAsync, s.args[:]...))
}

// Read queues a copy of n bytes of the GPU's memory to dst at offset.
func (s *Stream) Read(dst *HostBuffer, offset int, src Ptr, n int) error {
	p, err := dst.part(offset, n)
	if err != nil || n == 0 {
		return err
	}
	s.args = [4]uintptr{uintptr(p), uintptr(src), uintptr(n), s.handle}
	return s.api.check("cuMemcpyDtoHAsync_v2", call(s.api.memcpyDtoHAsync, s.args[:]...))
}

// Copy queues a copy of n bytes within the GPU's memory.
func (s *Stream) Copy(dst, src Ptr, n int) error {
	if n == 0 {
		return nil
	}
	s.args = [4]uintptr{uintptr(dst), uintptr(src), uintptr(n), s.handle}
	return s.api.check("cuMemcpyDtoDAsync_v2", call(s.api.memcpyDtoDAsync, s.args[:]...))
}

// Fill8 queues the setting of n bytes to v.
func (s *Stream) Fill8(dst Ptr, v byte, n int) error {
	if n == 0 {
		return nil
	}
	s.args = [4]uintptr{uintptr(dst), uintptr(v), uintptr(n), s.handle}
	return s.api.check("cuMemsetD8Async", call(s.api.memsetD8Async, s.args[:]...))
}

// Fill32 queues the setting of n words of 32 bits to v.
func (s *Stream) Fill32(dst Ptr, v uint32, n int) error {
	if n == 0 {
		return nil
	}
	s.args = [4]uintptr{uintptr(dst), uintptr(v), uintptr(n), s.handle}
	return s.api.check("cuMemsetD32Async", call(s.api.memsetD32Async, s.args[:]...))
}

// Event is a point in a stream's work.
type Event struct {
	api    *cudaAPI
	handle uintptr
	args   [2]uintptr
}

// NewEvent makes an event that notes its time.
func (d *Device) NewEvent() (*Event, error) { return d.newEvent(0) }

// NewUntimedEvent makes an event for [Stream.Wait] alone, which costs less.
func (d *Device) NewUntimedEvent() (*Event, error) { return d.newEvent(cuEventDisableTiming) }

func (d *Device) newEvent(flags uintptr) (*Event, error) {
	e := &Event{api: d.api}
	err := d.api.check("cuEventCreate", call(d.api.eventCreate, uintptr(unsafe.Pointer(&e.handle)), flags))
	if err != nil {
		return nil, err
	}
	return e, nil
}

// Close releases the event.
func (e *Event) Close() error {
	return e.api.check("cuEventDestroy_v2", call(e.api.eventDestroy, e.handle))
}

// Record puts the event at the end of the stream's queue.
func (e *Event) Record(s *Stream) error {
	e.args = [2]uintptr{e.handle, s.handle}
	return e.api.check("cuEventRecord", call(e.api.eventRecord, e.args[:]...))
}

// Sync waits until the stream has come to the event.
func (e *Event) Sync() error {
	return e.api.check("cuEventSynchronize", call(e.api.eventSynchronize, e.handle))
}

// Since returns the time from an earlier event to this one. Both must have
// been reached. The GPU's clock ticks about every half microsecond.
func (e *Event) Since(start *Event) (time.Duration, error) {
	var ms float32
	err := e.api.check("cuEventElapsedTime", call(e.api.eventElapsed, uintptr(unsafe.Pointer(&ms)), start.handle, e.handle))
	return time.Duration(float64(ms) * float64(time.Millisecond)), err
}
