package decodebench_test

import (
	"context"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/lutq/lutq/calib/decode"
	"github.com/lutq/lutq/calib/decodebench"
	"github.com/lutq/lutq/calib/model"
	modelcpu "github.com/lutq/lutq/calib/model/cpu"
	"github.com/lutq/lutq/formats/arch"
	"github.com/lutq/lutq/formats/arch/archtest"
	"github.com/lutq/lutq/formats/hf"
	"github.com/lutq/lutq/formats/racetest"
	"github.com/lutq/lutq/formats/source/modeltest"
	"github.com/lutq/lutq/formats/weight"
	"github.com/lutq/lutq/gemm/cpu"
)

const tiny = "../testdata/lutq-tiny"

func TestParseTest(t *testing.T) {
	for _, tc := range []struct {
		text    string
		want    decodebench.Test
		context int
	}{
		{"pp512", decodebench.Test{Prompt: 512}, 512},
		{"tg128", decodebench.Test{Tokens: 128}, 129},
		{"tg128@d4096", decodebench.Test{Tokens: 128, Depth: 4096}, 4224},
		{"pp1@d3", decodebench.Test{Prompt: 1, Depth: 3}, 4},
		{"eval2048", decodebench.Test{Window: 2048}, 2048},
	} {
		got, err := decodebench.ParseTest(tc.text)
		if got != tc.want || err != nil || got.String() != tc.text || got.Context() != tc.context {
			t.Errorf("%s: got %+v, %v, with a context of %d", tc.text, got, err, got.Context())
		}
	}
	for _, text := range []string{"", "pp", "tg0", "tg-1", "512", "tg128@d", "tg128@d0", "tg128@4096", "pp99999999", "ppx", "tg1e3", "pp1@d99999999999999999999", "eval1", "eval", "eval9@d3"} {
		if got, err := decodebench.ParseTest(text); err == nil || !strings.Contains(err.Error(), "want ppN, tgN or evalN") {
			t.Errorf("%q: got %+v, %v", text, got, err)
		}
	}
}

func newOps(t testing.TB) *modelcpu.Ops {
	t.Helper()
	e, err := cpu.New(cpu.Options{Threads: 2})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(e.Close)
	return modelcpu.New(e)
}

