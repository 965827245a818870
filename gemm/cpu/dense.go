package cpu

import "fmt"

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

// Dense is a weight matrix as a checkpoint stores it.
type Dense struct {
	n, k  int
	dtype dtype
	data  []byte
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

func (w *Dense) decode(s isa, dst []float32, panel, k0, kc int) {
	size := w.dtype.size()
	r := 16 * panel
	s.pack(dst, w.data[(r*w.k+k0)*size:], w.k*size, min(16, w.n-r), kc, w.dtype)
}
