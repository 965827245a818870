package cuda

import (
	"math"
	"slices"
	"testing"

	"github.com/lutq/lutq/calib/decodebench"
	"github.com/lutq/lutq/calib/model"
	"github.com/lutq/lutq/calib/model/opstest"
	"github.com/lutq/lutq/formats/arch"
	"github.com/lutq/lutq/formats/hf"
	"github.com/lutq/lutq/formats/num"
	"github.com/lutq/lutq/gemm/cuda/driver"
)

// mixtureBounds says what models with experts may differ by that round in a type. One expert that is chosen in place of another
// that is as good changes logits of a token by a sixth: TestMixtureTies.
type mixtureBounds struct {
	// tie is what a router's logit is away from the float32 model's at most: where the best expert that is not chosen is as near
	// to the last that is, either may be chosen.
	tie float32
	// near is the distance of the logits of other tokens, until one of a text has another expert: attention shows it to all that follow,
	// and what they are further away by is more than their own ties.
	near float64
	// far and divergence are those of all tokens together.
	far, divergence float64
}

func mixtureBoundsOf(t driver.DType) mixtureBounds {
	if t == driver.BF16 {
		return mixtureBounds{tie: .02, near: .03, far: .3, divergence: 1e-3}
	}
	return mixtureBounds{tie: .0025, near: .015, far: .1, divergence: 1e-4}
}

// check compares the logits of the tokens of a text, and returns the number of tokens whose experts are settled, theirs and those
// of all that they see.
func (b mixtureBounds) check(t *testing.T, got, want []float32, settled []bool) (count int) {
	t.Helper()
	vocab := len(want) / len(settled)
	for at, sure := range settled {
		p, q := want[at*vocab:][:vocab], got[at*vocab:][:vocab]
		d := distance(q, p)
		if !sure {
			if d > b.near {
				break // another expert
			}
			continue
		}
		count++
		rms := math.Sqrt(dot(p, p) / float64(vocab))
		best := slices.Index(p, slices.Max(p))
		if other := q[best] != slices.Max(q); !(d <= b.near) || other && float64(margin(p)) > 8*b.near*rms {
			t.Errorf("token %d: logits differ by %.3g, another is the most likely: %v, which was ahead by %.3f", at, d, other, margin(p))
		}
	}
	return count
}

func dot(a, b []float32) (sum float64) {
	for i := range a {
		sum += float64(a[i]) * float64(b[i])
	}
	return sum
}

// routed runs a model on the CPU and keeps the logits of its routers, which have another number of rows than all other weights.
type routed struct {
	model.Ops
	vocab, experts, top int
	logits              [][]float32 // [tokens, experts] of each layer
	rounds              bool        // to bfloat16 what activations are, but for the sums of experts
}

func (r *routed) Linear(x model.Array, rows int, to ...model.Product) {
	r.round(x)
	r.Ops.Linear(x, rows, to...)
	for _, p := range to {
		if n, _ := p.W.Shape(); n == r.experts {
			v := make([]float32, rows*n)
			r.Read(v, p.Y.Slice(0, rows*n))
			r.logits = append(r.logits, v)
		} else if !p.Add && n != r.vocab {
			r.round(p.Y.Slice(0, rows*n))
		}
	}
}

func (r *routed) Attention(o, lse, q, k, v model.Array, s model.AttentionShape) {
	r.round(q)
	r.round(k)
	r.round(v)
	r.Ops.Attention(o, lse, q, k, v, s)
	r.round(o)
}

func (r *routed) round(a model.Array) {
	if !r.rounds {
		return
	}
	v := make([]float32, a.Len())
	r.Read(v, a)
	for i := range v {
		v[i] = num.BF16ToF32(num.F32ToBF16(v[i]))
	}
	r.Write(a, v)
}

// chosen returns the experts of a token in a layer, in their order, and how far the last is ahead of the best that is none.
func (r *routed) chosen(layer, at int) (experts []int, gap float32) {
	logits := r.logits[layer][at*r.experts:][:r.experts]
	order := make([]int, r.experts)
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int {
		if logits[a] > logits[b] {
			return -1
		}
		return 1
	})
	return slices.Sorted(slices.Values(order[:r.top])), logits[order[r.top-1]] - logits[order[r.top]]
}

// settled reports of each token whether all its routers choose by more than a margin.
func (r *routed) settled(tokens int, margin float32) []bool {
	all := make([]bool, tokens)
	for at := range all {
		all[at] = true
		for layer := range r.logits {
			if _, gap := r.chosen(layer, at); gap < margin {
				all[at] = false
			}
		}
	}
	return all
}

// routedLogits returns the logits of texts on the CPU in float32, or rounded on the way, and what routers had.
func routedLogits(t *testing.T, c mixtureCase, d *arch.Decoder, rounds bool, texts ...[]int) (logits [][]float32, routers []*routed) {
	t.Helper()
	of := routed{Ops: newCPU(t), rounds: rounds, vocab: d.Vocab}
	for i := range d.Blocks {
		if m := d.Blocks[i].MoE; m != nil {
			of.experts, of.top = m.Router.N, m.Top
		}
	}
	src, err := decodebench.NewRandom(c.name, d, decodebench.RandomOptions{Bits: c.bits, Group: c.group, DType: hf.F16, Upload: true})
	if err != nil {
		t.Fatal(err)
	}
	ops := new(routed)
	*ops = of
	m, err := model.New(src, ops)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	for _, text := range texts {
		ops.logits = nil
		logits = append(logits, opstest.Logits(t, m, text))
		r := *ops
		routers = append(routers, &r)
	}
	return logits, routers
}

// mixtureText returns a text of a number.
func mixtureText(slot, length, vocab int) []int {
	text := make([]int, length)
	for at := range text {
		text[at] = (at*at*31 + at*(slot*slot+7) + 13*slot) % vocab
	}
	return text
}

// TestMixtureTies shows on the CPU, with activations rounded to bfloat16, that tokens whose experts are settled keep them and stay near,
// and that one of others does neither.
func TestMixtureTies(t *testing.T) {
	b, farthest := mixtureBoundsOf(driver.BF16), 0.0
	for _, c := range mixtureCases() {
		d, err := arch.Describe([]byte(c.config), nil)
		if err != nil {
			t.Fatal(err)
		}
		const length = 40
		text := mixtureText(0, length, d.Vocab)
		want, routers := routedLogits(t, c, d, false, text)
		got, rounded := routedLogits(t, c, d, true, text)
		settled := routers[0].settled(length, b.tie)
		if n := b.check(t, got[0], want[0], settled); n < length/5 {
			t.Errorf("%s: the experts of %d tokens are settled", c.name, n)
		}
		for at, sure := range settled {
			for layer := range routers[0].logits {
				is, _ := routers[0].chosen(layer, at)
				if other, _ := rounded[0].chosen(layer, at); sure && !slices.Equal(is, other) {
					t.Errorf("%s: layer %d, token %d: experts %v for %v", c.name, layer, at, other, is)
				}
			}
			farthest = max(farthest, distance(got[0][at*d.Vocab:][:d.Vocab], want[0][at*d.Vocab:][:d.Vocab]))
		}
	}
	if farthest < 4*b.near {
		t.Errorf("tokens differ by up to %.3g: no other expert tells", farthest)
	}
}
