package num

import (
	"bytes"
	"math/rand/v2"
	"testing"
)

// packSlowly places one bit at a time: the definition of the stream.
func packSlowly(codes []uint8, bits int) []byte {
	dst := make([]byte, BitsBytes(len(codes), bits))
	for i, c := range codes {
		for b := range bits {
			at := i*bits + b
			dst[at/8] |= (c >> b & 1) << (at % 8)
		}
	}
	return dst
}

func TestPackBits(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for bits := 1; bits <= 8; bits++ {
		for n := range 200 {
			codes := make([]uint8, n)
			for i := range codes {
				codes[i] = uint8(rng.IntN(1 << bits))
			}
			// Poison around the row: a packer must not write beside it.
			buf := bytes.Repeat([]byte{0xa5}, BitsBytes(n, bits)+16)
			row := buf[8 : len(buf)-8]
			PackBits(row, codes, bits)
			if want := packSlowly(codes, bits); !bytes.Equal(row, want) {
				t.Fatalf("%d codes of %d bits: got % x, want % x", n, bits, row, want)
			}
			for i := range 8 {
				if buf[i] != 0xa5 || buf[len(buf)-1-i] != 0xa5 {
					t.Fatalf("%d codes of %d bits: wrote beside the row", n, bits)
				}
			}
			got := make([]uint8, n)
			UnpackBits(got, row, bits)
			if !bytes.Equal(got, codes) {
				t.Fatalf("%d codes of %d bits: unpacked %v, want %v", n, bits, got, codes)
			}
		}
	}
}

func BenchmarkPackBits(b *testing.B) {
	codes := make([]uint8, 4096)
	dst := make([]byte, BitsBytes(len(codes), 5))
	b.SetBytes(int64(len(codes)))
	for b.Loop() {
		PackBits(dst, codes, 5)
	}
}
