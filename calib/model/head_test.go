package model_test

import (
	"context"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/lutq/lutq/calib/model"
	"github.com/lutq/lutq/formats/arch/archtest"
	"github.com/lutq/lutq/formats/racetest"
	"github.com/lutq/lutq/formats/source/modeltest"
)

// TestHeadBits quantizes the output head alone, apart from an embedding that it is tied to.
func TestHeadBits(t *testing.T) {
	racetest.Skip(t)
	tied := make(map[bool]bool)
	for _, g := range archtest.Goldens(t) {
		dir := t.TempDir()
		g.Write(t, dir)
		run := func(bits int) (states, logits []float32) {
			m, err := model.Open(modeltest.Open(t, dir), newOps(t, 2), model.OpenOptions{HeadBits: bits})
			if err != nil {
				t.Fatal(err)
			}
			defer m.Close()
			tied[m.Decoder().Tied] = true
			h, err := m.Hidden(context.Background(), g.Tokens)
			if err != nil {
				t.Fatal(err)
			}
			l := m.Ops().Floats(len(g.Tokens) * m.Vocab())
			if err := m.Logits(l, h, len(g.Tokens)); err != nil {
				t.Fatal(err)
			}
			states, logits = make([]float32, h.Len()), make([]float32, l.Len())
			m.Ops().Read(states, h)
			m.Ops().Read(logits, l)
			return states, logits
		}
		states, want := run(0)
		// As far apart as normally distributed weights are from the nearest of so many values, by the largest of 64.
		for bits, within := range map[int][2]float64{2: {0.15, 0.8}, 4: {0.03, 0.2}, 5: {0.01, 0.1}} {
			same, got := run(bits)
			if !slices.Equal(same, states) {
				t.Errorf("%s: a head of %d bits changes the states", g.Name, bits)
			}
			var diff, norm float64
			for i, w := range want {
				diff += math.Pow(float64(got[i])-float64(w), 2)
				norm += float64(w) * float64(w)
			}
			if e := math.Sqrt(diff / norm); !(e >= within[0] && e <= within[1]) {
				t.Errorf("%s: a head of %d bits changes the logits by %.2g: want %v", g.Name, bits, e, within)
			}
		}
	}
	if len(tied) != 2 {
		t.Errorf("heads that are tied, and not: only %v", tied)
	}
	if _, err := model.Open(modeltest.Open(t, "../testdata/lutq-tiny"), newOps(t, 2), model.OpenOptions{HeadBits: 7}); err == nil || strings.Contains(err.Error(), "\n") {
		t.Errorf("a head of 7 bits: %v", err)
	}
}
