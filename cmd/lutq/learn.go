package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/pflag"

	"github.com/lutq/lutq/calib/corpus"
	"github.com/lutq/lutq/calib/learn"
	"github.com/lutq/lutq/calib/model"
	"github.com/lutq/lutq/formats/lutq"
	"github.com/lutq/lutq/formats/outdir"
	"github.com/lutq/lutq/formats/source"
	"github.com/lutq/lutq/formats/weight/lut"
	"github.com/lutq/lutq/gemm/cpu"
	"github.com/lutq/lutq/quantize"
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
	f.Var(newNumber(&o.valid, 8, 0, maxWindows), own("valid-windows"), "hold out `N` more windows, to measure progress")
	f.Var(newWord(&o.mode, string(learn.Lutq), string(learn.Lutq), string(learn.Flute)), own("learn-mode"), "way to learn, `NAME`: lutq or flute")
	f.Var(newWord(&o.objective, "", string(learn.KL), string(learn.NLL)), own("learn-objective"), "loss `NAME`: kl or nll (default kl; mode flute: nll)")
	f.Float64Var(&o.rate, own("learn-rate"), 0, "`RATE` of steps (default by bits; mode flute: 1e-4)")
	f.Var(newNumber(&o.epochs, 1, 1, maxWindows), own("learn-epochs"), "`N` passes over the windows")
	f.Var(newNumber(&o.batch, 1, 1, maxWindows), own("learn-batch"), "`N` windows to a step")
	f.Var(newNumber(&o.recode, 0, 0, maxWindows), own("learn-recode"), "choose codes anew every `N` steps (default never; mode flute: 1)")
	f.Var(newWord(&o.grad, "ste", "ste", "lsq"), own("learn-grad"), "gradient `NAME`: ste (codes stay) or lsq (they move)")
	f.Var(newWord(&o.params, "f32", "f32", "bf16"), own("learn-params"), "`TYPE` of parameters: f32, or bf16 in mode flute")
	f.BoolVar(&o.table, own("learn-table"), false, "learn the tables too (mode lutq)")
	setGroup(f, "Learned scales (--learn, --method nfl)", names...)
	setLater(f, names...)
	f.BoolVar(&o.control, "learn-control", false, "write MODEL times learned factors, not quantized")
}

