package num

import (
	"math"
	"testing"
)

// TestDecodeNarrow computes every code of the formats that are only decoded from
// their definition, in float64.
func TestDecodeNarrow(t *testing.T) {
	for _, f := range []struct {
		name             string
		bits             int
		expBits, manBits int
		bias             int
		special          func(code int) (float64, bool) // what is no number
		decode           func(uint8) float32
	}{
		{"F8E4M3", 8, 4, 3, 7, func(c int) (float64, bool) { return math.NaN(), c&0x7f == 0x7f }, F8E4M3ToF32},
		{"F8E5M2", 8, 5, 2, 15, func(c int) (float64, bool) {
			switch c {
			case 0x7c:
				return math.Inf(1), true
			case 0xfc:
				return math.Inf(-1), true
			}
			return math.NaN(), c&0x7c == 0x7c
		}, F8E5M2ToF32},
		{"F4E2M1", 4, 2, 1, 1, func(int) (float64, bool) { return 0, false }, F4E2M1ToF32},
	} {
		t.Run(f.name, func(t *testing.T) {
			for c := range 1 << f.bits {
				m, e := c&(1<<f.manBits-1), c>>f.manBits&(1<<f.expBits-1)
				fraction := float64(m) / float64(int(1)<<f.manBits)
				want := math.Ldexp(1+fraction, e-f.bias)
				if e == 0 {
					want = math.Ldexp(fraction, 1-f.bias)
				}
				if c>>(f.manBits+f.expBits) == 1 {
					want = -want
				}
				if v, ok := f.special(c); ok {
					want = v
				}
				got := float64(f.decode(uint8(c)))
				if math.IsNaN(want) && math.IsNaN(got) {
					continue
				}
				if math.Float64bits(got) != math.Float64bits(want) {
					t.Errorf("code %#x decodes to %v: want %v", c, got, want)
				}
			}
		})
	}
}

func TestDecodeF8E8M0(t *testing.T) {
	src, dst := make([]byte, 256), make([]float32, 256)
	for c := range src {
		src[c] = byte(c)
	}
	DecodeF8E8M0(dst, src)
	for c, got := range dst[:255] {
		if want := math.Ldexp(1, c-127); float64(got) != want {
			t.Errorf("code %d decodes to %v: want %v", c, got, want)
		}
	}
	if !math.IsNaN(float64(dst[255])) {
		t.Errorf("code 255 decodes to %v: want NaN", dst[255])
	}
}

// TestEncodeF8E8M0 encodes powers of two, and what lies between them, by distance in float64.
func TestEncodeF8E8M0(t *testing.T) {
	for c := range 255 {
		v := math.Ldexp(1, c-127)
		for _, f := range []float64{1, 1.2, 1.4999, 1.5, 1.5001, 1.8, 1.9999} {
			x := float32(v * f)
			want := c
			if math.Abs(float64(x)-v) > math.Abs(float64(x)-2*v) || float64(x) == 1.5*v && c%2 == 1 {
				want = min(c+1, 254)
			}
			if got := F32ToF8E8M0(x); int(got) != want {
				t.Errorf("%v · 2^%d encodes to %d: want %d", f, c-127, got, want)
			}
		}
	}
	for _, tt := range []struct {
		v    float32
		want uint8
	}{
		{0, 0},
		{float32(math.Copysign(0, -1)), 0},
		{-1, 0},
		{math.SmallestNonzeroFloat32, 0},
		{0x1p-128, 0},
		{float32(math.NaN()), 0},
		{float32(math.Inf(-1)), 0},
		{float32(math.Inf(1)), 254},
		{math.MaxFloat32, 254},
	} {
		var got [1]byte
		if EncodeF8E8M0(got[:], []float32{tt.v}); got[0] != tt.want {
			t.Errorf("%v encodes to %d: want %d", tt.v, got[0], tt.want)
		}
	}
}

// TestNarrowExtremes holds the largest and smallest numbers, and 1, against
// what the Open Compute Project's tables say.
func TestNarrowExtremes(t *testing.T) {
	for _, tt := range []struct {
		name      string
		got, want float32
	}{
		{"F8E4M3 largest", F8E4M3ToF32(0x7e), 448},
		{"F8E4M3 smallest normal", F8E4M3ToF32(0x08), 0x1p-6},
		{"F8E4M3 smallest", F8E4M3ToF32(0x81), -0x1p-9},
		{"F8E4M3 one", F8E4M3ToF32(0x38), 1},
		{"F8E5M2 largest", F8E5M2ToF32(0x7b), 57344},
		{"F8E5M2 smallest", F8E5M2ToF32(0x01), 0x1p-16},
		{"F8E5M2 one", F8E5M2ToF32(0xbc), -1},
		{"F4E2M1 largest", F4E2M1ToF32(0xf), -6},
		{"F4E2M1 four", F4E2M1ToF32(0x6), 4},
		{"F4E2M1 smallest", F4E2M1ToF32(0x1), 0.5},
		{"F4E2M1 ignores the high bits", F4E2M1ToF32(0xf2), 1},
	} {
		if tt.got != tt.want {
			t.Errorf("%s is %v: want %v", tt.name, tt.got, tt.want)
		}
	}
}

// TestEncodeF8E4M3 encodes every number, and what lies between neighbours: to nearest, ties to the even code.
func TestEncodeF8E4M3(t *testing.T) {
	for c := range 0x7f {
		v := F8E4M3ToF32(uint8(c))
		next := v
		if c < 0x7e {
			next = F8E4M3ToF32(uint8(c + 1))
		}
		half := (v + next) / 2 // exact
		tie := c + c%2
		if next == v {
			tie = c
		}
		for _, test := range []struct {
			x    float32
			want int
		}{{v, c}, {math.Nextafter32(half, v), c}, {half, tie}, {math.Nextafter32(half, 1e9), min(c+1, 0x7e)}} {
			if got := int(F32ToF8E4M3(test.x)); got != test.want {
				t.Errorf("%v is encoded as %#x, want %#x", test.x, got, test.want)
			}
			if got := int(F32ToF8E4M3(-test.x)); got != test.want|0x80 {
				t.Errorf("%v is encoded as %#x, want %#x", -test.x, got, test.want|0x80)
			}
		}
	}
	for _, x := range []float64{464, 1e30, math.Inf(1)} {
		if got := F32ToF8E4M3(float32(x)); got != 0x7e {
			t.Errorf("%v is encoded as %#x, want the largest", x, got)
		}
	}
	if got := F32ToF8E4M3(float32(math.NaN())); got&0x7f != 0x7f {
		t.Errorf("NaN is encoded as %#x", got)
	}
}
