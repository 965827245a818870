package cuda

import (
	"context"
	"encoding/json"
	"errors"
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
	"github.com/lutq/lutq/calib/model/opstest"
	"github.com/lutq/lutq/formats/arch"
	"github.com/lutq/lutq/formats/arch/archtest"
	"github.com/lutq/lutq/formats/hf"
	"github.com/lutq/lutq/formats/num"
	"github.com/lutq/lutq/formats/source/modeltest"
	"github.com/lutq/lutq/formats/weight"
	"github.com/lutq/lutq/formats/weight/lut"
	gemmcuda "github.com/lutq/lutq/gemm/cuda"
	"github.com/lutq/lutq/gemm/cuda/driver"
)

func randoms(seed uint64, n int, sigma float64) []float32 {
	r := rand.New(rand.NewPCG(seed, uint64(n)))
	v := make([]float32, n)
	for i := range v {
		v[i] = float32(r.NormFloat64() * sigma)
	}
	return v
}

// TestGPUAttentionBackBlocks takes several blocks of queries, blocks of one or two of
// the heads, and rows that registers hold and do not hold.
func TestGPUAttentionBackBlocks(t *testing.T) {
	onGPU(t, func(t *testing.T, o *Ops, i int) {
		shapes := []model.AttentionShape{
			{T: 300, Heads: 6, KVHeads: 3, Dim: 16},
			{T: 261, Heads: 2, KVHeads: 2, Dim: 20, Window: 150},
			{T: 290, Heads: 6, KVHeads: 2, Dim: 12, Window: 33},
		}
		if i == 0 {
			for _, t := range []int{2300, 4500, 8500} {
				shapes = append(shapes, model.AttentionShape{T: t, Heads: 1, KVHeads: 1, Dim: 3})
			}
		}
		for _, s := range shapes {
			budgets := []int{attentionBackBytes, 2 << 20, 50_000, 50_000}
			if s.T > 1000 {
				budgets = budgets[:1]
			}
			s.Scale = float32(1 / math.Sqrt(float64(s.Dim)))
			wide, narrow := s.T*s.Heads*s.Dim, s.T*s.KVHeads*s.Dim
			run := func(ops opstest.Ops, back func(dq, dk, dv, do, out, lse, q, k, v model.Array)) [3][]float32 {
				array := func(seed uint64, n int) model.Array {
					a, v := ops.Acts(n), randoms(seed, n, 1)
					b := o.Acts(n) // as the GPU rounds them
					o.Write(b, v)
					o.Read(v, b)
					ops.Write(a, v)
					o.Free(b)
					return a
				}
				q, k, v, do := array(1, wide), array(2, narrow), array(3, narrow), array(4, wide)
				out, lse := ops.Acts(wide), ops.Floats(s.Heads*s.T)
				ops.Attention(out, lse, q, k, v, s)
				dq, dk, dv := ops.Acts(wide), ops.Acts(narrow), ops.Acts(narrow)
				back(dq, dk, dv, do, out, lse, q, k, v)
				var got [3][]float32
				for i, a := range []model.Array{dq, dk, dv} {
					got[i] = make([]float32, a.Len())
					ops.Read(got[i], a)
				}
				ops.Free(q, k, v, do, out, lse, dq, dk, dv)
				return got
			}
			ref := opstest.Reference{}
			want := run(ref, func(dq, dk, dv, do, out, lse, q, k, v model.Array) {
				ref.AttentionBack(dq, dk, dv, do, out, lse, q, k, v, s)
			})
			var first [3][]float32
			for _, bytes := range budgets {
				got := run(o, func(dq, dk, dv, do, out, lse, q, k, v model.Array) {
					b := newAttentionBack(s, o.acts, attentionBackRows, bytes)
					o.do(func() { o.attentionBack(&b, dq, dk, dv, do, lse, q, k, v) })
				})
				for j, name := range []string{"dq", "dk", "dv"} {
					if e := distance(got[j], want[j]); !(e <= types[i].tol) {
						t.Errorf("%+v in %d bytes: %s differs by %.2g", s, bytes, name, e)
					}
				}
				if bytes == 50_000 {
					if first[0] != nil && !slices.EqualFunc(first[:], got[:], slices.Equal) {
						t.Errorf("%+v: other bits the second time", s)
					}
					first = got
				}
			}
		}
	})
}

