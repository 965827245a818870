package learn

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/lutq/lutq/calib/model"
	"github.com/lutq/lutq/formats/arch"
)

// trainer is a model whose scales are being learned.
//
// The parameters of all layers lie in one array, scales first and, where they
// are learned, tables after them, so that the optimizer takes few steps however
// many layers there are.
type trainer struct {
	*settings
	ops     Ops
	teacher *model.Model // of the objective; nil for NLL
	student *model.Model
	layers  []layer
	grads   map[string]model.Grad
	control bool
	key     string // names all that the state depends on

	hands  []*trainer // further devices: of a hand only the weights and the gradient are used
	isHand bool

	scaleCount, tableCount int

	now, best    point       // the parameters at hand, and those that did best
	m, v, g      model.Array // of the optimizer; gradients
	scales, base model.Array // in the logarithmic form
	progress     progress
	saved        time.Time     // when the state was
	saving       time.Duration // what that took
	begin        time.Time
	begunAt      int // steps done when this run began
	seen         int // tokens of the steps since
}

// layer is one that is learned.
type layer struct {
	name             string
	of               *arch.Linear
	shape            shape // of its rows
	weight           model.Weight
	base             model.Weight // what its scales multiply, where that is no table; else nil
	scaleAt, tableAt int          // of its part in the parameters
	table            []float32    // as it was
	tableMax         float64
}

// point is a value of all parameters, and of those that its codes were chosen with.
type point struct {
	p, coded model.Array
	recoded  bool // whether they were, or are the initial ones
}

// progress is what the state file keeps besides arrays.
type progress struct {
	Step       int          `json:"step"`    // done
	Settled    bool         `json:"settled"` // whether what was due after it is done
	Losses     []float64    `json:"losses"`
	Validation []Validation `json:"validation"`
	BestStep   int          `json:"best_step"`
	BestLoss   float64      `json:"best_loss"`
}

// savingShare is how much longer than the state took to write the next writing waits.
const savingShare = 30

// run takes all steps, or those that are left of them.
func (t *trainer) run(ctx context.Context) (*Report, error) {
	t.begin, t.saved = time.Now(), time.Now()
	if err := t.resume(); err != nil {
		return nil, err
	}
	t.begunAt = t.progress.Step
	if t.begunAt > 0 && t.Resumed != nil {
		t.Resumed(t.begunAt, t.steps)
	}
	err := t.loop(ctx)
	if err == nil {
		err = t.ops.Err()
	}
	if err != nil && ctx.Err() != nil && t.progress.Step > t.begunAt {
		// What a stopped run has done is kept.
		err = errors.Join(err, t.save())
	}
	if err != nil {
		return nil, err
	}
	return t.report(), nil
}

func (t *trainer) loop(ctx context.Context) error {
	if !t.progress.Settled {
		if err := t.settle(ctx); err != nil {
			return err
		}
	}
	for t.progress.Step < t.steps {
		if err := t.step(ctx); err != nil {
			return err
		}
		if t.State != "" && (time.Since(t.saved) >= savingShare*t.saving || t.progress.Step == t.steps) {
			if err := t.save(); err != nil {
				return err
			}
		}
	}
	return nil
}

// step takes one step of the optimizer and does what is due after it.
func (t *trainer) step(ctx context.Context) error {
	windows := t.windows(t.progress.Step)
	losses, err := t.gradient(ctx, windows)
	if err != nil {
		return err
	}
	var loss float64
	for i, w := range windows {
		loss += losses[i] / float64(len(windows))
		t.seen += len(w)
	}
	if math.IsNaN(loss) || math.IsInf(loss, 0) {
		return fmt.Errorf("step %d: the loss is %v", t.progress.Step+1, loss)
	}
	if t.log {
		t.ops.ExpScaleBack(t.g.Slice(0, t.scaleCount), t.scales)
	}
	scale := 1 / float64(len(windows))
	if t.clip > 0 {
		norm := math.Sqrt(t.ops.SumSquares(t.g)) * scale
		if math.IsNaN(norm) || math.IsInf(norm, 0) {
			return fmt.Errorf("step %d: the gradient's norm is %v", t.progress.Step+1, norm)
		}
		if norm > t.clip {
			scale *= t.clip / norm
		}
	}
	t.update(scale)
	t.apply()
	t.progress.Step++
	t.progress.Losses = append(t.progress.Losses, loss)
	t.progress.Settled = false
	if err := t.settle(ctx); err != nil {
		return err
	}
	t.tell(loss)
	return nil
}

