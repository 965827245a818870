package decode

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"

	"github.com/lutq/lutq/calib/model"
)

// Sampling says how tokens are chosen. The zero value takes the most likely one.
//
// What is not switched off is applied as transformers does, in this order: temperature, TopK, TopP, MinP.
type Sampling struct {
	Temperature float64 // that logits are divided by; 0 takes the most likely token
	TopK        int     // keeps the k most likely tokens, and those as likely as the last of them; 0 is off
	TopP        float64 // keeps the fewest most likely tokens whose probabilities sum to p or more; 0 and 1 are off
	MinP        float64 // keeps tokens at least p times as likely as the most likely one; 0 is off
	Seed        uint64
}

// Check returns an error for what makes no sense.
func (o Sampling) Check() error {
	switch {
	case !(o.Temperature >= 0) || math.IsInf(o.Temperature, 0):
		return fmt.Errorf("a temperature of %v: want 0 or more", o.Temperature)
	case o.TopK < 0:
		return fmt.Errorf("top-k of %d: want 0 or more", o.TopK)
	case !(o.TopP >= 0 && o.TopP <= 1):
		return fmt.Errorf("top-p of %v: want 0 to 1", o.TopP)
	case !(o.MinP >= 0 && o.MinP <= 1):
		return fmt.Errorf("min-p of %v: want 0 to 1", o.MinP)
	}
	return nil
}

// Greedy reports whether the most likely token is always taken.
func (o Sampling) Greedy() bool { return o.Temperature == 0 }

// Sampler chooses the tokens of one text. The same seed and text give the same choices from the same logits.
type Sampler struct {
	o    Sampling
	pcg  *rand.PCG
	rand *rand.Rand // of pcg
	kept []candidate
}

// candidate is a token that may be chosen.
type candidate struct {
	token int
	logit float64 // over the temperature
	prob  float64 // not normalized
}

// NewSampler returns the sampler of the i-th of some texts.
func NewSampler(o Sampling, i int) *Sampler {
	pcg := rand.NewPCG(o.Seed, uint64(i))
	return &Sampler{o: o, pcg: pcg, rand: rand.New(pcg)}
}

// errNoLogits is the error of logits among which there is nothing to choose.
var errNoLogits = errors.New("the logits are no numbers")

// Choose returns the token to write next.
func (s *Sampler) Choose(logits []float32) (int, error) {
	if s.o.Greedy() {
		best := 0
		for i, v := range logits {
			if v != v {
				return 0, errNoLogits
			}
			if v > logits[best] {
				best = i
			}
		}
		return best, nil
	}
	kept, err := s.candidates(logits)
	if err != nil {
		return 0, err
	}
	return s.draw(kept), nil
}

// ChooseRanked is [Sampler.Choose] where the host has but what stands first among so many logits. It returns false, and
// chooses nothing, where it takes more to say what Choose would.
func (s *Sampler) ChooseRanked(r model.Ranked, vocab int) (token int, ok bool) {
	if kept := s.ranked(r, vocab); len(kept) > 0 {
		return s.draw(kept), true
	}
	return 0, false
}

// ChooseWeighed is [Sampler.Choose] of any token, where the host has but what parts of the logits weigh, and reads those of the part
// that begins somewhere. It returns false, and chooses nothing, where the draw is so close to the border between two tokens that rounding
// may decide.
func (s *Sampler) ChooseWeighed(w model.Weighed, read func(from int) []float32) (token int, ok bool) {
	if s.o.Greedy() || s.o.limited() {
		return 0, false
	}
	top := float64(slices.Max(w.Tops)) / s.o.Temperature
	sums, sum := make([]float64, len(w.Sums)), 0.0
	for p, part := range w.Sums {
		sums[p] = part * math.Exp(float64(w.Tops[p])/s.o.Temperature-top)
		sum += sums[p]
	}
	if math.IsNaN(sum) || math.IsInf(sum, 0) {
		return 0, false
	}
	before := *s.pcg
	at, slack := s.rand.Float64()*sum, sumError*sum
	// passed reports whether at lies behind what weighs so much, and whether that is certain.
	passed := func(weight float64) (behind, certain bool) {
		left := at - weight
		if left > slack {
			at = left
		}
		return left > slack, math.Abs(left) > slack
	}
	for p, weight := range sums {
		behind, certain := passed(weight)
		if behind {
			continue
		}
		if !certain {
			break
		}
		for i, v := range read(p * w.Part) {
			behind, certain := passed(math.Exp(float64(v)/s.o.Temperature - top))
			if !behind && certain {
				return p*w.Part + i, true
			}
			if !certain {
				break
			}
		}
		break
	}
	*s.pcg = before
	return 0, false
}

// limited reports whether few tokens may be left to choose from.
func (o Sampling) limited() bool { return o.TopK > 0 || o.TopP > 0 && o.TopP < 1 || o.MinP > 0 }

// draw chooses from what is left.
func (s *Sampler) draw(kept []candidate) int {
	var sum float64
	for _, c := range kept {
		sum += c.prob
	}
	at := s.rand.Float64() * sum
	for _, c := range kept {
		if at -= c.prob; at < 0 {
			return c.token
		}
	}
	return kept[len(kept)-1].token // where rounding left a little
}

