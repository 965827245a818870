//go:build !noasm

package rtn

import (
	"github.com/lutq/lutq/formats/weight"
	"github.com/lutq/lutq/formats/weight/lut"
)

const assembled = true

// available lists the kernels that run here, the fastest first.
func available() []kernels {
	return []kernels{{"neon", peaksByNEON, encodeByNEON, correlateByNEON, packByNEON}, portable()}
}

// vectors holds a table as the assembly permutes it. The code of x is found by halving: decision d compares x with one of 2^(d-1)
// thresholds, chosen by the decisions before it, and each becomes one bit of the code, the highest first.
type vectors struct {
	first      [4]float32  // the threshold of the first decision, in every lane
	thresholds [32]float32 // of decisions 2 to 5: from 0, 4, 8 and 16 on
	values     [32]float32
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
	from := [...]int{2: 0, 3: 4, 4: 8, 5: 16}
	for d := 2; d <= t.bits; d++ {
		for p := range 1 << (d - 1) {
			v.thresholds[from[d]+p] = threshold(d, p)
		}
	}
	copy(v.values[:], t.values[:])
	return v
}

// The assembly trusts its arguments, so that these check the lengths. It takes whole groups of multiples of lanes.

// whole returns how many groups of n weights the assembly takes.
func whole(n, group int) int {
	if group%lanes != 0 {
		return 0
	}
	return n / group
}

func peaksByNEON(dst []uint32, w []float32, group int) {
	groups := whole(len(w), group)
	if groups > 0 {
		_ = dst[groups-1]
		peaksNEON(&dst[0], &w[0], groups, group)
	}
	peaks(dst[groups:], w[groups*group:], group)
}

func encodeByNEON(t *table, dst []uint8, w []float32, group int, inv, scale []float32, sums []groupError) {
	groups := whole(len(w), group)
	if groups > 0 {
		_, _, _, _ = dst[groups*group-1], inv[groups-1], scale[groups-1], sums[groups-1]
		kernel := [...]func(t *table, dst *uint8, w *float32, groups, group int, inv, scale *float32, sums *groupError){
			2: encode2NEON, 3: encode3NEON, 4: encode4NEON, 5: encode5NEON,
		}[t.bits]
		kernel(t, &dst[0], &w[0], groups, group, &inv[0], &scale[0], &sums[0])
	}
	at, all := groups*group, weight.GroupsIn(len(w), group)
	t.encode(dst[at:], w[at:], group, inv[groups:all], scale[groups:all], sums[groups:all])
}

func correlateByNEON(t *table, dst []moments, w, inv []float32) {
	dst = dst[:len(inv)]
	if len(w) == 0 || len(w)%lanes != 0 || len(inv) == 0 {
		t.correlate(dst, w, inv)
		return
	}
	kernel := [...]func(t *table, dst *moments, w *float32, n int, inv *float32, m int){
		2: correlate2NEON, 3: correlate3NEON, 4: correlate4NEON, 5: correlate5NEON,
	}[t.bits]
	kernel(t, &dst[0], &w[0], len(w), &inv[0], len(inv))
}

// packByNEON packs 16 codes at a time as long as the 16 bytes that it writes for them lie within dst, and leaves the rest to Go.
func packByNEON(dst []byte, codes []uint8, bits int) {
	dst = dst[:lut.RowBytes(len(codes), bits)]
	if room := len(dst) - 16; room >= 0 && len(codes) >= 16 {
		blocks := min(len(codes)/16, room/(2*bits)+1)
		pack16NEON(&dst[0], &codes[0], blocks, bits)
		dst, codes = dst[2*bits*blocks:], codes[16*blocks:]
	}
	lut.PackCodes(dst, codes, bits)
}

// pack16NEON packs 16·blocks codes.
//
//go:noescape
func pack16NEON(dst *byte, codes *uint8, blocks, bits int)

// The kernels take non-empty slices by their first elements: groups of group weights, m reciprocals of scales.

//go:noescape
func peaksNEON(dst *uint32, w *float32, groups, group int)

//go:noescape
func encode2NEON(t *table, dst *uint8, w *float32, groups, group int, inv, scale *float32, sums *groupError)

//go:noescape
func encode3NEON(t *table, dst *uint8, w *float32, groups, group int, inv, scale *float32, sums *groupError)

//go:noescape
func encode4NEON(t *table, dst *uint8, w *float32, groups, group int, inv, scale *float32, sums *groupError)

//go:noescape
func encode5NEON(t *table, dst *uint8, w *float32, groups, group int, inv, scale *float32, sums *groupError)

//go:noescape
func correlate2NEON(t *table, dst *moments, w *float32, n int, inv *float32, m int)

//go:noescape
func correlate3NEON(t *table, dst *moments, w *float32, n int, inv *float32, m int)

//go:noescape
func correlate4NEON(t *table, dst *moments, w *float32, n int, inv *float32, m int)

//go:noescape
func correlate5NEON(t *table, dst *moments, w *float32, n int, inv *float32, m int)
