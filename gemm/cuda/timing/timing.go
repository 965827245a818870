// Package timing tells how long what is queued on a GPU takes: in graphs of many calls, several things in turns, or one over and over.
package timing

import (
	"errors"
	"slices"

	"github.com/lutq/lutq/gemm/cuda/driver"
)

// leastCalls is the least number of calls in a graph.
const leastCalls = 64

// graphCalls returns how many calls go into a graph, at least so many: whole rounds of the ring.
func graphCalls(ring, least int) int { return (least + ring - 1) / ring * ring }

// Arm is one of the things that [Measure] times in turns.
type Arm struct {
	Call func(i int) error // queues call i, which uses matrix i of the ring, from the start again after the last
	Ring int               // matrices
	Few  int               // calls in a graph at least, where those are long; 0 is 64
	Us   []float64         // of a call, by replay: what Measure fills in

	graph *driver.Graph
	exec  *driver.GraphExec
}

// Best returns the shortest time, in microseconds.
func (a *Arm) Best() float64 { return slices.Min(a.Us) }

// Median returns the median of the times, in microseconds.
func (a *Arm) Median() float64 {
	return slices.Sorted(slices.Values(a.Us))[len(a.Us)/2]
}

// Measure captures the calls of each arm, which queue work on s, in a graph of at least
// 64, unless they say otherwise, and replays the graphs in turns: the clock falls while a GPU is at work, and should
// fall for all of them. All replays are queued before the first is waited for, so that the
// GPU does not wait for the CPU between them. Gaps between launches are part of a time.
func Measure(d *driver.Device, s *driver.Stream, arms []*Arm, replays int) (err error) {
	var events []*driver.Event
	defer func() {
		for _, e := range events {
			err = errors.Join(err, e.Close())
		}
		for _, a := range arms {
			err = errors.Join(err, a.release())
		}
	}()
	for _, a := range arms {
		if err := a.capture(s); err != nil {
			return err
		}
		// The first launch loads the graph.
		if err := errors.Join(a.exec.Launch(s), s.Sync()); err != nil {
			return err
		}
	}
	for range replays {
		for _, a := range arms {
			start, err := d.NewEvent()
			if err != nil {
				return err
			}
			events = append(events, start)
			end, err := d.NewEvent()
			if err != nil {
				return err
			}
			events = append(events, end)
			if err := errors.Join(start.Record(s), a.exec.Launch(s), end.Record(s)); err != nil {
				return err
			}
		}
	}
	if err := s.Sync(); err != nil {
		return err
	}
	for i := 0; i < len(events); i += 2 {
		a := arms[i/2%len(arms)]
		t, err := events[i+1].Since(events[i])
		if err != nil {
			return err
		}
		a.Us = append(a.Us, float64(t.Nanoseconds())/1e3/float64(a.calls()))
	}
	return nil
}

func (a *Arm) capture(s *driver.Stream) error {
	// What compiles and loads kernels must not be recorded.
	if err := errors.Join(a.Call(0), s.Sync()); err != nil {
		return err
	}
	var err error
	a.graph, err = s.Capture(func() error {
		for i := range a.calls() {
			if err := a.Call(i); err != nil {
				return err
			}
		}
		return nil
	})
	if err == nil {
		a.exec, err = a.graph.Instantiate()
	}
	return err
}

// calls returns the calls of a graph.
func (a *Arm) calls() int {
	if a.Few > 0 {
		return graphCalls(a.Ring, a.Few)
	}
	return graphCalls(a.Ring, leastCalls)
}

// release frees the graph; the times stay.
func (a *Arm) release() error {
	var errs []error
	if a.exec != nil {
		errs = append(errs, a.exec.Close())
	}
	if a.graph != nil {
		errs = append(errs, a.graph.Close())
	}
	a.exec, a.graph = nil, nil
	return errors.Join(errs...)
}
