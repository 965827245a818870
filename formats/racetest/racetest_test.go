package racetest

import "testing"

// TestSkip: what is marked runs where nothing watches, and only there.
func TestSkip(t *testing.T) {
	ran := false
	t.Run("marked", func(t *testing.T) {
		Skip(t)
		ran = true
	})
	if ran == watched {
		t.Errorf("a test that is not for the race detector: ran is %v with the detector %v", ran, watched)
	}
}