// TestAttentionBackSizes holds blocks to their bytes.
func TestAttentionBackSizes(t *testing.T) {
	for _, s := range []model.AttentionShape{
		{T: 2048, Heads: 32, KVHeads: 8, Dim: 128},
		{T: 1, Heads: 1, KVHeads: 1, Dim: 1},
		{T: 131072, Heads: 64, KVHeads: 8, Dim: 128},
		{T: 131072, Heads: 64, KVHeads: 8, Dim: 128, Window: 4096},
	} {
		b := newAttentionBack(s, driver.BF16, attentionBackRows, attentionBackBytes)
		queries, heads, scores := b.queries, b.heads, b.scores
		if queries < 1 || heads < 1 || heads > s.KVHeads || queries > s.T {
			t.Errorf("%+v: blocks of %d queries and %d heads", s, queries, heads)
		}
		if bytes := scores * 12; bytes > attentionBackBytes {
			t.Errorf("%+v: blocks take %d bytes, want at most %d", s, bytes, attentionBackBytes)
		}
		if span := min(s.T, b.window+queries-1); scores < heads*queries*b.group*span {
			t.Errorf("%+v: room for %d scores of %d queries, %d heads and %d keys", s, scores, queries, heads, span)
		}
	}
}

// TestSoftmaxBack finds a kernel with threads enough for every pitch that registers
// can hold.
func TestSoftmaxBack(t *testing.T) {
	for pitch := 8; pitch <= 20_000; pitch += 8 {
		kernel, threads := softmaxBack(pitch, false)
		var held int
		if _, err := fmt.Sscanf(kernel, "softmax_back_plain_%d", &held); err != nil {
			t.Fatal(err)
		}
		if threads%32 != 0 || threads < 32 || threads > gradThreads || pitch <= 8192 && held*threads*8 < pitch {
			t.Fatalf("pitch %d: %s with %d threads", pitch, kernel, threads)
		}
	}
}

// learning is a model with trainable layers.
type learning struct {
	base, m *model.Model
	grads   map[string]model.Grad
	weights map[string]model.Weight
}

// learn makes the layers of the tiny model trainable at 4 bits, or of a family's the weights themselves by a scale of each row.
func learn(t testing.TB, ops opstest.Ops, family string, lsq bool) *learning {
	t.Helper()
	if family != "" {
		return learnRows(t, ops, family)
	}
	dense, packed := source(t, 0, 0, false), source(t, 4, 64, false).(*quantized)
	base, err := model.New(dense, ops)
	if err != nil {
		t.Fatal(err)
	}
	l := &learning{base: base, grads: map[string]model.Grad{}, weights: map[string]model.Weight{}}
	for _, path := range base.Linears() {
		m := packed.layers[path]
		if m == nil {
			continue
		}
		w := model.Trainable{
			N: m.N, K: m.K, Group: m.Group, Codes: make([]uint8, m.N*m.K), Table: m.Codebook,
			Scales: make([]float32, m.N*m.Groups()), ScaleType: weight.F32, Original: base.Weight(path),
		}
		for n := range m.N {
			m.RowCodes(w.Codes[n*m.K:], n)
			m.RowScales(w.Scales[n*m.Groups():], n)
		}
		if l.weights[path], err = ops.Trainable(w); err != nil {
			t.Fatal(err)
		}
		l.grads[path] = model.Grad{Scales: ops.Floats(len(w.Scales)), Table: ops.Floats(len(w.Table)), LSQ: lsq}
	}
	if l.m, err = base.With(l.weights); err != nil {
		t.Fatal(err)
	}
	return l
}

// golden returns a family's tiny model.
func golden(t testing.TB, family string) *archtest.Golden {
	t.Helper()
	all := archtest.Goldens(t)
	return &all[slices.IndexFunc(all, func(g archtest.Golden) bool { return g.Name == family })]
}

