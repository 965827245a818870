package num

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"sort"
	"testing"

	"pgregory.net/rapid"
)

// format describes one of the formats by its fields, for a decoder and an
// encoder that share nothing with the package's own.
type format struct {
	name               string
	signed, nonFinite  bool
	expBits, manBits   int
	bias               int
	toF32              func(uint16) float32
	fromF32            func(float32) uint16
	largest, saturates float64 // saturates: 0 for formats with an infinity
}

func formatsUnderTest() []format {
	return []format{
		{"F16", true, true, 5, 10, 15, F16ToF32, F32ToF16, 65504, 0},
		{"BF16", true, true, 8, 7, 127, BF16ToF32, F32ToBF16, 0x1.fep127, 0},
		{
			"E4M4", false, false, 4, 4, 11,
			func(c uint16) float32 { return E4M4ToF32(uint8(c)) },
			func(f float32) uint16 { return uint16(F32ToE4M4(f)) },
			31, 31,
		},
		{
			"S1E4M3", true, false, 4, 3, 11,
			func(c uint16) float32 { return S1E4M3ToF32(uint8(c)) },
			func(f float32) uint16 { return uint16(F32ToS1E4M3(f)) },
			30, 30,
		},
	}
}

func (f format) codes() int {
	n := 1 << (f.expBits + f.manBits)
	if f.signed {
		n *= 2
	}
	return n
}

// value computes what a code stands for from the definition, in float64.
func (f format) value(code int) float64 {
	m := code & (1<<f.manBits - 1)
	e := code >> f.manBits & (1<<f.expBits - 1)
	sign := 1.0
	if f.signed && code>>(f.manBits+f.expBits) != 0 {
		sign = -1
	}
	frac := float64(m) / float64(int(1)<<f.manBits)
	switch {
	case f.nonFinite && e == 1<<f.expBits-1 && m != 0:
		return math.NaN()
	case f.nonFinite && e == 1<<f.expBits-1:
		return math.Inf(int(sign))
	case e == 0:
		return sign * math.Ldexp(frac, 1-f.bias)
	}
	return sign * math.Ldexp(1+frac, e-f.bias)
}

// slow encodes by searching all finite codes for the nearest value. Of two
// equally near ones the even code wins. The value one step beyond the largest
// finite one stands for infinity, where there is one.
type slow struct {
	f      format
	values []float64 // ascending, of the non-negative codes 0, 1, …
}

func newSlow(f format) slow {
	s := slow{f: f}
	for c := range 1 << (f.expBits + f.manBits) {
		v := f.value(c)
		if math.IsInf(v, 0) {
			v = math.Ldexp(1, 1<<f.expBits-1-f.bias)
		}
		if math.IsNaN(v) {
			break
		}
		s.values = append(s.values, v)
	}
	return s
}

func (s slow) encode(v float32) uint16 {
	x := float64(v)
	signBit := uint16(1) << (s.f.expBits + s.f.manBits)
	negative := math.Signbit(x)
	if !s.f.nonFinite && (x != x || negative && !s.f.signed) {
		return 0
	}
	a := math.Abs(x)
	i := sort.SearchFloat64s(s.values, a)
	switch {
	case i == len(s.values):
		i--
	case i > 0:
		below, above := a-s.values[i-1], s.values[i]-a
		if below < above || below == above && (i-1)%2 == 0 {
			i--
		}
	}
	code := uint16(i)
	if negative && (code != 0 || s.f.nonFinite) {
		code |= signBit
	}
	return code
}

func TestDecodeEveryCode(t *testing.T) {
	for _, f := range formatsUnderTest() {
		t.Run(f.name, func(t *testing.T) {
			for c := range f.codes() {
				want, got := f.value(c), float64(f.toF32(uint16(c)))
				if math.IsNaN(want) {
					if !math.IsNaN(got) {
						t.Fatalf("code %#x decodes to %v: want NaN", c, got)
					}
					continue
				}
				if math.Float64bits(got) != math.Float64bits(want) {
					t.Fatalf("code %#x decodes to %v: want %v", c, got, want)
				}
			}
		})
	}
}

