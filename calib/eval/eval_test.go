package eval

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/lutq/lutq/calib/corpus"
	"github.com/lutq/lutq/calib/model"
	modelcpu "github.com/lutq/lutq/calib/model/cpu"
	"github.com/lutq/lutq/formats/racetest"
	"github.com/lutq/lutq/gemm/cpu"
)

// fake is a bigram model: the state is the token, the logits a row of a table.
type fake struct {
	ops   model.Ops
	table [][]float32
	calls int // of Logits
	rows  int // of logits
	err   error
}

// hostOps are for a fake's arrays: an engine of one thread has none to stop.
func hostOps() model.Ops {
	e, err := cpu.New(cpu.Options{Threads: 1})
	if err != nil {
		panic(err)
	}
	return modelcpu.New(e)
}

func newFake(vocab int, seed uint64, sd float64) *fake {
	rng := rand.New(rand.NewPCG(seed, 0))
	f := &fake{ops: hostOps(), table: make([][]float32, vocab)}
	for i := range f.table {
		f.table[i] = make([]float32, vocab)
		for j := range f.table[i] {
			f.table[i][j] = float32(sd * rng.NormFloat64())
		}
	}
	return f
}

// near returns a model whose logits differ a little.
func (f *fake) near(seed uint64, sd float64) *fake {
	g := newFake(len(f.table), seed, sd)
	for i, row := range f.table {
		for j, v := range row {
			g.table[i][j] += v
		}
	}
	return g
}

func (f *fake) Vocab() int { return len(f.table) }

func (f *fake) Hidden(ctx context.Context, tokens []int) (model.Array, error) {
	if f.err != nil {
		return nil, f.err
	}
	state := make([]float32, len(tokens))
	for i, id := range tokens {
		state[i] = float32(id)
	}
	h := f.ops.Acts(len(state))
	f.ops.Write(h, state)
	return h, ctx.Err()
}

func (f *fake) Logits(dst, h model.Array, rows int) error {
	if dst.Len() != rows*len(f.table) || h.Len() != rows {
		return fmt.Errorf("%d logits and %d states for %d rows", dst.Len(), h.Len(), rows)
	}
	f.calls++
	f.rows += rows
	state := make([]float32, rows)
	f.ops.Read(state, h)
	for i, v := range state {
		f.ops.Write(dst.Slice(i*len(f.table), (i+1)*len(f.table)), f.table[int(v)])
	}
	return nil
}

func newOps(t testing.TB, threads int) model.Ops {
	t.Helper()
	e, err := cpu.New(cpu.Options{Threads: threads})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(e.Close)
	return modelcpu.New(e)
}

func windows(vocab, n, ctx, scoreFrom int) *corpus.Set {
	rng := rand.New(rand.NewPCG(7, 7))
	s := &corpus.Set{Protocol: corpus.Raw, BOS: corpus.BOSNone, Context: ctx, Whole: true, TextTokens: n*ctx + 3}
	for range n {
		w := corpus.Window{ScoreFrom: scoreFrom}
		for range ctx {
			w.Tokens = append(w.Tokens, rng.IntN(vocab))
		}
		s.Windows = append(s.Windows, w)
	}
	return s
}

// logProbs is the log softmax, in float64.
func logProbs(logits []float32) []float64 {
	var sum float64
	for _, v := range logits {
		sum += math.Exp(float64(v))
	}
	p := make([]float64, len(logits))
	for i, v := range logits {
		p[i] = float64(v) - math.Log(sum)
	}
	return p
}

