package opstest

import (
	"fmt"
	"math"
	"slices"

	"github.com/lutq/lutq/calib/model"
	"github.com/lutq/lutq/formats/arch"
	"github.com/lutq/lutq/formats/hf"
	"github.com/lutq/lutq/formats/num"
	"github.com/lutq/lutq/formats/weight"
	"github.com/lutq/lutq/formats/weight/lut"
)

// Array is float64 memory of a [Reference]; both floats and acts are of it.
type Array []float64

// Len returns the number of elements.
func (a Array) Len() int { return len(a) }

// Slice returns the elements [from, to).
func (a Array) Slice(from, to int) model.Array { return a[from:to:to] }

// Reference computes everything in float64, one number at a time. It has no
// state, so copies and the zero value are as good as any.
//
// It rounds where an operation says so: SetScales to a scale type other than
// F32, Recode and Adam to bfloat16. Scales of type F32 keep their float64
// value, so that finite differences can be taken of them.
type Reference struct{}

var _ Ops = Reference{}

// values is an array's elements; nil for no array.
func values(a model.Array) []float64 {
	if a == nil {
		return nil
	}
	return a.(Array)
}

// exactly panics unless v has n elements.
func exactly(n int, what string, v []float64) {
	if len(v) != n {
		panic(fmt.Sprintf("opstest: %s has %d elements: want %d", what, len(v), n))
	}
}

// Name returns "reference".
func (Reference) Name() string { return "reference" }

// Err returns nil: nothing can fail.
func (Reference) Err() error { return nil }

// Floats allocates n elements.
func (Reference) Floats(n int) model.Array { return make(Array, n) }

// Acts allocates n elements.
func (Reference) Acts(n int) model.Array { return make(Array, n) }

// Free does nothing.
func (Reference) Free(...model.Array) {}

// Write fills dst.
func (Reference) Write(dst model.Array, src []float32) {
	d := values(dst)
	exactly(len(src), "dst", d)
	for i, v := range src {
		d[i] = float64(v)
	}
}

// Read rounds src to float32.
func (Reference) Read(dst []float32, src model.Array) {
	s := values(src)
	exactly(len(dst), "src", s)
	for i, v := range s {
		dst[i] = float32(v)
	}
}

// Copy copies.
func (Reference) Copy(dst, src model.Array) {
	d, s := values(dst), values(src)
	exactly(len(s), "dst", d)
	copy(d, s)
}

// Zero clears.
func (Reference) Zero(a model.Array) { clear(values(a)) }

// Embed implements [model.Ops].
func (Reference) Embed(h model.Array, tokens []int, w model.Weight, scale float32) {
	d, m := values(h), w.(*matrix)
	exactly(len(tokens)*m.k, "h", d)
	for i, id := range tokens {
		for k := range m.k {
			d[i*m.k+k] = m.at(id, k) * float64(scale)
		}
	}
}

// RMSNorm implements [model.Ops].
func (Reference) RMSNorm(y, x, w model.Array, rows int, eps float64) {
	yv, xv, wv := values(y), values(x), values(w)
	n := len(wv)
	exactly(rows*n, "y", yv)
	exactly(rows*n, "x", xv)
	for r := range rows {
		inv := inverseRMS(xv[r*n:(r+1)*n], eps)
		for i := range n {
			yv[r*n+i] = xv[r*n+i] * inv * wv[i]
		}
	}
}

func inverseRMS(x []float64, eps float64) float64 {
	var sum float64
	for _, v := range x {
		sum += v * v
	}
	return 1 / math.Sqrt(sum/float64(len(x))+eps)
}

