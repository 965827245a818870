package quantize

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/lutq/lutq/formats/hf"
	"github.com/lutq/lutq/formats/source/modeltest"
)

// zeros writes a checkpoint of zeros.
func zeros(t testing.TB, entries ...hf.Entry) string {
	t.Helper()
	dir := t.TempDir()
	w, err := hf.NewWriter(dir, entries, hf.WriterOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		n, err := e.Bytes()
		if err != nil {
			t.Fatal(err)
		}
		if err := w.WriteAt(e.Name, make([]byte, n), 0); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Commit(); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "config.json"), []byte("{}"), 0o644); err != nil {
		t.Fatal(err)
	}
	return dir
}

// TestKept checks what is copied, and the reason that is given for it.
func TestKept(t *testing.T) {
	src := zeros(t,
		hf.Entry{Name: "model.embed_tokens.weight", DType: "BF16", Shape: []int{16, 8}},
		hf.Entry{Name: "lm_head.weight", DType: "BF16", Shape: []int{16, 8}},
		hf.Entry{Name: "model.layers.0.self_attn.q_proj.weight", DType: "BF16", Shape: []int{8, 8}},
		hf.Entry{Name: "model.layers.1.self_attn.q_proj.weight", DType: "BF16", Shape: []int{8, 8}},
		hf.Entry{Name: "model.layers.0.self_attn.q_proj.bias", DType: "BF16", Shape: []int{8}},
		hf.Entry{Name: "model.layers.0.input_layernorm.weight", DType: "BF16", Shape: []int{8}},
		hf.Entry{Name: "model.layers.1.input_layernorm.weight", DType: "BF16", Shape: []int{8}},
		hf.Entry{Name: "model.layers.0.mlp.gate.weight", DType: "BF16", Shape: []int{4, 8}},
		hf.Entry{Name: "model.layers.0.mlp.experts.gate_up_proj", DType: "BF16", Shape: []int{4, 8, 8}},
		hf.Entry{Name: "model.layers.0.mlp.experts.down_proj", DType: "BF16", Shape: []int{4, 8, 8}},
		hf.Entry{Name: "model.layers.0.ssm.A_log", DType: "F32", Shape: []int{8, 8}},
		hf.Entry{Name: "model.layers.0.attn.position_ids", DType: "I64", Shape: []int{1, 8}},
		hf.Entry{Name: "vision_tower.encoder.layers.0.self_attn.q_proj.weight", DType: "F16", Shape: []int{8, 8}},
		hf.Entry{Name: "vision_tower.encoder.layers.0.layer_norm1.weight", DType: "F16", Shape: []int{8}},
		hf.Entry{Name: "model.visual.patch_embed.proj.weight", DType: "F16", Shape: []int{8, 3, 2, 2}},
		hf.Entry{Name: "pooler.patch_proj.weight", DType: "F16", Shape: []int{8, 8}},
		hf.Entry{Name: "model.layers.0.none.weight", DType: "F16", Shape: []int{8, 0}},
	)
	for _, tc := range []struct {
		name, recipe string
		want         map[Reason]int
	}{
		{"by default", `{}`, map[Reason]int{
			KeptEmbedding: 1, KeptHead: 1, KeptVector: 1, KeptNorm: 2, KeptRouter: 1, KeptRank: 2, KeptOther: 1, KeptType: 1, KeptOutside: 1, KeptEmpty: 1, KeptTower: 3,
		}},
		{"by rules", `{"tensors": [{"match": "layers\\.0\\.", "keep": true}, {"match": "head|patch", "bits": 5}]}`, map[Reason]int{
			KeptEmbedding: 1, KeptByRule: 11, KeptNorm: 1, KeptTower: 1,
		}},
		{"a rule after keep", `{"tensors": [{"match": ".", "keep": true}, {"match": "q_proj", "bits": 5}]}`, map[Reason]int{KeptByRule: 15}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p := plan(t, src, tc.recipe)
			got, tensors, bytes := make(map[Reason]int), 0, int64(0)
			for _, k := range p.Kept() {
				got[k.Reason] += k.Tensors
				tensors += k.Tensors
				bytes += k.Bytes
			}
			if d := cmp.Diff(tc.want, got); d != "" {
				t.Error(d)
			}
			var quantized int64
			for i := range p.Items {
				if it := &p.Items[i]; it.Quantized() != (it.Kept == "") {
					t.Errorf("%s: quantized %v, kept for %q", it.Tensor.Name, it.Quantized(), it.Kept)
				} else if it.Quantized() {
					quantized += it.Tensor.Bytes()
				}
			}
			if all := p.Totals(); tensors+all.Quantized != all.Tensors || bytes+quantized != all.BytesIn {
				t.Errorf("%d tensors of %d bytes are kept, %d of %d quantized: all are %d of %d", tensors, bytes, all.Quantized, quantized, all.Tensors, all.BytesIn)
			}
		})
	}
	names := plan(t, src, `{}`).Kept()
	for _, k := range names {
		if k.Reason == KeptNorm && !cmp.Equal(k.Names, []string{"model.layers.*.input_layernorm.weight"}) {
			t.Errorf("norms are named %q", k.Names)
		}
		if k.Reason == KeptTower && !cmp.Equal(k.Names, []string{"vision_tower.*", "model.visual.*"}) {
			t.Errorf("towers are named %q", k.Names)
		}
	}
}

// TestPackedWeights checks that weights which another program packed stop a
// plan unless a rule keeps them.
func TestPackedWeights(t *testing.T) {
	src := modeltest.Open(t, zeros(t,
		hf.Entry{Name: "model.layers.0.mlp.up_proj.weight", DType: "BF16", Shape: []int{8, 8}},
		hf.Entry{Name: "model.layers.1.mlp.up_proj.weight", DType: "F8_E4M3", Shape: []int{8, 8}},
	))
	recipe := func(s string) Recipe {
		r, err := ParseRecipe([]byte(s))
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	_, err := NewPlan(src, recipe(`{}`))
	var packed *PackedError
	if !errors.As(err, &packed) || packed.Type != "F8_E4M3" {
		t.Errorf("got %v, want an error on packed weights", err)
	}
	if _, err := NewPlan(src, recipe(`{"tensors": [{"match": "layers\\.1\\.", "keep": true}]}`)); err != nil {
		t.Errorf("with a rule that keeps them: %v", err)
	}
}

// TestOtherNames: a model whose tensors are named as in no place that its family has them is one of no family, and its layers are
// those that their names tell.
func TestOtherNames(t *testing.T) {
	dir := zeros(t,
		hf.Entry{Name: "text.decoder.layers.0.self_attn.q_proj.weight", DType: "BF16", Shape: []int{64, 64}},
		hf.Entry{Name: "vision_tower.layers.0.self_attn.q_proj.weight", DType: "BF16", Shape: []int{64, 64}},
	)
	config := `{"model_type": "llava", "text_config": {"model_type": "llama", "hidden_size": 64, "num_attention_heads": 2}}`
	if err := os.WriteFile(filepath.Join(dir, "config.json"), []byte(config), 0o644); err != nil {
		t.Fatal(err)
	}
	p := plan(t, dir, `{}`)
	if family, why := p.Family(); family != "" || why == nil {
		t.Errorf("family %q, %v", family, why)
	}
	if all := p.Totals(); all.Quantized != 1 || p.Items[1].Kept != KeptTower {
		t.Errorf("%d of %d tensors are quantized, the tower's is kept for %q", all.Quantized, all.Tensors, p.Items[1].Kept)
	}
}
