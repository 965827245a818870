package opstest

import (
	"fmt"
	"strings"
	"testing"

	"github.com/lutq/lutq/calib/model"
	"github.com/lutq/lutq/formats/hf"
	"github.com/lutq/lutq/formats/weight"
	"github.com/lutq/lutq/formats/weight/lut"
)

// layer is a trainable weight with its original.
type layer struct {
	original, w      weights
	n, k, group, nsc int
}

// trainable uploads an [n, k] matrix as a layer whose codes are the nearest
// ones, with scales of the largest weight. bits of 0 leave it without a table.
func (c *check) trainable(n, k, bits, group int, dt hf.DType, st weight.ScaleType) layer {
	c.Helper()
	groups := weight.GroupsIn(k, group)
	// A device may hold dense weights in its own 16 bits, and codes have to
	// be of the same numbers.
	v := c.normal(n*k, 0.1)
	for i := range v {
		v[i] = both16(v[i])
	}
	data := encode(dt, v)
	original := c.weight(func(ops Ops) (model.Weight, error) { return ops.Dense(n, k, dt, data) })
	scales := make([]float32, n*groups)
	for i, x := range v {
		s := &scales[i/k*groups+i%k/group]
		*s = max(*s, x, -x)
	}
	if len(scales) > 4 {
		scales[4] = 0
	}
	t := model.Trainable{N: n, K: k, Group: group, Scales: scales, ScaleType: st}
	if bits > 0 {
		t.Table, t.Codes = c.table(bits), make([]uint8, n*k)
		for i, x := range v {
			if s := scales[i/k*groups+i%k/group]; s != 0 {
				t.Codes[i] = nearest(widen(t.Table), float64(x/s))
			}
		}
	}
	w := c.weight(func(ops Ops) (model.Weight, error) {
		t := t
		t.Original = side{ops, ops == Ops(Reference{})}.w(original)
		return ops.Trainable(t)
	})
	return layer{original, w, n, k, group, n * groups}
}

// products compares the products by a layer's weights, forward and back.
func (l layer) products(t *testing.T, ops Ops, o Options, seed uint64) {
	t.Helper()
	for _, rows := range []int{1, 33} {
		c := o.check(t, ops, seed)
		x, dy := c.acts("x", c.normal(rows*l.k, 1)), c.acts("dy", c.normal(rows*l.n, 1))
		y, dx := c.actsOut("y", rows*l.n), c.actsOut("dx", rows*l.k)
		sum := c.floats("y added to", c.normal(rows*l.n, 1)).out(0.1)
		c.both(func(s side) {
			s.Linear(s.a(x), rows, model.Product{Y: s.a(y), W: s.w(l.w)}, model.Product{Y: s.a(sum), W: s.w(l.w), Add: true})
			s.LinearBack(s.a(dx), s.a(dy), rows, s.w(l.w), false)
		})
		c.compare(o.Acts)
		c.done()
	}
}

// gradients compares ScaleGrad.
func (l layer) gradients(t *testing.T, ops Ops, o Options, rows int) {
	t.Helper()
	c := o.check(t, ops, uint64(rows))
	defer c.done()
	x, dy := c.acts("x", c.normal(rows*l.k, 1)), c.acts("dy", c.normal(rows*l.n, 1))
	sum := func(name string, n int) *tensor { return c.floats(name, c.normal(n, 1)).out(0.1) }
	ste, both, lsq := sum("ds", l.nsc), sum("ds beside dtable", l.nsc), sum("ds by lsq", l.nsc)
	dtable := sum("dtable", len(l.w.ref.table))
	c.both(func(s side) {
		s.ScaleGrad(s.a(ste), nil, s.a(dy), s.a(x), rows, s.w(l.w), false)
		if l.w.ref.table != nil {
			s.ScaleGrad(s.a(both), s.a(dtable), s.a(dy), s.a(x), rows, s.w(l.w), false)
			s.ScaleGrad(s.a(lsq), nil, s.a(dy), s.a(x), rows, s.w(l.w), true)
		}
	})
	c.compare(o.Acts)
}

// codesAgree compares codes. Where both sides coded anew, a quotient between
// two entries may round to either side: a code is right if it is that of
// a quotient within 2^-21 of the reference's, itself rounded in bfloat16. The
// reference then takes the codes, so that what follows compares.
func (l layer) codesAgree(t testing.TB, ops Ops, o Options, recoded, bf bool) {
	t.Helper()
	got, m := make([]uint8, l.n*l.k), l.w.ref
	ops.Codes(got, l.w.dev)
	if o.Output != nil {
		v := make([]float32, len(got))
		for i, code := range got {
			v[i] = float32(code)
		}
		o.Output(t.Name()+" codes", v)
	}
	wrong, first := 0, -1
	for i, code := range got {
		if int(code) >= len(m.table) {
			t.Fatalf("code %d of row %d column %d is not in a table of %d", code, i/l.k, i%l.k, len(m.table))
		}
		ok := code == m.codes[i]
		if !ok && recoded {
			q := m.quotient(i/l.k, i%l.k, false)
			a, b := q*(1-0x1p-21), q*(1+0x1p-21)
			if bf {
				a, b = bf16(a), bf16(b)
			}
			lo, hi := nearest(m.table, min(a, b)), nearest(m.table, max(a, b))
			ok = lo <= code && code <= hi
		}
		if !ok {
			if wrong++; first < 0 {
				first = i
			}
		}
	}
	if wrong > 0 {
		t.Errorf("%d of %d codes are wrong: that of row %d column %d is %d, want %d (quotient %v, table %v)",
			wrong, len(got), first/l.k, first%l.k, got[first], m.codes[first], m.quotient(first/l.k, first%l.k, bf), m.table)
	}
	copy(m.codes, got)
}