// plain computes a result by its definitions.
func plain(ref, m *fake, set *corpus.Set) (nll, stderr, refNLL, klMean, klMedian, top1 float64) {
	var n, xx float64
	var kls []float64
	for _, w := range set.Windows {
		for i := w.ScoreFrom; i < len(w.Tokens); i++ {
			p, q := logProbs(ref.table[w.Tokens[i-1]]), logProbs(m.table[w.Tokens[i-1]])
			x := -q[w.Tokens[i]]
			nll, xx, n = nll+x, xx+x*x, n+1
			refNLL -= p[w.Tokens[i]]
			var kl float64
			for v := range p {
				kl += math.Exp(p[v]) * (p[v] - q[v])
			}
			kls = append(kls, kl)
			klMean += kl
			if slices.Index(p, slices.Max(p)) == slices.Index(q, slices.Max(q)) {
				top1++
			}
		}
	}
	slices.Sort(kls)
	h := len(kls) / 2
	klMedian = (kls[h] + kls[len(kls)-1-h]) / 2
	stderr = math.Sqrt((xx/n - nll/n*nll/n) / (n - 1))
	return nll / n, stderr, refNLL / n, klMean / n, klMedian, top1 / n
}

// TestLogitBytes: of the model and of the reference, as much as is computed at a time.
func TestLogitBytes(t *testing.T) {
	if got := LogitBytes(newOps(t, 1)); got != 64<<20 {
		t.Errorf("got %d bytes", got)
	}
	if got := LogitBytes(other{}); got != 512<<20 {
		t.Errorf("on another device: got %d bytes", got)
	}
}

// other is a device that is not the host.
type other struct{ model.Ops }

func (other) Name() string { return "other" }

func TestRunAgainstDefinitions(t *testing.T) {
	for _, tt := range []struct {
		name                  string
		vocab, n, ctx, from   int
		sdModel, sdDifference float64
		wantIntervals         bool
	}{
		{"several windows", 37, 5, 40, 1, 2, 0.3, true},
		{"second half scored", 50, 4, 32, 17, 1, 1, true},
		{"one window", 20, 1, 50, 1, 3, 0.01, false},
		{"chunks of rows", 2100, 2, 4100, 1, 2, 0.1, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if tt.vocab > 1000 {
				racetest.Skip(t)
			}
			set := windows(tt.vocab, tt.n, tt.ctx, tt.from)
			ref := newFake(tt.vocab, 1, tt.sdModel)
			m := ref.near(2, tt.sdDifference)
			got, err := Run(context.Background(), ref, []Model{m}, set, Options{Ops: newOps(t, 2)})
			if err != nil {
				t.Fatal(err)
			}
			r := got[0]
			nll, se, refNLL, kl, median, top1 := plain(ref, m, set)
			for _, v := range []struct {
				name      string
				got, want float64
			}{
				{"nll", r.NLL, nll},
				{"ppl", r.PPL, math.Exp(nll)},
				{"ppl_stderr", r.PPLStderr, math.Exp(nll) * se},
				{"reference_ppl", r.ReferencePPL, math.Exp(refNLL)},
				{"ln_ratio", r.LnRatio, nll - refNLL},
				{"kl_mean", r.KLMean, kl},
				{"kl_median", r.KLMedian, median},
				{"top1", r.Top1, top1},
			} {
				if math.Abs(v.got-v.want) > 1e-5*math.Abs(v.want)+1e-7 {
					t.Errorf("%s: got %v, want %v", v.name, v.got, v.want)
				}
			}
			if r.Tokens != tt.n*tt.ctx || r.TokensScored != tt.n*(tt.ctx-tt.from) || r.Windows != tt.n || r.Vocab != tt.vocab {
				t.Errorf("counts: got %+v", r)
			}
			if (r.LnRatioCI != nil) != tt.wantIntervals {
				t.Errorf("interval: got %v, want one: %v", r.LnRatioCI, tt.wantIntervals)
			}
			if ci := r.LnRatioCI; ci != nil && !(ci[0] <= r.LnRatio && r.LnRatio <= ci[1]) {
				t.Errorf("ln_ratio %v lies outside of %v", r.LnRatio, *ci)
			}
			if len(r.WindowNLL) != tt.n || len(r.WindowKL) != tt.n {
				t.Errorf("got %d and %d window means, want %d", len(r.WindowNLL), len(r.WindowKL), tt.n)
			}
			if ref.rows != m.rows || ref.rows != r.TokensScored {
				t.Errorf("logits: got %d rows of the reference and %d of the model, want %d", ref.rows, m.rows, r.TokensScored)
			}
		})
	}
}

