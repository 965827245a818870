package model_test

import (
	"context"
	"errors"
	"math"
	"math/rand/v2"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/lutq/lutq/calib/model"
	"github.com/lutq/lutq/calib/model/opstest"
	"github.com/lutq/lutq/formats/hf"
	"github.com/lutq/lutq/formats/racetest"
	"github.com/lutq/lutq/formats/source/modeltest"
	"github.com/lutq/lutq/formats/weight"
	"github.com/lutq/lutq/formats/weight/lut"
)

// learner is a model all of whose linear layers have trainable scales.
type learner struct {
	*model.Model
	ops            opstest.Ops
	weights        map[string]model.Weight
	scales, tables map[string][]float32
}

// newLearner quantizes the model in a folder, to 2 to 5 bits in turn.
func newLearner(t testing.TB, dir string, ops opstest.Ops, group int) *learner {
	t.Helper()
	src := openCheckpoint(t, dir)
	m, err := model.New(src, ops)
	if err != nil {
		t.Fatal(err)
	}
	l := &learner{
		ops: ops, weights: make(map[string]model.Weight),
		scales: make(map[string][]float32), tables: make(map[string][]float32),
	}
	for i, path := range m.Linears() {
		tensor, ok := src.Tensor(path + ".weight")
		if !ok {
			t.Fatalf("no tensor %s.weight", path)
		}
		n, k := tensor.Shape[0], tensor.Shape[1]
		w := make([]float32, n*k)
		if err := tensor.ReadFloat32(w, 0); err != nil {
			t.Fatal(err)
		}
		codebook, err := lut.NewCodebook("nf", 2+i%4, group)
		if err != nil {
			t.Fatal(err)
		}
		q := quantizeMatrix(t, w, n, k, lut.Format{Codebook: codebook, Group: group, Scale: weight.Absmax, ScaleType: weight.F32})
		tr := model.Trainable{
			N: n, K: k, Group: q.Group, Codes: make([]uint8, n*k), Table: q.Codebook,
			Scales: make([]float32, n*q.Groups()), ScaleType: weight.F32, Original: m.Weight(path),
		}
		for r := range n {
			q.RowCodes(tr.Codes[r*k:(r+1)*k], r)
			q.RowScales(tr.Scales[r*q.Groups():(r+1)*q.Groups()], r)
		}
		if l.weights[path], err = ops.Trainable(tr); err != nil {
			t.Fatal(err)
		}
		l.scales[path], l.tables[path] = tr.Scales, tr.Table
	}
	if l.Model, err = m.With(l.weights); err != nil {
		t.Fatal(err)
	}
	return l
}

// gradient returns the loss, and the gradients of the scales and tables of some layers.
func (l *learner) gradient(t testing.TB, tokens []int, teacher *model.Model, paths []string, lsq bool) (float64, map[string][2][]float64) {
	t.Helper()
	grads := make(map[string]model.Grad)
	for _, path := range paths {
		grads[path] = model.Grad{Scales: l.ops.Floats(len(l.scales[path])), Table: l.ops.Floats(len(l.tables[path])), LSQ: lsq}
	}
	loss, err := l.Gradient(context.Background(), tokens, teacher, grads)
	if err != nil {
		t.Fatal(err)
	}
	all := make(map[string][2][]float64)
	for path, g := range grads {
		all[path] = [2][]float64{l.read(g.Scales), l.read(g.Table)}
	}
	return loss, all
}

// read returns an array's elements, in float64 where the operations have that.
func (l *learner) read(a model.Array) []float64 {
	if v, ok := a.(opstest.Array); ok {
		return v
	}
	v := make([]float32, a.Len())
	l.ops.Read(v, a)
	return widen(v)
}

