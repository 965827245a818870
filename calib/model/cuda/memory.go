package cuda

import (
	"errors"
	"math/bits"
	"sync"

	"github.com/lutq/lutq/calib/model"
	"github.com/lutq/lutq/formats/num"
	"github.com/lutq/lutq/gemm/cuda/driver"
)

// array is memory on the device.
type array struct {
	ptr   driver.Ptr
	n     int
	dtype driver.DType
}

// Len returns the number of elements.
func (a *array) Len() int { return a.n }

// Slice returns the elements [from, to).
func (a *array) Slice(from, to int) model.Array {
	check(0 <= from && from <= to && to <= a.n, "elements %d to %d of %d", from, to, a.n)
	return &array{a.ptr + driver.Ptr(from*a.dtype.Size()), to - from, a.dtype}
}

func (a *array) bytes() int { return a.n * a.dtype.Size() }

// ptr returns the address of an array, or 0 for none.
func ptr(a model.Array) driver.Ptr {
	if a == nil {
		return 0
	}
	return a.(*array).ptr
}

// pool keeps memory that was given back, by size. Memory may be given back while
// queued work uses it: what takes it next is queued behind.
type pool struct {
	mu    *sync.Mutex // of who trims those of others
	sizes map[driver.Ptr]int
	free  map[int][]driver.Ptr
	idle  int64 // bytes that are free
}

func (p *pool) init() {
	p.mu, p.sizes, p.free, p.idle = new(sync.Mutex), map[driver.Ptr]int{}, map[int][]driver.Ptr{}, 0
}

// poolStep is what sizes are rounded up to at least.
const poolStep = 512

// pooled rounds a size up to one of 16 between a power of two and the next, so that arrays of about as many rows share memory.
func pooled(n int) int {
	step := max(poolStep, 1<<bits.Len(uint(max(n-1, 0)))/32)
	return max(ceil(n, step), 1) * step
}

// take returns memory of n bytes, which holds anything. Where the device has no more, all of its pools give back what is free, and then
// weights are kept no more.
func (p *pool) take(o *Ops, n int) (driver.Ptr, error) {
	n = pooled(n)
	if at := p.kept(n); at != 0 {
		return at, nil
	}
	at, err := o.dev.Alloc(n)
	if driver.IsOutOfMemory(err) {
		for _, other := range o.pools() {
			if err := other.trim(o.dev); err != nil {
				return 0, err
			}
		}
		at, err = o.dev.Alloc(n)
	}
	if driver.IsOutOfMemory(err) {
		if had, dropErr := o.dropKept(); dropErr != nil {
			return 0, dropErr
		} else if had {
			at, err = o.dev.Alloc(n)
		}
	}
	if err != nil {
		return 0, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.sizes[at] = n
	return at, nil
}

// kept takes memory that was given back, 0 if there is none of that size.
func (p *pool) kept(n int) (at driver.Ptr) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if list := p.free[n]; len(list) > 0 {
		at, p.free[n] = list[len(list)-1], list[:len(list)-1]
		p.idle -= int64(n)
	}
	return at
}

// give takes memory back.
func (p *pool) give(at driver.Ptr) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if n, ok := p.sizes[at]; ok {
		p.free[n] = append(p.free[n], at)
		p.idle += int64(n)
	}
}

// left returns how many bytes were given back.
func (p *pool) left() int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.idle
}

// trim returns to the device what is free.
func (p *pool) trim(d *driver.Device) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	errs := []error{d.Sync()}
	for _, list := range p.free {
		for _, at := range list {
			errs = append(errs, d.Free(at))
			delete(p.sizes, at)
		}
	}
	clear(p.free)
	p.idle = 0
	return errors.Join(errs...)
}

// close returns everything.
func (p *pool) close(d *driver.Device) error {
	var errs []error
	for at := range p.sizes {
		errs = append(errs, d.Free(at))
	}
	p.init()
	return errors.Join(errs...)
}

// scratch returns memory of n bytes, which holds anything, until release. Both are
// called inside do.
func (o *Ops) scratch(n int) driver.Ptr {
	if o.err != nil {
		return 0
	}
	at, err := o.pool.take(o, n)
	o.fail(err)
	return at
}

func (o *Ops) release(at driver.Ptr) { o.pool.give(at) }

func (o *Ops) alloc(n int, t driver.DType) model.Array {
	check(n >= 0, "%d elements", n)
	a := &array{n: n, dtype: t}
	o.do(func() {
		a.ptr = o.scratch(a.bytes())
		o.zero(a)
	})
	return a
}

func (o *Ops) zero(a *array) {
	if o.err == nil {
		o.fail(o.stream.Fill8(a.ptr, 0, a.bytes()))
	}
}

