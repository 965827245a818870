package opstest

import (
	"fmt"
	"testing"

	"github.com/lutq/lutq/calib/model"
	"github.com/lutq/lutq/formats/arch"
	"github.com/lutq/lutq/formats/hf"
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

func testSumHeads(t *testing.T, ops Ops, o Options) {
	for i, s := range []model.HeadsShape{
		{Rows: 1, Heads: 1, Width: 1, ToRow: 1, FromRow: 1, FromHead: 1},
		{Rows: 7, Heads: 3, Width: 5, ToRow: 8, FromRow: 31, FromHead: 10},
		{Rows: 70, Heads: 16, Width: 64, ToRow: 64, FromRow: 16 * 192, FromHead: 192},
	} {
		t.Run(fmt.Sprintf("%+v", s), func(t *testing.T) {
			c := o.check(t, ops, uint64(i))
			defer c.done()
			to, from := s.Spans()
			x, y := c.acts("x", c.normal(from, 1)), c.acts("y", c.normal(to, 1)).out(1)
			c.both(func(side side) { side.SumHeads(side.a(y), side.a(x), s) })
			c.compare(o.Acts)
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

// texts are what an operation has before it goes through texts in a few slots, or through one of which nothing is kept.
type texts struct {
	*check
	at   model.Step
	rows int
	kept []past
}

// past is what a device keeps of texts, and the reference.
type past struct {
	dev model.Array // nil: nothing
	ref Array
}

// of is what a side keeps.
func (k past) of(s side) model.Array {
	switch {
	case k.dev == nil:
		return nil
	case s.reference:
		return k.ref
	}
	return k.dev
}

// throughTexts runs test for each step of texts in slots, whose arrays hold anything first, and for one of alone rows of which nothing is kept.
func (o Options) throughTexts(t *testing.T, ops Ops, seed uint64, alone int, test func(c texts), arrays ...model.Array) {
	all := make([]past, len(arrays))
	for i, a := range arrays {
		defer ops.Free(a)
		ops.Write(a, poison(a.Len()))
		all[i] = past{a, make(Array, a.Len())}
	}
	for j, runs := range append(recurrentSteps(), nil) {
		c := texts{check: o.check(t, ops, seed*10+uint64(j)), at: model.Step{Runs: []model.Run{{Rows: alone}}}, rows: alone, kept: make([]past, len(arrays))}
		if runs != nil {
			c.at, c.rows = c.step(runs)
			c.kept = all
		}
		test(c)
		c.compare(o.Acts)
		c.done()
	}
}

// slots is how many texts recurrentSteps have.
const slots = 3

func testConvolve(t *testing.T, ops Ops, o Options) {
	for i, s := range []model.ConvShape{{Channels: 1, Width: 2}, {Channels: 24, Width: 4}, {Channels: 300, Width: 3}, {Channels: 65, Width: 8}} {
		t.Run(fmt.Sprintf("%+v", s), func(t *testing.T) {
			o.throughTexts(t, ops, uint64(i), 37, func(c texts) {
				x, w, y := c.acts("x", c.normal(c.rows*s.Channels, 1)), c.floats("w", c.normal(s.Channels*s.Width, 1)), c.actsOut("y", c.rows*s.Channels)
				bias := c.bias(s.Channels)
				c.both(func(side side) {
					side.Convolve(side.a(y), side.a(x), side.a(w), side.a(bias), c.kept[0].of(side), c.at, s)
				})
			}, ops.Acts(slots*s.Width*s.Channels))
		})
	}
}

// bias is one or, of every other step, none.
func (c texts) bias(n int) *tensor {
	if c.rows%2 == 0 {
		return nil
	}
	return c.floats("bias", c.normal(n, 1))
}

func testShortConv(t *testing.T, ops Ops, o Options) {
	for i, s := range []model.ConvShape{{Channels: 1, Width: 1}, {Channels: 24, Width: 3}, {Channels: 300, Width: 4}, {Channels: 65, Width: 8}} {
		t.Run(fmt.Sprintf("%+v", s), func(t *testing.T) {
			o.throughTexts(t, ops, uint64(i), 37, func(c texts) {
				made, w, y := c.acts("made", c.normal(3*c.rows*s.Channels, 1)), c.floats("w", c.normal(s.Channels*s.Width, 1)), c.actsOut("y", c.rows*s.Channels)
				bias := c.bias(s.Channels)
				c.both(func(side side) {
					side.ShortConv(side.a(y), side.a(made), side.a(w), side.a(bias), c.kept[0].of(side), c.at, s)
				})
			}, ops.Acts(slots*s.Width*s.Channels))
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
			size, channels := s.VHeads*s.KDim*s.VDim, 2*s.KHeads*s.KDim+s.VHeads*s.VDim
			o.throughTexts(t, ops, uint64(i), 21, func(c texts) {
				x, y := c.acts("x", c.normal(c.rows*channels, 1)), c.actsOut("o", c.rows*s.VHeads*s.VDim)
				a, b := c.floats("a", c.normal(c.rows*s.VHeads, 2)), c.floats("b", c.normal(c.rows*s.VHeads, 2))
				logs, bias := c.floats("logs", c.uniform(s.VHeads, 1)), c.floats("bias", c.uniform(s.VHeads, 2))
				c.both(func(side side) {
					side.DeltaRule(side.a(y), side.a(x), side.a(a), side.a(b), side.a(logs), side.a(bias), c.kept[0].of(side), c.at, s)
				})
			}, ops.Floats(slots*size))
		})
	}
}

func testStateSpace(t *testing.T, ops Ops, o Options) {
	for i, s := range []model.StateSpaceShape{
		{Heads: 1, Dim: 1, Groups: 1, State: 1, Width: 1},
		{Heads: 6, Dim: 5, Groups: 2, State: 7, Width: 4},
		{Heads: 2, Dim: 64, Groups: 2, State: 128, Width: 4},
		{Heads: 3, Dim: 40, Groups: 1, State: 33, Width: 2},
		{Heads: 1, Dim: 9, Groups: 1, State: 256, Width: 8},
	} {
		t.Run(fmt.Sprintf("%+v", s), func(t *testing.T) {
			inner := s.Heads * s.Dim
			o.throughTexts(t, ops, uint64(i), 21, func(c texts) {
				made, y, room := c.acts("made", c.normal(c.rows*s.Made(), 1)), c.actsOut("y", c.rows*inner), ops.Acts(c.rows*s.Channels())
				defer ops.Free(room)
				conv, bias := c.floats("conv", c.normal(s.Channels()*s.Width, 1)), c.bias(s.Channels())
				logs, steps, d := c.floats("logs", c.uniform(s.Heads, 1)), c.floats("steps", c.uniform(s.Heads, 2)), c.floats("d", c.normal(s.Heads, 1))
				c.both(func(side side) {
					w := model.StateSpaceWeights{Conv: side.a(conv), ConvBias: side.a(bias), ALog: side.a(logs), DtBias: side.a(steps), D: side.a(d)}
					side.StateSpace(side.a(y), side.a(made), room, w, c.kept[0].of(side), c.kept[1].of(side), c.at, s)
				})
			}, ops.Acts(slots*s.Width*s.Channels()), ops.Floats(slots*inner*s.State))
		})
	}
}

func testNormGroups(t *testing.T, ops Ops, o Options) {
	for i, test := range []struct{ rows, groups, width int }{{1, 1, 1}, {7, 3, 24}, {2, 2, 1100}, {130, 4, 64}} {
		t.Run(fmt.Sprintf("%+v", test), func(t *testing.T) {
			c := o.check(t, ops, uint64(i))
			defer c.done()
			n := test.rows * test.groups * test.width
			x, w, y := c.acts("x", c.normal(n, 0.3)), c.floats("w", c.normal(test.groups*test.width, 1)), c.actsOut("y", n)
			in := c.acts("x in place", c.normal(n, 3)).out(0)
			c.both(func(side side) {
				side.NormGroups(side.a(y), side.a(x), side.a(w), test.rows, test.groups, 1e-5)
				side.NormGroups(side.a(in), side.a(in), side.a(w), test.rows, test.groups, 1e-5)
			})
			c.compare(o.Acts)
		})
	}
}

// testDeltaStep goes through texts a token each at a time, and compares with the operations that it stands for.
func testDeltaStep(t *testing.T, ops Ops, o Options) {
	stepper, ok := ops.(model.DeltaStepper)
	if !ok {
		t.Skip("no steps of gated delta rules")
	}
	for i, test := range []struct {
		s       model.DeltaShape
		width   int
		hidden  int
		grouped bool
		apart   bool // whether z lies apart
	}{
		{s: model.DeltaShape{KHeads: 2, VHeads: 4, KDim: 128, VDim: 128}, width: 4, hidden: 300},
		{s: model.DeltaShape{KHeads: 2, VHeads: 4, KDim: 128, VDim: 128}, width: 4, hidden: 256, grouped: true},
		{s: model.DeltaShape{KHeads: 1, VHeads: 3, KDim: 20, VDim: 32}, width: 2, hidden: 40, apart: true},
		{s: model.DeltaShape{KHeads: 3, VHeads: 3, KDim: 48, VDim: 64}, width: 8, hidden: 1000},
	} {
		d := test.s
		each, values := d.VHeads/d.KHeads, d.VHeads*d.VDim
		c := model.ConvShape{Channels: 2*d.KHeads*d.KDim + values, Width: test.width}
		t.Run(fmt.Sprintf("%+v of %d, grouped %v", test, test.hidden, test.grouped), func(t *testing.T) {
			const slots = 3
			kept, state := ops.Acts(slots*c.Width*c.Channels), ops.Floats(slots*d.VHeads*d.KDim*d.VDim)
			defer ops.Free(kept, state)
			ops.Write(kept, poison(kept.Len()))
			ops.Write(state, poison(state.Len()))
			refKept, refState := make(Array, kept.Len()), make(Array, state.Len())
			lengths := make([]int, slots)
			for j := range 7 {
				k := o.check(t, ops, uint64(10*i+j))
				var runs [][3]int
				for slot := range slots {
					if (slot+j)%3 > 0 {
						runs = append([][3]int{{slot, lengths[slot], 1}}, runs...)
						lengths[slot]++
					}
				}
				at, n := k.step(runs)
				of := d.VHeads // outputs of either gate's weights
				if test.grouped {
					of *= 2
				}
				b := k.dense(of, test.hidden, hf.F32)
				a := b
				if !test.grouped {
					a = k.dense(of, test.hidden, hf.F32)
				}
				x := k.acts("x", k.normal(n*test.hidden, 1))
				all := k.acts("qkvz", k.normal(n*(c.Channels+values), 1))
				w, norm := k.floats("w", k.normal(c.Channels*c.Width, 1)), k.floats("norm", k.normal(d.VDim, 1))
				logs, bias := k.floats("logs", k.uniform(d.VHeads, 1)), k.floats("bias", k.uniform(d.VHeads, 2))
				y := k.actsOut("y", n*values)
				const eps = 1e-3
				k.both(func(side side) {
					if !side.reference {
						in := side.a(all)
						s := model.DeltaStep{
							Shape: d, Conv: c, QKV: in, QKVPitch: c.Channels + values, Z: in.Slice(c.Channels, in.Len()), ZPitch: c.Channels + values, X: side.a(x),
							B: b.dev, A: a.dev, Grouped: test.grouped, Weights: side.a(w), ALog: side.a(logs), Bias: side.a(bias), Norm: side.a(norm), Eps: eps,
							Kept: kept, State: state,
						}
						if test.grouped {
							s.Z = in.Slice(2*d.KDim+each*d.VDim, in.Len())
						}
						if test.apart {
							qkv, z := ops.Acts(n*c.Channels), ops.Acts(n*values)
							defer ops.Free(qkv, z)
							from := c.Channels + values
							ops.CopyHeads(qkv, in, model.HeadsShape{Rows: n, Heads: 1, Width: c.Channels, ToRow: c.Channels, FromRow: from})
							ops.CopyHeads(z, s.Z, model.HeadsShape{Rows: n, Heads: 1, Width: values, ToRow: values, FromRow: from})
							s.QKV, s.Z, s.QKVPitch, s.ZPitch = qkv, z, c.Channels, values
						}
						if !stepper.DeltaSteps(d, c, s.B, s.A) {
							t.Fatal("no step of such sizes")
						}
						stepper.DeltaStep(side.a(y), s, at)
						return
					}
					alpha, beta := make(Array, n*d.VHeads), make(Array, n*d.VHeads)
					qkv, z := make(Array, n*c.Channels), make(Array, n*values)
					keys := d.KHeads * d.KDim
					if test.grouped {
						both := make(Array, 2*n*d.VHeads)
						side.Linear(x.ref, n, model.Product{Y: both, W: b.ref})
						from := 2*d.KDim + 2*each*d.VDim
						for row := range n {
							for head := range d.KHeads {
								in := all.ref[row*(c.Channels+values)+head*from:]
								copy(qkv[row*c.Channels+head*d.KDim:], in[:d.KDim])
								copy(qkv[row*c.Channels+keys+head*d.KDim:], in[d.KDim:2*d.KDim])
								copy(qkv[row*c.Channels+2*keys+head*each*d.VDim:], in[2*d.KDim:][:each*d.VDim])
								copy(z[row*values+head*each*d.VDim:], in[2*d.KDim+each*d.VDim:][:each*d.VDim])
								gates := both[2*(row*d.VHeads+head*each):]
								copy(beta[row*d.VHeads+head*each:], gates[:each])
								copy(alpha[row*d.VHeads+head*each:], gates[each:2*each])
							}
						}
					} else {
						side.Linear(x.ref, n, model.Product{Y: beta, W: b.ref}, model.Product{Y: alpha, W: a.ref})
						for row := range n {
							in := all.ref[row*(c.Channels+values):]
							copy(qkv[row*c.Channels:], in[:c.Channels])
							copy(z[row*values:], in[c.Channels:][:values])
						}
					}
					passed := make(Array, len(qkv))
					side.Convolve(passed, qkv, w.ref, nil, refKept, at, c)
					side.DeltaRule(y.ref, passed, alpha, beta, logs.ref, bias.ref, refState, at, d)
					side.RMSNorm(y.ref, y.ref, norm.ref, n*d.VHeads, eps)
					side.GLU(y.ref, z, y.ref, arch.Gating{Act: arch.SiLU})
				})
				k.compare(o.Acts)
				if test.grouped {
					k.done(b)
				} else {
					k.done(b, a)
				}
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
