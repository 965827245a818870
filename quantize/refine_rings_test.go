package quantize

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/lutq/lutq/formats/lutq"
	"github.com/lutq/lutq/formats/racetest"
	"github.com/lutq/lutq/formats/weight/trellis"
)

// TestRefineRings: scales of rings are refined, the rings stay what they are, and the error is that of the refined weights.
func TestRefineRings(t *testing.T) {
	racetest.Skip(t)
	const recipe = `{"bits": 2, "codebook": "trellis", "tensors": [{"match": "o_proj", "codebook": "js", "bits": 3}]}`
	plainDir, out := filepath.Join(t.TempDir(), "plain"), filepath.Join(t.TempDir(), "out")
	if _, err := plan(t, tiny, recipe).Run(t.Context(), plainDir, RunOptions{}); err != nil {
		t.Fatal(err)
	}
	h := &halver{knows: func(layer string) bool { return !strings.Contains(layer, "layers.1.") }}
	res, err := refinePlan(t, tiny, recipe, h).Run(t.Context(), out, RunOptions{})
	if err != nil {
		t.Fatal(err)
	}
	open := func(dir string) *lutq.Model {
		m, err := lutq.Open(dir)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { m.Close() })
		return m
	}
	was, is := open(plainDir), open(out)
	rings := 0
	for _, l := range res.Layers {
		by := float32(1)
		if h.knows(l.Layer) {
			by = .5
			if !strings.HasSuffix(l.Format.Method, learnedSuffix) || l.Error < .5 {
				t.Errorf("%s: method %s, error %.3f of halved weights", l.Layer, l.Format.Method, l.Error)
			}
		}
		a, err := was.Linear(l.Layer)
		if err != nil {
			t.Fatal(err)
		}
		b, err := is.Linear(l.Layer)
		if err != nil {
			t.Fatal(err)
		}
		if b.Kind() == trellis.Name {
			rings++
		}
		for n := range l.N {
			x, y := make([]float32, l.K), make([]float32, l.K)
			a.Row(x, n)
			b.Row(y, n)
			for k, v := range x {
				if y[k] != v*by {
					t.Fatalf("%s: weight %d of row %d is %v: want %v times %v", l.Layer, k, n, y[k], v, by)
				}
			}
		}
	}
	if rings == 0 {
		t.Error("no layer is of rings")
	}
}

// TestRefineCannot: what a refiner cannot do for a plan ends it before anything is read.
func TestRefineCannot(t *testing.T) {
	out := filepath.Join(t.TempDir(), "out")
	h := &halver{cannot: filepath.ErrBadPattern}
	if _, err := refinePlan(t, tiny, `{"codebook": "trellis"}`, h).Run(t.Context(), out, RunOptions{}); err != h.cannot || h.calls > 0 {
		t.Errorf("error %v after %d calls: want %v", err, h.calls, h.cannot)
	}
}
