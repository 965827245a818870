package viterbi

import (
	"fmt"
	"math"

	"github.com/lutq/lutq/formats/weight/trellis"
)

const (
	states = 1 << trellis.Window
	run    = 32 // states whose values lie together

	// Steps of so many bits or more, which few edges follow, go through all states in order, with a minimum for each remainder of the
	// state by 1<<swept, and keep the minima of each chunk of the states: among many that lead to an edge, the best is soon
	// found again. Rings whose steps differ have fewer bits.
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
	doublings int         // of differences
	steps     []step      // in the order of the trellis
	kernels   kernels
}

// step is one of a ring.
type step struct {
	at     int // of its first weight in the ring
	symbol int // number of its symbol
	bits   int // that come in
	next   int // bits that come in at the next step
}

// before and after are the edges of the states before a step and of its own.
func (s *step) before() int { return states >> s.bits }
func (s *step) after() int  { return states >> s.next }

// New returns the encoder of a code. The environment variable LUTQ_ISA, one of avx512, avx2, neon and generic, chooses its implementation.
func New(code *trellis.Code) (*Encoder, error) {
	kernels, err := chooseKernels()
	if err != nil {
		return nil, err
	}
	e := &Encoder{layout: code.Layout(), values: code.Values(), kernels: kernels}
	e.limit, e.doublings = precision(e.layout)
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
	e.units = float32(float64(e.limit) / max(most, 0x1p-24))
	e.ints = make([]int16, states*e.layout.Together)
	for i, values := range e.values {
		for x, v := range values {
			e.ints[e.at(x)+run*i] = e.quantize(v)
		}
	}
	e.order()
	return e, nil
}

// precision returns how large weights and values may be in units, and how often differences are doubled. NOTES.md has what it costs. Where
// the limit is half of what 16 bits hold, differences do not saturate, which the assembly takes for granted.
func precision(l trellis.Layout) (limit int16, doublings int) {
	switch pair := l.Together > 1; {
	case pair && l.Rate <= 6:
		return math.MaxInt16 / 2, 0
	case !pair && l.Rate == 16:
		return math.MaxInt16, 2
	case pair && l.Rate >= 10, !pair && l.Rate >= 12:
		return math.MaxInt16, 1
	}
	return math.MaxInt16, 0
}

