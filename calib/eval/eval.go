// Package eval measures language models on windows of text. It computes perplexity, and against a reference model the
// Kullback-Leibler divergence, the share of tokens where both find the same most likely, and the ratio of perplexities,
// with intervals.
//
// # Definitions
//
// With p(t) the probability that a model gives to scored token t after the
// tokens before it in its window, and n the number of scored tokens:
//
//	nll        = −(1/n) Σ ln p(t)
//	ppl        = exp(nll)
//	ppl_stderr = ppl · √((E[x²] − E[x]²)/(n−1)),  x = −ln p(t)
//	ln_ratio   = nll − nll of the reference
//	kl(t)      = Σ_v p_ref(v) · (ln p_ref(v) − ln p(v)) over the whole vocabulary
//	top1       = share of scored tokens where both models' most likely token is the same
//
// ppl_stderr is llama.cpp's: it takes tokens for independent and describes the
// choice of the text, which two models share. What tells two models apart is
// ln_ratio with its interval: a paired bootstrap over windows, which keeps
// neighbouring tokens together, percentiles 2.5 and 97.5 of resampled sets of
// as many windows. Two candidates are compared the same way, see [Compare]: their
// intervals against the reference may overlap where that of the difference has no zero.
package eval

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/lutq/lutq/calib/corpus"
	"github.com/lutq/lutq/calib/model"
)

// Model is a language model under evaluation.
type Model interface {
	// Vocab returns the number of logits of a token.
	Vocab() int
	// Hidden returns the states [len(tokens), hidden] that the output head
	// reads, for one window of tokens from position 0. They stay valid until
	// the next call.
	Hidden(ctx context.Context, tokens []int) (model.Array, error)
	// Logits applies the output head to rows states and writes floats [rows, Vocab].
	Logits(dst, h model.Array, rows int) error
}

// Options of a run. Ops are required.
type Options struct {
	Ops      model.Ops // of the models; they reduce the logits
	DType    string    // of activations, for the report; "" is f32
	Seed     uint64    // of the bootstrap
	Progress func(Progress)
	Watch    Watcher // nil: nobody is told of tokens
}

// Progress is told after every window.
type Progress struct {
	Done, Total int       // windows
	NLL         []float64 // of each candidate, over the windows done
}

// Result is what a run found out about one model. Its JSON keys are stable.
type Result struct {
	Protocol     corpus.Protocol `json:"protocol"`
	BOS          corpus.BOS      `json:"bos"`
	Context      int             `json:"ctx"`
	Windows      int             `json:"windows"`
	Tokens       int             `json:"tokens"`                // in the windows
	TokensScored int             `json:"tokens_scored"`         // of those
	TextTokens   int             `json:"text_tokens,omitempty"` // in the whole text, 0 where that was not read
	Vocab        int             `json:"vocab"`
	NLL          float64         `json:"nll"`
	PPL          float64         `json:"ppl"`
	PPLStderr    float64         `json:"ppl_stderr"` // 0 with a single scored token

	// Comparison is nil without a reference, and its keys are then absent.
	*Comparison

	Device string `json:"device"`
	DType  string `json:"dtype"` // of activations
	// TokensPerSecond counts the time of this model alone, its output head
	// and the reduction of its logits included.
	TokensPerSecond float64 `json:"tokens_per_second"`

	WindowNLL []float64 `json:"-"` // mean of each window

	tally *tally
}

// Comparison holds a model against the reference on the same tokens. The
// intervals are of 95 %, and nil where there are fewer than two windows.
type Comparison struct {
	ReferencePPL float64     `json:"reference_ppl"`
	LnRatio      float64     `json:"ln_ratio"`
	LnRatioCI    *[2]float64 `json:"ln_ratio_ci,omitempty"`
	KLMean       float64     `json:"kl_mean"`
	KLMeanCI     *[2]float64 `json:"kl_mean_ci,omitempty"`
	KLMedian     float64     `json:"kl_median"`
	KLP99        float64     `json:"kl_p99"`
	Top1         float64     `json:"top1"`
	Top1CI       *[2]float64 `json:"top1_ci,omitempty"`
	Ruined       bool        `json:"ruined"` // beyond RuinKL or RuinRatio

	WindowReferenceNLL []float64 `json:"-"` // mean of each window
	WindowKL           []float64 `json:"-"` // mean of each window
}

// RuinKL and RuinRatio are the mean Kullback-Leibler divergence from the original, in nats, and the perplexity over
// the original's, above which a model is ruined. Of five models that were rounded to 3 bits and more the median had a
// ratio of 1.8 at most in the worst table, and of 2.7 at least in the best of 2 bits; at a divergence of 1 what the
// original says is e times less likely, token by token. package quantize's NOTES.md has the numbers.
const (
	RuinKL    = 1
	RuinRatio = 2
)

