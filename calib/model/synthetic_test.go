package model_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/lutq/lutq/calib/model"
	"github.com/lutq/lutq/formats/hf"
	"github.com/lutq/lutq/formats/num"
	"github.com/lutq/lutq/formats/source/modeltest"
	"github.com/lutq/lutq/formats/weight"
	"github.com/lutq/lutq/formats/weight/lut"
	"github.com/lutq/lutq/quantize/rtn"
)

// synthetic is a model of random weights that tests write to a folder.
type synthetic struct {
	config  map[string]any
	entries []hf.Entry
	data    map[string][]float32
}

// shape describes a synthetic model.
type shape struct {
	arch                                string
	hidden, inter, layers               int
	heads, kvHeads, headDim             int
	vocab                               int
	tied                                bool
	attentionBias, mlpBias, sharedNamed bool // sharedNamed: the tied matrix lies under lm_head
	rope                                map[string]any
	theta                               float64
	window                              int
	dtype                               hf.DType
	seed                                uint64
}

// small is the shape that tests vary.
func small() shape {
	return shape{
		arch: "LlamaForCausalLM", hidden: 24, inter: 40, layers: 2, heads: 4, kvHeads: 2, headDim: 6,
		vocab: 50, tied: true, theta: 10000, dtype: hf.F32, seed: 1,
	}
}

func (s shape) build() *synthetic {
	m := &synthetic{data: make(map[string][]float32), config: map[string]any{
		"architectures": []string{s.arch}, "hidden_size": s.hidden, "intermediate_size": s.inter,
		"num_hidden_layers": s.layers, "num_attention_heads": s.heads, "num_key_value_heads": s.kvHeads,
		"head_dim": s.headDim, "vocab_size": s.vocab, "rms_norm_eps": 1e-5, "rope_theta": s.theta,
		"tie_word_embeddings": s.tied, "hidden_act": "silu", "attention_bias": s.attentionBias, "mlp_bias": s.mlpBias,
	}}
	if s.rope != nil {
		m.config["rope_scaling"] = s.rope
	}
	if s.arch == "MistralForCausalLM" {
		m.config["sliding_window"] = nil
		if s.window > 0 {
			m.config["sliding_window"] = s.window
		}
	}
	rng := rand.New(rand.NewPCG(s.seed, 0))
	add := func(name string, mean, sd float64, shape ...int) {
		n := 1
		for _, d := range shape {
			n *= d
		}
		v := make([]float32, n)
		for i := range v {
			v[i] = float32(mean + sd*rng.NormFloat64())
		}
		m.entries = append(m.entries, hf.Entry{Name: name, DType: s.dtype, Shape: shape})
		m.data[name] = v
	}
	qkvBias := s.attentionBias || s.arch == "Qwen2ForCausalLM"
	linear := func(name string, n, k int, bias bool) {
		add(name+".weight", 0, 1.5/math.Sqrt(float64(k)), n, k)
		if bias {
			add(name+".bias", 0, 0.5, n)
		}
	}
	q, kv := s.heads*s.headDim, s.kvHeads*s.headDim
	embed := "model.embed_tokens.weight"
	if s.sharedNamed {
		embed = "lm_head.weight"
	}
	add(embed, 0, 1, s.vocab, s.hidden)
	for i := range s.layers {
		p := fmt.Sprintf("model.layers.%d.", i)
		add(p+"input_layernorm.weight", 1, 0.2, s.hidden)
		add(p+"post_attention_layernorm.weight", 1, 0.2, s.hidden)
		linear(p+"self_attn.q_proj", q, s.hidden, qkvBias)
		linear(p+"self_attn.k_proj", kv, s.hidden, qkvBias)
		linear(p+"self_attn.v_proj", kv, s.hidden, qkvBias)
		linear(p+"self_attn.o_proj", s.hidden, q, s.attentionBias)
		if s.arch == "Qwen3ForCausalLM" {
			add(p+"self_attn.q_norm.weight", 1, 0.2, s.headDim)
			add(p+"self_attn.k_norm.weight", 1, 0.2, s.headDim)
		}
		linear(p+"mlp.gate_proj", s.inter, s.hidden, s.mlpBias)
		linear(p+"mlp.up_proj", s.inter, s.hidden, s.mlpBias)
		linear(p+"mlp.down_proj", s.hidden, s.inter, s.mlpBias)
	}
	add("model.norm.weight", 1, 0.2, s.hidden)
	if !s.tied {
		add("lm_head.weight", 0, 0.3, s.vocab, s.hidden)
	}
	return m
}

