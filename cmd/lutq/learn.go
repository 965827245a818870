package main

import (
	"fmt"

	"github.com/spf13/pflag"

	"github.com/lutq/lutq/calib/fit"
	"github.com/lutq/lutq/calib/learn"
)

// learnOptions are the flags of learned scales.
type learnOptions struct {
	on, table, control            bool // on: asked for beside another method
	mode, objective, params, grad string
	valid, epochs, batch, recode  int
	rate                          float64
}

// registerSwitch adds the flag that has scales learned.
func (o *learnOptions) registerSwitch(f *pflag.FlagSet) {
	f.BoolVar(&o.on, "learn", false, "then refine the scales on the text")
}

// register adds the flags that say how, which the first view of the help leaves out.
func (o *learnOptions) register(f *pflag.FlagSet) {
	var names []string
	own := func(name string) string {
		names = append(names, name)
		return name
	}
	f.Var(newNumber(&o.valid, 8, 0, maxWindows), own("valid-windows"), "hold out `N` more windows")
	f.Var(newWord(&o.mode, string(learn.Lutq), string(learn.Lutq), string(learn.Flute)), own("learn-mode"), "way to learn, `NAME`: lutq or flute")
	f.Var(newWord(&o.objective, "", string(learn.KL), string(learn.NLL)), own("learn-objective"), "loss `NAME`: kl or nll (default kl; flute: nll)")
	f.Float64Var(&o.rate, own("learn-rate"), 0, "`RATE` of steps (default by bits; flute: 1e-4)")
	f.Var(newNumber(&o.epochs, 1, 1, maxWindows), own("learn-epochs"), "`N` passes over the windows")
	f.Var(newNumber(&o.batch, 1, 1, maxWindows), own("learn-batch"), "`N` windows to a step")
	f.Var(newNumber(&o.recode, 0, 0, maxWindows), own("learn-recode"), "choose codes anew every `N` steps (flute: 1)")
	f.Var(newWord(&o.grad, "ste", "ste", "lsq"), own("learn-grad"), "gradient `NAME`: ste (codes stay) or lsq (they move)")
	f.Var(newWord(&o.params, "f32", "f32", "bf16"), own("learn-params"), "`TYPE` of parameters: f32 or bf16")
	f.BoolVar(&o.table, own("learn-table"), false, "learn the tables too (mode lutq)")
	setGroup(f, "Learned scales (--learn, --method nfl)", names...)
	setLater(f, names...)
	f.BoolVar(&o.control, "learn-control", false, "write MODEL times learned factors, not quantized")
}

// check refuses flags that are no use together, or without others.
func (o *learnOptions) check(given func(flag string) bool) error {
	mode := learn.Mode(o.mode)
	switch {
	case given("seed") && mode == learn.Flute:
		return usage("--seed is not read by --learn-mode flute: it takes the first windows in their order")
	case o.params == "bf16" && mode != learn.Flute:
		return usage("--learn-params bf16 is for --learn-mode flute")
	case o.table && mode == learn.Flute:
		return usage("--learn-table is for --learn-mode lutq")
	case !(o.rate >= 0 && o.rate < 1):
		return usage("--learn-rate takes a number above 0 and below 1")
	}
	return nil
}

// options are what the flags say, with the seed of the text.
func (o *learnOptions) options(seed uint64) *fit.Learning {
	return &fit.Learning{After: o.on, Valid: o.valid, Options: learn.Options{
		Mode: learn.Mode(o.mode), Objective: learn.Objective(o.objective),
		Epochs: o.epochs, Batch: o.batch, Rate: o.rate, Recode: o.recode, Seed: seed,
		BF16: o.params == "bf16", LSQ: o.grad == "lsq", Table: o.table,
	}}
}

func progressLine(p learn.Progress) string {
	held := ""
	if p.Valid != 0 {
		held = fmt.Sprintf(" (held out %.4f)", p.Valid)
	}
	return fmt.Sprintf("loss %.4f%s, %s tokens/s", p.Loss, held, digits(p.TokensPerSecond, 3))
}

// printControl prints what was learned for the control of an experiment.
func (u *ui) printControl(out string, r *learn.Report, asJSON bool) error {
	if asJSON {
		return u.printJSON(struct {
			Learn *learn.Report `json:"learn"`
		}{r})
	}
	return u.printLine("%s: %d factors learned; on held-out windows %s went from %.4f to %.4f",
		out, r.Parameters, r.Objective, r.InitialLoss, r.Loss)
}
