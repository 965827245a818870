package probe_test

import (
	"slices"
	"testing"

	"github.com/lutq/lutq/calib/corpus"
	"github.com/lutq/lutq/calib/model"
	modelcpu "github.com/lutq/lutq/calib/model/cpu"
	"github.com/lutq/lutq/calib/probe"
	"github.com/lutq/lutq/calib/tokenizer"
	"github.com/lutq/lutq/formats/source"
	"github.com/lutq/lutq/formats/source/modeltest"
	"github.com/lutq/lutq/formats/weight"
	"github.com/lutq/lutq/gemm/cpu"
	"github.com/lutq/lutq/quantize"
	"github.com/lutq/lutq/quantize/mix"
)

const tiny = "../testdata/lutq-tiny"

// probed opens the tiny model and probes its sets.
func probed(t *testing.T, o probe.Options, fitted bool) (*source.Model, []quantize.Set, []probe.Sensitivity) {
	t.Helper()
	m := modeltest.Open(t, tiny)
	sets, err := quantize.SetsOf(m)
	if err != nil {
		t.Fatal(err)
	}
	tok, err := tokenizer.Read(m)
	if err != nil {
		t.Fatal(err)
	}
	text, err := corpus.MixFiles([]string{"../testdata/harbour.txt"}, tok, corpus.MixOptions{Windows: 4, Context: 128})
	if err != nil {
		t.Fatal(err)
	}
	o.Windows = text.Windows
	engine, err := cpu.New(cpu.Options{Threads: 2})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(engine.Close)
	ops := modelcpu.New(engine)
	s, err := probe.Measure(t.Context(), m, ops, sets, o)
	if err != nil {
		t.Fatal(err)
	}
	if fitted {
		var stats model.StatsOps = ops
		if err := probe.Fitted(t.Context(), m, stats, sets, s, 0.1, 0.5, o); err != nil {
			t.Fatal(err)
		}
	}
	return m, sets, s
}

// TestLaw: what a set loses at 3 bits, and the errors of both widths, tell what it loses at 4.
func TestLaw(t *testing.T) {
	_, sets, at3 := probed(t, probe.Options{}, false)
	_, _, at4 := probed(t, probe.Options{Format: weight.Spec{Bits: 4}, EndBits: 3}, false)
	var predicted, measured float64
	for i := range sets {
		p := at3[i].KL * at4[i].Error / at3[i].Error
		if r := p / at4[i].KL; r < 0.5 || r > 2 {
			t.Errorf("%s: %v is predicted, %v measured", sets[i].Name(), p, at4[i].KL)
		}
		predicted, measured = predicted+p, measured+at4[i].KL
	}
	if r := predicted / measured; r < 0.9 || r > 1.1 {
		t.Errorf("a sum of %v is predicted, %v measured", predicted, measured)
	}
}

// TestEvened: a step of one set takes as many bytes as those of ten others, so it is taken where the set costs more than ten times as
// much, after this is raised to the power .75.
func TestEvened(t *testing.T) {
	part := func(cost float64, step int64) probe.Part {
		return probe.Part{
			Set:         quantize.Set{Weights: 1000},
			Sensitivity: probe.Sensitivity{KL: cost, Error: .1, Fitted: 1},
			Choices: []probe.Choice{
				{Choice: mix.Choice{Bytes: 100, Loss: cost}},
				{Choice: mix.Choice{Bytes: 100 + step, Loss: cost / 4}},
			},
		}
	}
	for cost, want := range map[float64]int{16: 0, 40: 1} {
		a := probe.Allocation{Parts: []probe.Part{part(cost, 500)}}
		for range 10 {
			a.Parts = append(a.Parts, part(1, 50))
		}
		if err := a.Allocate(11*100 + 500); err != nil {
			t.Fatal(err)
		}
		if got := a.Parts[0].Chosen; got != want {
			t.Errorf("a set that costs %v times as much: choice %d, want %d", cost, got, want)
		}
	}
}

