package cuda

import (
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/lutq/lutq/calib/model"
	"github.com/lutq/lutq/calib/model/opstest"
)

// flashCase is a text whose queries come in parts.
type flashCase struct {
	heads, kvHeads, dim int
	parts               []int // rows of each
	window              int
	cap                 float32
	sinks               bool
}

// tokens is how many the text has.
func (c flashCase) tokens() int {
	n := 0
	for _, rows := range c.parts {
		n += rows
	}
	return n
}

// testFlash compares the kernel flash with float64: a window at once, and parts of a text that
// goes on, whose results have the same bits.
func testFlash(t *testing.T, o *Ops, i int, cases []flashCase) {
	for _, c := range cases {
		t.Run(fmt.Sprintf("%+v", c), func(t *testing.T) {
			tokens := c.tokens()
			s := model.AttentionShape{
				T: tokens, Heads: c.heads, KVHeads: c.kvHeads, Dim: c.dim, Window: c.window, Cap: c.cap, Scale: float32(1 / math.Sqrt(float64(c.dim))),
			}
			wide, narrow := tokens*c.heads*c.dim, tokens*c.kvHeads*c.dim
			acts := func(seed uint64, n int, sigma float64) (model.Array, opstest.Array) {
				a, v := o.Acts(n), randoms(seed, n, sigma)
				o.Write(a, v)
				o.Read(v, a) // as they are rounded
				ref := make(opstest.Array, n)
				opstest.Reference{}.Write(ref, v)
				return a, ref
			}
			q, refQ := acts(1, wide, 4)
			k, refK := acts(2, narrow, 1)
			v, refV := acts(3, narrow, 1)
			out, want := o.Acts(wide), make([]float32, wide)
			defer o.Free(q, k, v, out)
			refShape := s
			if c.sinks {
				sinks := randoms(4, c.heads, 5)
				s.Sinks = o.Floats(c.heads)
				defer o.Free(s.Sinks)
				o.Write(s.Sinks, sinks)
				ref := make(opstest.Array, c.heads)
				opstest.Reference{}.Write(ref, sinks)
				refShape.Sinks = ref
			}
			refOut := make(opstest.Array, wide)
			opstest.Reference{}.Attention(refOut, nil, refQ, refK, refV, refShape)
			opstest.Reference{}.Read(want, refOut)

			run := func(f func() bool) []float32 {
				o.do(func() {
					if !f() {
						t.Error("the kernel did not take it")
					}
				})
				got := make([]float32, wide)
				o.Read(got, out)
				if err := o.Err(); err != nil {
					t.Fatal(err)
				}
				return got
			}
			whole := run(func() bool {
				return o.flash(out, q, s, past{
					keys:   func(from int) heads { return headsOf(k, s.KVHeads, s.Dim, from) },
					values: func(from int) heads { return headsOf(v, s.KVHeads, s.Dim, from) },
				})
			})
			if e := distance(whole, want); !(e <= types[i].tol) {
				t.Errorf("differs by %.2g", e)
			}

			// In the second of two slots of a cache, in which behind the text there is what is no number, in place.
			shape := model.CacheShape{Slots: 2, Positions: tokens + 5, KVHeads: c.kvHeads, Dim: c.dim}
			keys, values := o.Acts(shape.Elements()), o.Acts(shape.Elements())
			defer o.Free(keys, values)
			nan := slices.Repeat([]float32{float32(math.NaN())}, shape.Elements())
			o.Write(keys, nan)
			o.Write(values, nan)
			o.Copy(out, q)
			parts := run(func() bool {
				from := 0
				for _, rows := range c.parts {
					places := make([]float32, 0, 2*rows)
					for at := range rows {
						places = append(places, 1, float32(from+at))
					}
					at := o.Floats(2 * rows)
					o.Write(at, places)
					step := model.Step{Runs: []model.Run{{Slot: 1, From: from, Rows: rows}}, Rows: at}
					rowsOf := func(a model.Array, width int) model.Array { return a.Slice(from*width, (from+rows)*width) }
					o.Keep(keys, values, rowsOf(k, c.kvHeads*c.dim), rowsOf(v, c.kvHeads*c.dim), step, shape)
					part, own := s, rowsOf(out, c.heads*c.dim)
					part.T = rows
					if !o.flash(own, own, part, past{tokens: from, keys: keptBy(keys, 1, shape), values: keptBy(values, 1, shape)}) {
						return false
					}
					o.Free(at)
					from += rows
				}
				return true
			})
			if !slices.Equal(parts, whole) {
				t.Errorf("in parts it has other bits, which differ by %.2g", distance(parts, whole))
			}
		})
	}
}

