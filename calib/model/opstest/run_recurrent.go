package opstest

import (
	"fmt"
	"testing"

	"github.com/lutq/lutq/calib/model"
)

func testCopyHeads(t *testing.T, ops Ops, o Options) {
	for i, s := range []model.HeadsShape{
		{Rows: 1, Heads: 1, Width: 1, ToRow: 1, ToHead: 1, FromRow: 1, FromHead: 1},
		{Rows: 7, Heads: 3, Width: 5, ToRow: 15, ToHead: 5, FromRow: 31, FromHead: 10},
		{Rows: 33, Heads: 4, Width: 16, ToRow: 80, ToHead: 20, FromRow: 64, FromHead: 16},
		{Rows: 300, Heads: 2, Width: 9, ToRow: 20, ToHead: 10, FromRow: 18, FromHead: 9},
		{Rows: 5, Heads: 3, Width: 4, ToRow: 24, ToHead: 8, FromRow: 4},              // one head to all
		{Rows: 6, Heads: 5, Width: 1, ToRow: 1, ToHead: 6, FromRow: 11, FromHead: 1}, // transposed
	} {
		t.Run(fmt.Sprintf("%+v", s), func(t *testing.T) {
			c := o.check(t, ops, uint64(i))
			defer c.done()
			to, from := s.Spans()
			x, f := c.acts("x", c.normal(from, 1)), c.floats("f", c.normal(from, 1))
			y, g := c.acts("y", c.normal(to, 1)).out(0), c.floats("g", c.normal(to, 1)).out(0)
			c.both(func(side side) {
				side.CopyHeads(side.a(y), side.a(x), s)
				side.CopyHeads(side.a(g), side.a(f), s)
			})
			c.compare(0)
		})
	}
}

// recurrentSteps are those of some texts, the rows of each: of slot, first position and rows. One begins again.
func recurrentSteps() [][][3]int {
	return [][][3]int{{{2, 0, 7}, {0, 0, 2}}, {{1, 0, 1}, {0, 2, 1}, {2, 7, 1}}, {{2, 8, 9}}, {{0, 3, 1}, {2, 17, 1}}, {{2, 0, 3}, {1, 1, 4}}, {{1, 5, 1}, {2, 3, 1}}}
}

// step tells the device where rows stand.
func (c *check) step(runs [][3]int) (at model.Step, rows int) {
	var places []float32
	for _, run := range runs {
		at.Runs = append(at.Runs, model.Run{Slot: run[0], From: run[1], Rows: run[2]})
		rows += run[2]
		for i := range run[2] {
			places = append(places, float32(run[0]), float32(run[1]+i))
		}
	}
	at.Rows = c.floats("places", places).dev
	return at, rows
}

func testConvolve(t *testing.T, ops Ops, o Options) {
	for i, s := range []model.ConvShape{{Channels: 1, Width: 2}, {Channels: 24, Width: 4, SiLU: true}, {Channels: 300, Width: 3}, {Channels: 65, Width: 8, SiLU: true}} {
		t.Run(fmt.Sprintf("%+v", s), func(t *testing.T) {
			const slots = 3
			kept := ops.Acts(slots * (s.Width - 1) * s.Channels)
			defer ops.Free(kept)
			ops.Write(kept, poison(kept.Len()))
			ref := make(Array, kept.Len())
			for j, runs := range append(recurrentSteps(), nil) {
				c := o.check(t, ops, uint64(10*i+j))
				at, n := model.Step{Runs: []model.Run{{Rows: 37}}}, 37
				past := kept
				if runs != nil {
					at, n = c.step(runs)
				} else {
					past = nil
				}
				x, w, y := c.acts("x", c.normal(n*s.Channels, 1)), c.floats("w", c.normal(s.Channels*s.Width, 1)), c.actsOut("y", n*s.Channels)
				var bias *tensor
				if j%2 == 0 {
					bias = c.floats("bias", c.normal(s.Channels, 1))
				}
				c.both(func(side side) {
					in, place := past, at
					if side.reference && past != nil {
						in = ref
					}
					side.Convolve(side.a(y), side.a(x), side.a(w), side.a(bias), in, place, s)
				})
				c.compare(o.Acts)
				c.done()
			}
		})
	}
}

func testDeltaRule(t *testing.T, ops Ops, o Options) {
	for i, s := range []model.DeltaShape{
		{KHeads: 1, VHeads: 1, KDim: 4, VDim: 2},
		{KHeads: 2, VHeads: 4, KDim: 16, VDim: 24},
		{KHeads: 1, VHeads: 3, KDim: 128, VDim: 40},
		{KHeads: 2, VHeads: 2, KDim: 150, VDim: 128},
	} {
		t.Run(fmt.Sprintf("%+v", s), func(t *testing.T) {
			const slots = 3
			size, channels := s.VHeads*s.KDim*s.VDim, 2*s.KHeads*s.KDim+s.VHeads*s.VDim
			state := ops.Floats(slots * size)
			defer ops.Free(state)
			ops.Write(state, poison(state.Len()))
			ref := make(Array, state.Len())
			for j, runs := range append(recurrentSteps(), nil) {
				c := o.check(t, ops, uint64(10*i+j))
				at, n := model.Step{Runs: []model.Run{{Rows: 21}}}, 21
				var past model.Array
				if runs != nil {
					at, n = c.step(runs)
					past = state
				}
				x, y := c.acts("x", c.normal(n*channels, 1)), c.actsOut("o", n*s.VHeads*s.VDim)
				a, b := c.floats("a", c.normal(n*s.VHeads, 2)), c.floats("b", c.normal(n*s.VHeads, 2))
				logs, bias := c.floats("logs", c.uniform(s.VHeads, 1)), c.floats("bias", c.uniform(s.VHeads, 2))
				c.both(func(side side) {
					in := past
					if side.reference && past != nil {
						in = ref
					}
					side.DeltaRule(side.a(y), side.a(x), side.a(a), side.a(b), side.a(logs), side.a(bias), in, at, s)
				})
				c.compare(o.Acts)
				c.done()
			}
		})
	}
}

func testByHeads(t *testing.T, ops Ops, o Options) {
	for i, s := range []model.ByHeadsShape{
		{Rows: 1, Heads: 1, N: 1, K: 1, ToRow: 1, ToHead: 1, FromRow: 1, FromHead: 1},
		{Rows: 7, Heads: 3, N: 9, K: 40, ToRow: 36, ToHead: 12, FromRow: 150, FromHead: 48},
		{Rows: 3, Heads: 2, N: 512, K: 128, ToRow: 1152, ToHead: 576, FromRow: 384, FromHead: 192},
		{Rows: 2, Heads: 4, N: 33, K: 513, ToRow: 132, ToHead: 33, FromRow: 2308, FromHead: 577},
	} {
		t.Run(fmt.Sprintf("%+v", s), func(t *testing.T) {
			c := o.check(t, ops, uint64(i))
			defer c.done()
			to, from := s.Spans()
			x, w := c.acts("x", c.normal(from, 1)), c.acts("w", c.normal(s.Heads*s.N*s.K, 1))
			y := c.acts("y", c.normal(to, 1)).out(0)
			c.both(func(side side) { side.ByHeads(side.a(y), side.a(x), side.a(w), s) })
			c.compare(o.Acts)
		})
	}
}