// Floats allocates n float32 elements, zeroed.
func (o *Ops) Floats(n int) model.Array { return o.alloc(n, driver.F32) }

// Acts allocates n elements of the type of activations, zeroed.
func (o *Ops) Acts(n int) model.Array { return o.alloc(n, o.acts) }

// Free gives arrays back.
func (o *Ops) Free(arrays ...model.Array) {
	_ = o.dev.Do(func() error { // after a failure too
		for _, a := range arrays {
			if a != nil {
				o.release(ptr(a))
			}
		}
		return nil
	})
}

// Zero clears an array.
func (o *Ops) Zero(a model.Array) { o.do(func() { o.zero(a.(*array)) }) }

// upload queues a copy of the host's bytes, which may change at once. It is called
// inside do.
func (o *Ops) upload(dst driver.Ptr, src []byte) {
	for len(src) > 0 && o.err == nil {
		if o.staged == stagingBytes {
			o.fail(o.stream.Sync())
			o.staged = 0
			continue
		}
		// In halves, of which one is on its way while the other is filled.
		n := copyWide(o.staging.Bytes()[o.staged:min(o.staged+stagingBytes/2, stagingBytes)], src)
		o.fail(o.stream.Write(dst, o.staging, o.staged, n))
		o.staged += n
		dst, src = dst+driver.Ptr(n), src[n:]
	}
}

// copyWide is copy by several processors where there is much: one is slower than the way to the device.
func copyWide(dst, src []byte) int {
	const share = 1 << 19
	n := min(len(dst), len(src))
	var all sync.WaitGroup
	for from := share; from < n; from += share {
		all.Go(func() { copy(dst[from:min(from+share, n)], src[from:n]) })
	}
	copy(dst[:min(share, n)], src)
	all.Wait()
	return n
}

// uploadInts queues a copy of integers, as 32-bit ones, to scratch memory.
func (o *Ops) uploadInts(v []int) driver.Ptr {
	words := make([]int32, len(v))
	for i, x := range v {
		words[i] = int32(x)
	}
	at := o.scratch(4 * len(v))
	o.upload(at, driver.Bytes(words))
	return at
}

// Write fills an array from the host.
func (o *Ops) Write(dst model.Array, src []float32) {
	a := dst.(*array)
	check(a.n == len(src), "writing %d elements to %d", len(src), a.n)
	raw := driver.Bytes(src)
	if a.dtype != driver.F32 {
		raw = make([]byte, a.bytes())
		encodeAs(a.dtype, raw, src)
	}
	o.do(func() { o.upload(a.ptr, raw) })
}

// Read fills the host's slice from an array, once all that is queued is done.
func (o *Ops) Read(dst []float32, src model.Array) {
	a := src.(*array)
	check(a.n == len(dst), "reading %d elements of %d", len(dst), a.n)
	raw := driver.Bytes(dst)
	if a.dtype != driver.F32 {
		raw = make([]byte, a.bytes())
	}
	o.do(func() { o.fail(o.dev.Read(raw, a.ptr)) })
	if a.dtype != driver.F32 {
		decodeFrom(a.dtype, dst, raw)
	}
}

// encodeAs rounds numbers to a type.
func encodeAs(t driver.DType, dst []byte, src []float32) {
	switch t {
	case driver.F16:
		num.EncodeF16(dst, src)
	case driver.BF16:
		num.EncodeBF16(dst, src)
	default:
		num.EncodeF32(dst, src)
	}
}

// decodeFrom reads len(dst) numbers of a type.
func decodeFrom(t driver.DType, dst []float32, src []byte) {
	switch t {
	case driver.F16:
		num.DecodeF16(dst, src)
	case driver.BF16:
		num.DecodeBF16(dst, src)
	default:
		num.DecodeF32(dst, src)
	}
}

// Copy converts src to dst's type.
func (o *Ops) Copy(dst, src model.Array) {
	d, s := dst.(*array), src.(*array)
	check(d.n == s.n, "copying %d elements to %d", s.n, d.n)
	o.do(func() { o.convert(d.ptr, d.dtype, s.ptr, s.dtype, d.n) })
}

// convert queues the conversion of n numbers from one type to another. It is called
// inside do.
func (o *Ops) convert(dst driver.Ptr, to driver.DType, src driver.Ptr, from driver.DType, n int) {
	switch {
	case o.err != nil || n == 0:
	case to == from:
		o.fail(o.stream.Copy(dst, src, n*to.Size()))
	default:
		grid, block := elements(n)
		o.launch("convert_"+from.String()+"_"+to.String(), grid, block, dst, src, int64(n))
	}
}
