// Package racetest lets tests say that they are not for the race detector.
package racetest

import "testing"

// Skip leaves a test out where the race detector watches. It is for tests that then take long, as they compute much, while
// others of their package start the same goroutines.
func Skip(t testing.TB) {
	t.Helper()
	if watched {
		t.Skip("not for the race detector: others start the same goroutines")
	}
}
