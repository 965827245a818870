package model_test

import (
	"context"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/lutq/lutq/calib/model"
	"github.com/lutq/lutq/formats/arch/archtest"
	"github.com/lutq/lutq/formats/racetest"
)

// keptStates are those of some windows, by block. It implements [model.States].
type keptStates struct {
	t     *testing.T
	first int // window of all, that the walk counts from
	mu    *sync.Mutex
	of    map[[2]int][]float32 // by block and window
}

func (k *keptStates) Keeps(int) bool { return true }

func (k *keptStates) Save(block, window int, state []float32) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	at := [2]int{block, k.first + window}
	if had, ok := k.of[at]; ok && firstDiff(had, state) >= 0 {
		k.t.Errorf("before block %d window %d differs at %d", block, at[1], firstDiff(had, state))
	}
	k.of[at] = slices.Clone(state)
	return nil
}

func (k *keptStates) Load(block, window int, state []float32) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	kept := k.of[[2]int{block, k.first + window}]
	if len(kept) != len(state) {
		k.t.Errorf("before block %d window %d is %d numbers: want %d", block, k.first+window, len(kept), len(state))
	}
	copy(state, kept)
	return nil
}

// TestStates: what windows are between blocks does not depend on the windows beside them, and a walk that begins there shows a
// visitor the same to the bit, in every family. So does one that spares passes.
func TestStates(t *testing.T) {
	racetest.Skip(t)
	for i, g := range archtest.Goldens(t) {
		if testing.Short() && i%4 != 0 {
			continue
		}
		t.Run(g.Name, func(t *testing.T) {
			dir := t.TempDir()
			g.Write(t, dir)
			src := openCheckpoint(t, dir)
			d, windows := src.Decoder(), walkWindows(g.Tokens)
			kept := &keptStates{t: t, mu: new(sync.Mutex), of: make(map[[2]int][]float32)}
			walk := func(v *visitor, windows [][]int, o model.WalkOptions) {
				t.Helper()
				ops := &watched{Ops: newOps(t, 1)}
				o.Windows = windows
				if err := model.Walk(context.Background(), src, ops, v, o); err != nil {
					t.Fatal(err)
				}
				if ops.weights != 0 || ops.floats != 0 {
					t.Errorf("%d weights and %d elements of arrays are left on the device", ops.weights, ops.floats)
				}
			}
			whole := newVisitor(t, src)
			whole.nope = true
			walk(whole, windows, model.WalkOptions{States: kept, To: len(d.Blocks)})
			if want := len(d.Blocks) * len(windows); len(kept.of) != want {
				t.Fatalf("%d states were kept: want %d", len(kept.of), want)
			}
			spared := newVisitor(t, src)
			spared.nope = true
			walk(spared, windows, model.WalkOptions{States: kept, To: len(d.Blocks), Apart: true})
			for path, all := range whole.stats {
				for e, want := range all {
					if s := spared.stats[path][e]; s.tokens != want.tokens || firstDiff(s.h, want.h) >= 0 {
						t.Errorf("where passes are spared %s has other statistics", path)
					}
				}
			}
			for from := range d.Blocks {
				none := newVisitor(t, src)
				none.wants = func(string) bool { return false }
				some := *kept
				some.first = 1
				walk(none, windows[1:], model.WalkOptions{From: from, To: min(from+2, len(d.Blocks)), States: &some})
			}
			before := make(map[string]bool)
			for from := 1; from <= len(d.Blocks); from++ {
				for _, l := range d.Blocks[from-1].Linears() {
					before[l.Stored.Path] = true
				}
				rest := newVisitor(t, src)
				rest.nope = true
				rest.wants = func(path string) bool { return !before[path] }
				walk(rest, windows, model.WalkOptions{From: from, States: kept})
				if want := slices.DeleteFunc(slices.Clone(whole.order), func(path string) bool { return before[path] }); !slices.Equal(rest.order, want) {
					t.Errorf("from block %d on came by %v: want %v", from, rest.order, want)
				}
				for _, path := range rest.order {
					for e, s := range rest.stats[path] {
						if want := whole.stats[path][e]; s.tokens != want.tokens || s.routed != want.routed || firstDiff(s.h, want.h) >= 0 {
							t.Errorf("from block %d on: %s has other statistics", from, path)
						}
					}
				}
			}
		})
	}
	s := small()
	src := openCheckpoint(t, s.build().folder(t))
	err := model.Walk(context.Background(), src, newOps(t, 1), newVisitor(t, src), model.WalkOptions{Windows: [][]int{{1, 2}}, From: 1})
	if err == nil || !strings.Contains(err.Error(), "nothing says what windows are before block 1") {
		t.Errorf("without states: error %v", err)
	}
}
