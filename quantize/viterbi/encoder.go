package viterbi

import (
	"fmt"
	"math"

	"github.com/lutq/lutq/formats/weight/trellis"
)

const (
	states = 1 << trellis.Window
	run    = 32 // states whose values lie together

	// Steps of swept or more bits go through all states in order, with a minimum for each remainder by 1<<swept, and keep
	// the minima of each chunk of the states, so that a state is soon found again.
	swept  = 8
	chunks = 16
)

// Encoder chooses codes of rings of a code. Goroutines may share it.
type Encoder struct {
	layout    trellis.Layout
	values    [][]float32 // [weights of a step][states]
	ints      []int16     // [states/run][weights of a step][run] values in units
	units     float32     // of 1
	limit     int16       // of weights and values in units
	doublings int         // of differences, by which small ones weigh more and large ones saturate
	around    int         // steps of the first pass on each side of the beginning
	steps     []step      // in the order of the trellis
	kernels   kernels
}

// step is one of a ring.
type step struct {
	at, count int // of its weights in the ring
	number    int // of the symbol
	bits      int // that come in
	next      int // bits that come in at the next step
}

// edges are those of the states before a step.
func (s *step) edges() int { return states >> s.bits }

// New returns the encoder of a code. The environment variable LUTQ_ISA chooses its implementation.
func New(code *trellis.Code) (*Encoder, error) {
	kernels, err := chooseKernels()
	if err != nil {
		return nil, err
	}
	l := code.Layout()
	e := &Encoder{layout: l, values: code.Values(), kernels: kernels}
	var most float64
	for _, values := range e.values {
		for x, v := range values {
			a := math.Abs(float64(v))
			if !(a <= math.MaxFloat32) {
				return nil, fmt.Errorf("the value of window %#04x is %v", x, v)
			}
			most = max(most, a)
		}
	}
	e.precision(most)
	e.ints = make([]int16, states*l.Together)
	for i, values := range e.values {
		for x, v := range values {
			e.ints[e.at(x)+run*i] = e.quantize(v)
		}
	}
	e.order()
	return e, nil
}

// precision sets units for values up to the most.
func (e *Encoder) precision(most float64) {
	e.limit = math.MaxInt16
	e.units = float32(math.MaxInt16 / max(most, 0x1p-14))
	e.doublings = max(e.layout.Rate/2-3, 0)
}

// order lists the steps of a ring.
func (e *Encoder) order() {
	n := e.layout.Steps()
	e.steps = make([]step, n)
	for i := range e.steps {
		number := i
		if e.layout.Together > 1 { // a window of pairs begins with the step's own bits
			number = n - 1 - i
		}
		row, col := e.layout.At(number)
		e.steps[i] = step{at: row*e.layout.Cols + col, count: e.layout.Together, number: number, bits: e.layout.Bits(number)}
	}
	for i := range e.steps {
		e.steps[i].next = e.steps[(i+1)%n].bits
	}
	e.around = n / 2
}

// at returns where the values of a state are.
func (e *Encoder) at(state int) int { return state/run*run*e.layout.Together + state%run }

// quantize turns a number into units, the nearest within the limit, and NaN into 0.
func (e *Encoder) quantize(v float32) int16 {
	limit := float32(e.limit)
	switch q := float32(v * e.units); {
	case q >= limit:
		return e.limit
	case q <= -limit:
		return -e.limit
	case q != q:
		return 0
	default:
		return int16(math.RoundToEven(float64(q)))
	}
}

// cost is that of a state at a step.
func (e *Encoder) cost(state int, w *[2]int16) uint16 {
	values := e.ints[e.at(state):]
	sum := e.square(w[0], values[0])
	if e.layout.Together > 1 {
		sum += e.square(w[1], values[run])
	}
	return uint16(min(sum, math.MaxUint16))
}

func (e *Encoder) square(w, v int16) int32 {
	d := int32(w) - int32(v)
	d = min(max(d, math.MinInt16), math.MaxInt16)
	for range e.doublings {
		d = min(max(2*d, math.MinInt16), math.MaxInt16)
	}
	return (d*d + 1<<14) >> 15
}

// Worker is what a goroutine needs to encode.
type Worker struct {
	e       *Encoder
	weights [][2]int16 // of each step
	history []moment
	path    []int // states of the steps
}

// moment is what is known before a step.
type moment struct {
	m     []uint16 // [edges] of the best path to an edge
	least uint16   // of m
	parts []uint16 // [chunks][1<<swept] minima that m is of, where the step before is swept
}