// Linear implements [model.Ops].
func (Reference) Linear(x model.Array, rows int, to ...model.Product) {
	xv := values(x)
	for _, p := range to {
		m, y, bias := p.W.(*matrix), values(p.Y), values(p.Bias)
		exactly(rows*m.k, "x", xv)
		exactly(rows*m.n, "y", y)
		if bias != nil {
			exactly(m.n, "bias", bias)
		}
		w := m.dense()
		for r := range rows {
			for n := range m.n {
				var sum float64
				for k := range m.k {
					sum += xv[r*m.k+k] * w[n*m.k+k]
				}
				if bias != nil {
					sum += bias[n]
				}
				put(&y[r*m.n+n], sum, p.Add)
			}
		}
	}
}

// Rope implements [model.Ops].
func (Reference) Rope(x model.Array, s model.RopeShape, cos, sin model.Array, back bool) {
	xv, c, sines := values(x), values(cos), values(sin)
	for r := range s.Rows {
		for h := range s.Heads {
			head := xv[(r*s.Heads+h)*s.Dim:]
			for i := range s.Half {
				cos, sin := c[r*s.Half+i], sines[r*s.Half+i]
				if back {
					sin = -sin
				}
				lo, hi := i, i+s.Half
				if s.Adjacent {
					lo, hi = 2*i, 2*i+1
				}
				a, b := head[lo], head[hi]
				head[lo], head[hi] = a*cos-b*sin, b*cos+a*sin
			}
		}
	}
}

// CopyHeads implements [model.Ops].
func (Reference) CopyHeads(dst, src model.Array, s model.HeadsShape) {
	to, from := values(dst), values(src)
	for r := range s.Rows {
		for h := range s.Heads {
			copy(to[r*s.ToRow+h*s.ToHead:][:s.Width], from[r*s.FromRow+h*s.FromHead:][:s.Width])
		}
	}
}

// OneOrder implements [model.LatentOps].
func (Reference) OneOrder() bool { return true }

// ByHeads implements [model.LatentOps].
func (Reference) ByHeads(y, x, w model.Array, s model.ByHeadsShape) {
	out, in, ws := values(y), values(x), values(w)
	for r := range s.Rows {
		for h := range s.Heads {
			for n := range s.N {
				sum := 0.0
				for k := range s.K {
					sum += in[r*s.FromRow+h*s.FromHead+k] * ws[(h*s.N+n)*s.K+k]
				}
				out[r*s.ToRow+h*s.ToHead+n] = sum
			}
		}
	}
}

// Convolve implements [model.RecurrentOps].
func (Reference) Convolve(y, x, w, bias, kept model.Array, at model.Step, s model.ConvShape) {
	convolve(y, x, w, bias, kept, at, s, true)
}

// convolve is it with SiLU or without. The inputs of a text are kept with the last first.
func convolve(y, x, w, bias, kept model.Array, at model.Step, s model.ConvShape, silu bool) {
	out, in, weights := values(y), values(x), values(w)
	row := 0
	for _, run := range at.Runs {
		past := make(Array, (s.Width-1)*s.Channels)
		if kept != nil {
			past = values(kept)[run.Slot*len(past):][:len(past)]
		}
		if run.From == 0 {
			clear(past)
		}
		for range run.Rows {
			token := in[row*s.Channels:][:s.Channels]
			for c := range s.Channels {
				sum := weights[c*s.Width+s.Width-1] * token[c]
				if bias != nil {
					sum += values(bias)[c]
				}
				for j := range s.Width - 1 {
					sum += weights[c*s.Width+s.Width-2-j] * past[j*s.Channels+c]
				}
				if silu {
					sum *= sigmoid(sum)
				}
				out[row*s.Channels+c] = sum
			}
			copy(past[min(s.Channels, len(past)):], past)
			copy(past, token)
			row++
		}
	}
}

