package lut

import (
	"cmp"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strings"

	"gonum.org/v1/gonum/stat/distuv"
)

// A Codebook is a lookup table of 2^b values in ascending order. A scale of the
// largest weight's magnitude over [Codebook.Max] keeps every weight inside the
// table. That is 1 for the built-in ones, but for those that hold the numbers of a
// format of others as they are.
type Codebook struct {
	Name   string
	Values []float32

	// Full is the magnitude that absmax gives to the largest weight where that is not Max. Then scales are positive.
	Full float32
}

// Bits returns the width of the codebook's codes.
func (c Codebook) Bits() int {
	b := 0
	for 1<<b < len(c.Values) {
		b++
	}
	return b
}

// Max returns the largest magnitude among the values.
func (c Codebook) Max() float32 {
	return max(-c.Values[0], c.Values[len(c.Values)-1])
}

// Reach returns the magnitude that absmax gives to the largest weight.
func (c Codebook) Reach() float32 { return cmp.Or(c.Full, c.Max()) }

// OneSided reports whether only one end of the table reaches Max. Mirroring
// such a table makes another, so a scale that may be negative chooses the
// better of two tables for each group at no cost in bytes.
func (c Codebook) OneSided() bool {
	return c.Full == 0 && -c.Values[0] != c.Values[len(c.Values)-1]
}

// Check reports the first reason why the values are no codebook of bits bits.
func (c Codebook) Check(bits int) error {
	if len(c.Values) != 1<<bits {
		return fmt.Errorf("codebook %s has %d values: %d bits take %d", c.Name, len(c.Values), bits, 1<<bits)
	}
	for i, v := range c.Values {
		switch {
		case math.IsNaN(float64(v)) || math.IsInf(float64(v), 0):
			return fmt.Errorf("codebook %s: value %d is %v", c.Name, i, v)
		case i > 0 && v < c.Values[i-1]:
			return fmt.Errorf("codebook %s: value %d (%v) is below the one before it (%v)", c.Name, i, v, c.Values[i-1])
		}
	}
	if c.Max() < 0x1p-60 || c.Max() > 0x1p60 {
		return fmt.Errorf("codebook %s reaches %v: want a magnitude near 1", c.Name, c.Max())
	}
	return nil
}

// Scaled returns the codebook with every value multiplied by f.
func (c Codebook) Scaled(f float32) Codebook {
	v := slices.Clone(c.Values)
	for i := range v {
		v[i] *= f
	}
	return Codebook{c.Name, v, c.Full * f}
}

// CodebookNames lists the built-in codebooks.
func CodebookNames() []string {
	return []string{"nf", "int", "fp", "kbit", "jt", "js", "q2", "q3", "q4", "q5", "sym", "iq4nl", "e2m1"}
}

// OnlyBits returns the width of a built-in codebook that exists at one, else 0. Those
// hold the numbers of a format that others read, so that scales need not change
// on the way there.
func OnlyBits(name string) int {
	switch name {
	case "q2":
		return 2
	case "q3":
		return 3
	case "q4", "iq4nl", "e2m1":
		return 4
	case "q5":
		return 5
	}
	return 0
}

// NewCodebook returns the built-in codebook of a name and width. group is the
// number of columns that will share a scale: the joint tables are fitted to
// it, the others do not depend on it.
//
//	nf    NormalFloat as FLUTE computes it; at 4 bits the table of QLoRA
//	int   equal steps, symmetric: -2^(b-1) … 2^(b-1)-1 over 2^(b-1)-1… see intValues
//	fp    sign, exponent, mantissa: e1m0, e2m0, e2m1, e2m2 at 2 to 5 bits
//	kbit  normal quantiles at (i+½)/2^b, without a zero (bitsandbytes' k-bit)
//	jt    least-squares table for a positive searched scale on normal weights
//	js    the same for a scale of either sign
//	q2…   the integers of 2, 3, 4 or 5 bits in two's complement, as they are
//	sym   the same at any width, with MARLIN's scales: positive, the largest weight half a step beyond the
//	      largest integer by absmax, so that either end of the table clips as much as the other
//	iq4nl the integers that llama.cpp's IQ4_NL has, -127 to 113 (ggml-common.h, kvalues_iq4nl)
//	e2m1  fp at 4 bits as it is, up to 6: what NVFP4 and MXFP4 hold
//
// All but sym of the last four have codes of one width, see [OnlyBits].
func NewCodebook(name string, bits, group int) (Codebook, error) {
	if bits < MinBits || bits > MaxBits {
		return Codebook{}, fmt.Errorf("codebook %s at %d bits: want %d to %d", name, bits, MinBits, MaxBits)
	}
	if only := OnlyBits(name); only != 0 && only != bits {
		return Codebook{}, fmt.Errorf("codebook %s has %d bits, not %d", name, only, bits)
	}
	var v []float32
	switch name {
	case "nf":
		v = nfValues(bits)
	case "int":
		v = intValues(bits)
	case "fp":
		v = fpValues(bits)
	case "q2", "q3", "q4", "q5":
		for i := range 1 << bits {
			v = append(v, float32(i-1<<(bits-1)))
		}
	case "sym":
		c, err := NewCodebook(fmt.Sprintf("q%d", bits), bits, group)
		return Codebook{name, c.Values, float32(int(1)<<bits-1) / 2}, err
	case "iq4nl":
		v = []float32{-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113}
	case "e2m1":
		v = floats(bits, 1)
	case "kbit":
		v = kbitValues(bits)
	case "jt", "js":
		v = jointValues(name, bits, group)
	default:
		return Codebook{}, fmt.Errorf("unknown codebook %q: want %s or file:PATH", name, strings.Join(CodebookNames(), ", "))
	}
	return Codebook{Name: name, Values: v}, nil
}

