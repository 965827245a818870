package model

import (
	"errors"
	"slices"

	"golang.org/x/sync/errgroup"

	"github.com/lutq/lutq/quantize/rounding"
)

// StatsOps are the operations that the statistics of what linear layers read are taken by.
type StatsOps interface {
	Ops

	// Gram adds xᵀ·x of x [rows, k], acts, to h, floats [k, k], on its diagonal and above. What
	// lies below is left to Mirror, until which it is anything.
	Gram(h, x Array, rows int)
	// Cross adds (x − xq)ᵀ·xq to d, floats [k, k]. x and xq are acts [rows, k], whose difference
	// is formed in float32.
	Cross(d, x, xq Array, rows int)
	// Mirror makes h, floats [k, k], symmetric, with what lies above the diagonal.
	Mirror(h Array, k int)
}

// Stats are sums over tokens of what linear layers read: x̂ is that in the model whose layers
// before them are quantized, x in the original one. They lie on the device.
type Stats struct {
	ops       Ops
	k, tokens int
	routed    int // of them, those that a router sends to the layer's expert; −1 of other layers

	H Array // Σ x̂·x̂ᵀ, floats [K, K]
	D Array // Σ (x − x̂)·x̂ᵀ, floats [K, K]; nil where the original model was not run
}

// K returns the elements of an input.
func (s *Stats) K() int { return s.k }

// Tokens returns the inputs that were seen.
func (s *Stats) Tokens() int { return s.tokens }

// Routed returns how many of them the router of an expert sends there: others fill up what is too little, see [Walk]. Of other
// layers it is −1.
func (s *Stats) Routed() int { return s.routed }

// Diagonal reads Σ x̂ₖ², [K].
func (s *Stats) Diagonal() ([]float32, error) {
	h, err := s.Hessian()
	if err != nil {
		return nil, err
	}
	d := make([]float32, s.k)
	for i := range d {
		d[i] = h[i*(s.k+1)]
	}
	return d, nil
}

// Hessian reads Σ x̂·x̂ᵀ, [K, K].
func (s *Stats) Hessian() ([]float32, error) { return s.read(s.H) }

// Drift reads Σ (x − x̂)·x̂ᵀ, [K, K], nil where there is none.
func (s *Stats) Drift() ([]float32, error) {
	if s.D == nil {
		return nil, nil
	}
	return s.read(s.D)
}

func (s *Stats) read(a Array) ([]float32, error) {
	v := make([]float32, a.Len())
	s.ops.Read(v, a)
	return v, s.ops.Err()
}

// FeedbackOps are those of a device that rounds the columns of layers as well, by their
// statistics.
type FeedbackOps interface {
	StatsOps

	// Diagonal writes the diagonal of h, floats [k, k], to d.
	Diagonal(d, h Array, k int)
	// Feedback prepares for rounding by H and D, which may be nil. It returns nil if H is not
	// positive definite with what is added to it. Factors are those that H and D were turned by,
	// nil where they were not.
	Feedback(h, d Array, factors []float32, o rounding.FeedbackOptions) rounding.Feedback
	// Rotate writes h, floats [k, k], turned on both sides, to dst: columns and rows times their factors, and mixed.
	Rotate(dst, h Array, factors []float32)
}

// deviceStats implements [rounding.Rotator], and [rounding.Rotated].
type deviceStats struct {
	*Stats
	ops     FeedbackOps
	factors []float32     // that they were turned by, nil where they were not
	others  []deviceStats // the same, on further devices that share the work
}

// handed returns statistics as methods are given them. Others are the same on further devices.
func (s *Stats) handed(others []*Stats) rounding.Stats {
	ops, ok := s.ops.(FeedbackOps)
	if !ok {
		return s
	}
	of := deviceStats{Stats: s, ops: ops}
	for _, o := range others {
		of.others = append(of.others, deviceStats{Stats: o, ops: o.ops.(FeedbackOps)})
	}
	return of
}

// Diagonal reads Σ x̂ₖ², [K].
func (s deviceStats) Diagonal() ([]float32, error) {
	d := s.ops.Floats(s.k)
	defer s.ops.Free(d)
	s.ops.Diagonal(d, s.H, s.k)
	return s.read(d)
}

// Feedback implements [rounding.Device].
func (s deviceStats) Feedback(o rounding.FeedbackOptions) (rounding.Feedback, error) {
	if o.Retarget > 0 && s.D == nil {
		return nil, errors.New("retargeting needs the original model's inputs")
	}
	if len(s.others) == 0 {
		f := s.ops.Feedback(s.H, s.D, s.factors, o)
		return f, s.ops.Err()
	}
	made := make([]rounding.Feedback, 1+len(s.others))
	o.Parts = len(made)
	err := s.onEach(func(i int, s deviceStats) (err error) {
		o := o
		o.Part = i
		made[i], err = s.Feedback(o)
		return err
	})
	if err == nil && o.Retarget > 0 && !o.Apart() && !slices.Contains(made, nil) {
		err = s.shareRetargeting(made, o)
	}
	if err != nil || slices.Contains(made, nil) {
		for _, f := range made {
			if f != nil {
				f.Close()
			}
		}
		return nil, err
	}
	return newSpread(s, made), nil
}