func TestEncodeEveryCodeBack(t *testing.T) {
	for _, f := range formatsUnderTest() {
		t.Run(f.name, func(t *testing.T) {
			for c := range f.codes() {
				v := f.toF32(uint16(c))
				got, want := f.fromF32(v), uint16(c)
				if v != v {
					if r := f.toF32(got); r == r {
						t.Fatalf("NaN code %#x comes back as %v", c, r)
					}
					continue
				}
				if v == 0 && !f.nonFinite {
					want = 0 // the byte formats have one zero
				}
				if got != want {
					t.Fatalf("code %#x (%v) comes back as %#x: want %#x", c, v, got, want)
				}
			}
		})
	}
}

// TestEncodeAroundEveryBoundary tries every representable value, every
// midpoint of neighbours, and the float32 numbers next to both.
func TestEncodeAroundEveryBoundary(t *testing.T) {
	for _, f := range formatsUnderTest() {
		t.Run(f.name, func(t *testing.T) {
			s := newSlow(f)
			for i, v := range s.values {
				points := []float32{float32(v)}
				if i+1 < len(s.values) {
					points = append(points, float32((v+s.values[i+1])/2))
				}
				for _, p := range points {
					bits := math.Float32bits(p)
					for _, b := range []uint32{bits - 1, bits, bits + 1} {
						x := math.Float32frombits(b &^ (1 << 31))
						for _, x := range []float32{x, -x} {
							if x != x {
								continue
							}
							if got, want := f.fromF32(x), s.encode(x); got != want {
								t.Fatalf("%v (%#08x) encodes to %#x: want %#x", x, math.Float32bits(x), got, want)
							}
						}
					}
				}
			}
		})
	}
}

func TestEncodeIsNearest(t *testing.T) {
	for _, f := range formatsUnderTest() {
		s := newSlow(f)
		t.Run(f.name, func(t *testing.T) {
			check := func(x float32) error {
				if x != x && f.nonFinite {
					if r := f.toF32(f.fromF32(x)); r == r {
						return fmt.Errorf("NaN encodes to %v", r)
					}
					return nil
				}
				if got, want := f.fromF32(x), s.encode(x); got != want {
					return fmt.Errorf("%v (%#08x) encodes to %#x: want %#x", x, math.Float32bits(x), got, want)
				}
				return nil
			}
			rapid.Check(t, func(t *rapid.T) {
				if err := check(math.Float32frombits(rapid.Uint32().Draw(t, "bits"))); err != nil {
					t.Fatal(err)
				}
			})
			// Bulk: any bits, and numbers in the format's own range.
			rng := rand.New(rand.NewPCG(1, 2))
			for range 200_000 {
				for _, x := range []float32{
					math.Float32frombits(rng.Uint32()),
					float32(math.Ldexp(rng.Float64()*2-1, rng.IntN(1<<f.expBits+4)-f.bias-2)),
				} {
					if err := check(x); err != nil {
						t.Fatal(err)
					}
				}
			}
		})
	}
}

