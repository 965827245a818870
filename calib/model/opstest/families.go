package opstest

import (
	"context"
	"errors"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/lutq/lutq/calib/model"
	"github.com/lutq/lutq/formats/arch"
	"github.com/lutq/lutq/formats/arch/archtest"
	"github.com/lutq/lutq/formats/source/modeltest"
	"github.com/lutq/lutq/formats/weight"
)

// FamilyBounds say how close a tiny model of every family has to be to what transformers
// computes of it in float64.
type FamilyBounds struct {
	Logits    float64  // ‖got − want‖/‖want‖ of the logits of a position
	Loss      float64  // relative
	Gradients float64  // of a layer's gradient, relative to its norm; 0: not compared
	Recorded  bool     // whether steps are to be recorded
	Near      []string // families whose routers' last choice leads the next by less than activations are rounded: left out
}

// eachFamily opens a tiny model of every family on ops, or of those named.
func eachFamily(t *testing.T, ops model.Ops, test func(t *testing.T, m *model.Model, g archtest.Golden), names ...string) {
	all := archtest.Goldens(t)
	for _, name := range names {
		if !slices.ContainsFunc(all, func(g archtest.Golden) bool { return g.Name == name }) {
			t.Errorf("there is no family %s", name)
		}
	}
	for _, g := range all {
		if len(names) > 0 && !slices.Contains(names, g.Name) {
			continue
		}
		t.Run(g.Name, func(t *testing.T) {
			dir := t.TempDir()
			g.Write(t, dir)
			m, err := model.Open(modeltest.Open(t, dir), ops, model.OpenOptions{})
			if errors.Is(err, model.ErrCPUOnly) {
				t.Skip(err)
			}
			if err != nil {
				t.Fatal(err)
			}
			defer m.Close()
			test(t, m, g)
		})
	}
}

// Families compares a tiny model of every family, or of those named, on ops with transformers.
func Families(t *testing.T, ops model.Ops, b FamilyBounds, families ...string) {
	eachFamily(t, ops, func(t *testing.T, m *model.Model, g archtest.Golden) {
		b.skipNear(t, g)
		b.logits(t, m, g)
		b.continued(t, m, g)
		loss, err := m.Loss(context.Background(), g.Tokens, nil)
		if err != nil {
			t.Fatal(err)
		}
		if e := math.Abs(loss - g.Loss); !(e <= b.Loss*g.Loss) {
			t.Errorf("loss %.7f, want %.7f", loss, g.Loss)
		}
		if b.Gradients > 0 {
			b.gradients(t, m, g)
		}
	}, families...)
}

func (b FamilyBounds) skipNear(t *testing.T, g archtest.Golden) {
	t.Helper()
	if slices.Contains(b.Near, g.Name) {
		t.Skip("rounded activations choose other experts")
	}
}

// Steps compares what models of every family, or of those named, say token by token, beside another text that begins later, with
// transformers.
func Steps(t *testing.T, ops model.Ops, b FamilyBounds, families ...string) {
	eachFamily(t, ops, func(t *testing.T, m *model.Model, g archtest.Golden) {
		b.skipNear(t, g)
		c, err := m.NewCache(2, len(g.Tokens))
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		const later = 3
		vocab := m.Vocab()
		for at, token := range g.Tokens {
			slots, tokens := []int{1}, []int{token}
			if at >= later {
				slots, tokens = []int{0, 1}, []int{g.Tokens[at-later], token}
			}
			logits, best, err := c.Step(context.Background(), slots, tokens)
			if err != nil {
				t.Fatal(err)
			}
			if b.Recorded && best == nil {
				t.Fatalf("the host has taken part in step %d", at)
			}
			got := make([]float32, len(slots)*vocab)
			ops.Read(got, logits)
			for row, token := range best {
				if l := got[row*vocab : (row+1)*vocab]; l[token] < slices.Max(l) {
					t.Errorf("step %d: token %d is not the most likely one", at, token)
				}
			}
			want := g
			if g.Stepped != nil {
				want.Logits = g.Stepped
			}
			for row, slot := range slots {
				if c.Len(slot) != at+1-later*(1-slot) {
					t.Fatalf("slot %d has %d tokens after step %d", slot, c.Len(slot), at)
				}
				if i := slices.Index(g.Positions, c.Len(slot)-1); i >= 0 {
					b.compare(t, got[row*vocab:(row+1)*vocab], want, i)
				}
			}
		}
		if _, _, err := c.Step(context.Background(), []int{1}, g.Tokens[:1]); !errors.Is(err, model.ErrFull) {
			t.Errorf("beyond the cache: got error %v", err)
		}
	}, families...)
}

