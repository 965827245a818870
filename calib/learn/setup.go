package learn

import (
	"errors"
	"fmt"
	"runtime"
	"slices"

	"golang.org/x/sync/errgroup"

	"github.com/lutq/lutq/calib/model"
	"github.com/lutq/lutq/formats/arch"
	"github.com/lutq/lutq/formats/num"
	"github.com/lutq/lutq/quantize/lut"
)

func newTrainer(m *model.Model, initial map[string]*lut.Matrix, o Options, control bool) (*trainer, error) {
	ops, ok := m.Ops().(Ops)
	if !ok {
		return nil, fmt.Errorf("scales cannot be learned on the device %s", m.Ops().Name())
	}
	t := &trainer{ops: ops, control: control, grads: make(map[string]model.Grad)}
	bits := lut.MaxBits
	for l := range m.Decoder().Linears() {
		mat, ok := initial[l.Stored.Path]
		if !ok {
			continue
		}
		if err := mat.Validate(); err != nil {
			return nil, fmt.Errorf("%s: %w", l.Name, err)
		}
		if !l.Whole() && o.Table {
			return nil, fmt.Errorf("%s: its table is that of other layers too: tables cannot be learned", l.Name)
		}
		bits = min(bits, mat.Bits)
		t.layers = append(t.layers, layer{name: l.Name, of: l, initial: partOf(mat, l)})
	}
	if len(t.layers) == 0 {
		return nil, errors.New("no linear layer of the model is quantized: there is nothing to learn")
	}
	var err error
	if t.settings, err = o.resolve(bits); err != nil {
		return nil, err
	}
	if control {
		t.Recode, t.LSQ, t.Table, t.BF16 = 0, false, false, false
	}
	if t.Objective == KL {
		t.teacher = m
	}
	t.key = t.digest(m)
	if err := t.upload(m); err != nil {
		t.close()
		return nil, err
	}
	return t, nil
}

// partOf returns the rows of a stored matrix that are a layer's.
func partOf(m *lut.Matrix, l *arch.Linear) *lut.Matrix {
	if l.Whole() {
		return m
	}
	return m.Rows(l.Expert*l.Stored.N+l.Row, l.Step, l.N)
}

// upload brings layers and parameters to the device.
func (t *trainer) upload(m *model.Model) error {
	for i := range t.layers {
		l := &t.layers[i]
		l.scaleAt = t.scaleCount
		t.scaleCount += l.initial.N * l.initial.Groups()
	}
	for i := range t.layers {
		l := &t.layers[i]
		l.tableAt = t.scaleCount + t.tableCount
		if t.Table {
			t.tableCount += len(l.initial.Codebook)
		}
	}
	total := t.scaleCount + t.tableCount
	t.now.p, t.m, t.v, t.g = t.ops.Floats(total), t.ops.Floats(total), t.ops.Floats(total), t.ops.Floats(total)
	if t.log {
		t.scales, t.base = t.ops.Floats(t.scaleCount), t.ops.Floats(t.scaleCount)
	}
	if t.Recode > 0 {
		t.now.coded = t.ops.Floats(total)
	}
	if t.keepsBest() {
		t.best.p = t.ops.Floats(total)
		if t.Recode > 0 {
			t.best.coded = t.ops.Floats(total)
		}
	}
	weights := make(map[string]model.Weight, len(t.layers))
	for i := range t.layers {
		l := &t.layers[i]
		if err := t.uploadLayer(l, m); err != nil {
			return fmt.Errorf("%s: %w", l.name, err)
		}
		weights[l.name] = l.weight
		g := model.Grad{Scales: t.g.Slice(l.scaleAt, l.scaleEnd()), LSQ: t.LSQ}
		if t.Table {
			g.Table = t.g.Slice(l.tableAt, l.tableAt+len(l.initial.Codebook))
		}
		t.grads[l.name] = g
	}
	var err error
	t.student, err = m.With(weights)
	return err
}

// Memory returns about how many bytes of a device's memory learning takes for the
// layers, the model itself left out: a byte for each code, and up to eight numbers
// for each scale.
func Memory(initial map[string]*lut.Matrix) int64 {
	var n int64
	for _, m := range initial {
		n += int64(m.N) * (int64(m.K) + 8*4*int64(m.Groups()))
	}
	return n
}

func (l *layer) scaleEnd() int { return l.scaleAt + l.initial.N*l.initial.Groups() }

// keepsBest reports whether the state that is best on held-out windows is the result.
func (t *trainer) keepsBest() bool { return t.settings.best && len(t.Valid) > 0 }

// uploadLayer makes the layer's weight and sets its parameters.
func (t *trainer) uploadLayer(l *layer, m *model.Model) error {
	mat := l.initial
	tr := model.Trainable{
		N: mat.N, K: mat.K, Group: mat.Group,
		Codes: make([]uint8, mat.N*mat.K), Table: slices.Clone(mat.Codebook),
		Scales: make([]float32, mat.N*mat.Groups()), ScaleType: mat.ScaleType,
	}
	if t.control {
		tr.Codes, tr.Table, tr.ScaleType = nil, nil, lut.F32
		for i := range tr.Scales {
			tr.Scales[i] = 1
		}
	} else {
		parallel(mat.N, func(n int) {
			mat.RowCodes(tr.Codes[n*mat.K:(n+1)*mat.K], n)
			mat.RowScales(tr.Scales[n*mat.Groups():(n+1)*mat.Groups()], n)
		})
	}
	if t.BF16 {
		roundBF16(tr.Table)
		roundBF16(tr.Scales)
	}
	if t.control || t.Recode > 0 || t.LSQ {
		tr.Original = m.Weight(l.name)
	}
	var err error
	if l.weight, err = t.ops.Trainable(tr); err != nil {
		return err
	}
	if t.log {
		t.ops.Write(t.base.Slice(l.scaleAt, l.scaleEnd()), tr.Scales)
	} else {
		t.ops.Write(t.now.p.Slice(l.scaleAt, l.scaleEnd()), tr.Scales)
	}
	if t.Table {
		t.ops.Write(t.now.p.Slice(l.tableAt, l.tableAt+len(tr.Table)), tr.Table)
	}
	l.tableMax = float64(lut.Codebook{Values: mat.Codebook}.Max())
	return nil
}

// parallel calls f for 0 to n−1 on all processors.
func parallel(n int, f func(i int)) {
	var group errgroup.Group
	parts := min(n, runtime.GOMAXPROCS(0))
	for p := range parts {
		group.Go(func() error {
			for i := p * n / parts; i < (p+1)*n/parts; i++ {
				f(i)
			}
			return nil
		})
	}
	_ = group.Wait() // nothing fails
}

// roundBF16 rounds numbers to bfloat16, in place.
func roundBF16(v []float32) {
	b := make([]byte, 2*len(v))
	num.EncodeBF16(b, v)
	num.DecodeBF16(v, b)
}

// close gives the device's memory back.
func (t *trainer) close() {
	if t.student != nil {
		t.student.Close()
	}
	for i := range t.layers {
		if w := t.layers[i].weight; w != nil {
			t.ops.FreeWeight(w)
		}
	}
	for _, a := range []model.Array{t.now.p, t.now.coded, t.best.p, t.best.coded, t.m, t.v, t.g, t.scales, t.base} {
		if a != nil {
			t.ops.Free(a)
		}
	}
}
