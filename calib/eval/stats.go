package eval

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/lutq/lutq/calib/model"
)

// sum is a running sum of values and of their squares.
type sum struct {
	n       int
	x, xx   float64
	windows []part
}

// part is the share of one window in a sum.
type part struct {
	n int
	x float64
}

func (s *sum) add(x float64) {
	s.n++
	s.x += x
	s.xx += x * x
	w := &s.windows[len(s.windows)-1]
	w.n++
	w.x += x
}

func (s *sum) mean() float64 { return s.x / float64(s.n) }

// stderr is the standard error of the mean of independent values.
func (s *sum) stderr() float64 {
	if s.n < 2 {
		return 0
	}
	m := s.mean()
	return math.Sqrt(max(s.xx/float64(s.n)-m*m, 0) / float64(s.n-1))
}

// windowMeans returns the mean of each window.
func (s *sum) windowMeans() []float64 {
	m := make([]float64, len(s.windows))
	for i, w := range s.windows {
		m[i] = w.x / float64(w.n)
	}
	return m
}

// tally gathers the scored tokens of one model.
type tally struct {
	nll, kl, same sum
	kls           []float32 // of each token
}

// checkRows reports logits that are not finite in the rows of a chunk, whose first target is token from of the window.
func checkRows(rows []rowStat, from int) error {
	for i, r := range rows {
		if !finite(r.nll) || !finite(r.kl) {
			return fmt.Errorf("logits at token %d are %w", from+i-1, model.ErrNotFinite)
		}
	}
	return nil
}

// add takes in the rows of a window.
func (t *tally) add(rows []rowStat) {
	for _, s := range []*sum{&t.nll, &t.kl, &t.same} {
		s.windows = append(s.windows, part{})
	}
	for _, r := range rows {
		t.nll.add(r.nll)
		t.kl.add(r.kl)
		t.kls = append(t.kls, float32(r.kl))
		agree := 0.
		if r.same {
			agree = 1
		}
		t.same.add(agree)
	}
}

func finite(x float64) bool { return !math.IsNaN(x) && !math.IsInf(x, 0) }

// perplexity returns exp(nll), held below infinity, which JSON cannot write.
func perplexity(nll float64) float64 { return min(math.Exp(nll), math.MaxFloat64) }

// results closes the tallies.
func (r *run) results() []Result {
	textTokens := 0
	if r.set.Whole {
		textTokens = r.set.TextTokens
	}
	out := make([]Result, len(r.tallies))
	for i := range out {
		t := &r.tallies[i]
		ppl := perplexity(t.nll.mean())
		out[i] = Result{
			Protocol: r.set.Protocol, BOS: r.set.BOS, Context: r.set.Context,
			Windows: len(r.set.Windows), Tokens: r.set.Tokens(), TokensScored: t.nll.n,
			TextTokens: textTokens, Vocab: r.vocab,
			NLL: t.nll.mean(), PPL: ppl, PPLStderr: min(ppl*t.nll.stderr(), math.MaxFloat64),
			Device: r.o.Ops.Name(), DType: r.o.DType,
			WindowNLL: t.nll.windowMeans(), tally: t,
		}
		var longest time.Duration
		for _, of := range r.elapsed {
			longest = max(longest, of[i])
		}
		if s := longest.Seconds(); s > 0 {
			out[i].TokensPerSecond = float64(r.set.Tokens()) / s
		}
		if r.compared {
			out[i].Comparison = t.compare(&r.refTally, r.o.Seed)
		}
	}
	return out
}