// Ahead compares texts that a device takes further without the host with those that it takes step by step, to the bit.
// Devices that cannot are skipped. Families are those named, or all.
func Ahead(t *testing.T, ops model.Ops, families ...string) {
	eachFamily(t, ops, func(t *testing.T, m *model.Model, g archtest.Golden) {
		ctx := context.Background()
		const steps, read, most = 9, 5, 18
		slots := []int{1, 0}
		open := func() *model.Cache {
			c, err := m.NewCache(3, most)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := c.Continue(ctx, model.Part{Slot: 0, Tokens: g.Tokens[:7]}, model.Part{Slot: 1, Tokens: g.Tokens[3:6]}); err != nil {
				t.Fatal(err)
			}
			return c
		}
		step := func(c *model.Cache, tokens []int) (logits []float32, best []int) {
			l, best, err := c.Step(ctx, slots, tokens)
			if err != nil {
				t.Fatal(err)
			}
			logits = make([]float32, l.Len())
			ops.Read(logits, l)
			return logits, best
		}
		c := open()
		defer c.Close()
		first := []int{g.Tokens[6], g.Tokens[7]}
		if a, err := c.Ahead(ctx, slots, first, steps); a == nil {
			if err != nil {
				t.Fatal(err)
			}
			t.Skip("the host takes part in steps")
		} else {
			a.Close() // of which nothing stays
		}
		forgets := m.Decoder().Forgets() // and then the step that was under way has spoiled the texts
		if forgets != (c.Len(0) == 0 && c.Len(1) == 0) || !forgets && (c.Len(0) != 7 || c.Len(1) != 3) {
			t.Fatalf("%d and %d tokens after no step", c.Len(0), c.Len(1))
		}
		if forgets {
			c = open()
			defer c.Close()
		}
		var want [][]int
		var logits []float32
		for tokens := first; len(want) < steps; {
			var best []int
			logits, best = step(c, tokens)
			want = append(want, best)
			tokens = best
		}

		other := open()
		defer other.Close()
		a, err := other.Ahead(ctx, slots, first, steps)
		if err != nil {
			t.Fatal(err)
		}
		for i := range read {
			best, err := a.Next(ctx)
			if err != nil {
				t.Fatal(err)
			}
			if !slices.Equal(best, want[i]) {
				t.Fatalf("step %d: ahead %v follow, step by step %v", i, best, want[i])
			}
			if other.Len(1) != 3+i+1 || other.Len(0) != 7+i+1 {
				t.Fatalf("step %d leaves %d and %d tokens", i, other.Len(0), other.Len(1))
			}
		}
		a.Close()
		if forgets {
			return
		}
		for i := read; i < steps; i++ {
			got, best := step(other, want[i-1])
			if !slices.Equal(best, want[i]) || i == steps-1 && !slices.Equal(got, logits) {
				t.Fatalf("step %d, after some ahead: %v follow, or other logits, step by step %v", i, best, want[i])
			}
		}

		// To the end of the cache, which the second text comes to first.
		other.Cut(0, 7)
		other.Cut(1, 3)
		if a, err = other.Ahead(ctx, slots, first, 1000); err != nil {
			t.Fatal(err)
		}
		defer a.Close()
		for i := range most - 7 {
			best, err := a.Next(ctx)
			if err != nil {
				t.Fatal(err)
			}
			if i < steps && !slices.Equal(best, want[i]) {
				t.Fatalf("step %d, again: %v follow, step by step %v", i, best, want[i])
			}
		}
		if _, err := a.Next(ctx); err == nil || other.Len(0) != most {
			t.Errorf("beyond the cache: %d of %d tokens, error %v", other.Len(0), most, err)
		}
	}, families...)
}