// candidates returns the tokens that are left to choose from: in the order of the vocabulary, or where their
// number is limited the most likely first.
func (s *Sampler) candidates(logits []float32) ([]candidate, error) {
	all := s.kept[:0]
	top, sum := math.Inf(-1), 0.0
	for i, v := range logits {
		l := float64(v) / s.o.Temperature
		all, top = append(all, candidate{token: i, logit: l}), max(top, l)
	}
	s.kept = all
	if math.IsNaN(top) || math.IsInf(top, 0) {
		return nil, errNoLogits
	}
	for i := range all {
		all[i].prob = math.Exp(all[i].logit - top)
		sum += all[i].prob
	}
	k, p := s.o.TopK > 0 && s.o.TopK < len(all), s.o.TopP > 0 && s.o.TopP < 1
	kept := all
	switch {
	case k:
		kept = likeliest(all, func(kept []candidate, next candidate) bool {
			return len(kept) < s.o.TopK || next.logit == kept[len(kept)-1].logit
		})
		if p {
			sum = 0
			for _, c := range kept {
				sum += c.prob
			}
			kept = kept[:within(kept, s.o.TopP*sum)]
		}
	case p:
		left := s.o.TopP * sum
		kept = likeliest(all, func(kept []candidate, _ candidate) bool {
			if len(kept) > 0 {
				left -= kept[len(kept)-1].prob
			}
			return left > 0
		})
	}
	return s.least(kept), nil
}

// least leaves out what is too unlikely.
func (s *Sampler) least(kept []candidate) []candidate {
	return slices.DeleteFunc(kept, func(c candidate) bool { return c.prob < s.o.MinP || c.prob == 0 })
}

// sumError is more than the sum of the exponentials of a vocabulary may be off, relatively, by the order of its terms and
// the rounding of each.
const sumError = 1e-9

// ranked returns what candidates does, or nothing where it takes more logits than are there.
func (s *Sampler) ranked(r model.Ranked, vocab int) []candidate {
	if len(r.Values) == 0 || math.IsNaN(r.Sum) || math.IsInf(r.Sum, 0) {
		return nil
	}
	all, top := s.kept[:0], float64(r.Values[0])/s.o.Temperature
	for i, v := range r.Values {
		c := candidate{token: r.Tokens[i], logit: float64(v) / s.o.Temperature}
		c.prob = math.Exp(c.logit - top)
		if i > 0 && v != r.Values[i-1] && c.logit == all[i-1].logit {
			return nil // the division makes equals of others, which have another order
		}
		all = append(all, c)
	}
	s.kept = all
	whole := len(all) == vocab
	switch {
	case s.o.TopK > 0 && s.o.TopK < vocab:
		n := min(s.o.TopK, len(all))
		for n < len(all) && all[n].logit == all[n-1].logit {
			n++
		}
		if n == len(all) && !whole {
			return nil // the next one may be as likely as the last
		}
		all = all[:n]
		if s.o.TopP > 0 && s.o.TopP < 1 {
			var sum float64
			for _, c := range all {
				sum += c.prob
			}
			all = all[:within(all, s.o.TopP*sum)]
		}
	case s.o.TopP > 0 && s.o.TopP < 1:
		// What the sum of all says lies between what these say, as it is rounded in the same way.
		n, most := within(all, s.o.TopP*r.Sum*(1-sumError)), within(all, s.o.TopP*r.Sum*(1+sumError))
		if n != most || n == len(all) && !whole {
			return nil
		}
		all = all[:n]
	default:
		if last := all[len(all)-1].prob; !whole && last >= s.o.MinP && last > 0 {
			return nil
		}
		slices.SortFunc(all, func(a, b candidate) int { return a.token - b.token })
	}
	return s.least(all)
}

// within returns how many of the candidates it takes for their probabilities to sum to p or more.
func within(kept []candidate, p float64) int {
	for i, c := range kept {
		if p -= c.prob; p <= 0 {
			return i + 1
		}
	}
	return len(kept)
}

// likeliest returns candidates in order, the most likely and of equals the first of the vocabulary before others,
// while more is true of those before one and that one itself. It reorders all, of which the result is a part:
// mostly a small one, for which a heap takes much less than to sort.
func likeliest(all []candidate, more func(kept []candidate, next candidate) bool) []candidate {
	before := func(a, b candidate) bool { return a.logit > b.logit || a.logit == b.logit && a.token < b.token }
	// The heap lies at the end of all and grows towards its beginning: what is taken out goes there.
	n := len(all)
	at := func(i int) *candidate { return &all[len(all)-1-i] }
	sift := func(i int) {
		for {
			child := 2*i + 1
			if child >= n {
				return
			}
			if child+1 < n && before(*at(child + 1), *at(child)) {
				child++
			}
			if !before(*at(child), *at(i)) {
				return
			}
			*at(i), *at(child) = *at(child), *at(i)
			i = child
		}
	}
	for i := n/2 - 1; i >= 0; i-- {
		sift(i)
	}
	kept := all[:0]
	for n > 0 && more(kept, *at(0)) {
		// The last of the heap makes way for the first, at the place where the result goes on.
		first := *at(0)
		n--
		*at(0) = *at(n)
		*at(n) = first
		kept = all[:len(kept)+1]
		sift(0)
	}
	return kept
}