// A model is at no distance from itself, to the last bit.
// scoring are operations that find all scores at once.
type scoring struct{ model.Ops }

func (s scoring) Score(scores, logits, teacher model.Array, targets []int, vocab int) {
	n := len(targets)
	s.CrossEntropy(scores.Slice(0, n), nil, logits, targets, vocab, 1)
	s.ArgMax(scores.Slice(n, 2*n), logits, n, vocab)
	s.Zero(scores.Slice(2*n, 3*n))
	if teacher != nil {
		s.Divergence(scores.Slice(2*n, 3*n), nil, logits, teacher, n, vocab, 1)
	}
}

func TestScoresAtOnce(t *testing.T) {
	set := windows(30, 3, 25, 5)
	ref := newFake(30, 1, 2)
	m := ref.near(2, 0.5)
	for _, reference := range []Model{ref, nil} {
		var results [2]Result
		for i, ops := range []model.Ops{newOps(t, 2), scoring{newOps(t, 2)}} {
			r, err := Run(context.Background(), reference, []Model{m}, set, Options{Ops: ops})
			if err != nil {
				t.Fatal(err)
			}
			results[i] = r[0]
			results[i].TokensPerSecond = 0
		}
		if diff := cmp.Diff(results[0], results[1], cmpopts.IgnoreUnexported(Result{})); diff != "" {
			t.Errorf("one by one and at once (-/+), with a reference %v:\n%s", reference != nil, diff)
		}
	}
}

func TestIdenticalModels(t *testing.T) {
	ref := newFake(64, 1, 5)
	got, err := Run(context.Background(), ref, []Model{ref}, windows(64, 3, 30, 1), Options{Ops: newOps(t, 1)})
	if err != nil {
		t.Fatal(err)
	}
	r := got[0]
	if r.KLMean != 0 || r.KLP99 != 0 || r.LnRatio != 0 || r.Top1 != 1 || *r.LnRatioCI != [2]float64{0, 0} {
		t.Errorf("got %+v", *r.Comparison)
	}
}

// A candidate differs from one that is the reference itself as it differs from the
// reference, the other way round with the other sign, and not at all from itself.
func TestCompare(t *testing.T) {
	set := windows(64, 5, 30, 1)
	ref := newFake(64, 1, 2)
	got, err := Run(context.Background(), ref, []Model{ref, ref.near(2, 0.1), ref.near(3, 0.5)}, set, Options{Ops: newOps(t, 2), Seed: 5})
	if err != nil {
		t.Fatal(err)
	}
	want := func(r Result) Difference {
		return Difference{r.LnRatio, r.LnRatioCI, &Distance{r.KLMean, r.KLMeanCI, r.Top1 - 1, &[2]float64{r.Top1CI[0] - 1, r.Top1CI[1] - 1}}}
	}
	near := cmpopts.EquateApprox(0, 1e-12)
	for i, r := range got {
		if d := cmp.Diff(want(r), Compare(r, got[0], 5), near); d != "" {
			t.Errorf("candidate %d against the reference (-want +got):\n%s", i, d)
		}
	}
	a, b := got[1], got[2]
	ab, ba := Compare(a, b, 5), Compare(b, a, 5)
	if ab.LnRatio != -ba.LnRatio || ab.KLMean != a.KLMean-b.KLMean || ab.KLMean >= 0 || ab.KLMeanCI[1] >= 0 {
		t.Errorf("a against b: %+v %+v, b against a: %+v %+v", ab, ab.Distance, ba, ba.Distance)
	}
	if math.Abs(ab.LnRatioCI[0]+ba.LnRatioCI[1]) > 1e-12 {
		t.Errorf("intervals %v and %v", *ab.LnRatioCI, *ba.LnRatioCI)
	}
	if d := Compare(b, b, 5); d.LnRatio != 0 || *d.LnRatioCI != [2]float64{} || *d.KLMeanCI != [2]float64{} || *d.Top1CI != [2]float64{} {
		t.Errorf("b against itself: %+v %+v", d, d.Distance)
	}

	// Without a reference, and with one window.
	got, err = Run(context.Background(), nil, []Model{ref, ref.near(2, 0.1)}, windows(64, 1, 30, 1), Options{Ops: newOps(t, 1)})
	if err != nil {
		t.Fatal(err)
	}
	if d := Compare(got[0], got[1], 5); d.LnRatio != got[0].NLL-got[1].NLL || d.LnRatioCI != nil || d.Distance != nil {
		t.Errorf("got %+v", d)
	}
}

