// Package eval measures language models on windows of text: perplexity, and
// against a reference model the Kullback-Leibler divergence, the agreement on
// the most likely token and the ratio of perplexities, with intervals.
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
// as many windows.
package eval

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/lutq/lutq/calib/corpus"
	"github.com/lutq/lutq/gemm/cpu"
)

// Model is a language model under evaluation.
type Model interface {
	// Vocab returns the number of logits of a token.
	Vocab() int
	// Hidden returns the states [len(tokens), hidden] that the output head
	// reads, for one window of tokens from position 0. They stay valid until
	// the next call.
	Hidden(ctx context.Context, tokens []int) ([]float32, error)
	// Logits applies the output head to rows states and writes [rows, Vocab].
	Logits(dst, h []float32, rows int) error
}

// Options of a run. Engine is required.
type Options struct {
	Engine   *cpu.Engine // reduces the logits
	Device   string      // what the models run on, for the report; "" is cpu
	Seed     uint64      // of the bootstrap
	Progress func(Progress)
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
	Tokens       int             `json:"tokens"`        // in the windows
	TokensScored int             `json:"tokens_scored"` // of those
	TextTokens   int             `json:"text_tokens"`   // in the whole text
	Vocab        int             `json:"vocab"`
	NLL          float64         `json:"nll"`
	PPL          float64         `json:"ppl"`
	PPLStderr    float64         `json:"ppl_stderr"` // 0 with a single scored token

	// Comparison is nil without a reference, and its keys are then absent.
	*Comparison

	Device string `json:"device"`
	// TokensPerSecond counts the time of this model alone, its output head
	// and the reduction of its logits included.
	TokensPerSecond float64 `json:"tokens_per_second"`

	WindowNLL []float64 `json:"-"` // mean of each window
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

	WindowReferenceNLL []float64 `json:"-"` // mean of each window
	WindowKL           []float64 `json:"-"` // mean of each window
}

