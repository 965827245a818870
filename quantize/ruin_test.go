package quantize

import (
	"path/filepath"
	"testing"

	"github.com/lutq/lutq/formats/lutq"
	"github.com/lutq/lutq/formats/racetest"
)

// TestRuined holds the bounds against a real model: plain rounding to 3 bits and
// more stays below them in every table, 2 bits without a search is beyond.
func TestRuined(t *testing.T) {
	racetest.Skip(t)
	for _, tc := range []struct {
		recipe string
		all    bool
		worst  string
	}{
		{`{"bits": 4}`, false, ""},
		{`{"bits": 3}`, false, ""},
		{`{"bits": 3, "codebook": "int"}`, false, ""},
		{`{"bits": 2}`, true, ""},
		{`{"bits": 2, "codebook": "nf", "scale": "absmax"}`, true, "model.layers.2.self_attn.k_proj"},
		{`{"tensors": [{"match": "layers\\.1\\.mlp\\.down", "bits": 2}]}`, false, ""},
		{`{"tensors": [{"match": "layers\\.1\\.mlp\\.down", "bits": 2, "codebook": "nf", "scale": "absmax"}]}`, false, "model.layers.1.mlp.down_proj"},
	} {
		t.Run(tc.recipe, func(t *testing.T) {
			res, err := plan(t, tiny, tc.recipe).Run(t.Context(), filepath.Join(t.TempDir(), "out"), RunOptions{})
			if err != nil {
				t.Fatal(err)
			}
			name := ""
			worst, all := res.Ruined()
			if worst != nil {
				name = worst.Layer
			}
			if all != tc.all || name != tc.worst {
				t.Errorf("ruined %v, worst layer %q (error %.3f): want %v, %q", all, name, res.Error, tc.all, tc.worst)
			}
			res.Learn = &lutq.Learning{}
			if worst, all := res.Ruined(); worst != nil || all {
				t.Error("learned scales are judged by their error")
			}
		})
	}
}

// TestRuinedFitted: what is fitted to a text may have larger errors.
func TestRuinedFitted(t *testing.T) {
	for _, tc := range []struct {
		error, layer float64
		fitted       int
		all, worst   bool
	}{
		{.31, .46, 0, true, true},
		{.31, .46, 8, false, false},
		{.35, .52, 8, true, true},
	} {
		f := Fit{Rows: tc.fitted}
		r := &Result{Error: tc.error, Fit: f, Layers: []LayerResult{{Layer: "a", Error: tc.layer, Fit: f}}}
		if worst, all := r.Ruined(); all != tc.all || (worst != nil) != tc.worst {
			t.Errorf("%+v: ruined %v, a layer %v", tc, all, worst)
		}
	}
}
