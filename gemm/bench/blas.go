package bench

import (
	"github.com/lutq/lutq/gemm/cpu"
)

// sgemm is cblas_sgemm of a CBLAS library: C = alpha·op(A)·op(B) + beta·C with float32 matrices.
type sgemm func(order, transA, transB, m, n, k int32, alpha float32, a *float32, lda int32, b *byte, ldb int32, beta float32, c *float32, ldc int32)

// The numbers of cblas.h.
const (
	cblasRowMajor = 101
	cblasNoTrans  = 111
	cblasTrans    = 112
)

// times returns the series that multiplies x [m, k] by the transposes of the
// matrices [n, k] in turn, the memory of float32 numbers.
func (f sgemm) times(y, x []float32, m, n, k int, pool [][]byte) *series {
	return &series{call: func(i int) {
		w := pool[i%len(pool)]
		f(cblasRowMajor, cblasNoTrans, cblasTrans, int32(m), int32(n), int32(k), 1, &x[0], int32(k), &w[0], int32(k), 0, &y[0], int32(n))
	}}
}

// openBLAS opens the library that the options name, if they do.
func (o *Options) openBLAS(e *cpu.Engine) (sgemm, error) {
	if o.BLAS == "" {
		return nil, nil
	}
	return openSgemm(o.BLAS, e.Threads())
}
