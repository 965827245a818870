// Package learn refines the scales of a quantized model by gradient descent on text.
//
// Each step runs a window of text through the quantized model, takes the gradient of a loss with respect to every
// group's scale, and takes a step of Adam. Modes differ in how a scale depends on its parameter p:
//
//	direct       s = p         FLUTE's code (flute/integrations/learnable.py)
//	logarithmic  s = s₀·eᵖ     p = 0 to begin with; a step changes every scale by the same share
//
// Codes are constants of the gradient. They stay what they are, or are chosen anew from the moving scale every so many
// steps: in FLUTE at every step.
//
// # A third form
//
// FLUTE's paper has a third form. There σ of the normal distribution stays, σ̃ is learned, and s·σ̃/σ is stored. It is
// one of the two above:
//
// With c = σ/s, which is one constant for a table, the stored scale is σ̃/c, so ∂L/∂σ̃ = (1/c)·∂L/∂s. Gradient descent
// on σ̃ at the rate η moves the stored scale as descent on s does at η/c². Adam's step does not depend on the
// gradient's size, so there the rate is η/c.
//
// With ρ = σ̃/σ as the parameter, s = s₀·ρ. Adam moves such a scale as the direct form does at the rate η·s₀, group by
// group. As s₀·ρ is s₀·e^(ρ−1) up to second order, it also moves it as the logarithmic form does at η.
package learn

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/lutq/lutq/calib/model"
	"github.com/lutq/lutq/formats/weight"
)

// Mode is a way to learn.
type Mode string

// The modes. Flute is what FLUTE's code does: direct scales, codes chosen anew
// at every step, a constant rate of 1e-4, no clipping, the last state. Lutq has
// logarithmic scales, codes that stay, a rate that rises and falls, clipped
// gradients, and keeps the state that does best on held-out windows.
const (
	Lutq  Mode = "lutq"
	Flute Mode = "flute"
)

// ParseMode checks the spelling of a mode.
func ParseMode(s string) (Mode, error) {
	switch m := Mode(s); m {
	case Lutq, Flute:
		return m, nil
	}
	return "", fmt.Errorf("unknown mode %q: want lutq or flute", s)
}

// Objective is what learning makes small.
type Objective string

// The objectives: the Kullback-Leibler divergence of the quantized model from
// the original, or the mean negative log-likelihood of the text.
const (
	KL  Objective = "kl"
	NLL Objective = "nll"
)

// ParseObjective checks the spelling of an objective; "" is the mode's own.
func ParseObjective(s string) (Objective, error) {
	switch o := Objective(s); o {
	case "", KL, NLL:
		return o, nil
	}
	return "", fmt.Errorf("unknown objective %q: want kl or nll", s)
}

// Options say how to learn. Fields that are zero are the mode's own.
type Options struct {
	Mode      Mode
	Objective Objective // lutq: KL; flute: NLL

	Windows [][]int // of tokens; a step takes Batch of them
	Valid   [][]int // that no step is taken on; may be none
	Epochs  int     // passes over Windows; 1
	Batch   int     // 1
	Rate    float64 // of Adam; lutq: see DefaultRate, flute: 1e-4
	Fitted  bool    // codes were fitted to the text before, see FittedRate
	Recode  int     // choose codes anew every so many steps; lutq: never, flute: 1
	Seed    uint64  // of the order of windows in lutq

	BF16  bool // flute: parameters, optimizer, table and quotients in bfloat16, as published
	LSQ   bool // the gradient of LSQ, in which codes move with the scale
	Table bool // lutq: learn every layer's table as well, at a tenth of the rate

	// State is a file that the work done is kept in, so that a run which was
	// stopped goes on; "" is none. It is written as often as costs little, when
	// ctx is done, and at the end.
	State string

	// Beside are the same model on further devices, whose arithmetic is the same. The windows of a step are divided among
	// devices, as are those that no step is taken on: what is learned does not depend on how many there are.
	Beside []*model.Model

	Progress func(Progress)        // told of every step; may be nil
	Resumed  func(step, steps int) // told how many steps an earlier run had done, if any; may be nil
	Warn     func(string)          // told of what is worth a message; may be nil
}

// Progress is how far learning is.
type Progress struct {
	Step, Steps     int
	Loss            float64 // of the last step, nats a token
	Valid           float64 // the last one on held-out windows; 0 where there are none
	TokensPerSecond float64
	Left            time.Duration
}

// Report is what learning did. Losses are in nats a token.
type Report struct {
	Mode       Mode      `json:"mode"`
	Objective  Objective `json:"objective"`
	Device     string    `json:"device"`
	Layers     int       `json:"layers"`
	Parameters int       `json:"parameters"`
	Rate       float64   `json:"rate"`
	Steps      int       `json:"steps"`
	Tokens     int       `json:"tokens"` // of all steps

	Losses      []float64    `json:"losses"` // of each step, before it
	Validation  []Validation `json:"validation,omitempty"`
	InitialLoss float64      `json:"initial_loss,omitempty"` // on held-out windows
	Loss        float64      `json:"loss,omitempty"`         // of the state that was kept, on the same
	BestStep    int          `json:"best_step"`              // after which the state was kept

	ResumedAt       int     `json:"resumed_at,omitempty"` // steps that an earlier run had done
	Seconds         float64 `json:"seconds"`              // of this run
	TokensPerSecond float64 `json:"tokens_per_second,omitempty"`
}

// Validation is the loss on the held-out windows after a step.
type Validation struct {
	Step int     `json:"step"`
	Loss float64 `json:"loss"`
}

