package bench

import (
	"fmt"
	"math"
	"math/rand/v2"

	"github.com/lutq/lutq/formats/num"
	"github.com/lutq/lutq/gemm/cuda/driver"
	"github.com/lutq/lutq/gemm/ref"
	"github.com/lutq/lutq/quantize/lut"
)

// ErrorBound returns the relative error that a product may have whose results
// are of a type: a little more than rounding them once costs, where that is to
// 16 bits.
func ErrorBound(dtype string) float64 {
	switch dtype {
	case "f16":
		return 3e-4
	case "bf16":
		return 2.5e-3
	}
	return 1e-5
}

// Y is filled with poison, which makes every element a NaN of either type, and
// has guardElements more behind it that no kernel may touch.
const (
	poison        = 0xff
	poisoned      = poison<<8 | poison
	guardElements = 64
)

func checkGuard(y []uint16) error {
	for i, v := range y {
		if v != poisoned {
			return fmt.Errorf("element %d behind the result was written: %w", i, ErrMismatch)
		}
	}
	return nil
}

// checkWritten fails at an element that is still poisoned, or not finite.
func checkWritten(y []uint16, t driver.DType) error {
	for i, v := range y {
		if v == poisoned {
			return fmt.Errorf("element %d was not written: %w", i, ErrMismatch)
		}
		if f := float64(fromHalf(t, v)); math.IsNaN(f) || math.IsInf(f, 0) {
			return fmt.Errorf("element %d is %g: %w", i, f, ErrMismatch)
		}
	}
	return nil
}

func toHalf(t driver.DType, v float32) uint16 {
	if t == driver.BF16 {
		return num.F32ToBF16(v)
	}
	return num.F32ToF16(v)
}

func fromHalf(t driver.DType, h uint16) float32 {
	if t == driver.BF16 {
		return num.BF16ToF32(h)
	}
	return num.F16ToF32(h)
}

func fromHalves(t driver.DType, h []uint16) []float32 {
	f := make([]float32, len(h))
	for i, v := range h {
		f[i] = fromHalf(t, v)
	}
	return f
}

// roundedTable returns the table as the kernels hold it.
func roundedTable(table []float32, t driver.DType) []float32 {
	r := make([]float32, len(table))
	for i, v := range table {
		r[i] = fromHalf(t, toHalf(t, v))
	}
	return r
}

// reference is a product in float64, in some of the columns of Y.
type reference struct {
	n        int
	columns  []int
	want     [][]float64 // by row of X
	tableErr float64     // relative, of the product, that rounding the table makes
}

// referenceWork is about the number of multiplications that a reference takes,
// and leastColumns the columns that it has at least, of those there are.
const (
	referenceWork = 1 << 25
	leastColumns  = 64
)

// newReference multiplies the rows of x, m by K, with m's weights. Those are
// exact products of a scale and a table value rounded to t. share is the number
// of references that have the work to share.
func newReference(r *rand.Rand, w *lut.Matrix, x []float32, m, share int, t driver.DType) *reference {
	most := max(leastColumns, referenceWork/(w.K*m*share))
	f := &reference{n: w.N, columns: sample(r, w.N, most), want: make([][]float64, m)}
	rounded := roundedTable(w.Codebook, t)
	codes, scales := make([]uint8, w.K), make([]float32, w.Groups())
	row, plain := make([]float64, w.K), make([]float64, w.K)
	exact := make([]float64, 0, m*len(f.columns))
	all := make([]float64, 0, m*len(f.columns))
	for _, n := range f.columns {
		w.RowCodes(codes, n)
		w.RowScales(scales, n)
		for k, c := range codes {
			s := float64(scales[k/w.Group])
			row[k], plain[k] = float64(rounded[c])*s, float64(w.Codebook[c])*s
		}
		for i := range m {
			x := x[i*w.K : (i+1)*w.K]
			v := ref.Dot(x, row)
			f.want[i] = append(f.want[i], v)
			all, exact = append(all, v), append(exact, ref.Dot(x, plain))
		}
	}
	f.tableErr = ref.RelErr(all, exact)
	return f
}

// errors returns the relative error of a result in the Frobenius norm, and its
// largest error, in terms of the root mean square of the reference.
func (f *reference) errors(y []uint16, t driver.DType) (rel, largest float64) {
	var got, want []float64
	var squares float64
	for i, row := range f.want {
		for j, n := range f.columns {
			v := float64(fromHalf(t, y[i*f.n+n]))
			got, want = append(got, v), append(want, row[j])
			squares += row[j] * row[j]
			largest = max(largest, math.Abs(v-row[j]))
		}
	}
	if squares > 0 {
		largest /= math.Sqrt(squares / float64(len(want)))
	}
	return ref.RelErr(got, want), largest
}