// Several candidates share the logits of the reference, and each gets what it
// gets alone.
func TestSeveralCandidates(t *testing.T) {
	set := windows(64, 3, 30, 1)
	ref := newFake(64, 1, 2)
	a, b := ref.near(2, 0.1), ref.near(3, 0.5)
	run := func(threads int, m ...Model) []Result {
		got, err := Run(context.Background(), ref, m, set, Options{Ops: newOps(t, threads), Seed: 5})
		if err != nil {
			t.Fatal(err)
		}
		return got
	}
	ref.calls = 0
	both := run(1, a, b)
	if ref.calls != 3 {
		t.Errorf("the reference computed %d chunks of logits, want 3", ref.calls)
	}
	same := cmp.Options{cmpopts.IgnoreFields(Result{}, "TokensPerSecond"), cmpopts.IgnoreUnexported(Result{})}
	alone := append(run(3, a), run(2, b)...)
	if d := cmp.Diff(alone, both, same); d != "" {
		t.Errorf("together (-alone +together):\n%s", d)
	}
}

func TestWithoutReference(t *testing.T) {
	m := newFake(30, 1, 1)
	var seen []Progress
	got, err := Run(context.Background(), nil, []Model{m}, windows(30, 2, 10, 1), Options{
		Ops: newOps(t, 2), Progress: func(p Progress) { seen = append(seen, p) },
	})
	if err != nil {
		t.Fatal(err)
	}
	if got[0].Comparison != nil {
		t.Errorf("got a comparison with nothing: %+v", got[0].Comparison)
	}
	if len(seen) != 2 || seen[1].Done != 2 || seen[1].Total != 2 || seen[1].NLL[0] != got[0].NLL {
		t.Errorf("progress: got %+v, want two steps that end with nll %v", seen, got[0].NLL)
	}
}

func TestJSON(t *testing.T) {
	ref := newFake(30, 1, 1)
	m := ref.near(2, 1)
	always := []string{"protocol", "bos", "ctx", "windows", "tokens", "tokens_scored", "text_tokens", "vocab", "nll", "ppl", "ppl_stderr", "device", "dtype", "tokens_per_second"}
	compared := []string{"reference_ppl", "ln_ratio", "kl_mean", "kl_median", "kl_p99", "top1", "ruined"}
	for _, tt := range []struct {
		name    string
		ref     Model
		windows int
		want    []string
	}{
		{"alone", nil, 2, always},
		{"one window", ref, 1, slices.Concat(always, compared)},
		{"compared", ref, 2, slices.Concat(always, compared, []string{"ln_ratio_ci", "kl_mean_ci", "top1_ci"})},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, err := Run(context.Background(), tt.ref, []Model{m}, windows(30, tt.windows, 10, 1), Options{Ops: newOps(t, 1)})
			if err != nil {
				t.Fatal(err)
			}
			data, err := json.Marshal(got[0])
			if err != nil {
				t.Fatal(err)
			}
			var keys map[string]any
			if err := json.Unmarshal(data, &keys); err != nil {
				t.Fatal(err)
			}
			var names []string
			for k := range keys {
				names = append(names, k)
			}
			sorted := cmpopts.SortSlices(func(a, b string) bool { return a < b })
			if d := cmp.Diff(tt.want, names, sorted); d != "" {
				t.Errorf("keys (-want +got):\n%s", d)
			}
			if keys["device"] != "cpu" || keys["protocol"] != "raw" {
				t.Errorf("got device %v and protocol %v", keys["device"], keys["protocol"])
			}
		})
	}
}

