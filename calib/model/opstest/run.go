package opstest

import (
	"fmt"
	"math"
	"testing"

	"github.com/lutq/lutq/calib/model"
	"github.com/lutq/lutq/formats/arch"
	"github.com/lutq/lutq/formats/hf"
	"github.com/lutq/lutq/formats/num"
	"github.com/lutq/lutq/formats/weight"
	"github.com/lutq/lutq/formats/weight/bcq"
	"github.com/lutq/lutq/formats/weight/lut"
	"github.com/lutq/lutq/formats/weight/lut24"
)

// Options say how close operations have to be to the [Reference]. Tolerances
// are of ‖got − want‖/‖want‖ over an output.
type Options struct {
	Floats float64 // of what is computed from floats alone; 0 is 1e-5
	Acts   float64 // of what activations have a part in; 0 is Floats

	// Output, where it is not nil, is called with every output that is
	// compared, to hold runs against each other.
	Output func(name string, v []float32)

	// Each, where it is not nil, is called at the start of each test, which it may skip.
	Each func(t *testing.T)
}

// Run compares ops with the [Reference]. Inputs are those that ops can hold:
// what an array is filled with is read back for the reference.
func Run(t *testing.T, ops Ops, o Options) {
	if o.Floats == 0 {
		o.Floats = 1e-5
	}
	if o.Acts == 0 {
		o.Acts = o.Floats
	}
	for _, test := range []struct {
		name string
		run  func(t *testing.T, ops Ops, o Options)
	}{
		{"Arrays", testArrays},
		{"Embed", testEmbed},
		{"RMSNorm", testRMSNorm},
		{"Linear", testLinear},
		{"Rope", testRope},
		{"CopyHeads", testCopyHeads},
		{"SumHeads", testSumHeads},
		{"ByHeads", testByHeads},
		{"Convolve", testConvolve},
		{"DeltaRule", testDeltaRule},
		{"DeltaStep", testDeltaStep},
		{"ShortConv", testShortConv},
		{"StateSpace", testStateSpace},
		{"NormGroups", testNormGroups},
		{"Attention", testAttention},
		{"Cache", testCache},
		{"Attend", Attend},
		{"GLU", testGLU},
		{"SoftCap and Scale", testSoftCap},
		{"Rows", testRows},
		{"Stats", testStats},
		{"CrossEntropy", testCrossEntropy},
		{"Divergence", testDivergence},
		{"ArgMax", testArgMax},
		{"NotFinite", testNotFinite},
		{"Trainable", testTrainable},
		{"TrainableOriginal", testTrainableOriginal},
		{"TrainableErrors", testTrainableErrors},
		{"Adam", testAdam},
		{"ExpScale", testExpScale},
		{"SumSquares", testSumSquares},
	} {
		t.Run(test.name, func(t *testing.T) {
			if o.Each != nil {
				o.Each(t)
			}
			test.run(t, ops, o)
		})
	}
	if keeper, ok := ops.(LatentKeeper); ok {
		t.Run("KeepLatents", func(t *testing.T) {
			if o.Each != nil {
				o.Each(t)
			}
			testKeepLatents(t, keeper, o)
		})
	}
	if indexed, ok := ops.(IndexedOps); ok {
		t.Run("Indexed", func(t *testing.T) { testIndexed(t, indexed, o) })
	}
	if err := ops.Err(); err != nil {
		t.Errorf("operations failed: %v", err)
	}
	if n := ops.MLPRows(); n < 0 {
		t.Errorf("MLPRows() = %d", n)
	}
}

func testArrays(t *testing.T, ops Ops, o Options) {
	for i, n := range []int{1, 7, 64, 1000, 4099} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			c := o.check(t, ops, uint64(i))
			defer c.done()
			f, a := c.floats("floats", c.normal(n, 1)), c.acts("acts", c.normal(n, 1))
			fromFloats, fromActs := c.actsOut("acts from floats", n), c.floatsOut("floats from acts", n)
			own := c.actsOut("acts from acts", n)
			zero := c.actsOut("zeros", n)
			part := c.floats("part", c.normal(n, 1)).out(0)
			c.both(func(s side) {
				s.Copy(s.a(fromFloats), s.a(f))
				s.Copy(s.a(fromActs), s.a(a))
				s.Copy(s.a(own), s.a(a))
				s.Zero(s.a(zero))
				s.Zero(s.a(part).Slice(n/3, n/2))
			})
			// Copies round as Write does, the rest is exact.
			ref := c.acts("rounded", c.before(f))
			copy(fromFloats.ref, ref.ref)
			c.compare(1e-7)
			if got := f.dev.Slice(n/3, n).Len(); got != n-n/3 {
				t.Errorf("a slice of %d elements has %d", n-n/3, got)
			}
		})
	}
	t.Run("Zeroed", func(t *testing.T) {
		for _, a := range []model.Array{ops.Floats(100), ops.Acts(100)} {
			v := poison(100)
			ops.Read(v, a)
			for i, x := range v {
				if x != 0 {
					t.Fatalf("element %d of a new array is %v", i, x)
				}
			}
			ops.Free(a, nil)
		}
	})
}