// order lists the steps of a ring.
func (e *Encoder) order() {
	n := e.layout.Steps()
	e.steps = make([]step, n)
	for i := range e.steps {
		symbol := i
		if e.layout.Together > 1 { // a window of pairs begins with its step's own bits
			symbol = n - 1 - i
		}
		row, col := e.layout.At(symbol)
		e.steps[i] = step{at: row*e.layout.Cols + col, symbol: symbol, bits: e.layout.Bits(symbol)}
	}
	for i := range e.steps {
		e.steps[i].next = e.steps[(i+1)%n].bits
	}
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
func (e *Encoder) cost(state int, w *[2]int16) uint32 {
	at := e.at(state)
	sum := square(w[0], e.ints[at], e.doublings)
	if e.layout.Together > 1 {
		sum += square(w[1], e.ints[at+run], e.doublings)
	}
	return sum
}

// square is that of a difference, at most 1<<15.
func square(w, v int16, doublings int) uint32 {
	d := min(max((int32(w)-int32(v))<<(doublings&3), math.MinInt16), math.MaxInt16)
	return uint32(d*d+1<<14) >> 15
}

// Worker is what a goroutine needs to encode.
type Worker struct {
	e       *Encoder
	weights [][2]int16 // [steps]
	history []moment   // before the steps of a pass, and after the last
	trace   []int      // [2·steps] states of a pass
	path    []int      // [steps] states of the ring
}

// moment is what is known before a step.
type moment struct {
	m     []uint16 // [edges] least costs of paths
	least uint16   // of m
	parts []uint16 // [chunks][1<<swept] minima that m is of, where the step before is swept
}

// Worker returns a new one.
func (e *Encoder) Worker() *Worker {
	n := len(e.steps)
	w := &Worker{e: e, weights: make([][2]int16, n), history: make([]moment, 2*n+1), trace: make([]int, 2*n), path: make([]int, n)}
	for i := range w.history {
		s := &e.steps[i%n]
		w.history[i].m = make([]uint16, s.before())
		if s.bits >= swept {
			w.history[i].parts = make([]uint16, chunks<<swept)
		}
	}
	return w
}

// Encode chooses the codes of a ring [Rows, Cols] of weights, in the units of the code's values. It writes the symbols of all steps, as
// [trellis.Layout.Pack] takes them, and what they stand for to values [Rows, Cols]. A weight farther out than all values counts
// as the farthest, and NaN as 0.
func (w *Worker) Encode(symbols []uint16, values, ring []float32) {
	e := w.e
	for i := range e.steps {
		s := &e.steps[i]
		w.weights[i] = [2]int16{}
		for j := range e.layout.Together {
			w.weights[i][j] = e.quantize(ring[s.at+j])
		}
	}
	w.find()
	for i, state := range w.path {
		s := &e.steps[i]
		symbols[s.symbol] = uint16(state & (1<<s.bits - 1))
		for j := range e.layout.Together {
			values[s.at+j] = e.values[j][state]
		}
	}
}

// find sets path to the states of a ring. A pass that is free at both ends often comes to the edge that it had a ring before. Where it does
// not within two rings, the edge in its middle begins and ends another pass.
func (w *Worker) find() {
	n := len(w.e.steps)
	begin := &w.history[0]
	clear(begin.m)
	begin.least = 0
	for from, to := 0, n+n/4; to <= 2*n; from, to = to, to+n/8 {
		w.forward(from, to)
		w.back(to, w.best(to), -1, from)
		if at, ok := w.closed(to); ok {
			for i, state := range w.trace[at : at+n] {
				w.path[(at+i)%n] = state
			}
			return
		}
	}
	edge := w.edge(n)
	for i := range begin.m {
		begin.m[i] = math.MaxUint16
	}
	begin.m[edge] = 0
	w.forward(0, n)
	w.back(n, edge, edge, 0)
	copy(w.path, w.trace)
}

// forward goes through steps of a pass.
func (w *Worker) forward(from, to int) {
	for i := from; i < to; i++ {
		at := i % len(w.e.steps)
		w.e.kernels.step(w.e, &w.e.steps[at], &w.weights[at], &w.history[i+1], &w.history[i])
	}
}

// best returns the edge of least cost after so many steps, the lowest where some are equal.
func (w *Worker) best(n int) int {
	last := &w.history[n]
	for i, m := range last.m {
		if m == last.least {
			return i
		}
	}
	panic("no edge has the least cost")
}

// edge returns that of a trace before a step.
func (w *Worker) edge(i int) int { return w.trace[i] >> w.e.steps[i%len(w.e.steps)].bits }

// closed returns the step of a trace of so many steps that is the first of a ring, the nearest to the middle.
func (w *Worker) closed(to int) (at int, ok bool) {
	n := len(w.e.steps)
	middle := (to - n) / 2
	for d := range middle {
		for _, at := range []int{middle - d, middle + d} {
			if w.edge(at) == w.edge(at+n) {
				return at, true
			}
		}
	}
	return 0, false
}

// back sets the trace to the states of the best path of a pass of n steps to an edge, the lowest where some are equal. A begin that is not
// negative is the edge in which the pass began: a path must begin there even if all costs are saturated. Of so many steps as
// are known the trace has those to another edge, and where the paths meet they stay together.
func (w *Worker) back(n, edge, begin, known int) {
	e := w.e
	for i := n - 1; i >= 0; i-- {
		at := i % len(e.steps)
		s := &e.steps[at]
		if i < known && w.trace[i]&(s.after()-1) == edge {
			return
		}
		from, to := edge, states
		if kept := w.shifted(i); begin >= 0 && kept < trellis.Window {
			w.trace[i] = w.lowest(i, from, to, kept, begin&(states>>kept-1))
		} else {
			if s.next >= swept {
				from += w.history[i+1].chunk(edge, s.after())
				to = from - edge + states/chunks
			}
			w.trace[i] = w.lowest(i, from, to, trellis.Window, 0)
		}
		edge = w.edge(i)
	}
}

// lowest returns the state of least cost at a step among those that lead to the same edge, from one on, and whose bits from
// kept on are high.
func (w *Worker) lowest(i, from, to, kept, high int) int {
	e := w.e
	at := i % len(e.steps)
	s, pair, weights := &e.steps[at], e.layout.Together > 1, w.weights[at]
	least, state, prev := uint32(math.MaxUint32), 0, w.history[i].m
	for x := from; x < to; x += s.after() {
		if x>>kept != high {
			continue
		}
		v := e.at(x)
		c := uint32(prev[x>>s.bits]) + square(weights[0], e.ints[v], e.doublings)
		if pair {
			c += square(weights[1], e.ints[v+run], e.doublings)
		}
		if c = min(c, math.MaxUint16); c < least {
			least, state = c, x
		}
	}
	return state
}

// shifted returns how many bits come in up to a step of a pass from the ring's beginning, at most those of a window.
func (w *Worker) shifted(i int) int {
	sum := 0
	for _, s := range w.e.steps[:min(i+1, trellis.Window)] {
		sum += s.bits
	}
	return min(sum, trellis.Window)
}

// chunk returns the first state of the first chunk that has a path of least cost to an edge.
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