// gradient takes the gradient of some windows, one after the other or on several devices, but added up in their order. It returns the
// losses.
func (t *trainer) gradient(ctx context.Context, windows [][]int) ([]float64, error) {
	t.ops.Zero(t.g)
	more := []model.Array{nil}
	if len(t.hands) > 0 && len(windows) > 1 {
		more[0] = t.ops.Floats(t.g.Len())
		defer t.ops.Free(more...)
	}
	return t.divided(ctx, windows, func(ctx context.Context, on *trainer, w []int) (float64, error) {
		if on != t {
			on.ops.Zero(on.g)
		}
		return on.student.Gradient(ctx, w, on.teacher, on.grads)
	}, func(h *trainer) {
		model.Send(more[0], t.ops, h.g, h.ops)
		t.ops.AddTo(t.g, more[0])
	})
}

// divided calls do for windows, as many at a time as there are devices, and then join, unless nil, for the devices besides the first, in
// order. It returns what do did, window by window.
func (t *trainer) divided(ctx context.Context, windows [][]int, do func(ctx context.Context, on *trainer, w []int) (float64, error), join func(h *trainer)) ([]float64, error) {
	all := append([]*trainer{t}, t.hands...)
	found := make([]float64, len(windows))
	for from := 0; from < len(windows); from += len(all) {
		some := windows[from:min(from+len(all), len(windows))]
		group, inner := errgroup.WithContext(ctx)
		for i, w := range some {
			group.Go(func() (err error) {
				found[from+i], err = do(inner, all[i], w)
				return t.on(all[i], err)
			})
		}
		if err := group.Wait(); err != nil {
			return nil, cmp.Or(ctx.Err(), err)
		}
		if join == nil {
			continue
		}
		for i := range some[1:] {
			join(t.hands[i])
			if err := t.on(t.hands[i], t.hands[i].ops.Err()); err != nil {
				return nil, err
			}
		}
	}
	return found, nil
}

// on names the device of an error where there are several.
func (t *trainer) on(device *trainer, err error) error {
	if len(t.hands) == 0 || err == nil {
		return err
	}
	return model.On(device.ops, err)
}

// windows returns those of a step. In mode flute they come in the order given,
// otherwise every epoch has its own.
func (t *trainer) windows(step int) [][]int {
	var out [][]int
	n := len(t.Windows)
	for i := step * t.Batch; i < min((step+1)*t.Batch, n*t.Epochs); i++ {
		at := i % n
		if t.Mode != Flute {
			at = rand.New(rand.NewPCG(t.Seed, uint64(i/n))).Perm(n)[at]
		}
		out = append(out, t.Windows[at])
	}
	return out
}

// update moves the parameters by gradients times scale.
func (t *trainer) update(scale float64) {
	step := func(from, to int, rate float64) {
		t.ops.Adam(model.Adam{
			P: t.now.p.Slice(from, to), M: t.m.Slice(from, to), V: t.v.Slice(from, to), G: t.g.Slice(from, to),
			LR: rate, B1: 0.9, B2: t.b2, Eps: 1e-8, Scale: scale, Step: t.progress.Step + 1, BF16: t.BF16,
		})
	}
	rate := t.rate(t.progress.Step)
	step(0, t.scaleCount, rate)
	if !t.Table {
		return
	}
	for i := range t.layers {
		l := &t.layers[i]
		step(l.tableAt, l.tableAt+l.shape.entries, 0.1*rate*l.tableMax)
	}
	t.sortTables()
}

// sortTables keeps learned tables ascending: a value that fell below its
// predecessor takes that one's place.
func (t *trainer) sortTables() {
	all := t.now.p.Slice(t.scaleCount, t.scaleCount+t.tableCount)
	values := make([]float32, t.tableCount)
	t.ops.Read(values, all)
	for i := range t.layers {
		l := &t.layers[i]
		v := values[l.tableAt-t.scaleCount:][:l.shape.entries]
		for j := 1; j < len(v); j++ {
			v[j] = max(v[j], v[j-1])
		}
	}
	t.ops.Write(all, values)
}

