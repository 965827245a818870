// Package lookup makes tables of sums of activations. Looking up in them stands in for multiplying by weights of few
// bits (Mo et al., "LUT Tensor Core", ISCA 2025, which also makes the tables smaller).
//
// # Symmetric weights
//
// A weight s·(q − z) with a code q of b bits is s'·(q' − z') with
//
//	q' = 2q − (2^b − 1) = Σᵢ 2ⁱ·(2βᵢ − 1), s' = s/2, z' = 2z + 1 − 2^b
//
// for the bits βᵢ of q. So a dot product with x is s'·(Σᵢ 2ⁱ·Dᵢ − z'·Σx), where
// Dᵢ = Σₖ xₖ·(2βᵢₖ − 1) adds or takes off each element.
//
// # Half tables
//
// The Dᵢ of K elements are one of 2^K sums, of which those with the last bit set are the
// negatives of others: D(w) = −D(^w). A table holds those with the last bit clear.
// Where weights are laid out, what is below a last bit that is set is inverted, see
// [Remap]: then that bit is a sign and the bits below it are the place in the table.
package lookup

// Zero returns z' of a zero point z for codes of b bits.
func Zero(z, b int) int32 { return int32(2*z + 1 - 1<<b) }

// Entries is the length of the half table of k elements.
func Entries(k int) int { return 1 << (k - 1) }

// Adds is how many additions [Half] takes for k elements.
func Adds(k int) int { return k - 1 + Entries(k) - 1 }

// Half writes the half table of x: entry w, of which bit j is that of x[j], is
// Σ (2wⱼ − 1)·x[j], where the bit of the last element is 0.
func Half[T int32 | float32 | float64](dst, x []T) {
	sum := x[0]
	for _, v := range x[1:] {
		sum += v
	}
	dst[0] = -sum
	for i, v := range x[:len(x)-1] {
		for w := range 1 << i {
			dst[w+1<<i] = dst[w] + 2*v
		}
	}
}

// Remap turns k bits of weights into what [Sum] takes. It is its own inverse.
func Remap(w uint8, k int) uint8 {
	if last := uint8(1) << (k - 1); w&last != 0 {
		return w ^ (last - 1)
	}
	return w
}

// Sum returns the sum that k bits of weights choose, which were remapped, from a half table.
func Sum[T int32 | float32 | float64](table []T, w uint8, k int) T {
	last := uint8(1) << (k - 1)
	v := table[w&(last-1)]
	if w&last != 0 {
		return -v
	}
	return v
}
