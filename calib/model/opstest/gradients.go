package opstest

import (
	"fmt"
	"math"
	"slices"

	"github.com/lutq/lutq/calib/model"
	"github.com/lutq/lutq/formats/arch"
	"github.com/lutq/lutq/formats/num"
	"github.com/lutq/lutq/formats/weight"
)

// RMSNormBack implements [model.BackwardOps]. With r = 1/√(mean x² + eps),
//
//	dx[i] = r·w[i]·dy[i] − x[i]·r³/n · Σ_j w[j]·dy[j]·x[j]
func (Reference) RMSNormBack(dx, dy, x, w model.Array, rows int, eps float64, add bool) {
	d, g, xv, wv := values(dx), values(dy), values(x), values(w)
	n := len(wv)
	exactly(rows*n, "dx", d)
	exactly(rows*n, "dy", g)
	exactly(rows*n, "x", xv)
	for r := range rows {
		row := xv[r*n : (r+1)*n]
		inv := inverseRMS(row, eps)
		var sum float64
		for i, v := range row {
			sum += wv[i] * g[r*n+i] * v
		}
		for i, v := range row {
			put(&d[r*n+i], inv*wv[i]*g[r*n+i]-v*inv*inv*inv/float64(n)*sum, add)
		}
	}
}

func put(dst *float64, v float64, add bool) {
	if add {
		v += *dst
	}
	*dst = v
}

// LinearBack implements [model.BackwardOps].
func (Reference) LinearBack(dx, dy model.Array, rows int, w model.Weight, add bool) {
	d, g, m := values(dx), values(dy), w.(*matrix)
	exactly(rows*m.k, "dx", d)
	exactly(rows*m.n, "dy", g)
	dense := m.dense()
	for r := range rows {
		for k := range m.k {
			var sum float64
			for n := range m.n {
				sum += g[r*m.n+n] * dense[n*m.k+k]
			}
			put(&d[r*m.k+k], sum, add)
		}
	}
}

// AttentionBack implements [model.BackwardOps]. With p the probabilities,
//
//	dv[j] = Σ_i p[i,j]·do[i]
//	dp[i,j] = do[i]·v[j]
//	ds[i,j] = p[i,j]·(dp[i,j] − Σ_j p[i,j]·dp[i,j])    times 1 − tanh² of a capped score
//	dq[i] = scale·Σ_j ds[i,j]·k[j]    dk[j] = scale·Σ_i ds[i,j]·q[i]
//
// The sum is also do[i]·o[i], but o may have been rounded.
func (Reference) AttentionBack(dq, dk, dv, do, o, lse, q, k, v model.Array, s model.AttentionShape) {
	exactly(s.Heads*s.T, "lse", values(lse))
	exactly(s.T*s.Heads*s.Dim, "o", values(o))
	clear(values(dq))
	clear(values(dk))
	clear(values(dv))
	for h := range s.Heads {
		q, k, v := heads(s, h, values(q), values(k), values(v))
		dq, dk, dv := heads(s, h, values(dq), values(dk), values(dv))
		do, _, _ := heads(s, h, values(do), k.v, v.v)
		for i := range s.T {
			p, dp, slope := make([]float64, i+1), make([]float64, i+1), make([]float64, i+1)
			var mean float64
			for j := sees(s, i); j <= i; j++ {
				score := float64(s.Scale) * product(q.token(i), k.token(j))
				p[j] = math.Exp(capped(s, score) - values(lse)[h*s.T+i])
				if s.Cap > 0 {
					slope[j] = 1 - math.Pow(math.Tanh(score/float64(s.Cap)), 2)
				} else {
					slope[j] = 1
				}
				dp[j] = product(do.token(i), v.token(j))
				mean += p[j] * dp[j]
			}
			for j := sees(s, i); j <= i; j++ {
				ds := p[j] * (dp[j] - mean) * slope[j] * float64(s.Scale)
				for d := range s.Dim {
					dv.token(j)[d] += p[j] * do.token(i)[d]
					dq.token(i)[d] += ds * k.token(j)[d]
					dk.token(j)[d] += ds * q.token(i)[d]
				}
			}
		}
	}
}

// GLUBack implements [model.BackwardOps], by derivatives that are written out.
func (Reference) GLUBack(dg, du, dy, g, u model.Array, act arch.Gating) {
	dgv, duv, dyv, gv, uv := values(dg), values(du), values(dy), values(g), values(u)
	exactly(len(dyv), "dg", dgv)
	exactly(len(dyv), "du", duv)
	exactly(len(dyv), "g", gv)
	exactly(len(dyv), "u", uv)
	for i, d := range dyv {
		byGate, byUp := gluBack(act, gv[i], uv[i])
		dgv[i], duv[i] = d*byGate, d*byUp
	}
}

