package cpu

import (
	"fmt"
	"math"
	"slices"

	"github.com/lutq/lutq/calib/model"
	"github.com/lutq/lutq/formats/num"
	"github.com/lutq/lutq/formats/weight"
	"github.com/lutq/lutq/formats/weight/lut"
	gemmcpu "github.com/lutq/lutq/gemm/cpu"
)

// maxTable is the largest number of table values.
const maxTable = 1 << lut.MaxBits

// trained is a weight whose scales are learned. Its product of table and scales is kept
// in float32 and made anew when one of them changes.
type trained struct {
	n, k, group, groups int
	codes               []uint8
	table               []float32 // nil: the original's elements
	scales              []float32
	scaleType           weight.ScaleType
	original            gemmcpu.Weights // or nil
	values              []float32       // [n, k]
	w                   *gemmcpu.Plain  // of values
}

func (w *trained) Shape() (n, k int) { return w.n, w.k }

func (w *trained) operand() gemmcpu.Weights { return w.w }

// Trainable implements learn.Ops. It copies what it keeps but for the original.
func (c *Ops) Trainable(t model.Trainable) (model.Weight, error) {
	if err := t.Validate(); err != nil {
		return nil, fmt.Errorf("trainable weight: %w", err)
	}
	w := &trained{
		n: t.N, k: t.K, group: t.Group, groups: weight.GroupsIn(t.K, t.Group),
		scaleType: t.ScaleType, scales: make([]float32, len(t.Scales)), values: make([]float32, t.N*t.K),
	}
	w.w = gemmcpu.NewPlain(w.n, w.k, w.values)
	if t.Original != nil {
		w.original = operand(t.Original)
	}
	if t.Table != nil {
		w.codes, w.table = slices.Clone(t.Codes), slices.Clone(t.Table)
	}
	w.round(t.Scales)
	c.refresh(w)
	return w, nil
}

// round sets the scales, as their type holds them.
func (w *trained) round(scales []float32) {
	if w.scaleType == weight.F32 {
		copy(w.scales, scales)
		return
	}
	var b [1024]byte
	size := w.scaleType.Size()
	for i := 0; i < len(scales); i += len(b) / size {
		to := min(i+len(b)/size, len(scales))
		w.scaleType.Encode(b[:], scales[i:to])
		w.scaleType.Decode(w.scales[i:to], b[:size*(to-i)])
	}
}

// SetScales implements learn.Ops.
func (c *Ops) SetScales(w model.Weight, scales model.Array) {
	t, s := w.(*trained), host(scales)
	if len(s) != len(t.scales) {
		panic(badSize)
	}
	t.round(s)
	c.refresh(t)
}

// SetTable implements learn.Ops.
func (c *Ops) SetTable(w model.Weight, table model.Array) {
	t := w.(*trained)
	copySame(t.table, host(table))
	c.refresh(t)
}

// refresh makes the values of all weights.
func (c *Ops) refresh(w *trained) {
	c.overRows(w.n, func(_, from, to int) { c.refreshRows(w, from, to) })
}

// refreshRows makes those of at most 16 rows.
func (c *Ops) refreshRows(w *trained, from, to int) {
	if w.table == nil {
		c.engine.Rows(w.values[from*w.k:to*w.k], w.original, from)
	}
	w.groupsOf(from, to, func(i, lo, hi int) {
		values, s := w.values[lo:hi], w.scales[i]
		if w.table == nil {
			c.engine.Scale(values, values, s)
			return
		}
		var scaled [maxTable]float32
		for j, v := range w.table {
			scaled[j] = v * s
		}
		codes := w.codes[lo:hi]
		values = values[:len(codes)]
		for j, code := range codes {
			values[j] = scaled[code%maxTable]
		}
	})
}

// groupsOf calls f for each group of some rows, with its number and the range of its elements.
func (w *trained) groupsOf(from, to int, f func(i, lo, hi int)) {
	for n := from; n < to; n++ {
		for g := range w.groups {
			f(n*w.groups+g, n*w.k+g*w.group, n*w.k+min((g+1)*w.group, w.k))
		}
	}
}

// Recode implements learn.Ops. Boundaries are the mean of two table values, rounded to
// float32, as in package lut.
func (c *Ops) Recode(w model.Weight, bf16 bool) {
	t := w.(*trained)
	mids := newBoundaries(t.table)
	c.overRows(t.n, func(worker, from, to int) {
		rows := c.row(worker, (to-from)*t.k)
		c.engine.Rows(rows, t.original, from)
		first := from * t.k
		t.groupsOf(from, to, func(i, lo, hi int) {
			s, codes, row := t.scales[i], t.codes[lo:hi], rows[lo-first:hi-first]
			if s == 0 {
				zero := mids.code(0)
				for j := range codes {
					codes[j] = zero
				}
				return
			}
			for j, x := range row {
				q := x / s
				if bf16 {
					q = num.BF16ToF32(num.F32ToBF16(q))
				}
				codes[j] = mids.code(q)
			}
		})
		c.refreshRows(t, from, to)
	})
}