func TestEncodeSpecialValues(t *testing.T) {
	inf, nan := float32(math.Inf(1)), float32(math.NaN())
	negZero := float32(math.Copysign(0, -1))
	tests := []struct {
		name string
		got  uint16
		want uint16
	}{
		{"F16 infinity", F32ToF16(inf), 0x7c00},
		{"F16 -infinity", F32ToF16(-inf), 0xfc00},
		{"F16 65519.996 rounds down", F32ToF16(math.Nextafter32(65520, 0)), 0x7bff},
		{"F16 65520 overflows", F32ToF16(65520), 0x7c00},
		{"F16 -0", F32ToF16(negZero), 0x8000},
		{"F16 2^-25 ties to zero", F32ToF16(0x1p-25), 0},
		{"F16 above 2^-25", F32ToF16(math.Nextafter32(0x1p-25, 1)), 1},
		{"F16 subnormal carries into normal", F32ToF16(math.Nextafter32(0x1p-14, 0)), 0x400},
		{"BF16 largest float32 overflows", F32ToBF16(math.MaxFloat32), 0x7f80},
		{"BF16 NaN with low payload only", F32ToBF16(math.Float32frombits(0x7f800001)), 0x7fc0},
		{"BF16 NaN of all ones", F32ToBF16(math.Float32frombits(0xffffffff)), 0xffff},
		{"BF16 -0", F32ToBF16(negZero), 0x8000},
		{"E4M4 NaN", uint16(F32ToE4M4(nan)), 0},
		{"E4M4 infinity", uint16(F32ToE4M4(inf)), 0xff},
		{"E4M4 -infinity", uint16(F32ToE4M4(-inf)), 0},
		{"E4M4 -1", uint16(F32ToE4M4(-1)), 0},
		{"E4M4 1", uint16(F32ToE4M4(1)), 0xb0},
		{"E4M4 32", uint16(F32ToE4M4(32)), 0xff},
		{"E4M4 carry into the exponent", uint16(F32ToE4M4(1.99)), 0xc0},
		{"E4M4 carry out of the subnormals", uint16(F32ToE4M4(0x1.ffp-11)), 0x10},
		{"E4M4 smallest float32", uint16(F32ToE4M4(math.SmallestNonzeroFloat32)), 0},
		{"S1E4M3 NaN", uint16(F32ToS1E4M3(nan)), 0},
		{"S1E4M3 infinity", uint16(F32ToS1E4M3(inf)), 0x7f},
		{"S1E4M3 -infinity", uint16(F32ToS1E4M3(-inf)), 0xff},
		{"S1E4M3 -0", uint16(F32ToS1E4M3(negZero)), 0},
		{"S1E4M3 rounds to -0", uint16(F32ToS1E4M3(-0x1p-20)), 0},
		{"S1E4M3 -1", uint16(F32ToS1E4M3(-1)), 0xd8},
		{"S1E4M3 carry into the exponent", uint16(F32ToS1E4M3(-1.99)), 0xe0},
	}
	for _, tt := range tests {
		if tt.got != tt.want {
			t.Errorf("%s: got %#x: want %#x", tt.name, tt.got, tt.want)
		}
	}
}

// TestCodesAreOrdered: the codes of non-negative numbers ascend as the numbers
// do, from zero to the documented largest, so that integers compare as values.
func TestCodesAreOrdered(t *testing.T) {
	for _, f := range formatsUnderTest() {
		t.Run(f.name, func(t *testing.T) {
			last := len(newSlow(f).values) - 1
			if f.nonFinite {
				last--
			}
			if got := float64(f.toF32(uint16(last))); got != f.largest {
				t.Errorf("largest finite value is %v: want %v", got, f.largest)
			}
			for c := 1; c <= last; c++ {
				if a, b := f.toF32(uint16(c-1)), f.toF32(uint16(c)); !(a < b) {
					t.Fatalf("codes %#x, %#x decode to %v, %v: want ascending", c-1, c, a, b)
				}
			}
		})
	}
}

func TestEncodeIsMonotone(t *testing.T) {
	for _, f := range formatsUnderTest() {
		t.Run(f.name, func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) {
				a, b := rapid.Float32().Draw(t, "a"), rapid.Float32().Draw(t, "b")
				if a > b {
					a, b = b, a
				}
				if ra, rb := f.toF32(f.fromF32(a)), f.toF32(f.fromF32(b)); ra > rb {
					t.Fatalf("%v rounds to %v and the larger %v to %v", a, ra, b, rb)
				}
			})
		})
	}
}

// sliceCodec is one pair of the slice functions beside the scalar pair that
// defines them.
type sliceCodec struct {
	name   string
	size   int
	decode func([]float32, []byte)
	encode func([]byte, []float32)
	one    func([]byte) float32
	put    func([]byte, float32)
}