// Soak writes so many tokens with a tiny model, and compares what it says then with what it says of the same tokens as a
// fresh prompt, and as a window.
func Soak(t *testing.T, ops model.Ops, tokens int, bound float64) {
	eachFamily(t, ops, func(t *testing.T, m *model.Model, g archtest.Golden) {
		ctx := context.Background()
		text := append(make([]int, 0, tokens), g.Tokens[:4]...)
		logits := func(cache func() (model.Array, error)) []float32 {
			t.Helper()
			l, err := cache()
			if err != nil {
				t.Fatal(err)
			}
			got := make([]float32, m.Vocab())
			ops.Read(got, l)
			return got
		}
		step := func(c *model.Cache) []float32 {
			return logits(func() (model.Array, error) {
				l, _, err := c.Step(ctx, []int{0}, text[tokens-1:])
				return l, err
			})
		}
		c, err := m.NewCache(1, tokens)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if _, err := c.Continue(ctx, model.Part{Tokens: text[:len(text)-1]}); err != nil {
			t.Fatal(err)
		}
		// The most likely token soon says the same over and over: every few tokens another one comes in between.
		for i := 0; len(text) < tokens; i++ {
			run := min(37, tokens-len(text))
			best, err := follow(ctx, c, ops, m, text[len(text)-1], run)
			if err != nil {
				t.Fatal(err)
			}
			text = append(text, best...)
			text[len(text)-1] = (i*i*31 + 7*i) % m.Vocab()
		}
		long := step(c)

		fresh, err := m.NewCache(1, tokens)
		if err != nil {
			t.Fatal(err)
		}
		defer fresh.Close()
		for from := 0; from < tokens-1; {
			to := min(from+700, tokens-1)
			if _, err := fresh.Continue(ctx, model.Part{Tokens: text[from:to]}); err != nil {
				t.Fatal(err)
			}
			from = to
		}
		prompt := step(fresh)
		window := logits(func() (model.Array, error) {
			h, err := m.Hidden(ctx, text)
			if err != nil {
				return nil, err
			}
			l, hidden := ops.Floats(m.Vocab()), m.Decoder().Hidden
			return l, m.Logits(l, h.Slice((tokens-1)*hidden, tokens*hidden), 1)
		})
		for name, want := range map[string][]float32{"a fresh prompt": prompt, "the window": window} {
			ref := widen(want)
			if message := distance(long, ref, 0, bound); message != "" {
				t.Errorf("after %d tokens, beside %s: %s", tokens, name, message)
			}
			if slices.Index(long, slices.Max(long)) != slices.Index(want, slices.Max(want)) {
				t.Errorf("after %d tokens, beside %s: another token is the most likely", tokens, name)
			}
		}
	}, "llama-llama3", "qwen3-moe")
}

// follow goes on with the only text of a cache by its most likely tokens.
func follow(ctx context.Context, c *model.Cache, ops model.Ops, m *model.Model, token, steps int) (all []int, err error) {
	a, err := c.Ahead(ctx, []int{0}, []int{token}, steps)
	if err != nil {
		return nil, err
	}
	if a != nil {
		defer a.Close()
	}
	got := make([]float32, m.Vocab())
	for len(all) < steps {
		if a != nil {
			best, err := a.Next(ctx)
			if err != nil {
				return nil, err
			}
			all = append(all, best...)
			continue
		}
		l, _, err := c.Step(ctx, []int{0}, []int{token})
		if err != nil {
			return nil, err
		}
		ops.Read(got, l)
		token = slices.Index(got, slices.Max(got))
		all = append(all, token)
	}
	return all, nil
}

// compare holds the logits at the i-th of the golden positions to their bound.
func (b FamilyBounds) compare(t *testing.T, got []float32, g archtest.Golden, i int) {
	t.Helper()
	var diff, norm float64
	for j, want := range g.Logits[i] {
		d := float64(got[j]) - float64(want)
		diff += d * d
		norm += float64(want) * float64(want)
	}
	if e := math.Sqrt(diff / norm); !(e <= b.Logits) {
		t.Errorf("logits at %d: relative error %.2g, want at most %.2g", g.Positions[i], e, b.Logits)
	}
}

