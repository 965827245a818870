package lut

import "math"

// lanes is the number of partial sums that a kernel keeps. It is part of the
// result: the sums below add element i to lane i%lanes and fold the lanes in
// halves, in every implementation, so that a search decides alike everywhere.
const lanes = 16

// table is a codebook made ready for the kernels.
type table struct {
	bits   int
	values [1 << MaxBits]float32
	// mids[i] lies half way between values[i] and values[i+1], rounded to
	// float32. The code of x is the number of mids strictly below x, so a tie
	// goes to the lower code.
	mids [1 << MaxBits]float32

	// The portable kernel starts its count at the code of the bucket that x
	// falls in; few buckets have a mid inside.
	start  [buckets]uint8
	offset float32 // added to x
	factor float32 // buckets per unit
}

const buckets = 1024

func newTable(c Codebook) *table {
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
	for x > t.mids[c&(1<<MaxBits-1)] {
		c++
	}
	return c
}

// peak returns the bits of the largest magnitude in w. Magnitudes order like
// their bits, with the infinity and then NaNs above all numbers, so a result of
// infBits or more tells of a weight that is not finite.
func peak(w []float32) uint32 {
	var top uint32
	for _, v := range w {
		top = max(top, math.Float32bits(v)&^signBit)
	}
	return top
}

const (
	signBit = 1 << 31
	infBits = 0x7f800000
)

// encode writes the code of w·inv to dst and returns the squared error of the
// weights dequantized with scale: Σ (w - T[c]·scale)².
func (t *table) encode(dst []uint8, w []float32, inv, scale float32) float32 {
	var sum [lanes]float32
	for i, v := range w {
		c := t.code(float32(v * inv))
		dst[i] = c
		d := v - float32(t.values[c]*scale)
		sum[i%lanes] += float32(d * d)
	}
	return fold(&sum)
}

// correlate returns Σ w·T[c] and Σ T[c]² for the codes c of w·inv. The scale
// a/b is the best one for those codes, and takes a²/b off Σ w².
func (t *table) correlate(w []float32, inv float32) (a, b float32) {
	var as, bs [lanes]float32
	for i, v := range w {
		q := t.values[t.code(float32(v*inv))]
		as[i%lanes] += float32(v * q)
		bs[i%lanes] += float32(q * q)
	}
	return fold(&as), fold(&bs)
}

// energy returns Σ w².
func energy(w []float32) float32 {
	var sum [lanes]float32
	for i, v := range w {
		sum[i%lanes] += float32(v * v)
	}
	return fold(&sum)
}

func fold(sum *[lanes]float32) float32 {
	for half := lanes / 2; half > 0; half /= 2 {
		for i := range half {
			sum[i] += sum[i+half]
		}
	}
	return sum[0]
}
