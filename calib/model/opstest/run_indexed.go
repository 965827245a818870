package opstest

import (
	"fmt"
	"testing"

	"github.com/lutq/lutq/calib/model"
)

// IndexedOps are those of a device that has indexers.
type IndexedOps interface {
	Ops
	model.IndexedOps
}

// testIndexed goes through texts that choose what they see.
func testIndexed(t *testing.T, ops IndexedOps, o Options) {
	for i, test := range []struct {
		heads, dim, top, positions int
		s                          model.AttentionShape
	}{
		{heads: 1, dim: 8, top: 1, positions: 20, s: model.AttentionShape{Heads: 1, KVHeads: 1, Dim: 4}},
		{heads: 5, dim: 24, top: 7, positions: 20, s: model.AttentionShape{Heads: 6, KVHeads: 1, Dim: 64}},
		{heads: 3, dim: 16, top: 4, positions: 20, s: model.AttentionShape{Heads: 4, KVHeads: 2, Dim: 10}},
		{heads: 4, dim: 32, top: 30, positions: 20, s: model.AttentionShape{Heads: 2, KVHeads: 2, Dim: 16}}, // who sees all
	} {
		t.Run(fmt.Sprintf("heads %d dim %d top %d of %+v", test.heads, test.dim, test.top, test.s), func(t *testing.T) {
			const slots = 3
			s, wide := test.s, test.s.KVHeads*test.s.Dim
			s.Scale = 0.4
			keys, kept := ops.Acts(slots*test.positions*test.dim), ops.Acts(slots*test.positions*wide)
			defer ops.Free(keys, kept)
			ops.Write(keys, poison(keys.Len())) // which nobody is to look at
			ops.Write(kept, poison(kept.Len()))
			refKeys, refKept := make(Array, keys.Len()), make(Array, kept.Len())
			for j, runs := range [][][3]int{{{1, 0, 9}}, {{1, 9, 1}, {0, 0, 2}}, {{0, 2, 6}, {1, 10, 1}, {2, 0, 1}}} {
				c := o.check(t, ops, uint64(10*i+j))
				at, rows := c.step(runs)
				x, w, b := c.acts("x", c.normal(rows*test.dim, 1)), c.floats("w", c.normal(test.dim, 1)), c.floats("b", c.normal(test.dim, 1))
				key := c.actsOut("key", rows*test.dim)
				q, weights := c.acts("index queries", c.normal(rows*test.heads*test.dim, 1)), c.floats("weights", c.normal(rows*test.heads, 1))
				chosen := c.floats("chosen", poison(rows*test.top)).out(1)
				token, queries := c.acts("token", c.normal(rows*wide, 1)), c.acts("q", c.normal(rows*s.Heads*s.Dim, 1))
				in, y := c.acts("q in place", c.before(queries)).out(0), c.actsOut("o", rows*s.Heads*s.Dim)
				c.both(func(side side) {
					use, keys, kept := model.IndexedOps(ops), keys, kept
					if side.reference {
						use, keys, kept = Reference{}, refKeys, refKept
					}
					use.LayerNorm(side.a(key), side.a(x), side.a(w), side.a(b), rows, 1e-6)
					use.Place(keys, side.a(x), at, test.positions, test.dim)
					use.Choose(side.a(chosen), side.a(q), side.a(weights), keys, at, model.IndexShape{Heads: test.heads, Dim: test.dim, Top: test.top, Positions: test.positions})
					use.Place(kept, side.a(token), at, test.positions, wide)
					use.RecallChosen(side.a(y), side.a(queries), kept, kept, side.a(chosen), at, test.positions, s)
					use.RecallChosen(side.a(in), side.a(in), kept, kept, side.a(chosen), at, test.positions, s)
				})
				c.compare(o.Acts)
				c.done()
			}
		})
	}
}
