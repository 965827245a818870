package fit

import (
	"context"
	"errors"
	"strconv"

	"github.com/lutq/lutq/calib/corpus"
	"github.com/lutq/lutq/calib/learn"
	"github.com/lutq/lutq/formats/lutq"
	"github.com/lutq/lutq/formats/outdir"
	"github.com/lutq/lutq/formats/source"
	"github.com/lutq/lutq/formats/weight"
	"github.com/lutq/lutq/quantize"
)

// Learner learns scales. It implements [quantize.Refiner].
type Learner struct {
	*learn.Refiner
	o     Options
	text  *corpus.Mixture
	alone bool   // nothing else asks for the text
	end   func() // of what Begin began
}

func newLearner(m *source.Model, text *corpus.Mixture, o Options, alone bool) (*Learner, error) {
	l := &Learner{o: o, text: text, alone: alone}
	var err error
	l.Refiner, err = learn.NewRefiner(m, learn.RefinerOptions{
		Options: o.Learn.Options, Text: text, Device: o.Device, Open: o.Open,
		Begin: func() { l.end = o.Begin("learning") },
	})
	return l, err
}

// Flags implements [quantize.Refiner].
func (l *Learner) Flags() []string {
	o := l.o.Learn
	var args []string
	if o.After {
		args = append(args, "--learn")
	}
	if l.alone {
		args = append(args, l.o.textFlags(l.text)...)
	}
	args = append(args, "--valid-windows", strconv.Itoa(o.Valid), "--learn-mode", string(o.Mode))
	for _, f := range []struct {
		name, value string
		given       bool
	}{
		{"--learn-objective", string(o.Objective), o.Objective != ""},
		{"--learn-rate", number(o.Rate), o.Rate != 0},
		{"--learn-epochs", strconv.Itoa(o.Epochs), o.Epochs != 1},
		{"--learn-batch", strconv.Itoa(o.Batch), o.Batch != 1},
		{"--learn-recode", strconv.Itoa(o.Recode), o.Recode != 0},
		{"--learn-grad", "lsq", o.LSQ},
		{"--learn-params", "bf16", o.BF16},
	} {
		if f.given {
			args = append(args, f.name, f.value)
		}
	}
	if o.Table {
		args = append(args, "--learn-table")
	}
	if l.alone {
		args = append(args, l.o.whereFlags()...)
	}
	return args
}

// Key implements [quantize.Refiner].
func (l *Learner) Key() string { return key(l.Flags(), l.text) }

// Refine implements [quantize.Refiner].
func (l *Learner) Refine(ctx context.Context, shapes map[string]weight.Matrix, layers *quantize.Layers, state string) (record *lutq.Learning, err error) {
	err = l.begun(func() (err error) {
		record, err = l.Refiner.Refine(ctx, shapes, layers, state)
		return err
	})
	return record, err
}

// begun does what learns, and ends what that begins.
func (l *Learner) begun(do func() error) error {
	if l.o.Learn.Ready != nil {
		if err := l.o.Learn.Ready(); err != nil {
			return err
		}
	}
	defer func() {
		if l.end != nil {
			l.end()
		}
	}()
	return do()
}

// ReportOf returns what learning did for the result of a run. Of what an earlier run did there is
// what the container says.
func (l *Learner) ReportOf(res *quantize.Result) *learn.Report {
	if r := l.Report(); r != nil {
		return r
	}
	return &learn.Report{
		Mode: learn.Mode(res.Learn.Mode), Objective: learn.Objective(res.Learn.Objective), Device: res.Learn.Device,
		Rate: res.Learn.Rate, Steps: res.Learn.Steps, Tokens: res.Learn.Tokens,
		InitialLoss: res.Learn.InitialLoss, Loss: res.Learn.Loss, BestStep: res.Learn.BestStep,
	}
}

// Control writes the control of an experiment with learned scales to out, in the place of what a plan would make, see
// [learn.Refiner.WriteControl]. Interrupted, it goes on when it is called again.
func (l *Learner) Control(ctx context.Context, plan *quantize.Plan, out string, ro quantize.RunOptions) (r *learn.Report, err error) {
	work, err := outdir.Create(out, outdir.Options{
		Inputs: append([]string{plan.Source.Dir()}, ro.Inputs...), Force: ro.Force,
		Plan: "control of " + plan.Recipe.Command() + " " + l.Key(), Resume: true,
	})
	if err != nil {
		return nil, err
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
		return nil, err
	}
	err = l.begun(func() error { return l.WriteControl(ctx, work.Dir(), shapes, work.Scratch("lutq-learning")) })
	if err != nil {
		return nil, err
	}
	return l.Report(), work.Install()
}
