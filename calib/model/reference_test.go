package model_test

import (
	"fmt"
	"math"
	"testing"

	"github.com/lutq/lutq/formats/arch"
)

// reference is the decoder once more, in float64 and as plainly as it can be
// said: one number at a time, no packing, no blocks.
type reference struct {
	t   testing.TB
	c   referenceConfig
	get func(name string) ([]float64, bool) // a tensor's elements
}

// referenceConfig is what the reference knows of a model of Llama's kind.
type referenceConfig struct {
	HiddenSize, Layers, Heads, KVHeads, HeadDim, SlidingWindow int
	RMSNormEps                                                 float64
	TieEmbeddings, QKNorm                                      bool
	Rope                                                       *arch.Rope
}

func newReferenceConfig(t testing.TB, dir string) referenceConfig {
	d := openCheckpoint(t, dir).Decoder()
	a := d.Blocks[0].Attn()
	return referenceConfig{
		HiddenSize: d.Hidden, Layers: len(d.Blocks), Heads: a.Heads, KVHeads: a.KVHeads, HeadDim: a.Dim, SlidingWindow: a.Window,
		RMSNormEps: d.Norm.Eps, TieEmbeddings: d.Tied, QKNorm: a.QNorm != nil, Rope: a.Rope,
	}
}

// checkpointReference reads its weights from a folder.
func checkpointReference(t testing.TB, dir string) *reference {
	t.Helper()
	ckpt := openCheckpoint(t, dir).Files()
	cache := make(map[string][]float64)
	return &reference{t: t, c: newReferenceConfig(t, dir), get: func(name string) ([]float64, bool) {
		if v, ok := cache[name]; ok {
			return v, true
		}
		tensor, ok := ckpt.Tensor(name)
		if !ok {
			return nil, false
		}
		v := make([]float32, tensor.Elements())
		if err := tensor.ReadFloat32(v, 0); err != nil {
			t.Fatal(err)
		}
		cache[name] = widen(v)
		return cache[name], true
	}}
}

func widen(v []float32) []float64 {
	w := make([]float64, len(v))
	for i, x := range v {
		w[i] = float64(x)
	}
	return w
}

func (r *reference) must(name string) []float64 {
	v, ok := r.get(name)
	if !ok {
		r.t.Fatalf("reference: no tensor %s", name)
	}
	return v
}

func (r *reference) linear(x []float64, name string) []float64 {
	w := r.must(name + ".weight")
	y := make([]float64, len(w)/len(x))
	bias, biased := r.get(name + ".bias")
	for n := range y {
		for k := range x {
			y[n] += x[k] * w[n*len(x)+k]
		}
		if biased {
			y[n] += bias[n]
		}
	}
	return y
}

func (r *reference) rmsNorm(x, w []float64) []float64 {
	var sum float64
	for _, v := range x {
		sum += v * v
	}
	y := make([]float64, len(x))
	for i := range x {
		y[i] = x[i] / math.Sqrt(sum/float64(len(x))+r.c.RMSNormEps) * w[i]
	}
	return y
}

// rope rotates one head, written as transformers does: x·cos + rotate_half(x)·sin.
func (r *reference) rope(x []float64, pos int) []float64 {
	dim := len(x)
	y := make([]float64, dim)
	for i := range dim {
		f := r.frequency(i % (dim / 2))
		rotated := x[(i+dim/2)%dim]
		if i < dim/2 {
			rotated = -rotated
		}
		y[i] = x[i]*math.Cos(float64(pos)*f) + rotated*math.Sin(float64(pos)*f)
	}
	return y
}

