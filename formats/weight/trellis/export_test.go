package trellis

// Windows returns those of all steps of a ring, for tests.
func Windows(l Layout, ring []byte) []uint16 {
	windows := make([]uint16, l.Steps())
	l.windows(windows, ring)
	return windows
}
