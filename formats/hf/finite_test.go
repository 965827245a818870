package hf

import (
	"slices"
	"testing"
)

func TestFirstNotFinite(t *testing.T) {
	for _, tt := range []struct {
		dtype    DType
		nan, inf []byte
	}{
		{F64, []byte{1, 0, 0, 0, 0, 0, 0xf0, 0xff}, []byte{0, 0, 0, 0, 0, 0, 0xf0, 0x7f}},
		{F32, []byte{1, 0, 0x80, 0xff}, []byte{0, 0, 0x80, 0x7f}},
		{F16, []byte{1, 0x7c}, []byte{0, 0xfc}},
		{BF16, []byte{0xff, 0xff}, []byte{0x80, 0x7f}},
	} {
		size := tt.dtype.Bits() / 8
		for n := range 20 {
			data := make([]byte, n*size)
			for i := range data {
				// The largest finite numbers of either sign, and small ones.
				data[i] = []byte{0xff, 0x7b, 0x7f, 0xfb}[i%4]
				if tt.dtype != F16 {
					data[i] = []byte{0x7f, 0x7f, 0x00, 0xff}[i%4] & []byte{0xff, 0x7e, 0xff, 0xfe}[i%4]
				}
			}
			if got := tt.dtype.FirstNotFinite(data); got != -1 {
				t.Fatalf("%s, %d finite numbers: got %d, want -1", tt.dtype, n, got)
			}
			for at := range n {
				for _, bad := range [][]byte{tt.nan, tt.inf} {
					changed := slices.Clone(data)
					copy(changed[at*size:], bad)
					copy(changed[(n-1)*size:], bad)
					if got := tt.dtype.FirstNotFinite(changed); got != at {
						t.Errorf("%s: got %d, want %d of %d", tt.dtype, got, at, n)
					}
				}
			}
		}
	}
}