// Worker returns a new one.
func (e *Encoder) Worker() *Worker {
	n := len(e.steps)
	w := &Worker{e: e, weights: make([][2]int16, n), history: make([]moment, n+1), path: make([]int, n)}
	edges, parts := 0, 0
	for i := range e.steps {
		edges = max(edges, e.steps[i].edges())
		if e.steps[i].bits >= swept {
			parts = chunks << swept
		}
	}
	const pad = 32 // of a vector
	all := make([]uint16, (n+1)*(max(edges, pad)+parts))
	for i := range w.history {
		take := func(n int) []uint16 {
			s := all[:n:n]
			all = all[n:]
			return s
		}
		w.history[i] = moment{m: take(max(edges, pad)), parts: take(parts)}
	}
	return w
}

// Encode chooses the codes of a ring [Rows, Cols] of weights, in the units of the code's values. It writes the symbols of all steps, as
// [trellis.Layout.Pack] takes them, and what they stand for to values [Rows, Cols]. What is farther out than all values counts
// as the farthest, and NaN as 0.
func (w *Worker) Encode(symbols []uint16, values, ring []float32) {
	e := w.e
	n := len(e.steps)
	for i := range e.steps {
		s := &e.steps[i]
		w.weights[i] = [2]int16{}
		for j := range s.count {
			w.weights[i][j] = e.quantize(ring[s.at+j])
		}
	}
	first := n - e.around
	clear(w.history[0].m)
	w.history[0].least = 0
	w.forward(first, 2*e.around)
	edge := w.back(first, e.around, 2*e.around, w.best(first+2*e.around), -1)

	begin := &w.history[0]
	for i := range begin.m {
		begin.m[i] = math.MaxUint16
	}
	begin.m[edge], begin.least = 0, 0
	w.forward(0, n)
	w.back(0, 0, n, edge, edge)
	for i, state := range w.path {
		s := &e.steps[i]
		symbols[s.number] = uint16(state & (1<<s.bits - 1))
		for j := range s.count {
			values[s.at+j] = e.values[j][state]
		}
	}
}

// forward goes through n steps from one on, and leaves in history what is known before each of them and after the last.
func (w *Worker) forward(first, n int) {
	for i := range n {
		p := (first + i) % len(w.e.steps)
		w.e.kernels.step(w.e, &w.e.steps[p], &w.weights[p], &w.history[i+1], &w.history[i])
	}
}

// best returns the edge of least cost before step p, where a pass of the free steps ended.
func (w *Worker) best(p int) int {
	e := w.e
	last := &w.history[2*e.around]
	for i, m := range last.m[:e.steps[p%len(e.steps)].edges()] {
		if m == last.least {
			return i
		}
	}
	return 0 // unreachable: the least is one of them
}

// back finds the states from the end of a pass, which began with a step, to its from-th: those of the path to an edge. It writes them to
// path and returns the edge before them. A begin of 0 or more is the edge in which the pass began: a path through costs that are
// saturated must begin there as well.
func (w *Worker) back(first, from, to, edge, begin int) int {
	e := w.e
	for i := to - 1; i >= from; i-- {
		p := (first + i) % len(e.steps)
		s := &e.steps[p]
		known, keep := 0, trellis.Window // bits of the begin that the state still has, and where they are
		if begin >= 0 {
			keep = 0
			for j := 0; j <= i && keep < trellis.Window; j++ {
				keep += e.steps[(first+j)%len(e.steps)].bits
			}
			keep = min(keep, trellis.Window)
			known = begin & (1<<(trellis.Window-keep) - 1)
		}
		low, high := 0, states
		if keep == trellis.Window && s.next >= swept {
			low = w.history[i+1].chunk(edge, states>>s.next)
			high = low + states/chunks
		}
		best, state := uint32(math.MaxUint32), 0
		prev := w.history[i].m
		for x := low | edge; x < high; x += states >> s.next {
			if x>>keep != known {
				continue
			}
			if c := min(uint32(e.cost(x, &w.weights[p]))+uint32(prev[x>>s.bits]), math.MaxUint16); c < best {
				best, state = c, x
			}
		}
		w.path[p] = state
		edge = state >> s.bits
	}
	return edge
}

// chunk returns the first state of the first chunk that has a state of least cost to an edge.
func (m *moment) chunk(edge, edges int) int {
	best, at := uint32(math.MaxUint32), 0
	for c := range chunks {
		part := m.parts[c<<swept:][:1<<swept]
		for i := edge; i < len(part); i += edges {
			if v := uint32(part[i]); v < best {
				best, at = v, c
			}
		}
	}
	return at * (states / chunks)
}
