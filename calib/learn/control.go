package learn

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/lutq/lutq/formats/hf"
	"github.com/lutq/lutq/formats/lutq"
	"github.com/lutq/lutq/formats/num"
	"github.com/lutq/lutq/formats/outdir"
	"github.com/lutq/lutq/formats/weight"
)

// writeMultiplied writes a checkpoint with the weights of some layers multiplied.
func writeMultiplied(ctx context.Context, src *hf.Checkpoint, dir string, factors map[string]Factors) error {
	tensors := src.Tensors()
	entries := make([]hf.Entry, len(tensors))
	of := make([]*Factors, len(tensors))
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
		in, err := src.OpenFile(name)
		if err != nil {
			return err
		}
		if _, err := outdir.Copy(filepath.Join(dir, name), in); err != nil {
			return err
		}
	}
	return nil
}

func multiply(w *hf.Writer, t *hf.Tensor, f *Factors) error {
	n, k := t.Shape[0], t.Shape[1]
	groups := weight.GroupsIn(k, f.Group)
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