// rate is that of the step after so many.
func (t *trainer) rate(step int) float64 {
	if !t.cosine {
		return t.Rate
	}
	rise := max(1, math.Round(t.warmup*float64(t.steps)))
	if s := float64(step); s < rise {
		return t.Rate * (s + 1) / rise
	}
	return t.Rate * 0.5 * (1 + math.Cos(math.Pi*(float64(step)-rise)/(float64(t.steps)-rise)))
}

// apply gives the layers the scales and tables of the parameters at hand.
func (t *trainer) apply() {
	scales := t.now.p
	if t.log {
		t.ops.ExpScale(t.scales, t.base, t.now.p.Slice(0, t.scaleCount))
		scales = t.scales
	}
	for i := range t.layers {
		l := &t.layers[i]
		t.ops.SetScales(l.weight, scales.Slice(l.scaleAt, l.scaleEnd()))
		if t.Table {
			t.ops.SetTable(l.weight, t.now.p.Slice(l.tableAt, l.tableAt+l.shape.entries))
		}
	}
	for _, h := range t.hands {
		model.Send(h.now.p, h.ops, t.now.p, t.ops)
		h.apply()
	}
}

// chooseCodes chooses codes with the scales that layers have.
func (t *trainer) chooseCodes() {
	for i := range t.layers {
		t.ops.Recode(t.layers[i].weight, t.BF16)
	}
	for _, h := range t.hands {
		h.chooseCodes()
	}
}

// recode chooses codes with the scales at hand.
func (t *trainer) recode() {
	t.chooseCodes()
	t.ops.Copy(t.now.coded, t.now.p)
	t.now.recoded = true
}

// settle does what is due between two steps: new codes, and a look at the
// held-out windows. Codes that move at every step are chosen before the first
// and after the last one too; others are not changed when nothing follows that
// could make up for it.
func (t *trainer) settle(ctx context.Context) error {
	step := t.progress.Step
	if step == 0 {
		t.apply()
	}
	if t.Recode == 1 || t.Recode > 0 && step%t.Recode == 0 && step > 0 && step < t.steps {
		t.recode()
	}
	if len(t.Valid) > 0 && (step%t.every == 0 || step == t.steps) {
		if err := t.validate(ctx); err != nil {
			return err
		}
	}
	t.progress.Settled = true
	return nil
}

// validate takes the loss on the held-out windows, and the point at hand for
// the best where it is.
func (t *trainer) validate(ctx context.Context) error {
	step := t.progress.Step
	losses, err := t.divided(ctx, t.Valid, func(ctx context.Context, on *trainer, w []int) (float64, error) {
		return on.student.Loss(ctx, w, on.teacher)
	}, nil)
	if err != nil {
		return err
	}
	var loss float64
	for _, l := range losses {
		loss += l / float64(len(t.Valid))
	}
	if math.IsNaN(loss) || math.IsInf(loss, 0) {
		return fmt.Errorf("after step %d the loss on the held-out windows is %v", step, loss)
	}
	t.progress.Validation = append(t.progress.Validation, Validation{Step: step, Loss: loss})
	if t.keepsBest() && (step == 0 || loss < t.progress.BestLoss) {
		t.progress.BestStep, t.progress.BestLoss = step, loss
		t.ops.Copy(t.best.p, t.now.p)
		if t.best.recoded = t.now.recoded; t.best.recoded {
			t.ops.Copy(t.best.coded, t.now.coded)
		}
	}
	return nil
}

// tell reports progress.
func (t *trainer) tell(loss float64) {
	if t.Progress == nil {
		return
	}
	p := Progress{Step: t.progress.Step, Steps: t.steps, Loss: loss}
	if v := t.progress.Validation; len(v) > 0 {
		p.Valid = v[len(v)-1].Loss
	}
	seconds := time.Since(t.begin).Seconds()
	p.TokensPerSecond = float64(t.seen) / seconds
	p.Left = time.Duration(seconds / float64(p.Step-t.begunAt) * float64(p.Steps-p.Step) * float64(time.Second))
	t.Progress(p)
}