// boundaries lie between the values of a table, as integers in the order of the
// numbers: comparing those needs no branch, which would be mispredicted every other time.
type boundaries [maxTable]int64

func newBoundaries(table []float32) *boundaries {
	var b boundaries
	for i := range b {
		b[i] = math.MaxInt32 // above infinity
		if i+1 < len(table) {
			b[i] = ordinal((table[i]+table[i+1])*0.5 + 0) // +0 for −0
		}
	}
	return &b
}

// ordinal returns an integer that grows with x.
func ordinal(x float32) int64 {
	i := int32(math.Float32bits(x))
	return int64(i ^ i>>31&math.MaxInt32)
}

// code returns the number of boundaries strictly below x, by halving.
func (b *boundaries) code(x float32) uint8 {
	o := ordinal(x)
	code := uint64(b[15]-o) >> 63 << 4
	code += uint64(b[code+7]-o) >> 63 << 3
	code += uint64(b[(code+3)%maxTable]-o) >> 63 << 2
	code += uint64(b[(code+1)%maxTable]-o) >> 63 << 1
	code += uint64(b[code%maxTable]-o) >> 63
	return uint8(code)
}

// Codes implements learn.Ops.
func (c *Ops) Codes(dst []uint8, w model.Weight) {
	t := w.(*trained)
	if len(dst) != len(t.codes) {
		panic(badSize)
	}
	copy(dst, t.codes)
}

// ScaleGrad implements [model.BackwardOps]. A quotient equal to the first or last table
// value lies inside the range, one by a scale of 0 does not.
func (c *Ops) ScaleGrad(ds, dtable, dy, x model.Array, rows int, w model.Weight, lsq bool) {
	t, dst, table, grad, src := w.(*trained), host(ds), host(dtable), host(dy), host(x)
	if len(dst) != len(t.scales) || len(grad) != rows*t.n || len(src) != rows*t.k || table != nil && len(table) != len(t.table) {
		panic(badSize)
	}
	var sums [][maxTable]float64 // of each row, by code
	if table != nil {
		sums = make([][maxTable]float64, t.n)
	}
	c.engine.Outer(grad, src, rows, t.n, t.k, func(worker, n0 int, g []float32) {
		n1 := n0 + len(g)/t.k
		if lsq && t.table != nil {
			c.lsqGrad(t, dst, n0, g, worker)
		} else {
			c.scaleGrad(t, dst, n0, g, worker)
		}
		if sums != nil {
			for n := n0; n < n1; n++ {
				t.tableGrad(&sums[n], n, g[(n-n0)*t.k:][:t.k])
			}
		}
	})
	for code := range table {
		var sum float64
		for n := range sums {
			sum += sums[n][code]
		}
		table[code] += float32(sum)
	}
}

// smallest is the magnitude of scales below which products with table values lose digits.
const smallest = 0x1p-100

// scaleGrad adds Σ g·v of each group to ds, for the rows from n0. The values
// are ŵ = v·scale, so that Σ g·ŵ/scale is the same where the scale is not 0.
func (c *Ops) scaleGrad(w *trained, ds []float32, n0 int, g []float32, worker int) {
	var free []float32 // one row of the original
	if w.table == nil {
		free = c.row(worker, 16*w.k)
	}
	w.groupsOf(n0, n0+len(g)/w.k, func(i, lo, hi int) {
		grad, s := g[lo-n0*w.k:hi-n0*w.k], w.scales[i]
		switch {
		case s >= smallest || s <= -smallest:
			ds[i] += float32(c.engine.Dot(grad, w.values[lo:hi]) / float64(s))
		case w.table == nil:
			n := lo / w.k
			first := n &^ 15
			c.engine.Rows(free[:min(16, w.n-first)*w.k], w.original, first)
			ds[i] += float32(c.engine.Dot(grad, free[(n-first)*w.k+lo%w.k:][:hi-lo]))
		default:
			var sum float64
			for j, code := range w.codes[lo:hi] {
				sum += float64(grad[j]) * float64(w.table[code])
			}
			ds[i] += float32(sum)
		}
	})
}

// lsqGrad adds Σ g·u of each group to ds, u being v − original/scale inside the
// table's range and v outside.
func (c *Ops) lsqGrad(w *trained, ds []float32, n0 int, g []float32, worker int) {
	lowest, highest := w.table[0], w.table[len(w.table)-1]
	n1 := n0 + len(g)/w.k
	for from := n0; from < n1; from += 16 {
		to := min(from+16, n1)
		rows := c.row(worker, (to-from)*w.k)
		c.engine.Rows(rows, w.original, from)
		w.groupsOf(from, to, func(i, lo, hi int) {
			s, grad, row, codes := w.scales[i], g[lo-n0*w.k:], rows[lo-from*w.k:], w.codes[lo:hi]
			grad, row = grad[:len(codes)], row[:len(codes)]
			var sum float64
			for j, code := range codes {
				u := w.table[code]
				if q := row[j] / s; s != 0 && q >= lowest && q <= highest {
					u -= q
				}
				sum += float64(grad[j]) * float64(u)
			}
			ds[i] += float32(sum)
		})
	}
}

