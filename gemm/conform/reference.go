package conform

import (
	"math"
	"math/rand/v2"

	"github.com/lutq/lutq/formats/num"
	"github.com/lutq/lutq/formats/weight"
	"github.com/lutq/lutq/formats/weight/lut"
	"github.com/lutq/lutq/gemm/cuda/driver"
	"github.com/lutq/lutq/gemm/fp8"
	"github.com/lutq/lutq/gemm/ref"
)

// Bound returns the relative error, in the Frobenius norm, that a product may have whose
// results are of a type, F16 or BF16: a little more than rounding them once costs.
func Bound(t driver.DType) float64 {
	if t == driver.BF16 {
		return 2.5e-3
	}
	return 3e-4
}

// Reference is a product in float64, in some of the columns of Y.
type Reference struct {
	TableErr float64 // relative, of the product without a bias, that rounding the table makes

	n       int
	t       driver.DType
	columns []int
	want    [][]float64 // by row of X
}

// referenceWork is about the number of multiplications that a reference takes,
// and leastColumns the columns that it has at least, of those there are.
const (
	referenceWork = 1 << 25
	leastColumns  = 64
)

// severalWork is about how many times as long as a product by it a row takes that is stored with others.
const severalWork = 16

// NewReference multiplies the rows of x, m by K, with the weights of w, and adds a bias unless
// that is nil; both are of type t. Weights are exact products of a scale and a table value
// rounded to t. share is the number of references that have the work to share: large matrices
// are sampled with r.
func NewReference(r *rand.Rand, w *lut.Matrix, x, bias []uint16, m, share int, t driver.DType) *Reference {
	values := fromHalves(t, x)
	return newReference(r, w, values, values, RoundedTable(w.Codebook, t), bias, m, share, t)
}

// NewFP8Reference is NewReference with x and the table rounded as package fp8 does. TableErr is what both make.
func NewFP8Reference(r *rand.Rand, w *lut.Matrix, x, bias []uint16, m, share int, t driver.DType) *Reference {
	plain := fromHalves(t, x)
	values := make([]float32, len(plain))
	for i := range m {
		fp8.RoundRow(values[i*w.K:(i+1)*w.K], plain[i*w.K:(i+1)*w.K])
	}
	return newReference(r, w, plain, values, fp8.RoundTable(w.Codebook), bias, m, share, t)
}

// NewFoldedReference is NewFP8Reference with weights that are folded, of the table rounded to t.
func NewFoldedReference(r *rand.Rand, w *lut.Matrix, x, bias []uint16, m, share int, t driver.DType) *Reference {
	plain := fromHalves(t, x)
	values := make([]float32, len(plain))
	for i := range m {
		fp8.RoundRow(values[i*w.K:(i+1)*w.K], plain[i*w.K:(i+1)*w.K])
	}
	folder, held := fp8.NewFolder(w.Codebook), RoundedTable(w.Codebook, t)
	folded := make([]float32, len(held))
	return newTablesReference(r, w, plain, values, bias, m, share, t, func(scales []float32) func(group int) []float32 {
		row := folder.Scale(scales)
		return func(group int) []float32 {
			fp8.FoldTable(folded, held, scales[group], row)
			return folded
		}
	})
}

// newReference multiplies rows of x that have been rounded to values, with weights that have a table rounded.
func newReference(r *rand.Rand, w *lut.Matrix, x, values, rounded []float32, bias []uint16, m, share int, t driver.DType) *Reference {
	scaled := make([]float64, len(rounded))
	return newTablesReference(r, w, x, values, bias, m, share, t, func(scales []float32) func(group int) []float64 {
		return func(group int) []float64 {
			for c, v := range rounded {
				scaled[c] = float64(v) * float64(scales[group])
			}
			return scaled
		}
	})
}

