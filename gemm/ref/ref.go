// Package ref multiplies in float64, plainly. Tests and benchmarks compare the fast kernels with it.
package ref

import (
	"math"

	"github.com/lutq/lutq/formats/weight/lut"
)

// Dot returns Σ x[k]·w[k].
func Dot[X, W float32 | float64](x []X, w []W) float64 {
	var sum float64
	for k, v := range x {
		sum += float64(v) * float64(w[k])
	}
	return sum
}

// MatMul returns Y = X·Wᵀ as [m,n], for X [m,k] and W [n,k], all row-major.
func MatMul[X, W float32 | float64](x []X, w []W, m, n, k int) []float64 {
	y := make([]float64, m*n)
	for i := range m {
		for j := range n {
			y[i*n+j] = Dot(x[i*k:(i+1)*k], w[j*k:(j+1)*k])
		}
	}
	return y
}

// LUT returns Y = X·Ŵᵀ as [m,N], for X [m,K] row-major. The weights are those
// of [lut.Matrix.Row]: float32 products of table value and scale.
func LUT[X float32 | float64](x []X, w *lut.Matrix, m int) []float64 {
	return MatMul(x, w.Dequantize(), m, w.N, w.K)
}

// RelErr returns ‖got − want‖/‖want‖ in the Frobenius norm, ‖got‖ if want is
// 0, and NaN where got holds one.
func RelErr[G, W float32 | float64](got []G, want []W) float64 {
	var diff, norm float64
	for i, w := range want {
		d := float64(got[i]) - float64(w)
		diff += d * d
		norm += float64(w) * float64(w)
	}
	if norm == 0 {
		return math.Sqrt(diff)
	}
	return math.Sqrt(diff / norm)
}
