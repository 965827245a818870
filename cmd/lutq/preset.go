package main

import (
	"context"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/lutq/lutq/calib/fit"
	"github.com/lutq/lutq/calib/probe"
	"github.com/lutq/lutq/formats/source"
	"github.com/lutq/lutq/formats/weight/lut"
	"github.com/lutq/lutq/formats/weight/trellis"
	"github.com/lutq/lutq/quantize"
	"github.com/lutq/lutq/quantize/preset"
)

// goodTime is how long the preset good may take where nobody asked for it.
const goodTime = 10 * time.Minute

// how are the flags that say how a model is quantized, beside which no preset goes without saying.
func how() []string {
	return []string{"method", "codebook", "scale", "for", "recipe", "kbit-encode", "learn", "learn-control", "transform", "bcq-rounds", "bcq-offset"}
}

// text are the flags of what a preset's text is, which ask for one that has a text.
func text() []string {
	return []string{"calib", "calib-windows", "calib-ctx", "calib-bos", "seed", "device", "devices", "stream", "damp", "retarget", "rescale"}
}

// A way is how the preset of a command line came to be.
type way struct {
	preset  preset.Recipe // none: flags say all
	unnamed bool          // nobody asked for it, so that it gives way to a quicker one
	said    quantize.Recipe
}

// way completes a recipe by the preset that the command line names, or else by the one that goes without saying.
func (o *quantizeOptions) way(r *quantize.Recipe) (w way, err error) {
	w = way{said: *r}
	name := o.preset
	if name == "" {
		if slices.ContainsFunc(how(), o.given) {
			return w, nil
		}
		name, w.unnamed = preset.Good, !slices.ContainsFunc(text(), o.given)
		switch {
		case w.unnamed && o.parts.on():
			return w, hintError{usage("%s: which preset goes without saying depends on how fast a machine is: name one", o.parts.flag()), "--preset fast, or --preset good --stream float"}
		case o.shardsFrom != "" && w.unnamed: // where no text is read
			name, w.unnamed = preset.Fast, false
		}
	}
	w.preset, err = o.usePreset(r, name)
	return w, err
}

// plan makes the plan of a recipe, with what learns scales and what was made of mixed widths, each nil where there is none. A preset
// that nobody named gives way to a quicker one, which is said.
func (u *ui) plan(ctx context.Context, m *source.Model, w *way, r quantize.Recipe, o quantizeOptions, out string, ro quantize.RunOptions, p *pauser) (*quantize.Plan, *fit.Learner, *mixture, error) {
	o.calib.unnamed = o.calib.unnamed && w.preset.Preset == "" // which tells of a text
	make := func(r quantize.Recipe, mix bool) (plan *quantize.Plan, learner *fit.Learner, x *mixture, err error) {
		if err = o.embed(&r, m); err != nil {
			return nil, nil, nil, err
		}
		changed, learner, err := u.fit(ctx, m, &r, o, p)
		if err == nil && mix {
			x, err = u.mixWidths(ctx, changed, &r, o)
		}
		if err == nil {
			plan, err = quantize.NewPlan(changed, r)
		}
		return plan, learner, x, err
	}
	if size := max(o.mix.size, o.mix.fit); size > 0 && w.preset.Preset != "" {
		// What bits that comes to is known when they are divided; the recipe goes by what it would be throughout.
		src, err := m.Weights()
		if err != nil {
			return nil, nil, nil, err
		}
		var weights int64
		for _, t := range src.Tensors() {
			weights += t.Elements()
		}
		least, _ := quantize.Widths()
		o.aim = min(max(8*float64(size)/float64(weights), float64(least)), preset.Most(w.preset.Preset))
		r = w.said
		if w.preset, err = o.usePreset(&r, w.preset.Preset); err != nil {
			return nil, nil, nil, err
		}
	}
	if !w.unnamed {
		return make(r, true)
	}
	// Widths are mixed when it is known how, and cost little of the time.
	good, learner, _, err := make(r, false)
	begun := err == nil && good.Begun(out, ro)
	var seconds float64
	why := ""
	switch {
	case err != nil: // of the model and its text, or of what fast says as well
		why = err.Error()
	case !begun:
		if seconds, why, err = u.slow(ctx, good, ro); err != nil {
			return nil, nil, nil, err
		}
	}
	if why == "" && !begun { // unless an interrupted run was quick
		quick := w.said
		as := o
		if _, err := as.usePreset(&quick, preset.Fast); err != nil {
			return nil, nil, nil, err
		}
		if plan, err := quantize.NewPlan(m, quick); err == nil && plan.Begun(out, ro) {
			why = "would be another run than the one that was interrupted"
		}
	}
	if why != "" {
		r = w.said
		if w.preset, err = o.usePreset(&r, preset.Fast); err != nil {
			return nil, nil, nil, err
		}
		plan, learner, x, err := make(r, true)
		if err == nil {
			u.note("preset fast: %v; good: %s", w.preset, why)
		}
		return plan, learner, x, err
	}
	if seconds > 0 {
		u.note("preset good: %v, %s; --preset fast takes no text", w.preset, about(seconds))
	}
	if o.mixed() {
		return make(r, true)
	}
	return good, learner, nil, nil
}

