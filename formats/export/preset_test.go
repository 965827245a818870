package export_test

import (
	"cmp"
	"slices"
	"strings"
	"testing"

	"github.com/lutq/lutq/formats/export"
	"github.com/lutq/lutq/formats/foreign"
	"github.com/lutq/lutq/formats/weight"
	"github.com/lutq/lutq/formats/weight/lut"
)

// TestPresets: what a preset allows, its target holds as it is, all tables with all groups and types of scales; and what it
// means where nothing is said is what the programs themselves quantize to.
func TestPresets(t *testing.T) {
	// gptqmodel and AutoAWQ have groups of 128, bitsandbytes 64, mlx-lm 64 (mlx.core.quantize); llm-compressor's W4A16 128. GGUF has
	// blocks of 32, MX groups of 32, and NVFP4 16, of which ours have two with a scale.
	groups := map[string]int{"gguf": 32, "ct": 128, "bnb": 64, "gptq": 128, "awq": 128, "mlx": 64, "nvfp4": 32, "mxfp4": 32, "exl3": weight.RowGroup}
	for _, p := range export.Presets() {
		t.Run(p.Target, func(t *testing.T) {
			var s weight.Spec
			if err := p.Fill(&s, weight.BF16); err != nil || s.Group != groups[p.Target] || s.Bits != 4 {
				t.Errorf("%v, %v: want 4 bits and groups of %d", s, err, groups[p.Target])
			}
			if p.Target == "gguf" { // whose format wants a whole model
				return
			}
			to, err := export.For(p.Target)
			if err != nil {
				t.Fatal(err)
			}
			scales := p.Scales
			if scales == nil {
				scales = []weight.ScaleType{weight.BF16}
			}
			const n, k = 64, 512
			for _, book := range p.Rings {
				if s.Codebook = book; p.Check(s, weight.BF16) != nil {
					t.Errorf("%v is refused", s)
				}
				l := &foreign.Layer{Name: "a.b", Tensor: "a.b.weight", N: n, K: k, Stored: s}
				f, err := to.Format(&foreign.Model{DType: weight.BF16, Layers: []*foreign.Layer{l}})
				if err != nil {
					t.Fatal(err)
				}
				if fit := f.Fit(l, nil); fit.Why != "" || fit.Change > 0 {
					t.Errorf("%s: %+v", book, fit)
				}
			}
			for bits, name := range p.Tables {
				cb, err := lut.NewCodebook(name, bits, 64)
				if err != nil {
					t.Fatal(err)
				}
				for _, group := range p.Groups {
					for _, scale := range scales {
						w := &lut.Matrix{N: n, K: k, Bits: bits, Group: weight.Spec{Group: group}.Columns(k), ScaleType: scale, Codebook: cb.Values}
						ones := slices.Repeat([]float32{1}, n*w.Groups())
						w.Scales = make([]byte, len(ones)*scale.Size())
						scale.Encode(w.Scales, ones)
						l := layerOf("a.b", "", w)
						f, err := to.Format(&foreign.Model{DType: weight.BF16, Layers: []*foreign.Layer{l}})
						if err != nil {
							t.Fatal(err)
						}
						if fit := f.Fit(l, w); fit.Why != "" || fit.Change > 0 {
							t.Errorf("%s in groups of %d with scales of %v: %+v", name, group, scale, fit)
						}
					}
				}
			}
		})
	}
}

func TestMeant(t *testing.T) {
	for name, want := range map[string]string{
		"ct": "ct", "GGUF": "gguf", "llama.cpp": "gguf", "Ollama": "gguf", "bitsandbytes": "bnb", "AutoAWQ": "awq", "GPTQModel": "gptq", "mlx-lm": "mlx",
		"compressed-tensors": "ct", "abc": "", "": "", "vLLM": "want ct of 4 bits for most models, or gptq, awq, nvfp4 or mxfp4",
		"transformers": "want ct for most models, or bnb, nvfp4 or mxfp4",
	} {
		got, err := export.Meant(name)
		if err != nil {
			if !strings.HasSuffix(err.Error(), cmp.Or(want, "no error")) {
				t.Errorf("%s: %v", name, err)
			}
		} else if got != want {
			t.Errorf("%s stands for %q: want %q", name, got, want)
		}
	}
}

// TestBitsOfVLLM: vLLM 0.22 refuses compressed-tensors of 2, 3 and 5 bits and GPTQ of 2 and 3, and both warn of it.
func TestBitsOfVLLM(t *testing.T) {
	for name, refused := range map[string][]int{"ct": {2, 3, 5}, "gptq": {2, 3}} {
		to, err := export.For(name)
		if err != nil {
			t.Fatal(err)
		}
		for bits := range export.PresetFor(name).Tables {
			l := &foreign.Layer{Name: "a.b", Tensor: "a.b.weight", N: 64, K: 128, Bits: bits, Group: 128, Table: foreign.Integers(bits)}
			f, err := to.Format(&foreign.Model{Config: []byte("{}"), DType: weight.F16, Layers: []*foreign.Layer{l}})
			if err != nil {
				t.Fatal(err)
			}
			said := strings.Contains(strings.Join(f.(foreign.Warner).Warnings(), "\n"), "vLLM takes")
			if said != slices.Contains(refused, bits) {
				t.Errorf("%s of %d bits: %v", name, bits, f.(foreign.Warner).Warnings())
			}
		}
	}
}
