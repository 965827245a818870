package preset

import (
	"testing"

	"github.com/lutq/lutq/formats/weight"
	"github.com/lutq/lutq/formats/weight/lut"
	"github.com/lutq/lutq/formats/weight/trellis"
	"github.com/lutq/lutq/quantize"
)

func TestOf(t *testing.T) {
	for _, test := range []struct {
		preset           string
		bits             float64
		codebook, method string
		learn, mix       bool
	}{
		{Fast, 1, "trellis", "rtn", false, false},
		{Fast, 2, "auto", "rtn", false, false},
		{Fast, 4.25, "auto", "rtn", false, false},
		{Fast, 6, "trellis", "rtn", false, false},
		{Good, 1.5, "trellis", "gptq", false, false},
		{Good, 4, "auto", "gptq", false, false},
		{Good, 5.5, "trellis", "gptq", false, false},
		{Best, 1, "trellis", "gptq", true, true},
		{Best, 3, "trellis", "gptq", true, true},
		{Best, 4, "trellis", "gptq", false, true},
	} {
		r, err := Of(test.preset, test.bits)
		if err != nil || r.Codebook != test.codebook || r.Method != test.method || r.Learn != test.learn || r.Mix != test.mix {
			t.Errorf("%s of %g bits: %+v, %v", test.preset, test.bits, r, err)
		}
	}
	for _, test := range []struct {
		preset string
		bits   float64
	}{{"better", 4}, {"", 4}, {Good, 9}} {
		if r, err := Of(test.preset, test.bits); err == nil {
			t.Errorf("%q of %g bits: %+v", test.preset, test.bits, r)
		}
	}
}

// TestRecipes: each preset has codes for every width that a kind has, in order, and each recipe is one that can be carried out.
func TestRecipes(t *testing.T) {
	const most = 6 // of any
	for _, name := range Names() {
		last := 0.
		for _, r := range Recipes() {
			if r.Preset != name {
				continue
			}
			if r.Most <= last {
				t.Errorf("%s: %g after %g", name, r.Most, last)
			}
			last = r.Most
		}
		if last < most {
			t.Errorf("%s has no codes of %d bits", name, most)
		}
		for bits := 1; bits <= most; bits++ {
			r, err := Of(name, float64(bits))
			if err != nil {
				t.Fatal(err)
			}
			recipe := quantize.Recipe{Default: r.Fill(weight.Spec{Bits: bits})}
			want := lut.Name
			if r.Codebook == trellis.Pairs {
				want = trellis.Name
			}
			if recipe.Check() != nil || !recipe.Makes(want) {
				t.Errorf("%v: %v", r, recipe.Check())
			}
			if recipe.Calibrated() != (name != Fast) {
				t.Errorf("%v: calibrated %v", r, recipe.Calibrated())
			}
		}
	}
}

// TestFill: what flags say stays.
func TestFill(t *testing.T) {
	r, err := Of(Best, 3)
	if err != nil {
		t.Fatal(err)
	}
	if got := r.Fill(weight.Spec{}); got != (weight.Spec{Codebook: "trellis", Method: "gptq"}) {
		t.Errorf("of nothing: %+v", got)
	}
	said := weight.Spec{Codebook: "nf", Method: "rtn", Bits: 3, Group: 32}
	if got := r.Fill(said); got != said {
		t.Errorf("of %+v: %+v", said, got)
	}
}
