package table

import (
	"github.com/lutq/lutq/gemm/cuda"
	"github.com/lutq/lutq/gemm/cuda/driver"
	"github.com/lutq/lutq/repack"
)

// Form is an order in which kernels for many rows read X. It implements [cuda.Form].
type Form int

const (
	Columns  Form = iota // that of prepared.cuh, for lutmany.cu
	Skipping             // the same with the pairs that lutsym.cuh makes, of neighbours but one
	InOrder              // the same with columns as they are, for lutmany.cu by what is kept of every four
	Rounded              // to E4M3, that of lutbytes.cu, for lutfp8.cu
)

// Bytes implements [cuda.Form].
func (f Form) Bytes(m, k int) int {
	if f == Rounded {
		return roundedBytes(m, k)
	}
	return roundedRows(m) * f.atoms(k) * repack.AtomCols * 2
}

// Written implements [cuda.Form]: norms, gates and attention write Columns, of whole atoms, so that there is nothing to fill up.
func (f Form) Written(k int) bool { return f == Columns && k%repack.AtomCols == 0 }

// atoms returns of how many atoms rows of k columns are: where every four columns keep two, of whole ones of what is kept, which are
// two of X.
func (f Form) atoms(k int) int {
	if f == InOrder {
		return 2 * atomsOf(k/2)
	}
	return atomsOf(k)
}

// Kernel returns the source of what prepares X in a form of 16 bits.
func (f Form) Kernel() driver.Kernel { return lutcolumns{f}.Kernel() }

// Prepare implements [cuda.Form].
func (f Form) Prepare(g cuda.GPU, t driver.DType, to, x driver.Ptr, m, k int) cuda.Launch {
	if f == Rounded {
		return lutbytes{t}.launch(x, to, m, k)
	}
	return lutcolumns{f}.launch(x, to, m, k, g.SMs)
}