// DeltaRule implements [model.RecurrentOps], as arch.DeltaNet says it.
func (Reference) DeltaRule(o, x, a, b, aLog, bias, state model.Array, at model.Step, s model.DeltaShape) {
	out, in := values(o), values(x)
	size, keys := s.KDim*s.VDim, s.KHeads*s.KDim
	channels := 2*keys + s.VHeads*s.VDim
	row := 0
	unit := func(x Array) Array {
		var sum float64
		for _, v := range x {
			sum += v * v
		}
		u := make(Array, len(x))
		for i, v := range x {
			u[i] = v / math.Sqrt(sum+1e-6)
		}
		return u
	}
	for _, run := range at.Runs {
		all := make(Array, s.VHeads*size)
		if state != nil {
			all = values(state)[run.Slot*len(all):][:len(all)]
		}
		if run.From == 0 {
			clear(all)
		}
		for range run.Rows {
			token := in[row*channels:][:channels]
			for h := range s.VHeads {
				m, of := all[h*size:][:size], h/(s.VHeads/s.KHeads)*s.KDim
				q, k, v := unit(token[of:][:s.KDim]), unit(token[keys+of:][:s.KDim]), token[2*keys+h*s.VDim:][:s.VDim]
				i := row*s.VHeads + h
				decay := math.Exp(-math.Exp(values(aLog)[h]) * math.Log1p(math.Exp(values(a)[i]+values(bias)[h])))
				for j := range s.VDim {
					var found float64
					for i := range s.KDim {
						m[i*s.VDim+j] *= decay
						found += m[i*s.VDim+j] * k[i]
					}
					d := sigmoid(values(b)[i]) * (v[j] - found)
					var sum float64
					for i := range s.KDim {
						m[i*s.VDim+j] += k[i] * d
						sum += m[i*s.VDim+j] * q[i]
					}
					out[i*s.VDim+j] = sum / math.Sqrt(float64(s.KDim))
				}
			}
			row++
		}
	}
}

// ShortConv implements [model.ShortConvOps], as arch.ShortConv says it.
func (r Reference) ShortConv(y, made, w, bias, kept model.Array, at model.Step, s model.ConvShape) {
	out, in := values(y), values(made)
	x := make(Array, len(out))
	for i := range x {
		token := in[i/s.Channels*3*s.Channels+i%s.Channels:]
		x[i] = token[0] * token[2*s.Channels]
	}
	convolve(y, x, w, bias, kept, at, s, false)
	for i := range out {
		out[i] *= in[i/s.Channels*3*s.Channels+s.Channels+i%s.Channels]
	}
}

// StateSpace implements [model.StateSpaceOps], as arch.Mamba2 says it.
func (r Reference) StateSpace(y, made, _ model.Array, w model.StateSpaceWeights, inputs, state model.Array, at model.Step, s model.StateSpaceShape) {
	out, in := values(y), values(made)
	inner, channels := s.Heads*s.Dim, s.Channels()
	passed := make(Array, len(in)/s.Made()*channels)
	r.CopyHeads(passed, made.Slice(inner, made.Len()), model.HeadsShape{Rows: len(in) / s.Made(), Heads: 1, Width: channels, ToRow: channels, FromRow: s.Made()})
	r.Convolve(passed, append(Array(nil), passed...), w.Conv, w.ConvBias, inputs, at, model.ConvShape{Channels: channels, Width: s.Width})
	row := 0
	for _, run := range at.Runs {
		all := make(Array, inner*s.State)
		if state != nil {
			all = values(state)[run.Slot*len(all):][:len(all)]
		}
		if run.From == 0 {
			clear(all)
		}
		for range run.Rows {
			token := in[row*s.Made():][:s.Made()]
			x := passed[row*channels:][:channels]
			for h := range s.Heads {
				of := inner + h/(s.Heads/s.Groups)*s.State
				b, c := x[of:][:s.State], x[of+s.Groups*s.State:][:s.State]
				step := math.Log1p(math.Exp(token[inner+channels+h] + values(w.DtBias)[h]))
				for i := h * s.Dim; i < (h+1)*s.Dim; i++ {
					sum := values(w.D)[h] * x[i]
					for j := range s.State {
						m := &all[i*s.State+j]
						*m = *m*math.Exp(-step*math.Exp(values(w.ALog)[h])) + step*x[i]*b[j]
						sum += *m * c[j]
					}
					out[row*inner+i] = sum * token[i] * sigmoid(token[i])
				}
			}
			row++
		}
	}
}

