package opstest

import (
	"fmt"
	"math"
	"testing"

	"github.com/lutq/lutq/calib/model"
	"github.com/lutq/lutq/formats/arch"
)

// Attend goes through texts in several slots, a token each at a time, by the operation of a [model.Recorder], and compares with
// those of the [Reference] that it stands for.
func Attend(t *testing.T, ops Ops, o Options) {
	rec, ok := ops.(model.Recorder)
	if !ok {
		t.Skip("no recorder")
	}
	for i, test := range []struct {
		c      model.CacheShape
		heads  int
		half   int // 0: all of a head
		s      model.AttentionShape
		normed bool
		biased bool
		sunk   bool
		gated  bool
		apart  bool    // whether queries, keys and values lie apart
		kept   int     // tokens that are kept of slot 0 at first; of the next one less
		slots  [][]int // of each step, in turns
		steps  int
	}{
		{c: model.CacheShape{Slots: 1, Positions: 1, KVHeads: 1, Dim: 32}, heads: 1, slots: [][]int{{0}}, steps: 1},
		{c: model.CacheShape{Slots: 3, Positions: 200, KVHeads: 2, Dim: 64}, heads: 6, kept: 140, slots: [][]int{{2, 0}, {1}, {0, 1, 2}}, steps: 6},
		{c: model.CacheShape{Slots: 2, Positions: 40, KVHeads: 2, Dim: 128}, heads: 8, half: 20, normed: true, biased: true, slots: [][]int{{0, 1}}, steps: 20},
		{
			c: model.CacheShape{Slots: 2, Positions: 60, KVHeads: 1, Dim: 96}, heads: 11, s: model.AttentionShape{Window: 17, Cap: 5},
			sunk: true, apart: true, kept: 10, slots: [][]int{{1, 0}}, steps: 12,
		},
		{c: model.CacheShape{Slots: 1, Positions: 600, KVHeads: 2, Dim: 32}, heads: 4, biased: true, kept: 510, slots: [][]int{{0}}, steps: 4},
		{
			c: model.CacheShape{Slots: 2, Positions: 1500, KVHeads: 1, Dim: 64}, heads: 9, s: model.AttentionShape{Window: 700}, sunk: true,
			kept: 1200, slots: [][]int{{0, 1}}, steps: 2,
		},
		{
			c: model.CacheShape{Slots: 2, Positions: 700, KVHeads: 2, Dim: 256}, heads: 8, half: 32, normed: true, gated: true,
			kept: 600, slots: [][]int{{0, 1}}, steps: 2,
		},
		{c: model.CacheShape{Slots: 2, Positions: 30, KVHeads: 1, Dim: 64}, heads: 2, gated: true, apart: true, kept: 3, slots: [][]int{{1, 0}}, steps: 5},
		// Of more blocks than have eight warps.
		{
			c: model.CacheShape{Slots: 9, Positions: 100, KVHeads: 30, Dim: 128}, heads: 60, half: 20, normed: true, biased: true,
			kept: 80, slots: [][]int{{8, 0, 1, 2, 3, 4, 5, 6, 7}}, steps: 2,
		},
		{
			c: model.CacheShape{Slots: 9, Positions: 300, KVHeads: 30, Dim: 32}, heads: 90, s: model.AttentionShape{Window: 290}, sunk: true,
			kept: 270, slots: [][]int{{0, 1, 2, 3, 4, 5, 6, 7, 8}}, steps: 1,
		},
	} {
		s := test.s
		s.Heads, s.KVHeads, s.Dim, s.Scale = test.heads, test.c.KVHeads, test.c.Dim, float32(1/math.Sqrt(float64(test.c.Dim)))
		if !rec.Attends(s) {
			continue
		}
		if test.half == 0 {
			test.half = s.Dim / 2
		}
		t.Run(fmt.Sprintf("%+v heads %d window %d cap %v sinks %v gated %v", test.c, s.Heads, s.Window, s.Cap, test.sunk, test.gated), func(t *testing.T) {
			wide, narrow := s.Heads*s.Dim, s.KVHeads*s.Dim
			// What was never kept is not to be looked at.
			keys, values, arrived := ops.Acts(test.c.Elements()), ops.Acts(test.c.Elements()), ops.Floats(test.c.Slots*s.Heads)
			defer ops.Free(keys, values, arrived)
			ops.Write(keys, poison(keys.Len()))
			ops.Write(values, poison(keys.Len()))
			refKeys, refValues := make(Array, keys.Len()), make(Array, keys.Len())
			lengths := make([]int, test.c.Slots)
			at := func(c *check, slots []int, n int) (model.Step, *tensor) {
				var step model.Step
				var rows []float32
				for _, slot := range slots {
					step.Runs = append(step.Runs, model.Run{Slot: slot, From: lengths[slot], Rows: n})
					for range n {
						rows = append(rows, float32(slot), float32(lengths[slot]))
						lengths[slot]++
					}
				}
				return step, c.floats("rows", rows)
			}
			for slot := 0; slot < test.c.Slots && test.kept > 0; slot++ {
				c := o.check(t, ops, uint64(100*i+slot))
				step, rows := at(c, []int{slot}, test.kept-slot)
				k, v := c.acts("k", c.normal(lengths[slot]*narrow, 1)), c.acts("v", c.normal(lengths[slot]*narrow, 1))
				c.both(func(side side) {
					keys, values := keys, values
					if side.reference {
						keys, values = refKeys, refValues
					}
					step := step
					step.Rows = side.a(rows)
					side.Keep(keys, values, side.a(k), side.a(v), step, test.c)
				})
				c.done()
			}
			for j := range test.steps {
				c := o.check(t, ops, uint64(100*i+10+j))
				slots := test.slots[j%len(test.slots)]
				n := len(slots)
				step, rows := at(c, slots, 1)
				of := 1 // of what is made of a head of queries, heads
				if test.gated {
					of = 2
				}
				all := of*wide + 2*narrow
				joined := c.normal(n*all, 1)
				part := func(from, width int) []float32 {
					var v []float32
					for row := range n {
						v = append(v, joined[row*all+from:][:width]...)
					}
					return v
				}
				qkv := c.acts("qkv", joined)
				heads := part(0, of*wide)
				var queries, gates []float32
				for i, x := range heads {
					if i/s.Dim%of == 0 {
						queries = append(queries, x)
					} else {
						gates = append(gates, x)
					}
				}
				q, k, v := c.acts("q", heads), c.acts("k", part(of*wide, narrow)), c.acts("v", part(of*wide+narrow, narrow))
				alone, gate := c.acts("queries", queries), c.acts("gates", gates)
				cos, sin := c.floats("cos", c.uniform(n*test.half, 1)), c.floats("sin", c.uniform(n*test.half, 1))
				optional := func(is bool, name string, n int) *tensor {
					if !is {
						return nil
					}
					return c.floats(name, c.normal(n, 1))
				}
				qBias, kBias, vBias := optional(test.biased, "q bias", wide), optional(test.biased, "k bias", narrow), optional(test.biased, "v bias", narrow)
				qNorm, kNorm := optional(test.normed, "q norm", s.Dim), optional(test.normed, "k norm", s.Dim)
				sinks := optional(test.sunk, "sinks", s.Heads)
				y := c.actsOut("o", n*wide)
				const qEps, kEps = 1e-3, 1e-2
				c.both(func(side side) {
					s := s
					if test.sunk {
						s.Sinks = side.a(sinks)
					}
					step := step
					step.Rows = side.a(rows)
					if !side.reference {
						h := model.StepHeads{
							Q: side.a(q), K: side.a(k), V: side.a(v), QPitch: of * wide, KVPitch: narrow, Gated: test.gated, Cos: side.a(cos), Sin: side.a(sin), Half: test.half,
							QBias: side.a(qBias), KBias: side.a(kBias), VBias: side.a(vBias), QNorm: side.a(qNorm), KNorm: side.a(kNorm), QEps: qEps, KEps: kEps,
						}
						if !test.apart {
							h.Q, h.QPitch, h.KVPitch = side.a(qkv), all, all
							h.K, h.V = h.Q.Slice(of*wide, n*all), h.Q.Slice(of*wide+narrow, n*all)
						}
						rec.Attend(side.a(y), keys, values, h, step, test.c, s, arrived.Slice(0, n*s.Heads))
						return
					}
					head := func(x, bias, norm *tensor, heads int, eps float64) Array {
						to := append(Array(nil), x.ref...)
						for i := range to {
							if bias != nil {
								to[i] += bias.ref[i%len(bias.ref)]
							}
						}
						if norm != nil {
							side.RMSNorm(to, to, norm.ref, n*heads, eps)
						}
						return to
					}
					turnedQ, turnedK := head(alone, qBias, qNorm, s.Heads, qEps), head(k, kBias, kNorm, s.KVHeads, kEps)
					side.Rope(turnedQ, model.RopeShape{Rows: n, Heads: s.Heads, Dim: s.Dim, Half: test.half}, cos.ref, sin.ref, false)
					side.Rope(turnedK, model.RopeShape{Rows: n, Heads: s.KVHeads, Dim: s.Dim, Half: test.half}, cos.ref, sin.ref, false)
					side.Keep(refKeys, refValues, turnedK, head(v, vBias, nil, s.KVHeads, 0), step, test.c)
					side.Recall(y.ref, turnedQ, refKeys, refValues, step, test.c, s)
					if test.gated {
						side.GLU(y.ref, gate.ref, y.ref, arch.Gating{Act: arch.Sigmoid})
					}
				})
				c.compare(o.Acts)
				c.done()
				left := make([]float32, arrived.Len())
				ops.Read(left, arrived)
				for i, v := range left {
					if v != 0 {
						t.Fatalf("step %d: %v is left at %d of the counts of blocks", j, v, i)
					}
				}
			}
			// What was kept, of the last of each slot.
			for slot := range test.c.Slots {
				got := make([]float32, keys.Len())
				for _, of := range []struct {
					name string
					dev  model.Array
					ref  Array
				}{{"keys", keys, refKeys}, {"values", values, refValues}} {
					ops.Read(got, of.dev)
					var diff, norm float64
					for position := range lengths[slot] {
						for h := range s.KVHeads {
							at := (slot*s.KVHeads+h)*test.c.Head() + position*s.Dim
							for d := range s.Dim {
								e := float64(got[at+d]) - kept(of.ref, test.c, slot, h, position)[d]
								diff += e * e
								norm += math.Pow(float64(got[at+d]), 2)
							}
						}
					}
					if e := math.Sqrt(diff / norm); diff > 0 && !(e <= o.Acts) {
						t.Errorf("%s of slot %d differ by %.2g", of.name, slot, e)
					}
				}
			}
		})
	}
}
