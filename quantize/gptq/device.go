package gptq

import (
	"errors"
	"runtime"

	"golang.org/x/sync/errgroup"

	"github.com/lutq/lutq/formats/weight"
	"github.com/lutq/lutq/quantize/rounding"
)

// deviceQuantizer implements [rounding.Quantizer] where the state lies on a device, which takes many rows at a time. What is left to
// the host all processors do, piece by piece, so that nothing waits long for one of them.
type deviceQuantizer struct {
	*State
	make   func() (Leveled, error)
	search *rounding.Search // where the device searches scales, else nil

	// Scratch for the rows at hand.
	pieces       []*piece
	target       []float32
	levels       []float32
	fed, nearest rounding.Rounded
	outputs      []float32
	wanted       []float32
	tops         []uint32
	sums         []rounding.TableSums
}

// piece is some of the rows at hand.
type piece struct {
	Leveled
	from, to int
	stored   []float32 // of a row
	err      error
}

// pieceWeights is about how many weights a piece has.
const pieceWeights = 1 << 18

// divide divides n rows into pieces.
func (q *deviceQuantizer) divide(n int) ([]*piece, error) {
	rows := max(pieceWeights/q.k, 1)
	for i := 0; i*rows < n; i++ {
		if i == len(q.pieces) {
			l, err := q.make()
			if err != nil {
				return nil, err
			}
			q.pieces = append(q.pieces, &piece{Leveled: l})
		}
		q.pieces[i].from, q.pieces[i].to = i*rows, min((i+1)*rows, n)
	}
	return q.pieces[:(n+rows-1)/rows], nil
}

// each calls do for pieces, and returns the error of the first that fails.
func each(pieces []*piece, do func(p *piece) error) error {
	var g errgroup.Group
	g.SetLimit(runtime.GOMAXPROCS(0))
	for _, p := range pieces {
		g.Go(func() error {
			p.err = do(p)
			return nil
		})
	}
	_ = g.Wait() // errors are with the pieces
	for _, p := range pieces {
		if p.err != nil {
			return fromRow(p.err, p.from)
		}
	}
	return nil
}

// Shared implements [rounding.Quantizer].
func (q *deviceQuantizer) Shared(parts [][]byte) { q.pieces[0].Shared(parts) }

// Rows implements [rounding.Quantizer].
func (q *deviceQuantizer) Rows(parts [][]byte, errs []rounding.RowError, w []float32) error {
	n, k := len(errs), q.k
	pieces, err := q.divide(n)
	if err != nil {
		return err
	}
	if n == 0 {
		return nil
	}
	if err := pieces[0].CheckParts(parts, n, k); err != nil {
		return err
	}
	if done, err := q.searched(pieces, parts, errs, w); done || err != nil {
		return err
	}
	target := grow(&q.target, n*k)
	copy(target, w)
	if err := q.device.Retarget(target); err != nil {
		return err
	}
	err = each(pieces, func(p *piece) error {
		of := target[p.from*k : p.to*k]
		keepFinite(of, w[p.from*k:p.to*k], k)
		return p.Fit(of, p.to-p.from)
	})
	if err != nil {
		return err
	}
	_, group, count := pieces[0].Levels()
	groups := weight.GroupsIn(k, group)
	levels := grow(&q.levels, n*groups*count)
	for _, r := range []*rounding.Rounded{&q.fed, &q.nearest} {
		r.Codes, r.Loss = grow(&r.Codes, n*k), grow(&r.Loss, n)
	}
	outputs := grow(&q.outputs, n)
	_ = each(pieces, func(p *piece) error {
		of, _, _ := p.Levels()
		copy(levels[p.from*groups*count:], of)
		return nil
	})
	if err := q.device.Round(q.fed, q.nearest, outputs, target, levels, group, count); err != nil {
		return err
	}
	return each(pieces, func(p *piece) error {
		stored := grow(&p.stored, k)
		for r := p.from; r < p.to; r++ {
			own := r - p.from
			e := rounding.RowError{Output: float64(outputs[r]), Loss: float64(q.fed.Loss[r]), NearestLoss: float64(q.nearest.Loss[r]), Wants: p.Wants(own)}
			codes := q.fed.Codes[r*k : (r+1)*k]
			if !(e.Loss < e.NearestLoss) {
				codes, e.Loss = q.nearest.Codes[r*k:(r+1)*k], e.NearestLoss
			}
			for g := range groups {
				of := levels[(r*groups+g)*count:][:count]
				for c := g * group; c < min((g+1)*group, k); c++ {
					stored[c] = of[codes[c]]
				}
			}
			for c, v := range stored {
				e.Add(w[r*k+c], v)
			}
			q.undamp(&e, target[r*k:(r+1)*k], func(c int) float32 { return stored[c] })
			errs[r] = e
			p.Store(parts, r, own, codes)
		}
		return nil
	})
}

// searched is Rows where the device searches scales as well. It reports whether all rows were done so.
func (q *deviceQuantizer) searched(pieces []*piece, parts [][]byte, errs []rounding.RowError, w []float32) (bool, error) {
	if q.search == nil {
		return false, nil
	}
	n, k := len(errs), q.k
	groups := weight.GroupsIn(k, q.search.Group)
	t := rounding.Tables{
		Search: q.search, Codes: grow(&q.fed.Codes, n*k), Wanted: grow(&q.wanted, n*groups), Tops: grow(&q.tops, n*groups), Sums: grow(&q.sums, n),
	}
	if ok, err := q.device.Tables(t, w); !ok || err != nil {
		return false, err
	}
	err := each(pieces, func(p *piece) error {
		from, to := p.from*groups, p.to*groups
		if !p.Leveled.(Searched).Found(t.Wanted[from:to], t.Tops[from:to], p.to-p.from) {
			return errNotFound
		}
		return nil
	})
	if err != nil {
		return false, nil
	}
	return true, each(pieces, func(p *piece) error {
		for r := p.from; r < p.to; r++ {
			s := t.Sums[r]
			e := rounding.RowError{
				Energy: s.Energy, Squared: s.Squared, Output: float64(s.Loss0), Loss: float64(s.Fed), NearestLoss: float64(s.NearestLoss), Wants: p.Wants(r - p.from),
			}
			if !(e.Loss < e.NearestLoss) {
				e.Loss = e.NearestLoss
			}
			q.undampBy(&e, s.Goal, s.Missed)
			errs[r] = e
			p.Store(parts, r, r-p.from, t.Codes[r*k:(r+1)*k])
		}
		return nil
	})
}

// errNotFound means that a device did not find all of a piece.
var errNotFound = errors.New("not found by the device")

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