func describe(t testing.TB, config []byte) *arch.Decoder {
	t.Helper()
	d, err := arch.Describe(config, nil)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func random(t testing.TB, d *arch.Decoder, o decodebench.RandomOptions) *decodebench.Random {
	t.Helper()
	if o.DType == "" {
		o.DType = hf.BF16
	}
	r, err := decodebench.NewRandom("config.json", d, o)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func build(t testing.TB, r *decodebench.Random) *model.Model {
	t.Helper()
	m, err := model.New(r, newOps(t))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(m.Close)
	return m
}

// wide is a config whose layers need no padding as tiles, with an own head.
const wide = `{
  "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 256, "intermediate_size": 512,
  "num_attention_heads": 8, "num_key_value_heads": 2, "num_hidden_layers": 2, "vocab_size": 320, "max_position_embeddings": 64,
  "rms_norm_eps": 1e-5, "tie_word_embeddings": false
}`

func TestRun(t *testing.T) {
	d := describe(t, []byte(wide))
	for _, ro := range []decodebench.RandomOptions{{Bits: 4, Group: 64}, {DType: hf.F16}} {
		r := random(t, d, ro)
		m := build(t, r)
		var seen, skipped []string
		o := decodebench.Options{
			Tests: []decodebench.Test{{Prompt: 9}, {Tokens: 3}, {Tokens: 2, Depth: 5}, {Tokens: 64}, {Prompt: 65}, {Window: 12}}, Batch: []int{1, decode.Bucket + 1},
			Sizes: r.Sizes(), ActBytes: 4,
			Done: func(r decodebench.Result) { seen = append(seen, r.String()) },
			Skip: func(test decodebench.Test, _ int, reason error) {
				if !strings.Contains(reason.Error(), "longer than the 64 that the model was made for") {
					t.Errorf("%v: %v", test, reason)
				}
				skipped = append(skipped, test.String())
			},
		}
		results, err := decodebench.Run(context.Background(), m, o)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff([]string{"pp9", "tg3", "tg3", "tg2@d5", "tg2@d5", "eval12"}, seen); diff != "" {
			t.Errorf("results (-want +got):\n%s", diff)
		}
		if diff := cmp.Diff([]string{"tg64", "tg64", "pp65"}, skipped); diff != "" {
			t.Errorf("left out (-want +got):\n%s", diff)
		}
		if n := o.Count(); n != len(seen)+len(skipped) {
			t.Errorf("got %d and %d of %d", len(seen), len(skipped), n)
		}
		for _, r := range results {
			if !(r.TokensPerSecond() > 0) || math.IsInf(r.TokensPerSecond(), 0) || !(r.BytesPerToken > 0) || !(r.Spread() >= 0) ||
				len(r.Seconds) != 3 || !slices.IsSorted(r.Seconds) {
				t.Errorf("got %+v", r)
			}
		}
	}
}

func TestRunEnds(t *testing.T) {
	r := random(t, describe(t, []byte(wide)), decodebench.RandomOptions{Bits: 3, Group: weight.RowGroup})
	m := build(t, r)
	o := decodebench.Options{Tests: []decodebench.Test{{Tokens: 3}}, Batch: []int{1}, Sizes: r.Sizes(), ActBytes: 4}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := decodebench.Run(ctx, m, o); err == nil || !strings.Contains(err.Error(), "tg3, 1 side by side: context canceled") {
		t.Errorf("interrupted: %v", err)
	}
	var reason error
	o.Free = func() int64 { return 1000 }
	o.Skip = func(_ decodebench.Test, _ int, err error) { reason = err }
	if results, err := decodebench.Run(context.Background(), m, o); err != nil || len(results) != 0 || reason == nil || !strings.Contains(reason.Error(), "1e-06 GB are left") {
		t.Errorf("without memory: %v, %v, left out because %v", results, err, reason)
	}
}

func TestResult(t *testing.T) {
	r := decodebench.Result{Test: decodebench.Test{Tokens: 10}, Batch: 4, Seconds: []float64{1, 2, 4}}
	if got := r.TokensPerSecond(); got != 20 {
		t.Errorf("got %v tokens a second", got)
	}
	if got := r.Spread(); got != 1.5 {
		t.Errorf("got a spread of %v", got)
	}
}

// TestBytes: what a token reads, added up by hand.
func TestBytes(t *testing.T) {
	const (
		params = 2*256*256 + 2*64*256 + 3*512*256 // of a layer
		head   = 2 * 320 * 256
		kv     = 2 * 2 * 2 * 32 * 4 // of a position: layers, keys and values, heads, elements, bytes
	)
	d := describe(t, []byte(wide))
	four := float64(2*(params/2+params/64*2) + head)
	half := float64(2*2*params + head)
	for _, tc := range []struct {
		name  string
		o     decodebench.RandomOptions
		test  decodebench.Test
		batch int
		want  float64
	}{
		{"4 bits", decodebench.RandomOptions{Bits: 4, Group: 64}, decodebench.Test{Tokens: 3}, 1, four + 3*kv},
		{"head of 2 bits", decodebench.RandomOptions{Bits: 4, Group: 64, HeadBits: 2}, decodebench.Test{Tokens: 1, Depth: 5}, 1, four - head + head/8 + 320*256/64*2 + 6*kv},
		{"16 bits", decodebench.RandomOptions{}, decodebench.Test{Tokens: 1}, 1, half + 2*kv},
		{"side by side", decodebench.RandomOptions{}, decodebench.Test{Tokens: 1}, 4, half/4 + 2*kv},
		{"in turns", decodebench.RandomOptions{}, decodebench.Test{Tokens: 1}, decode.Bucket + 1, 2*half/float64(decode.Bucket+1) + 2*kv},
		{"prompt", decodebench.RandomOptions{}, decodebench.Test{Prompt: 10, Depth: 2}, 1, half/10 + 12*kv/10.},
		{"window", decodebench.RandomOptions{}, decodebench.Test{Window: 16}, 1, half / 16},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := random(t, d, tc.o)
			o := decodebench.Options{Tests: []decodebench.Test{tc.test}, Batch: []int{tc.batch}, Repeat: 1, Sizes: r.Sizes(), ActBytes: 4}
			results, err := decodebench.Run(context.Background(), build(t, r), o)
			if err != nil {
				t.Fatal(err)
			}
			if got := results[0].BytesPerToken; math.Abs(got-tc.want) > 1e-6*tc.want {
				t.Errorf("got %v bytes a token, want %v", got, tc.want)
			}
		})
	}
}