// before is what an input holds.
func (c *check) before(t *tensor) []float32 { return t.before[guard : len(t.before)-guard] }

// encode returns v in a dense type.
func encode(t hf.DType, v []float32) []byte {
	b := make([]byte, len(v)*t.Bits()/8)
	switch t {
	case hf.F32:
		num.EncodeF32(b, v)
	case hf.F16:
		num.EncodeF16(b, v)
	case hf.BF16:
		num.EncodeBF16(b, v)
	}
	return b
}

var denseTypes = []hf.DType{hf.F32, hf.F16, hf.BF16}

// dense uploads a random matrix.
func (c *check) dense(n, k int, t hf.DType) weights {
	data := encode(t, c.normal(n*k, 0.1))
	return c.weight(func(ops Ops) (model.Weight, error) { return ops.Dense(n, k, t, data) })
}

// packed uploads a random quantized matrix.
func (c *check) packed(n, k, bits, group int, st weight.ScaleType) weights {
	m := c.quantized(n, k, bits, group, st)
	return c.weight(func(ops Ops) (model.Weight, error) { return ops.Packed(m) })
}

// sparse uploads a random matrix of which two in four columns are kept, in groups of so many kept ones.
func (c *check) sparse(n, k, bits, group int, st weight.ScaleType) weights {
	m := &lut24.Matrix{Kept: c.quantized(n, k/lut24.Chunk*lut24.Kept, bits, group, st), Pattern: make([]byte, n*lut24.PatternBytes(k))}
	pairs := []uint8{4, 8, 9, 12, 13, 14}
	for row := range n {
		for i := range k / lut24.Chunk {
			lut24.SetNibble(m.RowPattern(row), i, pairs[c.r.IntN(len(pairs))])
		}
	}
	return c.weight(func(ops Ops) (model.Weight, error) { return ops.Packed(m) })
}

// binary uploads a random matrix of binary codes.
func (c *check) binary(n, k, bits, group int, st weight.ScaleType) weights {
	m := &bcq.Matrix{N: n, K: k, Bits: bits, Group: group, ScaleType: st}
	m.Planes = make([]byte, n*bits*m.PlaneBytes())
	for i := range m.Planes {
		m.Planes[i] = byte(c.r.Uint32())
		if i%m.PlaneBytes() == k/8 {
			m.Planes[i] &= 1<<(k%8) - 1
		}
	}
	m.Alphas, m.Offsets = make([]byte, n*m.Groups()*bits*st.Size()), make([]byte, n*m.Groups()*st.Size())
	st.Encode(m.Alphas, c.scales(n*m.Groups()*bits, st))
	st.Encode(m.Offsets, c.scales(n*m.Groups(), st))
	return c.weight(func(ops Ops) (model.Weight, error) { return ops.Packed(m) })
}

// quantized returns a random quantized matrix.
func (c *check) quantized(n, k, bits, group int, st weight.ScaleType) *lut.Matrix {
	m := &lut.Matrix{N: n, K: k, Bits: bits, Group: group, ScaleType: st, Codebook: c.table(bits)}
	m.Codes = make([]byte, n*m.RowBytes())
	for i := range n {
		lut.PackCodes(m.Codes[i*m.RowBytes():], c.codes(k, bits), bits)
	}
	m.Scales = make([]byte, n*m.Groups()*st.Size())
	st.Encode(m.Scales, c.scales(n*m.Groups(), st))
	return m
}

// table returns a codebook of 2^bits distinct values in order, unevenly
// spaced and not symmetric, that float16 and bfloat16 can hold.
func (c *check) table(bits int) []float32 {
	n := 1 << bits
	v := make([]float32, n)
	for i := range v {
		x := 2*float64(i)/float64(n-1) - 1
		v[i] = both16(float32(x*(0.6+0.4*math.Abs(x)) + 0.02*c.r.Float64()/float64(n)))
	}
	v[n-1] = 1
	return v
}

// both16 rounds to a number that is float16 and bfloat16.
func both16(v float32) float32 {
	return num.F16ToF32(num.F32ToF16(num.BF16ToF32(num.F32ToBF16(v))))
}

func (c *check) codes(n, bits int) []uint8 {
	v := make([]uint8, n)
	for i := range v {
		v[i] = uint8(c.r.IntN(1 << bits))
	}
	return v
}

// scales returns scales such as a type can hold, some of them negative where
// it has a sign, and some zero.
func (c *check) scales(n int, st weight.ScaleType) []float32 {
	v := make([]float32, n)
	for i := range v {
		v[i] = float32(0.1 * (0.5 + c.r.Float64()))
		if i%11 == 3 {
			v[i] = 0
		}
		if i%7 == 2 && st.Signed() {
			v[i] = -v[i]
		}
	}
	return v
}

