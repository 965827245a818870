package opstest

import (
	"fmt"
	"math"
	"testing"

	"github.com/lutq/lutq/calib/model"
)

// testCache goes through texts in several slots a few rows at a time.
func testCache(t *testing.T, ops Ops, o Options) {
	for i, test := range []struct {
		c     model.CacheShape
		heads int
		s     model.AttentionShape
		sunk  bool
		once  bool       // keys are values as well, in one array where these lie in one order
		steps [][][3]int // of slot, first position and rows
	}{
		{c: model.CacheShape{Slots: 1, Positions: 1, KVHeads: 1, Dim: 32}, heads: 1, steps: [][][3]int{{{0, 0, 1}}}},
		{
			c: model.CacheShape{Slots: 3, Positions: 70, KVHeads: 2, Dim: 64}, heads: 6,
			steps: [][][3]int{
				{{2, 0, 7}}, {{0, 0, 60}}, {{0, 60, 1}, {2, 7, 1}}, {{1, 0, 1}, {0, 61, 9}, {2, 8, 1}}, {{2, 9, 1}, {1, 1, 1}},
			},
		},
		{
			c: model.CacheShape{Slots: 2, Positions: 40, KVHeads: 1, Dim: 24}, heads: 5, s: model.AttentionShape{Window: 6, Cap: 5}, sunk: true,
			steps: [][][3]int{{{0, 0, 20}, {1, 0, 3}}, {{0, 20, 1}, {1, 3, 1}}, {{1, 4, 18}, {0, 21, 1}}, {{0, 2, 5}}},
		},
		{
			c: model.CacheShape{Slots: 1, Positions: 600, KVHeads: 2, Dim: 16}, heads: 4, s: model.AttentionShape{Window: 130}, sunk: true,
			steps: [][][3]int{{{0, 0, 390}}, {{0, 390, 1}}, {{0, 391, 100}}, {{0, 491, 1}}, {{0, 492, 1}}},
		},
		{
			c: model.CacheShape{Slots: 1, Positions: 20, KVHeads: 1, Dim: 256}, heads: 60, s: model.AttentionShape{Cap: 30},
			steps: [][][3]int{{{0, 0, 2}}, {{0, 2, 1}}, {{0, 3, 9}}, {{0, 12, 1}}},
		},
		{
			c: model.CacheShape{Slots: 1, Positions: 40, KVHeads: 1, Dim: 512}, heads: 2,
			steps: [][][3]int{{{0, 0, 20}}, {{0, 20, 1}}, {{0, 21, 9}}, {{0, 30, 1}}},
		},
		{ // what is kept of latents
			c: model.CacheShape{Slots: 2, Positions: 40, KVHeads: 1, Dim: 576}, heads: 3,
			steps: [][][3]int{{{1, 0, 20}}, {{1, 20, 1}, {0, 0, 2}}, {{0, 2, 1}, {1, 21, 9}}, {{1, 30, 1}}},
		},
		{
			c: model.CacheShape{Slots: 2, Positions: 290, KVHeads: 1, Dim: 576}, heads: 20, once: true,
			steps: [][][3]int{{{1, 0, 250}}, {{1, 250, 1}, {0, 0, 2}}, {{0, 2, 1}, {1, 251, 9}}, {{0, 3, 1}, {1, 60, 1}}},
		},
		{
			c: model.CacheShape{Slots: 3, Positions: 40, KVHeads: 1, Dim: 42}, heads: 3, once: true,
			steps: [][][3]int{{{1, 0, 20}}, {{1, 20, 1}, {0, 0, 1}}, {{1, 21, 1}, {0, 1, 3}, {2, 0, 1}}},
		},
		{
			c: model.CacheShape{Slots: 2, Positions: 30, KVHeads: 2, Dim: 296}, heads: 4, s: model.AttentionShape{Window: 9, Cap: 5}, sunk: true,
			steps: [][][3]int{{{1, 0, 2}}, {{1, 2, 1}}, {{1, 3, 9}, {0, 0, 3}}, {{1, 12, 1}, {0, 3, 1}}},
		},
		{
			c: model.CacheShape{Slots: 2, Positions: 290, KVHeads: 1, Dim: 80}, heads: 1,
			steps: [][][3]int{{{1, 0, 259}}, {{1, 259, 1}}, {{1, 100, 1}}},
		},
	} {
		if testing.Short() && test.c.Positions > 200 {
			continue
		}
		s := test.s
		s.Heads, s.KVHeads, s.Dim, s.Scale = test.heads, test.c.KVHeads, test.c.Dim, float32(1/math.Sqrt(float64(test.c.Dim)))
		t.Run(fmt.Sprintf("%+v heads %d window %d cap %v sinks %v once %v", test.c, s.Heads, s.Window, s.Cap, test.sunk, test.once), func(t *testing.T) {
			// What was never kept is not to be looked at.
			keys, values := ops.Acts(test.c.Elements()), ops.Acts(test.c.Elements())
			defer ops.Free(keys, values)
			ops.Write(keys, poison(keys.Len()))
			ops.Write(values, poison(keys.Len()))
			refKeys, refValues := make(Array, keys.Len()), make(Array, keys.Len())
			of := values
			if test.once && ops.OneOrder() {
				of = keys
			}
			for j, step := range test.steps {
				c := o.check(t, ops, uint64(10*i+j))
				var runs []model.Run
				var places []float32
				for _, run := range step {
					r := model.Run{Slot: run[0], From: run[1], Rows: run[2]}
					runs = append(runs, r)
					for n := range r.Rows {
						places = append(places, float32(r.Slot), float32(r.From+n))
					}
				}
				rows := len(places) / 2
				at := c.floats("rows", places)
				q := c.acts("q", c.normal(rows*s.Heads*s.Dim, 4))
				k, v := c.acts("k", c.normal(rows*s.KVHeads*s.Dim, 1)), c.acts("v", c.normal(rows*s.KVHeads*s.Dim, 1))
				if test.once {
					v = k
				}
				in, y := c.acts("q in place", c.before(q)).out(0), c.actsOut("o", rows*s.Heads*s.Dim)
				sinks := make([]float32, s.Heads)
				for h := range sinks {
					sinks[h] = float32(20*(h%4) - 30)
				}
				sink := c.floats("sinks", sinks)
				c.both(func(side side) {
					s := s
					if test.sunk {
						s.Sinks = side.a(sink)
					}
					keys, values := keys, of
					if side.reference {
						keys, values = refKeys, refValues
					}
					step := model.Step{Runs: runs, Rows: side.a(at)}
					side.Keep(keys, values, side.a(k), side.a(v), step, test.c)
					side.Recall(side.a(y), side.a(q), keys, values, step, test.c, s)
					side.Recall(side.a(in), side.a(in), keys, values, step, test.c, s)
				})
				c.compare(o.Acts)
				c.done()
			}
		})
	}
}