// DefaultRate is the rate of mode lutq for codes of so many bits: coarser codes
// leave more to gain. A model of 11 million parameters did best on held-out
// windows, among rates a factor of two or more apart, with 0.004 at 4 bits and
// 0.008 at 3, and with 0.016 at 2, after 32 and 128 steps alike; half as much
// cost it little, twice as much more.
func DefaultRate(bits int) float64 {
	switch bits {
	case 1, 2:
		return 1.6e-2
	case 3:
		return 6e-3
	}
	return 3e-3
}

// RingRate is that share of it for weights of rings, whose scales are of whole rows. On texts of the kind that was learned twice as
// much does as well, on others less well, see NOTES.md.
const RingRate = 1. / 8

// FittedRate is that share of it after gptq, from 3 bits on: what is left to gain is little, and steps that suit rounded codes
// lose it again on texts that were not learned, see NOTES.md.
const FittedRate = 1. / 4

// rateOf is the rate of mode lutq where none is named.
func rateOf(bits int, rings, fitted bool) float64 {
	switch rate := DefaultRate(bits); {
	case rings:
		return rate * RingRate
	case fitted && bits > 2:
		return rate * FittedRate
	default:
		return rate
	}
}

// settings are options with everything said.
type settings struct {
	Options
	log    bool
	warmup float64 // share of the steps in which the rate rises
	cosine bool    // whether it falls to zero after that
	clip   float64 // norm of the gradient; 0 is none
	b2     float64
	best   bool // whether the best state is kept rather than the last
	every  int  // steps between two validations
	steps  int
}

// resolve checks the options and fills them in. rate is that of mode lutq where none is given.
func (o Options) resolve(rate float64) (*settings, error) {
	s := &settings{Options: o}
	mode, err := ParseMode(string(o.Mode))
	if err != nil {
		return nil, err
	}
	if _, err := ParseObjective(string(o.Objective)); err != nil {
		return nil, err
	}
	defaults := Options{Epochs: 1, Batch: 1, Rate: 1e-4, Recode: 1}
	s.b2 = 0.999
	if mode == Lutq {
		defaults = Options{Epochs: 1, Batch: 1, Rate: rate}
		s.log, s.warmup, s.cosine, s.clip, s.b2, s.best = true, 0.05, true, 1, 0.99, true
	}
	s.Objective = o.objective()
	for _, f := range []struct {
		name  string
		value *int
		or    int
	}{{"epochs", &s.Epochs, defaults.Epochs}, {"windows a step", &s.Batch, defaults.Batch}, {"steps between recodings", &s.Recode, defaults.Recode}} {
		if *f.value < 0 {
			return nil, fmt.Errorf("%d %s: want a positive number", *f.value, f.name)
		}
		if *f.value == 0 {
			*f.value = f.or
		}
	}
	if s.Rate == 0 {
		s.Rate = defaults.Rate
	}
	switch {
	case !(s.Rate > 0 && s.Rate < 1):
		return nil, fmt.Errorf("rate %v: want one above 0 and below 1", s.Rate)
	case mode == Lutq && s.BF16:
		return nil, errors.New("parameters in bf16 are for mode flute")
	case mode == Flute && s.Table:
		return nil, errors.New("tables are learned in mode lutq only")
	case len(s.Windows) == 0:
		return nil, errors.New("no windows to learn on")
	}
	for _, w := range append(s.Windows[:len(s.Windows):len(s.Windows)], s.Valid...) {
		if len(w) < 2 {
			return nil, fmt.Errorf("window of %d tokens: want at least 2", len(w))
		}
	}
	s.steps = (s.Epochs*len(s.Windows) + s.Batch - 1) / s.Batch
	s.every = (s.steps + validations - 1) / validations
	return s, nil
}

// validations is how often the held-out windows are looked at after the first time.
const validations = 4

// Layers are the layers of a model as they were quantized, of which no more than one is
// held at a time.
type Layers interface {
	// Read reads a stored layer, which is the caller's then. It is what was quantized,
	// whatever has been written.
	Read(path string) (weight.Matrix, error)
	// Write takes what was learned for one. Parts that are nil are as they were.
	Write(path string, m weight.Matrix) error
}

// Run learns the scales of the quantized layers of m, which holds the original
// weights: those that are linear layers of the model. Shapes has them by the paths of what
// is stored, without codes and scales. The operations of m must be [Ops] and
// [model.BackwardOps].
//
// Where there are held-out windows, mode lutq writes the layers as they were
// sooner than ones that do worse on them. A run that ctx ends keeps its state.
func Run(ctx context.Context, m *model.Model, shapes map[string]weight.Matrix, layers Layers, o Options) (*Report, error) {
	t, err := newTrainer(m, shapes, layers, o)
	if err != nil {
		return nil, err
	}
	defer t.close()
	report, err := t.run(ctx)
	if err != nil {
		return nil, err
	}
	return report, t.write(layers)
}

// Factors are what the weights of a layer [n, k] are multiplied by, a number
// for every group of Group columns of a row.
type Factors struct {
	Group  int
	Values []float32
}

// Control learns factors, as many as matrices of these shapes have scales, for the
// original weights: what is gained by them is the text's part in the gain of
// learned scales, not the repair of what quantization did. With the objective
// KL there is nothing to learn.
func Control(ctx context.Context, m *model.Model, shapes map[string]weight.Matrix, o Options) (map[string]Factors, *Report, error) {
	t, err := newTrainer(m, shapes, nil, o)
	if err != nil {
		return nil, nil, err
	}
	defer t.close()
	report, err := t.run(ctx)
	if err != nil {
		return nil, nil, err
	}
	factors, err := t.factors()
	return factors, report, err
}
