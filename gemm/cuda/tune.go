package cuda

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/lutq/lutq/gemm/cuda/driver"
)

// choiceKey is what a choice of configuration holds for.
type choiceKey struct {
	format Format
	n, k   int
	rows   int // the bucket of M
}

// bucket returns the largest number of rows that is treated like m.
func bucket(m int) int {
	for _, b := range []int{2, 4, 8} {
		if m <= b {
			return b
		}
	}
	return MaxRows
}

// choice returns the configuration that a multiplication runs under: the tuned
// one, of this process or kept by another, or the first.
func (e *Engine) choice(w *Matrix, m int) Config {
	key := choiceKey{w.Format, w.N, w.K, bucket(m)}
	if c, ok := e.choices[key]; ok {
		return c
	}
	all := e.Configs(w.Format, w.N, w.K, m)
	c := w.Format.configs(m)[0] // and launching says why, where all is empty
	if len(all) > 0 {
		c = all[0]
	}
	if kept, ok := e.cache.Get(e.cacheKey(key)); ok {
		var k Config
		if json.Unmarshal(kept, &k) == nil && slices.Contains(all, k) {
			c = k
		}
	}
	e.choices[key] = c
	return c
}

// cacheKey digests the key, the GPU and the kernel.
func (e *Engine) cacheKey(key choiceKey) string {
	h := sha256.New()
	fmt.Fprintf(h, "choice %s %d %+v\n%s%s%s%s", e.dev.Info.Name, e.dev.Info.SMs, key, ptxSource, lutSource, gemmSource, wideSource)
	return hex.EncodeToString(h.Sum(nil))
}

// Timing is how long a configuration takes for one multiplication.
type Timing struct {
	Config Config
	Time   time.Duration
}

// tuneCalls is how many multiplications are timed at once, and tuneRounds how
// often.
const (
	tuneCalls  = 64
	tuneRounds = 7
)

// Tune times the configurations for o.M rows, at most 16, on matrices of one
// shape and format, used in turn as a decoder does its layers': together they
// should be several times as large as the level-2 cache. The fastest one is used
// from now on and kept in the cache. It returns all timings, fastest first.
// Y is overwritten; no choice changes its bits.
func (e *Engine) Tune(s *driver.Stream, ring []*Matrix, o Operands) ([]Timing, error) {
	if len(ring) == 0 {
		return nil, errors.New("no matrices to tune with")
	}
	w := ring[0]
	if o.M > MaxRows {
		return nil, fmt.Errorf("tuning for %d rows: a launch takes at most %d", o.M, MaxRows)
	}
	for _, other := range ring {
		if other.N != w.N || other.K != w.K || other.Format != w.Format {
			return nil, errors.New("tuning needs matrices of one shape and format")
		}
		if err := o.check(other); err != nil {
			return nil, err
		}
	}
	var all []Timing
	for _, c := range e.Configs(w.Format, w.N, w.K, o.M) {
		t, err := Time(e.dev, s, tuneCalls, tuneRounds, func(i int) error {
			return e.MatMulWith(s, ring[i%len(ring)], o, c)
		})
		if err != nil {
			return nil, fmt.Errorf("tuning %v: %w", c, err)
		}
		all = append(all, Timing{c, t})
	}
	if len(all) == 0 {
		_, _, err := w.Format.plan(w.Format.configs(o.M)[0], w.N, w.K, o.M, e.limits)
		return nil, err
	}
	slices.SortStableFunc(all, func(a, b Timing) int { return int(a.Time - b.Time) })
	key := choiceKey{w.Format, w.N, w.K, bucket(o.M)}
	e.choices[key] = all[0].Config
	kept, err := json.Marshal(all[0].Config)
	if err != nil {
		return nil, err
	}
	return all, e.cache.Put(e.cacheKey(key), kept)
}

// Time returns the time of one of calls to f, which queues work on s: they are
// recorded in one graph, the graph is run a few times to warm up and then rounds
// times, and the median counts. Gaps between launches are part of it.
func Time(d *driver.Device, s *driver.Stream, calls, rounds int, f func(i int) error) (t time.Duration, err error) {
	if err := f(0); err != nil { // compiles, which a recording must not
		return 0, err
	}
	if err := s.Sync(); err != nil {
		return 0, err
	}
	graph, err := s.Capture(func() error {
		for i := range calls {
			if err := f(i); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, graph.Close()) }()
	exec, err := graph.Instantiate()
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, exec.Close()) }()
	start, err := d.NewEvent()
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, start.Close()) }()
	end, err := d.NewEvent()
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, end.Close()) }()

	const warmUp = 3
	var times []time.Duration
	for i := range warmUp + rounds {
		if err := errors.Join(start.Record(s), exec.Launch(s), end.Record(s), end.Sync()); err != nil {
			return 0, err
		}
		t, err := end.Since(start)
		if err != nil {
			return 0, err
		}
		if i >= warmUp {
			times = append(times, t)
		}
	}
	slices.Sort(times)
	return times[len(times)/2] / time.Duration(calls), nil
}