// Run evaluates the candidates on the windows of a set, and against the
// reference unless that is nil. Each chunk of reference logits is computed
// once for all candidates. The results are in the order of the candidates and
// do not depend on the number of threads.
func Run(ctx context.Context, ref Model, candidates []Model, set *corpus.Set, o Options) ([]Result, error) {
	r, err := newRun(ref, candidates, set, o)
	if err != nil {
		return nil, err
	}
	defer r.free()
	for i, w := range set.Windows {
		if err := r.window(ctx, w); err != nil {
			if ctx.Err() != nil {
				return nil, ctx.Err()
			}
			return nil, fmt.Errorf("window %d of %d: %w", i+1, len(set.Windows), err)
		}
		if o.Progress != nil {
			p := Progress{Done: i + 1, Total: len(set.Windows), NLL: make([]float64, len(candidates))}
			for c := range candidates {
				p.NLL[c] = r.tallies[c].nll.mean()
			}
			o.Progress(p)
		}
	}
	return r.results(), nil
}

// chunkBytes bounds the logits of one model that exist at a time. Other devices
// have more memory bandwidth than the host, and want larger products.
const (
	chunkBytes       = 32 << 20
	deviceChunkBytes = 256 << 20
)

// chunkOf returns the bound for a device.
func chunkOf(ops model.Ops) int {
	if ops.Name() == "cpu" {
		return chunkBytes
	}
	return deviceChunkBytes
}

// LogitBytes returns how many bytes of logits exist at a time, at most, where models are held against a reference.
func LogitBytes(ops model.Ops) int64 { return 2 * int64(chunkOf(ops)) }

// run is the state of one [Run].
type run struct {
	o          Options
	set        *corpus.Set
	ref        Model
	candidates []Model
	vocab      int
	rows       int // of logits computed at a time

	// Of the chunk at hand: floats [rows, vocab] and [3, rows].
	refLogits, logits model.Array
	scores            model.Array
	refTop            []float32

	refTally tally
	tallies  []tally
}

func newRun(ref Model, candidates []Model, set *corpus.Set, o Options) (*run, error) {
	switch {
	case len(candidates) == 0:
		return nil, errors.New("no model to evaluate")
	case len(set.Windows) == 0:
		return nil, errors.New("no windows to evaluate on")
	}
	vocab := candidates[0].Vocab()
	if ref != nil {
		vocab = ref.Vocab()
	}
	for i, c := range candidates {
		if v := c.Vocab(); v != vocab {
			return nil, fmt.Errorf("%s has a vocabulary of %d tokens: want %d as the others", name(i, len(candidates)), v, vocab)
		}
	}
	if o.DType == "" {
		o.DType = "f32"
	}
	rows := max(chunkOf(o.Ops)/4/vocab, 1)
	r := &run{
		o: o, set: set, ref: ref, candidates: candidates, vocab: vocab,
		rows: min(rows, set.Context), tallies: make([]tally, len(candidates)),
	}
	r.logits, r.scores = o.Ops.Floats(r.rows*vocab), o.Ops.Floats(3*r.rows)
	if ref != nil {
		r.refLogits = o.Ops.Floats(r.rows * vocab)
	}
	if err := o.Ops.Err(); err != nil {
		r.free()
		return nil, err
	}
	return r, nil
}

// name refers to candidate i of n in a message.
func name(i, n int) string {
	if n == 1 {
		return "model"
	}
	return fmt.Sprintf("model %d", i+1)
}