var scaleTypes = []weight.ScaleType{weight.F16, weight.BF16, weight.F32, weight.E4M4, weight.S1E4M3, weight.E8M0}

func testEmbed(t *testing.T, ops Ops, o Options) {
	tokens := []int{3, 0, 28, 28, 7, 1, 16}
	run := func(name string, k int, upload func(c *check) weights) {
		t.Run(name, func(t *testing.T) {
			c := o.check(t, ops, uint64(k))
			w := upload(c)
			defer c.done(w)
			h := c.floatsOut("h", len(tokens)*k)
			scaled := c.floatsOut("h scaled", len(tokens)*k)
			c.both(func(s side) {
				s.Embed(s.a(h), tokens, s.w(w), 1)
				s.Embed(s.a(scaled), tokens, s.w(w), 22.6)
			})
			c.compare(o.Acts)
		})
	}
	for _, k := range []int{1, 45, 300} {
		for _, dt := range denseTypes {
			run(fmt.Sprintf("%v %d", dt, k), k, func(c *check) weights { return c.dense(29, k, dt) })
		}
	}
	run("packed", 75, func(c *check) weights { return c.packed(29, 75, 3, 32, weight.F16) })
	run("binary", 96, func(c *check) weights { return c.binary(29, 96, 3, 32, weight.F16) })
	run("sparse", 160, func(c *check) weights { return c.sparse(29, 160, 4, 32, weight.F16) })
}

func testRMSNorm(t *testing.T, ops Ops, o Options) {
	const eps = 1e-5
	for _, rows := range []int{1, 7, 130} {
		for _, n := range []int{1, 24, 64, 129, 1100} {
			for _, x32 := range []bool{false, true} {
				t.Run(fmt.Sprintf("rows %d width %d floats %v", rows, n, x32), func(t *testing.T) {
					c := o.check(t, ops, uint64(rows*n))
					defer c.done()
					kind := c.acts
					if x32 {
						kind = c.floats
					}
					x, w := kind("x", c.normal(rows*n, 0.3)), c.floats("w", c.normal(n, 1))
					y, in := c.actsOut("y", rows*n), c.acts("x in place", c.normal(rows*n, 3)).out(0)
					dyActs, dyFloats := c.acts("dy acts", c.normal(rows*n, 1)), c.floats("dy floats", c.normal(rows*n, 1))
					dx, sum := kind("dx", poison(rows*n)).out(0.1), kind("dx added to", c.normal(rows*n, 1)).out(0.1)
					c.both(func(s side) {
						s.RMSNorm(s.a(y), s.a(x), s.a(w), rows, eps)
						s.RMSNorm(s.a(in), s.a(in), s.a(w), rows, eps)
						s.RMSNormBack(s.a(dx), s.a(dyActs), s.a(x), s.a(w), rows, eps, false)
						s.RMSNormBack(s.a(sum), s.a(dyFloats), s.a(x), s.a(w), rows, eps, true)
					})
					c.compare(o.Acts)
				})
			}
		}
	}
}

// linearRows are numbers of rows about which kernels change.
var linearRows = []int{1, 2, 7, 8, 9, 33, 130}

