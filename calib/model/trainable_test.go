package model_test

import (
	"strings"
	"testing"

	"github.com/lutq/lutq/calib/model"
	"github.com/lutq/lutq/formats/arch"
	"github.com/lutq/lutq/formats/arch/archtest"
	"github.com/lutq/lutq/formats/source/modeltest"
	"github.com/lutq/lutq/formats/weight"
)

// shapeOnly is a weight without elements.
type shapeOnly struct{ n, k int }

func (w shapeOnly) Shape() (n, k int) { return w.n, w.k }

func TestTrainableValidate(t *testing.T) {
	for _, test := range []struct {
		name   string
		change func(*model.Trainable)
		want   string // in the error; empty: none
	}{
		{"good", func(*model.Trainable) {}, ""},
		{"good with an original", func(x *model.Trainable) { x.Original = shapeOnly{2, 3} }, ""},
		{"an original alone", func(x *model.Trainable) { x.Codes, x.Table, x.Original = nil, nil, shapeOnly{2, 3} }, ""},
		{"no rows", func(x *model.Trainable) { x.N = 0 }, "shape 0×3"},
		{"no columns", func(x *model.Trainable) { x.K = 0 }, "shape 2×0"},
		{"no group", func(x *model.Trainable) { x.Group = 0 }, "groups of 0"},
		{"scales", func(x *model.Trainable) { x.Scales = x.Scales[:3] }, "3 scales: want 4"},
		{"scale type", func(x *model.Trainable) { x.ScaleType = 0 }, "unknown type"},
		{"too few codes", func(x *model.Trainable) { x.Codes = x.Codes[:5] }, "5 codes: want 6"},
		{"code", func(x *model.Trainable) { x.Codes[4] = 4 }, "code 4 at row 1 column 1 of a table of 4"},
		{"short table", func(x *model.Trainable) { x.Table = x.Table[:1] }, "a table of 1 values"},
		{"long table", func(x *model.Trainable) { x.Table = make([]float32, 33) }, "a table of 33 values"},
		{"original", func(x *model.Trainable) { x.Original = shapeOnly{2, 4} }, "of an original of 2×4"},
		{"nothing", func(x *model.Trainable) { x.Table = nil }, "neither a table nor an original"},
	} {
		t.Run(test.name, func(t *testing.T) {
			x := model.Trainable{
				N: 2, K: 3, Group: 2, Codes: make([]uint8, 6),
				Table: []float32{-1, 0, 0.5, 1}, Scales: make([]float32, 4), ScaleType: weight.F16,
			}
			test.change(&x)
			err := x.Validate()
			if test.want == "" && err != nil || test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)) {
				t.Errorf("got error %v: want one with %q", err, test.want)
			}
		})
	}
}

// TestLearnable: what has no gradients is refused in one line that says where, and all else is not.
func TestLearnable(t *testing.T) {
	for _, g := range archtest.Goldens(t) {
		t.Run(g.Name, func(t *testing.T) {
			dir := t.TempDir()
			g.Write(t, dir)
			d, err := modeltest.Open(t, dir).Decoder()
			if err != nil {
				t.Fatal(err)
			}
			refused := false
			for i := range d.Blocks {
				switch a := d.Blocks[i].Mixer.(type) {
				case *arch.Attention:
				case *arch.Latent:
					refused = refused || a.Top() > 0 && a.Top() < len(g.Tokens)
				default:
					refused = true
				}
			}
			switch err := model.Learnable(d, len(g.Tokens)); {
			case refused != (err != nil):
				t.Errorf("refused %v, error %v", refused, err)
			case err != nil && (!strings.Contains(err.Error(), "scales cannot be learned") || strings.Contains(err.Error(), "\n")):
				t.Errorf("error %q", err)
			}
		})
	}
}