// gluBack returns the derivatives of [glu].
func gluBack(act arch.Gating, g, u float64) (byGate, byUp float64) {
	switch act.Act {
	case arch.SiLU:
		s := sigmoid(g)
		return u * s * (1 + g*(1-s)), g * s
	case arch.GELU:
		normal := math.Exp(-g*g/2) / math.Sqrt(2*math.Pi)
		return u * (0.5*(1+math.Erf(g/math.Sqrt2)) + g*normal), glu(act, g, 1)
	case arch.GELUTanh:
		c := math.Sqrt(2 / math.Pi)
		t := math.Tanh(c * (g + 0.044715*g*g*g))
		return u * (0.5*(1+t) + 0.5*g*(1-t*t)*c*(1+3*0.044715*g*g)), glu(act, g, 1)
	case arch.ReLU:
		if g > 0 {
			return u, g
		}
		return 0, 0
	case arch.Sigmoid:
		s := sigmoid(g)
		return u * s * (1 - s), s
	case arch.SwiGLUOAI:
		top, alpha := act.Limit, act.Alpha
		byUp = min(g, top) * sigmoid(alpha*min(g, top))
		if math.Abs(u) > top {
			byUp = 0
		}
		if g > top {
			return 0, byUp
		}
		s := sigmoid(alpha * g)
		return (min(max(u, -top), top) + 1) * s * (1 + alpha*g*(1-s)), byUp
	}
	panic("opstest: activation " + act.Act)
}

// SoftCapBack implements [model.BackwardOps].
func (Reference) SoftCapBack(dx, y model.Array, c float64) {
	d, v := values(dx), values(y)
	exactly(len(d), "y", v)
	for i := range d {
		d[i] *= 1 - v[i]*v[i]/(c*c)
	}
}

// SumHeads implements [model.BackwardOps].
func (Reference) SumHeads(y, x model.Array, s model.HeadsShape) {
	to, from := values(y), values(x)
	for r := range s.Rows {
		for i := range s.Width {
			sum := 0.0
			for h := range s.Heads {
				sum += from[r*s.FromRow+h*s.FromHead+i]
			}
			to[r*s.ToRow+i] = sum
		}
	}
}

// RowDots implements [model.BackwardOps].
func (Reference) RowDots(dst, a, b model.Array, rows int) {
	d, av, bv := values(dst), values(a), values(b)
	exactly(rows, "dst", d)
	exactly(len(av), "b", bv)
	for i := range d {
		n := len(av) / rows
		d[i] = product(av[i*n:(i+1)*n], bv[i*n:(i+1)*n])
	}
}

// Trainable implements learn.Ops.
func (r Reference) Trainable(t model.Trainable) (model.Weight, error) {
	if err := t.Validate(); err != nil {
		return nil, fmt.Errorf("trainable weight: %w", err)
	}
	m := &matrix{
		n: t.N, k: t.K, group: t.Group, scaleType: t.ScaleType,
		scales: make([]float64, t.N*weight.GroupsIn(t.K, t.Group)),
	}
	if t.Original != nil {
		m.original = t.Original.(*matrix)
	}
	if t.Table != nil {
		m.table = widen(t.Table)
		m.codes = append(m.codes, t.Codes...)
	}
	r.SetScales(m, Array(widen(t.Scales)))
	return m, nil
}

// SetScales implements learn.Ops.
func (Reference) SetScales(w model.Weight, scales model.Array) {
	m, s := w.(*matrix), values(scales)
	exactly(len(m.scales), "scales", s)
	for i, v := range s {
		m.scales[i] = rounded(m.scaleType, v)
	}
}

// rounded is v as a scale type holds it.
func rounded(t weight.ScaleType, v float64) float64 {
	if t == weight.F32 {
		return v
	}
	var b [4]byte
	var f [1]float32
	t.Encode(b[:], []float32{float32(v)})
	t.Decode(f[:], b[:t.Size()])
	return float64(f[0])
}

func bf16(v float64) float64 { return float64(num.BF16ToF32(num.F32ToBF16(float32(v)))) }

// SetTable implements learn.Ops.
func (Reference) SetTable(w model.Weight, table model.Array) {
	m := w.(*matrix)
	exactly(len(m.table), "table", values(table))
	copy(m.table, values(table))
}