func testLinear(t *testing.T, ops Ops, o Options) {
	linearRows := linearRows
	if testing.Short() {
		linearRows = []int{1, 9, 33}
	}
	run := func(name string, n, k int, upload func(c *check, n, k int) weights) {
		for _, rows := range linearRows {
			t.Run(fmt.Sprintf("%s %d×%d rows %d", name, n, k, rows), func(t *testing.T) {
				c := o.check(t, ops, uint64(rows+n*k))
				w, other := upload(c, n, k), upload(c, n+5, k)
				defer c.done(w, other)
				x, bias := c.acts("x", c.normal(rows*k, 1)), c.floats("bias", c.normal(n, 1))
				plain, biased := c.actsOut("y", rows*n), c.actsOut("y with bias", rows*n)
				wide, second := c.floatsOut("y of floats", rows*n), c.floatsOut("second y", rows*(n+5))
				sumY, sumBiased := c.floats("y added to", c.normal(rows*n, 1)).out(0.1), c.floats("y with bias added to", c.normal(rows*(n+5), 1)).out(0.1)
				bias5 := c.floats("bias of the second", c.normal(n+5, 1))
				dy := c.acts("dy", c.normal(rows*n, 1))
				dx, dx32 := c.actsOut("dx", rows*k), c.floatsOut("dx of floats", rows*k)
				sum, sum32 := c.acts("dx added to", c.normal(rows*k, 1)).out(0), c.floats("dx of floats added to", c.normal(rows*k, 1)).out(0)
				c.both(func(s side) {
					s.Linear(s.a(x), rows, model.Product{Y: s.a(plain), W: s.w(w)})
					s.Linear(s.a(x), rows,
						model.Product{Y: s.a(biased), W: s.w(w), Bias: s.a(bias)},
						model.Product{Y: s.a(second), W: s.w(other)},
						model.Product{Y: s.a(wide), W: s.w(w), Bias: s.a(bias)})
					s.Linear(s.a(x), rows,
						model.Product{Y: s.a(sumY), W: s.w(w), Add: true},
						model.Product{Y: s.a(sumBiased), W: s.w(other), Bias: s.a(bias5), Add: true})
					s.LinearBack(s.a(dx), s.a(dy), rows, s.w(w), false)
					s.LinearBack(s.a(dx32), s.a(dy), rows, s.w(w), false)
					s.LinearBack(s.a(sum), s.a(dy), rows, s.w(w), true)
					s.LinearBack(s.a(sum32), s.a(dy), rows, s.w(w), true)
				})
				c.compare(o.Acts)
			})
		}
	}
	for _, shape := range [][2]int{{1, 1}, {17, 45}, {64, 48}, {65, 300}, {270, 67}} {
		for _, dt := range denseTypes {
			run(string(dt), shape[0], shape[1], func(c *check, n, k int) weights { return c.dense(n, k, dt) })
		}
	}
	for i, st := range scaleTypes {
		for bits := lut.MinBits; bits <= lut.MaxBits; bits++ {
			shape := [][3]int{{64, 128, 64}, {17, 45, 32}, {65, 300, 300}, {48, 77, 20}, {33, 272, 128}}[(i+bits)%5]
			run(fmt.Sprintf("%d bits %v group %d", bits, st, shape[2]), shape[0], shape[1], func(c *check, n, k int) weights {
				return c.packed(n, k, bits, shape[2], st)
			})
		}
	}
	for _, shape := range [][4]int{{17, 44, 3, 22}, {65, 352, 2, 64}, {48, 288, 6, 288}, {33, 544, 1, 32}} {
		run(fmt.Sprintf("binary, %d bits, groups of %d", shape[2], shape[3]), shape[0], shape[1], func(c *check, n, k int) weights {
			return c.binary(n, k, shape[2], shape[3], weight.F16)
		})
	}
	for i, shape := range [][3]int{{17, 44, 22}, {65, 352, 64}, {48, 288, 144}, {33, 544, 32}} {
		run(fmt.Sprintf("sparse, %d bits, %d kept", lut.MinBits+i, shape[2]), shape[0], shape[1], func(c *check, n, k int) weights {
			return c.sparse(n, k, lut.MinBits+i, shape[2], weight.F16)
		})
	}
}

func testRope(t *testing.T, ops Ops, o Options) {
	for _, shape := range []model.RopeShape{
		{Rows: 1, Heads: 1, Half: 4, Dim: 8},
		{Rows: 7, Heads: 3, Half: 12, Dim: 24},
		{Rows: 33, Heads: 9, Half: 32, Dim: 64},
		{Rows: 130, Heads: 2, Half: 64, Dim: 128},
		{Rows: 9, Heads: 3, Half: 12, Dim: 32},
		{Rows: 17, Heads: 2, Half: 48, Dim: 128},
		{Rows: 1, Heads: 1, Half: 4, Dim: 8, Adjacent: true},
		{Rows: 9, Heads: 3, Half: 12, Dim: 32, Adjacent: true},
		{Rows: 130, Heads: 2, Half: 64, Dim: 128, Adjacent: true},
	} {
		rows, heads, half, dim := shape.Rows, shape.Heads, shape.Half, shape.Dim
		t.Run(fmt.Sprintf("%+v", shape), func(t *testing.T) {
			c := o.check(t, ops, uint64(rows))
			defer c.done()
			cos, sin := make([]float32, (rows+3)*half), make([]float32, (rows+3)*half)
			for i := range cos {
				s, co := math.Sincos(c.r.Float64() * 7)
				cos[i], sin[i] = float32(co), float32(s)
			}
			ct, st := c.floats("cos", cos), c.floats("sin", sin)
			x, back := c.acts("x", c.normal(rows*heads*dim, 1)).out(0), c.acts("x turned back", c.normal(rows*heads*dim, 1)).out(0)
			c.both(func(s side) {
				s.Rope(s.a(x), shape, s.a(ct), s.a(st), false)
				s.Rope(s.a(back), shape, s.a(ct), s.a(st), true)
			})
			c.compare(o.Acts)
		})
	}
}

