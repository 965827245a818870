package tasks

import (
	"fmt"
	"math"
	"slices"
)

// Result is how a model did on a task. Its JSON keys are stable.
type Result struct {
	Items          int     `json:"items"`
	Shots          int     `json:"shots"`
	Accuracy       float64 `json:"accuracy"`
	AccuracyStderr float64 `json:"accuracy_stderr"` // 0 of a single item

	// Of tasks with choices.
	AccuracyNorm       *float64 `json:"accuracy_norm,omitempty"`
	AccuracyNormStderr *float64 `json:"accuracy_norm_stderr,omitempty"`

	// Of tasks with one continuation. The standard error is that of the mean log-likelihood times the perplexity.
	Perplexity       *float64 `json:"perplexity,omitempty"`
	PerplexityStderr *float64 `json:"perplexity_stderr,omitempty"`

	Tokens          int     `json:"tokens"` // that were read
	TokensPerSecond float64 `json:"tokens_per_second"`

	Chosen []Choice `json:"-"` // by item
}

// Choice is what a model answers to an item.
type Choice struct {
	Answer, AnswerNorm int  // of the choices
	Right, RightNorm   bool // without choices both say that greedy decoding writes it
	LogLikelihood      float64
}

// Judge says how a model did by its answers.
func (t *Task) Judge(a *Answers) *Result {
	r := &Result{Items: len(t.Items), Shots: t.Shots, Tokens: a.Tokens}
	if s := a.Elapsed.Seconds(); s > 0 {
		r.TokensPerSecond = float64(a.Tokens) / s
	}
	for i, item := range t.Items {
		r.Chosen = append(r.Chosen, t.choose(item, a.Likelihoods[i]))
	}
	r.Accuracy, r.AccuracyStderr = mean(r.values(isRight))
	if t.One {
		nll, stderr := mean(r.values(func(c Choice) float64 { return -c.LogLikelihood }))
		ppl := min(math.Exp(nll), math.MaxFloat64)
		stderr = min(ppl*stderr, math.MaxFloat64)
		r.Perplexity, r.PerplexityStderr = &ppl, &stderr
	} else {
		norm, stderr := mean(r.values(isRightNorm))
		r.AccuracyNorm, r.AccuracyNormStderr = &norm, &stderr
	}
	return r
}

func (t *Task) choose(item Item, said []Likelihood) Choice {
	if t.One {
		return Choice{Right: said[0].Greedy, RightNorm: said[0].Greedy, LogLikelihood: said[0].Sum}
	}
	var c Choice
	per := func(i int) float64 { return said[i].Sum / float64(item.Requests[i].Characters) }
	for i := range said {
		if said[i].Sum > said[c.Answer].Sum {
			c.Answer = i
		}
		if per(i) > per(c.AnswerNorm) {
			c.AnswerNorm = i
		}
	}
	c.Right, c.RightNorm = slices.Contains(item.Right, c.Answer), slices.Contains(item.Right, c.AnswerNorm)
	c.LogLikelihood = said[item.Right[0]].Sum
	return c
}

func (r *Result) values(of func(Choice) float64) []float64 {
	x := make([]float64, len(r.Chosen))
	for i, c := range r.Chosen {
		x[i] = of(c)
	}
	return x
}

