package lutgemm

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"testing"

	"github.com/lutq/lutq/formats/weight/bcq"
)

// planesOf returns the planes of a matrix whose codes are (131k + 7n + k·n mod 5) mod 2^bits.
func planesOf(n, k, bits int) (planes []byte, all []uint8) {
	row := make([]byte, bits*k/8)
	for r := range n {
		codes := make([]uint8, k)
		for c := range codes {
			codes[c] = uint8((131*c + 7*r + c*r%5) % (1 << bits))
		}
		bcq.PackCodes(row, codes, bits)
		planes, all = append(planes, row...), append(all, codes...)
	}
	return planes, all
}

// TestBits holds the place of every bit against digests of the published formula.
func TestBits(t *testing.T) {
	for bits, want := range map[int]string{2: "99b91fc7408ec1b3", 3: "0bde93803217d5b8", 4: "3188b94c9cf2c969"} {
		t.Run(fmt.Sprint(bits), func(t *testing.T) {
			planes, _ := planesOf(128, 128, bits)
			if sum := sha256.Sum256(pack(planes, 128, bits, 128)); hex.EncodeToString(sum[:8]) != want {
				t.Errorf("digest is %x", sum[:8])
			}
		})
	}
}

// TestUnpack reads parts of words back.
func TestUnpack(t *testing.T) {
	const n, k, bits = 6, 64, 3
	planes, codes := planesOf(n, k, bits)
	data := pack(planes, n, bits, k)
	for _, part := range [][2]int{{0, 32}, {5, 32}, {0, 1}, {31, 32}, {7, 9}} {
		first, last := part[0], part[1]
		const stride = 40
		got, want := make([]uint8, (n-1)*stride+last-first), make([]uint8, (n-1)*stride+last-first)
		for r := range n {
			copy(want[r*stride:], codes[r*k+word+first:r*k+word+last])
		}
		for i := range bits {
			unpack(got, data[(bits+i)*4*n:][:4*n], stride, first, last, i)
		}
		if !slices.Equal(got, want) {
			t.Errorf("columns %d to %d come back as %v: want %v", first, last, got, want)
		}
	}
}
