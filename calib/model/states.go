package model

import (
	"fmt"
	"slices"

	"github.com/lutq/lutq/formats/arch"
)

// StateSize is how many numbers say what a window of so many tokens is between two blocks: the residual stream [tokens, hidden],
// what layers are told of tokens, keys and values that later attentions read, and which tokens they see, where there is any
// such thing.
func StateSize(d *arch.Decoder, tokens int) int {
	n := tokens * (d.Hidden + besideWidth(d))
	if top := topOf(d); top > 0 && tokens > top {
		n += tokens * top
	}
	return n
}

// Starts returns the windows of a walk that one over them and those after them may begin with, so that windows which pass
// through a mixture of experts together still do: the first, and where others go together no longer.
func Starts(d *arch.Decoder, o WalkOptions) (starts []int) {
	together := 0
	if slices.ContainsFunc(d.Blocks, goesTogether) {
		together = o.Together
	}
	for _, of := range spansOf(o.Windows, together) {
		starts = append(starts, of.from)
	}
	return starts
}

// state calls do with each array of a window's state and its place in that.
func (w *walker) state(window int, state []float32, do func(a Array, part []float32)) {
	a := w.activations(w.windows[window])[0]
	for _, of := range append([]Array{a.h}, a.beside.arrays...) {
		do(of, state[:of.Len()])
		state = state[of.Len():]
	}
}

// loadStates begins with what the windows are before the first block of the walk.
func (w *walker) loadStates() error {
	if w.o.States == nil || w.o.Original {
		return fmt.Errorf("nothing says what windows are before block %d", w.o.From)
	}
	for i, tokens := range w.texts {
		state := make([]float32, StateSize(w.desc, len(tokens)))
		if err := w.o.States.Load(w.o.From, w.offset+i, state); err != nil {
			return err
		}
		w.state(i, state, w.ops.Write)
	}
	return w.ops.Err()
}

// saveStates gives away what the windows are before a block, where that is wanted.
func (w *walker) saveStates(block int) error {
	if w.o.States == nil || w.o.Original || !w.o.States.Keeps(block) {
		return nil
	}
	for i, tokens := range w.texts {
		state := make([]float32, StateSize(w.desc, len(tokens)))
		w.state(i, state, func(a Array, part []float32) { w.ops.Read(part, a) })
		if err := w.ops.Err(); err != nil {
			return err
		}
		if err := w.o.States.Save(block, w.offset+i, state); err != nil {
			return err
		}
	}
	return nil
}