// Retargeting is feedback of a device that has made some rows of what weights are retargeted by, see [rounding.FeedbackOptions].Rows.
type Retargeting interface {
	// Retargeting returns all of them, floats [K, K].
	Retargeting() Array
}

// shareRetargeting gives each device the rows that others have made.
func (s deviceStats) shareRetargeting(made []rounding.Feedback, o rounding.FeedbackOptions) error {
	devices := append([]deviceStats{s}, s.others...)
	return s.onEach(func(i int, to deviceStats) error {
		all := made[i].(Retargeting).Retargeting()
		for j, f := range made {
			o := o
			o.Part = j
			if from, end := o.Rows(s.k); j != i && from < end {
				Send(all.Slice(from*s.k, end*s.k), to.ops, f.(Retargeting).Retargeting().Slice(from*s.k, end*s.k), devices[j].ops)
			}
		}
		return to.ops.Err()
	})
}

// onEach calls f for the statistics of each device, beside each other.
func (s deviceStats) onEach(f func(i int, s deviceStats) error) error {
	var g errgroup.Group
	for i, of := range append([]deviceStats{{s.Stats, s.ops, s.factors, nil}}, s.others...) {
		g.Go(func() error {
			if err := f(i, of); err != nil {
				return s.on(of.ops, err)
			}
			return nil
		})
	}
	return g.Wait()
}

// on names the device of an error where there are several.
func (s deviceStats) on(ops Ops, err error) error {
	if len(s.others) == 0 || err == nil {
		return err
	}
	return On(ops, err)
}

// Rotated implements [rounding.Rotator].
func (s deviceStats) Rotated(factors []float32) (rounding.Rotated, error) {
	if s.factors != nil {
		return nil, errors.New("statistics are turned twice")
	}
	made := make([]deviceStats, 1+len(s.others))
	err := s.onEach(func(i int, s deviceStats) error {
		turn := func(a Array) Array {
			if a == nil {
				return nil
			}
			dst := s.ops.Floats(a.Len())
			s.ops.Rotate(dst, a, factors)
			return dst
		}
		made[i] = deviceStats{Stats: &Stats{ops: s.ops, k: s.k, tokens: s.tokens, H: turn(s.H), D: turn(s.D)}, ops: s.ops, factors: factors}
		return s.ops.Err()
	})
	r := made[0]
	r.others = made[1:]
	if err != nil {
		r.Close()
		return nil, err
	}
	return r, nil
}

// Close implements [rounding.Rotated].
func (s deviceStats) Close() {
	s.ops.Free(s.H, s.D)
	for _, o := range s.others {
		o.Close()
	}
}

// spread implements [rounding.Feedback] where several devices have a whole state each. Rows are rounded on whichever is free.
type spread struct {
	stats deviceStats
	all   []rounding.Feedback
	free  chan int // devices, each as often as it takes rows at a time
}

// spreadTurns is how many goroutines a device has rows of at a time.
const spreadTurns = 4

func newSpread(s deviceStats, all []rounding.Feedback) *spread {
	f := &spread{stats: s, all: all, free: make(chan int, spreadTurns*len(all))}
	for range spreadTurns {
		for i := range all {
			f.free <- i
		}
	}
	return f
}

// somewhere calls do with the state of a device that is free.
func (f *spread) somewhere(do func(of rounding.Feedback) error) error {
	i := <-f.free
	defer func() { f.free <- i }()
	ops := f.stats.ops
	if i > 0 {
		ops = f.stats.others[i-1].ops
	}
	return f.stats.on(ops, do(f.all[i]))
}

// Retarget implements [rounding.Feedback].
func (f *spread) Retarget(w []float32) error {
	return f.somewhere(func(of rounding.Feedback) error { return of.Retarget(w) })
}

// Round implements [rounding.Feedback].
func (f *spread) Round(fed, nearest rounding.Rounded, outputs, w, levels []float32, group, count int) error {
	return f.somewhere(func(of rounding.Feedback) error { return of.Round(fed, nearest, outputs, w, levels, group, count) })
}

// Tables implements [rounding.Feedback].
func (f *spread) Tables(t rounding.Tables, w []float32) (ok bool, err error) {
	err = f.somewhere(func(of rounding.Feedback) error {
		ok, err = of.Tables(t, w)
		return err
	})
	return ok, err
}

// Rings implements [rounding.Feedback].
func (f *spread) Rings(r rounding.Rings, w []float32) error {
	return f.somewhere(func(of rounding.Feedback) error { return of.Rings(r, w) })
}

// Close implements [rounding.Feedback].
func (f *spread) Close() {
	for _, of := range f.all {
		of.Close()
	}
}
