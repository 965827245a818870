package cuda

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/lutq/lutq/calib/decodebench"
	"github.com/lutq/lutq/calib/model"
	"github.com/lutq/lutq/calib/model/opstest"
	"github.com/lutq/lutq/formats/arch"
	"github.com/lutq/lutq/formats/hf"
	"github.com/lutq/lutq/formats/num"
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
			"num_local_experts": 8, "num_experts_per_tok": 4, "rope_parameters": {"rope_type": "default"}}`, 4, 32},
		{"nemotron_h", `{"model_type": "nemotron_h", "architectures": ["NemotronHForCausalLM"], ` + sizes + `, "hybrid_override_pattern": "*E-E*",
			"n_routed_experts": 9, "num_experts_per_tok": 3,
			"moe_intermediate_size": 96, "moe_shared_expert_intermediate_size": 160}`, 4, 32},
		{"dense", `{"model_type": "qwen3_moe", "architectures": ["Qwen3MoeForCausalLM"], ` + sizes + `,
			"num_experts": 12, "num_experts_per_tok": 3, "moe_intermediate_size": 80, "norm_topk_prob": false}`, 0, 64},
	}
}

// TestGPUMix compares mixtures of dense experts with float64.
func TestGPUMix(t *testing.T) { onGPU(t, testMix) }

func testMix(t *testing.T, o *Ops, i int) {
	for _, c := range []struct {
		rows, experts, top, hidden, inter int
		normalize, biased, shared         bool
		routing                           arch.Routing
		corrected, ungated, squares       bool
	}{
		{rows: 1, experts: 4, top: 2, hidden: 72, inter: 40, normalize: true},
		{rows: 21, experts: 5, top: 2, hidden: 64, inter: 24, biased: true}, // groups of more rows than one has
		{rows: 35, experts: 300, top: 7, hidden: 40, inter: 8, shared: true},
		{rows: 64, experts: 3, top: 3, hidden: 2200, inter: 16, normalize: true},
		{rows: 9, experts: 6, top: 2, hidden: 40, inter: 16, routing: arch.Routing{Scale: 2.5}, shared: true, ungated: true},
		{rows: 5, experts: 7, top: 3, hidden: 40, inter: 16, routing: arch.Routing{Sigmoid: true}},
		{rows: 33, experts: 40, top: 6, hidden: 64, inter: 16, normalize: true, routing: arch.Routing{Sigmoid: true, Scale: 1.5}, corrected: true, shared: true, ungated: true},
		{rows: 20, experts: 320, top: 8, hidden: 40, inter: 8, normalize: true, routing: arch.Routing{Sigmoid: true, Groups: 8, TopGroups: 3, Scale: 2.5}, corrected: true},
		{rows: 3, experts: 12, top: 5, hidden: 40, inter: 8, routing: arch.Routing{Sigmoid: true, Groups: 4, TopGroups: 1}, biased: true}, // of more than can be chosen from
		{rows: 19, experts: 7, top: 3, hidden: 40, inter: 16, routing: arch.Routing{Sigmoid: true}, squares: true, biased: true},
		{rows: 3, experts: 32, top: 4, hidden: 40, inter: 8, normalize: true, routing: arch.Routing{Sigmoid: true, Groups: 32, TopGroups: 9}},
	} {
		r := rand.New(rand.NewPCG(uint64(c.rows), 4))
		var weights []model.Weight
		var arrays []model.Array
		random := func(n int, sigma float64) []float32 {
			v := make([]float32, n)
			for j := range v {
				v[j] = num.F16ToF32(num.F32ToF16(float32(sigma * r.NormFloat64())))
				if types[i].acts == driver.BF16 {
					v[j] = num.BF16ToF32(num.F32ToBF16(v[j]))
				}
			}
			return v
		}
		dense := func(n, k int, v []float32) model.Weight {
			data := make([]byte, 4*len(v))
			num.EncodeF32(data, v)
			w, err := o.Dense(n, k, hf.F32, data)
			if err != nil {
				t.Fatal(err)
			}
			weights = append(weights, w)
			return w
		}
		array := func(alloc func(int) model.Array, v []float32) model.Array {
			a := alloc(len(v))
			o.Write(a, v)
			arrays = append(arrays, a)
			return a
		}
		router, x, h, norm := random(c.experts*c.hidden, 1), random(c.rows*c.hidden, 1), random(c.rows*c.hidden, 1), random(c.hidden, 1)
		copy(router[c.hidden:2*c.hidden], router) // of experts that are equal the first is chosen
		routerBias := make([]float32, c.experts)
		if c.biased {
			routerBias = random(c.experts, 3)
			routerBias[1] = routerBias[0]
		}
		w := model.MixtureWeights{Router: dense(c.experts, c.hidden, router), Act: arch.Gating{Act: arch.SiLU}, Top: c.top, Normalize: c.normalize, Routing: c.routing}
		correction := make([]float32, c.experts)
		if c.corrected {
			correction = random(c.experts, .3)
			correction[1] = correction[0]
			w.Correction = array(o.Floats, correction)
		}
		if c.squares {
			w.Act.Act = arch.ReLU
		}
		type layer struct{ w, b []float32 }
		var gates, ups, downs []layer
		sigma := 1 / math.Sqrt(float64(c.hidden))
		for range c.experts {
			for _, l := range []struct {
				n, k int
				to   *[]layer
				w    *[]model.Weight
				b    *[]model.Array
			}{{c.inter, c.hidden, &gates, &w.Gates, &w.GateBias}, {c.inter, c.hidden, &ups, &w.Ups, &w.UpBias}, {c.hidden, c.inter, &downs, &w.Downs, &w.DownBias}} {
				one := layer{random(l.n*l.k, sigma), make([]float32, l.n)}
				if c.biased {
					one.b = random(l.n, 1)
					*l.b = append(*l.b, array(o.Floats, one.b))
				}
				*l.to, *l.w = append(*l.to, one), append(*l.w, dense(l.n, l.k, one.w))
			}
		}
		step := model.MixStep{X: array(o.Acts, x), Y: array(o.Acts, make([]float32, len(x))), H: array(o.Floats, h), Rows: c.rows, Norm: array(o.Floats, norm), Eps: 1e-5}
		if c.biased {
			w.RouterBias = array(o.Floats, routerBias)
		}
		shared, sharedGate := make([]float32, len(x)), make([]float32, c.rows)
		if c.shared {
			shared, sharedGate = random(len(x), 1), random(c.rows, 2)
			step.Shared = array(o.Acts, shared)
			if !c.ungated {
				step.SharedGate = array(o.Floats, sharedGate)
			}
		}

		product := func(l layer, x []float64, k int) []float64 {
			y := make([]float64, len(l.b))
			for n := range y {
				y[n] = float64(l.b[n])
				for j := range k {
					y[n] += float64(l.w[n*k+j]) * x[j]
				}
			}
			return y
		}
		var want []float32
		for row := range c.rows {
			in, sum := make([]float64, c.hidden), make([]float64, c.hidden)
			for j := range in {
				in[j], sum[j] = float64(x[row*c.hidden+j]), float64(h[row*c.hidden+j])
			}
			logits, order, total := product(layer{router, routerBias}, in, c.hidden), make([]int, c.experts), 0.0
			probs, scores := make([]float64, c.experts), make([]float64, c.experts)
			for e, x := range logits {
				order[e], probs[e] = e, math.Exp(x-slices.Max(logits))
				if c.routing.Sigmoid {
					probs[e] = 1 / (1 + math.Exp(-x))
				}
				scores[e] = probs[e] + float64(correction[e])
			}
			if groups := c.routing.Groups; groups > 0 {
				size, regions := c.experts/groups, make([]int, groups)
				sums := make([]float64, groups)
				for g := range regions {
					best := slices.Sorted(slices.Values(scores[g*size : (g+1)*size]))
					for _, s := range best[max(0, size-2):] {
						sums[g] += s
					}
					regions[g] = g
				}
				slices.SortStableFunc(regions, func(a, b int) int { return cmp.Compare(sums[b], sums[a]) })
				for _, g := range regions[c.routing.TopGroups:] {
					for e := g * size; e < (g+1)*size; e++ {
						scores[e] = math.Inf(-1)
					}
				}
			}
			slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(scores[b], scores[a]) })
			for at, e := range order {
				if at < c.top || !c.normalize {
					total += probs[e]
				}
			}
			if c.routing.Sigmoid && !c.normalize {
				total = 1
			}
			for _, e := range order[:c.top] {
				g, u := product(gates[e], in, c.hidden), product(ups[e], in, c.hidden)
				for j := range g {
					if c.squares {
						g[j] = u[j] * max(u[j], 0)
					} else {
						g[j] *= u[j] / (1 + math.Exp(-g[j]))
					}
				}
				for j, y := range product(downs[e], g, c.inter) {
					sum[j] += c.routing.Factor() * probs[e] / total * y
				}
			}
			squares := 0.0
			for j := range sum {
				switch {
				case c.ungated:
					sum[j] += float64(shared[row*c.hidden+j])
				case c.shared:
					sum[j] += float64(shared[row*c.hidden+j]) / (1 + math.Exp(-float64(sharedGate[row])))
				}
				squares += sum[j] * sum[j] / float64(c.hidden)
			}
			for j := range sum {
				want = append(want, float32(sum[j]/math.Sqrt(squares+1e-5)*float64(norm[j])))
			}
		}

		if c.squares {
			w.Gates, w.GateBias = nil, nil
		}
		mix, err := o.Mixture(w)
		if err != nil || mix == nil {
			t.Fatalf("%+v: no mixture, %v", c, err)
		}
		o.Mix(mix, step)
		got := make([]float32, len(want))
		o.Read(got, step.Y)
		if d := distance(got, want); !(d <= types[i].tol) {
			t.Errorf("%+v: results differ by %.2g, want at most %.2g", c, d, types[i].tol)
		}
		mix.Close()
		o.Free(arrays...)
		for _, w := range weights {
			o.FreeWeight(w)
		}
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
	b := mixtureBoundsOf(types[i].acts)
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
			tokens = append(tokens, mixtureText(slot, length, d.Vocab))
			logits = append(logits, opstest.Logits(t, m, tokens[slot]))
		}
		_, routers := routedLogits(t, c, d, false, tokens...)
		for _, n := range texts {
			t.Run(fmt.Sprintf("%s, %d texts", c.name, n), func(t *testing.T) {
				got := mixtureSteps(t, m, tokens[:n])
				worst, divergence, settled := 0.0, 0.0, 0
				for slot := range n {
					worst = max(worst, distance(got[slot], logits[slot]))
					for at := range length {
						p, q := logits[slot][at*d.Vocab:][:d.Vocab], got[slot][at*d.Vocab:][:d.Vocab]
						divergence += klOf(p, q) / float64(n*length)
					}
					settled += b.check(t, got[slot], logits[slot], routers[slot].settled(length, b.tie))
				}
				t.Logf("logits differ by %.2g, divergence %.2g, experts of %d tokens of %d are settled", worst, divergence, settled, n*length)
				if !(worst <= b.far) || !(divergence <= b.divergence) || settled < n*length/5 {
					t.Errorf("logits differ by %.2g, divergence %.2g: want at most %.2g and %.2g, and more than %d tokens of settled experts", worst, divergence, b.far, b.divergence, settled)
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
