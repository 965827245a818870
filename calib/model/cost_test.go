package model_test

import (
	"context"
	"testing"

	"github.com/lutq/lutq/calib/model"
	modelcpu "github.com/lutq/lutq/calib/model/cpu"
	"github.com/lutq/lutq/formats/arch"
	"github.com/lutq/lutq/formats/arch/archtest"
	"github.com/lutq/lutq/formats/hf"
	"github.com/lutq/lutq/formats/weight"
)

// described is a source of a description whose tensors lie nowhere.
type described struct {
	d       *arch.Decoder
	tensors map[string]*hf.Tensor
}

func newDescribed(t *testing.T, config string, as hf.DType) *described {
	t.Helper()
	d, err := arch.Describe([]byte(config), nil)
	if err != nil {
		t.Fatal(err)
	}
	s := &described{d, make(map[string]*hf.Tensor)}
	for _, of := range d.Stored() {
		if s.tensors[of.Tensor], err = hf.NewTensor(of.Tensor, as, of.Shape()...); err != nil {
			t.Fatal(err)
		}
	}
	return s
}

func (s *described) Name() string                            { return "described" }
func (s *described) Decoder() *arch.Decoder                  { return s.d }
func (s *described) Tensor(name string) (*hf.Tensor, bool)   { t, ok := s.tensors[name]; return t, ok }
func (s *described) Read(*hf.Tensor) ([]byte, error)         { panic("nothing is read") }
func (s *described) Quantized(string) (weight.Matrix, error) { return nil, nil }
func (s *described) Wait() error                             { return nil }

const (
	qwen3Config = `{"model_type": "qwen3_moe", "architectures": ["Qwen3MoeForCausalLM"], "hidden_size": 2048, "intermediate_size": 6144,
		"moe_intermediate_size": 768, "num_hidden_layers": 48, "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128,
		"num_experts": 128, "num_experts_per_tok": 8, "decoder_sparse_step": 1, "mlp_only_layers": [], "norm_topk_prob": true, "vocab_size": 151936,
		"hidden_act": "silu", "rms_norm_eps": 1e-6, "rope_theta": 1e6, "max_position_embeddings": 40960, "tie_word_embeddings": false}`
	deepseekConfig = `{"model_type": "deepseek_v3", "architectures": ["DeepseekV3ForCausalLM"], "hidden_size": 7168, "intermediate_size": 18432,
		"moe_intermediate_size": 2048, "num_hidden_layers": 61, "num_attention_heads": 128, "num_key_value_heads": 128, "n_routed_experts": 256,
		"num_experts_per_tok": 8, "n_shared_experts": 1, "first_k_dense_replace": 3, "moe_layer_freq": 1, "n_group": 8, "topk_group": 4,
		"topk_method": "noaux_tc", "scoring_func": "sigmoid", "norm_topk_prob": true, "routed_scaling_factor": 2.5, "q_lora_rank": 1536,
		"kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "vocab_size": 129280, "hidden_act": "silu",
		"rms_norm_eps": 1e-6, "rope_theta": 10000, "max_position_embeddings": 4096, "tie_word_embeddings": false}`
)

