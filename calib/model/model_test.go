package model_test

import (
	"context"
	"errors"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/lutq/lutq/calib/model"
	modelcpu "github.com/lutq/lutq/calib/model/cpu"
	"github.com/lutq/lutq/formats/hf"
	"github.com/lutq/lutq/formats/source"
	"github.com/lutq/lutq/formats/source/modeltest"
	"github.com/lutq/lutq/formats/weight"
	"github.com/lutq/lutq/formats/weight/lut"
	"github.com/lutq/lutq/gemm/cpu"
	"github.com/lutq/lutq/quantize"
)

// The bits of a result depend neither on the number of threads nor on what
// the scratch memory held before.
func TestSameBitsOnAnyNumberOfThreads(t *testing.T) {
	s := small()
	s.arch, s.headDim, s.dtype = "Qwen3ForCausalLM", 8, hf.BF16
	dir := s.build().folder(t)
	tokens := randomTokens(1, model.HostMLPRows+70, s.vocab)
	want := logits(t, open(t, dir, 1), tokens)
	for _, threads := range []int{2, 3, 7} {
		m := open(t, dir, threads)
		if got := logits(t, m, tokens); !slices.Equal(got, want) {
			t.Errorf("%d threads: logits differ from those of one", threads)
		}
		logits(t, m, randomTokens(2, 300, s.vocab))
		if got := logits(t, m, tokens); !slices.Equal(got, want) {
			t.Errorf("%d threads: logits of a second run differ", threads)
		}
	}
}

// Every instruction set gives the same bits.
func TestSameBitsOnAnyISA(t *testing.T) {
	s := small()
	s.hidden, s.inter = 40, 72
	dir := s.build().folder(t)
	tokens := randomTokens(1, 130, s.vocab)
	var want []float32
	for _, isa := range cpu.ISAs() {
		e, err := cpu.New(cpu.Options{Threads: 2, ISA: isa})
		if err != nil {
			t.Fatal(err)
		}
		m, err := model.Open(modeltest.Open(t, dir), modelcpu.New(e), model.OpenOptions{})
		if err != nil {
			t.Fatal(err)
		}
		got := logits(t, m, tokens)
		if want == nil {
			want = got
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s: logits differ from those of %s", isa, cpu.ISAs()[0])
		}
		e.Close()
	}
}

// Attention is causal: the states of a prefix do not depend on what follows.
func TestPrefix(t *testing.T) {
	s := small()
	m := open(t, s.build().folder(t), 2)
	tokens := randomTokens(1, 150, s.vocab)
	all := logits(t, m, tokens)
	for _, n := range []int{1, 2, queryRows, queryRows + 1, 149} {
		if got := logits(t, m, tokens[:n]); !slices.Equal(got, all[:len(got)]) {
			t.Errorf("logits of the first %d tokens differ when more follow", n)
		}
	}
}

func TestCancel(t *testing.T) {
	s := small()
	m := open(t, s.build().folder(t), 1)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := m.Hidden(ctx, []int{1, 2}); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want %v", err, context.Canceled)
	}
}

func TestBadInput(t *testing.T) {
	s := small()
	m := open(t, s.build().folder(t), 1)
	for _, tt := range []struct {
		tokens []int
		want   string
	}{
		{nil, "no tokens"},
		{[]int{1, s.vocab}, "token 50 at position 1 is outside the vocabulary of 50"},
		{[]int{-1}, "token -1 at position 0"},
	} {
		if _, err := m.Hidden(context.Background(), tt.tokens); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("tokens %v: got %v, want %q", tt.tokens, err, tt.want)
		}
	}
	h, err := m.Hidden(context.Background(), []int{1, 2})
	if err != nil {
		t.Fatal(err)
	}
	if err := m.Logits(m.Ops().Floats(2*s.vocab-1), h, 2); err == nil {
		t.Error("logits into too short a slice: got no error")
	}
}

