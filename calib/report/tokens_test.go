package report

import (
	"context"
	"errors"
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/lutq/lutq/calib/corpus"
	"github.com/lutq/lutq/calib/eval"
	"github.com/lutq/lutq/calib/model"
	modelcpu "github.com/lutq/lutq/calib/model/cpu"
	"github.com/lutq/lutq/gemm/cpu"
)

// bigram is a model whose logits are a row of a table, by the token before.
type bigram struct {
	ops   model.Ops
	table [][]float32
}

func (b *bigram) Vocab() int { return len(b.table) }

func (b *bigram) Hidden(_ context.Context, tokens []int) (model.Array, error) {
	h := b.ops.Acts(len(tokens))
	state := make([]float32, len(tokens))
	for i, id := range tokens {
		state[i] = float32(id)
	}
	b.ops.Write(h, state)
	return h, nil
}

func (b *bigram) Logits(dst, h model.Array, rows int) error {
	state := make([]float32, rows)
	b.ops.Read(state, h)
	for i, v := range state {
		b.ops.Write(dst.Slice(i*len(b.table), (i+1)*len(b.table)), b.table[int(v)])
	}
	return nil
}

// letters spells ids as words of a letter.
type letters struct{}

func (letters) Decode(ids []int) (string, error) {
	var b strings.Builder
	for i, id := range ids {
		if id < 0 {
			return "", errors.New("no such id")
		}
		if i > 0 { // as SentencePiece does
			b.WriteByte(' ')
		}
		b.WriteByte(byte('a' + id))
	}
	return b.String(), nil
}

// TestWatch: groups cover all tokens, and the worst are those of the largest divergence, with the chances that follow from the logits.
func TestWatch(t *testing.T) {
	engine, err := cpu.New(cpu.Options{Threads: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer engine.Close()
	ops := modelcpu.New(engine)
	const vocab = 20
	rng := rand.New(rand.NewPCG(3, 4))
	ref, own := &bigram{ops: ops}, &bigram{ops: ops}
	for range vocab {
		a, b := make([]float32, vocab), make([]float32, vocab)
		for v := range a {
			a[v] = float32(2 * rng.NormFloat64())
			b[v] = a[v] + float32(0.5*rng.NormFloat64())
		}
		ref.table, own.table = append(ref.table, a), append(own.table, b)
	}
	set := &corpus.Set{Protocol: corpus.Raw, BOS: corpus.BOSNone, Context: 30}
	for range 4 {
		w := corpus.Window{ScoreFrom: 1}
		for range 30 {
			w.Tokens = append(w.Tokens, rng.IntN(vocab))
		}
		set.Windows = append(set.Windows, w)
	}
	watch := NewWatch(set, letters{}, 2)
	results, err := eval.Run(t.Context(), ref, []eval.Model{own, ref}, set, eval.Options{Ops: ops, Watch: watch})
	if err != nil {
		t.Fatal(err)
	}
	got := watch.Results()
	for i, tokens := range got {
		for name, groups := range map[string][]Group{"positions": tokens.Positions, "classes": tokens.Classes, "sizes": tokens.Sizes} {
			n, kl, nll := 0, 0., 0.
			for _, g := range groups {
				n, kl, nll = n+g.Tokens, kl+g.KL*float64(g.Tokens), nll+g.NLL*float64(g.Tokens)
			}
			if n != 4*29 || math.Abs(kl/float64(n)-results[i].KLMean) > 1e-9 || math.Abs(nll/float64(n)-results[i].NLL) > 1e-9 {
				t.Errorf("model %d, %s: %d tokens, KL %v, nll %v", i, name, n, kl/float64(n), nll/float64(n))
			}
		}
		if len(tokens.Windows) != 4 {
			t.Errorf("%d windows", len(tokens.Windows))
		}
	}
	for i, kl := range results[0].WindowKL {
		if math.Abs(kl-got[0].Windows[i]) > 1e-9 {
			t.Errorf("window %d: %v, want %v", i, got[0].Windows[i], kl)
		}
	}
	if n := len(got[1].Worst); n > 0 && got[1].Worst[0].KL > 1e-5 {
		t.Errorf("the original differs from itself by %v", got[1].Worst[0].KL)
	}

	worst := got[0].Worst
	if len(worst) != worstTokens {
		t.Fatalf("%d of the worst", len(worst))
	}
	seen := make(map[[2]int]bool)
	for i, w := range worst {
		ids := set.Windows[w.Window].Tokens
		before, id := ids[w.Position-1], ids[w.Position]
		if seen[[2]int{w.Window, w.Position}] || i > 0 && w.KL > worst[i-1].KL {
			t.Errorf("number %d is twice there, or out of order", i)
		}
		seen[[2]int{w.Window, w.Position}] = true
		if want := " " + string(rune('a'+id)); w.Token != want {
			t.Errorf("%q came, want %q", w.Token, want)
		}
		if !strings.HasSuffix(w.Before, string(rune('a'+before))) {
			t.Errorf("%q stands before, want %c at its end", w.Before, rune('a'+before))
		}
		p, q := softmax(own.table[before]), softmax(ref.table[before])
		kl := 0.
		for v := range p {
			kl += q[v] * math.Log(q[v]/p[v])
		}
		if math.Abs(kl-w.KL) > 1e-5 || math.Abs(w.P-p[id]) > 1e-5 || math.Abs(w.Reference-q[id]) > 1e-5 {
			t.Errorf("number %d: KL %v, p %v and %v; want %v, %v, %v", i, w.KL, w.P, w.Reference, kl, p[id], q[id])
		}
		for j, c := range w.Own {
			v := int(c.Token[1] - 'a')
			if math.Abs(c.P-p[v]) > 1e-5 || math.Abs(c.Other-q[v]) > 1e-5 || j > 0 && c.P > w.Own[j-1].P {
				t.Errorf("number %d, %q: %v and %v, want %v and %v", i, c.Token, c.P, c.Other, p[v], q[v])
			}
		}
		for _, c := range w.Ref {
			if v := int(c.Token[1] - 'a'); math.Abs(c.P-q[v]) > 1e-5 || math.Abs(c.Other-p[v]) > 1e-5 {
				t.Errorf("number %d, %q of the original: %v and %v, want %v and %v", i, c.Token, c.P, c.Other, q[v], p[v])
			}
		}
	}
	// No other token differs more than the last of them.
	for w, win := range set.Windows {
		for i := 1; i < len(win.Tokens); i++ {
			p, q := softmax(own.table[win.Tokens[i-1]]), softmax(ref.table[win.Tokens[i-1]])
			kl := 0.
			for v := range p {
				kl += q[v] * math.Log(q[v]/p[v])
			}
			if kl > worst[worstTokens-1].KL+1e-5 && !seen[[2]int{w, i}] {
				t.Errorf("window %d, place %d: KL %v is not among the worst", w, i, kl)
			}
		}
	}
}

func softmax(logits []float32) []float64 {
	p, sum := make([]float64, len(logits)), 0.
	for i, v := range logits {
		p[i] = math.Exp(float64(v))
		sum += p[i]
	}
	for i := range p {
		p[i] /= sum
	}
	return p
}