func testAttention(t *testing.T, ops Ops, o Options) {
	for i, s := range []model.AttentionShape{
		{T: 1, Heads: 1, KVHeads: 1, Dim: 32},
		{T: 1, Heads: 6, KVHeads: 2, Dim: 64},
		{T: 7, Heads: 8, KVHeads: 1, Dim: 24},
		{T: 33, Heads: 4, KVHeads: 4, Dim: 80},
		{T: 57, Heads: 4, KVHeads: 2, Dim: 128, Window: 1},
		{T: 64, Heads: 6, KVHeads: 2, Dim: 64},
		{T: 130, Heads: 3, KVHeads: 1, Dim: 32, Window: 150},
		{T: 150, Heads: 4, KVHeads: 1, Dim: 64},
		{T: 150, Heads: 3, KVHeads: 3, Dim: 16, Window: 40},
		{T: 257, Heads: 2, KVHeads: 1, Dim: 96, Window: 100},
		{T: 600, Heads: 2, KVHeads: 1, Dim: 16},
		{T: 1100, Heads: 1, KVHeads: 1, Dim: 16, Window: 300},
		{T: 57, Heads: 4, KVHeads: 2, Dim: 32, Cap: 5},
		{T: 150, Heads: 4, KVHeads: 1, Dim: 64, Window: 40, Cap: 50},
		{T: 64, Heads: 8, KVHeads: 2, Dim: 64, Window: 16},
		{T: 257, Heads: 2, KVHeads: 1, Dim: 96, Cap: 3},
	} {
		if testing.Short() && s.T > 200 {
			continue
		}
		sunk := i >= 14 // the last two have sinks

		s.Scale = float32(1 / math.Sqrt(float64(s.Dim)))
		t.Run(fmt.Sprintf("T %d heads %d of %d dim %d window %d cap %v sinks %v", s.T, s.Heads, s.KVHeads, s.Dim, s.Window, s.Cap, sunk), func(t *testing.T) {
			c := o.check(t, ops, uint64(i))
			defer c.done()
			wide, narrow := s.T*s.Heads*s.Dim, s.T*s.KVHeads*s.Dim
			// Scores that differ by tens, as trained models have them.
			q, k, v := c.acts("q", c.normal(wide, 4)), c.acts("k", c.normal(narrow, 1)), c.acts("v", c.normal(narrow, 1))
			in := c.acts("q in place", c.before(q)).out(0)
			y, lse := c.actsOut("o", wide), c.floatsOut("lse", s.Heads*s.T)
			sinks := make([]float32, s.Heads)
			for h := range sinks {
				sinks[h] = float32(20*h - 30)
			}
			sink := c.floats("sinks", sinks)
			c.both(func(side side) {
				s := s
				if sunk {
					s.Sinks = side.a(sink)
				}
				side.Attention(side.a(y), side.a(lse), side.a(q), side.a(k), side.a(v), s)
				side.Attention(side.a(in), nil, side.a(in), side.a(k), side.a(v), s)
			})
			c.compare(o.Acts)

			// The gradient of the reference's results.
			back := o.check(t, ops, uint64(i)+100)
			defer back.done()
			q, k, v = back.acts("q", c.before(q)), back.acts("k", c.before(k)), back.acts("v", c.before(v))
			yIn, lseIn := back.acts("o", narrowed(y.ref)), back.floats("lse", narrowed(lse.ref))
			dy := back.acts("do", back.normal(wide, 1))
			// Where a token sees but itself, dq and dk are differences of equals.
			dq, dk, dv := back.acts("dq", poison(wide)).out(0.5), back.acts("dk", poison(narrow)).out(0.5), back.actsOut("dv", narrow)
			back.both(func(side side) {
				side.AttentionBack(side.a(dq), side.a(dk), side.a(dv), side.a(dy), side.a(yIn), side.a(lseIn), side.a(q), side.a(k), side.a(v), s)
			})
			back.compare(o.Acts)
		})
	}
}

func narrowed(v []float64) []float32 {
	w := make([]float32, len(v))
	for i, x := range v {
		w[i] = float32(x)
	}
	return w
}

func testGLU(t *testing.T, ops Ops, o Options) {
	for _, act := range []arch.Gating{
		{Act: arch.SiLU}, {Act: arch.GELU}, {Act: arch.GELUTanh}, {Act: arch.ReLU}, {Act: arch.Sigmoid}, {Act: arch.SwiGLUOAI, Alpha: 1.702, Limit: 7},
	} {
		for _, n := range []int{1, 15, 64, 4099} {
			t.Run(fmt.Sprintf("%s %d", act.Act, n), func(t *testing.T) {
				c := o.check(t, ops, uint64(n))
				defer c.done()
				// Gates from where the exponential of either sign overflows.
				gates := c.normal(n, 8)
				for i, v := range []float32{0, -120, 120, -88, 88, -20} {
					if i+1 < n {
						gates[i] = v
					}
				}
				g, u, dy := c.acts("g", gates), c.acts("u", c.normal(n, 5)), c.acts("dy", c.normal(n, 1))
				y, in := c.actsOut("y", n), c.acts("g in place", gates).out(0)
				dg, du := c.actsOut("dg", n), c.actsOut("du", n)
				dgIn, duIn := c.acts("dg in place", gates).out(0), c.acts("du in place", c.normal(n, 1)).out(0)
				c.both(func(s side) {
					s.GLU(s.a(y), s.a(g), s.a(u), act)
					s.GLU(s.a(in), s.a(in), s.a(u), act)
					if act.Act == arch.Sigmoid { // which has no way back on all devices
						return
					}
					s.GLUBack(s.a(dg), s.a(du), s.a(dy), s.a(g), s.a(u), act)
					s.GLUBack(s.a(dgIn), s.a(duIn), s.a(dy), s.a(dgIn), s.a(duIn), act)
				})
				c.compare(o.Acts)
			})
		}
	}
}

