package opstest

import (
	"fmt"
	"math"
	"testing"

	"github.com/lutq/lutq/calib/model"
)

// LatentKeeper are the operations of a device that keeps latents at once.
type LatentKeeper interface {
	Ops
	model.LatentKeeper
}

// testKeepLatents compares what is kept of some rows with what the [Reference]'s norm, rotary embedding and copies make of them.
func testKeepLatents(t *testing.T, ops LatentKeeper, o Options) {
	for i, test := range []struct {
		s    model.LatentShape
		runs [][3]int
	}{
		{model.LatentShape{Heads: 1, Dim: 2, Rank: 1, Half: 1, Eps: 1e-6}, [][3]int{{0, 0, 1}}},
		{model.LatentShape{Heads: 16, Dim: 192, Rank: 512, Half: 32, Adjacent: true, Eps: 1e-6}, [][3]int{{1, 7, 1}, {0, 19, 1}}},
		{model.LatentShape{Heads: 3, Dim: 40, Rank: 50, Half: 8, Eps: 1e-2}, [][3]int{{2, 0, 3}, {0, 4, 9}}},
	} {
		t.Run(fmt.Sprintf("%+v", test.s), func(t *testing.T) {
			s := test.s
			c := o.check(t, ops, uint64(i))
			defer c.done()
			at, rows := c.step(test.runs)
			shape := model.CacheShape{Slots: 3, Positions: 20, KVHeads: 1, Dim: s.Rank + 2*s.Half}
			q, down, norm := c.acts("q", c.normal(rows*s.Heads*s.Dim, 1)), c.acts("down", c.normal(rows*shape.Dim, 1)), c.floats("norm", c.normal(s.Rank, 1))
			angles := c.uniform(rows*s.Half, 3)
			cos, sin := make([]float32, len(angles)), make([]float32, len(angles))
			for i, a := range angles {
				cos[i], sin[i] = float32(math.Cos(float64(a))), float32(math.Sin(float64(a)))
			}
			cs, sn := c.floats("cos", cos), c.floats("sin", sin)
			queries, kept := c.acts("queries", c.normal(rows*s.Heads*shape.Dim, 1)).out(1), c.acts("kept", c.normal(shape.Elements(), 1)).out(1)
			c.both(func(side side) {
				if !side.reference {
					ops.KeepLatents(side.a(queries), side.a(kept), side.a(q), side.a(down), side.a(norm), side.a(cs), side.a(sn), at, shape, s)
					return
				}
				token, turned := append(Array(nil), values(side.a(down))...), append(Array(nil), values(side.a(q))...)
				rope := model.RopeShape{Rows: rows, Heads: s.Heads, Dim: s.Dim, Half: s.Half, Adjacent: s.Adjacent}
				side.Rope(turned[s.Dim-2*s.Half:], rope, side.a(cs), side.a(sn), false)
				rope.Heads, rope.Dim = 1, shape.Dim
				side.Rope(token[s.Rank:], rope, side.a(cs), side.a(sn), false)
				for r := range rows {
					latent := token[r*shape.Dim:][:s.Rank]
					side.RMSNorm(latent, latent, side.a(norm), 1, s.Eps)
				}
				side.CopyHeads(Array(values(side.a(queries)))[s.Rank:], turned[s.Dim-2*s.Half:], model.HeadsShape{
					Rows: rows, Heads: s.Heads, Width: 2 * s.Half, ToRow: s.Heads * shape.Dim, ToHead: shape.Dim, FromRow: s.Heads * s.Dim, FromHead: s.Dim,
				})
				row := 0
				for _, run := range at.Runs {
					for i := range run.Rows { // as a device keeps it that has keys and values in one order
						copy(values(side.a(kept))[run.Slot*shape.Head()+(run.From+i)*shape.Dim:], token[row*shape.Dim:(row+1)*shape.Dim])
						row++
					}
				}
			})
			c.compare(o.Acts)
		})
	}
}
