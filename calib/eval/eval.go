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
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

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
	Beside   []Replica // the same models on further devices, among which windows are divided
	DType    string    // of activations, for the report; "" is f32
	Seed     uint64    // of the bootstrap
	Progress func(Progress)
	Watch    Watcher // nil: nobody is told of tokens
}

// Replica is the models of a run once more, on a device of their own.
type Replica struct {
	Ops        model.Ops
	Ref        Model // nil where the run has none
	Candidates []Model
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
// do not depend on the number of threads, nor on that of devices of one kind.
func Run(ctx context.Context, ref Model, candidates []Model, set *corpus.Set, o Options) ([]Result, error) {
	r, err := newRun(candidates, set, o)
	if err != nil {
		return nil, err
	}
	r.compared = ref != nil
	var devices []*device
	defer func() {
		for _, d := range devices {
			d.free()
		}
	}()
	for i, on := range append([]Replica{{o.Ops, ref, candidates}}, o.Beside...) {
		d, err := r.device(i, on)
		if err != nil {
			return nil, r.named(on.Ops, err)
		}
		devices = append(devices, d)
	}
	group, inner := errgroup.WithContext(ctx)
	defer context.AfterFunc(inner, r.wake)()
	for _, d := range devices {
		group.Go(func() error { return d.windows(inner) })
	}
	if err := group.Wait(); err != nil {
		return nil, cmp.Or(ctx.Err(), err)
	}
	return r.results(), nil
}

// named says on which of several devices something failed.
func (r *run) named(ops model.Ops, err error) error {
	if len(r.o.Beside) == 0 {
		return err
	}
	return model.On(ops, err)
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
	o        Options
	set      *corpus.Set
	vocab    int
	rows     int  // of logits computed at a time
	compared bool // with a reference

	refTally tally
	tallies  []tally

	mu      sync.Mutex
	turn    sync.Cond         // told when next moves on, or a device fails
	found   []*found          // of windows that are not added up yet
	next    int               // window to be added up
	elapsed [][]time.Duration // of each candidate on each device
}

// found is what a device found out about a window.
type found struct {
	window int
	ref    []rowStat   // of all scored tokens
	rows   [][]rowStat // likewise, of each candidate
}

// device is where some of the windows are evaluated.
type device struct {
	*run
	Replica
	index int

	// Of the chunk at hand: floats [rows, vocab] and [3, rows].
	refLogits, logits model.Array
	scores            model.Array
	refTop            []float32
}

func newRun(candidates []Model, set *corpus.Set, o Options) (*run, error) {
	switch {
	case len(candidates) == 0:
		return nil, errors.New("no model to evaluate")
	case len(set.Windows) == 0:
		return nil, errors.New("no windows to evaluate on")
	}
	if o.DType == "" {
		o.DType = "f32"
	}
	r := &run{
		o: o, set: set, vocab: candidates[0].Vocab(), tallies: make([]tally, len(candidates)),
		found: make([]*found, len(set.Windows)),
	}
	r.turn.L = &r.mu
	r.rows = min(max(chunkOf(o.Ops)/4/r.vocab, 1), set.Context)
	return r, nil
}

// device prepares a device.
func (r *run) device(index int, on Replica) (*device, error) {
	if len(on.Candidates) != len(r.tallies) || (on.Ref != nil) != r.compared {
		return nil, fmt.Errorf("%d models on a device: want %d", len(on.Candidates), len(r.tallies))
	}
	vocab := r.vocab
	if on.Ref != nil {
		vocab = on.Ref.Vocab()
	}
	for i, c := range on.Candidates {
		if v := c.Vocab(); v != vocab {
			return nil, fmt.Errorf("%s has a vocabulary of %d tokens: want %d as the others", name(i, len(on.Candidates)), v, vocab)
		}
	}
	d := &device{run: r, Replica: on, index: index}
	d.logits, d.scores = on.Ops.Floats(r.rows*vocab), on.Ops.Floats(3*r.rows)
	if on.Ref != nil {
		d.refLogits = on.Ops.Floats(r.rows * vocab)
	}
	r.elapsed = append(r.elapsed, make([]time.Duration, len(on.Candidates)))
	if err := on.Ops.Err(); err != nil {
		d.free()
		return nil, err
	}
	return d, nil
}

// windows evaluates the device's share of the windows: one of as many as there are devices.
func (d *device) windows(ctx context.Context) error {
	all := d.set.Windows
	for i := d.index; i < len(all); i += len(d.o.Beside) + 1 {
		of, err := d.window(ctx, i)
		if err != nil {
			return d.named(d.Ops, fmt.Errorf("window %d of %d: %w", i+1, len(all), err))
		}
		d.add(of)
	}
	return nil
}

// add adds up what was found out about windows, in their order.
func (r *run) add(of *found) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for r.found[of.window] = of; r.next < len(r.found) && r.found[r.next] != nil; r.next++ {
		of := r.found[r.next]
		if r.compared {
			r.refTally.add(of.ref)
		}
		for c := range r.tallies {
			r.tallies[c].add(of.rows[c])
		}
		of.ref, of.rows = nil, nil
		if r.o.Progress != nil {
			p := Progress{Done: r.next + 1, Total: len(r.found), NLL: make([]float64, len(r.tallies))}
			for c := range r.tallies {
				p.NLL[c] = r.tallies[c].nll.mean()
			}
			r.o.Progress(p)
		}
	}
	r.turn.Broadcast()
}

// wake has devices look again whether they have to go on.
func (r *run) wake() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.turn.Broadcast()
}