// nearest returns the index of the entry nearest to q, the lower of two.
func nearest(table []float64, q float64) uint8 {
	q = min(max(q, slices.Min(table)-1), slices.Max(table)+1) // farther away all entries would be as near
	best := 0
	for i, v := range table {
		if math.Abs(q-v) < math.Abs(q-table[best]) {
			best = i
		}
	}
	return uint8(best)
}

// quotient is what Recode looks up in the table.
func (m *matrix) quotient(n, k int, round bool) float64 {
	s := m.scale(n, k)
	if s == 0 {
		return 0
	}
	q := m.original.at(n, k) / s
	if round {
		q = bf16(q)
	}
	return q
}

// Recode implements learn.Ops.
func (Reference) Recode(w model.Weight, bf16 bool) {
	m := w.(*matrix)
	for i := range m.codes {
		m.codes[i] = nearest(m.table, m.quotient(i/m.k, i%m.k, bf16))
	}
}

// Codes implements learn.Ops.
func (Reference) Codes(dst []uint8, w model.Weight) {
	m := w.(*matrix)
	if len(dst) != len(m.codes) {
		panic("opstest: codes of another length")
	}
	copy(dst, m.codes)
}

// ScaleGrad implements [model.BackwardOps]. A quotient equal to the first or
// last table value lies inside the range; where the scale is 0 there is no
// quotient, and the weight counts as outside.
func (Reference) ScaleGrad(ds, dtable, dy, x model.Array, rows int, w model.Weight, lsq bool) {
	m := w.(*matrix)
	d, dt, g, xv := values(ds), values(dtable), values(dy), values(x)
	exactly(len(m.scales), "ds", d)
	exactly(rows*m.n, "dy", g)
	exactly(rows*m.k, "x", xv)
	if dt != nil {
		exactly(len(m.table), "dtable", dt)
	}
	for n := range m.n {
		for k := range m.k {
			var sum float64
			for r := range rows {
				sum += g[r*m.n+n] * xv[r*m.k+k]
			}
			u := m.entry(n, k)
			if lsq && m.table != nil && m.scale(n, k) != 0 {
				q := m.original.at(n, k) / m.scale(n, k)
				if q >= m.table[0] && q <= m.table[len(m.table)-1] {
					u -= q
				}
			}
			d[n*weight.GroupsIn(m.k, m.group)+k/m.group] += sum * u
			if dt != nil {
				dt[m.codes[n*m.k+k]] += sum * m.scale(n, k)
			}
		}
	}
}

// Adam implements learn.Ops. In bfloat16 it rounds wherever PyTorch's
// optimizer stores a tensor of that type: after lerp, mul, addcmul, sqrt, div,
// add and addcdiv (torch/optim/adam.py, _multi_tensor_adam).
func (Reference) Adam(a model.Adam) {
	p, m, v, g := values(a.P), values(a.M), values(a.V), values(a.G)
	exactly(len(p), "m", m)
	exactly(len(p), "v", v)
	exactly(len(p), "g", g)
	keep := func(x float64) float64 { return x }
	if a.BF16 {
		keep = bf16
	}
	factor := a.Scale
	if factor == 0 {
		factor = 1
	}
	first, second := 1-math.Pow(a.B1, float64(a.Step)), 1-math.Pow(a.B2, float64(a.Step))
	for i := range p {
		d := keep(g[i] * factor)
		m[i] = keep(m[i] + (1-a.B1)*(d-m[i]))
		v[i] = keep(keep(a.B2*v[i]) + (1-a.B2)*d*d)
		root := keep(keep(keep(math.Sqrt(v[i]))/math.Sqrt(second)) + a.Eps)
		p[i] = keep(p[i] - a.LR/first*(m[i]/root))
	}
}

// ExpScale implements learn.Ops.
func (Reference) ExpScale(s, base, theta model.Array) {
	sv, b, t := values(s), values(base), values(theta)
	exactly(len(sv), "base", b)
	exactly(len(sv), "theta", t)
	for i := range sv {
		sv[i] = b[i] * math.Exp(t[i])
	}
}

// ExpScaleBack implements learn.Ops.
func (Reference) ExpScaleBack(g, s model.Array) {
	gv, sv := values(g), values(s)
	exactly(len(gv), "s", sv)
	for i, v := range sv {
		gv[i] *= v
	}
}

// SumSquares implements learn.Ops.
func (Reference) SumSquares(x ...model.Array) float64 {
	var sum float64
	for _, a := range x {
		for _, v := range values(a) {
			sum += v * v
		}
	}
	return sum
}
