package model

import (
	"runtime"
	"slices"

	"github.com/lutq/lutq/formats/arch"
)

// readAhead is how many weights are read, at most, before they are asked for: about a
// block of a model of 8 billion. One matrix may have more.
const readAhead = 1 << 28

// ahead reads matrices before they are asked for, several at a time, while those before
// them are laid out and uploaded. Its methods are called from one goroutine.
type ahead struct {
	src   Source
	next  []*arch.Stored // that no reading of has begun
	begun map[*arch.Stored]*reading
	room  int // weights that may be begun
}

// reading is what comes of reading a matrix, once done is closed.
type reading struct {
	done chan struct{}
	rows rows
	err  error
}

// newAhead reads some matrices of a source, in the order in which they will be asked for.
func newAhead(src Source, next []*arch.Stored) *ahead {
	return &ahead{src: src, next: next, begun: make(map[*arch.Stored]*reading), room: readAhead}
}

// weights returns the number of weights that are stored.
func weights(s *arch.Stored) int { return s.Matrices() * s.N * s.K }

// take returns a matrix, and begins to read those that come after it.
func (a *ahead) take(s *arch.Stored) (rows, error) {
	r := a.begun[s]
	if r == nil { // it is none of those of the description, or did not fit in before
		if i := slices.Index(a.next, s); i >= 0 {
			a.next = slices.Delete(a.next, i, i+1)
		}
		r = a.begin(s)
	}
	delete(a.begun, s)
	a.room += weights(s)
	for len(a.next) > 0 && len(a.begun) < runtime.GOMAXPROCS(0) && (len(a.begun) == 0 || weights(a.next[0]) <= a.room) {
		a.begin(a.next[0])
		a.next = a.next[1:]
	}
	<-r.done
	return r.rows, r.err
}

// begin begins to read a matrix.
func (a *ahead) begin(s *arch.Stored) *reading {
	r := &reading{done: make(chan struct{})}
	a.begun[s] = r
	a.room -= weights(s)
	go func() {
		defer close(r.done)
		r.rows, r.err = stored(a.src, s)
	}()
	return r
}

// wait waits for the readings that nobody asked for, where something failed before.
func (a *ahead) wait() {
	for _, r := range a.begun {
		<-r.done
	}
}
