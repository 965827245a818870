package learn

import (
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/lutq/lutq/quantize/lut"
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
		for i := range t.layers {
			t.ops.Recode(t.layers[i].weight, t.BF16)
		}
	}
	t.apply()
}

// matrices returns what was learned, by the paths of what is stored; initial is what
// its layers were before.
func (t *trainer) matrices(initial map[string]*lut.Matrix) (map[string]*lut.Matrix, error) {
	if err := t.result(); err != nil {
		return nil, err
	}
	out := make(map[string]*lut.Matrix, len(t.layers))
	for i := range t.layers {
		l := &t.layers[i]
		m := *l.initial
		m.Codebook = slices.Clone(m.Codebook)
		switch {
		case t.BF16:
			roundBF16(m.Codebook)
		case t.Table:
			t.ops.Read(m.Codebook, t.now.p.Slice(l.tableAt, l.tableAt+len(m.Codebook)))
		}
		scales := t.readScales(l)
		m.Scales = make([]byte, len(m.Scales))
		m.ScaleType.Encode(m.Scales, scales)
		m.ScaleType.Decode(scales, m.Scales)
		for j, s := range scales {
			if math.IsNaN(float64(s)) || math.IsInf(float64(s), 0) {
				return nil, fmt.Errorf("%s: learned scale %d is %v", l.name, j, s)
			}
		}
		if t.now.recoded {
			codes := make([]uint8, m.N*m.K)
			t.ops.Codes(codes, l.weight)
			m.Codes = make([]byte, len(m.Codes))
			rb := m.RowBytes()
			parallel(m.N, func(n int) { lut.PackCodes(m.Codes[n*rb:(n+1)*rb], codes[n*m.K:(n+1)*m.K], m.Bits) })
		}
		s := l.of.Stored
		if l.of.Whole() {
			out[s.Path] = &m
			continue
		}
		if out[s.Path] == nil {
			all := *initial[s.Path]
			all.Codes, all.Scales, all.Codebook = slices.Clone(all.Codes), slices.Clone(all.Scales), m.Codebook
			out[s.Path] = &all
		}
		out[s.Path].SetRows(&m, l.of.Expert*s.N+l.of.Row, l.of.Step)
	}
	return out, t.ops.Err()
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
		s, groups := l.of.Stored, l.initial.Groups()
		f, ok := out[s.Path]
		if !ok {
			f = Factors{Group: l.initial.Group, Values: make([]float32, s.Matrices()*s.N*groups)}
			out[s.Path] = f
		}
		for i := range l.of.N {
			to := l.of.Expert*s.N + l.of.Row + i*l.of.Step
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
	s := make([]float32, l.initial.N*l.initial.Groups())
	t.ops.Read(s, from.Slice(l.scaleAt, l.scaleEnd()))
	return s
}
