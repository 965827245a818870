package kbit

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"testing"
)

// TestBits holds the place of every bit against digests of the published formulas, of blocks in a row with
// their padding and in tiles.
func TestBits(t *testing.T) {
	for _, tt := range []struct {
		layout Layout
		bits   int
		want   string
	}{
		{Flat(), 2, "f9dff031bb6ada4e"},
		{Tiled(), 2, "693e5c808a57f6de"},
		{Flat(), 3, "fde523371a334d0f"},
		{Tiled(), 3, "1bd415d6a69e5cf7"},
		{Flat(), 4, "d625b3afd434ab51"},
		{Tiled(), 4, "eaba715670b8b704"},
		{Flat(), 5, "7dab612e8648f760"},
		{Tiled(), 5, "25988625687d3710"},
	} {
		t.Run(fmt.Sprint(tt.layout.Name(), tt.bits), func(t *testing.T) {
			data := tt.layout.pack(128, 128, tt.bits, func(dst []uint8, n int) {
				for k := range dst {
					dst[k] = uint8((131*k + 7*n + k*n%5) % (1 << tt.bits))
				}
			})
			if sum := sha256.Sum256(data); hex.EncodeToString(sum[:8]) != tt.want {
				t.Errorf("digest is %x", sum[:8])
			}
		})
	}
}

// TestPlaces: every block has a place of its own.
func TestPlaces(t *testing.T) {
	for _, y := range []Layout{Flat(), Tiled()} {
		const n, k = 256, 192
		var places []int
		for row := range n {
			for b := range k / block {
				places = append(places, y.place(n, k, row, b))
			}
		}
		slices.Sort(places)
		for i, p := range places {
			if i != p {
				t.Fatalf("%s: place %d is %d", y.Name(), i, p)
			}
		}
	}
}