// ParseCodebook reads a codebook of bits bits from JSON: an array of 2^bits
// ascending numbers, or an object with such an array under "values".
func ParseCodebook(data []byte, name string, bits int) (Codebook, error) {
	var values []float32
	if err := json.Unmarshal(data, &values); err != nil {
		var file struct{ Values []float32 }
		if json.Unmarshal(data, &file) != nil || file.Values == nil {
			return Codebook{}, fmt.Errorf(`codebook %s is neither a JSON array of numbers nor {"values": […]}`, name)
		}
		values = file.Values
	}
	c := Codebook{Name: name, Values: values}
	return c, c.Check(bits)
}

// nfValues are FLUTE's NormalFloat tables, float32 exact: negatives
// -Φ⁻¹(linspace(1-δ, ½, 2^(b-1))), positives Φ⁻¹(linspace(½, 1-δ, 2^(b-1)+1))
// without their first, over Φ⁻¹(1-δ), with δ = ½(1/32+1/30) at every width
// (flute/nf_utils.py). The 4-bit table is QLoRA's, which bitsandbytes uses; it
// differs from the formula in the seventh digit.
func nfValues(bits int) []float32 {
	switch bits {
	case 2:
		return []float32{-1, 0, 0.3379151367, 1}
	case 3:
		return []float32{-1, -0.4786290853, -0.21714178, 0, 0.1609301444, 0.3379151367, 0.562616888, 1}
	case 4:
		return []float32{
			-1, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453,
			-0.28444138169288635, -0.18477343022823334, -0.09105003625154495, 0,
			0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
			0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1,
		}
	}
	return []float32{
		-1, -0.8258410204, -0.7102504802, -0.6202538237, -0.5447699625, -0.4786290853, -0.4189668269, -0.3640122739,
		-0.3125815539, -0.2638339461, -0.21714178, -0.1720153125, -0.1280563854, -0.0849280605, -0.0423334649, 0,
		0.0396827156, 0.079580315, 0.1199159487, 0.1609301444, 0.2028917694, 0.2461122513, 0.2909652157, 0.3379151367,
		0.3875613815, 0.4407097319, 0.4984960246, 0.562616888, 0.6358053721, 0.7229566442, 0.8344157471, 1,
	}
}

// intValues are the integers of b bits in two's complement over the largest
// positive one, with the most negative, which a symmetric quantizer leaves
// unused, held at -1 too.
func intValues(bits int) []float32 {
	q := 1<<(bits-1) - 1
	v := []float32{-1}
	for i := -q; i <= q; i++ {
		v = append(v, float32(float64(i)/float64(q)))
	}
	return v
}

// fpValues are floats over the largest.
func fpValues(bits int) []float32 {
	v := floats(bits, 1)
	return floats(bits, float64(v[len(v)-1]))
}

// floats are the numbers of a sign bit, one or two exponent bits and the
// mantissa bits that are left, subnormals included, over one of them. Zero has
// two codes, as in the format: the lower is the negative one.
func floats(bits int, over float64) []float32 {
	expBits, manBits := 2, bits-3
	if bits == 2 {
		expBits, manBits = 1, 0
	}
	var positive []float64
	for e := range 1 << expBits {
		for m := range 1 << manBits {
			frac := float64(m) / float64(int(1)<<manBits)
			if e == 0 {
				positive = append(positive, frac) // 2^0 · 0.m
			} else {
				positive = append(positive, math.Ldexp(1+frac, e-1))
			}
		}
	}
	v := make([]float32, 0, 2*len(positive))
	for _, p := range slices.Backward(positive) {
		v = append(v, float32(-p/over))
	}
	for _, p := range positive {
		v = append(v, float32(p/over))
	}
	return v
}

// kbitValues are Φ⁻¹((i+½)/2^b) over the largest, both float32 as bitsandbytes' k-bit branch has them.
func kbitValues(bits int) []float32 {
	n := 1 << bits
	v := make([]float32, n)
	quantile := func(i int) float32 { return float32(distuv.UnitNormal.Quantile(1 - (float64(i)+0.5)/float64(n))) }
	for i := range n / 2 {
		q := quantile(i) / quantile(0)
		v[i], v[n-1-i] = -q, q
	}
	return v
}

// jointValues picks the table fitted to the group size nearest to group, on a
// logarithmic scale.
func jointValues(name string, bits, group int) []float32 {
	var best jointTable
	dist := math.Inf(1)
	for _, t := range jointTables() {
		if t.name != name || t.bits != bits {
			continue
		}
		if d := math.Abs(math.Log(float64(t.group) / float64(group))); d < dist {
			best, dist = t, d
		}
	}
	return slices.Clone(best.values)
}

// jointTable is one entry of the generated list in tables.go.
type jointTable struct {
	name        string
	bits, group int
	values      []float32
}