// usePreset gives a recipe and the options what a preset says of what they leave open.
func (o *quantizeOptions) usePreset(r *quantize.Recipe, name string) (preset.Recipe, error) {
	p, err := preset.Of(name, o.meanBits(r))
	if err != nil {
		return p, usageError{err}
	}
	ringed := p.Codebook == trellis.Pairs
	kind := lut.Name
	if ringed {
		kind = trellis.Name
	}
	if r.Default.Codebook == "" && (ringed && (o.given("group") || o.given("scale")) || o.target != "" || o.given("kbit-encode") || !quantize.MakesKind(r.Default.Method, kind)) {
		p.Codebook = "" // which is another's to say
	}
	r.Default = p.Fill(r.Default)
	if !o.given("learn") && r.Unread("learn", false) == nil {
		o.learn.on = p.Learn
	}
	if p.Self && !o.given("calib") {
		o.calib.texts = []string{fit.Bundled, fit.Self}
	}
	if _, err := probe.CandidatesFor(*r, false); err == nil && p.Mix && o.target == "" && !o.given("mix") {
		o.mix.on = true
	}
	return p, nil
}

// meanBits returns the bits that a recipe's codes have, of all layers together.
func (o *quantizeOptions) meanBits(r *quantize.Recipe) float64 {
	switch {
	case o.aim != 0:
		return o.aim
	case o.bits.mean != 0:
		return o.bits.mean
	}
	if r.Default.Bits == 0 {
		return quantize.DefaultBits
	}
	return float64(r.Default.Rate()) / 2
}

// slow says what stands against a plan that nobody asked for by name: the time that it is expected to take here, or its memory.
func (u *ui) slow(ctx context.Context, plan *quantize.Plan, ro quantize.RunOptions) (seconds float64, why string, err error) {
	if err := plan.CheckMemory(ro); err != nil {
		return 0, err.Error(), nil
	}
	est, err := plan.Estimate(ctx, ro)
	if err != nil {
		return 0, "", err
	}
	if free := availableMemory(); free > 0 && est.PeakRAM > free {
		return 0, fmt.Sprintf("needs %s of memory", formatBytes(est.PeakRAM)), nil
	}
	if est.Seconds > goodTime.Seconds() {
		return est.Seconds, "would take " + about(est.Seconds), nil
	}
	return est.Seconds, "", nil
}

// about prints a time that was estimated.
func about(seconds float64) string {
	d := time.Duration(seconds * float64(time.Second))
	switch {
	case d < time.Minute:
		return fmt.Sprintf("about %d s", max(int(d.Seconds()+.5), 1))
	case d < 2*time.Hour:
		return fmt.Sprintf("about %d minutes", int(d.Minutes()+.5))
	}
	return fmt.Sprintf("about %d hours", int(d.Hours()+.5))
}

// printPreset prints what a preset stood for, if there was one.
func printPreset(w io.Writer, r preset.Recipe) {
	if r.Preset != "" {
		fmt.Fprintf(w, "preset\t%s: %v\n", r.Preset, r)
	}
}