func learnRows(t testing.TB, ops opstest.Ops, family string) *learning {
	t.Helper()
	dir := t.TempDir()
	golden(t, family).Write(t, dir)
	base, err := model.Open(modeltest.Open(t, dir), ops, model.OpenOptions{})
	if err != nil {
		t.Fatal(err)
	}
	l := &learning{base: base, grads: map[string]model.Grad{}, weights: map[string]model.Weight{}}
	for _, path := range base.Linears() {
		n, k := base.Weight(path).Shape()
		w := model.Trainable{N: n, K: k, Group: k, Scales: slices.Repeat([]float32{1}, n), ScaleType: weight.F32, Original: base.Weight(path)}
		if l.weights[path], err = ops.Trainable(w); err != nil {
			t.Fatal(err)
		}
		l.grads[path] = model.Grad{Scales: ops.Floats(n)}
	}
	if l.m, err = base.With(l.weights); err != nil {
		t.Fatal(err)
	}
	return l
}

func (l *learning) close(ops model.Ops) {
	l.m.Close()
	l.base.Close()
	for path, w := range l.weights {
		ops.FreeWeight(w)
		ops.Free(l.grads[path].Scales, l.grads[path].Table)
	}
}

// gradient is the gradient of a window's loss by the scales and tables of all layers, as
// read reads it.
func gradient(t testing.TB, ops opstest.Ops, family string, tokens []int, teacher, lsq bool, read ...func(dst []float32, src model.Array)) (loss float64, all []map[string][]float32) {
	t.Helper()
	l := learn(t, ops, family, lsq)
	defer l.close(ops)
	var other *model.Model
	if teacher {
		other = l.base
	}
	loss, err := l.m.Gradient(context.Background(), tokens, other, l.grads)
	if err != nil {
		t.Fatal(err)
	}
	for _, read := range read {
		m := map[string][]float32{}
		for path, g := range l.grads {
			m[path] = make([]float32, g.Scales.Len())
			read(m[path], g.Scales)
			if g.Table != nil {
				m[path+" table"] = make([]float32, g.Table.Len())
				read(m[path+" table"], g.Table)
			}
		}
		all = append(all, m)
	}
	return loss, all
}

// TestGPUGradient compares the gradient of a model's scales with float64: first of the same
// forward pass, which shows how well the GPU differentiates, then with one of its own forward
// pass, which shows what the type of activations costs. Most of that comes from rounding
// the factors of that pass's products, weights among them, so that two GPUs which
// add up in another order are nearly as far from each other. The gradient of the divergence from a
// teacher starts at a difference of distributions, in which it weighs more.
func TestGPUGradient(t *testing.T) {
	onGPU(t, func(t *testing.T, o *Ops, i int) {
		for _, test := range []struct {
			family       string
			teacher, lsq bool
			same, own    [3]float64 // tolerances in float32, float16 and bfloat16
		}{
			{"", false, false, [...]float64{1e-5, 6e-3, 2e-2}, [...]float64{1e-5, 8e-3, 4e-2}},
			{"", true, true, [...]float64{1e-5, 6e-3, 2e-2}, [...]float64{2e-5, 2e-2, 0.1}},
			{"deepseek-v3", false, false, [...]float64{1e-5, 6e-3, 2e-2}, [...]float64{1e-4, 0.15, 0.4}}, // of experts with few tokens
		} {
			t.Run(strings.TrimSpace(fmt.Sprintf("%s teacher %v, lsq %v", test.family, test.teacher, test.lsq)), func(t *testing.T) {
				tokens := window(t, 48)
				if test.family != "" {
					tokens = golden(t, test.family).Tokens
				}
				loss, got := gradient(t, o, test.family, tokens, test.teacher, test.lsq, o.Read)
				both := twin{Ops: o}
				sameLoss, same := gradient(t, both, test.family, tokens, test.teacher, test.lsq, both.Read, both.readExact)
				if loss != sameLoss || !maps.EqualFunc(same[0], got[0], slices.Equal) {
					t.Error("other bits the second time")
				}
				ref := opstest.Reference{}
				ownLoss, own := gradient(t, ref, test.family, tokens, test.teacher, test.lsq, ref.Read)
				t.Logf("loss %.6f differs by %.2g", ownLoss, loss-ownLoss)
				if !(math.Abs(loss-ownLoss) <= test.own[i]*ownLoss) {
					t.Errorf("loss %.6f: want %.6f within %.2g of it", loss, ownLoss, test.own[i])
				}
				for _, want := range []struct {
					name  string
					grads map[string][]float32
					tol   float64
				}{
					{"of the same forward pass", same[1], test.same[i]},
					{"all in float64", own[0], test.own[i]},
				} {
					worst, where := 0.0, ""
					for path, w := range want.grads {
						if slices.Equal(got[0][path], w) { // as where an expert has no token
							continue
						}
						if e := distance(got[0][path], w); !(e <= worst) {
							worst, where = e, path
						}
					}
					t.Logf("gradients %s differ by %.2g at most (%s)", want.name, worst, where)
					if !(worst <= want.tol) {
						t.Errorf("the gradient of %s %s differs by %.2g: want at most %.2g", where, want.name, worst, want.tol)
					}
				}
			})
		}
	})
}

