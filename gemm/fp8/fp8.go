// Package fp8 rounds both sides of a product to E4M3: 8-bit numbers that tensor cores multiply twice as fast as those
// of 16 bits. Activations get a scale for each row, and a codebook one factor for all of its values.
package fp8

import (
	"cmp"
	"math"
	"slices"

	"github.com/lutq/lutq/formats/num"
)

// Fits reports whether products by a matrix of K columns in groups are taken in E4M3. A group is summed by itself; those of
// 32 columns would take as long to add as to multiply.
func Fits(k, group int) bool {
	return k%32 == 0 && (group == k || group == 64 || group == 128 || group == 256)
}

// FewestRows is from how many rows of activations on products are taken in E4M3. Fewer wait for weights, not for products.
const FewestRows = 17

const (
	largest = 448      // of E4M3
	least   = 0x1p-100 // what smaller rows are taken for
)

// RoundRow rounds a row of activations to E4M3 times a 448th of its largest magnitude. A row with a number that is not
// finite becomes NaN.
func RoundRow(dst, x []float32) {
	var most float32
	for _, v := range x {
		a := float32(math.Abs(float64(v)))
		if !(a <= math.MaxFloat32) {
			a = float32(math.NaN())
		}
		most = max(most, a) // which keeps a NaN
	}
	most = max(most, least)
	scale, inverse := most/largest, largest/most
	for i, v := range x {
		dst[i] = num.F8E4M3ToF32(num.F32ToF8E4M3(v*inverse)) * scale
	}
}

// factors is how many factors of an octave are tried for a table.
const factors = 256

// Table rounds the values of a codebook to E4M3 times a factor, which it chooses for the least squared error of weights that
// are normal as [shares] has them. Values are finite.
func Table(codebook []float32) (codes []uint8, factor float32) {
	var most float64
	for _, v := range codebook {
		most = max(most, math.Abs(float64(v)))
	}
	_, exponent := math.Frexp(most)
	unit := math.Ldexp(1, min(max(7-exponent, -125), 125)) // for the largest to come to between 64 and 256
	share := shares(codebook, most)
	lowest := math.Inf(1)
	for i := range factors {
		f := float32(unit * (1 + float64(i)/factors))
		var sum float64
		for j, v := range codebook {
			e := float64(num.F8E4M3ToF32(num.F32ToF8E4M3(f*v)))/float64(f) - float64(v)
			sum += share[j] * e * e
		}
		if sum < lowest {
			lowest, factor = sum, f
		}
	}
	for _, v := range codebook {
		codes = append(codes, num.F32ToF8E4M3(factor*v))
	}
	return codes, factor
}

// shares returns which part of normal weights each value of a codebook is the nearest to, if the largest, most, is
// what groups of 64 have as their largest magnitude: 2.5 standard deviations.
func shares(codebook []float32, most float64) []float64 {
	order := make([]int, len(codebook))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(codebook[a], codebook[b]) })
	share, below := make([]float64, len(codebook)), 0.0
	for i, at := range order {
		upTo := 1.0
		if i+1 < len(order) && most > 0 {
			middle := (float64(codebook[at]) + float64(codebook[order[i+1]])) / 2
			upTo = math.Erfc(-middle/most*2.5/math.Sqrt2) / 2
		}
		share[at], below = upTo-below, upTo
	}
	return share
}

// RoundTable returns the values that [Table] stands for.
func RoundTable(codebook []float32) []float32 {
	codes, factor := Table(codebook)
	rounded := make([]float32, len(codes))
	for i, c := range codes {
		rounded[i] = num.F8E4M3ToF32(c) / factor
	}
	return rounded
}