// NormGroups implements [model.StateSpaceOps].
func (Reference) NormGroups(y, x, w model.Array, rows, groups int, eps float64) {
	out, in, factors := values(y), values(x), values(w)
	width := len(factors) / groups
	for g := range rows * groups {
		from := in[g*width : (g+1)*width]
		by := inverseRMS(from, eps)
		for i, v := range from {
			out[g*width+i] = v * by * factors[g%groups*width+i]
		}
	}
}

// sees returns the first token that token i attends to.
func sees(s model.AttentionShape, i int) int {
	if s.Window > 0 {
		return max(0, i-s.Window+1)
	}
	return 0
}

// attention is one head's view of an array [T, heads, Dim].
type attention struct {
	v                []float64
	heads, head, dim int
}

func (a attention) token(t int) []float64 { return a.v[(t*a.heads+a.head)*a.dim:][:a.dim] }

func product(a, b []float64) float64 {
	var sum float64
	for i, v := range a {
		sum += v * b[i]
	}
	return sum
}

// Attention implements [model.Ops].
func (Reference) Attention(o, lse, q, k, v model.Array, s model.AttentionShape) {
	ov, lv := values(o), values(lse)
	exactly(s.T*s.Heads*s.Dim, "o", ov)
	if lv != nil {
		exactly(s.Heads*s.T, "lse", lv)
	}
	out := make([]float64, len(ov))
	for h := range s.Heads {
		q, k, v := heads(s, h, values(q), values(k), values(v))
		for i := range s.T {
			sum := mixed(attention{out, s.Heads, h, s.Dim}.token(i), s, h, i, q.token(i), k.token, v.token)
			if lv != nil {
				lv[h*s.T+i] = sum
			}
		}
	}
	copy(ov, out)
}

// mixed adds the mixture of values that query q of head h at position i makes to o. It returns ln Σ exp
// of the scores.
func mixed(o []float64, s model.AttentionShape, h, i int, q []float64, key, value func(j int) []float64) float64 {
	p := make([]float64, i+1)
	top := math.Inf(-1)
	for j := sees(s, i); j <= i; j++ {
		p[j] = capped(s, float64(s.Scale)*product(q, key(j)))
		top = max(top, p[j])
	}
	var sum float64
	if s.Sinks != nil {
		sink := values(s.Sinks)[h]
		top = max(top, sink)
		sum = math.Exp(sink - top)
	}
	for j := sees(s, i); j <= i; j++ {
		p[j] = math.Exp(p[j] - top)
		sum += p[j]
	}
	for j := sees(s, i); j <= i; j++ {
		for d, x := range value(j) {
			o[d] += p[j] / sum * x
		}
	}
	return top + math.Log(sum)
}

// heads returns query head h with the key and value head that it shares.
func heads(s model.AttentionShape, h int, q, k, v []float64) (hq, hk, hv attention) {
	exactly(s.T*s.Heads*s.Dim, "q", q)
	exactly(s.T*s.KVHeads*s.Dim, "k", k)
	exactly(s.T*s.KVHeads*s.Dim, "v", v)
	kv := h / (s.Heads / s.KVHeads)
	return attention{q, s.Heads, h, s.Dim}, attention{k, s.KVHeads, kv, s.Dim}, attention{v, s.KVHeads, kv, s.Dim}
}

// capped is a score under the cap of an attention.
func capped(s model.AttentionShape, score float64) float64 {
	if s.Cap == 0 {
		return score
	}
	return float64(s.Cap) * math.Tanh(score/float64(s.Cap))
}

