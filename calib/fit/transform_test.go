package fit

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/lutq/lutq/calib/corpus"
	"github.com/lutq/lutq/calib/learn"
	"github.com/lutq/lutq/calib/model"
	modelcpu "github.com/lutq/lutq/calib/model/cpu"
	"github.com/lutq/lutq/formats/arch"
	"github.com/lutq/lutq/formats/arch/archtest"
	"github.com/lutq/lutq/formats/racetest"
	"github.com/lutq/lutq/formats/source"
	"github.com/lutq/lutq/formats/source/modeltest"
	"github.com/lutq/lutq/gemm/cpu"
	"github.com/lutq/lutq/quantize"
	"github.com/lutq/lutq/quantize/gptq"
	"github.com/lutq/lutq/quantize/quantizetest"
	"github.com/lutq/lutq/quantize/transform"
)

// transformTiny finds factors for a recipe on a short text.
func transformTiny(t *testing.T, recipe string, l *Learning) (m, changed *source.Model, r quantize.Recipe, o Options) {
	t.Helper()
	r = quantizetest.Recipe(t, recipe)
	m = modeltest.Open(t, "../testdata/lutq-tiny")
	o = tinyOptions()
	o.Learn = l
	changed, err := Transform(t.Context(), m, &r, &o)
	if err != nil {
		t.Fatal(err)
	}
	return m, changed, r, o
}

// tinyOptions are those of a short text on the CPU.
func tinyOptions() Options {
	return Options{
		Texts: []string{"../testdata/harbour.txt"}, Windows: 3, Context: 64, Seed: 7, GPTQ: gptq.Options{Damp: 0.1, Retarget: 0.5}, Device: "cpu",
		Open: func(int64) ([]model.Ops, func() error, error) {
			e, err := cpu.New(cpu.Options{Threads: 2})
			return []model.Ops{modelcpu.New(e)}, func() error { e.Close(); return nil }, err
		},
		Begin:    func(string) func() { return func() {} },
		Progress: func(int, int, int, int) {},
	}
}

// TestTransformFamilies: every family has states that factors are found for. Those that experts read in common are not among them,
// nor what is stored in stacks.
func TestTransformFamilies(t *testing.T) {
	racetest.Skip(t)
	families := []string{"gemma2", "gemma3", "gpt-oss", "llama-bias", "llama-fp8", "mixtral", "mixtral-fused", "phi3", "qwen2-moe", "qwen3"}
	for _, g := range archtest.Goldens(t) {
		if !slices.Contains(families, g.Name) {
			continue
		}
		families = slices.DeleteFunc(families, func(name string) bool { return name == g.Name })
		t.Run(g.Name, func(t *testing.T) {
			dir := t.TempDir()
			g.Write(t, dir)
			m := modeltest.Open(t, dir)
			d, err := m.Decoder()
			if err != nil {
				t.Fatal(err)
			}
			r, err := quantize.ParseRecipe([]byte(`{"bits": 3, "codebook": "nf"}`))
			if err != nil {
				t.Fatal(err)
			}
			o := tinyOptions()
			o.text = &corpus.Mixture{Windows: [][]int{g.Tokens}, Context: len(g.Tokens)}
			if _, err := Transform(t.Context(), m, &r, &o); err != nil {
				t.Fatal(err)
			}
			data, err := r.Transform.File()
			if err != nil {
				t.Fatal(err)
			}
			f, err := transform.Parse(data)
			if err != nil {
				t.Fatal(err)
			}
			for i := range d.Blocks {
				b := &d.Blocks[i]
				states := []*arch.State{b.Attn().Q.Reads, b.Attn().O.Reads}
				if b.MoE == nil {
					states = append(states, b.MLP.Up.Reads, b.MLP.Down.Reads)
				} else if f[b.MoE.Router.Reads.Name] != nil {
					t.Errorf("%s is divided", b.MoE.Router.Reads.Name)
				}
				for _, s := range states {
					if len(f[s.Name]) != s.Width {
						t.Errorf("%s has %d factors: want %d", s.Name, len(f[s.Name]), s.Width)
					}
				}
			}
		})
	}
	if len(families) > 0 {
		t.Errorf("there are no families %v", families)
	}
}

