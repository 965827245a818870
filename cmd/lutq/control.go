package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/lutq/lutq/calib/learn"
	"github.com/lutq/lutq/calib/model"
	"github.com/lutq/lutq/formats/folder"
	"github.com/lutq/lutq/formats/hf"
	"github.com/lutq/lutq/formats/input"
	"github.com/lutq/lutq/formats/lutq"
	"github.com/lutq/lutq/formats/num"
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
	if err := writeMultiplied(ctx, plan.Source, work.Dir(), factors); err != nil {
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

// writeMultiplied writes a checkpoint with the weights of some layers multiplied.
func writeMultiplied(ctx context.Context, src *hf.Checkpoint, dir string, factors map[string]learn.Factors) error {
	tensors := src.Tensors()
	entries := make([]hf.Entry, len(tensors))
	of := make([]*learn.Factors, len(tensors))
	for i, t := range tensors {
		entries[i] = hf.Entry{Name: t.Name, DType: t.DType, Shape: t.Shape}
		for layer, f := range factors {
			if len(t.Shape) == 2 && t.Name == layer+lutq.WeightSuffix {
				entries[i].DType, of[i] = hf.F32, &f
			}
		}
	}
	w, err := hf.NewWriter(dir, entries, hf.WriterOptions{Resume: true})
	if err != nil {
		return err
	}
	defer w.Abort() // does nothing after Commit
	for i, t := range tensors {
		if err := ctx.Err(); err != nil {
			return err
		}
		if of[i] == nil {
			err = w.CopyTensor(ctx, t)
		} else {
			err = multiply(w, t, of[i])
		}
		if err != nil {
			return fmt.Errorf("%s: %w", t.Name, err)
		}
	}
	if err := w.Commit(); err != nil {
		return err
	}
	config, err := src.ConfigJSON()
	if err != nil {
		return err
	}
	const configName = "config.json"
	if err := os.WriteFile(filepath.Join(dir, configName), config, 0o644); err != nil {
		return err
	}
	for _, name := range src.SideFiles() {
		if name == configName {
			continue
		}
		if err := copyFile(filepath.Join(dir, name), filepath.Join(src.Dir(), name)); err != nil {
			return err
		}
	}
	return nil
}

func copyFile(dst, src string) error {
	in, err := input.Open(src)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.Create(dst)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Close())
}

func multiply(w *hf.Writer, t *hf.Tensor, f *learn.Factors) error {
	n, k := t.Shape[0], t.Shape[1]
	groups := lut.GroupsIn(k, f.Group)
	row, data := make([]float32, k), make([]byte, 4*k)
	for i := range n {
		if err := t.ReadFloat32(row, int64(i)*int64(k)); err != nil {
			return err
		}
		for j := range row {
			row[j] *= f.Values[i*groups+j/f.Group]
		}
		num.EncodeF32(data, row)
		if err := w.WriteAt(t.Name, data, 4*int64(i)*int64(k)); err != nil {
			return err
		}
	}
	return nil
}
