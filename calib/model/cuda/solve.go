package cuda

import (
	"github.com/lutq/lutq/calib/model"
	"github.com/lutq/lutq/gemm/cuda/driver"
)

const (
	// factorSide is the side of the blocks that the kernels factor and solve.
	factorSide = 64
	// strip is how many columns of a symmetric product are computed at a time, so that
	// little of its other half is.
	strip = 2048
)

// Reorder writes dst[i, j] = h[order[i], order[j]], with more added to the diagonal. Both are
// floats [k, k], and not the same; order is a permutation, or nil to leave it.
func (o *Ops) Reorder(dst, h model.Array, order []int, more float32, k int) {
	check(floats(dst).n == k*k && floats(h).n == k*k && (order == nil || len(order) == k), "%d rows of [%d, %d] in another order", len(order), k, k)
	o.do(func() {
		var at driver.Ptr
		if order != nil {
			at = o.uploadInts(order)
			defer o.release(at)
		}
		o.launch("reorder", driver.Dim{X: uint32(k)}, driver.Dim{X: gradThreads}, dst, h, at, more, k)
	})
}

// Cholesky factors the symmetric h, floats [k, k], of which it reads what lies on the diagonal and
// below: h = L·Lᵀ. L is written there; what lies above the diagonal is then anything. It reports
// whether h is positive definite; if not, L is not a factor.
func (o *Ops) Cholesky(h model.Array, k int) bool {
	check(floats(h).n == k*k, "%d elements of a symmetric matrix of %d rows", h.Len(), k)
	failed := o.Floats(1) // 0, or a bit
	defer o.Free(failed)
	at := func(i, j int) driver.Ptr { return ptr(h) + driver.Ptr(4*(i*k+j)) }
	o.do(func() {
		for from := 0; from < k; from += factorSide {
			to := min(from+factorSide, k)
			o.launch("factor_block", driver.Dim{X: 1}, driver.Dim{X: gradThreads}, at(from, from), k, to-from, failed)
			if to == k {
				break
			}
			o.solveBlock("solve_block_forward", at(to, from), k, k-to, at(from, from), k, to-from)
			for c := to; c < k; c += strip {
				o.gemm(driver.GEMM{
					M: k - c, N: min(strip, k-c), K: to - from, TransB: true,
					A: driver.Operand{Ptr: at(c, from), Ld: k}, B: driver.Operand{Ptr: at(c, from), Ld: k}, C: driver.Operand{Ptr: at(c, c), Ld: k},
					In: driver.F32, Out: driver.F32, Alpha: -1, Beta: 1,
				})
			}
		}
	})
	v := make([]float32, 1)
	o.do(func() { o.fetch(driver.Bytes(v), ptr(failed)) })
	return v[0] == 0
}

// solveBlock queues the solution of rows of x by a factored block of n columns.
func (o *Ops) solveBlock(kernel string, x driver.Ptr, ldx, rows int, l driver.Ptr, ldl, n int) {
	grid, block := pieces(rows)
	o.launch(kernel, grid, block, x, ldx, rows, l, ldl, n)
}

// Solve replaces x, floats [rows, k], by x·(L·Lᵀ)⁻¹, with L as [Ops.Cholesky] leaves it.
func (o *Ops) Solve(x, l model.Array, rows, k int) {
	check(floats(x).n == rows*k && floats(l).n == k*k, "%d rows of %d solved by a factor of %d elements", rows, k, l.Len())
	if rows == 0 {
		return
	}
	row := func(j int) driver.Operand { return driver.Operand{Ptr: ptr(x) + driver.Ptr(4*j), Ld: k} }
	at := func(i, j int) driver.Operand { return driver.Operand{Ptr: ptr(l) + driver.Ptr(4*(i*k+j)), Ld: k} }
	o.do(func() {
		for from := 0; from < k; from += factorSide { // x·L⁻ᵀ
			to := min(from+factorSide, k)
			o.solveBlock("solve_block_forward", row(from).Ptr, k, rows, at(from, from).Ptr, k, to-from)
			if to < k {
				o.gemm(driver.GEMM{
					M: rows, N: k - to, K: to - from, A: row(from), B: at(to, from), C: row(to), TransB: true,
					In: driver.F32, Out: driver.F32, Alpha: -1, Beta: 1,
				})
			}
		}
		for from := (k - 1) / factorSide * factorSide; from >= 0; from -= factorSide { // ·L⁻¹
			to := min(from+factorSide, k)
			o.solveBlock("solve_block_back", row(from).Ptr, k, rows, at(from, from).Ptr, k, to-from)
			if from > 0 {
				o.gemm(driver.GEMM{
					M: rows, N: from, K: to - from, A: row(from), B: at(from, 0), C: row(0),
					In: driver.F32, Out: driver.F32, Alpha: -1, Beta: 1,
				})
			}
		}
	})
}

// UnitUpper writes A[i, j] = R[i, j]/R[j, j] to a, floats [k, k], with zeros below the diagonal. R·Rᵀ is
// the matrix that L·Lᵀ is with its rows and columns the other way round.
func (o *Ops) UnitUpper(a, l model.Array, k int) {
	check(floats(a).n == k*k && floats(l).n == k*k, "a factor of %d elements as [%d, %d]", l.Len(), k, k)
	o.do(func() { o.launch("unit_upper", driver.Dim{X: uint32(k)}, driver.Dim{X: gradThreads}, a, l, k) })
}