func testSoftCap(t *testing.T, ops Ops, o Options) {
	for _, n := range []int{1, 64, 4099} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			c := o.check(t, ops, uint64(n))
			defer c.done()
			x, z := c.floats("x", c.normal(n, 40)).out(0), c.floats("z", c.normal(n, 1)).out(0)
			y, dx := c.floats("y", c.uniform(n, 30)), c.acts("dx", c.normal(n, 1)).out(1e-4)
			c.both(func(s side) {
				s.SoftCap(s.a(x), 30)
				s.Scale(s.a(z), 0.3)
				s.SoftCapBack(s.a(dx), s.a(y), 30)
			})
			c.compare(o.Acts)
		})
	}
}

// testRows: rows that are gathered, scattered and multiplied.
func testRows(t *testing.T, ops Ops, o Options) {
	for _, size := range [][2]int{{1, 1}, {7, 24}, {33, 129}, {130, 576}} {
		total, width := size[0], size[1]
		t.Run(fmt.Sprintf("rows %d width %d", total, width), func(t *testing.T) {
			c := o.check(t, ops, uint64(total))
			defer c.done()
			var rows []int
			for i := range total {
				if i%3 != 1 {
					rows = append(rows, i)
				}
			}
			n := len(rows)
			weights := c.uniform(n, 1)
			a, f := c.acts("acts", c.normal(total*width, 1)), c.floats("floats", c.normal(total*width, 1))
			plain, weighted := c.actsOut("gathered", n*width), c.actsOut("gathered floats", n*width)
			pa, pf := c.acts("packed acts", c.normal(n*width, 1)), c.floats("packed floats", c.normal(n*width, 1))
			h, hw := c.floats("scattered", c.normal(total*width, 1)).out(0), c.floats("scattered floats", c.normal(total*width, 1)).out(0)
			sum, sumFloats := c.floats("sum", c.normal(total*width, 1)).out(0), c.floats("sum of floats", c.normal(total*width, 1)).out(0)
			dots := c.floats("dots", poison(n)).out(1)
			c.both(func(s side) {
				s.Gather(s.a(plain), s.a(a), rows, nil)
				s.Gather(s.a(weighted), s.a(f), rows, weights)
				s.Scatter(s.a(h), s.a(pa), rows, nil)
				s.Scatter(s.a(hw), s.a(pf), rows, weights)
				s.AddTo(s.a(sum), s.a(a))
				s.AddTo(s.a(sumFloats), s.a(f))
				s.RowDots(s.a(dots), s.a(pa), s.a(pf), n)
			})
			c.compare(o.Acts)
		})
	}
}

// testStats leaves what lies below a diagonal out until it is mirrored.
func testStats(t *testing.T, ops Ops, o Options) {
	for _, size := range [][2]int{{1, 1}, {3, 40}, {300, 24}, {70, 129}, {33, 576}} {
		rows, k := size[0], size[1]
		t.Run(fmt.Sprintf("rows %d width %d", rows, k), func(t *testing.T) {
			c := o.check(t, ops, uint64(k))
			defer c.done()
			xq, x := c.acts("xq", c.normal(rows*k, 1)), c.acts("x", c.normal(rows*k, 1))
			h, d := c.floats("h", c.normal(k*k, 3)).out(0), c.floats("d", c.normal(k*k, 3)).out(0)
			c.both(func(s side) {
				for range 2 {
					s.Gram(s.a(h), s.a(xq), rows)
					s.Cross(s.a(d), s.a(x), s.a(xq), rows)
				}
				s.Gram(s.a(h), s.a(x).Slice(0, 0), 0)
				s.Cross(s.a(d), s.a(x).Slice(0, 0), s.a(xq).Slice(0, 0), 0)
				s.Mirror(s.a(h), k)
			})
			c.compare(o.Acts)
		})
	}
}

var lossShapes = [][2]int{{1, 1}, {1, 1000}, {7, 33}, {33, 4099}, {5, 50257}}