// places returns slot and position of each row of a step, by its array, which its runs agree with.
func places(at model.Step) [][2]int {
	var all [][2]int
	for _, r := range at.Runs {
		for i := range r.Rows {
			all = append(all, [2]int{r.Slot, r.From + i})
		}
	}
	rows := values(at.Rows)
	exactly(2*len(all), "rows of a step", rows)
	for i, p := range all {
		if rows[2*i] != float64(p[0]) || rows[2*i+1] != float64(p[1]) {
			panic(fmt.Sprintf("opstest: row %d of a step is at %v and %v", i, p, rows[2*i:2*i+2]))
		}
	}
	return all
}

// kept returns what a cache has of a head at a position.
func kept(cache []float64, c model.CacheShape, slot, head, position int) []float64 {
	return cache[(slot*c.KVHeads+head)*c.Head()+position*c.Dim:][:c.Dim]
}

// Keep implements [model.Ops].
func (Reference) Keep(keys, vals, k, v model.Array, at model.Step, c model.CacheShape) {
	rows := places(at)
	kv, vv, ck, cv := values(k), values(v), values(keys), values(vals)
	exactly(len(rows)*c.KVHeads*c.Dim, "k", kv)
	exactly(len(rows)*c.KVHeads*c.Dim, "v", vv)
	exactly(c.Elements(), "keys", ck)
	exactly(c.Elements(), "values", cv)
	for i, p := range rows {
		for h := range c.KVHeads {
			copy(kept(ck, c, p[0], h, p[1]), attention{kv, c.KVHeads, h, c.Dim}.token(i))
			copy(kept(cv, c, p[0], h, p[1]), attention{vv, c.KVHeads, h, c.Dim}.token(i))
		}
	}
}

// Recall implements [model.Ops].
func (Reference) Recall(o, q, keys, vals model.Array, at model.Step, c model.CacheShape, s model.AttentionShape) {
	ov, rows := values(o), places(at)
	exactly(len(rows)*s.Heads*s.Dim, "o", ov)
	out := make([]float64, len(ov))
	for h := range s.Heads {
		head := h / (s.Heads / s.KVHeads)
		q, to := attention{values(q), s.Heads, h, s.Dim}, attention{out, s.Heads, h, s.Dim}
		for i, p := range rows {
			key := func(j int) []float64 { return kept(values(keys), c, p[0], head, j) }
			value := func(j int) []float64 { return kept(values(vals), c, p[0], head, j) }
			mixed(to.token(i), s, h, p[1], q.token(i), key, value)
		}
	}
	copy(ov, out)
}

// GLU implements [model.Ops].
func (Reference) GLU(y, g, u model.Array, act arch.Gating) {
	yv, gv, uv := values(y), values(g), values(u)
	exactly(len(yv), "g", gv)
	exactly(len(yv), "u", uv)
	for i := range yv {
		yv[i] = glu(act, gv[i], uv[i])
	}
}

// glu is an activation of g times u.
func glu(act arch.Gating, g, u float64) float64 {
	switch act.Act {
	case arch.SiLU:
		return g * sigmoid(g) * u
	case arch.GELU:
		return g * 0.5 * (1 + math.Erf(g/math.Sqrt2)) * u
	case arch.GELUTanh:
		return 0.5 * g * (1 + math.Tanh(math.Sqrt(2/math.Pi)*(g+0.044715*math.Pow(g, 3)))) * u
	case arch.ReLU:
		return max(g, 0) * u
	case arch.Sigmoid:
		return sigmoid(g) * u
	case arch.SwiGLUOAI:
		g, u = min(g, act.Limit), min(max(u, -act.Limit), act.Limit)
		return g * sigmoid(act.Alpha*g) * (u + 1)
	}
	panic("opstest: activation " + act.Act)
}

// SoftCap implements [model.Ops].
func (Reference) SoftCap(x model.Array, c float64) {
	for i, v := range values(x) {
		values(x)[i] = c * math.Tanh(v/c)
	}
}

// Scale implements [model.Ops].
func (Reference) Scale(x model.Array, by float32) {
	for i := range values(x) {
		values(x)[i] *= float64(by)
	}
}