// tableGrad adds Σ g·scale over the weights of each code of row n.
func (w *trained) tableGrad(sums *[maxTable]float64, n int, g []float32) {
	for i := range w.groups {
		lo, hi := i*w.group, min((i+1)*w.group, w.k)
		var part [maxTable]float64
		for j, code := range w.codes[n*w.k+lo : n*w.k+hi] {
			part[code%maxTable] += float64(g[lo+j])
		}
		s := float64(w.scales[n*w.groups+i])
		for code, v := range part {
			sums[code] += v * s
		}
	}
}

// Adam implements learn.Ops.
func (c *Ops) Adam(a model.Adam) {
	p, m, v, g := host(a.P), host(a.M), host(a.V), host(a.G)
	if len(m) != len(p) || len(v) != len(p) || len(g) != len(p) {
		panic(badSize)
	}
	s := newStep(a)
	c.overElements(len(p), func(from, to int) {
		for i := from; i < to; i++ {
			if a.BF16 {
				s.bf16(&p[i], &m[i], &v[i], g[i])
			} else {
				s.float(&p[i], &m[i], &v[i], g[i])
			}
		}
	})
}

// step holds the numbers that a step of Adam has for all elements.
type step struct {
	a             model.Adam
	scale         float64
	first, second float64 // 1 − β^t
}

func newStep(a model.Adam) step {
	s := step{a: a, scale: a.Scale}
	if s.scale == 0 {
		s.scale = 1
	}
	s.first = 1 - math.Pow(a.B1, float64(a.Step))
	s.second = 1 - math.Pow(a.B2, float64(a.Step))
	return s
}

// float computes in float64 and rounds what it stores.
func (s *step) float(p, m, v *float32, g float32) {
	a, d := &s.a, float64(g)*s.scale
	mean := float64(a.B1*float64(*m)) + float64((1-a.B1)*d)
	square := float64(a.B2*float64(*v)) + float64((1-a.B2)*d*d)
	*m, *v = float32(mean), float32(square)
	*p = float32(float64(*p) - a.LR*(mean/s.first)/(math.Sqrt(square/s.second)+a.Eps))
}

// bf16 rounds wherever PyTorch's optimizer stores a bfloat16 tensor: after
// lerp, mul, addcmul, sqrt, div, add and addcdiv, each of which computes in
// float32 (torch/optim/adam.py, _multi_tensor_adam).
func (s *step) bf16(p, m, v *float32, g float32) {
	a := &s.a
	d := toBF16(float32(float64(g) * s.scale))
	*m = toBF16(*m + float32(float32(1-a.B1)*(d-*m)))
	*v = toBF16(float32(a.B2) * *v)
	*v = toBF16(*v + float32(float32(1-a.B2)*float32(d*d)))
	root := toBF16(float32(math.Sqrt(float64(*v))))
	root = toBF16(root / float32(math.Sqrt(s.second)))
	root = toBF16(root + float32(a.Eps))
	*p = toBF16(*p - float32(float32(a.LR/s.first)*(*m/root)))
}

func toBF16(v float32) float32 { return num.BF16ToF32(num.F32ToBF16(v)) }

// ExpScale implements learn.Ops.
func (c *Ops) ExpScale(s, base, theta model.Array) {
	dst, b, t := host(s), host(base), host(theta)
	if len(b) != len(dst) || len(t) != len(dst) {
		panic(badSize)
	}
	c.overElements(len(dst), func(from, to int) {
		for i := from; i < to; i++ {
			dst[i] = float32(float64(b[i]) * math.Exp(float64(t[i])))
		}
	})
}

// ExpScaleBack implements learn.Ops.
func (c *Ops) ExpScaleBack(g, s model.Array) {
	dst, by := host(g), host(s)
	if len(by) != len(dst) {
		panic(badSize)
	}
	c.overElements(len(dst), func(from, to int) {
		for i := from; i < to; i++ {
			dst[i] *= by[i]
		}
	})
}

// SumSquares implements learn.Ops: in order, from parts of a fixed size.
func (c *Ops) SumSquares(x ...model.Array) float64 {
	var sum float64
	for _, a := range x {
		v := host(a)
		parts := make([]float64, ceilDiv(len(v), elementsPerTask))
		c.overElements(len(v), func(from, to int) {
			parts[from/elementsPerTask] = c.engine.Dot(v[from:to], v[from:to])
		})
		for _, p := range parts {
			sum += p
		}
	}
	return sum
}
