package gguf

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/lutq/lutq/formats/arch"
	"github.com/lutq/lutq/formats/arch/archtest"
	"github.com/lutq/lutq/formats/hf"
	"github.com/lutq/lutq/formats/mxfp4"
	"github.com/lutq/lutq/formats/racetest"
)

// refused are the golden models that llama.cpp computes otherwise, or not at all, and a word of the reason.
func refused() map[string]string {
	all := map[string]string{
		"llama-gelu":           "activation",
		"llama-gelu-new":       "activation",
		"llama-gelu-tanh":      "activation",
		"llama-relu":           "activation",
		"qwen3-moe-mixed":      "dense",
		"llama-yarn-mscale":    "truncate",
		"qwen2-moe-fused":      "dense",
		"qwen3-sliding":        "bias",
		"llama4":               "parts of",
		"llama4-plain":         "parts of",
		"smollm3-sliding":      "every fourth",
		"lfm2-bias":            "bias",
		"lfm2-moe":             "factor",
		"lfm2-moe-fused":       "norm_topk_prob",
		"granite-hybrid-dense": "no bias",
		"deepseek-v3-plain":    "neighbours",
		"qwen3-next":           "dense",
		"qwen3-next-fused":     "values of 24",
		"qwen3-5":              "values of 24",
		"qwen3-5-sees":         "values of 24",
		"qwen3-5-bias":         "bias",
		"qwen3-5-moe":          "values of 24",
	}
	for _, name := range []string{
		"deepseek-v32", "deepseek-v32-all", "glm-moe-dsa",
		"nemotron-h", "nemotron-h-pattern", "nemotron-h-moe", "nemotron-h-moe-fused", "nemotron-h-latent",
	} {
		all[name] = "no GGUF"
	}
	return all
}

