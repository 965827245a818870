package bench

import (
	"errors"
	"fmt"
	"runtime"

	"golang.org/x/sync/errgroup"

	"github.com/lutq/lutq/formats/weight"
	"github.com/lutq/lutq/gemm/conform"
	"github.com/lutq/lutq/gemm/cuda/driver"
)

// denseBound is the relative error that cuBLAS's product may have of weights
// rounded to 16 bits: that of a wrong call is about 1.
const denseBound = 1e-2

// denseRing holds copies of the dense weights of a shape, for cuBLAS.
type denseRing struct {
	n, k    int
	mem     memory
	weights []driver.Ptr
	blas    *driver.BLAS // nil where cuBLAS is not there
}

// makeDense makes b.dense the ring for a matrix's shape: the one that is there,
// if it is of that shape, since the values do not matter for its time.
func (b *cudaBench) makeDense(m weight.Matrix) error {
	n, k := m.Shape()
	if d := b.dense; d != nil && d.n == n && d.k == k {
		return nil
	}
	if err := b.close(); err != nil {
		return err
	}
	d := &denseRing{n: n, k: k, mem: memory{dev: b.dev}}
	b.dense = d
	blas, err := b.dev.NewBLAS(b.stream)
	var missing *driver.MissingError
	if errors.As(err, &missing) {
		return nil
	}
	if err != nil {
		return err
	}
	d.blas = blas
	data := denseHalves(m, b.dtype)
	size := 2 * len(data)
	for !ringIsLong(len(d.weights), size, b.RingBytes) {
		if len(d.weights) == 0 {
			d.weights = append(d.weights, d.mem.upload(driver.Bytes(data)))
		} else {
			d.weights = append(d.weights, d.mem.alloc(size))
		}
		if d.mem.err != nil {
			return d.mem.err
		}
		if i := len(d.weights) - 1; i > 0 {
			if err := b.dev.Copy(d.weights[i], d.weights[0], size); err != nil {
				return err
			}
		}
	}
	return b.checkDense(m)
}

// checkDense compares a product of cuBLAS with the reference.
func (b *cudaBench) checkDense(m weight.Matrix) (err error) {
	n, k := m.Shape()
	x := conform.RandomHalves(b.rand, k, b.dtype)
	mem := memory{dev: b.dev}
	defer func() { err = errors.Join(err, mem.free()) }()
	xp, yp := mem.upload(driver.Bytes(x)), mem.alloc(2*n)
	if mem.err != nil {
		return mem.err
	}
	y := make([]uint16, n)
	d := b.dense
	err = errors.Join(
		d.blas.MatMul(yp, xp, d.weights[len(d.weights)-1], 1, n, k, b.dtype, b.dtype),
		b.stream.Sync(), b.dev.Read(driver.Bytes(y), yp))
	if err != nil {
		return err
	}
	rel, _ := conform.NewRowReference(b.rand, m, x, nil, 1, 1, b.dtype).Errors(y)
	if !(rel <= denseBound) {
		return fmt.Errorf("cuBLAS: relative error %.3g: %w", rel, ErrMismatch)
	}
	return nil
}

// close releases the dense weights.
func (b *cudaBench) close() (err error) {
	if b.fp8 != nil {
		err = b.fp8.Close()
		b.fp8 = nil
	}
	d := b.dense
	if d == nil {
		return err
	}
	b.dense = nil
	err = errors.Join(err, d.mem.free())
	if d.blas != nil {
		err = errors.Join(err, d.blas.Close())
	}
	return err
}

// denseHalves returns the weights rounded to a type.
func denseHalves(m weight.Matrix, t driver.DType) []uint16 {
	rows, k := m.Shape()
	data := make([]uint16, rows*k)
	var group errgroup.Group
	group.SetLimit(runtime.GOMAXPROCS(0))
	for from := 0; from < rows; from += weight.Together {
		group.Go(func() error {
			some := make([]float32, min(weight.Together, rows-from)*k)
			weight.RowsTo(some, m, from, len(some)/k)
			for i, v := range some {
				data[from*k+i] = conform.ToHalf(t, v)
			}
			return nil
		})
	}
	_ = group.Wait() // no worker fails
	return data
}