func testCrossEntropy(t *testing.T, ops Ops, o Options) {
	for _, shape := range lossShapes {
		rows, vocab := shape[0], shape[1]
		t.Run(fmt.Sprintf("rows %d vocab %d", rows, vocab), func(t *testing.T) {
			c := o.check(t, ops, uint64(vocab))
			defer c.done()
			x := c.normal(rows*vocab, 5)
			targets := make([]int, rows)
			for r := range rows {
				targets[r] = c.r.IntN(vocab)
				for i := range vocab {
					x[r*vocab+i] += float32(20 * r) // exp would overflow
				}
			}
			targets[0] = vocab - 1
			logits := c.floats("logits", x)
			// What is left of log-probabilities near 0 is rounding of the logits.
			only, loss := c.floats("loss alone", poison(rows)).out(1), c.floats("loss", poison(rows)).out(1)
			d := c.acts("dlogits", poison(rows*vocab)).out(1e-6)
			c.both(func(s side) {
				s.CrossEntropy(s.a(only), nil, s.a(logits), targets, vocab, 1)
				s.CrossEntropy(s.a(loss), s.a(d), s.a(logits), targets, vocab, 0.37)
			})
			c.compare(o.Acts)
		})
	}
	t.Run("NotFinite", func(t *testing.T) {
		c := o.check(t, ops, 1)
		defer c.done()
		logits := c.floats("logits", spoilt(c.normal(5*40, 1), 40))
		loss := c.floatsOut("loss", 5)
		c.both(func(s side) { s.CrossEntropy(s.a(loss), nil, s.a(logits), []int{3, 4, 5, 6, 7}, 40, 1) })
		c.compare(o.Floats)
	})
}

// spoilt puts a NaN, +∞ and −∞ in the rows 0, 2 and 3 of x.
func spoilt(x []float32, cols int) []float32 {
	x[17] = float32(math.NaN())
	x[2*cols+cols-1] = float32(math.Inf(1))
	x[3*cols+1] = float32(math.Inf(-1))
	return x
}

func testDivergence(t *testing.T, ops Ops, o Options) {
	for _, shape := range lossShapes {
		rows, vocab := shape[0], shape[1]
		t.Run(fmt.Sprintf("rows %d vocab %d", rows, vocab), func(t *testing.T) {
			c := o.check(t, ops, uint64(vocab))
			defer c.done()
			x, other := c.normal(rows*vocab, 3), c.normal(rows*vocab, 1)
			for i := range other {
				other[i] += x[i] + float32(i/vocab)*20
			}
			logits, teacher := c.floats("logits", x), c.floats("teacher", other)
			only, loss := c.floats("loss alone", poison(rows)).out(1), c.floats("loss", poison(rows)).out(1)
			self := c.floats("loss to itself", poison(rows)).out(1)
			d := c.acts("dlogits", poison(rows*vocab)).out(1e-6)
			c.both(func(s side) {
				s.Divergence(s.a(only), nil, s.a(logits), s.a(teacher), rows, vocab, 1)
				s.Divergence(s.a(loss), s.a(d), s.a(logits), s.a(teacher), rows, vocab, 0.37)
				s.Divergence(s.a(self), nil, s.a(teacher), s.a(teacher), rows, vocab, 1)
			})
			c.compare(o.Acts)
		})
	}
	t.Run("NotFinite", func(t *testing.T) {
		c := o.check(t, ops, 1)
		defer c.done()
		good := c.normal(5*40, 1)
		logits, teacher := c.floats("logits", good), c.floats("teacher", spoilt(c.normal(5*40, 1), 40))
		loss, loss2 := c.floatsOut("loss", 5), c.floatsOut("loss the other way", 5)
		c.both(func(s side) {
			s.Divergence(s.a(loss), nil, s.a(logits), s.a(teacher), 5, 40, 1)
			s.Divergence(s.a(loss2), nil, s.a(teacher), s.a(logits), 5, 40, 1)
		})
		c.compare(o.Floats)
	})
}

func testArgMax(t *testing.T, ops Ops, o Options) {
	for _, test := range []struct{ rows, cols int }{{7, 1}, {7, 33}, {7, 1000}, {7, 50257}, {260, 9216}} {
		rows, cols := test.rows, test.cols
		t.Run(fmt.Sprint(cols), func(t *testing.T) {
			c := o.check(t, ops, uint64(cols))
			defer c.done()
			v := c.normal(rows*cols, 1)
			for r := range rows { // equals in rows from 1 on
				for range r {
					v[r*cols+c.r.IntN(cols)] = 9
				}
			}
			x, at := c.floats("x", v), c.floatsOut("index", rows)
			c.both(func(s side) { s.ArgMax(s.a(at), s.a(x), rows, cols) })
			c.compare(0)
		})
	}
}

