package rings

import "github.com/lutq/lutq/formats/weight/trellis"

// mixedGain returns what codes are multiplied by where the root mean square is 1. Values of mcg and 3inst are larger, all by the same.
func mixedGain(c *trellis.Code) float64 {
	gain := map[int]float64{ // by rate, see formats/exl3/NOTES.md
		2: 0.9, 3: 1, 4: 1.01, 5: 1.04, 6: 1.07, 7: 1.08, 8: 1.12, 10: 1.16, 12: 1.26, 14: 1.32, 16: 1.35,
	}[c.Rate]
	if c.Codebook != trellis.Mul1 {
		gain /= 1.2437
	}
	return gain
}
