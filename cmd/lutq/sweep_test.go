package main

import "testing"

func FuzzSweepSettings(f *testing.F) {
	f.Add([]byte(`{"model": "m", "flags": ["--preset", "best"]}`))
	f.Add([]byte(`{"flags": 3}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		if s, err := parseSweep(data); err == nil && s.Model == "" {
			t.Error("a sweep of no model")
		}
	})
}
