package cuda

import (
	"github.com/lutq/lutq/calib/model"
	"github.com/lutq/lutq/gemm/cuda/driver"
)

const (
	// factorSide is the side of the blocks that the kernels factor and solve.
	factorSide = 64
	// panel is how many columns are done before a product takes them to those that come after: one of 64 columns alone
	// would read and write more than it multiplies.
	panel = 256
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
	// less takes the products of rows from one on, over depth columns from another, off so many columns at the diagonal.
	less := func(row, from, columns, depth int) {
		o.gemm(driver.GEMM{
			M: k - row, N: columns, K: depth, TransB: true,
			A: driver.Operand{Ptr: at(row, from), Ld: k}, B: driver.Operand{Ptr: at(row, from), Ld: k}, C: driver.Operand{Ptr: at(row, row), Ld: k},
			In: driver.F32, Out: driver.F32, Alpha: -1, Beta: 1,
		})
	}
	o.do(func() {
		for first := 0; first < k; first += panel {
			end := min(first+panel, k)
			for from := first; from < end; from += factorSide {
				to := min(from+factorSide, end)
				o.launch("factor_block", driver.Dim{X: 1}, driver.Dim{X: gradThreads}, at(from, from), k, to-from, failed)
				if to == k {
					break
				}
				o.solveBlock("solve_block_forward", at(to, from), k, k-to, at(from, from), k, to-from)
				if to < end {
					less(to, from, end-to, to-from)
				}
			}
			for c := end; c < k; c += strip {
				less(c, first, min(strip, k-c), end-first)
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
	// less takes products of some columns with L off others.
	less := func(from, by, to driver.Operand, transposed bool, columns, depth int) {
		if columns > 0 {
			o.gemm(driver.GEMM{
				M: rows, N: columns, K: depth, A: from, B: by, C: to, TransB: transposed,
				In: driver.F32, Out: driver.F32, Alpha: -1, Beta: 1,
			})
		}
	}
	o.do(func() {
		for first := 0; first < k; first += panel { // x·L⁻ᵀ
			end := min(first+panel, k)
			for from := first; from < end; from += factorSide {
				to := min(from+factorSide, end)
				o.solveBlock("solve_block_forward", row(from).Ptr, k, rows, at(from, from).Ptr, k, to-from)
				less(row(from), at(to, from), row(to), true, end-to, to-from)
			}
			less(row(first), at(end, first), row(end), true, k-end, end-first)
		}
		for first := (k - 1) / panel * panel; first >= 0; first -= panel { // ·L⁻¹
			end := min(first+panel, k)
			for from := first + (end-1-first)/factorSide*factorSide; from >= first; from -= factorSide {
				to := min(from+factorSide, end)
				o.solveBlock("solve_block_back", row(from).Ptr, k, rows, at(from, from).Ptr, k, to-from)
				less(row(from), at(from, first), row(first), false, from-first, to-from)
			}
			less(row(first), at(first, 0), row(0), false, first, end-first)
		}
	})
}

// UnitUpper writes A[i, j] = R[i, j]/R[j, j] to a, floats [k, k], with zeros below the diagonal. R·Rᵀ is
// the matrix that L·Lᵀ is with its rows and columns the other way round.
func (o *Ops) UnitUpper(a, l model.Array, k int) {
	check(floats(a).n == k*k && floats(l).n == k*k, "a factor of %d elements as [%d, %d]", l.Len(), k, k)
	o.do(func() { o.launch("unit_upper", driver.Dim{X: uint32(k)}, driver.Dim{X: gradThreads}, a, l, k) })
}