func TestOpenErrors(t *testing.T) {
	const (
		q    = "model.layers.1.self_attn.q_proj"
		norm = "model.layers.0.input_layernorm.weight"
		head = "lm_head.weight"
	)
	tests := []struct {
		name   string
		shape  func(*shape)
		change func(*synthetic)
		want   string
	}{
		{"no projection", nil, func(m *synthetic) { m.drop(q + ".weight") }, "no tensor " + q + ".weight"},
		{"no norm", nil, func(m *synthetic) { m.drop("model.norm.weight") }, "no tensor model.norm.weight"},
		{"no embedding", nil, func(m *synthetic) { m.drop("model.embed_tokens.weight") }, "no tensor model.embed_tokens.weight"},
		{"no head", func(s *shape) { s.tied = false }, func(m *synthetic) { m.drop(head) }, "no tensor " + head},
		{"no bias", func(s *shape) { s.arch = "Qwen2ForCausalLM" }, func(m *synthetic) { m.drop(q + ".bias") }, "no tensor " + q + ".bias"},
		{"no q_norm", func(s *shape) { s.arch = "Qwen3ForCausalLM" }, func(m *synthetic) { m.drop("model.layers.1.self_attn.q_norm.weight") }, "q_norm.weight"},
		{"fewer layers than the config says", nil, func(m *synthetic) { m.config["num_hidden_layers"] = 3 }, "no tensor model.layers.2."},
		{"transposed", nil, func(m *synthetic) { m.entry(q + ".weight").Shape = []int{12, 48} }, q + ".weight in model.safetensors: shape [12 48]: want [24 24]"},
		{"long norm", nil, func(m *synthetic) {
			m.entry(norm).Shape = []int{25}
			m.data[norm] = make([]float32, 25)
		}, norm + " in model.safetensors: shape [25]: want [24]"},
		{"other vocabulary", nil, func(m *synthetic) { m.config["vocab_size"] = 51 }, "model.embed_tokens.weight in model.safetensors: shape [50 24]: want [51 24]"},
		{"integers", nil, func(m *synthetic) {
			m.entry(norm).DType = "I8"
		}, norm + " in model.safetensors: type I8: want F64, F32, F16 or BF16"},
		{"NaN", nil, func(m *synthetic) { m.data[q+".weight"][30] = float32(math.NaN()) }, q + ".weight in model.safetensors: element 30 is NaN or infinite"},
		{"infinity in a norm", nil, func(m *synthetic) { m.data[norm][23] = float32(math.Inf(-1)) }, norm + " in model.safetensors: element 23"},
		{"bias without the flag", nil, func(m *synthetic) {
			m.entries = append(m.entries, hf.Entry{Name: q + ".bias", DType: hf.F32, Shape: []int{24}})
			m.data[q+".bias"] = append(make([]float32, 23), 1)
		}, q + ".bias in model.safetensors has no place"},
		{"q_norm in a llama", nil, func(m *synthetic) {
			name := "model.layers.0.self_attn.q_norm.weight"
			m.entries = append(m.entries, hf.Entry{Name: name, DType: hf.F32, Shape: []int{6}})
			m.data[name] = make([]float32, 6)
		}, "q_norm.weight in model.safetensors has no place"},
		{"other architecture", nil, func(m *synthetic) { m.config["architectures"] = []string{"GPT2LMHeadModel"} }, "GPT2LMHeadModel"},
		{"other activation", nil, func(m *synthetic) { m.config["hidden_act"] = "tanhexp" }, `hidden_act: "tanhexp"`},
		{"other quantization", nil, func(m *synthetic) { m.config["quantization_config"] = map[string]any{"quant_method": "aqlm"} }, "already quantized by AQLM"},
		{"not really a container", nil, func(m *synthetic) { m.config["quantization_config"] = map[string]any{"quant_method": "lutq"} }, "version 0"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := small()
			if tt.shape != nil {
				tt.shape(&s)
			}
			m := s.build()
			tt.change(m)
			dir := m.folder(t)
			_, err := model.Open(modeltest.Open(t, dir), newOps(t, 1), model.OpenOptions{})
			if err == nil || !strings.Contains(err.Error(), tt.want) || !strings.Contains(err.Error(), dir) {
				t.Errorf("got %v, want the folder and %q", err, tt.want)
			}
			if err != nil && strings.Contains(err.Error(), "\n") {
				t.Errorf("error has several lines: %q", err)
			}
		})
	}
	t.Run("no folder", func(t *testing.T) {
		if _, err := source.Open(filepath.Join(t.TempDir(), "absent"), source.Options{}); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("got %v, want %v", err, os.ErrNotExist)
		}
	})
}

// Weights that are finite but drive the states out of range are reported with
// the layer, not passed on as NaN.
func TestOverflow(t *testing.T) {
	s := small()
	m := s.build()
	for _, name := range []string{"self_attn.o_proj", "mlp.down_proj"} {
		v := m.data["model.layers.1."+name+".weight"]
		for i := range v {
			v[i] *= 1e30
		}
	}
	_, err := open(t, m.folder(t), 2).Hidden(context.Background(), []int{1, 2, 3})
	if want := "the hidden state of token 0 is not finite after layer 1"; err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("got %v, want %q", err, want)
	}
}

// A container computes what its packed matrices say, and its folder opens like
// any other.
func TestContainer(t *testing.T) {
	dir := small().build().folder(t)
	src := openCheckpoint(t, dir)
	format := weight.Spec{Bits: 3, Group: 16, Codebook: "nf", Method: "rtn", Scale: weight.Absmax, ScaleType: weight.BF16}
	plan, err := quantize.NewPlan(modeltest.Open(t, dir), quantize.Recipe{Default: format})
	if err != nil {
		t.Fatal(err)
	}
	out := filepath.Join(t.TempDir(), "container")
	if _, err := plan.Run(context.Background(), out, quantize.RunOptions{}); err != nil {
		t.Fatal(err)
	}
	codebook, err := lut.NewCodebook("nf", 3, 16)
	if err != nil {
		t.Fatal(err)
	}
	packed := quantizeWith(t, src, isProjection, func(w []float32, n, k int) *lut.Matrix {
		return quantizeMatrix(t, w, n, k, lut.Format{Codebook: codebook, Group: 16, Scale: weight.Absmax, ScaleType: weight.BF16})
	})
	tokens := randomTokens(1, 70, small().vocab)
	want := flatten(quantizedReference(t, dir, packed).logits(tokens))
	if e := maxError(logits(t, open(t, out, 2), tokens), want); e > 5e-6 {
		t.Errorf("relative error %.2g, want at most 5e-6", e)
	}
}
