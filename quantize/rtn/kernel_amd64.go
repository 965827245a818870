//go:build !noasm

package rtn

import (
	"github.com/lutq/lutq/formats/weight/lut"
	"golang.org/x/sys/cpu"
)

const assembled = true

// available lists the kernels that run here, the fastest first.
func available() []kernels {
	var all []kernels
	if cpu.X86.HasAVX512F && cpu.X86.HasAVX512BW && cpu.X86.HasAVX512VL && cpu.X86.HasAVX2 {
		all = append(all, kernels{"avx512", peaksBy(peaksAVX512), encodeBy(encodeAVX512), correlateBy(correlateAVX512), packAVX2})
	}
	if cpu.X86.HasAVX2 {
		all = append(all, kernels{"avx2", peaksBy(peaksAVX2), encodeBy(encodeAVX2), correlateBy(correlateAVX2), packAVX2})
	}
	return append(all, portable())
}

// vectors holds a table as the assembly permutes it. The code of x is found by
// halving: decision d compares x with one of 2^(d-1) thresholds, chosen by the
// decisions before it, and each becomes one bit of the code, the highest first.
type vectors struct {
	// first is the threshold of the first decision, in every lane.
	first [16]float32

	// AVX-512: decision d, of the first four, is bit 4-d of an index into 16
	// entries; a fifth chooses between two tables of values.
	wide       [4][16]float32 // thresholds of decisions 2 to 5
	wideValues [2][16]float32

	// AVX2: the first three decisions, read as a number, index 8 entries by its
	// negative, because a comparison that holds gives -1; more decisions choose
	// between tables.
	narrow       [5][8]float32 // thresholds of decisions 2, 3 and 4, and two tables of the fifth
	narrowValues [4][8]float32
}

func newVectors(t *table) vectors {
	var v vectors
	threshold := func(d, prefix int) float32 { // of decision d after the decisions in prefix
		half := 1 << (t.bits - d)
		return t.mids[prefix*2*half+half-1]
	}
	for i := range v.first {
		v.first[i] = threshold(1, 0)
	}
	for d := 2; d <= t.bits; d++ {
		for p := range 1 << (d - 1) {
			v.wide[d-2][p<<(5-d)] = threshold(d, p)
			if d <= 4 {
				v.narrow[d-2][-p&7] = threshold(d, p)
			} else {
				v.narrow[3+p&1][-(p>>1)&7] = threshold(d, p)
			}
		}
	}
	wide, narrow := max(t.bits-4, 0), max(t.bits-3, 0) // decisions that choose between tables
	for c := range 1 << t.bits {
		v.wideValues[c&(1<<wide-1)][c>>wide<<(4-min(t.bits, 4))] = t.values[c]
		v.narrowValues[c&(1<<narrow-1)][-(c>>narrow)&7] = t.values[c]
	}
	return v
}

// The assembly trusts its arguments, so that these check the lengths.

func peaksBy(kernel func(dst *uint32, w *float32, n, group int)) func([]uint32, []float32, int) {
	return func(dst []uint32, w []float32, group int) {
		if len(w) == 0 {
			return
		}
		_ = dst[(len(w)-1)/group]
		kernel(&dst[0], &w[0], len(w), group)
	}
}

func encodeBy(kernel func(t *table, dst *uint8, w *float32, n, group int, inv, scale *float32, sums *groupError)) func(*table, []uint8, []float32, int, []float32, []float32, []groupError) {
	return func(t *table, dst []uint8, w []float32, group int, inv, scale []float32, sums []groupError) {
		if len(w) == 0 {
			return
		}
		last := (len(w) - 1) / group
		_, _, _, _ = dst[len(w)-1], inv[last], scale[last], sums[last]
		kernel(t, &dst[0], &w[0], len(w), group, &inv[0], &scale[0], &sums[0])
	}
}

func correlateBy(kernel func(t *table, dst *moments, w *float32, n int, inv *float32, m int)) func(*table, []moments, []float32, []float32) {
	return func(t *table, dst []moments, w, inv []float32) {
		dst = dst[:len(inv)]
		if len(w) == 0 || len(inv) == 0 {
			clear(dst)
			return
		}
		kernel(t, &dst[0], &w[0], len(w), &inv[0], len(inv))
	}
}

// packAVX2 packs 32 codes at a time as long as the 2·bits+16 bytes that it may
// write for them lie within dst, and leaves the rest to Go.
func packAVX2(dst []byte, codes []uint8, bits int) {
	dst = dst[:lut.RowBytes(len(codes), bits)]
	if room := len(dst) - (2*bits + 16); room >= 0 {
		blocks := min(len(codes)/32, room/(4*bits)+1)
		pack32AVX2(&dst[0], &codes[0], blocks, bits)
		dst, codes = dst[4*bits*blocks:], codes[32*blocks:]
	}
	lut.PackCodes(dst, codes, bits)
}

// pack32AVX2 packs 32·blocks codes.
//
//go:noescape
func pack32AVX2(dst *byte, codes *uint8, blocks, bits int)

// The kernels take non-empty slices by their first elements: n weights in groups
// of group, m reciprocals of scales.

//go:noescape
func peaksAVX512(dst *uint32, w *float32, n, group int)

//go:noescape
func peaksAVX2(dst *uint32, w *float32, n, group int)

//go:noescape
func encodeAVX512(t *table, dst *uint8, w *float32, n, group int, inv, scale *float32, sums *groupError)

//go:noescape
func encodeAVX2(t *table, dst *uint8, w *float32, n, group int, inv, scale *float32, sums *groupError)

//go:noescape
func correlateAVX512(t *table, dst *moments, w *float32, n int, inv *float32, m int)

//go:noescape
func correlateAVX2(t *table, dst *moments, w *float32, n int, inv *float32, m int)