// Run evaluates the candidates on the windows of a set, and against the
// reference unless that is nil. Each chunk of reference logits is computed
// once for all candidates. The results are in the order of the candidates and
// do not depend on the number of threads.
func Run(ctx context.Context, ref Model, candidates []Model, set *corpus.Set, o Options) ([]Result, error) {
	r, err := newRun(ref, candidates, set, o)
	if err != nil {
		return nil, err
	}
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

// chunkBytes bounds the logits of one model that exist at a time.
const chunkBytes = 32 << 20

// run is the state of one [Run].
type run struct {
	o          Options
	set        *corpus.Set
	ref        Model
	candidates []Model
	vocab      int
	rows       int // of logits computed at a time

	refLogits, logits []float32
	refRows, rowStats []rowStat   // of the chunk
	scratch           [][]float32 // a row of logits for each worker
	refTally          tally
	tallies           []tally
}

func newRun(ref Model, candidates []Model, set *corpus.Set, o Options) (*run, error) {
	switch {
	case len(candidates) == 0:
		return nil, errors.New("no model to evaluate")
	case len(set.Windows) == 0:
		return nil, errors.New("no windows to evaluate on")
	}
	if o.Device == "" {
		o.Device = "cpu"
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
	rows := max(chunkBytes/4/vocab, 1)
	r := &run{
		o: o, set: set, ref: ref, candidates: candidates, vocab: vocab,
		rows: min(rows, set.Context), tallies: make([]tally, len(candidates)),
		scratch: make([][]float32, o.Engine.Threads()),
	}
	r.logits = make([]float32, r.rows*vocab)
	r.rowStats = make([]rowStat, r.rows)
	if ref != nil {
		r.refLogits = make([]float32, r.rows*vocab)
		r.refRows = make([]rowStat, r.rows)
	}
	for i := range r.scratch {
		r.scratch[i] = make([]float32, vocab)
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
	var refHidden []float32
	if r.ref != nil {
		r.refTally.begin()
		var err error
		if refHidden, err = r.ref.Hidden(ctx, w.Tokens); err != nil {
			return fmt.Errorf("reference: %w", err)
		}
	}
	hidden := make([][]float32, len(r.candidates))
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
		if r.ref != nil {
			h := rowsOf(refHidden, len(w.Tokens), from-1, len(targets))
			if err := r.ref.Logits(r.refLogits, h, len(targets)); err != nil {
				return fmt.Errorf("reference: %w", err)
			}
			r.reduceReference(targets)
			if err := r.refTally.add(r.refRows[:len(targets)], from); err != nil {
				return fmt.Errorf("reference: %w", err)
			}
		}
		for i, c := range r.candidates {
			start := time.Now()
			h := rowsOf(hidden[i], len(w.Tokens), from-1, len(targets))
			if err := c.Logits(r.logits, h, len(targets)); err != nil {
				return fmt.Errorf("%s: %w", name(i, len(r.candidates)), err)
			}
			r.reduce(targets)
			if err := r.tallies[i].add(r.rowStats[:len(targets)], from); err != nil {
				return fmt.Errorf("%s: %w", name(i, len(r.candidates)), err)
			}
			r.tallies[i].elapsed += time.Since(start)
		}
	}
	return nil
}

// rowsOf returns n rows of the states [rows, width] from the first on.
func rowsOf(h []float32, rows, first, n int) []float32 {
	width := len(h) / rows
	return h[first*width : (first+n)*width]
}

// rowStat is what remains of a row of logits.
type rowStat struct {
	nll  float64
	lse  float64 // ln Σ exp
	top  int     // index of the largest logit, the first of equals
	kl   float64
	same bool // top is the reference's
}

func (r *run) reduceReference(targets []int) {
	r.o.Engine.Parallel(len(targets), func(_, i int) {
		r.refRows[i] = r.row(r.refLogits[i*r.vocab:(i+1)*r.vocab], targets[i])
	})
}

func (r *run) reduce(targets []int) {
	r.o.Engine.Parallel(len(targets), func(worker, i int) {
		logits := r.logits[i*r.vocab : (i+1)*r.vocab]
		s := r.row(logits, targets[i])
		if r.ref != nil {
			ref := r.refRows[i]
			refLogits := r.refLogits[i*r.vocab : (i+1)*r.vocab]
			s.kl = r.divergence(r.scratch[worker], refLogits, logits, ref.lse, s.lse)
			s.same = s.top == ref.top
		}
		r.rowStats[i] = s
	})
}

// row reduces one row of logits. Anything that is not finite shows in nll.
func (r *run) row(logits []float32, target int) rowStat {
	top := r.o.Engine.Max(logits)
	lse := float64(top) + math.Log(r.o.Engine.SumExp(logits, top))
	s := rowStat{lse: lse, nll: lse - float64(logits[target])}
	if r.ref != nil {
		for i, v := range logits {
			if v == top {
				s.top = i
				break
			}
		}
	}
	return s
}

// divergence returns KL(p_ref‖p) of two rows of logits whose log sums of
// exponentials are given. e is scratch.
//
// The difference of the two log probabilities is formed first, for each token
// by itself, so that what is summed is small where the models agree.
func (r *run) divergence(e, refLogits, logits []float32, refLSE, lse float64) float64 {
	r.o.Engine.ExpSum(e, refLogits, float32(refLSE))
	shift := refLSE - lse
	logits, refLogits = logits[:len(e)], refLogits[:len(e)]
	var kl, sum [4]float64 // independent chains of additions
	for i, p := range e {
		d := float64(refLogits[i]-logits[i]) - shift
		kl[i%4] += float64(p) * d
		sum[i%4] += float64(p)
	}
	// The probabilities sum to 1 but for the rounding of refLSE to float32.
	return (kl[0] + kl[1] + kl[2] + kl[3]) / (sum[0] + sum[1] + sum[2] + sum[3])
}
