package gptq

import (
	"github.com/lutq/lutq/formats/weight"
	"github.com/lutq/lutq/quantize/rounding"
)

// deviceQuantizer implements [rounding.Quantizer] where the state lies on a device.
type deviceQuantizer struct {
	*State
	Leveled

	// Scratch for the rows at hand.
	target       []float32
	fed, nearest rounding.Rounded
	outputs      []float32
}

// Rows implements [rounding.Quantizer].
func (q *deviceQuantizer) Rows(parts [][]byte, errs []rounding.RowError, w []float32) error {
	n, k := len(errs), q.k
	if err := q.CheckParts(parts, n, k); err != nil {
		return err
	}
	target := grow(&q.target, n*k)
	copy(target, w)
	if err := q.device.Retarget(target); err != nil {
		return err
	}
	keepFinite(target, w, k)
	if err := q.Fit(target, n); err != nil {
		return err
	}
	levels, group, count := q.Levels()
	for _, r := range []*rounding.Rounded{&q.fed, &q.nearest} {
		grow(&r.Codes, n*k)
		grow(&r.Loss, n)
		r.Codes, r.Loss = r.Codes[:n*k], r.Loss[:n]
	}
	outputs := grow(&q.outputs, n)
	if err := q.device.Round(q.fed, q.nearest, outputs, target, levels, group, count); err != nil {
		return err
	}
	groups := weight.GroupsIn(k, group)
	for r := range n {
		e := rounding.RowError{Output: float64(outputs[r]), Loss: float64(q.fed.Loss[r]), NearestLoss: float64(q.nearest.Loss[r]), Wants: q.Wants(r)}
		codes := q.fed.Codes[r*k : (r+1)*k]
		if !(e.Loss < e.NearestLoss) {
			codes, e.Loss = q.nearest.Codes[r*k:(r+1)*k], e.NearestLoss
		}
		stored := func(c int) float32 { return levels[(r*groups+c/group)*count+int(codes[c])] }
		for c := range codes {
			e.Add(w[r*k+c], stored(c))
		}
		q.undamp(&e, target[r*k:(r+1)*k], stored)
		errs[r] = e
		q.Store(parts, r, r, codes)
	}
	return nil
}

// A Ringed is a Blocker whose blocks are columns of rings, which a device can choose. Its rotation is that of the state's statistics.
type Ringed interface {
	Blocker
	// Rings returns what a device makes rings of n rows of k columns by, and where it puts them. With its scales rows are fitted.
	Rings(n, k int) rounding.Rings
}

// A Mixer is a Ringed that mixes rows before a device rotates their columns, so that sums over those tell nothing of its weights' errors.
type Mixer interface {
	// Mix writes what a device rotates and rounds of n rows of weights to dst.
	Mix(dst, w []float32, n int) error
	// Errors adds to the errors of the rows fitted those of their weights w, by the rings that were chosen.
	Errors(errs []rounding.RowError, w []float32)
}

// deviceRings implements [rounding.Quantizer] for rings where the state lies on a device.
type deviceRings struct {
	*State
	Ringed
	sums  []rounding.RingSums // of the rows at hand
	mixed []float32           // of a [Mixer]
}

// Rows implements [rounding.Quantizer].
func (q *deviceRings) Rows(parts [][]byte, errs []rounding.RowError, w []float32) error {
	n, k := len(errs), q.k
	if err := q.CheckParts(parts, n, k); err != nil {
		return err
	}
	for i, v := range w {
		if v-v != 0 {
			return &rounding.NotFiniteError{Row: i / k, Col: i % k, Value: v}
		}
	}
	r := q.Rings(n, k)
	r.Sums = grow(&q.sums, n)
	rows := w
	mixer, mixes := q.Ringed.(Mixer)
	if mixes {
		rows = grow(&q.mixed, n*k)
		if err := mixer.Mix(rows, w, n); err != nil {
			return err
		}
	}
	if err := q.device.Rings(r, rows); err != nil {
		return err
	}
	for i, s := range r.Sums {
		own := s.Output - 2*s.OutputMissed + s.Loss // ŵ·H·ŵᵀ
		left := 0.                                  // what stretching takes off ŵ, as a share of it
		if both := s.Output - s.OutputMissed; both > 0 && own > 0 {
			left = 1 - q.Stretch(i, both/own)
		}
		stretched := func(off, stored, squared float64) float64 { return max(off+2*left*stored+left*left*squared, 0) }
		loss := stretched(s.Loss, s.OutputMissed-s.Loss, own)
		errs[i] = rounding.RowError{
			Energy: s.Squared, Squared: stretched(s.Off, s.OffStored, s.Stored),
			Loss: loss, NearestLoss: s.ByChance, Wants: q.Wants(i),
			Output:        max(s.Output-q.added*s.Goal, 0),
			OutputSquared: max(loss-q.added*stretched(s.Missed, s.MissedStored, s.Stored), 0),
		}
	}
	if mixes {
		for i := range errs {
			errs[i].Energy, errs[i].Squared = 0, 0
		}
		mixer.Errors(errs, w)
	}
	q.Store(parts, 0)
	return nil
}

// OnDevice reports whether layers are rounded on a device.
func (s *State) OnDevice() bool { return s.device != nil }