// open writes a golden checkpoint and describes it.
func open(t *testing.T, g archtest.Golden) (*hf.Checkpoint, *arch.Decoder) {
	t.Helper()
	dir := t.TempDir()
	g.Write(t, dir)
	c, err := hf.Open(dir, hf.FP8Scheme{}, mxfp4.Scheme{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	// llama.cpp scales Gemma's scores by the size of a head, and has every sixth layer see all, as published models do.
	config := string(g.Config)
	if strings.HasPrefix(g.Name, "gemma") && !strings.HasPrefix(g.Name, "gemma4") {
		config = strings.NewReplacer(
			`"query_pre_attn_scalar": 24`, `"query_pre_attn_scalar": 32`,
			`"sliding_attention", "sliding_attention", "full_attention"`, `"sliding_attention", "sliding_attention", "sliding_attention"`,
			`"sliding_window_pattern": 3`, `"sliding_window_pattern": 6`,
		).Replace(config)
	}
	d, err := arch.Describe([]byte(config), c.Has)
	if err != nil {
		t.Fatal(err)
	}
	return c, d
}

// Each row of each of a model's tensors is in the file, once, and nothing else is but what config.json says.
func TestTensorsCoverModels(t *testing.T) {
	racetest.Skip(t)
	for _, g := range archtest.Goldens(t) {
		t.Run(g.Name, func(t *testing.T) {
			c, d := open(t, g)
			tensors, err := Tensors(d)
			if word := refused()[g.Name]; word != "" {
				if err == nil || !strings.Contains(err.Error(), word) {
					t.Fatalf("error %v: want one of its %s", err, word)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			used := make(map[string][]int) // how often each row, or element of a vector, is used
			use := func(tensor string, rows, row int) {
				if used[tensor] == nil {
					used[tensor] = make([]int, rows)
				}
				used[tensor][row]++
			}
			names := make(map[string]bool)
			for _, x := range tensors {
				if names[x.Name] {
					t.Errorf("two tensors are called %s", x.Name)
				}
				names[x.Name] = true
				switch {
				case x.Layers != nil:
					cover(t, &x, use)
				case x.Source != "":
					for i := range x.Rows() {
						use(x.Source, x.Rows(), x.Row(i))
					}
				case x.Values == nil:
					t.Errorf("%s is made of nothing", x.Name)
				}
			}
			for _, x := range c.Tensors() {
				rows, ok := used[x.Name]
				if !ok && d.Role(x.Name) != arch.Other { // which towers for pictures are
					t.Errorf("%s is not in the file", x.Name)
				}
				if i := slices.IndexFunc(rows, func(n int) bool { return n != 1 }); i >= 0 {
					t.Errorf("row %d of %s is used %d times", i, x.Name, rows[i])
				}
				delete(used, x.Name)
			}
			for name := range used {
				if c.Has(name + "_blocks") { // of MXFP4, as the files have it
					continue
				}
				t.Errorf("%s is no tensor of the model", name)
			}
		})
	}
}

// cover notes the rows that a tensor of layers is made of.
func cover(t *testing.T, x *Tensor, use func(tensor string, rows, row int)) {
	t.Helper()
	rows := x.Rows()
	if x.Bias && len(x.Shape) == 2 { // a bias for each expert
		rows *= x.Shape[1]
	}
	if x.Turned {
		rows = rows / x.Layers[0].K * x.Shape[2]
	}
	next := 0
	for _, l := range x.Layers {
		s := l.Stored
		name := s.Tensor
		if x.Bias {
			name = s.Bias
		}
		for i := range x.Taken(l) {
			use(name, s.Matrices()*s.N, l.Expert*s.N+l.Row+x.Row(i)*l.Step)
			next++
		}
	}
	if next != rows {
		t.Errorf("%s has %d rows, its layers %d", x.Name, rows, next)
	}
	if x.Columns != nil && slices.Contains(inverse(x.Columns, x.Layers[0].K), -1) {
		t.Errorf("%s has not all columns", x.Name)
	}
}

// The rows of a head are llama.cpp's: W.reshape(heads, 2, half, K).swapaxes(1, 2) in its converter.
func TestRowPermutation(t *testing.T) {
	got := sideBySide(16, 2)
	want := []int{0, 4, 1, 5, 2, 6, 3, 7, 8, 12, 9, 13, 10, 14, 11, 15}
	if !slices.Equal(got, want) {
		t.Errorf("rows %v: want %v", got, want)
	}
	r := rand.New(rand.NewPCG(1, 2))
	for range 100 {
		heads, dim := 1+r.IntN(8), 2*(1+r.IntN(64))
		seen := make([]bool, heads*dim)
		for _, i := range sideBySide(heads*dim, heads) {
			seen[i] = true
		}
		if slices.Contains(seen, false) {
			t.Fatalf("%d heads of %d rows: some row has no place", heads, dim)
		}
	}
}

func TestDescribe(t *testing.T) {
	want := map[string]map[string]any{
		"llama": {
			"general.architecture": "llama", "llama.embedding_length": uint32(64), "llama.block_count": uint32(3),
			"llama.attention.head_count": uint32(4), "llama.attention.head_count_kv": uint32(2), "llama.attention.key_length": uint32(16),
			"llama.rope.dimension_count": uint32(16), "llama.vocab_size": uint32(64), "llama.feed_forward_length": uint32(96),
			"llama.attention.layer_norm_rms_epsilon": float32(1e-3), "llama.context_length": uint32(128), "llama.expert_count": nil,
		},
		"llama-yarn":   {"llama.rope.scaling.type": "yarn"},
		"llama-linear": {"llama.rope.scaling.type": "linear"},
		"llama-llama3": {"llama.rope.scaling.type": nil},
		"mixtral":      {"general.architecture": "llama", "llama.expert_count": uint32(4), "llama.expert_used_count": uint32(2), "llama.feed_forward_length": uint32(48)},
		"gemma3":       {"general.architecture": "gemma3", "gemma3.attention.sliding_window": uint32(16)},
		"phi3":         {"general.architecture": "phi3"},
		"qwen3-moe":    {"general.architecture": "qwen3moe"},
	}
	for _, g := range archtest.Goldens(t) {
		if want[g.Name] == nil {
			continue
		}
		t.Run(g.Name, func(t *testing.T) {
			_, d := open(t, g)
			kvs, err := Describe(d)
			if err != nil {
				t.Fatal(err)
			}
			got := make(map[string]any)
			for _, kv := range kvs {
				got[kv.Key] = kv.Value
			}
			for key, v := range want[g.Name] {
				if got[key] != v {
					t.Errorf("%s is %v: want %v", key, got[key], v)
				}
			}
			if t.Failed() {
				t.Log(kvs)
			}
		})
	}
}