// continued compares the logits of a text that is put into a cache in pieces: many tokens, a few, one at a time, and many
// again.
func (b FamilyBounds) continued(t *testing.T, m *model.Model, g archtest.Golden) {
	c, err := m.NewCache(2, len(g.Tokens))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.Continue(context.Background(), model.Part{Slot: 0, Tokens: g.Tokens[5:12]}); err != nil {
		t.Fatal(err)
	}
	ops, vocab, hidden := m.Ops(), m.Vocab(), m.Decoder().Hidden
	l, got := ops.Floats(vocab), make([]float32, vocab)
	defer ops.Free(l)
	for from := 0; from < len(g.Tokens); {
		n := 1
		switch from {
		case 0:
			n = 18
		case 18:
			n = 5
		case 26:
			n = len(g.Tokens) - 1 - from
		}
		h, err := c.Continue(context.Background(), model.Part{Slot: 1, Tokens: g.Tokens[from : from+n], Whole: len(g.Tokens)})
		if err != nil {
			t.Fatal(err)
		}
		for i, at := range g.Positions {
			if at < from || at >= from+n {
				continue
			}
			row := h.Slice((at-from)*hidden, (at-from+1)*hidden)
			if err := m.Logits(l, row, 1); err != nil {
				t.Fatal(err)
			}
			ops.Read(got, l)
			b.compare(t, got, g, i)
		}
		from += n
	}
}

func (b FamilyBounds) logits(t *testing.T, m *model.Model, g archtest.Golden) {
	got, vocab := Logits(t, m, g.Tokens), m.Vocab()
	for i, at := range g.Positions {
		b.compare(t, got[at*vocab:(at+1)*vocab], g, i)
	}
}

// Logits returns all logits of a window.
func Logits(t testing.TB, m *model.Model, tokens []int) []float32 {
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
	all := make([]float32, l.Len())
	m.Ops().Read(all, l)
	return all
}

// gradients compares the gradient by a scale of every row of every layer.
func (b FamilyBounds) gradients(t *testing.T, m *model.Model, g archtest.Golden) {
	if err := model.Learnable(m.Decoder(), len(g.Tokens)); err != nil {
		name := m.Linears()[0]
		if _, got := m.Gradient(context.Background(), g.Tokens, nil, map[string]model.Grad{name: {}}); got == nil || !strings.Contains(got.Error(), err.Error()) {
			t.Errorf("gradient without one: error %v, want %v", got, err)
		}
		return
	}
	ops := m.Ops().(Ops)
	weights, grads := make(map[string]model.Weight), make(map[string]model.Grad)
	for _, name := range m.Linears() {
		w := m.Weight(name)
		n, k := w.Shape()
		ones := make([]float32, n)
		for i := range ones {
			ones[i] = 1
		}
		trained, err := ops.Trainable(model.Trainable{N: n, K: k, Group: k, Scales: ones, ScaleType: weight.F32, Original: w})
		if err != nil {
			t.Fatal(err)
		}
		weights[name], grads[name] = trained, model.Grad{Scales: ops.Floats(n)}
	}
	student, err := m.With(weights)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := student.Gradient(context.Background(), g.Tokens, nil, grads); err != nil {
		t.Fatal(err)
	}
	// Of what is stored, the gradients of all rows of each matrix.
	rows := make(map[*arch.Stored][][]float64)
	for l := range m.Decoder().Linears() {
		if rows[l.Stored] == nil {
			rows[l.Stored] = make([][]float64, l.Stored.Matrices())
		}
		of := &rows[l.Stored][l.Expert]
		if *of == nil {
			*of = make([]float64, l.Stored.N)
		}
		v := make([]float32, l.N)
		ops.Read(v, grads[l.Name].Scales)
		for i, x := range v {
			(*of)[l.Row+i*l.Step] = float64(x)
		}
	}
	seen := 0
	for s, experts := range rows {
		for e, v := range experts {
			expert := e
			if s.Experts == 0 {
				expert = -1
			}
			for _, want := range g.Gradients {
				if want.Layer != strings.TrimSuffix(s.Tensor, ".weight") || want.Expert != expert {
					continue
				}
				seen++
				var alternating, norm float64
				for n, x := range v {
					alternating += x * float64(1-2*(n%2))
					norm += x * x
				}
				norm = math.Sqrt(norm)
				if d := math.Abs(norm-want.Norm) + math.Abs(alternating-want.Alternating); !(d <= b.Gradients*want.Norm+1e-9) {
					t.Errorf("gradient of %s, expert %d: norm %.8g and alternating sum %.8g, want %.8g and %.8g",
						s.Tensor, e, norm, alternating, want.Norm, want.Alternating)
				}
			}
		}
	}
	if seen != len(g.Gradients) {
		t.Errorf("%d of %d gradients were compared", seen, len(g.Gradients))
	}
}
