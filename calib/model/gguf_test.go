package model_test

import (
	"context"
	"path/filepath"
	"testing"

	"github.com/lutq/lutq/calib/model"
	"github.com/lutq/lutq/formats/arch/archtest"
	"github.com/lutq/lutq/formats/dense"
	"github.com/lutq/lutq/formats/export"
	"github.com/lutq/lutq/formats/gguf"
	"github.com/lutq/lutq/formats/racetest"
	"github.com/lutq/lutq/formats/source/modeltest"
	"github.com/lutq/lutq/formats/weight"
	"github.com/lutq/lutq/quantize/rtn"
)

// TestGGUF writes models of every family that has a GGUF, and compares what is read of the file with transformers in float64.
func TestGGUF(t *testing.T) {
	racetest.Skip(t)
	read := 0
	for _, g := range archtest.Goldens(t) {
		dir := t.TempDir()
		g.Write(t, dir)
		plan, err := export.New(context.Background(), modeltest.Open(t, dir), gguf.Target{NoTokenizer: true})
		if err != nil {
			t.Logf("%s has none: %v", g.Name, err)
			continue
		}
		read++
		t.Run(g.Name, func(t *testing.T) {
			out := filepath.Join(t.TempDir(), "gguf")
			if _, err := plan.Run(context.Background(), out, export.Options{NewRounder: rtn.NewRounder}); err != nil {
				t.Fatal(err)
			}
			checkLogits(t, out, g)
			// And as a folder again, which has some stacks of experts by columns.
			plan, err := export.New(context.Background(), modeltest.Open(t, out), dense.Target{DType: weight.F32})
			if err != nil {
				t.Fatal(err)
			}
			folder := filepath.Join(t.TempDir(), "dense")
			if _, err := plan.Run(context.Background(), folder, export.Options{NewRounder: rtn.NewRounder}); err != nil {
				t.Fatal(err)
			}
			checkLogits(t, folder, g)
		})
	}
	if least := 60; read < least {
		t.Errorf("%d models have a GGUF: want %d at least", read, least)
	}
}

// checkLogits compares the model in a folder with a golden one.
func checkLogits(t *testing.T, dir string, g archtest.Golden) {
	t.Helper()
	m, err := model.Open(modeltest.Open(t, dir), newOps(t, 2), model.OpenOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	all := logits(t, m, g.Tokens)
	for i, at := range g.Positions {
		var want []float64
		for _, v := range g.Logits[i] {
			want = append(want, float64(v))
		}
		if e := maxError(all[at*m.Vocab():(at+1)*m.Vocab()], want); !(e <= 1e-5) {
			t.Errorf("logits of position %d differ by %.2g", at, e)
		}
	}
}
