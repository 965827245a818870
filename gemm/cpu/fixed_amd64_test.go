//go:build !noasm

package cpu

import "testing"

// TestFixedAVX2 has products at 256 bits go without the dot products of AVX-VNNI where the processor has them.
func TestFixedAVX2(t *testing.T) {
	if !hasAVXVNNI {
		t.Skip("the other tests do")
	}
	hasAVXVNNI = false
	defer func() { hasAVXVNNI = true }()
	t.Run("definition", TestFixedDefinition)
	t.Run("steps", TestFixedSteps)
	t.Run("extremes", TestFixedExtremes)
}