// flashCases take every kernel, odd lengths, and groups of 1 to 8.
func flashCases() []flashCase {
	return []flashCase{
		{heads: 1, kvHeads: 1, dim: 64, parts: []int{1}},
		{heads: 4, kvHeads: 1, dim: 64, parts: []int{16, 47, 130}},
		{heads: 7, kvHeads: 1, dim: 24, parts: []int{65, 18}, cap: 5},
		{heads: 3, kvHeads: 3, dim: 80, parts: []int{129, 1}},
		{heads: 2, kvHeads: 1, dim: 96, parts: []int{77, 90}, window: 33, sinks: true},
		{heads: 4, kvHeads: 2, dim: 128, parts: []int{31, 200, 26}, window: 100},
		{heads: 8, kvHeads: 1, dim: 120, parts: []int{100, 33}, sinks: true},
		{heads: 2, kvHeads: 1, dim: 192, parts: []int{67, 19}},
		{heads: 2, kvHeads: 2, dim: 256, parts: []int{70, 63}, window: 40, cap: 30},
	}
}

// TestGPUFlash adds texts of many tiles, and kernels for less shared memory.
func TestGPUFlash(t *testing.T) {
	onGPU(t, func(t *testing.T, o *Ops, i int) {
		if i == 0 {
			return // in float32 there is none
		}
		testFlash(t, o, i, slices.Concat(flashCases(), []flashCase{
			{heads: 4, kvHeads: 1, dim: 128, parts: []int{700, 333}},
			{heads: 2, kvHeads: 1, dim: 64, parts: []int{517, 731}, window: 700, sinks: true},
			{heads: 2, kvHeads: 1, dim: 256, parts: []int{700, 100}, window: 512, cap: 50},
		}))
		testFlashElsewhere(t, o, i)
	})
}

// testFlashElsewhere is for a device of less shared memory, and for one without any to speak of.
func testFlashElsewhere(t *testing.T, o *Ops, i int) {
	was := o.dev.Info.SharedPerBlock
	defer func() { o.dev.Info.SharedPerBlock = was }()
	o.dev.Info.SharedPerBlock = 99 << 10
	testFlash(t, o, i, []flashCase{
		{heads: 4, kvHeads: 2, dim: 128, parts: []int{150, 37}, window: 90},
		{heads: 2, kvHeads: 1, dim: 256, parts: []int{90, 47}, cap: 20, sinks: true},
	})
	o.dev.Info.SharedPerBlock = 48 << 10
	o.do(func() {
		if o.flash(&array{}, nil, model.AttentionShape{Heads: 1, KVHeads: 1, Dim: 128, Scale: 1}, past{keys: func(int) heads { return heads{} }, values: func(int) heads { return heads{} }}) {
			t.Error("in 48 KB of shared memory the kernel took heads of 128")
		}
	})
}

// BenchmarkGPUFlash counts the products for scores and for values that the mask leaves, two operations each.
func BenchmarkGPUFlash(b *testing.B) {
	benchmarkGPU(b, func(o *Ops) {
		for _, c := range []struct{ heads, kvHeads, dim, tokens int }{
			{32, 8, 128, 2048}, {32, 8, 128, 8192}, {32, 8, 128, 16384}, {32, 8, 64, 8192}, {32, 8, 80, 8192}, {32, 8, 96, 8192}, {16, 8, 256, 8192},
		} {
			b.Run(fmt.Sprintf("%d heads of %d, %d tokens", c.heads, c.dim, c.tokens), func(b *testing.B) {
				s := model.AttentionShape{T: c.tokens, Heads: c.heads, KVHeads: c.kvHeads, Dim: c.dim, Scale: float32(1 / math.Sqrt(float64(c.dim)))}
				q, k, v := o.Acts(c.tokens*c.heads*c.dim), o.Acts(c.tokens*c.kvHeads*c.dim), o.Acts(c.tokens*c.kvHeads*c.dim)
				out := o.Acts(q.Len())
				defer o.Free(q, k, v, out)
				for i, a := range []model.Array{q, k, v} {
					o.Write(a, randoms(uint64(i), a.Len(), 1))
				}
				const each = 20 // before the host waits
				run := func() {
					for range each {
						o.Attention(out, nil, q, k, v, s)
					}
					if err := o.Err(); err != nil {
						b.Fatal(err)
					}
				}
				run()
				for b.Loop() {
					run()
				}
				flops := 2 * float64(c.heads*c.dim) * float64(c.tokens) * float64(c.tokens+1) * float64(each*b.N)
				b.ReportMetric(flops/b.Elapsed().Seconds()/1e12, "TFLOP/s")
			})
		}
	})
}