// exactLoss is the mean loss once more, in float64 to the end.
func exactLoss(t testing.TB, m, teacher *model.Model, tokens []int) float64 {
	t.Helper()
	ops, rows, vocab := m.Ops(), len(tokens)-1, m.Vocab()
	ahead := func(m *model.Model) model.Array {
		h, err := m.Hidden(context.Background(), tokens)
		if err != nil {
			t.Fatal(err)
		}
		dst := ops.Floats(rows * vocab)
		if err := m.Logits(dst, h.Slice(0, rows*m.Decoder().Hidden), rows); err != nil {
			t.Fatal(err)
		}
		return dst
	}
	loss := ops.Floats(rows)
	if teacher == nil {
		ops.CrossEntropy(loss, nil, ahead(m), tokens[1:], vocab, 1)
	} else {
		ops.Divergence(loss, nil, ahead(m), ahead(teacher), rows, vocab, 1)
	}
	sum := 0.
	for _, v := range loss.(opstest.Array) {
		sum += v
	}
	return sum / float64(rows)
}

// slope is the derivative at v[i] of f(v), from four points around it.
func slope(v []float64, i int, step float64, f func(v []float64) float64) float64 {
	at := func(by float64) float64 {
		w := slices.Clone(v)
		w[i] += by * step
		return f(w)
	}
	return (8*(at(1)-at(-1)) - (at(2) - at(-2))) / (12 * step)
}

func largest(v []float64) float64 {
	m := 0.
	for _, x := range v {
		m = max(m, math.Abs(x))
	}
	return m
}

// The gradients of all scales and codebooks against finite differences, for every
// flag of the configuration, both losses, in float64.
func TestGradientAgainstDifferences(t *testing.T) {
	racetest.Skip(t)
	for _, tt := range []struct {
		name    string
		teacher bool
		change  func(*shape)
	}{
		{"llama", false, func(*shape) {}},
		{"llama with a teacher", true, func(*shape) {}},
		{"untied", false, func(s *shape) { s.tied = false }},
		{"untied with a teacher", true, func(s *shape) { s.tied = false }},
		{"no grouped queries", false, func(s *shape) { s.kvHeads = 4 }},
		{"biases", false, func(s *shape) { s.attentionBias, s.mlpBias = true, true }},
		{"qwen2", true, func(s *shape) { s.arch = "Qwen2ForCausalLM" }},
		{"qwen3", false, func(s *shape) { s.arch, s.headDim = "Qwen3ForCausalLM", 8 }},
		{"mistral with a window", false, func(s *shape) { s.arch, s.window = "MistralForCausalLM", 5 }},
		{"odd sizes", true, func(s *shape) { s.hidden, s.inter, s.vocab, s.tied = 13, 17, 31, false }},
		{"llama3 rope", false, func(s *shape) { s.rope = llama3Rope() }},
		{"one layer", false, func(s *shape) { s.layers = 1 }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := small()
			s.hidden, s.inter, s.vocab = 16, 20, 23
			tt.change(&s)
			dir := s.build().folder(t)
			l := newLearner(t, dir, opstest.Reference{}, 8)
			var teacher *model.Model
			if tt.teacher {
				var err error
				if teacher, err = model.Open(modeltest.Open(t, dir), l.ops, model.OpenOptions{}); err != nil {
					t.Fatal(err)
				}
			}
			l.SetLossRows(4)
			tokens := randomTokens(3, 11, s.vocab)
			loss, grads := l.gradient(t, tokens, teacher, l.Linears(), false)
			if want := exactLoss(t, l.Model, teacher, tokens); math.Abs(loss/want-1) > 1e-6 {
				t.Errorf("loss: got %v, want %v", loss, want)
			}
			if got, err := l.Loss(context.Background(), tokens, teacher); err != nil || got != loss {
				t.Errorf("loss without gradient: got %v, %v, want %v", got, err, loss)
			}
			rng := rand.New(rand.NewPCG(1, 2))
			for _, path := range l.Linears() {
				for which, set := range []func(model.Weight, model.Array){l.ops.SetScales, l.ops.SetTable} {
					v := widen([][]float32{l.scales[path], l.tables[path]}[which])
					got := grads[path][which]
					for range 2 {
						i := rng.IntN(len(v))
						want := slope(v, i, 3e-4, func(v []float64) float64 {
							set(l.weights[path], opstest.Array(v))
							return exactLoss(t, l.Model, teacher, tokens)
						})
						if e := math.Abs(got[i]-want) / largest(got); !(e <= 1e-6) {
							t.Errorf("%s: derivative of %s %d: got %v, want %v", path, []string{"scale", "table value"}[which], i, got[i], want)
						}
					}
					set(l.weights[path], opstest.Array(v))
				}
			}
		})
	}
}

