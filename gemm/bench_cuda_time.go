package gemm

import (
	"errors"
	"slices"

	"github.com/lutq/lutq/gemm/cuda/driver"
)

// leastCalls is the least number of calls in a graph.
const leastCalls = 64

// graphCalls returns how many calls go into a graph: whole rounds of the ring.
func graphCalls(ring int) int { return (leastCalls + ring - 1) / ring * ring }

// arm is one of the things that are timed in turns. Call i uses matrix i of a
// ring.
type arm struct {
	call func(i int) error
	ring int
	us   []float64 // of a call, by replay

	graph *driver.Graph
	exec  *driver.GraphExec
}

func (a *arm) best() float64 { return slices.Min(a.us) }

func (a *arm) median() float64 {
	return slices.Sorted(slices.Values(a.us))[len(a.us)/2]
}

// timeArms captures each arm in a graph and replays the graphs in turns. All
// replays are queued before the first is waited for, so that the GPU does not
// wait for the CPU between them.
func (g *gpu) timeArms(arms []*arm, replays int) (err error) {
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
		if err := a.capture(g.stream); err != nil {
			return err
		}
		// The first launch loads the graph.
		if err := errors.Join(a.exec.Launch(g.stream), g.stream.Sync()); err != nil {
			return err
		}
	}
	for range replays {
		for _, a := range arms {
			start, err := g.dev.NewEvent()
			if err != nil {
				return err
			}
			events = append(events, start)
			end, err := g.dev.NewEvent()
			if err != nil {
				return err
			}
			events = append(events, end)
			if err := errors.Join(start.Record(g.stream), a.exec.Launch(g.stream), end.Record(g.stream)); err != nil {
				return err
			}
		}
	}
	if err := g.stream.Sync(); err != nil {
		return err
	}
	for i := 0; i < len(events); i += 2 {
		a := arms[i/2%len(arms)]
		t, err := events[i+1].Since(events[i])
		if err != nil {
			return err
		}
		a.us = append(a.us, float64(t.Nanoseconds())/1e3/float64(graphCalls(a.ring)))
	}
	return nil
}

func (a *arm) capture(s *driver.Stream) error {
	// What compiles and loads kernels must not be recorded.
	if err := errors.Join(a.call(0), s.Sync()); err != nil {
		return err
	}
	var err error
	a.graph, err = s.Capture(func() error {
		for i := range graphCalls(a.ring) {
			if err := a.call(i); err != nil {
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

// release frees the graph; the times stay.
func (a *arm) release() error {
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
