package cuda

import (
	"testing"

	"github.com/lutq/lutq/calib/model/opstest"
	"github.com/lutq/lutq/gemm/cuda/driver"
)

// TestGPUFamilies compares a tiny model of every family with transformers.
func TestGPUFamilies(t *testing.T) {
	onGPU(t, func(t *testing.T, o *Ops, i int) { opstest.Families(t, o, familyBounds(i)) })
}

// TestGPUSteps goes through texts a token at a time, by steps that are recorded where the host takes no part in them.
func TestGPUSteps(t *testing.T) {
	onGPU(t, func(t *testing.T, o *Ops, i int) { opstest.Steps(t, o, familyBounds(i)) })
}

// TestGPUAhead compares texts that the GPU takes further by itself with those that it takes step by step.
func TestGPUAhead(t *testing.T) {
	onGPU(t, func(t *testing.T, o *Ops, _ int) { opstest.Ahead(t, o) })
}

// familyBounds are those for the i-th type of activations. In 16 bits an expert that is
// nearly as good as one that is chosen may be chosen in its place, which changes more than
// rounding does.
func familyBounds(i int) opstest.FamilyBounds {
	switch types[i].acts {
	case driver.F16:
		return opstest.FamilyBounds{Logits: 2e-2, Loss: 2e-3}
	case driver.BF16:
		return opstest.FamilyBounds{Logits: 1e-1, Loss: 2e-2}
	}
	return opstest.FamilyBounds{Logits: 1e-4, Loss: 1e-4, Gradients: 2e-4}
}
