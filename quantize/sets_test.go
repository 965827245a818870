package quantize

import (
	"math"
	"slices"
	"testing"

	"github.com/lutq/lutq/formats/arch/archtest"
	"github.com/lutq/lutq/formats/lutq"
	"github.com/lutq/lutq/formats/racetest"
	"github.com/lutq/lutq/formats/source/modeltest"
	"github.com/lutq/lutq/formats/weight"
)

// TestSets: of every family each layer that would be quantized is in one set, fused ones together, and each end is a set of its own.
func TestSets(t *testing.T) {
	racetest.Skip(t)
	for _, g := range archtest.Goldens(t) {
		t.Run(g.Name, func(t *testing.T) {
			dir := t.TempDir()
			g.Write(t, dir)
			m := modeltest.Open(t, dir)
			sets, err := SetsOf(m)
			if err != nil {
				t.Fatal(err)
			}
			plan, err := NewPlan(m, Recipe{})
			if err != nil {
				t.Fatal(err)
			}
			in := make(map[string]int) // set by tensor, from 1 on
			ends := 0
			for i, s := range sets {
				if s.End {
					ends++
				}
				weights := int64(0)
				for _, tensor := range s.Tensors {
					if in[tensor] != 0 {
						t.Errorf("%s is in two sets", tensor)
					}
					in[tensor] = i + 1
					weights += plan.item(tensor).Tensor.Elements()
				}
				if weights != s.Weights || len(s.Layers) != len(s.Tensors) {
					t.Errorf("%s: %d weights, want %d", s.Name(), s.Weights, weights)
				}
			}
			fused := make(map[string]int)
			for i := range plan.Items {
				it := &plan.Items[i]
				at := in[it.Tensor.Name]
				end := it.Kept == KeptEmbedding || it.Kept == KeptHead
				if (at != 0) != (it.Quantized() || end) {
					t.Errorf("%s is in set %d, and kept as %q", it.Tensor.Name, at, it.Kept)
				}
				if at == 0 {
					continue
				}
				if sets[at-1].End != end || it.Quantized() && !slices.Contains(sets[at-1].Layers, it.Layer) {
					t.Errorf("%s is in %+v", it.Tensor.Name, sets[at-1])
				}
				if name := plan.set(it); fused[name] != 0 && fused[name] != at {
					t.Errorf("%s is in set %d, what is fused with it in %d", it.Tensor.Name, at, fused[name])
				} else {
					fused[name] = at
				}
			}
			if ends == 0 {
				t.Error("no end is a set")
			}
		})
	}
}

// TestNearest: a layer that is rounded by itself is what a run of the plan writes of it, and the error told by a sample of rows is near
// that of all.
func TestNearest(t *testing.T) {
	m := modeltest.Open(t, "../calib/testdata/lutq-tiny")
	plan, err := NewPlan(m, Recipe{Default: weight.Spec{Bits: 3}})
	if err != nil {
		t.Fatal(err)
	}
	if err := plan.Choose(t.Context(), RunOptions{}); err != nil {
		t.Fatal(err)
	}
	out := t.TempDir() + "/out"
	res, err := plan.Run(t.Context(), out, RunOptions{})
	if err != nil {
		t.Fatal(err)
	}
	c, err := lutq.Open(out)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for _, l := range res.Layers[:5] {
		want, err := c.Linear(l.Layer)
		if err != nil {
			t.Fatal(err)
		}
		got, err := plan.Nearest(t.Context(), l.Layer, RunOptions{Threads: 2})
		if err != nil {
			t.Fatal(err)
		}
		a, b := make([]float32, l.K), make([]float32, l.K)
		for n := range l.N {
			want.Row(a, n)
			got.Row(b, n)
			if !slices.Equal(a, b) {
				t.Fatalf("%s: row %d differs", l.Layer, n)
			}
		}
		e, err := plan.SampleError(t.Context(), l.Layer+".weight")
		if err != nil || math.Abs(e/(l.Error*l.Error)-1) > 0.1 {
			t.Errorf("%s: an error of %v, %v: want %v", l.Layer, e, err, l.Error*l.Error)
		}
	}
	if e, err := plan.SampleError(t.Context(), "model.norm.weight"); e != 0 || err != nil {
		t.Errorf("a norm that is copied has an error of %v, %v", e, err)
	}
	if _, err := plan.Nearest(t.Context(), "model.norm", RunOptions{}); err == nil {
		t.Error("a norm was rounded")
	}
}