// TestTransform: all states that can be divided get factors that are not all alike, which are recorded, and whose flags ask for
// the text where nothing else does.
func TestTransform(t *testing.T) {
	const text = " --calib harbour.txt --calib-windows 3 --calib-ctx 64 --calib-bos half --seed 7 --device cpu"
	for _, tc := range []struct {
		recipe string
		learn  *Learning
		flags  string
		states int
	}{
		{`{"bits": 3, "codebook": "nf"}`, nil, "--transform awq" + text, 16},
		{`{"bits": 3, "codebook": "nf", "method": "gptq"}`, nil, "--transform awq", 16},
		{`{"bits": 3, "codebook": "nf"}`, &Learning{Options: learn.Options{Mode: learn.Lutq}, After: true, Valid: 1}, "--transform awq", 16},
		{`{"bits": 3, "codebook": "nf", "tensors": [{"match": "down_proj", "keep": true}]}`, nil, "--transform awq" + text, 12},
	} {
		m, changed, r, o := transformTiny(t, tc.recipe, tc.learn)
		if got := strings.Join(r.Transform.Flags(), " "); got != tc.flags {
			t.Errorf("%s: flags %q, want %q", tc.recipe, got, tc.flags)
		}
		if rec := r.Transform.Record(); rec.Name != AWQ || rec.States != tc.states || rec.Calib.Windows != 3 || rec.Calib.Texts[0].Name != "harbour.txt" {
			t.Errorf("%s: recorded as %+v", tc.recipe, rec)
		}
		data, err := r.Transform.File()
		if err != nil {
			t.Fatal(err)
		}
		f, err := transform.Parse(data)
		if err != nil {
			t.Fatal(err)
		}
		if len(f) != tc.states {
			t.Errorf("%s: factors of %d states", tc.recipe, len(f))
		}
		uneven := 0
		for _, of := range maps.All(f) {
			if slices.Max(of) > 1.1*slices.Min(of) {
				uneven++
			}
		}
		if uneven < tc.states/2 {
			t.Errorf("%s: %d of %d states are divided", tc.recipe, uneven, tc.states)
		}
		if changed == m {
			t.Errorf("%s: the model is as it was", tc.recipe)
		}
		// What comes after takes the text that was read.
		o.Texts = nil
		if _, err := To(t.Context(), changed, &r, o); err != nil {
			t.Error(err)
		}
		_, _, again, _ := transformTiny(t, tc.recipe, tc.learn)
		if again.Transform.Key() != r.Transform.Key() {
			t.Errorf("%s: other factors the second time", tc.recipe)
		}
	}
}

// TestTransformOutliers: components that are thirty times what they were, which the layers that read them make up for, get the
// largest factors, and others about the same.
func TestTransformOutliers(t *testing.T) {
	m := modeltest.Open(t, "../testdata/lutq-tiny")
	d, err := m.Decoder()
	if err != nil {
		t.Fatal(err)
	}
	large := []int{5, 70}
	f := make(transform.Factors)
	for _, s := range transform.Sets(d) {
		of := slices.Repeat([]float32{1}, s.Width)
		for _, i := range large {
			of[i] = 1. / 30
		}
		s.Tie(of)
		f[s.Name] = of
	}
	if m, err = f.Of(m); err != nil {
		t.Fatal(err)
	}
	r, err := quantize.ParseRecipe([]byte(`{"bits": 4, "codebook": "nf", "scale": "absmax"}`))
	if err != nil {
		t.Fatal(err)
	}
	o := tinyOptions()
	if _, err := Transform(t.Context(), m, &r, &o); err != nil {
		t.Fatal(err)
	}
	data, err := r.Transform.File()
	if err != nil {
		t.Fatal(err)
	}
	if f, err = transform.Parse(data); err != nil {
		t.Fatal(err)
	}
	for i := range d.Blocks {
		for _, s := range []*arch.State{d.Blocks[i].Attn().Q.Reads, d.Blocks[i].MLP.Up.Reads} {
			middle := slices.Sorted(slices.Values(f[s.Name]))[s.Width/2]
			for _, j := range large {
				if v := f[s.Name][j] / middle; !(v > 3 && v < 100) {
					t.Errorf("%s: component %d has %v times the factor of others", s.Name, j, v)
				}
			}
		}
	}
}
