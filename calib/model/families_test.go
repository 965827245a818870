package model_test

import (
	"testing"

	"github.com/lutq/lutq/calib/model/opstest"
	"github.com/lutq/lutq/formats/racetest"
)

// TestFamilies compares logits, losses and gradients of a tiny model of every family with
// what transformers computes of it in float64. The gradients of deepseek-v3 are the worst, by 3e-5: those of float64 are 2e-6 off, as
// transformers has its angles in float32.
func TestFamilies(t *testing.T) {
	racetest.Skip(t)
	opstest.Families(t, newOps(t, 2), opstest.FamilyBounds{Logits: 1e-5, Loss: 1e-5, Gradients: 4e-5})
}

// TestSteps compares them with transformers a token at a time.
func TestSteps(t *testing.T) {
	racetest.Skip(t)
	opstest.Steps(t, newOps(t, 2), opstest.FamilyBounds{Logits: 1e-5})
}

// TestSoak writes a long text.
func TestSoak(t *testing.T) {
	racetest.Skip(t)
	tokens := 10000
	if testing.Short() {
		tokens = 2500 // which take a sixteenth of the time
	}
	opstest.Soak(t, newOps(t, 2), tokens, 1e-5)
}
