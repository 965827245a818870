package cuda

import (
	"errors"
	"fmt"

	"github.com/lutq/lutq/gemm/cuda/driver"
)

// UnpackedBytes is the scratch memory with which an [Unpacked] product is about as fast as with any
// other amount.
const UnpackedBytes = 128 << 20

// unpackedRows is what rows are unpacked in multiples of: whole tiles, and as cuBLAS divides them.
const unpackedRows = 128

// UnpackedScratch returns the least of [UnpackedBytes] and what all of a matrix takes as numbers, or what its
// fewest rows take if that is more.
func UnpackedScratch(t Tiles) int {
	n, k := t.Shape()
	row := k * t.Format().Type.Size()
	return min(n*row, max(UnpackedBytes, unpackedRows*row))
}

// Unpacked multiplies many rows of X: it writes the numbers that a matrix stands for to scratch
// memory, as many rows at a time as that has room for, and cuBLAS multiplies by them.
type Unpacked struct {
	BLAS    *driver.BLAS
	Scratch driver.Ptr
	Bytes   int // of Scratch
}

// MatMul queues Y = X·Ŵᵀ, or Y += X·Ŵᵀ, with a Y [M, N] of type out: that of the matrix or F32. Weights are
// rounded to the matrix's type, where [Engine.MatMul] multiplies its sums by the scales. Operands have no bias.
func (u *Unpacked) MatMul(s *driver.Stream, w *Matrix, o Operands, out driver.DType, add bool) error {
	switch {
	case o.M < 1 || o.X == 0 || o.Y == 0:
		return fmt.Errorf("%d rows of activations at %#x to %#x", o.M, uint64(o.X), uint64(o.Y))
	case o.Bias != 0:
		return errors.New("an unpacked product takes no bias")
	}
	beta := float32(0)
	if add {
		beta = 1
	}
	rows, k := w.Shape()
	return w.asNumbers(s, Rows{To: u.Scratch, Type: w.Type()}, u.Bytes, func(at driver.Ptr, first, n int) error {
		return u.BLAS.GEMM(driver.GEMM{
			M: o.M, N: n, K: k, TransB: true,
			A: driver.Operand{Ptr: o.X}, B: driver.Operand{Ptr: at},
			C:  driver.Operand{Ptr: o.Y + driver.Ptr(first*out.Size()), Ld: rows},
			In: w.Type(), Out: out, Alpha: 1, Beta: beta,
		})
	})
}

// asNumbers calls f for rows that are written to scratch memory of some bytes as r says, as many at a time as that has room for, or once
// for all where they are kept so.
func (m *Matrix) asNumbers(s *driver.Stream, r Rows, bytes int, f func(at driver.Ptr, first, n int) error) error {
	rows, k := m.Shape()
	if m.kept.at != 0 && m.kept.of == r.Type {
		return f(m.kept.at, 0, rows)
	}
	size := k * r.Type.Size()
	most := bytes / size
	if most < rows {
		most -= most % unpackedRows
	}
	if most == 0 {
		return fmt.Errorf("scratch memory of %d bytes for rows of %d: want %d rows", bytes, size, unpackedRows)
	}
	for r.First = 0; r.First < rows; r.First += most {
		r.Count = min(most, rows-r.First)
		if err := m.Rows(s, r); err != nil {
			return err
		}
		if err := f(r.To, r.First, r.Count); err != nil {
			return err
		}
	}
	return nil
}