func number(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

func isRight(c Choice) float64     { return number(c.Right) }
func isRightNorm(c Choice) float64 { return number(c.RightNorm) }

// mean returns the mean of values and its standard error, 0 of fewer than two.
func mean(x []float64) (m, stderr float64) {
	n := float64(len(x))
	for _, v := range x {
		m += v
	}
	m /= n
	if n < 2 {
		return m, 0
	}
	var ss float64
	for _, v := range x {
		ss += (v - m) * (v - m)
	}
	return m, math.Sqrt(ss / (n - 1) / n)
}

// Difference is what one model has more than another on the same items. Intervals are of 95 %.
type Difference struct {
	Difference float64    `json:"difference"` // of accuracy
	Interval   [2]float64 `json:"interval"`
	// P is that of McNemar's exact test: how likely a difference as large or larger is where both models are as good.
	P float64 `json:"mcnemar_p"`

	DifferenceNorm *float64    `json:"difference_norm,omitempty"`
	IntervalNorm   *[2]float64 `json:"interval_norm,omitempty"`

	// Of tasks with one continuation: the logarithm of the ratio of perplexities.
	LnRatio   *float64    `json:"ln_ratio,omitempty"`
	LnRatioCI *[2]float64 `json:"ln_ratio_ci,omitempty"`

	// SameAnswer is the share of items that both answer alike: with the same choice, or both or neither by greedy decoding.
	SameAnswer float64 `json:"same_answer"`
}

// Compare holds model a against model b, item by item. Intervals of differences of accuracy are Newcombe's of paired
// proportions (Statistics in Medicine 17, 1998, method 10); that of ln_ratio is 1.96 standard errors of the mean difference.
func Compare(a, b *Result) (Difference, error) {
	if len(a.Chosen) != len(b.Chosen) || len(a.Chosen) == 0 {
		return Difference{}, fmt.Errorf("%d and %d items", len(a.Chosen), len(b.Chosen))
	}
	var d Difference
	pairs := pairsOf(a, b, isRight)
	d.Difference, d.Interval = pairs.difference()
	d.P = pairs.mcnemar()
	same := 0
	deltas := make([]float64, len(a.Chosen))
	for i, x := range a.Chosen {
		y := b.Chosen[i]
		deltas[i] = y.LogLikelihood - x.LogLikelihood
		if x.Answer == y.Answer && (a.Perplexity == nil || x.Right == y.Right) {
			same++
		}
	}
	d.SameAnswer = float64(same) / float64(len(a.Chosen))
	if a.Perplexity != nil {
		m, stderr := mean(deltas)
		d.LnRatio, d.LnRatioCI = &m, &[2]float64{m - normal*stderr, m + normal*stderr}
		return d, nil
	}
	norm, interval := pairsOf(a, b, isRightNorm).difference()
	d.DifferenceNorm, d.IntervalNorm = &norm, &interval
	return d, nil
}

// normal is the quantile of the normal distribution at 97.5 %.
const normal = 1.959963984540054

// paired counts items that both models have right, only the first, only the second, or neither.
type paired struct{ both, first, second, neither float64 }

func pairsOf(a, b *Result, right func(Choice) float64) paired {
	var p paired
	for i := range a.Chosen {
		switch x, y := right(a.Chosen[i]), right(b.Chosen[i]); {
		case x > 0 && y > 0:
			p.both++
		case x > 0:
			p.first++
		case y > 0:
			p.second++
		default:
			p.neither++
		}
	}
	return p
}

// difference returns that of the shares that are right, and its interval.
func (p paired) difference() (d float64, interval [2]float64) {
	n := p.both + p.first + p.second + p.neither
	p1, p2 := (p.both+p.first)/n, (p.both+p.second)/n
	low1, high1 := Wilson(p1, n)
	low2, high2 := Wilson(p2, n)
	phi := 0.
	if margins := (p.both + p.first) * (p.second + p.neither) * (p.both + p.second) * (p.first + p.neither); margins > 0 {
		covered := p.both*p.neither - p.first*p.second
		if covered > 0 {
			covered = max(covered-n/2, 0)
		}
		phi = covered / math.Sqrt(margins)
	}
	span := func(x, y float64) float64 { return math.Sqrt(max(x*x-2*phi*x*y+y*y, 0)) }
	d = p1 - p2
	return d, [2]float64{d - span(p1-low1, high2-p2), d + span(high1-p1, p2-low2)}
}

// mcnemar returns the probability of a split as uneven as that of the items that only one has right, if each is as likely.
func (p paired) mcnemar() float64 {
	n, k := int(p.first+p.second), int(min(p.first, p.second))
	var sum float64
	logFactorial := func(n int) float64 { v, _ := math.Lgamma(float64(n + 1)); return v }
	for i := range k + 1 {
		sum += math.Exp(logFactorial(n) - logFactorial(i) - logFactorial(n-i) - float64(n)*math.Ln2)
	}
	return min(2*sum, 1)
}

// Wilson returns the 95 % interval of a share p of n by E. B. Wilson (1927).
func Wilson(p, n float64) (low, high float64) {
	const z2 = normal * normal
	middle, half := p+z2/(2*n), normal*math.Sqrt(p*(1-p)/n+z2/(4*n*n))
	return max((middle-half)/(1+z2/n), 0), min((middle+half)/(1+z2/n), 1)
}

// Mean returns the mean accuracy of several tasks, each of the same weight, and its standard error.
func Mean(results []*Result) (accuracy, stderr float64) {
	n := float64(len(results))
	for _, r := range results {
		accuracy += r.Accuracy
		stderr += r.AccuracyStderr * r.AccuracyStderr
	}
	return accuracy / n, math.Sqrt(stderr) / n
}

// CompareMean holds the mean accuracy of model a on several tasks against that of model b. The interval is 1.96 standard
// errors of the differences, item by item, to both sides.
func CompareMean(a, b []*Result) (difference float64, interval [2]float64, err error) {
	if len(a) != len(b) || len(a) == 0 {
		return 0, interval, fmt.Errorf("%d and %d tasks", len(a), len(b))
	}
	n, variance := float64(len(a)), 0.
	for i := range a {
		if len(a[i].Chosen) != len(b[i].Chosen) {
			return 0, interval, fmt.Errorf("task %d: %d and %d items", i+1, len(a[i].Chosen), len(b[i].Chosen))
		}
		x, y := a[i].values(isRight), b[i].values(isRight)
		for j := range x {
			x[j] -= y[j]
		}
		m, stderr := mean(x)
		difference += m / n
		variance += stderr * stderr
	}
	half := normal * math.Sqrt(variance) / n
	return difference, [2]float64{difference - half, difference + half}, nil
}