// TestAllocate: an allocation is within its budget, is predicted to lose less than one width, and its rules make a plan of the very
// bytes. What rules say stands.
func TestAllocate(t *testing.T) {
	m, sets, s := probed(t, probe.Options{}, true)
	for i := range s {
		if f := s[i].Fitted; sets[i].End != (f == 1) || f <= 0 || f > 1 {
			t.Errorf("%s: a share of %v is left after fitting", sets[i].Name(), f)
		}
	}
	for _, tc := range []struct {
		name   string
		recipe quantize.Recipe
		rule   string
		ends   bool
	}{
		{"tables", quantize.Recipe{Default: weight.Spec{Bits: 3}}, "", false},
		{"one group", quantize.Recipe{Default: weight.Spec{Bits: 4, Group: 32}}, "", false},
		{"rings", quantize.Recipe{Default: weight.Spec{Bits: 2, Codebook: "trellis"}}, "", false},
		{"rings of whole bits", quantize.Recipe{Default: weight.Spec{Bits: 3, Codebook: "mul1"}}, "", true},
		{"with ends", quantize.Recipe{Default: weight.Spec{Bits: 3}}, "", true},
		{"with a rule", quantize.Recipe{Default: weight.Spec{Bits: 3}}, `layers\.2\.mlp\.down_proj=5`, true},
		{"with a layer kept", quantize.Recipe{Default: weight.Spec{Bits: 3}}, `layers\.0\.self_attn\.o_proj=keep`, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if tc.rule != "" {
				rule, err := quantize.ParseRule(tc.rule)
				if err != nil {
					t.Fatal(err)
				}
				tc.recipe.Rules = []quantize.Rule{rule}
			}
			c, err := probe.CandidatesFor(tc.recipe, tc.ends)
			if err != nil {
				t.Fatal(err)
			}
			a, err := probe.NewAllocation(t.Context(), m, tc.recipe, sets, s, c)
			if err != nil {
				t.Fatal(err)
			}
			alike, err := quantize.NewPlan(m, tc.recipe)
			if err != nil {
				t.Fatal(err)
			}
			uniform, err := a.Uniform(t.Context(), alike)
			if err != nil {
				t.Fatal(err)
			}
			budget := uniform.Bytes
			if tc.ends {
				budget /= 2
			}
			if err := a.Allocate(budget); err != nil {
				t.Fatal(err)
			}
			chosen := a.Chosen()
			if chosen.Bytes > budget || chosen.Bytes < budget*98/100 {
				t.Errorf("%d bytes of %d", chosen.Bytes, budget)
			}
			most := uniform.Loss * 0.97
			if tc.recipe.Default.Group != 0 { // steps of a whole bit are too far for the gain to be sure
				most = uniform.Loss
			}
			if !tc.ends && chosen.Loss > most {
				t.Errorf("a loss of %v, and of %v with one width", chosen.Loss, uniform.Loss)
			}
			r := tc.recipe
			a.Apply(&r)
			plan, err := quantize.NewPlan(m, r)
			if err != nil {
				t.Fatal(err)
			}
			if got := plan.Totals().BytesOut; got != chosen.Bytes+a.Fixed {
				t.Errorf("the plan has %d bytes, want %d", got, chosen.Bytes+a.Fixed)
			}
			for _, p := range a.Parts {
				for _, tensor := range p.Tensors {
					spec, _ := plan.Stored(tensor)
					if want := p.Choices[p.Chosen].Spec; spec != want {
						t.Errorf("%s is stored as %+v, want %+v", tensor, spec, want)
					}
				}
				if tc.rule != "" && slices.ContainsFunc(p.Tensors, tc.recipe.Rules[0].Match.MatchString) && len(p.Choices) != 1 {
					t.Errorf("%s has %d choices against a rule", p.Name(), len(p.Choices))
				}
			}
			// The command says the same again.
			var again quantize.Recipe
			again.Default = r.Default
			for _, rule := range r.Rules {
				parsed, err := quantize.ParseRule(rule.String())
				if err != nil {
					t.Fatal(err)
				}
				again.Rules = append(again.Rules, parsed)
			}
			other, err := quantize.NewPlan(m, again)
			if err != nil || other.Command() != plan.Command() || other.Totals() != plan.Totals() {
				t.Errorf("the rules as they are written ask for something else, error %v", err)
			}
		})
	}
	for _, r := range []quantize.Recipe{{Default: weight.Spec{Kind: "bcq"}}, {Default: weight.Spec{Codebook: "q4"}}} {
		if _, err := probe.CandidatesFor(r, false); err == nil {
			t.Errorf("%+v is mixed", r.Default)
		}
	}
}
