package rings

// gain returns what the root mean square of a row is multiplied by for its scale, at a rate.
func gain(rate int) float64 {
	_ = rate
	return 1
}
