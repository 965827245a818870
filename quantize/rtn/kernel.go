package rtn

import (
	"fmt"
	"math"
	"os"

	"github.com/lutq/lutq/formats/weight/lut"
)

// lanes is the number of partial sums that a kernel keeps. It is part of the
// result: the sums below add element i to lane i%lanes and fold the lanes in
// halves, in every implementation, so that a search decides alike everywhere.
const lanes = 16

// table is a codebook made ready for the kernels.
type table struct {
	bits   int
	values [1 << lut.MaxBits]float32
	// mids[i] lies half way between values[i] and values[i+1], rounded to
	// float32. The code of x is the number of mids strictly below x, so a tie
	// goes to the lower code.
	mids [1 << lut.MaxBits]float32

	// The portable kernel starts its count at the code of the bucket that x
	// falls in; few buckets have a mid inside.
	start  [buckets]uint8
	offset float32 // added to x
	factor float32 // buckets per unit

	vectors vectors // the same for the assembly kernels
}

const buckets = 1024

func newTable(c lut.Codebook) *table {
	t := &table{bits: c.Bits()}
	n := copy(t.values[:], c.Values)
	for i := range t.mids {
		t.mids[i] = float32(math.Inf(1))
		if i < n-1 {
			t.mids[i] = (t.values[i] + t.values[i+1]) * 0.5
		}
	}
	t.offset = c.Max()
	t.factor = buckets / (2 * t.offset)
	for i := range t.start {
		// A bucket's lower edge, less the rounding of the index's arithmetic.
		edge := float64(i-1)/float64(t.factor) - float64(t.offset)
		for t.mids[t.start[i]] < float32(edge) {
			t.start[i]++
		}
	}
	t.start[0] = 0
	t.vectors = newVectors(t)
	return t
}

// code returns the number of mids strictly below x.
func (t *table) code(x float32) uint8 {
	f := (x + t.offset) * t.factor
	i := 0
	if f >= buckets-1 {
		i = buckets - 1
	} else if f > 0 {
		i = int(f)
	}
	c := t.start[i]
	for x > t.mids[c&(1<<lut.MaxBits-1)] {
		c++
	}
	return c
}

const (
	signBit = 1 << 31
	infBits = 0x7f800000
)

// kernels is one implementation of the inner loops, which all give the same
// bits. The functions in this file are the definition; the assembly keeps the
// order of their sums and rounds where they round.
type kernels struct {
	isa string

	// peaks writes the bits of the largest magnitude of each group to dst.
	peaks func(dst []uint32, w []float32, group int)

	// encode writes the codes of w·inv to dst and the sums of each group, whose
	// weights are dequantized with scale, to sums.
	encode func(t *table, dst []uint8, w []float32, group int, inv, scale []float32, sums []groupError)

	// correlate writes the moments of the codes of w·inv[i] to dst[i].
	correlate func(t *table, dst []moments, w, inv []float32)

	// pack is PackCodes.
	pack func(dst []byte, codes []uint8, bits int)
}

// groupError holds Σ w² and Σ (w - T[c]·scale)² of a group.
type groupError struct{ energy, squared float32 }

// moments holds Σ w·T[c] and Σ T[c]². The scale wq/qq is the best one for
// those codes, and takes wq²/qq off Σ w².
type moments struct{ wq, qq float32 }

// portable returns the kernels in Go.
func portable() kernels {
	return kernels{"generic", peaks, (*table).encode, (*table).correlate, lut.PackCodes}
}

// chooseKernels returns the fastest kernels that the processor can run, or
// those that the environment variable LUTQ_ISA asks for.
func chooseKernels() (kernels, error) {
	isa := os.Getenv("LUTQ_ISA")
	needs := map[string]string{"avx512": "AVX-512 F, BW and VL", "avx2": "AVX2", "neon": "NEON", "generic": ""}
	for _, k := range available() {
		if isa == "" || isa == k.isa {
			return k, nil
		}
	}
	if needs[isa] == "" {
		return kernels{}, fmt.Errorf("LUTQ_ISA=%s: want avx512, avx2, neon or generic", isa)
	}
	if !assembled {
		return kernels{}, fmt.Errorf("LUTQ_ISA=%s: this program was built without assembly", isa)
	}
	return kernels{}, fmt.Errorf("LUTQ_ISA=%s: this processor lacks %s", isa, needs[isa])
}

// peaks works on the bits: magnitudes order like their bits, with the infinity
// and then NaNs above all numbers, so a result of infBits or more tells of a
// weight that is not finite.
func peaks(dst []uint32, w []float32, group int) {
	for g := range dst {
		var top uint32
		for _, v := range w[g*group : min((g+1)*group, len(w))] {
			top = max(top, math.Float32bits(v)&^signBit)
		}
		dst[g] = top
	}
}

func (t *table) encode(dst []uint8, w []float32, group int, inv, scale []float32, sums []groupError) {
	for g := range sums {
		var energy, squared [lanes]float32
		from, to := g*group, min((g+1)*group, len(w))
		codes, s, r := dst[from:to], scale[g], inv[g]
		for i, v := range w[from:to] {
			c := t.code(float32(v * r))
			codes[i] = c
			d := v - float32(t.values[c&(1<<lut.MaxBits-1)]*s)
			squared[i%lanes] += float32(d * d)
			energy[i%lanes] += float32(v * v)
		}
		sums[g] = groupError{fold(&energy), fold(&squared)}
	}
}

func (t *table) correlate(dst []moments, w, inv []float32) {
	for i, r := range inv {
		var wq, qq [lanes]float32
		for j, v := range w {
			q := t.values[t.code(float32(v*r))&(1<<lut.MaxBits-1)]
			wq[j%lanes] += float32(v * q)
			qq[j%lanes] += float32(q * q)
		}
		dst[i] = moments{fold(&wq), fold(&qq)}
	}
}

func fold(sum *[lanes]float32) float32 {
	for half := lanes / 2; half > 0; half /= 2 {
		for i := range half {
			sum[i] += sum[i+half]
		}
	}
	return sum[0]
}
