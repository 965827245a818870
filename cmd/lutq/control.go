package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/lutq/lutq/calib/learn"
	"github.com/lutq/lutq/calib/model"
	"github.com/lutq/lutq/formats/folder"
	"github.com/lutq/lutq/quantize"
	"github.com/lutq/lutq/quantize/lut"
)

// learnControl writes the control of an experiment with learned scales: the
// model itself, with as many factors learned for its weights as a plan has
// scales. What it gains on a text is not the repair of quantization. Its layers
// are of type F32, so that the factors are exact.
func (u *ui) learnControl(ctx context.Context, plan *quantize.Plan, l *learner, out string, ro quantize.RunOptions, asJSON bool) (err error) {
	work, err := folder.Create(out, folder.Options{
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
	shapes, err := plan.Matrices()
	if err != nil {
		return err
	}
	for _, m := range shapes {
		m.ScaleType = lut.F32
		m.Codes, m.Scales = make([]byte, m.N*m.RowBytes()), make([]byte, 4*m.N*m.Groups())
	}
	var factors map[string]learn.Factors
	err = l.run(learn.Memory(shapes), func(m *model.Model, o learn.Options) (rep *learn.Report, err error) {
		o.State = work.Scratch("lutq-learning")
		factors, rep, err = learn.Control(ctx, m, shapes, o)
		return rep, err
	})
	if err != nil {
		return quantizeHint(err, out)
	}
	if err := learn.WriteMultiplied(ctx, plan.Source, work.Dir(), factors); err != nil {
		return quantizeHint(err, out)
	}
	if err := work.Install(); err != nil {
		return outputHint(err)
	}
	if asJSON {
		return u.printJSON(struct {
			Learn *learn.Report `json:"learn"`
		}{l.report})
	}
	fmt.Fprintf(u.stdout, "%s: %d factors learned; on held-out windows %s went from %.4f to %.4f\n",
		out, l.report.Parameters, l.report.Objective, l.report.InitialLoss, l.report.Loss)
	return nil
}