func (r *reference) frequency(i int) float64 {
	f := 1 / math.Pow(r.c.Rope.Theta, 2*float64(i)/float64(r.c.HeadDim))
	s := r.c.Rope
	switch s.Type {
	case "default":
		return f
	case "linear":
		return f / s.Factor
	case "llama3":
		old := float64(s.Original)
		waves := old * f / (2 * math.Pi) // turns within the original context
		if waves < s.LowFreq {
			return f / s.Factor
		}
		if waves > s.HighFreq {
			return f
		}
		smooth := (waves - s.LowFreq) / (s.HighFreq - s.LowFreq)
		return (1-smooth)*f/s.Factor + smooth*f
	}
	r.t.Fatalf("reference: rope type %s", s.Type)
	return 0
}

func (r *reference) head(x []float64, i int) []float64 {
	return x[i*r.c.HeadDim : (i+1)*r.c.HeadDim]
}

// logits returns the logits of every token.
func (r *reference) logits(tokens []int) [][]float64 {
	c := r.c
	const in, out = "model.embed_tokens", "lm_head"
	embed, ok := r.get(in + ".weight")
	if !ok {
		embed = r.must(out + ".weight")
	}
	h := make([][]float64, len(tokens))
	for t, id := range tokens {
		h[t] = append([]float64(nil), embed[id*c.HiddenSize:(id+1)*c.HiddenSize]...)
	}
	for l := range c.Layers {
		p := fmt.Sprintf("model.layers.%d.", l)
		var keys, values [][]float64
		for t := range h {
			n := r.rmsNorm(h[t], r.must(p+"input_layernorm.weight"))
			q, k := r.linear(n, p+"self_attn.q_proj"), r.linear(n, p+"self_attn.k_proj")
			v := r.linear(n, p+"self_attn.v_proj")
			for i := range c.Heads {
				r.finish(r.head(q, i), p+"self_attn.q_norm.weight", t)
			}
			for i := range c.KVHeads {
				r.finish(r.head(k, i), p+"self_attn.k_norm.weight", t)
			}
			keys, values = append(keys, k), append(values, v)
			mixed := make([]float64, c.Heads*c.HeadDim)
			for i := range c.Heads {
				r.attend(r.head(mixed, i), r.head(q, i), keys, values, i*c.KVHeads/c.Heads)
			}
			for i, v := range r.linear(mixed, p+"self_attn.o_proj") {
				h[t][i] += v
			}
		}
		for t := range h {
			n := r.rmsNorm(h[t], r.must(p+"post_attention_layernorm.weight"))
			gate, up := r.linear(n, p+"mlp.gate_proj"), r.linear(n, p+"mlp.up_proj")
			for i, g := range gate {
				gate[i] = g / (1 + math.Exp(-g)) * up[i]
			}
			for i, v := range r.linear(gate, p+"mlp.down_proj") {
				h[t][i] += v
			}
		}
	}
	logits := make([][]float64, len(tokens))
	for t := range h {
		n := r.rmsNorm(h[t], r.must("model.norm.weight"))
		name := out
		if _, ok := r.get(out + ".weight"); !ok || c.TieEmbeddings {
			name = in
			if _, ok := r.get(in + ".weight"); !ok {
				name = out
			}
		}
		logits[t] = r.linear(n, name)
	}
	return logits
}

func (r *reference) finish(head []float64, norm string, pos int) {
	if r.c.QKNorm {
		copy(head, r.rmsNorm(head, r.must(norm)))
	}
	copy(head, r.rope(head, pos))
}

// attend attends from the last of the tokens.
func (r *reference) attend(dst, q []float64, keys, values [][]float64, kv int) {
	p := make([]float64, len(keys))
	var sum float64
	for j := range keys {
		if w := r.c.SlidingWindow; w > 0 && len(keys)-1-j >= w {
			continue
		}
		var s float64
		for i, k := range r.head(keys[j], kv) {
			s += q[i] * k
		}
		p[j] = math.Exp(s / math.Sqrt(float64(r.c.HeadDim)))
		sum += p[j]
	}
	for j := range values {
		for i, v := range r.head(values[j], kv) {
			dst[i] += p[j] / sum * v
		}
	}
}