// The gradients of the processor against those of float64, with windows of
// several blocks of queries, and their bits on any number of threads.
func TestCPUGradient(t *testing.T) {
	for _, tt := range []struct {
		name    string
		teacher bool
		change  func(*shape)
	}{
		{"llama with a teacher", true, func(*shape) {}},
		{"untied qwen2", false, func(s *shape) { s.arch, s.tied = "Qwen2ForCausalLM", false }},
		{"qwen3", true, func(s *shape) { s.arch, s.headDim = "Qwen3ForCausalLM", 8 }},
		{"mistral with a window", false, func(s *shape) { s.arch, s.window = "MistralForCausalLM", 20 }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := small()
			tt.change(&s)
			dir := s.build().folder(t)
			tokens := randomTokens(3, 2*queryRows+9, s.vocab)
			run := func(ops opstest.Ops) (float64, map[string][2][]float64) {
				l := newLearner(t, dir, ops, 8)
				l.SetLossRows(50)
				var teacher *model.Model
				if tt.teacher {
					var err error
					if teacher, err = model.Open(modeltest.Open(t, dir), ops, model.OpenOptions{}); err != nil {
						t.Fatal(err)
					}
				}
				return l.gradient(t, tokens, teacher, l.Linears(), false)
			}
			wantLoss, want := run(opstest.Reference{})
			gotLoss, got := run(newOps(t, 2))
			if math.Abs(gotLoss/wantLoss-1) > 1e-6 {
				t.Errorf("loss: got %v, want %v", gotLoss, wantLoss)
			}
			for path := range want {
				for which, name := range []string{"scales", "table"} {
					w, g := want[path][which], got[path][which]
					var diff, norm float64
					for i := range w {
						diff, norm = diff+(g[i]-w[i])*(g[i]-w[i]), norm+w[i]*w[i]
					}
					if e := math.Sqrt(diff / norm); !(e <= 1e-5) {
						t.Errorf("%s: relative error of the gradient of the %s: %.2g, want at most 1e-5", path, name, e)
					}
				}
			}
			if loss, again := run(newOps(t, 3)); loss != gotLoss || !reflect.DeepEqual(again, got) {
				t.Error("three threads give other bits than two")
			}
		})
	}
}

// What is left out does not change the rest, and gradients are added to.
func TestGradientOfSomeLayers(t *testing.T) {
	s := small()
	s.arch, s.headDim, s.tied = "Qwen3ForCausalLM", 8, false
	l := newLearner(t, s.build().folder(t), opstest.Reference{}, 8)
	tokens := randomTokens(3, 9, s.vocab)
	loss, all := l.gradient(t, tokens, nil, l.Linears(), false)
	for _, paths := range [][]string{
		{"lm_head"},
		{"model.layers.1." + "mlp.down_proj"},
		{"model.layers.1." + "self_attn.k_proj", "lm_head"},
		{"model.layers.0." + "self_attn.v_proj"},
		{},
	} {
		got, some := l.gradient(t, tokens, nil, paths, false)
		if got != loss {
			t.Errorf("%v: got loss %v, want %v", paths, got, loss)
		}
		for _, path := range paths {
			for which := range 2 {
				if !slices.Equal(some[path][which], all[path][which]) {
					t.Errorf("%v: gradient of %s differs from that among all", paths, path)
				}
			}
		}
	}
	_, lsq := l.gradient(t, tokens, nil, l.Linears(), true)
	for path, g := range lsq {
		if slices.Equal(g[0], all[path][0]) {
			t.Errorf("%s: the LSQ gradient is the other", path)
		}
	}
}

