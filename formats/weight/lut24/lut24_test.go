package lut24

import (
	"crypto/sha256"
	"encoding/hex"
	"slices"
	"testing"
)

// TestPattern holds the order of nibbles against the published sum of a pattern.
func TestPattern(t *testing.T) {
	const n, k = 128, 128
	var all []byte
	for row := range n {
		pattern := make([]byte, PatternBytes(k))
		for c := range k / Chunk {
			a := uint8((7*row + 5*c) % 4)
			b := (a + 1 + uint8((row+c)%3)) % 4
			SetNibble(pattern, c, min(a, b)|max(a, b)<<2)
		}
		all = append(all, pattern...)
	}
	sum := sha256.Sum256(all)
	if got := hex.EncodeToString(sum[:8]); got != "71ab916fa0297bad" {
		t.Errorf("sum %s", got)
	}
	if err := checkPattern(all, n, k); err != nil {
		t.Error(err)
	}
	var pairs []int
	for p := range 16 {
		if IsPair(uint8(p)) {
			pairs = append(pairs, p)
		}
	}
	if !slices.Equal(pairs, []int{4, 8, 9, 12, 13, 14}) {
		t.Errorf("nibbles %v", pairs)
	}
}

// TestChoose: the two largest stay, of equals the first, whatever their order.
func TestChoose(t *testing.T) {
	for _, tc := range []struct {
		score [Chunk]float64
		want  uint8
	}{
		{[Chunk]float64{}, 0 | 1<<2},
		{[Chunk]float64{1, 1, 1, 1}, 0 | 1<<2},
		{[Chunk]float64{0, 0, 0, 1}, 0 | 3<<2},
		{[Chunk]float64{1, 2, 2, 2}, 1 | 2<<2},
		{[Chunk]float64{1, 2, 3, 4}, 2 | 3<<2},
		{[Chunk]float64{3, 1, 4, 1}, 0 | 2<<2},
		{[Chunk]float64{1, 4, 1, 3}, 1 | 3<<2},
	} {
		if got := Choose(tc.score); got != tc.want {
			t.Errorf("of %v stays %#x, want %#x", tc.score, got, tc.want)
		}
	}
}
