package marlin

import (
	"crypto/sha256"
	"encoding/hex"
	"slices"
	"testing"
)

// TestBits holds the place of every bit against the digest of a packer written from the original's
// permutations.
func TestBits(t *testing.T) {
	data := Pack(256, 128, place, func(dst []uint8, n int) {
		for k := range dst {
			dst[k] = uint8((131*k + 7*n + k*n%5) % 16)
		}
	})
	if sum := sha256.Sum256(data); hex.EncodeToString(sum[:8]) != "85543ca1061cac51" {
		t.Errorf("digest is %x", sum[:8])
	}
}

func TestUnpack(t *testing.T) {
	want := make([]uint8, TileRows*TileCols)
	for i := range want {
		want[i] = uint8((i*i/7 + i) % 16)
	}
	got := make([]uint8, len(want))
	Unpack(got, Pack(TileRows, TileCols, place, func(dst []uint8, n int) { copy(dst, want[n*TileCols:]) }), place)
	if !slices.Equal(got, want) {
		t.Errorf("codes come back as %v", got)
	}
}