// TestWalkMemory: what a walk on a GPU takes of the host does not grow with the layers of a block, nor what it takes of the GPU with the
// statistics of all experts.
func TestWalkMemory(t *testing.T) {
	windows := make([][]int, 128)
	for i := range windows {
		windows[i] = make([]int, 2048)
	}
	const gb = 1e9
	for _, c := range []struct {
		name, config string
		as           hf.DType
		host, device float64 // at most, in 10^9 bytes
	}{
		// Windows 2·262144·(2048·4 + 4096·2) = 8.6, a block 1.25·1.27 = 1.6, statistics 128·2·2048²·4 = 4.3, states 0.6, rooms 1.
		{"Qwen3-30B-A3B", qwen3Config, hf.BF16, 1.2, 16.5},
		// 2·262144·(7168·4 + 16384·2) = 32.2, 22.9·1.27 = 29, 8.6, 4.3, and 5; statistics of 256 experts would take 105.
		{"DeepSeek-V3", deepseekConfig, hf.BF16, 3, 81},
		{"DeepSeek-V3 in fp8", deepseekConfig, hf.F32, 3, 81},
	} {
		t.Run(c.name, func(t *testing.T) {
			src := newDescribed(t, c.config, c.as)
			o := model.WalkOptions{Windows: windows, Original: true, Together: 1 << 14}
			host, device := float64(model.WalkMemory(src, o, "cuda", 1))/gb, float64(model.WalkDeviceMemory(src.d, o, 1, 4.27/16, 17, 4<<30))/gb
			if two := float64(model.WalkDeviceMemory(src.d, o, 2, 4.27/16, 17, 4<<30)) / gb; two > .85*device || two < .5*device {
				t.Errorf("%.1f GB of each of two devices, %.1f of one", two, device)
			}
			if host > c.host || host < c.host/2 {
				t.Errorf("%.1f GB of the host: want at most %.1f", host, c.host)
			}
			if device > c.device || device < c.device*.9 {
				t.Errorf("%.1f GB of the device: want about %.1f", device, c.device)
			}
		})
	}
}

// counted counts operations as a GPU is asked for them: rows that are gathered or scattered are told it first, and differences are written.
type counted struct {
	*modelcpu.Ops
	n float64
}

func (o *counted) Linear(x model.Array, rows int, to ...model.Product) {
	o.n += float64(len(to))
	o.Ops.Linear(x, rows, to...)
}

func (o *counted) Gather(dst, src model.Array, rows []int, weights []float32) {
	o.n += 2
	o.Ops.Gather(dst, src, rows, weights)
}

func (o *counted) Scatter(h, src model.Array, rows []int, weights []float32) {
	o.n += 3
	o.Ops.Scatter(h, src, rows, weights)
}

func (o *counted) GLU(y, g, u model.Array, act arch.Gating) {
	o.n++
	o.Ops.GLU(y, g, u, act)
}

func (o *counted) Gram(h, x model.Array, rows int) {
	o.n++
	o.Ops.Gram(h, x, rows)
}

func (o *counted) Cross(d, x, xq model.Array, rows int) {
	o.n += 2
	o.Ops.Cross(d, x, xq, rows)
}

func (o *counted) RMSNorm(y, x, w model.Array, rows int, eps float64) {
	o.n++
	o.Ops.RMSNorm(y, x, w, rows, eps)
}

func (o *counted) Rope(x model.Array, s model.RopeShape, cos, sin model.Array, back bool) {
	o.n++
	o.Ops.Rope(x, s, cos, sin, back)
}

func (o *counted) Attention(out, lse, q, k, v model.Array, s model.AttentionShape) {
	o.n++
	o.Ops.Attention(out, lse, q, k, v, s)
}

// TestWalkLaunches: what is expected to be asked for is within a third of what is.
func TestWalkLaunches(t *testing.T) {
	for _, g := range archtest.Goldens(t) {
		if g.Name != "qwen3-moe" && g.Name != "mixtral" && g.Name != "llama" {
			continue
		}
		t.Run(g.Name, func(t *testing.T) {
			dir := t.TempDir()
			g.Write(t, dir)
			src := openCheckpoint(t, dir)
			for _, original := range []bool{false, true} {
				o := model.WalkOptions{Original: original, Together: 4 * len(g.Tokens)}
				for range 8 {
					o.Windows = append(o.Windows, g.Tokens)
				}
				ops := &counted{Ops: newOps(t, 2)}
				if err := model.Walk(context.Background(), src, ops, newVisitor(t, src), o); err != nil {
					t.Fatal(err)
				}
				if want := model.WalkLaunches(src.Decoder(), o); ops.n > 1.33*want || want > 1.33*ops.n {
					t.Errorf("original %v: %v operations: want about %v", original, ops.n, want)
				}
			}
		})
	}
}