// TestWindow: of what attention does not see nothing is read.
func TestWindow(t *testing.T) {
	config := strings.Replace(wide, `"LlamaForCausalLM"], "model_type": "llama"`, `"MistralForCausalLM"], "model_type": "mistral", "sliding_window": 4`, 1)
	r := random(t, describe(t, []byte(config)), decodebench.RandomOptions{})
	read := func(depth int) float64 {
		o := decodebench.Options{Tests: []decodebench.Test{{Tokens: 1, Depth: depth}}, Batch: []int{1}, Repeat: 1, Sizes: r.Sizes(), ActBytes: 4}
		results, err := decodebench.Run(context.Background(), build(t, r), o)
		if err != nil {
			t.Fatal(err)
		}
		return results[0].BytesPerToken
	}
	if a, b, c := read(2), read(3), read(20); !(a < b) || b != c {
		t.Errorf("got %v, %v and %v bytes a token", a, b, c)
	}
}

// TestExperts: of experts, a step reads those that its tokens meet.
func TestExperts(t *testing.T) {
	for _, g := range archtest.Goldens(t) {
		if g.Name != "mixtral" {
			continue
		}
		d := describe(t, g.Config)
		r := random(t, d, decodebench.RandomOptions{})
		moe := d.Blocks[0].MoE
		perToken := func(batch int) float64 {
			o := decodebench.Options{Tests: []decodebench.Test{{Tokens: 1}}, Batch: []int{batch}, Repeat: 1, Sizes: r.Sizes(), ActBytes: 4}
			results, err := decodebench.Run(context.Background(), build(t, r), o)
			if err != nil {
				t.Fatal(err)
			}
			return results[0].BytesPerToken
		}
		var experts, kept float64
		for i := range d.Blocks {
			b := &d.Blocks[i]
			for _, m := range b.MLPs() {
				experts += 2 * float64(m.Gate.N*m.Gate.K+m.Up.N*m.Up.K+m.Down.N*m.Down.K)
			}
			kept += float64(2 * 4 * 2 * b.Attn().KVHeads * b.Attn().Dim)
		}
		all := experts
		for _, m := range r.Sizes() {
			all += float64(m.Bytes)
		}
		all -= experts + float64(r.Sizes()[d.Embed].Bytes) // of which a row is read
		if d.Tied {
			all += float64(r.Sizes()[d.Embed].Bytes)
		}
		missed := 1 - float64(moe.Top)/float64(len(moe.Experts))
		for _, batch := range []int{1, 2} {
			want := (all-experts*math.Pow(missed, float64(batch)))/float64(batch) + kept
			if got := perToken(batch); math.Abs(got-want) > 1e-6*want {
				t.Errorf("%d tokens: got %v bytes a token, want %v", batch, got, want)
			}
		}
		return
	}
	t.Fatal("there is no mixtral among the families")
}

// TestFamilies builds and runs random models of every family, also of tiles.
func TestFamilies(t *testing.T) {
	racetest.Skip(t)
	for _, g := range archtest.Goldens(t) {
		t.Run(g.Name, func(t *testing.T) {
			d := describe(t, g.Config)
			for _, o := range []decodebench.RandomOptions{
				{}, {Bits: 3, Group: 32}, {Bits: 4, Group: weight.RowGroup, HeadBits: 5, Upload: true, DType: hf.F16},
			} {
				r := random(t, d, o)
				do := decodebench.Options{Tests: []decodebench.Test{{Prompt: 4}, {Tokens: 2}}, Batch: []int{1}, Repeat: 1, Sizes: r.Sizes(), ActBytes: 4}
				results, err := decodebench.Run(context.Background(), build(t, r), do)
				if err != nil || len(results) != 2 {
					t.Errorf("%+v: %d results, %v", o, len(results), err)
				}
				want := 16
				if o.HeadBits > 0 {
					want = o.HeadBits
				}
				if got := r.Sizes().Head(d).Bits; got != want {
					t.Errorf("%+v: a head of %d bits", o, got)
				}
			}
		})
	}
}

