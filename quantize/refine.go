package quantize

import (
	"context"
	"errors"
	"fmt"

	"github.com/lutq/lutq/formats/lutq"
	"github.com/lutq/lutq/quantize/lut"
)

// A Refiner improves the layers of a model together, after each of them was
// rounded to nearest by itself: it is what learns scales from text.
type Refiner interface {
	// Flags are the flags of the command line that ask for it again.
	Flags() []string
	// Key names all that its result depends on besides the matrices it is given.
	Key() string
	// Memory returns about how many bytes Refine takes at most besides the
	// initial matrices, of which it looks at the shapes only, and Seconds about how
	// long it takes.
	Memory(initial map[string]*lut.Matrix) int64
	Seconds(ctx context.Context) (float64, error)
	// Refine returns better matrices for some of the initial ones, by layer, of
	// the same shape and format and with sound scales. Between runs that are
	// interrupted it may keep what it has in the file state, which goes away
	// with the last of them. The initial matrices are not changed.
	Refine(ctx context.Context, initial map[string]*lut.Matrix, state string) (map[string]*lut.Matrix, *lutq.Learning, error)
}

// The methods, as recipes and containers spell them. A layer whose scales were
// learned has the method nfl on a NormalFloat table and rtn+learn on another.
const (
	methodRTN   = "rtn"
	methodNFL   = "nfl"
	methodLearn = "rtn+learn"
)

// refinedMethod names the method of a refined layer.
func refinedMethod(f lutq.Format) string {
	if f.Codebook == "nf" {
		return methodNFL
	}
	return methodLearn
}

// stateName is the file beside an output being built that a refiner keeps its
// state in.
const stateName = "lutq-learning"

// refined is what came of a plan's refiner.
type refined struct {
	matrices map[string]*lut.Matrix // of every quantized layer
	better   map[string]bool        // those that the refiner returned
	learning *lutq.Learning
}

// refine quantizes every layer into memory and has the refiner improve them.
func (r *run) refine(ctx context.Context, state string) error {
	var err error
	if r.initial, err = r.plan.Matrices(); err != nil {
		return err
	}
	for i := range r.plan.Items {
		if it := &r.plan.Items[i]; it.Quantized() {
			m := r.initial[it.Layer]
			m.Codes, m.Scales = make([]byte, it.stored[codesPart].size), make([]byte, it.stored[scalesPart].size)
		}
	}
	if _, err := r.schedule(ctx, make([]record, len(r.plan.Items))); err != nil {
		return err
	}
	initial := r.initial
	r.initial = nil
	better, learning, err := r.plan.Recipe.Refine.Refine(ctx, initial, state)
	if err != nil {
		return err
	}
	r.refined = &refined{matrices: initial, better: make(map[string]bool), learning: learning}
	for layer, m := range better {
		if err := sameFormat(initial[layer], m); err != nil {
			return fmt.Errorf("%s: refined: %w", layer, err)
		}
		initial[layer] = m
		r.refined.better[layer] = true
	}
	return nil
}

// Matrices returns the plan's layers as matrices without codes and scales.
func (p *Plan) Matrices() (map[string]*lut.Matrix, error) {
	all := make(map[string]*lut.Matrix)
	for i := range p.Items {
		it := &p.Items[i]
		if !it.Quantized() {
			continue
		}
		st, err := lut.ParseScaleType(it.Format.ScaleType)
		if err != nil {
			return nil, err
		}
		all[it.Layer] = &lut.Matrix{
			N: it.N, K: it.K, Bits: it.Format.Bits, Group: it.Format.Columns(it.K), ScaleType: st, Codebook: it.Codebook.Values,
		}
	}
	return all, nil
}

// sameFormat reports a refined matrix that cannot take its initial one's place.
func sameFormat(old, m *lut.Matrix) error {
	switch {
	case old == nil:
		return errors.New("no such layer")
	case m.N != old.N || m.K != old.K || m.Bits != old.Bits || m.Group != old.Group || m.ScaleType != old.ScaleType:
		return errors.New("the format is not the one that was asked for")
	}
	if err := m.Validate(); err != nil {
		return err
	}
	return lut.Codebook{Name: "table", Values: m.Codebook}.Check(m.Bits)
}

// keep quantizes a block into memory.
func (w *worker) keep(b block) error {
	cb, codes, scales, err := w.quantize(b)
	if err != nil {
		return err
	}
	m := w.initial[b.item.Layer]
	copy(m.Codes[b.from*b.item.rowBytes(codesPart):], codes)
	copy(m.Scales[b.from*b.item.rowBytes(scalesPart):], scales)
	if b.left.Add(-1) == 0 {
		m.Codebook = cb.Values
	}
	w.advance(b.bytes(), b.item.Tensor.Name)
	return nil
}

// place writes a block of a refined matrix, and notes its error.
func (w *worker) place(b block) error {
	it, m := b.item, w.refined.matrices[b.item.Layer]
	all, err := w.rows(it, b.from, b.to)
	if err != nil {
		return err
	}
	row, codes, scales := make([]float32, it.K), make([]uint8, it.K), make([]float32, m.Groups())
	for n := b.from; n < b.to; n++ {
		weights := all[(n-b.from)*it.K:][:it.K]
		m.Row(row, n, codes, scales)
		var e lut.RowError
		for k, v := range weights {
			d := float64(v) - float64(row[k])
			e.Energy += float64(v) * float64(v)
			e.Squared += d * d
		}
		b.errs[n] = e
	}
	codeBytes, scaleBytes := it.rowBytes(codesPart), it.rowBytes(scalesPart)
	return w.store(b, m.Codebook, m.Codes[b.from*codeBytes:b.to*codeBytes], m.Scales[b.from*scaleBytes:b.to*scaleBytes])
}
