package rings

import (
	"slices"

	"github.com/lutq/lutq/quantize/rounding"
)

// Padded adds rows and columns of zeros, up to multiples of 128, to those of k columns that a quantizer gets.
func Padded(q rounding.Quantizer, k int) rounding.Quantizer {
	return &paddedQuantizer{Quantizer: q, k: k, wide: padded(k)}
}

type paddedQuantizer struct {
	rounding.Quantizer
	k, wide int

	// Scratch.
	w    []float32
	errs []rounding.RowError
}

// Rows implements [rounding.Quantizer].
func (q *paddedQuantizer) Rows(parts [][]byte, errs []rounding.RowError, w []float32) error {
	n := len(errs)
	rows := padded(n)
	if rows == n && q.wide == q.k {
		return q.Quantizer.Rows(parts, errs, w)
	}
	wide := grow(&q.w, rows*q.wide)
	clear(wide)
	for r := range n {
		copy(wide[r*q.wide:], w[r*q.k:(r+1)*q.k])
	}
	all := grow(&q.errs, rows)
	if err := q.Quantizer.Rows(parts, all, wide); err != nil {
		return err
	}
	copy(errs, all)
	return nil
}

// PaddedStats are statistics of inputs with zeros behind them, up to a multiple of [trellis.Block]. They are none of a device.
func PaddedStats(of rounding.Stats) rounding.Stats { return paddedStats{of} }

type paddedStats struct{ rounding.Stats }

// K implements [rounding.Stats].
func (s paddedStats) K() int { return padded(s.Stats.K()) }

// Diagonal implements [rounding.Stats].
func (s paddedStats) Diagonal() ([]float32, error) {
	d, err := s.Stats.Diagonal()
	return slices.Concat(d, make([]float32, s.K()-s.Stats.K())), err
}

// Hessian implements [rounding.Stats].
func (s paddedStats) Hessian() ([]float32, error) { return s.square(s.Stats.Hessian()) }

// Drift implements [rounding.Stats].
func (s paddedStats) Drift() ([]float32, error) { return s.square(s.Stats.Drift()) }

func (s paddedStats) square(m []float32, err error) ([]float32, error) {
	if m == nil || err != nil || s.K() == s.Stats.K() {
		return m, err
	}
	k, wide := s.Stats.K(), s.K()
	all := make([]float32, wide*wide)
	for i := range k {
		copy(all[i*wide:], m[i*k:(i+1)*k])
	}
	return all, nil
}
