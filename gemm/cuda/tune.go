package cuda

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"github.com/lutq/lutq/gemm/cuda/driver"
	"github.com/lutq/lutq/gemm/cuda/timing"
)

// Timing is how long one multiplication takes in a way, in microseconds.
type Timing struct {
	Way Way
	Us  float64
}

// tuneReplays is how often each graph is timed.
const tuneReplays = 7

// Tune times the configurations for o.M rows, or for more than one launch multiplies those of the first, on matrices of one
// shape and format, used in turn as a decoder does its layers': together they
// should be several times as large as the level-2 cache. The fastest one is used
// from now on and kept in the cache. It returns the timings, medians, fastest first.
// Y is overwritten; no choice changes its bits. Scratch memory is that of [Engine.TuneScratch].
func (e *Engine) Tune(s *driver.Stream, ring []*Matrix, o Operands) ([]Timing, error) {
	if err := o.checkRing(ring); err != nil {
		return nil, err
	}
	t := ring[0].Tiles
	o.M = t.AtOnce(e.gpu, o.M)
	configs, err := t.Configs(e.gpu, o.M)
	if err != nil {
		return nil, err
	}
	e.dev.Prepare(e.kernels(t, o.M, configs))
	if o, err = e.prepared(s, t, o, configs); err != nil {
		return nil, err
	}
	rows := bucket(o.M)
	return e.tune(s, choice{ofConfig, t.Key(e.gpu, rows)}, t, rows, configs, len(ring), func(by Way, i int) error {
		return e.MatMulWay(s, ring[i], o, by)
	})
}

// prepared returns operands with X in the form that some ways read it in, if all read it in one: behind the sums in scratch memory.
func (e *Engine) prepared(s *driver.Stream, t Tiles, o Operands, ways []Way) (Operands, error) {
	n, k := t.Shape()
	form, sums := ways[0].Needs(n, k, o.M).Form, 0
	for _, by := range ways {
		needs := by.Needs(n, k, o.M)
		if needs.Form != form {
			return o, nil
		}
		sums = max(sums, needs.Sums)
	}
	if form == nil || o.Form != nil || o.Scratch == 0 {
		return o, nil
	}
	sums = (sums + 15) / 16 * 16
	to := o.Scratch + driver.Ptr(sums)
	if err := e.Prepare(s, form, t.Format().Type, to, o.X, o.M, k); err != nil {
		return o, err
	}
	o.X, o.Form = to, form
	return o, nil
}

// TuneScratch returns the scratch memory that [Engine.Tune] wants for m rows of X.
func (e *Engine) TuneScratch(t Tiles, m int) int {
	n, k := t.Shape()
	m = t.AtOnce(e.gpu, m)
	most := 0
	for _, by := range e.Configs(t, m) {
		most = max(most, by.Needs(n, k, m).Scratch(m, k)+15)
	}
	return most
}

// checkRing returns an error unless the matrices of a ring are alike, and may be multiplied by.
func (o Operands) checkRing(ring []*Matrix) error {
	if len(ring) == 0 {
		return errors.New("no matrices to tune with")
	}
	n, k := ring[0].Shape()
	for _, w := range ring {
		if n2, k2 := w.Shape(); n2 != n || k2 != k || w.Format() != ring[0].Format() {
			return errors.New("tuning needs matrices of one shape and format")
		}
		if err := o.check(w); err != nil {
			return err
		}
	}
	return nil
}

// TuneWays times the ways to multiply o.M rows, more than 16, as [Engine.Tune] does, with scratch memory of
// [Engine.MostScratch], and keeps the fastest. Where u is nil [AsNumbers] is left out.
//
// Where norms, gates and attention of a model write X as a way reads it, it is prepared before, which is no part of the time.
func (e *Engine) TuneWays(s *driver.Stream, ring []*Matrix, o Operands, u *Unpacked) ([]Timing, error) {
	if err := o.checkRing(ring); err != nil {
		return nil, err
	}
	if o.M <= MaxRows {
		return nil, fmt.Errorf("tuning ways for %d rows: want more than %d", o.M, MaxRows)
	}
	t := ring[0].Tiles
	_, k := t.Shape()
	tried := e.Ways(t, o.M)
	e.dev.Prepare(e.kernels(t, o.M, tried))
	usable := slices.DeleteFunc(slices.Clone(tried), func(by Way) bool {
		return by == AsNumbers && u == nil || o.Scratch == 0 && e.NeedsOf(t, by, o.M).Scratch(o.M, k) > 0
	})
	written := o
	if written.Form = e.written(t, o.M, usable); written.Form != nil {
		written.X = o.Scratch + driver.Ptr(e.mostScratch(t, o.M, usable))
		if err := e.Prepare(s, written.Form, t.Format().Type, written.X, o.X, o.M, k); err != nil {
			return nil, err
		}
	}
	rows := Alike(o.M)
	return e.tune(s, choice{ofWay, t.Key(e.gpu, rows)}, t, rows, usable, len(ring), func(by Way, i int) error {
		switch {
		case by == AsNumbers:
			return u.MatMul(s, ring[i], o, t.Format().Type, false)
		case written.Form != nil && e.NeedsOf(t, by, o.M).Form == written.Form:
			return e.MatMulWay(s, ring[i], written, by)
		}
		return e.MatMulWay(s, ring[i], o, by)
	})
}

// tune times products in some ways by a ring of so many matrices, and keeps the fastest for rows that are treated alike.
func (e *Engine) tune(s *driver.Stream, key choice, t Tiles, rows int, ways []Way, ring int, multiply func(by Way, i int) error) ([]Timing, error) {
	if len(ways) == 0 {
		return nil, errors.New("no way to multiply is left")
	}
	var arms []*timing.Arm
	for _, by := range ways {
		arms = append(arms, &timing.Arm{Ring: ring, Call: func(i int) error {
			if err := multiply(by, i%ring); err != nil {
				return fmt.Errorf("tuning %v: %w", by, err)
			}
			return nil
		}})
	}
	if err := timing.Measure(e.dev, s, arms, tuneReplays); err != nil {
		return nil, err
	}
	var all []Timing
	for i, a := range arms {
		all = append(all, Timing{ways[i], a.Median()})
	}
	slices.SortStableFunc(all, func(a, b Timing) int { return cmp.Compare(a.Us, b.Us) })
	e.keep(key, t, rows, all[0].Way)
	return all, nil
}

// Shortlist returns what is worth trying of ways that take about so long, the best guess first: at most so many, and none that is taken
// to take more than within times as long as the first.
func Shortlist(all []Way, cost func(Way) float64, most int, within float64) []Way {
	slices.SortStableFunc(all, func(a, b Way) int { return cmp.Compare(cost(a), cost(b)) })
	for i := range all {
		if i == most || cost(all[i]) > within*cost(all[0]) {
			return all[:i]
		}
	}
	return all
}
