//go:build !unix

package input

import "math"

// openLimit returns how many files the process may have open.
func openLimit() int { return math.MaxInt }
