package learn

import (
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/lutq/lutq/formats/weight/lut"
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

// write gives layers what was learned, one stored matrix after the other.
func (t *trainer) write(layers Layers) error {
	if err := t.result(); err != nil {
		return err
	}
	return t.eachStored(func(path string, parts []*layer) error {
		var all *lut.Matrix
		for _, l := range parts {
			m, err := t.matrix(l)
			if err != nil {
				return err
			}
			if l.of.Whole() {
				all = m
				break
			}
			if all == nil { // rows that are no layer's stay what they are
				if all, err = layers.Read(path); err != nil {
					return err
				}
				all.Codebook = m.Codebook
			}
			all.SetRows(m, firstRow(l.of), l.of.Step)
		}
		if !t.now.recoded {
			all.Codes = nil
		}
		return layers.Write(path, all)
	})
}

// matrix returns a layer as it was learned. Codes that were never chosen anew are
// left out.
func (t *trainer) matrix(l *layer) (*lut.Matrix, error) {
	m := *l.shape
	m.Codebook = slices.Clone(m.Codebook)
	switch {
	case t.BF16:
		roundBF16(m.Codebook)
	case t.Table:
		t.ops.Read(m.Codebook, t.now.p.Slice(l.tableAt, l.tableAt+len(m.Codebook)))
	}
	scales := t.readScales(l)
	m.Scales = make([]byte, m.ScaleType.Size()*len(scales))
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
		rb := m.RowBytes()
		m.Codes = make([]byte, m.N*rb)
		parallel(m.N, func(n int) { lut.PackCodes(m.Codes[n*rb:(n+1)*rb], codes[n*m.K:(n+1)*m.K], m.Bits) })
	}
	return &m, t.ops.Err()
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
		s, groups := l.of.Stored, l.shape.Groups()
		f, ok := out[s.Path]
		if !ok {
			f = Factors{Group: l.shape.Group, Values: make([]float32, s.Matrices()*s.N*groups)}
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
	s := make([]float32, l.shape.N*l.shape.Groups())
	t.ops.Read(s, from.Slice(l.scaleAt, l.scaleEnd()))
	return s
}