// TestTiles: layers without padding come as tiles, the weights that their sizes say.
func TestTiles(t *testing.T) {
	d := describe(t, []byte(wide))
	r := random(t, d, decodebench.RandomOptions{Bits: 5, Group: 128, Upload: true})
	const layer = "model.layers.1.mlp.down_proj"
	l, err := r.Layout(layer)
	if err != nil || l == nil {
		t.Fatal(l, err)
	}
	m, err := l.Matrix()
	if err != nil {
		t.Fatal(err)
	}
	if got := m.Bytes() - 4*int64(len(m.Codebook)); got != r.Sizes()[layer].Bytes || m.N != 256 || m.K != 512 || m.Bits != 5 || m.Group != 128 {
		t.Errorf("got %d×%d, %d bits, groups of %d, %d bytes; sizes say %+v", m.N, m.K, m.Bits, m.Group, got, r.Sizes()[layer])
	}
	for _, w := range m.Dequantize() {
		if !(math.Abs(float64(w)) < 0.1) {
			t.Fatalf("a weight is %v", w)
		}
	}
	for name, o := range map[string]decodebench.RandomOptions{
		"the cpu":        {Bits: 5, Group: 128},
		"16 bits":        {Upload: true},
		"no layout 2880": {Bits: 4, Group: 64, Upload: true},
	} {
		layer, config := layer, wide
		if strings.HasPrefix(name, "no layout") {
			config = strings.ReplaceAll(wide, "512", "320")
		}
		if l, err := random(t, describe(t, []byte(config)), o).Layout(layer); l != nil || err != nil {
			t.Errorf("%s: got a layout, %v", name, err)
		}
	}
}

// TestMemory: on a host every matrix has memory of its own, so that all come from memory as in a model.
func TestMemory(t *testing.T) {
	d := describe(t, []byte(wide))
	for _, upload := range []bool{false, true} {
		r := random(t, d, decodebench.RandomOptions{Bits: 4, Group: 64, Upload: upload})
		tensor, ok := r.Tensor("lm_head.weight")
		if !ok {
			t.Fatal("there is no head")
		}
		a, err := r.Read(tensor)
		if err != nil || int64(len(a)) != tensor.Bytes() {
			t.Fatalf("%d bytes of %d, %v", len(a), tensor.Bytes(), err)
		}
		b, _ := r.Read(tensor)
		if !slices.Equal(a, b) || (&a[0] == &b[0]) != upload {
			t.Errorf("upload %v: other numbers, or the memory is not as it should be", upload)
		}
	}
}

// TestHuge: sizes that no machine has are told, not computed wrong.
func TestHuge(t *testing.T) {
	config := strings.NewReplacer("320", "1073741824", "256", "1073741824", `heads": 8`, `heads": 16384`).Replace(wide)
	d := describe(t, []byte(config))
	r, err := decodebench.NewRandom("config.json", d, decodebench.RandomOptions{Bits: 4, Group: 64, DType: hf.F16})
	if err != nil {
		return
	}
	if need := r.HostBytes(); need < 1<<60 || r.Sizes().Sum() < 1<<60 {
		t.Errorf("needs %d bytes", need)
	}
}

func TestSizesOf(t *testing.T) {
	m := modeltest.Open(t, tiny)
	d, err := m.Decoder()
	if err != nil {
		t.Fatal(err)
	}
	sizes, err := decodebench.SizesOf(m, decodebench.Held{Dense: func(hf.DType) int { return 2 }})
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range d.Stored() {
		if got, want := sizes[s.Path], (decodebench.Size{Bytes: int64(2 * s.N * s.K), Bits: 16}); got != want {
			t.Errorf("%s: got %+v, want %+v", s.Path, got, want)
		}
	}
	if got := sizes.Head(d); got.Bytes != int64(2*d.Vocab*d.Hidden) || got.Bits != 16 {
		t.Errorf("the head has size %+v", got)
	}
}

// TestMean: random codes stand for weights of either sign alike, so that states do not grow from layer to layer beyond
// what 16 bits hold.
func TestMean(t *testing.T) {
	d := describe(t, []byte(wide))
	for bits := 2; bits <= 5; bits++ {
		m, err := random(t, d, decodebench.RandomOptions{Bits: bits, Group: 64}).Quantized("model.layers.0.mlp.gate_proj")
		if err != nil {
			t.Fatal(err)
		}
		var sum, squares float64
		all := weight.Dequantize(m)
		for _, w := range all {
			sum += float64(w)
			squares += float64(w) * float64(w)
		}
		n := float64(len(all))
		if mean, rms := sum/n, math.Sqrt(squares/n); !(math.Abs(mean) < 5*rms/math.Sqrt(n)) || rms < 0.005 || rms > 0.05 {
			t.Errorf("%d bits: a mean of %g, a root mean square of %g", bits, mean, rms)
		}
	}
}