// drop removes a tensor.
func (m *synthetic) drop(name string) {
	m.entries = slices.DeleteFunc(m.entries, func(e hf.Entry) bool { return e.Name == name })
}

// entry returns a tensor's description to change.
func (m *synthetic) entry(name string) *hf.Entry {
	i := slices.IndexFunc(m.entries, func(e hf.Entry) bool { return e.Name == name })
	return &m.entries[i]
}

// write stores the model in a new folder.
func (m *synthetic) write(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	config, err := json.Marshal(m.config)
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, "config.json"), config, 0o644); err != nil {
		return err
	}
	w, err := hf.NewWriter(dir, m.entries, hf.WriterOptions{})
	if err != nil {
		return err
	}
	for _, e := range m.entries {
		v := m.data[e.Name]
		size := e.DType.Bits() / 8
		p := make([]byte, len(v)*size)
		switch e.DType {
		case hf.F32:
			num.EncodeF32(p, v)
		case hf.F16:
			num.EncodeF16(p, v)
		case hf.BF16:
			num.EncodeBF16(p, v)
		}
		if err := w.WriteAt(e.Name, p, 0); err != nil {
			w.Abort()
			return err
		}
	}
	return w.Commit()
}

// folder writes the model to a folder of the test's own.
func (m *synthetic) folder(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if err := m.write(dir); err != nil {
		t.Fatal(err)
	}
	return dir
}

// quantizedSource is a checkpoint some of whose layers are quantized.
type quantizedSource struct {
	*model.Checkpoint
	layers map[string]weight.Matrix
}

func (s *quantizedSource) Quantized(layer string) (weight.Matrix, error) { return s.layers[layer], nil }

func (s *quantizedSource) Tensor(name string) (*hf.Tensor, bool) {
	for layer := range maps.Keys(s.layers) {
		if name == layer+".weight" {
			return nil, false
		}
	}
	return s.Checkpoint.Tensor(name)
}

// openCheckpoint opens a folder as a source.
func openCheckpoint(t testing.TB, dir string) *model.Checkpoint {
	t.Helper()
	src, err := model.NewCheckpoint(modeltest.Open(t, dir))
	if err != nil {
		t.Fatal(err)
	}
	return src
}

// isProjection accepts the linear layers of the decoder blocks.
func isProjection(name string) bool { return strings.HasSuffix(name, "_proj.weight") }

// quantizeWith returns a checkpoint's source with the matrices that choose
// accepts replaced.
func quantizeWith(t testing.TB, src *model.Checkpoint, choose func(string) bool, quantize func(w []float32, n, k int) *lut.Matrix) *quantizedSource {
	t.Helper()
	q := &quantizedSource{Checkpoint: src, layers: make(map[string]weight.Matrix)}
	for _, tensor := range src.Files().Tensors() {
		if len(tensor.Shape) != 2 || !choose(tensor.Name) {
			continue
		}
		n, k := tensor.Shape[0], tensor.Shape[1]
		w := make([]float32, n*k)
		if err := tensor.ReadFloat32(w, 0); err != nil {
			t.Fatal(err)
		}
		q.layers[strings.TrimSuffix(tensor.Name, ".weight")] = quantize(w, n, k)
	}
	return q
}

// quantizeMatrix quantizes by o, with groups no longer than a row.
func quantizeMatrix(t testing.TB, w []float32, n, k int, o lut.Format) *lut.Matrix {
	t.Helper()
	m, err := rtn.Quantize(w, n, k, o)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// quantizedReference computes with the dequantized weights of a source.
func quantizedReference(t testing.TB, dir string, src *quantizedSource) *reference {
	t.Helper()
	r := checkpointReference(t, dir)
	get := r.get
	r.get = func(name string) ([]float64, bool) {
		for layer, m := range src.layers {
			if name == layer+".weight" {
				return widen(weight.Dequantize(m)), true
			}
		}
		return get(name)
	}
	return r
}