// Windows of other lengths in between change nothing.
func TestGradientAfterOtherWindows(t *testing.T) {
	s := small()
	l := newLearner(t, s.build().folder(t), opstest.Reference{}, 8)
	tokens := randomTokens(3, 9, s.vocab)
	_, want := l.gradient(t, tokens, nil, l.Linears(), false)
	for _, n := range []int{2, 14} {
		l.gradient(t, randomTokens(4, n, s.vocab), nil, l.Linears()[3:], false)
	}
	_, got := l.gradient(t, tokens, nil, l.Linears(), false)
	for path := range want {
		if !slices.Equal(got[path][0], want[path][0]) {
			t.Errorf("%s: got %v, want %v", path, got[path][0], want[path][0])
		}
	}
}

func TestGradientErrors(t *testing.T) {
	s := small()
	dir := s.build().folder(t)
	l := newLearner(t, dir, opstest.Reference{}, 8)
	other := small()
	other.vocab++
	stranger, err := model.Open(modeltest.Open(t, other.build().folder(t)), l.ops, model.OpenOptions{})
	if err != nil {
		t.Fatal(err)
	}
	nothing := map[string]model.Grad{}
	for _, tt := range []struct {
		name    string
		tokens  []int
		teacher *model.Model
		grads   map[string]model.Grad
		want    string
	}{
		{"no tokens", nil, nil, nothing, "two tokens"},
		{"one token", []int{1}, nil, nothing, "two tokens"},
		{"no such token", []int{1, s.vocab}, nil, nothing, "token 50 at position 1"},
		{"no such layer", []int{1, 2}, nil, map[string]model.Grad{"x": {}}, "no linear layer x"},
		{"tied head", []int{1, 2}, nil, map[string]model.Grad{"lm_head": {}}, "no linear layer lm_head"},
		{"other vocabulary", []int{1, 2}, stranger, nothing, "vocabulary of 51 tokens: want 50"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if _, err := l.Gradient(context.Background(), tt.tokens, tt.teacher, tt.grads); err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got %v, want %q", err, tt.want)
			}
		})
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := l.Gradient(ctx, []int{1, 2}, nil, nothing); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want %v", err, context.Canceled)
	}
}

func TestWith(t *testing.T) {
	s := small()
	dir := s.build().folder(t)
	m := open(t, dir, 1)
	tokens := randomTokens(1, 20, s.vocab)
	want := logits(t, m, tokens)
	const path = "model.layers.0." + "mlp.up_proj"
	n, k := m.Weight(path).Shape()
	zero, err := m.Ops().Dense(n, k, hf.F32, make([]byte, 4*n*k))
	if err != nil {
		t.Fatal(err)
	}
	without, err := m.With(map[string]model.Weight{path: zero})
	if err != nil {
		t.Fatal(err)
	}
	if without.Weight(path) != zero || m.Weight(path) == zero {
		t.Error("the weight is not the one given, or is the original's too")
	}
	if got := logits(t, without, tokens); slices.Equal(got, want) {
		t.Error("logits do not change with a weight")
	}
	without.Close()
	if got := logits(t, m, tokens); !slices.Equal(got, want) {
		t.Error("the original's logits change")
	}
	for _, tt := range []struct{ path, want string }{
		{"lm_head", "no linear layer lm_head"},
		{"model.layers.0." + "mlp.down_proj", "a weight of shape [40, 24]"},
	} {
		if _, err := m.With(map[string]model.Weight{tt.path: zero}); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: got %v, want %q", tt.path, err, tt.want)
		}
	}
}

// A step of learning without the optimizer: gradient of all layers by the teacher.
func BenchmarkGradient(b *testing.B) {
	dir := need(b, filepath.Join(shared, "models/lutq-11m"))
	ops := newOps(b, 0)
	teacher, err := model.Open(modeltest.Open(b, dir), ops, model.OpenOptions{})
	if err != nil {
		b.Fatal(err)
	}
	l := newLearner(b, dir, ops, 64)
	tokens := randomTokens(1, 512, l.Vocab())
	grads := make(map[string]model.Grad)
	for path, scales := range l.scales {
		grads[path] = model.Grad{Scales: ops.Floats(len(scales))}
	}
	for b.Loop() {
		if _, err := l.Gradient(context.Background(), tokens, teacher, grads); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.N*len(tokens))/b.Elapsed().Seconds(), "tokens/s")
}