var trainableShapes = [][3]int{{64, 128, 64}, {17, 45, 32}, {129, 300, 300}, {48, 77, 20}, {1, 64, 16}, {70, 33, 1}}

func testTrainable(t *testing.T, ops Ops, o Options) {
	for i, st := range scaleTypes {
		for bits := lut.MinBits; bits <= lut.MaxBits; bits++ {
			shape := trainableShapes[(5*i+bits)%len(trainableShapes)]
			n, k, group := shape[0], shape[1], shape[2]
			dt := denseTypes[(i+bits)%len(denseTypes)]
			t.Run(fmt.Sprintf("%d bits %v group %d of %d×%d %v", bits, st, group, n, k, dt), func(t *testing.T) {
				c := o.check(t, ops, uint64(10*bits+i))
				l := c.trainable(n, k, bits, group, dt, st)
				defer c.done(l.w, l.original)
				l.codesAgree(t, ops, o, false, false)
				l.products(t, ops, o, 1)
				for _, rows := range []int{1, 7, 130} {
					l.gradients(t, ops, o, rows)
				}

				scales := c.floats("scales", c.scales(l.nsc, st))
				c.both(func(s side) { s.SetScales(s.w(l.w), s.a(scales)) })
				l.codesAgree(t, ops, o, false, false)
				l.products(t, ops, o, 2)
				l.gradients(t, ops, o, 33)

				for _, bf := range []bool{false, true} {
					c.both(func(s side) { s.Recode(s.w(l.w), bf) })
					l.codesAgree(t, ops, o, true, bf)
					l.products(t, ops, o, 3)
				}
				l.gradients(t, ops, o, 33)

				table := c.floats("table", c.table(bits))
				c.both(func(s side) { s.SetTable(s.w(l.w), s.a(table)) })
				l.codesAgree(t, ops, o, false, false)
				l.products(t, ops, o, 4)
				l.gradients(t, ops, o, 33)
				c.both(func(s side) { s.Recode(s.w(l.w), false) })
				l.codesAgree(t, ops, o, true, false)
				l.products(t, ops, o, 5)

				// The originals are not touched.
				layer{w: l.original, n: n, k: k}.products(t, ops, o, 6)
				c.compare(0)
			})
		}
	}
	t.Run("Ties", func(t *testing.T) { testTies(t, ops, o) })
}

// testTies codes quotients half way between two entries, and those of a scale
// of zero. All of it is exact.
func testTies(t *testing.T, ops Ops, o Options) {
	c := o.check(t, ops, 1)
	const k = 16
	v, scales := make([]float32, 3*k), []float32{0.5, -0.25, 0}
	table := []float32{-1, -0.25, 0.5, 1}
	for i := range k {
		q := float32(i-8) / 8 // −0.625, 0.125 and 0.75 are ties
		v[i], v[k+i], v[2*k+i] = q*0.5, q*-0.25, q
	}
	data := encode(hf.F32, v)
	original := c.weight(func(ops Ops) (model.Weight, error) { return ops.Dense(3, k, hf.F32, data) })
	w := c.weight(func(ops Ops) (model.Weight, error) {
		return ops.Trainable(model.Trainable{
			N: 3, K: k, Group: k, Codes: make([]uint8, 3*k), Table: table, Scales: scales, ScaleType: weight.F32,
			Original: side{ops, ops == Ops(Reference{})}.w(original),
		})
	})
	defer c.done(w, original)
	for _, bf := range []bool{false, true} {
		ops.Recode(w.dev, bf)
		got := make([]uint8, 3*k)
		ops.Codes(got, w.dev)
		for i, code := range got {
			q := float32(i%k-8) / 8
			if i >= 2*k {
				q = 0
			}
			want := uint8(0)
			for _, mid := range []float32{-0.625, 0.125, 0.75} {
				if q > mid {
					want++
				}
			}
			if code != want {
				t.Errorf("bfloat16 %v: code of quotient %v at scale %v is %d: want %d", bf, q, scales[i/k], code, want)
			}
		}
	}
	c.compare(0)
}

func testTrainableOriginal(t *testing.T, ops Ops, o Options) {
	for i, shape := range trainableShapes {
		n, k, group := shape[0], shape[1], shape[2]
		st := scaleTypes[i%len(scaleTypes)]
		t.Run(fmt.Sprintf("%v group %d of %d×%d", st, group, n, k), func(t *testing.T) {
			c := o.check(t, ops, uint64(i))
			l := c.trainable(n, k, 0, group, denseTypes[i%len(denseTypes)], st)
			defer c.done(l.w, l.original)
			l.products(t, ops, o, 1)
			l.gradients(t, ops, o, 33)
			scales := c.floats("scales", c.scales(l.nsc, st))
			c.both(func(s side) { s.SetScales(s.w(l.w), s.a(scales)) })
			l.products(t, ops, o, 2)
			l.gradients(t, ops, o, 7)
			c.compare(0)
		})
	}
}

// testTrainableErrors: what no device can learn is refused, before it is read.
func testTrainableErrors(t *testing.T, ops Ops, _ Options) {
	w := model.Trainable{N: 1, K: 2, Group: 2, Codes: []uint8{0, 2}, Table: []float32{-1, 1}, Scales: []float32{1}, ScaleType: weight.F32}
	want := w.Validate()
	if _, err := ops.Trainable(w); want == nil || err == nil || !strings.Contains(err.Error(), want.Error()) {
		t.Errorf("a code outside of the table: got error %v, want one with %v", err, want)
	}
}