func TestErrors(t *testing.T) {
	good := newFake(30, 1, 1)
	with := func(v float64) *fake {
		f := newFake(30, 1, 1)
		for i := range f.table {
			f.table[i][4] = float32(v)
		}
		return f
	}
	broken := &fake{ops: good.ops, table: good.table, err: errors.New("boom")}
	for _, tt := range []struct {
		name       string
		ref        Model
		candidates []Model
		windows    int
		want       string
	}{
		{"no model", nil, nil, 1, "no model to evaluate"},
		{"no windows", nil, []Model{good}, 0, "no windows"},
		{"other vocabulary", good, []Model{newFake(31, 1, 1)}, 1, "model has a vocabulary of 31 tokens: want 30"},
		{"other vocabularies", nil, []Model{good, newFake(31, 1, 1)}, 1, "model 2 has a vocabulary of 31"},
		{"NaN", nil, []Model{with(math.NaN())}, 1, "window 1 of 1: model: logits at token 0 are not finite"},
		{"infinity", nil, []Model{good, with(math.Inf(1))}, 1, "model 2: logits at token 0 are not finite"},
		{"NaN in the reference", with(math.NaN()), []Model{good}, 1, "reference: logits at token 0 are not finite"},
		{"minus infinity, not in the reference", good, []Model{with(math.Inf(-1))}, 1, "not finite"},
		{"model fails", nil, []Model{broken}, 1, "window 1 of 1: model: boom"},
		{"reference fails", broken, []Model{good}, 1, "window 1 of 1: reference: boom"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, err := Run(context.Background(), tt.ref, tt.candidates, windows(30, tt.windows, 10, 1), Options{Ops: newOps(t, 2)})
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got %v, want %q", err, tt.want)
			}
		})
	}
}

func TestCancel(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	m := newFake(30, 1, 1)
	_, err := Run(ctx, nil, []Model{m}, windows(30, 3, 10, 1), Options{
		Ops: newOps(t, 1), Progress: func(Progress) { cancel() },
	})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want %v", err, context.Canceled)
	}
}

// The interval of a mean of many independent windows is that of the normal
// distribution.
func TestBootstrapInterval(t *testing.T) {
	racetest.Skip(t)
	rng := rand.New(rand.NewPCG(1, 1))
	var s sum
	parts := make([]part, 400)
	for i := range parts {
		parts[i] = part{n: 10, x: 10 * (3 + rng.NormFloat64())}
		s.windows = append(s.windows, part{})
		s.add(parts[i].x / 10)
	}
	got := bootstrap(1, parts)[0]
	for i, side := range []float64{-1.96, 1.96} {
		want := s.mean() + side*s.stderr()
		if math.Abs(got[i]-want) > 0.1*s.stderr() {
			t.Errorf("end %d: got %v, want about %v", i, got[i], want)
		}
	}
	if again := bootstrap(1, parts)[0]; again != got {
		t.Errorf("same seed: got %v, then %v", got, again)
	}
	if other := bootstrap(2, parts)[0]; other == got {
		t.Errorf("another seed gives the same interval %v", other)
	}
}

func TestPercentile(t *testing.T) {
	v := []float64{1, 2, 4, 8}
	for _, tt := range []struct{ p, want float64 }{{0, 1}, {0.5, 3}, {1, 8}, {0.25, 1.75}, {1. / 3, 2}} {
		if got := percentile(v, tt.p); math.Abs(got-tt.want) > 1e-12 {
			t.Errorf("percentile %v: got %v, want %v", tt.p, got, tt.want)
		}
	}
	if got := percentile([]float32{5}, 0.99); got != 5 {
		t.Errorf("of one value: got %v, want 5", got)
	}
}