func sliceCodecs() []sliceCodec {
	le := binary.LittleEndian
	return []sliceCodec{
		{
			"F16", 2, DecodeF16, EncodeF16,
			func(b []byte) float32 { return F16ToF32(le.Uint16(b)) },
			func(b []byte, v float32) { le.PutUint16(b, F32ToF16(v)) },
		},
		{
			"BF16", 2, DecodeBF16, EncodeBF16,
			func(b []byte) float32 { return BF16ToF32(le.Uint16(b)) },
			func(b []byte, v float32) { le.PutUint16(b, F32ToBF16(v)) },
		},
		{
			"F32", 4, DecodeF32, EncodeF32,
			func(b []byte) float32 { return math.Float32frombits(le.Uint32(b)) },
			func(b []byte, v float32) { le.PutUint32(b, math.Float32bits(v)) },
		},
		{
			"F64", 8, DecodeF64, EncodeF64,
			func(b []byte) float32 { return float32(math.Float64frombits(le.Uint64(b))) },
			func(b []byte, v float32) { le.PutUint64(b, math.Float64bits(float64(v))) },
		},
		{
			"E4M4", 1, DecodeE4M4, EncodeE4M4,
			func(b []byte) float32 { return E4M4ToF32(b[0]) },
			func(b []byte, v float32) { b[0] = F32ToE4M4(v) },
		},
		{
			"S1E4M3", 1, DecodeS1E4M3, EncodeS1E4M3,
			func(b []byte) float32 { return S1E4M3ToF32(b[0]) },
			func(b []byte, v float32) { b[0] = F32ToS1E4M3(v) },
		},
	}
}

// TestSlices: the slice functions are the scalar ones element by element, at
// any length and alignment, and write nothing beyond their elements.
func TestSlices(t *testing.T) {
	for _, c := range sliceCodecs() {
		t.Run(c.name, func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) {
				n := rapid.IntRange(0, 40).Draw(t, "n")
				shift := rapid.IntRange(0, 7).Draw(t, "shift")
				src := rapid.SliceOfN(rapid.Byte(), n*c.size+shift+3, -1).Draw(t, "src")[shift:]
				dst := slices.Repeat([]float32{-7}, n+2)
				c.decode(dst[:n], src)
				for i := range n {
					want := c.one(src[i*c.size:])
					if math.Float32bits(dst[i]) != math.Float32bits(want) && (dst[i] == dst[i] || want == want) {
						t.Fatalf("element %d of %d decodes to %v: want %v", i, n, dst[i], want)
					}
				}
				if dst[n] != -7 || dst[n+1] != -7 {
					t.Fatalf("decoding %d elements wrote beyond them", n)
				}

				enc := slices.Repeat([]byte{0xa5}, shift+n*c.size+3)
				c.encode(enc[shift:], dst[:n])
				want := make([]byte, 8)
				for i := range n {
					c.put(want, dst[i])
					if got := enc[shift+i*c.size:][:c.size]; !slices.Equal(got, want[:c.size]) {
						t.Fatalf("element %d (%v) encodes to %x: want %x", i, dst[i], got, want[:c.size])
					}
				}
				for _, b := range enc[shift+n*c.size:] {
					if b != 0xa5 {
						t.Fatalf("encoding %d elements wrote beyond them", n)
					}
				}
			})
		})
	}
}

func TestShortSlicesPanic(t *testing.T) {
	for _, c := range sliceCodecs() {
		for name, f := range map[string]func(){
			"decode": func() { c.decode(make([]float32, 5), make([]byte, 5*c.size-1)[:5*c.size-1:5*c.size-1]) },
			"encode": func() { c.encode(make([]byte, 5*c.size-1)[:5*c.size-1:5*c.size-1], make([]float32, 5)) },
		} {
			t.Run(c.name+"/"+name, func(t *testing.T) {
				defer func() {
					if recover() == nil {
						t.Error("a short byte slice is accepted: want a panic")
					}
				}()
				f()
			})
		}
	}
}

func BenchmarkSlices(b *testing.B) {
	const n = 1 << 16
	rng := rand.New(rand.NewPCG(3, 4))
	f := make([]float32, n)
	for i := range f {
		f[i] = float32(math.Abs(rng.NormFloat64()) / 8) // as scales are
	}
	for _, c := range sliceCodecs() {
		raw := make([]byte, n*c.size)
		c.encode(raw, f)
		dst := make([]float32, n)
		b.Run("Decode"+c.name, func(b *testing.B) {
			for b.Loop() {
				c.decode(dst, raw)
			}
			b.ReportMetric(float64(n)*float64(b.N)/b.Elapsed().Seconds()/1e9, "Gelem/s")
		})
		b.Run("Encode"+c.name, func(b *testing.B) {
			for b.Loop() {
				c.encode(raw, f)
			}
			b.ReportMetric(float64(n)*float64(b.N)/b.Elapsed().Seconds()/1e9, "Gelem/s")
		})
	}
}
