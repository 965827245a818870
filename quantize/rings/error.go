package rings

// Error returns the share of their sum of squares that normal numbers lose in rings of so many bits for two of them, rounded to
// nearest: 2 to 12. It is that of rotated weights too; package viterbi's NOTES.md has how it was measured.
func Error(rate int) float64 {
	measured := [...]float64{.2717, .1366, .0694, .0355, .0182, .00944, .00494, .00274, .00149, .00086, .00052}
	return measured[min(max(rate-2, 0), len(measured)-1)]
}