// TestTrainableErrors refuses weights that other devices may learn, each with an error.
func TestTrainableErrors(t *testing.T) {
	good := func() model.Trainable {
		return model.Trainable{
			N: 2, K: 6, Group: 4, Codes: make([]uint8, 12), Table: []float32{-1, 0, 0.5, 1},
			Scales: make([]float32, 4), ScaleType: weight.F16,
		}
	}
	if err := checkTrainable(good()); err != nil {
		t.Fatal(err)
	}
	for name, spoil := range map[string]func(w *model.Trainable){
		"no sense":          func(w *model.Trainable) { w.N = 0 },
		"a packed original": func(w *model.Trainable) { w.Original = &trainable{n: 2, k: 6} },
		"too many elements": func(w *model.Trainable) {
			*w = model.Trainable{N: 1 << 16, K: 1 << 15, Group: 1 << 15, Scales: make([]float32, 1<<16), ScaleType: weight.F16}
			w.Original = &matrix{n: w.N, k: w.K, dense: 512}
		},
	} {
		w := good()
		spoil(&w)
		if err := checkTrainable(w); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

// block8B writes a checkpoint with layers of Llama 3's 8 billion parameters, and a
// small vocabulary.
func block8B(b *testing.B, layers int) model.Source {
	const hidden, inter, heads, kvHeads, vocab = 4096, 14336, 32, 8, 2048
	dir := b.TempDir()
	config, err := json.Marshal(map[string]any{
		"architectures": []string{"LlamaForCausalLM"}, "hidden_size": hidden, "intermediate_size": inter,
		"num_hidden_layers": layers, "num_attention_heads": heads, "num_key_value_heads": kvHeads,
		"vocab_size": vocab, "rms_norm_eps": 1e-5, "rope_theta": 5e5, "tie_word_embeddings": true, "hidden_act": "silu",
	})
	if err != nil {
		b.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "config.json"), config, 0o644); err != nil {
		b.Fatal(err)
	}
	var entries []hf.Entry
	add := func(name string, shape ...int) {
		entries = append(entries, hf.Entry{Name: name + ".weight", DType: hf.BF16, Shape: shape})
	}
	add("model.embed_tokens", vocab, hidden)
	add("model.norm", hidden)
	for i := range layers {
		p := fmt.Sprintf("model.layers.%d.", i)
		add(p+"input_layernorm", hidden)
		add(p+"post_attention_layernorm", hidden)
		add(p+"self_attn.q_proj", hidden, hidden)
		add(p+"self_attn.k_proj", hidden/heads*kvHeads, hidden)
		add(p+"self_attn.v_proj", hidden/heads*kvHeads, hidden)
		add(p+"self_attn.o_proj", hidden, hidden)
		add(p+"mlp.gate_proj", inter, hidden)
		add(p+"mlp.up_proj", inter, hidden)
		add(p+"mlp.down_proj", hidden, inter)
	}
	w, err := hf.NewWriter(dir, entries, hf.WriterOptions{})
	if err != nil {
		b.Fatal(err)
	}
	random := make([]byte, 2*(1<<20+999)) // again and again
	weight.BF16.Encode(random, randoms(1, len(random)/2, 0.02))
	for _, e := range entries {
		n := 2
		for _, d := range e.Shape {
			n *= d
		}
		for at := 0; at < n; at += len(random) {
			if err := w.WriteAt(e.Name, random[:min(len(random), n-at)], int64(at)); err != nil {
				b.Fatal(err)
			}
		}
	}
	if err := w.Commit(); err != nil {
		b.Fatal(err)
	}
	src, err := model.NewCheckpoint(modeltest.Open(b, dir))
	if err != nil {
		b.Fatal(err)
	}
	return src
}

// benchmarkGPU runs a benchmark with bfloat16 activations.
func benchmarkGPU(b *testing.B, run func(o *Ops)) {
	b.Helper()
	c, err := driver.Open(driver.Options{CacheDir: cacheDir})
	if err != nil {
		b.Skip(err)
	}
	if n, err := c.DeviceCount(); n == 0 {
		b.Skipf("no GPU (%v)", err)
	}
	d, err := c.OpenDevice(0)
	if err != nil {
		b.Fatal(err)
	}
	var e *gemmcuda.Engine
	if err := d.Do(func() (err error) { e, err = gemmcuda.New(d, c.Cache()); return err }); err != nil {
		b.Skip(err)
	}
	o, err := New(d, e, Options{Type: driver.BF16})
	if err != nil {
		b.Fatal(err)
	}
	run(o)
	if err := errors.Join(o.Err(), o.Close(), d.Do(e.Close), d.Close()); err != nil {
		b.Error(err)
	}
}

// trainable8B is a trainable weight with random codes in groups of 64.
func trainable8B(b *testing.B, o *Ops, original model.Weight) (model.Weight, model.Array) {
	b.Helper()
	n, k := original.Shape()
	t := model.Trainable{
		N: n, K: k, Group: 64, Codes: make([]uint8, n*k), Scales: randoms(2, n*k/64, 0.05), ScaleType: weight.F16, Original: original,
	}
	r := rand.New(rand.NewPCG(1, 1))
	for i := range t.Codes {
		t.Codes[i] = uint8(r.Uint32() >> 28)
	}
	book, err := lut.NewCodebook("nf", 4, 64)
	if err != nil {
		b.Fatal(err)
	}
	t.Table = book.Values
	w, err := o.Trainable(t)
	if err != nil {
		b.Fatal(err)
	}
	return w, o.Floats(len(t.Scales))
}

// BenchmarkGPUGradient takes the gradient of the scales of two layers of 8B's shape
// for a window of 2048 tokens. Per weight and token it does 8 operations: 2 forward, 2
// again, 2 for the gradient of the input and 2 for the weight's.
func BenchmarkGPUGradient(b *testing.B) {
	const layers, t = 2, 2048
	benchmarkGPU(b, func(o *Ops) {
		base, err := model.New(block8B(b, layers), o)
		if err != nil {
			b.Fatal(err)
		}
		defer base.Close()
		weights, grads, params := map[string]model.Weight{}, map[string]model.Grad{}, 0
		for _, path := range base.Linears() {
			w, g := trainable8B(b, o, base.Weight(path))
			weights[path], grads[path] = w, model.Grad{Scales: g}
			n, k := w.Shape()
			params += n * k
		}
		m, err := base.With(weights)
		if err != nil {
			b.Fatal(err)
		}
		defer m.Close()
		tokens := make([]int, t)
		for i := range tokens {
			tokens[i] = i * 7 % m.Vocab()
		}
		step := func() {
			if _, err := m.Gradient(context.Background(), tokens, nil, grads); err != nil {
				b.Fatal(err)
			}
		}
		step()
		for b.Loop() {
			step()
		}
		seconds := b.Elapsed().Seconds() / float64(b.N)
		b.ReportMetric(8*float64(params)*t/seconds/1e12, "TFLOP/s")
		b.ReportMetric(1e6*seconds/layers, "µs/layer")
	})
}

// BenchmarkGPUTrain times single operations at the shapes of 8B.
func BenchmarkGPUTrain(b *testing.B) {
	const t, hidden, inter = 2048, 4096, 14336
	benchmarkGPU(b, func(o *Ops) {
		acts := func(n int) model.Array {
			a := o.Acts(n)
			o.Write(a, randoms(3, n, 1))
			return a
		}
		time := func(name string, flops, bytes float64, f func()) {
			b.Run(name, func(b *testing.B) {
				f()
				if err := o.Err(); err != nil {
					b.Fatal(err)
				}
				n := 0
				for b.Loop() {
					for range 10 { // the host's waiting counts little
						f()
					}
					n += 10
					if err := o.Err(); err != nil {
						b.Fatal(err)
					}
				}
				seconds := b.Elapsed().Seconds() / float64(n)
				b.ReportMetric(0, "ns/op") // microseconds of one call stand for it
				b.ReportMetric(1e6*seconds, "µs")
				if flops > 0 {
					b.ReportMetric(flops/seconds/1e12, "TFLOP/s")
				}
				if bytes > 0 {
					b.ReportMetric(bytes/seconds/1e9, "GB/s")
				}
			})
		}
		x, h, dh := acts(t*hidden), o.Floats(t*hidden), o.Floats(t*hidden)
		o.Copy(h, x)
		wide, wide2, wide3 := acts(t*inter), acts(t*inter), acts(t*inter)
		norm := o.Floats(hidden)
		for _, shape := range [][2]int{{inter, hidden}, {hidden, inter}, {hidden, hidden}, {1024, hidden}} {
			n, k := shape[0], shape[1]
			data := make([]byte, 2*n*k)
			weight.BF16.Encode(data, randoms(4, n*k, 0.02))
			original, err := o.Dense(n, k, hf.BF16, data)
			if err != nil {
				b.Fatal(err)
			}
			w, ds := trainable8B(b, o, original)
			in, out := wide.Slice(0, t*k), wide2.Slice(0, t*n)
			flops, size := 2*float64(n*k)*t, float64(n*k)
			name := fmt.Sprintf("%dx%d", n, k)
			time("LinearDense/"+name, flops, 0, func() { o.Linear(in, t, model.Product{Y: out, W: original}) })
			time("Linear/"+name, flops, 0, func() { o.Linear(in, t, model.Product{Y: out, W: w}) })
			time("Dequantize/"+name, 0, 3*size, func() { o.do(func() { w.(*trainable).base() }) })
			time("LinearBackDense/"+name, flops, 0, func() { o.LinearBack(in, out, t, original, false) })
			time("LinearBack/"+name, flops, 0, func() { o.LinearBack(in, out, t, w, false) })
			o.Copy(in, wide3.Slice(0, t*k))
			time("ScaleGrad/"+name, flops, 0, func() { o.ScaleGrad(ds, nil, out, in, t, w, false) })
			time("ScaleGradLSQ/"+name, flops, 0, func() { o.ScaleGrad(ds, nil, out, in, t, w, true) })
			time("Recode/"+name, 0, 3*size, func() { o.Recode(w, true) })
			o.FreeWeight(w)
			o.FreeWeight(original)
			o.Free(ds)
		}
		time("RMSNormBack", 0, t*hidden*16, func() { o.RMSNormBack(dh, h, h, norm, t, 1e-5, true) })
		time("RMSNorm", 0, t*hidden*6, func() { o.RMSNorm(x, h, norm, t, 1e-5) })
		time("GLUBack", 0, t*inter*10, func() { o.GLUBack(wide, wide2, wide3, wide, wide2, arch.Gating{Act: arch.SiLU}) })
		time("GLU", 0, t*inter*6, func() { o.GLU(wide, wide3, wide2, arch.Gating{Act: arch.SiLU}) })
		s := model.AttentionShape{T: t, Heads: 32, KVHeads: 8, Dim: 128, Scale: 0.088}
		q, k, v, do := acts(t*hidden), acts(t*1024), acts(t*1024), acts(t*hidden)
		out, lse := o.Acts(t*hidden), o.Floats(s.Heads*t)
		dk, dv := o.Acts(t*1024), o.Acts(t*1024)
		time("Attention", 2*t*t*hidden, 0, func() { o.Attention(out, lse, q, k, v, s) })
		time("AttentionBack", 5*t*t*hidden, 0, func() { o.AttentionBack(x, dk, dv, do, out, lse, q, k, v, s) })
		n := 1 << 26
		p := model.Adam{P: o.Floats(n), M: o.Floats(n), V: o.Floats(n), G: o.Floats(n), LR: 1e-4, B1: 0.9, B2: 0.999, Eps: 1e-8, Step: 1}
		time("Adam", 0, 28*float64(n), func() { o.Adam(p) })
		time("SumSquares", 0, 4*float64(n), func() { o.SumSquares(p.G) })
	})
}

// adamBF16 is a step of PyTorch's optimizer on bfloat16 tensors, an operation after
// the other (torch/optim/adam.py, _multi_tensor_adam): each is computed in float32 and stored.
func adamBF16(a model.Adam, p, m, v, g float32) (float32, float32, float32) {
	r := func(x float32) float32 { return num.BF16ToF32(num.F32ToBF16(x)) }
	g = r(g)
	m = r(m + float32(float32(1-a.B1)*(g-m)))
	v = r(float32(a.B2) * v)
	v = r(v + float32(float32(1-a.B2)*float32(g*g)))
	d := r(float32(math.Sqrt(float64(v))))
	d = r(d / float32(math.Sqrt(1-math.Pow(a.B2, float64(a.Step)))))
	d = r(d + float32(a.Eps))
	p = r(p - float32(float32(a.LR/(1-math.Pow(a.B1, float64(a.Step))))*float32(m/d)))
	return p, m, v
}

// TestGPUAdamBF16 takes steps beside PyTorch's order of rounding. Where a float32
// result lies on the edge of two bfloat16 numbers, a fused multiplication may fall to the
// other side, which is rare.
func TestGPUAdamBF16(t *testing.T) {
	onGPU(t, func(t *testing.T, o *Ops, i int) {
		const n = 40_001
		p, m, v := randoms(1, n, 0.05), make([]float32, n), make([]float32, n)
		weight.BF16.Decode(p, encode(weight.BF16, p))
		a := model.Adam{P: o.Floats(n), M: o.Floats(n), V: o.Floats(n), G: o.Floats(n), LR: 1e-3, B1: 0.9, B2: 0.999, Eps: 1e-8, BF16: true}
		o.Write(a.P, p)
		for a.Step = 1; a.Step <= 5; a.Step++ {
			g := randoms(uint64(a.Step), n, 0.1)
			o.Write(a.G, g)
			o.Adam(a)
			for i := range p {
				p[i], m[i], v[i] = adamBF16(a, p[i], m[i], v[i], g[i])
			}
			for j, want := range [][]float32{p, m, v} {
				got, differ := make([]float32, n), 0
				o.Read(got, []model.Array{a.P, a.M, a.V}[j])
				for i, w := range want {
					if got[i] != w {
						differ++
					}
				}
				if differ > n/200 {
					t.Errorf("step %d: %d of %d elements of %q are not PyTorch's", a.Step, differ, n, "pmv"[j:j+1])
				}
				copy(want, got) // so that differences do not grow
			}
		}
		o.Free(a.P, a.M, a.V, a.G)
	})
}

func encode(s weight.ScaleType, v []float32) []byte {
	b := make([]byte, len(v)*s.Size())
	s.Encode(b, v)
	return b
}
