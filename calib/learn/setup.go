package learn

import (
	"encoding/hex"
	"errors"
	"fmt"
	"slices"

	"github.com/lutq/lutq/calib/model"
	"github.com/lutq/lutq/formats/arch"
	"github.com/lutq/lutq/formats/hf"
	"github.com/lutq/lutq/formats/num"
	"github.com/lutq/lutq/formats/weight"
	"github.com/lutq/lutq/formats/weight/lut"
)

// newTrainer brings the layers of these shapes to the device: as layers has them or, where
// that is nil, the original ones with factors of 1.
func newTrainer(m *model.Model, shapes map[string]weight.Matrix, layers Layers, o Options) (*trainer, error) {
	t, err := newTrainerOn(m, shapes, layers, o, false)
	if err != nil {
		return nil, err
	}
	for _, m := range o.Beside {
		h, err := newTrainerOn(m, shapes, layers, o, true)
		if err != nil {
			t.close()
			return nil, model.On(m.Ops(), err)
		}
		t.hands = append(t.hands, h)
	}
	if n := len(t.hands) + 1; t.Batch < n && t.Warn != nil {
		t.Warn(fmt.Sprintf("a step takes %d of the windows, so that no more of the %d devices take part in it", t.Batch, n))
	}
	return t, nil
}

// newTrainerOn is newTrainer on one device, which may be a hand.
func newTrainerOn(m *model.Model, shapes map[string]weight.Matrix, layers Layers, o Options, hand bool) (*trainer, error) {
	ops, ok := m.Ops().(Ops)
	if !ok {
		return nil, fmt.Errorf("scales cannot be learned on the device %s", m.Ops().Name())
	}
	t := &trainer{ops: ops, isHand: hand, control: layers == nil, grads: make(map[string]model.Grad)}
	bits, rings := lut.MaxBits, false
	for l := range m.Decoder().Linears() {
		m, ok := shapes[l.Stored.Path]
		if !ok {
			continue
		}
		st, err := storedOf(m)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", l.Name, err)
		}
		own := st.shape()
		if !t.control {
			if err := o.check(own); err != nil {
				return nil, fmt.Errorf("%s: %w", l.Name, err)
			}
		}
		if !l.Whole() && o.Table {
			return nil, fmt.Errorf("%s: its table is that of other layers too: tables cannot be learned", l.Name)
		}
		bits = min(bits, own.bits)
		rings = rings || own.entries == 0
		own.n = l.N
		if t.control {
			own.scaleType = weight.F32 // in which factors are exact
		}
		t.layers = append(t.layers, layer{name: l.Name, of: l, shape: own})
	}
	if len(t.layers) == 0 {
		return nil, errors.New("no linear layer of the model is quantized: there is nothing to learn")
	}
	var err error
	if t.settings, err = o.resolve(rateOf(bits, rings, o.Fitted)); err != nil {
		return nil, err
	}
	if t.control {
		t.Recode, t.LSQ, t.Table, t.BF16 = 0, false, false, false
	}
	if t.Objective == KL {
		t.teacher = m
	}
	if err := t.upload(m, layers); err != nil {
		t.close()
		return nil, err
	}
	return t, nil
}

// partOf returns the rows of a stored matrix that are a layer's.
func partOf(m weight.Matrix, l *arch.Linear) (stored, error) {
	if !l.Whole() {
		m = m.Rows(firstRow(l), l.Step, l.N)
	}
	return storedOf(m)
}

// firstRow returns the row of what is stored that is a layer's first.
func firstRow(l *arch.Linear) int { return l.Expert*l.Stored.N + l.Row }

// eachStored calls do for everything stored that layers are parts of, with those.
func (t *trainer) eachStored(do func(path string, parts []*layer) error) error {
	var paths []string
	parts := make(map[string][]*layer)
	for i := range t.layers {
		path := t.layers[i].of.Stored.Path
		if parts[path] == nil {
			paths = append(paths, path)
		}
		parts[path] = append(parts[path], &t.layers[i])
	}
	for _, path := range paths {
		if err := do(path, parts[path]); err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
	}
	return nil
}