// wait waits until all windows before one have been added up.
func (r *run) wait(ctx context.Context, window int) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	for r.next != window && ctx.Err() == nil {
		r.turn.Wait()
	}
	return ctx.Err()
}

// name refers to candidate i of n in a message.
func name(i, n int) string {
	if n == 1 {
		return "model"
	}
	return fmt.Sprintf("model %d", i+1)
}

// window evaluates a window. Where a watcher is told of tokens, windows are scored one after the other.
func (d *device) window(ctx context.Context, index int) (*found, error) {
	w := d.set.Windows[index]
	if w.ScoreFrom < 1 || w.Targets() < 1 {
		return nil, fmt.Errorf("%d tokens scored from %d", len(w.Tokens), w.ScoreFrom)
	}
	of := &found{window: index, rows: make([][]rowStat, len(d.Candidates))}
	var refHidden model.Array
	if d.Ref != nil {
		var err error
		if refHidden, err = d.Ref.Hidden(ctx, w.Tokens); err != nil {
			return nil, fmt.Errorf("reference: %w", err)
		}
	}
	hidden := make([]model.Array, len(d.Candidates))
	for i, c := range d.Candidates {
		start := time.Now()
		var err error
		if hidden[i], err = c.Hidden(ctx, w.Tokens); err != nil {
			return nil, fmt.Errorf("%s: %w", name(i, len(d.Candidates)), err)
		}
		d.elapsed[d.index][i] += time.Since(start)
	}
	if d.o.Watch != nil {
		if err := d.wait(ctx, index); err != nil {
			return nil, err
		}
	}
	// The states at positions from−1 … len−2 predict the targets from … len−1.
	for from := w.ScoreFrom; from < len(w.Tokens); from += d.rows {
		targets := w.Tokens[from:min(from+d.rows, len(w.Tokens))]
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		var refRows []rowStat
		if d.Ref != nil {
			h := rowsOf(refHidden, len(w.Tokens), from-1, len(targets))
			if err := d.Ref.Logits(d.refLogits.Slice(0, len(targets)*d.vocab), h, len(targets)); err != nil {
				return nil, fmt.Errorf("reference: %w", err)
			}
			var err error
			if refRows, err = d.reduceReference(targets); err == nil {
				err = checkRows(refRows, from)
			}
			if err != nil {
				return nil, fmt.Errorf("reference: %w", err)
			}
			of.ref = append(of.ref, refRows...)
		}
		for i, c := range d.Candidates {
			start := time.Now()
			h := rowsOf(hidden[i], len(w.Tokens), from-1, len(targets))
			if err := c.Logits(d.logits.Slice(0, len(targets)*d.vocab), h, len(targets)); err != nil {
				return nil, fmt.Errorf("%s: %w", name(i, len(d.Candidates)), err)
			}
			rows, err := d.reduce(targets)
			if err == nil {
				err = checkRows(rows, from)
			}
			if err != nil {
				return nil, fmt.Errorf("%s: %w", name(i, len(d.Candidates)), err)
			}
			of.rows[i] = append(of.rows[i], rows...)
			d.elapsed[d.index][i] += time.Since(start)
			if err := d.watch(i, index, from, targets, rows, refRows); err != nil {
				return nil, err
			}
		}
	}
	return of, nil
}

// rowsOf returns n rows of the states [rows, width] from the first on.
func rowsOf(h model.Array, rows, first, n int) model.Array {
	width := h.Len() / rows
	return h.Slice(first*width, (first+n)*width)
}

// free gives the memory of the chunks back.
func (d *device) free() { d.Ops.Free(d.refLogits, d.logits, d.scores) }

// rowStat is what remains of a row of logits.
type rowStat struct {
	nll, kl float64
	same    bool // the most likely token is the reference's
}

// reduceReference reduces the reference's logits for some targets.
func (d *device) reduceReference(targets []int) ([]rowStat, error) {
	s := d.score(d.refLogits, nil, targets)
	d.refTop = s.best
	return s.rows(), d.Ops.Err()
}

// reduce reduces a candidate's logits, and compares them with the reference's.
func (d *device) reduce(targets []int) ([]rowStat, error) {
	s := d.score(d.logits, d.refLogits, targets)
	rows := s.rows()
	if d.Ref != nil {
		for i, v := range s.kl {
			rows[i].kl, rows[i].same = float64(v), s.best[i] == d.refTop[i]
		}
	}
	return rows, d.Ops.Err()
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
func (d *device) score(logits, teacher model.Array, targets []int) scores {
	n, ops := len(targets), d.Ops
	logits = logits.Slice(0, n*d.vocab)
	if teacher != nil {
		teacher = teacher.Slice(0, n*d.vocab)
	}
	if one, ok := ops.(scorer); ok {
		all := d.scores.Slice(0, 3*n)
		one.Score(all, logits, teacher, targets, d.vocab)
		v := d.read(all)
		return scores{v[:n], v[n : 2*n], v[2*n:]}
	}
	stat := d.scores.Slice(0, n)
	ops.CrossEntropy(stat, nil, logits, targets, d.vocab, 1)
	s := scores{nll: d.read(stat)}
	if d.Ref == nil {
		return s
	}
	ops.ArgMax(stat, logits, n, d.vocab)
	s.best = d.read(stat)
	if teacher != nil {
		ops.Divergence(stat, nil, logits, teacher, n, d.vocab, 1)
		s.kl = d.read(stat)
	}
	return s
}

func (d *device) read(a model.Array) []float32 {
	v := make([]float32, a.Len())
	d.Ops.Read(v, a)
	return v
}
