package cpu

import (
	"encoding/binary"
	"fmt"

	"github.com/lutq/lutq/formats/num"
)

// Weights is a weight matrix W of Rows×Cols, N×K, in a stored form that
// [Engine.MatMul] decodes as it goes. [Dense] and [LUT] implement it.
type Weights interface {
	Rows() int    // N, output features
	Cols() int    // K, input features
	Bytes() int64 // memory of the stored form

	// decode writes columns k0 to k0+kc of rows 16·panel to 16·panel+15 to
	// dst as [kc][16]. Rows beyond the last may hold any finite number. k0 is
	// a multiple of kBlock and kc at most that.
	decode(s isa, dst []float32, panel, k0, kc int)
}

// dtype is a stored number format.
type dtype uint8

const (
	f32 dtype = iota
	f16
	bf16
)

func (t dtype) size() int { return [...]int{4, 2, 2}[t] }

// Dense is a weight matrix as a checkpoint stores it, or the same numbers in panels, see [Engine.Arrange].
type Dense struct {
	n, k   int
	dtype  dtype
	data   []byte
	panels bool // data is [⌈N/16⌉][K][16]
}

// NewDense wraps n×k little-endian numbers, row-major, of type "F32", "F16"
// or "BF16". It keeps data, of any alignment, and copies nothing.
func NewDense(n, k int, dtype string, data []byte) (*Dense, error) {
	w := &Dense{n: n, k: k, data: data}
	switch dtype {
	case "F32":
		w.dtype = f32
	case "F16":
		w.dtype = f16
	case "BF16":
		w.dtype = bf16
	default:
		return nil, fmt.Errorf("dense weights of type %q: want F32, F16 or BF16", dtype)
	}
	if n <= 0 || k <= 0 {
		return nil, fmt.Errorf("dense weights of shape %d×%d have no elements", n, k)
	}
	if want := n * k * w.dtype.size(); len(data) != want {
		return nil, fmt.Errorf("dense weights of shape %d×%d in %s take %d bytes: want %d", n, k, dtype, len(data), want)
	}
	return w, nil
}

// Rows returns N.
func (w *Dense) Rows() int { return w.n }

// Cols returns K.
func (w *Dense) Cols() int { return w.k }

// Bytes returns the size of the stored numbers.
func (w *Dense) Bytes() int64 { return int64(len(w.data)) }

// Arrange lays weights out for reading prompts and writing texts, in memory of their own. It must not run beside anything else
// that uses w.
//
// The numbers of dense weights are put into the panels that products read. Decoding them, which is most of such a
// product, then takes a fraction of the time, and no bit of a result changes. Quantized weights go over to fixed
// point, see [LUT.Fix], where that is faster: see [Engine.Fixes]. So do [Rings], where AVX-512 has whole numbers and float16.
func (e *Engine) Arrange(w Weights) {
	switch w := w.(type) {
	case *Dense:
		e.arrangeDense(w)
	case *LUT:
		if e.Fixes() {
			w.Fix()
		}
	case *Rings:
		w.fixed = e.fixesRings()
	}
}

// Fixes reports whether [Engine.Arrange] has products by quantized weights done in fixed point, unless Options.Exact forbids it: with
// AVX2 alone, with NEON, and with AVX-512 where that has dot products of words (VNNI).
func (e *Engine) Fixes() bool { return e.isa.fixes() && !e.exact }

func (e *Engine) arrangeDense(w *Dense) {
	if w.panels {
		return
	}
	panels, size := ceilDiv(w.n, 16), w.dtype.size()
	data := make([]byte, panels*w.k*16*size)
	e.Parallel(panels, func(_, p int) {
		rows, to := min(16, w.n-16*p), data[p*w.k*16*size:][:w.k*16*size]
		for r := range rows {
			from := w.data[(16*p+r)*w.k*size:][:w.k*size]
			if size == 2 {
				for i := 0; i < len(from); i += 2 {
					binary.LittleEndian.PutUint16(to[16*i+2*r:], binary.LittleEndian.Uint16(from[i:]))
				}
				continue
			}
			for i := 0; i < len(from); i += 4 {
				binary.LittleEndian.PutUint32(to[16*i+4*r:], binary.LittleEndian.Uint32(from[i:]))
			}
		}
	})
	w.data, w.panels = data, true
}

func (w *Dense) decode(s isa, dst []float32, panel, k0, kc int) {
	size := w.dtype.size()
	if w.panels {
		s.widen(dst[:16*kc], w.data[16*(panel*w.k+k0)*size:][:16*kc*size], w.dtype)
		return
	}
	r := 16 * panel
	s.pack(dst, w.data[(r*w.k+k0)*size:], w.k*size, min(16, w.n-r), kc, w.dtype)
}

// widenGeneric decodes stored numbers.
func widenGeneric(dst []float32, src []byte, t dtype) {
	switch t {
	case f32:
		num.DecodeF32(dst, src)
	case f16:
		num.DecodeF16(dst, src)
	case bf16:
		num.DecodeBF16(dst, src)
	}
}
