package model

import (
	"cmp"
	"math"
	"runtime"
	"slices"

	"golang.org/x/sync/errgroup"

	"github.com/lutq/lutq/formats/arch"
)

// moe is a mixture of experts.
type moe struct {
	desc       *arch.MoE
	router     linear
	experts    []mlp
	shared     *mlp // nil: none
	sharedGate linear
	into, back linear    // before and behind the experts, where desc has such
	apart      *apart    // nil: parts read one norm
	correction []float32 // [experts], of scores where experts are chosen; nil: none
	mixture    Mixture   // of steps that are recorded, or nil
}

// routing says which experts the tokens of a window go to. It is made on the
// host: what it takes is small beside the experts.
type routing struct {
	probs  []float64 // [t, experts], the softmax over all, or the sigmoid of each
	chosen []int     // [t, top], the best first
	// Of every expert, the tokens that it is chosen by, in order, and its weight for each.
	tokens  [][]int
	weights [][]float32
	next    [][]int   // of every expert, the tokens that it would be chosen by as well if twice as many were
	shared  []float32 // [t], the weight of the shared expert; nil: none, or 1
}

// apart are the norms of parts of a mixture, see [arch.Apart].
type apart struct {
	router, shared, sharedOut, expertsOut Array
	scales                                []float32 // [experts]
}

// apart reads them.
func (l *loader) apart(d *arch.MoE, hidden int) *apart {
	x := d.Apart
	router := l.floats(x.Router.Tensor, hidden)
	scales := l.floats(x.ExpertScale, len(d.Experts))
	if l.err != nil {
		return nil
	}
	for i := range router {
		router[i] *= float32(x.Scale)
	}
	return &apart{l.upload(router), l.norm(&x.Shared, hidden), l.norm(&x.SharedOut, hidden), l.norm(&x.ExpertsOut, hidden), scales}
}

// chosen says where the tokens go whose residual stream is a.h and whose norm is a.n.
func (m *Model) chosen(a activations, d *moe) *routing {
	if d.apart == nil {
		return m.route(a.n, a.t, d)
	}
	x := m.ops.Acts(a.t * m.desc.Hidden)
	defer m.ops.Free(x)
	m.ops.RMSNorm(x, a.h, d.apart.router, a.t, d.desc.Apart.Router.Eps)
	return m.route(x, a.t, d)
}

// sharedIn returns what the expert of all tokens reads: a.n, or written to room.
func (m *Model) sharedIn(a activations, d *moe, room Array) Array {
	if d.apart == nil {
		return a.n
	}
	m.ops.RMSNorm(room, a.h, d.apart.shared, a.t, d.desc.Apart.Shared.Eps)
	return room
}

// route reads the router's logits of the states n of t tokens.
func (m *Model) route(n Array, t int, d *moe) *routing {
	experts, top := len(d.experts), d.desc.Top
	logits := m.hostLinear(n, t, &d.router)
	r := &routing{
		probs: make([]float64, t*experts), chosen: make([]int, 0, t*top),
		tokens: make([][]int, experts), weights: make([][]float32, experts), next: make([][]int, experts),
	}
	most := min(2*top, experts)
	best, weights := make([]int, t*most), make([]float32, t*top)
	inParts(t, func(from, to int) {
		scores := make([]float64, experts)
		for i := from; i < to; i++ {
			probs, best := r.probs[i*experts:(i+1)*experts], best[i*most:(i+1)*most]
			d.scores(scores, probs, logits[i*experts:(i+1)*experts])
			largest(best, scores)
			total := d.total(probs, best[:top])
			for j, e := range best[:top] {
				weight := float32(d.desc.Routing.Factor() * probs[e] / total)
				if d.apart != nil {
					weight *= d.apart.scales[e]
				}
				weights[i*top+j] = weight
			}
			for j, e := range best[top:] {
				if math.IsInf(scores[e], -1) {
					best[top+j] = -1 // which cannot be chosen
				}
			}
		}
	})
	for i := range t {
		best := best[i*most : (i+1)*most]
		for j, e := range best[:top] {
			r.tokens[e], r.weights[e] = append(r.tokens[e], i), append(r.weights[e], weights[i*top+j])
		}
		r.chosen = append(r.chosen, best[:top]...)
		for _, e := range best[top:] {
			if e >= 0 {
				r.next[e] = append(r.next[e], i)
			}
		}
	}
	if d.desc.SharedGate != nil {
		for _, x := range m.hostLinear(n, t, &d.sharedGate) {
			r.shared = append(r.shared, float32(logistic(float64(x))))
		}
	}
	return r
}

// inParts calls f for parts of n tokens, on all processors where they are many.
func inParts(n int, f func(from, to int)) {
	const part = 256
	if n <= part {
		f(0, n)
		return
	}
	var g errgroup.Group
	g.SetLimit(runtime.GOMAXPROCS(0))
	for from := 0; from < n; from += part {
		g.Go(func() error {
			f(from, min(from+part, n))
			return nil
		})
	}
	_ = g.Wait() // none fails
}

// largest writes the indices of the largest of v to dst, the largest first and of equals the first.
func largest(dst []int, v []float64) {
	n := 0
	for i, x := range v {
		if n == len(dst) {
			if cmp.Compare(x, v[dst[n-1]]) <= 0 {
				continue
			}
			n--
		}
		at := n
		for ; at > 0 && cmp.Compare(x, v[dst[at-1]]) > 0; at-- {
			dst[at] = dst[at-1]
		}
		dst[at] = i
		n++
	}
}