// AddTo implements [model.Ops].
func (Reference) AddTo(h, x model.Array) {
	d, s := values(h), values(x)
	exactly(len(d), "x", s)
	for i, v := range s {
		d[i] += v
	}
}

// Gather implements [model.Ops].
func (Reference) Gather(dst, src model.Array, rows []int, weights []float32) {
	d, s := values(dst), values(src)
	for i, row := range rows {
		n := len(d) / len(rows)
		for j := range n {
			d[i*n+j] = s[row*n+j] * factor(weights, i)
		}
	}
}

// Scatter implements [model.Ops].
func (Reference) Scatter(h, src model.Array, rows []int, weights []float32) {
	d, s := values(h), values(src)
	for i, row := range rows {
		n := len(s) / len(rows)
		for j := range n {
			d[row*n+j] += s[i*n+j] * factor(weights, i)
		}
	}
}

func factor(w []float32, i int) float64 {
	if w == nil {
		return 1
	}
	return float64(w[i])
}

func sigmoid(x float64) float64 { return 1 / (1 + math.Exp(-x)) }

// logSoftmax returns ln softmax(x), not finite anywhere if an x is not.
func logSoftmax(x []float64) []float64 {
	top := math.Inf(-1)
	for _, v := range x {
		if math.IsNaN(v) || math.IsInf(v, 0) {
			top = math.NaN()
			break
		}
		top = max(top, v)
	}
	var sum float64
	for _, v := range x {
		sum += math.Exp(v - top)
	}
	y := make([]float64, len(x))
	for i, v := range x {
		y[i] = v - top - math.Log(sum)
	}
	return y
}

// Gram implements [model.StatsOps].
func (Reference) Gram(h, x model.Array, rows int) {
	if rows > 0 {
		outer(values(h), values(x), values(x), rows)
	}
}

// Cross implements [model.StatsOps].
func (Reference) Cross(d, x, xq model.Array, rows int) {
	if rows == 0 {
		return
	}
	q := values(xq)
	diff := slices.Clone(values(x))
	for i, v := range q {
		diff[i] -= v
	}
	outer(values(d), diff, q, rows)
}

// outer adds aᵀ·b of two matrices of equal shape to sum.
func outer(sum, a, b []float64, rows int) {
	k := len(a) / rows
	exactly(rows*k, "a", a)
	exactly(rows*k, "b", b)
	exactly(k*k, "a sum of products", sum)
	for r := range rows {
		for i, v := range a[r*k : (r+1)*k] {
			for j, w := range b[r*k : (r+1)*k] {
				sum[i*k+j] += v * w
			}
		}
	}
}

// Mirror implements [model.StatsOps].
func (Reference) Mirror(h model.Array, k int) {
	v := values(h)
	exactly(k*k, "h", v)
	for i := range k {
		for j := range i {
			v[i*k+j] = v[j*k+i]
		}
	}
}

// CrossEntropy implements [model.Ops].
func (Reference) CrossEntropy(loss, dlogits, logits model.Array, targets []int, vocab int, scale float32) {
	lv, x := values(loss), values(logits)
	exactly(len(targets), "loss", lv)
	exactly(len(targets)*vocab, "logits", x)
	for r, target := range targets {
		log := logSoftmax(x[r*vocab : (r+1)*vocab])
		lv[r] = -log[target]
		if dlogits == nil {
			continue
		}
		d := values(dlogits)[r*vocab : (r+1)*vocab]
		for i, l := range log {
			d[i] = float64(scale) * math.Exp(l)
		}
		d[target] -= float64(scale)
	}
}

// Divergence implements [model.Ops]; teacher holds logits too.
func (Reference) Divergence(loss, dlogits, logits, teacher model.Array, rows, vocab int, scale float32) {
	lv, x, t := values(loss), values(logits), values(teacher)
	exactly(rows, "loss", lv)
	exactly(rows*vocab, "logits", x)
	exactly(rows*vocab, "teacher", t)
	for r := range rows {
		own, other := logSoftmax(x[r*vocab:(r+1)*vocab]), logSoftmax(t[r*vocab:(r+1)*vocab])
		lv[r] = 0
		for i := range own {
			lv[r] += math.Exp(other[i]) * (other[i] - own[i])
		}
		if dlogits == nil {
			continue
		}
		for i := range own {
			values(dlogits)[r*vocab+i] = float64(scale) * (math.Exp(own[i]) - math.Exp(other[i]))
		}
	}
}

