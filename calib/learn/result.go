package learn

import (
	"fmt"
	"math"
	"slices"
	"time"
)

func (t *trainer) report() *Report {
	r := &Report{
		Mode: t.Mode, Objective: t.Objective, Device: t.ops.Name(),
		Layers: len(t.layers), Parameters: t.scaleCount + t.tableCount, Rate: t.Rate,
		Steps: t.steps, Tokens: t.Epochs * tokens(t.Windows),
		Losses: t.progress.Losses, Validation: t.progress.Validation,
		BestStep: t.steps, ResumedAt: t.begunAt, Seconds: time.Since(t.begin).Seconds(),
	}
	if t.keepsBest() {
		r.BestStep = t.progress.BestStep
	}
	for _, v := range t.progress.Validation {
		if v.Step == 0 {
			r.InitialLoss = v.Loss
		}
		if v.Step == r.BestStep {
			r.Loss = v.Loss
		}
	}
	if t.seen > 0 {
		r.TokensPerSecond = float64(t.seen) / r.Seconds
	}
	return r
}

func tokens(windows [][]int) int {
	n := 0
	for _, w := range windows {
		n += len(w)
	}
	return n
}

// result makes the state that is kept the one at hand.
func (t *trainer) result() error {
	if t.keepsBest() {
		t.ops.Copy(t.now.p, t.best.p)
		if t.now.recoded = t.best.recoded; t.now.recoded {
			t.ops.Copy(t.now.coded, t.best.coded)
		}
	}
	t.restore()
	return t.ops.Err()
}

// restore gives the layers the codes, scales and tables of the point at hand.
// Codes that were never chosen anew are left as they are.
func (t *trainer) restore() {
	if t.now.recoded {
		p := t.now.p
		t.now.p = t.now.coded
		t.apply()
		t.now.p = p
		t.chooseCodes()
	}
	t.apply()
}

// write gives layers what was learned, one stored matrix after the other.
func (t *trainer) write(layers Layers) error {
	if err := t.result(); err != nil {
		return err
	}
	return t.eachStored(func(path string, parts []*layer) error {
		m, err := layers.Read(path)
		if err != nil {
			return err
		}
		all, err := storedOf(m)
		if err != nil {
			return err
		}
		var of outcome
		for _, l := range parts { // rows that are no layer's stay what they are
			if of, err = t.outcome(l); err != nil {
				return err
			}
			all.set(of, firstRow(l.of), l.of.Step)
		}
		all.only(of)
		return layers.Write(path, m)
	})
}

// outcome returns what was learned for a layer. Codes that were never chosen anew are
// left out.
func (t *trainer) outcome(l *layer) (outcome, error) {
	s := &l.shape
	of := outcome{rows: s.n}
	switch {
	case t.BF16:
		of.table = slices.Clone(l.table)
		roundBF16(of.table)
	case t.Table:
		of.table = make([]float32, s.entries)
		t.ops.Read(of.table, t.now.p.Slice(l.tableAt, l.tableAt+s.entries))
	}
	scales := t.readScales(l)
	of.scales = make([]byte, s.scaleType.Size()*len(scales))
	s.scaleType.Encode(of.scales, scales)
	s.scaleType.Decode(scales, of.scales)
	for j, s := range scales {
		if math.IsNaN(float64(s)) || math.IsInf(float64(s), 0) {
			return of, fmt.Errorf("%s: learned scale %d is %v", l.name, j, s)
		}
	}
	if t.now.recoded {
		of.codes = make([]uint8, s.n*s.k)
		t.ops.Codes(of.codes, l.weight)
	}
	return of, t.ops.Err()
}

// factors returns what the weights of a control are multiplied by.
func (t *trainer) factors() (map[string]Factors, error) {
	if err := t.result(); err != nil {
		return nil, err
	}
	out := make(map[string]Factors, len(t.layers))
	for i := range t.layers {
		l := &t.layers[i]
		values := t.readScales(l)
		s, groups := l.of.Stored, l.shape.groups()
		f, ok := out[s.Path]
		if !ok {
			f = Factors{Group: l.shape.group, Values: make([]float32, s.Matrices()*s.N*groups)}
			out[s.Path] = f
		}
		for i := range l.of.N {
			to := firstRow(l.of) + i*l.of.Step
			copy(f.Values[to*groups:(to+1)*groups], values[i*groups:])
		}
	}
	return out, t.ops.Err()
}

func (t *trainer) readScales(l *layer) []float32 {
	from := t.now.p
	if t.log {
		from = t.scales
	}
	s := make([]float32, l.shape.n*l.shape.groups())
	t.ops.Read(s, from.Slice(l.scaleAt, l.scaleEnd()))
	return s
}