// window adds one window to the tallies.
func (r *run) window(ctx context.Context, w corpus.Window) error {
	if w.ScoreFrom < 1 || w.Targets() < 1 {
		return fmt.Errorf("%d tokens scored from %d", len(w.Tokens), w.ScoreFrom)
	}
	var refHidden model.Array
	if r.ref != nil {
		r.refTally.begin()
		var err error
		if refHidden, err = r.ref.Hidden(ctx, w.Tokens); err != nil {
			return fmt.Errorf("reference: %w", err)
		}
	}
	hidden := make([]model.Array, len(r.candidates))
	for i, c := range r.candidates {
		r.tallies[i].begin()
		start := time.Now()
		var err error
		if hidden[i], err = c.Hidden(ctx, w.Tokens); err != nil {
			return fmt.Errorf("%s: %w", name(i, len(r.candidates)), err)
		}
		r.tallies[i].elapsed += time.Since(start)
	}
	// The states at positions from−1 … len−2 predict the targets from … len−1.
	for from := w.ScoreFrom; from < len(w.Tokens); from += r.rows {
		targets := w.Tokens[from:min(from+r.rows, len(w.Tokens))]
		if err := ctx.Err(); err != nil {
			return err
		}
		var refRows []rowStat
		if r.ref != nil {
			h := rowsOf(refHidden, len(w.Tokens), from-1, len(targets))
			if err := r.ref.Logits(r.refLogits.Slice(0, len(targets)*r.vocab), h, len(targets)); err != nil {
				return fmt.Errorf("reference: %w", err)
			}
			var err error
			if refRows, err = r.reduceReference(targets); err == nil {
				err = r.refTally.add(refRows, from)
			}
			if err != nil {
				return fmt.Errorf("reference: %w", err)
			}
		}
		for i, c := range r.candidates {
			start := time.Now()
			h := rowsOf(hidden[i], len(w.Tokens), from-1, len(targets))
			if err := c.Logits(r.logits.Slice(0, len(targets)*r.vocab), h, len(targets)); err != nil {
				return fmt.Errorf("%s: %w", name(i, len(r.candidates)), err)
			}
			rows, err := r.reduce(targets)
			if err == nil {
				err = r.tallies[i].add(rows, from)
			}
			if err != nil {
				return fmt.Errorf("%s: %w", name(i, len(r.candidates)), err)
			}
			r.tallies[i].elapsed += time.Since(start)
			if err := r.watch(i, from, targets, rows, refRows); err != nil {
				return err
			}
		}
	}
	return nil
}

// rowsOf returns n rows of the states [rows, width] from the first on.
func rowsOf(h model.Array, rows, first, n int) model.Array {
	width := h.Len() / rows
	return h.Slice(first*width, (first+n)*width)
}

// free gives the memory of the chunks back.
func (r *run) free() { r.o.Ops.Free(r.refLogits, r.logits, r.scores) }

// rowStat is what remains of a row of logits.
type rowStat struct {
	nll, kl float64
	same    bool // the most likely token is the reference's
}

// reduceReference reduces the reference's logits for some targets.
func (r *run) reduceReference(targets []int) ([]rowStat, error) {
	s := r.score(r.refLogits, nil, targets)
	r.refTop = s.best
	return s.rows(), r.o.Ops.Err()
}

// reduce reduces a candidate's logits, and compares them with the reference's.
func (r *run) reduce(targets []int) ([]rowStat, error) {
	s := r.score(r.logits, r.refLogits, targets)
	rows := s.rows()
	if r.ref != nil {
		for i, v := range s.kl {
			rows[i].kl, rows[i].same = float64(v), s.best[i] == r.refTop[i]
		}
	}
	return rows, r.o.Ops.Err()
}

// scores are what remains of the logits for some targets: −ln p of each, and where there is a reference the most likely token,
// the first of equals, and the divergence from the reference's. Logits that are not finite show in them.
type scores struct{ nll, best, kl []float32 }

func (s *scores) rows() []rowStat {
	rows := make([]rowStat, len(s.nll))
	for i, v := range s.nll {
		rows[i].nll = float64(v)
	}
	return rows
}

// scorer is implemented by the operations of devices that find all scores in one pass over the logits.
type scorer interface {
	// Score writes to scores, floats [3, rows], what CrossEntropy, ArgMax and Divergence find in rows of vocab logits, floats; that
	// of Divergence is 0 where teacher is nil.
	Score(scores, logits, teacher model.Array, targets []int, vocab int)
}

// score reduces logits. teacher, those of the reference, may be nil.
func (r *run) score(logits, teacher model.Array, targets []int) scores {
	n, ops := len(targets), r.o.Ops
	logits = logits.Slice(0, n*r.vocab)
	if teacher != nil {
		teacher = teacher.Slice(0, n*r.vocab)
	}
	if one, ok := ops.(scorer); ok {
		all := r.scores.Slice(0, 3*n)
		one.Score(all, logits, teacher, targets, r.vocab)
		v := r.read(all)
		return scores{v[:n], v[n : 2*n], v[2*n:]}
	}
	stat := r.scores.Slice(0, n)
	ops.CrossEntropy(stat, nil, logits, targets, r.vocab, 1)
	s := scores{nll: r.read(stat)}
	if r.ref == nil {
		return s
	}
	ops.ArgMax(stat, logits, n, r.vocab)
	s.best = r.read(stat)
	if teacher != nil {
		ops.Divergence(stat, nil, logits, teacher, n, r.vocab, 1)
		s.kl = r.read(stat)
	}
	return s
}

func (r *run) read(a model.Array) []float32 {
	v := make([]float32, a.Len())
	r.o.Ops.Read(v, a)
	return v
}
