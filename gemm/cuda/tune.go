package cuda

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"github.com/lutq/lutq/gemm/cuda/driver"
	"github.com/lutq/lutq/gemm/cuda/timing"
)

// tuningKey is what a choice of configuration holds for.
type tuningKey struct {
	format Format
	n, k   int
	rows   int // the bucket of M
	lookup Lookup
	fp8    bool // whether ways in E4M3 were tried
	sparse bool // whether the matrix is one of which every four columns keep two
}

// shape returns that of a product of m rows of X.
func (w *Matrix) shape(m int) shape {
	s := shapeOf(w.Format, w.N, w.K, m)
	s.lookup = w.lookup
	return s
}

func (w *Matrix) tuningKey(rows int) tuningKey {
	key := tuningKey{format: w.Format, n: w.N, k: w.K, rows: rows, lookup: w.lookup, fp8: w.fp8 && rows > MaxRows}
	if w.lookup == chosen && !w.integers {
		key.lookup = Replicated
	}
	return key
}

// bucket returns the largest number of rows that is treated like m.
func bucket(m int) int {
	for _, b := range []int{2, 4, 8, MaxRows, 24} {
		if m <= b {
			return b
		}
	}
	return mostRows
}

// Chosen returns the configuration that m rows of X are multiplied under, or of more than one launch multiplies those of
// the first: as [Engine.Tune] found, in this process or before, or by the rules of choices.
func (e *Engine) Chosen(w *Matrix, m int) (Config, error) {
	return e.choice(w, e.rowsAtOnce(w.Format, w.N, w.K, m))
}

// choice returns the configuration that a multiplication runs under: the tuned
// one, of this process or kept by another, or the first.
func (e *Engine) choice(w *Matrix, m int) (Config, error) {
	key := w.tuningKey(bucket(m))
	if c, ok := e.tuned[key]; ok {
		return c, nil
	}
	all, err := e.tried(w.shape(m))
	if err != nil {
		return nil, err
	}
	c := all[0]
	kept := e.kept(ofConfig, w, key)
	if i := slices.IndexFunc(all, func(c Config) bool { return c.String() == kept }); i >= 0 {
		c = all[i]
	}
	e.tuned[key] = c
	return c, nil
}

// Timing is how long a configuration takes for one multiplication, in microseconds.
type Timing struct {
	Config Config
	Us     float64
}

// tuneReplays is how often each configuration's graph is timed.
const tuneReplays = 7

// Tune times the configurations for o.M rows, or for more than one launch multiplies those of the first, on matrices of one
// shape and format, used in turn as a decoder does its layers': together they
// should be several times as large as the level-2 cache. The fastest one is used
// from now on and kept in the cache. It returns the timings, medians, fastest first.
// Y is overwritten; no choice changes its bits.
func (e *Engine) Tune(s *driver.Stream, ring []*Matrix, o Operands) ([]Timing, error) {
	if len(ring) == 0 {
		return nil, errors.New("no matrices to tune with")
	}
	w := ring[0]
	o.M = e.rowsAtOnce(w.Format, w.N, w.K, o.M)
	for _, other := range ring {
		if other.N != w.N || other.K != w.K || other.Format != w.Format {
			return nil, errors.New("tuning needs matrices of one shape and format")
		}
		if err := o.check(other); err != nil {
			return nil, err
		}
	}
	configs, err := e.tried(w.shape(o.M))
	if err != nil {
		return nil, err
	}
	e.dev.Prepare(w.configKernels(o.M, configs))
	var arms []*timing.Arm
	for _, c := range configs {
		arms = append(arms, &timing.Arm{Ring: len(ring), Call: func(i int) error {
			if err := e.MatMulWith(s, ring[i%len(ring)], o, c); err != nil {
				return fmt.Errorf("tuning %v: %w", c, err)
			}
			return nil
		}})
	}
	if err := timing.Measure(e.dev, s, arms, tuneReplays); err != nil {
		return nil, err
	}
	var all []Timing
	for i, a := range arms {
		all = append(all, Timing{configs[i], a.Median()})
	}
	slices.SortStableFunc(all, func(a, b Timing) int { return cmp.Compare(a.Us, b.Us) })
	key := w.tuningKey(bucket(o.M))
	e.tuned[key] = all[0].Config
	e.keep(ofConfig, w, key, all[0].Config.String())
	return all, nil
}
