package model

import (
	"errors"
	"fmt"

	"github.com/lutq/lutq/formats/arch"
)

// ErrCPUOnly is in the error of a model that a device has no operations for.
var ErrCPUOnly = errors.New("run on the cpu only")

// IndexedOps are the operations of attention to tokens that an indexer has chosen. What is kept for it lies row by row.
type IndexedOps interface {
	LatentOps
	// LayerNorm writes y = (x − mean)/√(variance + eps)·w + bias for rows of len(w) elements. x and y are acts and may be the same, w and bias
	// floats.
	LayerNorm(y, x, w, bias Array, rows int, eps float64)
	// Place copies rows x [rows, width] of a step to their places in kept [slots, positions, width], both acts.
	Place(kept, x Array, at Step, positions, width int)
	// Choose writes which of the keys [slots, positions, Dim] rows see, of those up to their own: the positions of the Top largest
	// Σ_h weights[r, h]·max(0, q[r, h]·key), of equals the first, in ascending order, and −1 behind them. q is acts [rows, Heads, Dim], weights
	// floats [rows, Heads], chosen floats [rows, Top].
	Choose(chosen, q, weights, keys Array, at Step, s IndexShape)
	// RecallChosen is Recall over what is chosen of keys and values [slots, positions, KVHeads, Dim]. o may be q.
	RecallChosen(o, q, keys, values, chosen Array, at Step, positions int, s AttentionShape)
}

// IndexShape are the sizes of a choice.
type IndexShape struct{ Heads, Dim, Top, Positions int }

// indexer chooses, see [arch.Index].
type indexer struct {
	desc          *arch.Index
	ops           IndexedOps
	rope          *rope
	q, k, weights linear
	norm, bias    Array
}

// indexer reads one, nil for none, and what takes tokens that were chosen, nil where all are seen.
func (l *loader) indexer(from *arch.Latent) (*indexer, IndexedOps) {
	if from.Top() == 0 {
		return nil, nil
	}
	ops, ok := l.ops.(IndexedOps)
	if !ok {
		l.fail(fmt.Errorf("%s: indexers of attention %w", l.src.Name(), ErrCPUOnly))
		return nil, nil
	}
	x := from.Index
	if x == nil {
		return nil, ops
	}
	return &indexer{
		desc: x, ops: ops, q: l.linear(x.Q), k: l.linear(x.K), weights: l.linear(x.Weights),
		norm: l.vector(x.NormWeight, 0, x.Dim), bias: l.vector(x.NormBias, 0, x.Dim),
	}, ops
}

// indexRoom is what a token takes of it on the way.
func indexRoom(x *arch.Index) tokenRoom {
	if x == nil {
		return tokenRoom{}
	}
	return tokenRoom{acts: (x.Heads + 1) * x.Dim, floats: x.Heads}
}

// key computes what rows x are found by.
func (i *indexer) key(m *Model, room *taker, x Array, rows int, by angles) Array {
	key := room.take(rows * i.desc.Dim)
	m.ops.Linear(x, rows, i.k.to(key))
	i.ops.LayerNorm(key, key, i.norm, i.bias, rows, i.desc.NormEps)
	i.turn(m, key, rows, 1, by)
	return key
}

// choose writes which keys rows see, of states x, of which queries are made by way of low.
func (i *indexer) choose(m *Model, a activations, room *taker, chosen, x, low, keys Array, by angles, at Step, positions int) {
	d, rows := i.desc, a.t
	q, weights := room.take(rows*d.Heads*d.Dim), a.small.Slice(0, rows*d.Heads)
	m.ops.Linear(low, rows, i.q.to(q))
	m.ops.Linear(x, rows, i.weights.to(weights))
	i.turn(m, q, rows, d.Heads, by)
	i.ops.Choose(chosen, q, weights, keys, at, IndexShape{Heads: d.Heads, Dim: d.Dim, Top: d.Top, Positions: positions})
}

func (i *indexer) turn(m *Model, x Array, rows, heads int, by angles) {
	m.ops.Rope(x, RopeShape{Rows: rows, Heads: heads, Dim: i.desc.Dim, Half: i.rope.half(), Adjacent: i.desc.Rope.Adjacent}, by.cos, by.sin, false)
}

// topOf is how many tokens a model's attention sees at most, 0 for all.
func topOf(d *arch.Decoder) (top int) {
	for i := range d.Blocks {
		if a, ok := d.Blocks[i].Mixer.(*arch.Latent); ok {
			top = max(top, a.Top())
		}
	}
	return top
}
