package fp8

import (
	"math"

	"github.com/lutq/lutq/formats/num"
)

// FoldedRows is from how many rows of activations on weights are folded. It is the same whether there is memory to keep them so or not,
// for results to hang on neither.
const FoldedRows = 256

// Folds reports whether weights of n rows of k columns can be folded: tensor cores take them 16 at a time.
func Folds(n, k int) bool { return n%16 == 0 && k%16 == 0 }

// Folder folds rows of weights: it rounds the products of table values and scales of groups to E4M3 times one scale of the row. A product
// of such rows has nothing to multiply on the way, and its results are multiplied by the scale of each row of X and of each row of
// weights.
//
// Of the scales of a row one is chosen that leaves the least squared error, for weights that are normal as [Table] has them. Where
// scales of groups are powers of two apart and E4M3 has the table times a factor, nothing is rounded.
type Folder struct {
	factor float32         // of [Table]
	errs   [octave]float64 // of a group whose scale is factor·2^(i/octave) in terms of the row's, or that times a power of two
}

const (
	octave = 512 // steps of a scale
	tried  = 32  // scales of a row, of an octave
)

// NewFolder returns the folder of rows with a codebook, of finite values.
func NewFolder(codebook []float32) *Folder {
	_, factor := Table(codebook)
	f := &Folder{factor: factor}
	var most float64
	for _, v := range codebook {
		most = max(most, math.Abs(float64(v)))
	}
	share := shares(codebook, most)
	for i := range f.errs {
		r := float32(float64(factor) / 2 * math.Exp2(float64(i)/octave)) // half, for all to be within E4M3
		for c, v := range codebook {
			e := float64(num.F8E4M3ToF32(num.F32ToF8E4M3(r*v)))/float64(r) - float64(v)
			f.errs[i] += share[c] * e * e
		}
	}
	return f
}

// Scale returns the scale of a row whose groups have some scales. It is NaN where one of those is not finite.
func (f *Folder) Scale(groups []float32) float32 {
	var most float32
	for _, s := range groups {
		a := float32(math.Abs(float64(s)))
		if !(a <= math.MaxFloat32) {
			return float32(math.NaN())
		}
		most = max(most, a)
	}
	most = max(most, least)
	var sums [tried]float64
	for _, s := range groups {
		r := math.Abs(float64(s) / float64(most))
		if r == 0 {
			continue
		}
		at := int(math.Round(octave * math.Log2(r)))
		for j := range sums {
			sums[j] += r * r * f.errs[(at-j*(octave/tried))&(octave-1)]
		}
	}
	best := 0
	for j, sum := range sums {
		if sum < sums[best] {
			best = j
		}
	}
	return float32(float64(most) / float64(f.factor) * math.Exp2(float64(best)/tried))
}

// FoldTable writes what a table stands for in a group of a folded row, in terms of the scales of the group and of the row: E4M3's numbers
// times the row's scale.
func FoldTable(dst, table []float32, group, scale float32) {
	r := group * (1 / scale)
	for c, v := range table {
		dst[c] = num.F8E4M3ToF32(num.F32ToF8E4M3(r*v)) * scale
	}
}