// ArgMax implements [model.Ops].
func (Reference) ArgMax(dst, x model.Array, rows, cols int) {
	d, v := values(dst), values(x)
	exactly(rows, "dst", d)
	exactly(rows*cols, "x", v)
	for r := range rows {
		best := 0
		for c := range cols {
			if v[r*cols+c] > v[r*cols+best] {
				best = c
			}
		}
		d[r] = float64(best)
	}
}

// NotFinite implements [model.Ops].
func (Reference) NotFinite(x model.Array, rows, cols int) int {
	v := values(x)
	exactly(rows*cols, "x", v)
	for i, e := range v {
		if math.IsNaN(e) || math.IsInf(e, 0) {
			return i / cols
		}
	}
	return -1
}

// MLPRows returns 0.
func (Reference) MLPRows() int { return 0 }

// matrix is a weight of the reference: dense, or with codes and scales.
type matrix struct {
	n, k   int
	values []float64 // [n, k] of a dense weight

	// Of a trainable one:
	group     int
	codes     []uint8
	table     []float64 // nil: the original's elements
	scales    []float64
	scaleType weight.ScaleType
	original  *matrix
}

// Shape returns N and K.
func (m *matrix) Shape() (n, k int) { return m.n, m.k }

func (m *matrix) trainable() bool { return m.scales != nil }

func (m *matrix) scale(n, k int) float64 { return m.scales[n*weight.GroupsIn(m.k, m.group)+k/m.group] }

// entry is the table value of a weight.
func (m *matrix) entry(n, k int) float64 {
	if m.table == nil {
		return m.original.at(n, k)
	}
	return m.table[m.codes[n*m.k+k]]
}

func (m *matrix) at(n, k int) float64 {
	if m.trainable() {
		return m.entry(n, k) * m.scale(n, k)
	}
	return m.values[n*m.k+k]
}

func (m *matrix) dense() []float64 {
	if !m.trainable() {
		return m.values
	}
	w := make([]float64, m.n*m.k)
	for i := range w {
		w[i] = m.at(i/m.k, i%m.k)
	}
	return w
}

// Dense implements [model.Ops].
func (Reference) Dense(n, k int, t hf.DType, data []byte) (model.Weight, error) {
	w := make([]float32, n*k)
	switch t {
	case hf.F32:
		num.DecodeF32(w, data)
	case hf.F16:
		num.DecodeF16(w, data)
	case hf.BF16:
		num.DecodeBF16(w, data)
	default:
		return nil, fmt.Errorf("dense weights of type %q: want F32, F16 or BF16", t)
	}
	return &matrix{n: n, k: k, values: widen(w)}, nil
}

// Packed implements [model.Ops].
func (Reference) Packed(m weight.Matrix) (model.Weight, error) {
	if err := m.Validate(); err != nil {
		return nil, err
	}
	n, k := m.Shape()
	return &matrix{n: n, k: k, values: widen(weight.Dequantize(m))}, nil
}

// Multiplies implements [model.Ops].
func (Reference) Multiplies(string) bool { return false }

// Layout implements [model.Ops].
func (r Reference) Layout(l lut.Layout) (model.Weight, error) {
	m, err := l.Matrix()
	if err != nil {
		return nil, err
	}
	return r.Packed(m)
}

func widen(v []float32) []float64 {
	w := make([]float64, len(v))
	for i, x := range v {
		w[i] = float64(x)
	}
	return w
}

// FreeWeight does nothing.
func (Reference) FreeWeight(model.Weight) {}
