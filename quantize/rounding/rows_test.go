package rounding

import "testing"

// TestFeedbackRows: devices share all rows, each once, in parts that do not depend on how many they are.
func TestFeedbackRows(t *testing.T) {
	for _, k := range []int{1, 3, 64, 130, 4096} {
		size := (k + RetargetParts - 1) / RetargetParts
		for devices := range 7 { // 0 is one
			at := 0
			for i := range max(devices, 1) {
				from, to := FeedbackOptions{Part: i, Parts: devices}.Rows(k)
				if from != at || to < from || from%size != 0 && from != k {
					t.Errorf("%d rows, device %d of %d: %d to %d after %d", k, i, devices, from, to, at)
				}
				at = to
			}
			if at != k {
				t.Errorf("%d rows, %d devices: %d rows", k, devices, at)
			}
		}
	}
}