// upload brings parameters and layers to the device, and reads one after the other.
func (t *trainer) upload(m *model.Model, layers Layers) error {
	for i := range t.layers {
		l := &t.layers[i]
		l.scaleAt = t.scaleCount
		t.scaleCount += l.shape.n * l.shape.groups()
	}
	for i := range t.layers {
		l := &t.layers[i]
		l.tableAt = t.scaleCount + t.tableCount
		if t.Table {
			t.tableCount += l.shape.entries
		}
	}
	total := t.scaleCount + t.tableCount
	t.now.p, t.g = t.ops.Floats(total), t.ops.Floats(total)
	if t.log {
		t.scales, t.base = t.ops.Floats(t.scaleCount), t.ops.Floats(t.scaleCount)
	}
	if !t.isHand {
		t.m, t.v = t.ops.Floats(total), t.ops.Floats(total)
	}
	if t.Recode > 0 && !t.isHand {
		t.now.coded = t.ops.Floats(total)
	}
	if t.keepsBest() && !t.isHand {
		t.best.p = t.ops.Floats(total)
		if t.Recode > 0 {
			t.best.coded = t.ops.Floats(total)
		}
	}
	key := t.digest(m)
	weights := make(map[string]model.Weight, len(t.layers))
	err := t.eachStored(func(path string, parts []*layer) error {
		var all weight.Matrix
		if !t.control {
			var err error
			if all, err = layers.Read(path); err != nil {
				return err
			}
			if err := all.Validate(); err != nil {
				return err
			}
			addMatrix(key, all)
		}
		for _, l := range parts {
			if err := t.uploadLayer(l, all, m); err != nil {
				return err
			}
			weights[l.name] = l.weight
			g := model.Grad{Scales: t.g.Slice(l.scaleAt, l.scaleEnd()), LSQ: t.LSQ}
			if t.Table {
				g.Table = t.g.Slice(l.tableAt, l.tableAt+l.shape.entries)
			}
			t.grads[l.name] = g
		}
		return nil
	})
	if err != nil {
		return err
	}
	t.key = hex.EncodeToString(key.Sum(nil))
	t.student, err = m.With(weights)
	return err
}

// Memory returns about how many bytes of a device's memory learning takes for the
// layers of these shapes, the model itself left out: a byte for each code or a number for what else scales multiply, and up to
// eight numbers for each scale.
func Memory(shapes map[string]weight.Matrix) int64 {
	var n int64
	for _, m := range shapes {
		st, err := storedOf(m)
		if err != nil {
			continue // of which nothing is learned
		}
		s := st.shape()
		each := int64(1)
		if s.entries == 0 {
			each = 4
		}
		n += int64(s.n) * (each*int64(s.k) + 8*4*int64(s.groups()))
	}
	return n
}

func (l *layer) scaleEnd() int { return l.scaleAt + l.shape.n*l.shape.groups() }

// keepsBest reports whether the state that is best on held-out windows is the result.
func (t *trainer) keepsBest() bool { return t.settings.best && len(t.Valid) > 0 }

// uploadLayer makes a weight of the layer's rows of all that is stored, and sets its
// parameters.
func (t *trainer) uploadLayer(l *layer, all weight.Matrix, m *model.Model) error {
	s := &l.shape
	tr := model.Trainable{N: s.n, K: s.k, Group: s.group, Scales: make([]float32, s.n*s.groups()), ScaleType: s.scaleType}
	if t.control {
		for i := range tr.Scales {
			tr.Scales[i] = 1
		}
	} else {
		st, err := partOf(all, l.of)
		if err != nil {
			return err
		}
		if values := st.weights(&tr); values != nil {
			data := make([]byte, 4*len(values))
			num.EncodeF32(data, values)
			if l.base, err = t.ops.Dense(s.n, s.k, hf.F32, data); err != nil {
				return err
			}
			tr.Original = l.base
		}
		if tr.Table != nil {
			l.table = slices.Clone(tr.Table) // which scales of one byte may have multiplied
			l.tableMax = float64(lut.Codebook{Values: l.table}.Max())
		}
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
	return nil
}

// roundBF16 rounds numbers to bfloat16, in place.
func roundBF16(v []float32) {
	b := make([]byte, 2*len(v))
	num.EncodeBF16(b, v)
	num.DecodeBF16(v, b)
}

// close gives the device's memory back.
func (t *trainer) close() {
	for _, h := range t.hands {
		h.close()
	}
	if t.student != nil {
		t.student.Close()
	}
	for i := range t.layers {
		for _, w := range []model.Weight{t.layers[i].weight, t.layers[i].base} {
			if w != nil {
				t.ops.FreeWeight(w)
			}
		}
	}
	for _, a := range []model.Array{t.now.p, t.now.coded, t.best.p, t.best.coded, t.m, t.v, t.g, t.scales, t.base} {
		if a != nil {
			t.ops.Free(a)
		}
	}
}
