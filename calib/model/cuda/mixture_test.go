package cuda

import (
	"context"
	"fmt"
	"slices"
	"testing"

	"github.com/lutq/lutq/calib/decodebench"
	"github.com/lutq/lutq/calib/model"
	"github.com/lutq/lutq/formats/arch"
	"github.com/lutq/lutq/formats/hf"
	"github.com/lutq/lutq/gemm/cuda/driver"
)

// mixtureCase is a small model with experts, of random weights.
type mixtureCase struct {
	name, config string
	bits, group  int
}

func mixtureCases() []mixtureCase {
	const sizes = `"hidden_size": 256, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64, "num_hidden_layers": 3, "vocab_size": 512,
		"intermediate_size": 192, "tie_word_embeddings": false`
	return []mixtureCase{
		{"qwen3_moe", `{"model_type": "qwen3_moe", "architectures": ["Qwen3MoeForCausalLM"], ` + sizes + `,
			"num_experts": 40, "num_experts_per_tok": 6, "moe_intermediate_size": 96, "norm_topk_prob": true, "mlp_only_layers": [1]}`, 4, 64},
		{"qwen2_moe", `{"model_type": "qwen2_moe", "architectures": ["Qwen2MoeForCausalLM"], ` + sizes + `,
			"num_experts": 5, "num_experts_per_tok": 2, "moe_intermediate_size": 64, "shared_expert_intermediate_size": 160, "norm_topk_prob": false}`, 3, 32},
		{"mixtral", `{"model_type": "mixtral", "architectures": ["MixtralForCausalLM"], ` + sizes + `,
			"num_local_experts": 4, "num_experts_per_tok": 2}`, 4, 64},
		{"gpt_oss", `{"model_type": "gpt_oss", "architectures": ["GptOssForCausalLM"], ` + sizes + `,
			"num_local_experts": 8, "num_experts_per_tok": 4}`, 4, 32},
		{"dense", `{"model_type": "qwen3_moe", "architectures": ["Qwen3MoeForCausalLM"], ` + sizes + `,
			"num_experts": 12, "num_experts_per_tok": 3, "moe_intermediate_size": 80, "norm_topk_prob": false}`, 0, 64},
	}
}

// TestGPUMixtureSteps goes through texts a token at a time, each beside other ones, by recorded steps of models with experts, and
// compares each with its window.
func TestGPUMixtureSteps(t *testing.T) {
	onGPU(t, func(t *testing.T, o *Ops, i int) {
		if types[i].acts != driver.F32 {
			testMixtureSteps(t, o, i, 40, mixtureCases(), 1, 3, 16)
		}
	})
}

func testMixtureSteps(t *testing.T, o *Ops, i, length int, cases []mixtureCase, texts ...int) {
	// Of the divergence, and of what logits are away where another expert is nearly as good as one that is chosen: in 16 bits it may be
	// chosen in its place, which among hundreds of tokens also changes what is the most likely one.
	most, far := 1e-4, 6e-2
	if types[i].acts == driver.BF16 {
		most, far = 1e-3, 1e-1
	}
	for _, c := range cases {
		d, err := arch.Describe([]byte(c.config), nil)
		if err != nil {
			t.Fatal(err)
		}
		src, err := decodebench.NewRandom(c.name, d, decodebench.RandomOptions{Bits: c.bits, Group: c.group, DType: hf.F16, Upload: true})
		if err != nil {
			t.Fatal(err)
		}
		m, err := model.New(src, o)
		if err != nil {
			t.Fatal(err)
		}
		var tokens [][]int
		var logits [][]float32
		for slot := range slices.Max(texts) {
			text := make([]int, length)
			for at := range text {
				text[at] = (at*at*31 + at*(slot*slot+7) + 13*slot) % d.Vocab
			}
			tokens = append(tokens, text)
			logits = append(logits, windowLogits(t, m, text))
		}
		for _, n := range texts {
			t.Run(fmt.Sprintf("%s, %d texts", c.name, n), func(t *testing.T) {
				got := mixtureSteps(t, m, tokens[:n])
				worst, divergence, others := 0.0, 0.0, 0
				for slot := range n {
					worst = max(worst, distance(got[slot], logits[slot]))
					for at := range length {
						p, q := logits[slot][at*d.Vocab:][:d.Vocab], got[slot][at*d.Vocab:][:d.Vocab]
						divergence += klOf(p, q) / float64(n*length)
						if best := slices.Index(p, slices.Max(p)); q[best] != slices.Max(q) && margin(p) >= .05 {
							others++
							t.Logf("text %d, token %d: another one is the most likely, which was ahead by %.3f", slot, at, margin(p))
						}
					}
				}
				t.Logf("logits differ by %.2g, divergence %.2g", worst, divergence)
				if !(worst <= far) || !(divergence <= most) || others > n*length/500 {
					t.Errorf("logits differ by %.2g, divergence %.2g, %d other tokens: want at most %.2g, %.2g and %d", worst, divergence, others, far, most, n*length/500)
				}
				again := mixtureSteps(t, m, tokens[:n])
				for slot := range n {
					if !slices.Equal(again[slot], got[slot]) {
						t.Errorf("slot %d has other bits the second time", slot)
					}
				}
			})
		}
		m.Close()
	}
}

// margin is how far the largest is ahead of the next.
func margin(v []float32) float32 {
	s := slices.Sorted(slices.Values(v))
	return s[len(s)-1] - s[len(s)-2]
}

func windowLogits(t *testing.T, m *model.Model, tokens []int) []float32 {
	t.Helper()
	h, err := m.Hidden(context.Background(), tokens)
	if err != nil {
		t.Fatal(err)
	}
	l := m.Ops().Floats(len(tokens) * m.Vocab())
	defer m.Ops().Free(l)
	if err := m.Logits(l, h, len(tokens)); err != nil {
		t.Fatal(err)
	}
	v := make([]float32, l.Len())
	m.Ops().Read(v, l)
	return v
}

// mixtureSteps returns the logits of texts side by side, of recorded steps.
func mixtureSteps(t *testing.T, m *model.Model, texts [][]int) [][]float32 {
	t.Helper()
	ctx, n := context.Background(), len(texts)
	c, err := m.NewCache(n, len(texts[0])+2)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	all, slots, next, host := make([][]float32, n), make([]int, n), make([]int, n), make([]float32, n*m.Vocab())
	for at := range texts[0] {
		for slot := range n {
			slots[slot], next[slot] = slot, texts[slot][at]
		}
		logits, best, err := c.Step(ctx, slots, next)
		if err != nil {
			t.Fatal(err)
		}
		if best == nil {
			t.Fatal("the host has taken part in a step")
		}
		m.Ops().Read(host, logits)
		for slot := range n {
			all[slot] = append(all[slot], host[slot*m.Vocab():][:m.Vocab()]...)
		}
	}
	return all
}