// learner learns scales as the flags say, and shows how far that is. It implements
// quantize.Refiner.
type learner struct {
	*learn.Refiner
	ui    *ui
	o     learnOptions
	calib calibOptions
	src   *source.Model
	text  *corpus.Mixture
	alone bool // whether nothing else asks for the text
	bar   *progress
	pauser
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

// newLearner returns what learns from a text.
func (u *ui) newLearner(src *source.Model, text *corpus.Mixture, calib calibOptions, o learnOptions, threads int) (*learner, error) {
	l := &learner{ui: u, o: o, calib: calib, src: src, text: text, alone: true}
	var err error
	l.Refiner, err = learn.NewRefiner(src, learn.RefinerOptions{
		Options: learn.Options{
			Mode: learn.Mode(o.mode), Objective: learn.Objective(o.objective),
			Epochs: o.epochs, Batch: o.batch, Rate: o.rate, Recode: o.recode, Seed: calib.seed,
			BF16: o.params == "bf16", LSQ: o.grad == "lsq", Table: o.table,
			Progress: func(p learn.Progress) {
				l.bar.resize(int64(p.Steps))
				l.bar.set(int64(p.Step), progressLine(p))
			},
			Resumed: func(step, steps int) {
				u.note("going on where learning stopped: %d of %d steps are done", step, steps)
			},
			Warn: func(s string) { fmt.Fprintf(u.stderr, "lutq: %s\n", s) },
		},
		Text:   text,
		Device: calib.device,
		Open: func(reserve int64) (model.Ops, func() error, error) {
			return openOps(calib.device, "bf16", cpu.Options{Threads: threads}, reserve)
		},
		Begin: func() { l.bar = u.startProgress("learning", 1, false) },
	})
	return l, err
}

// Flags implements quantize.Refiner. Of a text the name is given, not its folder.
func (l *learner) Flags() []string {
	o := l.o
	var args []string
	if o.on {
		args = append(args, "--learn")
	}
	if l.alone {
		args = append(args, l.calib.flags(l.text)...)
	}
	args = append(args, "--valid-windows", strconv.Itoa(o.valid), "--learn-mode", o.mode)
	for _, f := range []struct {
		name, value string
		given       bool
	}{
		{"--learn-objective", o.objective, o.objective != ""},
		{"--learn-rate", number64(o.rate), o.rate != 0},
		{"--learn-epochs", strconv.Itoa(o.epochs), o.epochs != 1},
		{"--learn-batch", strconv.Itoa(o.batch), o.batch != 1},
		{"--learn-recode", strconv.Itoa(o.recode), o.recode != 0},
		{"--learn-grad", o.grad, o.grad != "ste"},
		{"--learn-params", o.params, o.params != "f32"},
	} {
		if f.given {
			args = append(args, f.name, f.value)
		}
	}
	if o.table {
		args = append(args, "--learn-table")
	}
	if l.alone {
		args = append(args, l.calib.where()...)
	}
	return args
}

// quoted is a shell's word.
func quoted(s string) string {
	if strings.ContainsAny(s, " \t\n'\"\\$&|;<>()*?[]#~`!{}") {
		return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
	}
	return s
}

// Key implements quantize.Refiner.
func (l *learner) Key() string {
	return strings.Join(l.Flags(), " ") + textKey(l.text)
}

// Refine implements quantize.Refiner.
func (l *learner) Refine(ctx context.Context, shapes map[string]*lut.Matrix, layers *quantize.Layers, state string) (record *lutq.Learning, err error) {
	err = l.show(func() (err error) {
		record, err = l.Refiner.Refine(ctx, shapes, layers, state)
		return err
	})
	return record, err
}

// report returns what learning did. Of what a run did that was stopped after it there is
// what the container says.
func (l *learner) report(res *quantize.Result) *learn.Report {
	if r := l.Report(); r != nil {
		return r
	}
	r := &learn.Report{
		Mode: learn.Mode(res.Learn.Mode), Objective: learn.Objective(res.Learn.Objective), Device: res.Learn.Device,
		Rate: res.Learn.Rate, Steps: res.Learn.Steps, Tokens: res.Learn.Tokens,
		InitialLoss: res.Learn.InitialLoss, Loss: res.Learn.Loss, BestStep: res.Learn.BestStep,
	}
	return r
}

// writeControl is that of the refiner.
func (l *learner) writeControl(ctx context.Context, dir string, shapes map[string]*lut.Matrix, state string) error {
	return l.show(func() error { return l.WriteControl(ctx, dir, shapes, state) })
}

// show runs what learns, with its progress in the place of other.
func (l *learner) show(do func() error) error {
	defer l.paused()()
	src, err := l.src.Weights()
	if err == nil {
		err = checkMemory(src, l.calib.device == "cpu")
	}
	if err != nil {
		return err
	}
	defer func() {
		if l.bar != nil {
			l.bar.finish()
		}
	}()
	return do()
}

func progressLine(p learn.Progress) string {
	held := ""
	if p.Valid != 0 {
		held = fmt.Sprintf(" (held out %.4f)", p.Valid)
	}
	return fmt.Sprintf("loss %.4f%s, %s tokens/s", p.Loss, held, digits(p.TokensPerSecond, 3))
}

// learnControl writes the control of an experiment with learned scales, see
// [learn.Refiner.WriteControl].
func (u *ui) learnControl(ctx context.Context, plan *quantize.Plan, l *learner, out string, ro quantize.RunOptions, asJSON bool) (err error) {
	work, err := outdir.Create(out, outdir.Options{
		Inputs: append([]string{plan.Source.Dir()}, ro.Inputs...), Force: ro.Force,
		Plan: "control of " + plan.Recipe.Command() + " " + l.Key(), Resume: true,
	})
	if err != nil {
		return outputHint(err)
	}
	defer func() {
		if err != nil && ctx.Err() == nil {
			err = errors.Join(err, work.Discard())
		} else {
			err = errors.Join(err, work.Close())
		}
	}()
	shapes, err := plan.Shapes()
	if err != nil {
		return err
	}
	if err := l.writeControl(ctx, work.Dir(), shapes, work.Scratch("lutq-learning")); err != nil {
		return quantizeHint(err, out)
	}
	if err := work.Install(); err != nil {
		return outputHint(err)
	}
	r := l.Report()
	if asJSON {
		return u.printJSON(struct {
			Learn *learn.Report `json:"learn"`
		}{r})
	}
	fmt.Fprintf(u.stdout, "%s: %d factors learned; on held-out windows %s went from %.4f to %.4f\n",
		out, r.Parameters, r.Objective, r.InitialLoss, r.Loss)
	return nil
}
