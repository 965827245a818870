package cuda

import (
	_ "embed"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/lutq/lutq/gemm/cuda/driver"
	"github.com/lutq/lutq/gemm/cuda/ptx"
)

// Folded multiplies many rows of X in E4M3, with nothing between the products of tensor cores: it writes rows of a matrix of a [Folder],
// folded as package fp8 has it, to scratch memory, as many at a time as that has room for, and cuBLASLt multiplies by them.
type Folded struct {
	BLAS    *driver.FP8BLAS
	Scratch driver.Ptr // at a multiple of 16
	Bytes   int        // of Scratch
}

// FoldedScratch is [UnpackedScratch] of a [Folded] product; none is needed where rows are kept.
func FoldedScratch(m *Matrix) int {
	if m.kept.of == driver.E4M3 && m.kept.at != 0 {
		return 0
	}
	n, k := m.Shape()
	return min(n*k, max(UnpackedBytes, unpackedRows*k))
}

// MatMul queues Y = X·Ŵᵀ, or in float32 Y += X·Ŵᵀ, with a Y [M, N] of type out: that of the matrix or F32. X is in the form [InE4M3].
// Operands have no bias.
func (f *Folded) MatMul(s *driver.Stream, w *Matrix, o Operands, out driver.DType, add bool) error {
	switch {
	case o.M < 1 || o.X == 0 || o.Y == 0:
		return fmt.Errorf("%d rows of activations at %#x to %#x", o.M, uint64(o.X), uint64(o.Y))
	case o.Form != InE4M3:
		return errors.New("a folded product reads activations in E4M3")
	case o.Bias != 0:
		return errors.New("a folded product takes no bias")
	case add && out != driver.F32:
		return errors.New("a folded product is added in float32")
	}
	scales, inverses, err := w.rowScales()
	if err != nil {
		return err
	}
	rows, k := w.Shape()
	return w.asNumbers(s, Rows{To: f.Scratch, Type: driver.E4M3, Inverses: inverses}, f.Bytes, func(at driver.Ptr, first, n int) error {
		return f.BLAS.GEMM(s, driver.FP8GEMM{
			M: o.M, N: n, K: k, X: o.X, W: at, Y: o.Y + driver.Ptr(first*out.Size()), Ld: rows,
			ScalesX: o.X + driver.Ptr(o.M*k), ScalesW: scales + driver.Ptr(4*first), Out: out, Add: add,
		})
	})
}

// InE4M3 is the form of rows of E4M3 [M, K], and behind them of each row what its numbers are to be multiplied by, float32, as package fp8 rounds
// them. K is a multiple of 16.
var InE4M3 Form = roundedRows{}

type roundedRows struct{}

// Bytes implements [Form].
func (roundedRows) Bytes(m, k int) int { return m*k + 4*m }

// Written implements [Form].
func (roundedRows) Written(int) bool { return false }

//go:embed roundrows.cu
var roundRowsSource string

const roundRowsName = "roundrows"

// Prepare implements [Form].
func (roundedRows) Prepare(_ GPU, t driver.DType, to, x driver.Ptr, m, k int) Launch {
	var p []byte
	for _, address := range []driver.Ptr{x, to, to + driver.Ptr(m*k)} {
		p = binary.LittleEndian.AppendUint64(p, uint64(address))
	}
	for _, n := range []int{m, k} {
		p = binary.LittleEndian.AppendUint32(p, uint32(n))
	}
	l := driver.Launch{Grid: driver.Dim{X: uint32(m)}, Block: driver.Dim{X: 256}, Programmatic: true}
	return Launch{Launch: l, Of: roundRows{t}, Function: roundRowsName, Args: [][]byte{p}}
}

// roundRows is roundrows.cu for activations of a type.
type roundRows struct{ dtype driver.DType }

// Kernel implements [Kernel].
func (r roundRows) Kernel() driver.Kernel { return RoundedRowsKernel(r.dtype) }

// RoundedRowsKernel returns what prepares X of a type in the form [InE4M3].
func RoundedRowsKernel(t driver.DType) driver.Kernel {
	bf16 := 0
	if t == driver.BF16 {
		bf16 = 1
	}
	return driver.Kernel{
		Name: roundRowsName + ".cu", Source: ptx.Instructions() + ptx.Numbers() + roundRowsSource,
		Options: driver.CompileOptions{Defines: []string{fmt.Sprintf("BF16=%d", bf16)}},
	}
}
