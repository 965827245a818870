package cuda

import (
	"errors"

	"github.com/lutq/lutq/gemm/cuda/driver"
)

// homes are the dense weights that the device has no room for. They stay in the
// host's memory, page-locked, and come to the device one at a time, when they are
// used: to one place, which they share. What is queued keeps its order, so a weight
// is copied after the last use of the one before it.
//
// The copies take what the bus takes: over PCIe several times as long as multiplying a
// window of 2048 tokens by the weight.
type homes struct {
	resident int64                           // bytes of weights that the device holds
	buffers  map[*driver.HostBuffer]struct{} // of those that it does not
	place    driver.Ptr
	size     int
	guest    *matrix // whose numbers lie in place, or nil
}

// freePart is the part of the device's memory that dense weights leave for everything
// else: activations, gradients and what learns.
const freePart = 1. / 8

// stays reports whether a weight of n bytes is to be kept on the device.
func (o *Ops) stays(n int) bool {
	if o.err != nil {
		return true // nothing is done any more
	}
	if o.limit > 0 {
		return o.homes.resident+int64(n) <= o.limit
	}
	free, total, err := o.dev.Memory()
	o.fail(err)
	return float64(free+o.pool.left()-o.reserve-int64(n)) >= freePart*float64(total)
}

// settle puts the numbers of a dense weight where they are to be: bytes of a type, to be
// converted to that of activations. It is called inside do.
func (o *Ops) settle(m *matrix, data []byte, from driver.DType) {
	n := m.n * m.k * o.acts.Size()
	if o.stays(n) {
		m.dense = o.scratch(n)
		o.uploadAs(m.dense, data, from)
		o.homes.resident += int64(n)
		return
	}
	var err error
	if m.home, err = o.dev.AllocHost(n); err != nil {
		o.fail(err)
		return
	}
	o.homes.buffers[m.home] = struct{}{}
	transcode(m.home.Bytes(), o.acts, data, from)
}

// numbers returns where the numbers of a dense weight lie on the device, until another
// weight's are asked for. It is called inside do.
func (o *Ops) numbers(m *matrix) driver.Ptr {
	if m.home == nil || o.err != nil {
		return m.dense
	}
	h := &o.homes
	if h.guest == m {
		return h.place
	}
	if n := len(m.home.Bytes()); n > h.size {
		o.release(h.place)
		h.place, h.size = o.scratch(n), n
	}
	if o.err == nil {
		o.fail(o.stream.Write(h.place, m.home, 0, len(m.home.Bytes())))
		h.guest = m
	}
	return h.place
}

// leave gives the memory of a dense weight back.
func (o *Ops) leave(m *matrix) error {
	if m.home == nil {
		if m.dense != 0 {
			o.homes.resident -= int64(m.n * m.k * o.acts.Size())
		}
		o.release(m.dense)
		m.dense = 0
		return nil
	}
	if o.homes.guest == m {
		o.homes.guest = nil
	}
	delete(o.homes.buffers, m.home)
	err := m.home.Close()
	m.home = nil
	return err
}

// close gives the host's memory back.
func (h *homes) close() error {
	var errs []error
	for b := range h.buffers {
		errs = append(errs, b.Close())
	}
	clear(h.buffers)
	return errors.Join(errs...)
}

// transcode converts numbers from one type to another.
func transcode(dst []byte, to driver.DType, src []byte, from driver.DType) {
	if to == from {
		copy(dst, src)
		return
	}
	values := make([]float32, 1<<14)
	for len(src) > 0 {
		v := values[:min(len(values), len(src)/from.Size())]
		decodeFrom(from, v, src)
		encodeAs(to, dst, v)
		src, dst = src[len(v)*from.Size():], dst[len(v)*to.Size():]
	}
}