func (t *tally) compare(ref *tally, seed uint64) *Comparison {
	c := &Comparison{
		ReferencePPL:       perplexity(ref.nll.mean()),
		LnRatio:            t.nll.mean() - ref.nll.mean(),
		KLMean:             t.kl.mean(),
		Top1:               t.same.mean(),
		WindowReferenceNLL: ref.nll.windowMeans(),
		WindowKL:           t.kl.windowMeans(),
	}
	c.Ruined = c.KLMean > RuinKL || c.LnRatio > math.Log(RuinRatio)
	slices.Sort(t.kls)
	c.KLMedian, c.KLP99 = percentile(t.kls, 0.5), percentile(t.kls, 0.99)
	if len(t.nll.windows) < 2 {
		return c
	}
	ci := bootstrap(seed, differences(&t.nll, &ref.nll), t.kl.windows, t.same.windows)
	c.LnRatioCI, c.KLMeanCI, c.Top1CI = &ci[0], &ci[1], &ci[2]
	return c
}

// differences returns a − b by window.
func differences(a, b *sum) []part {
	d := make([]part, len(a.windows))
	for i, w := range a.windows {
		d[i] = part{n: w.n, x: w.x - b.windows[i].x}
	}
	return d
}

// Difference is what one model has more than another on the same tokens. The
// intervals are of 95 %, paired by window, and nil where there are fewer than two.
type Difference struct {
	LnRatio   float64     `json:"ln_ratio"` // of the perplexities
	LnRatioCI *[2]float64 `json:"ln_ratio_ci,omitempty"`

	// Against the reference both have; nil where there is none.
	*Distance
}

// Distance is what one model is further from the reference than another.
type Distance struct {
	KLMean   float64     `json:"kl_mean_difference"`
	KLMeanCI *[2]float64 `json:"kl_mean_difference_ci,omitempty"`
	Top1     float64     `json:"top1_difference"`
	Top1CI   *[2]float64 `json:"top1_difference_ci,omitempty"`
}

// Compare holds model a against model b, two results of one [Run].
func Compare(a, b Result, seed uint64) Difference {
	x, y := a.tally, b.tally
	d := Difference{LnRatio: x.nll.mean() - y.nll.mean()}
	quantities := [][]part{differences(&x.nll, &y.nll)}
	if a.Comparison != nil {
		d.Distance = &Distance{KLMean: x.kl.mean() - y.kl.mean(), Top1: x.same.mean() - y.same.mean()}
		quantities = append(quantities, differences(&x.kl, &y.kl), differences(&x.same, &y.same))
	}
	if len(x.nll.windows) < 2 {
		return d
	}
	ci := bootstrap(seed, quantities...)
	d.LnRatioCI = &ci[0]
	if d.Distance != nil {
		d.KLMeanCI, d.Top1CI = &ci[1], &ci[2]
	}
	return d
}

// resamples is the number of bootstrap samples.
const resamples = 10_000

// bootstrap returns 95 % percentile intervals of the mean per token of several
// quantities that are known by window. Each sample draws as many windows as
// there are, with replacement, the same ones for all quantities.
func bootstrap(seed uint64, quantities ...[]part) [][2]float64 {
	rng := rand.New(rand.NewPCG(seed, 0))
	windows := len(quantities[0])
	means := make([][]float64, len(quantities))
	for q := range means {
		means[q] = make([]float64, resamples)
	}
	draw := make([]int, windows)
	for b := range resamples {
		for i := range draw {
			draw[i] = rng.IntN(windows)
		}
		for q, parts := range quantities {
			var total part
			for _, w := range draw {
				total.n += parts[w].n
				total.x += parts[w].x
			}
			means[q][b] = total.x / float64(total.n)
		}
	}
	intervals := make([][2]float64, len(quantities))
	for q, m := range means {
		slices.Sort(m)
		intervals[q] = [2]float64{percentile(m, 0.025), percentile(m, 0.975)}
	}
	return intervals
}

// percentile interpolates between the two nearest of sorted values.
func percentile[T float32 | float64](sorted []T, p float64) float64 {
	at := p * float64(len(sorted)-1)
	i := int(at)
	if i+1 >= len(sorted) {
		return float64(sorted[len(sorted)-1])
	}
	lo, hi := float64(sorted[i]), float64(sorted[i+1])
	return lo + (at-float64(i))*(hi-lo)
}