// newTablesReference is newReference with the values of codes in each group of a row, whose scales tables is given.
func newTablesReference[T float32 | float64](r *rand.Rand, w *lut.Matrix, x, values []float32, bias []uint16, m, share int, t driver.DType, tables func(scales []float32) func(group int) []T) *Reference {
	most := max(leastColumns, referenceWork/(w.K*m*share))
	f := &Reference{n: w.N, t: t, columns: Sample(r, w.N, most), want: make([][]float64, m)}
	codes, scales := make([]uint8, w.K), make([]float32, w.Groups())
	row, plain := make([]float64, w.K), make([]float64, w.K)
	exact := make([]float64, 0, m*len(f.columns))
	all := make([]float64, 0, m*len(f.columns))
	for _, n := range f.columns {
		w.RowCodes(codes, n)
		w.RowScales(scales, n)
		of := tables(scales)
		for g, s := range scales {
			table, first := of(g), g*w.Group
			for k, c := range codes[first:min(first+w.Group, w.K)] {
				row[first+k], plain[first+k] = float64(table[c]), float64(w.Codebook[c])*float64(s)
			}
		}
		added := 0.0
		if bias != nil {
			added = float64(FromHalf(t, bias[n]))
		}
		for i := range m {
			v := ref.Dot(values[i*w.K:(i+1)*w.K], row)
			f.want[i] = append(f.want[i], v+added)
			all, exact = append(all, v), append(exact, ref.Dot(x[i*w.K:(i+1)*w.K], plain))
		}
	}
	f.TableErr = ref.RelErr(all, exact)
	return f
}

// NewRowReference is NewReference with the weights of a matrix of any kind, as its rows have them.
func NewRowReference(r *rand.Rand, w weight.Matrix, x, bias []uint16, m, share int, t driver.DType) *Reference {
	n, k := w.Shape()
	if _, ok := w.(weight.Several); ok {
		share *= severalWork
	}
	f := &Reference{n: n, t: t, columns: Sample(r, n, max(leastColumns, referenceWork/(k*m*share))), want: make([][]float64, m)}
	values := fromHalves(t, x)
	weights, row := make([]float32, k), make([]float64, k)
	for _, n := range f.columns {
		w.Row(weights, n)
		for i, v := range weights {
			row[i] = float64(v)
		}
		added := 0.0
		if bias != nil {
			added = float64(FromHalf(t, bias[n]))
		}
		for i := range m {
			f.want[i] = append(f.want[i], ref.Dot(values[i*k:(i+1)*k], row)+added)
		}
	}
	return f
}

// Errors returns the relative error of a result in the Frobenius norm, and its
// largest error, in terms of the root mean square of the reference.
func (f *Reference) Errors(y []uint16) (rel, largest float64) {
	return f.errors(func(i, n int, _ float64) float64 { return float64(FromHalf(f.t, y[i*f.n+n])) })
}

// limit returns the error that a result may have: [Bound], but where there are so few elements that
// rounding the reference itself comes near to that, a tenth of it more than that rounding.
func (f *Reference) limit() float64 {
	rounding, _ := f.errors(func(_, _ int, want float64) float64 {
		return float64(FromHalf(f.t, ToHalf(f.t, float32(want))))
	})
	bound := Bound(f.t)
	return max(bound, rounding+bound/10)
}

// errors compares what a function returns for a row of X, a column of Y and the reference there.
func (f *Reference) errors(result func(i, n int, want float64) float64) (rel, largest float64) {
	var got, want []float64
	var squares float64
	for i, row := range f.want {
		for j, n := range f.columns {
			v := result(i, n, row[j])
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

// Sample returns up to most of the numbers below n, the last among them.
func Sample(r *rand.Rand, n, most int) []int {
	if n <= most {
		s := make([]int, n)
		for i := range s {
			s[i] = i
		}
		return s
	}
	s := []int{n - 1}
	for len(s) < most {
		s = append(s, r.IntN(n))
	}
	return s
}

// ToHalf rounds a number to F16 or BF16.
func ToHalf(t driver.DType, v float32) uint16 {
	if t == driver.BF16 {
		return num.F32ToBF16(v)
	}
	return num.F32ToF16(v)
}

// FromHalf is the number that h is in F16 or BF16.
func FromHalf(t driver.DType, h uint16) float32 {
	if t == driver.BF16 {
		return num.BF16ToF32(h)
	}
	return num.F16ToF32(h)
}

func fromHalves(t driver.DType, h []uint16) []float32 {
	f := make([]float32, len(h))
	for i, v := range h {
		f[i] = FromHalf(t, v)
	}
	return f
}

// RoundedTable returns a table as the kernels hold it.
func RoundedTable(table []float32, t driver.DType) []float32 {
	r := make([]float32, len(table))
	for i, v := range table {
		r[i] = FromHalf(t, ToHalf(t, v))
	}
	return r
}
