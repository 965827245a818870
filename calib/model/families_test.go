package model_test

import (
	"context"
	"math"
	"strings"
	"testing"

	"github.com/lutq/lutq/calib/model"
	"github.com/lutq/lutq/formats/arch"
	"github.com/lutq/lutq/formats/arch/archtest"
	"github.com/lutq/lutq/quantize/lut"
)

// TestFamilies compares logits, losses and gradients of a tiny model of every family with
// what transformers computes of it in float64.
func TestFamilies(t *testing.T) {
	for _, g := range archtest.Goldens(t) {
		t.Run(g.Name, func(t *testing.T) {
			dir := t.TempDir()
			g.Write(t, dir)
			m := open(t, dir, 2)
			got := logits(t, m, g.Tokens)
			for i, at := range g.Positions {
				if e := maxError(got[at*m.Vocab():(at+1)*m.Vocab()], widen(g.Logits[i])); e > 1e-5 {
					t.Errorf("logits at %d: relative error %.2g, want at most 1e-5", at, e)
				}
			}
			loss, err := m.Loss(context.Background(), g.Tokens, nil)
			if err != nil {
				t.Fatal(err)
			}
			if e := math.Abs(loss - g.Loss); e > 1e-5*g.Loss {
				t.Errorf("loss %.7f, want %.7f", loss, g.Loss)
			}
			familyGradients(t, m, g)
		})
	}
}

// familyGradients compares the gradient by a scale of every row of every layer.
func familyGradients(t *testing.T, m *model.Model, g archtest.Golden) {
	ops := m.Ops().(model.Gradients)
	weights, grads := make(map[string]model.Weight), make(map[string]model.Grad)
	for _, name := range m.Linears() {
		w := m.Weight(name)
		n, k := w.Shape()
		ones := make([]float32, n)
		for i := range ones {
			ones[i] = 1
		}
		trained, err := ops.Trainable(model.Trainable{N: n, K: k, Group: k, Scales: ones, ScaleType: lut.F32, Original: w})
		if err != nil {
			t.Fatal(err)
		}
		weights[name], grads[name] = trained, model.Grad{Scales: ops.Floats(n)}
	}
	student, err := m.With(weights)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := student.Gradient(context.Background(), g.Tokens, nil, grads); err != nil {
		t.Fatal(err)
	}
	// Of what is stored, the gradients of all rows of each matrix.
	rows := make(map[*arch.Stored][][]float64)
	for l := range m.Decoder().Linears() {
		if rows[l.Stored] == nil {
			rows[l.Stored] = make([][]float64, l.Stored.Matrices())
		}
		of := &rows[l.Stored][l.Expert]
		if *of == nil {
			*of = make([]float64, l.Stored.N)
		}
		v := make([]float32, l.N)
		ops.Read(v, grads[l.Name].Scales)
		for i, x := range v {
			(*of)[l.Row+i*l.Step] = float64(x)
		}
	}
	seen := 0
	for s, experts := range rows {
		for e, v := range experts {
			expert := e
			if s.Experts == 0 {
				expert = -1
			}
			for _, want := range g.Gradients {
				if want.Layer != strings.TrimSuffix(s.Tensor, ".weight") || want.Expert != expert {
					continue
				}
				seen++
				var alternating, norm float64
				for n, x := range v {
					alternating += x * float64(1-2*(n%2))
					norm += x * x
				}
				norm = math.Sqrt(norm)
				if d := math.Abs(norm-want.Norm) + math.Abs(alternating-want.Alternating); d > 2e-5*want.Norm+1e-9 {
					t.Errorf("gradient of %s, expert %d: norm %.8g and alternating sum %.8g, want %.8g and %.8g",
						s.Tensor, e, norm, alternating, want.Norm, want.Alternating)
				}
			}
		}
	}
	if seen != len(g.Gradients) {
		t.Errorf("%d of %d gradients were compared", seen, len(g.Gradients))
	}
}