// scores writes what experts are chosen by, and what they are weighed by, for the logits of a token.
func (d *moe) scores(scores, probs []float64, logits []float32) {
	r := &d.desc.Routing
	if r.Sigmoid {
		for e, x := range logits {
			probs[e] = logistic(float64(x))
		}
		copy(scores, probs)
	} else {
		softmax(probs, logits)
		for e, x := range logits { // which are in the same order, and exact
			scores[e] = float64(x)
		}
	}
	if d.correction != nil {
		for e, c := range d.correction {
			scores[e] = probs[e] + float64(c)
		}
	}
	if r.Groups > 0 {
		r := regions(scores, r.Groups, r.TopGroups)
		for e := range scores {
			if !r[e*len(r)/len(scores)] {
				scores[e] = math.Inf(-1)
			}
		}
	}
}

// regions says which groups of scores can be chosen from: those whose two best sum to the most.
func regions(scores []float64, groups, top int) []bool {
	size := len(scores) / groups
	sums, order := make([]float64, groups), all(groups)
	for g := range sums {
		best, next := math.Inf(-1), math.Inf(-1)
		for _, s := range scores[g*size : (g+1)*size] {
			best, next = max(best, s), max(next, min(best, s))
		}
		sums[g] = best
		if size > 1 {
			sums[g] += next
		}
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(sums[b], sums[a]) })
	in := make([]bool, groups)
	for _, g := range order[:top] {
		in[g] = true
	}
	return in
}

// total is what the scores of those that are chosen are divided by.
func (d *moe) total(probs []float64, chosen []int) float64 {
	if !d.desc.Normalize {
		return 1
	}
	var total float64
	for _, e := range chosen {
		total += probs[e]
	}
	return total
}

// logistic is 1/(1+e^−x).
func logistic(x float64) float64 { return 1 / (1 + math.Exp(-x)) }

// softmax writes the probabilities of logits.
func softmax(dst []float64, logits []float32) {
	top := float64(slices.Max(logits))
	var sum float64
	for i, x := range logits {
		dst[i] = math.Exp(float64(x) - top)
		sum += dst[i]
	}
	for i := range dst {
		dst[i] /= sum
	}
}

// hostLinear returns a small linear layer's result for rows states.
func (m *Model) hostLinear(n Array, rows int, l *linear) []float32 {
	y := m.ops.Floats(rows * width(l.w))
	defer m.ops.Free(y)
	m.ops.Linear(n, rows, l.to(y))
	v := make([]float32, y.Len())
	m.ops.Read(v, y)
	return v
}

// mixture adds a mixture of experts of a.n to an array [t, hidden] of floats.
func (m *Model) mixture(to Array, a activations, d *moe) {
	r := a.routing
	if r == nil {
		r = m.chosen(a, d)
	}
	hidden := m.desc.Hidden
	x, y := m.ops.Acts(a.t*hidden), m.ops.Floats(a.t*hidden)
	defer m.ops.Free(x, y)
	h := to
	if d.apart != nil {
		h = m.ops.Floats(a.t * hidden)
		defer m.ops.Free(h)
	}
	if d.desc.Into != nil {
		sum := m.latentSum(a, d, r)
		m.ops.Linear(sum, a.t, d.back.into(h, true))
		m.ops.Free(sum)
	} else {
		m.chosenExperts(h, a.n, a, d, r)
	}
	if d.apart != nil {
		add := func(sum, norm Array, of *arch.Norm) {
			m.ops.RMSNorm(x, sum, norm, a.t, of.Eps)
			m.ops.AddTo(to, x)
		}
		add(h, d.apart.expertsOut, &d.desc.Apart.ExpertsOut)
		m.mlp(y, m.sharedIn(a, d, x), a, d.shared, a.t, false)
		add(y, d.apart.sharedOut, &d.desc.Apart.SharedOut)
		return
	}
	if d.shared != nil {
		m.mlp(y, a.n, a, d.shared, a.t, false)
		m.ops.Scatter(h, y, all(a.t), r.shared)
	}
}

// chosenExperts adds what the experts that tokens go to make of x, acts [t, width], to h, floats [t, width].
func (m *Model) chosenExperts(h, x Array, a activations, d *moe, r *routing) {
	width := x.Len() / a.t
	ins, outs := m.ops.Acts(x.Len()), m.ops.Floats(x.Len())
	defer m.ops.Free(ins, outs)
	for e := range d.experts {
		rows := len(r.tokens[e])
		if rows == 0 {
			continue
		}
		in, out := ins.Slice(0, rows*width), outs.Slice(0, rows*width)
		before, after := []float32(nil), r.weights[e]
		if d.desc.Routing.OnInput {
			before, after = after, nil
		}
		m.ops.Gather(in, x, r.tokens[e], before)
		m.mlp(out, in, a, &d.experts[e], rows, false)
		m.ops.Scatter(h, out, r.tokens[e], after)
	}
}

// latents returns what the experts behind a layer of their own read, acts [t, width], which the caller gives back.
func (m *Model) latents(a activations, d *moe) Array {
	x := m.ops.Acts(a.t * width(d.into.w))
	m.ops.Linear(a.n, a.t, d.into.to(x))
	return x
}

// latentSum returns the sum of what they make of it, likewise.
func (m *Model) latentSum(a activations, d *moe, r *routing) Array {
	x := m.latents(a, d)
	sum := m.ops.Floats(x.Len())
	defer m.ops.Free(sum)
	m.chosenExperts(sum, x, a, d, r)
	m.ops.Copy(x, sum)
	return x
}

// all returns the numbers below n.
func all(n int) []int {
	v := make([]int, n)
	for i := range v {
		v[i] = i
	}
	return v
}
