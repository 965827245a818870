package model

import (
	"cmp"
	"math"
	"slices"

	"github.com/lutq/lutq/formats/arch"
)

// moe is a mixture of experts.
type moe struct {
	desc       *arch.MoE
	router     linear
	experts    []mlp
	shared     *mlp // nil: none
	sharedGate linear
	mixture    Mixture // of steps that are recorded, or nil
}

// routing says which experts the tokens of a window go to. It is made on the
// host: what it takes is small beside the experts.
type routing struct {
	probs  []float64 // [t, experts], the softmax over all
	chosen []int     // [t, top], in the order of their logits
	// Of every expert, the tokens that it is chosen by, in order, and its weight for each.
	tokens  [][]int
	weights [][]float32
	shared  []float32 // [t], the weight of the shared expert; nil: none
}

// route reads the router's logits of the states n of t tokens.
func (m *Model) route(n Array, t int, d *moe) *routing {
	experts, top := len(d.experts), d.desc.Top
	logits := m.hostLinear(n, t, &d.router)
	r := &routing{
		probs: make([]float64, t*experts), chosen: make([]int, 0, t*top),
		tokens: make([][]int, experts), weights: make([][]float32, experts),
	}
	order := make([]int, experts)
	for i := range t {
		probs := r.probs[i*experts : (i+1)*experts]
		softmax(probs, logits[i*experts:(i+1)*experts])
		for e := range order {
			order[e] = e
		}
		// Of equals the first is chosen.
		slices.SortStableFunc(order, func(a, b int) int {
			return cmp.Compare(logits[i*experts+b], logits[i*experts+a])
		})
		chosen := order[:top]
		total := 1.0
		if d.desc.Normalize {
			total = 0
			for _, e := range chosen {
				total += probs[e]
			}
		}
		for _, e := range chosen {
			r.tokens[e] = append(r.tokens[e], i)
			r.weights[e] = append(r.weights[e], float32(probs[e]/total))
		}
		r.chosen = append(r.chosen, chosen...)
	}
	if d.shared != nil {
		for _, x := range m.hostLinear(n, t, &d.sharedGate) {
			r.shared = append(r.shared, float32(logistic(float64(x))))
		}
	}
	return r
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

// mixture adds a mixture of experts of a.n to the residual stream.
func (m *Model) mixture(a activations, d *moe) {
	r := m.route(a.n, a.t, d)
	hidden := m.desc.Hidden
	x, y := m.ops.Acts(a.t*hidden), m.ops.Floats(a.t*hidden)
	defer m.ops.Free(x, y)
	for e := range d.experts {
		rows := len(r.tokens[e])
		if rows == 0 {
			continue
		}
		in, out := x.Slice(0, rows*hidden), y.Slice(0, rows*hidden)
		m.ops.Gather(in, a.n, r.tokens[e], nil)
		m.mlp(out, in, a, &d.experts[e], rows, false)
		m.ops.Scatter(a.h, out, r.tokens[e], r.weights[e])
	}
	if d.shared != nil {
		m.mlp(y, a.n, a, d.shared, a.t, false)
		m.ops.Scatter(a.h, y, all(a.t), r.shared)
	}
}

// all returns the numbers below n.
func all(n int) []int {
	v := make([]int, n)
	for i := range v {
		v[i] = i
	}
	return v
}