func testNotFinite(t *testing.T, ops Ops, o Options) {
	const rows, cols = 130, 77
	for _, test := range []struct {
		name string
		at   []int
		v    float64
	}{
		{"none", nil, 0},
		{"NaN", []int{5*cols + 3, 90 * cols}, math.NaN()},
		{"positive", []int{0}, math.Inf(1)},
		{"negative", []int{rows*cols - 1}, math.Inf(-1)},
		{"last row first", []int{129*cols + 1, 64*cols + 76}, math.Inf(-1)},
	} {
		t.Run(test.name, func(t *testing.T) {
			c := o.check(t, ops, 3)
			defer c.done()
			v := c.normal(rows*cols, 1e3)
			for _, i := range test.at {
				v[i] = float32(test.v)
			}
			for _, x := range []*tensor{c.floats("floats", v), c.acts("acts", v)} {
				got, want := ops.NotFinite(x.dev, rows, cols), Reference{}.NotFinite(x.ref, rows, cols)
				if got != want {
					t.Errorf("first bad row of %s is %d: want %d", x.name, got, want)
				}
			}
			c.compare(0)
		})
	}
}

func testAdam(t *testing.T, ops Ops, o Options) {
	for _, n := range []int{1, 33, 4099} {
		for _, test := range []struct {
			name  string
			scale float64
			bf16  bool
		}{{"float32", 0, false}, {"clipped", 0.25, false}, {"bfloat16", 0, true}} {
			t.Run(fmt.Sprintf("%s %d", test.name, n), func(t *testing.T) {
				p, m, v := normals(1, n, 0.05), make([]float32, n), make([]float32, n)
				for step := 1; step <= 3; step++ {
					c := o.check(t, ops, uint64(step))
					if test.bf16 {
						round16(p)
					}
					x := model.Adam{LR: 1e-2, B1: 0.9, B2: 0.999, Eps: 1e-8, Scale: test.scale, Step: step, BF16: test.bf16}
					pt, mt, vt := c.floats("p", p).out(0), c.floats("m", m).out(0), c.floats("v", v).out(0)
					g := c.floats("g", c.normal(n, 0.1))
					c.both(func(s side) {
						x := x
						x.P, x.M, x.V, x.G = s.a(pt), s.a(mt), s.a(vt), s.a(g)
						s.Adam(x)
					})
					tol := o.Floats
					if test.bf16 {
						// A last digit is 2^-8, and they may round otherwise.
						tol = 1.0 / 128
						for _, x := range []*tensor{pt, mt, vt} {
							c.is16(x)
						}
					}
					c.compare(tol)
					p, m, v = narrowed(pt.ref), narrowed(mt.ref), narrowed(vt.ref)
					c.done()
				}
			})
		}
	}
}

func normals(seed uint64, n int, sigma float64) []float32 {
	c := Options{}.check(nil, nil, seed)
	return c.normal(n, sigma)
}

func round16(v []float32) {
	for i, x := range v {
		v[i] = num.BF16ToF32(num.F32ToBF16(x))
	}
}

// is16 fails where a tensor holds other numbers than those of bfloat16.
func (c *check) is16(x *tensor) {
	v := make([]float32, x.dev.Len())
	c.ops.Read(v, x.dev)
	for i, got := range v {
		if want := num.BF16ToF32(num.F32ToBF16(got)); got != want {
			c.Fatalf("%s: element %d is %v, which is no bfloat16", x.name, i, got)
		}
	}
}

func testExpScale(t *testing.T, ops Ops, o Options) {
	for _, n := range []int{1, 33, 4099} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			c := o.check(t, ops, uint64(n))
			defer c.done()
			base, theta := c.floats("base", c.normal(n, 0.1)), c.floats("theta", c.normal(n, 0.5))
			sc, g := c.floatsOut("s", n), c.floats("g", c.normal(n, 1)).out(0)
			c.both(func(s side) {
				s.ExpScale(s.a(sc), s.a(base), s.a(theta))
				s.ExpScaleBack(s.a(g), s.a(sc))
			})
			c.compare(o.Floats)
		})
	}
}

func testSumSquares(t *testing.T, ops Ops, o Options) {
	for _, lens := range [][]int{nil, {1}, {33, 1, 4099}, {100003}} {
		t.Run(fmt.Sprint(lens), func(t *testing.T) {
			c := o.check(t, ops, 1)
			defer c.done()
			var dev, ref []model.Array
			for _, n := range lens {
				x := c.floats("x", c.normal(n, 1))
				dev, ref = append(dev, x.dev), append(ref, x.ref)
			}
			got, want := ops.SumSquares(dev...), Reference{}.SumSquares(ref...)
			if math.Abs(got-want) > o.Floats*want {
				t.Errorf("sum is %v: want %v", got, want)
			}
			if again := ops.SumSquares(dev...); again != got {
				t.Errorf("sum is %v the second time, %v the first", again, got)
			}
			if o.Output != nil {
				o.Output(t.Name(), []float32{float32(got)})
			}
			c.compare(0)
		})
	}
}
