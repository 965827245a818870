package probe

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"regexp"
	"slices"
	"strings"

	"github.com/lutq/lutq/formats/source"
	"github.com/lutq/lutq/formats/weight"
	"github.com/lutq/lutq/formats/weight/lut"
	"github.com/lutq/lutq/formats/weight/trellis"
	"github.com/lutq/lutq/quantize"
	"github.com/lutq/lutq/quantize/mix"
)

// A Part is a set with its choices, and the one that was taken.
type Part struct {
	quantize.Set
	Sensitivity
	Choices []Choice
	Chosen  int
}

// Choice is a way to store a set. A spec without bits leaves it as it is.
type Choice struct {
	weight.Spec
	mix.Choice
	rules []quantize.Rule // that ask for it
}

// An Allocation is what each set of a model gets.
type Allocation struct {
	Parts []Part
	// Fixed are the bytes of all other tensors.
	Fixed int64
}

// Chosen returns the bytes and the predicted divergence of all sets.
func (a *Allocation) Chosen() mix.Choice {
	var t mix.Choice
	for _, p := range a.Parts {
		t.Bytes += p.Choices[p.Chosen].Bytes
		t.Loss += p.Choices[p.Chosen].Loss
	}
	return t
}

// Candidates are the formats that sets may get.
type Candidates struct {
	Formats []weight.Spec // of linear layers: fields of a rule
	// Ends are those of the token embedding and the head, nil where these are stored as the recipe says. Keep lets them stay as
	// they are.
	Ends []weight.Spec
	Keep bool
}

// CandidatesFor returns those for layers of a recipe's kind: tables of 2 to 5 bits in groups of 64 and 128 columns, or what the
// recipe says of these, or rings of 1.5 to 6 bits, by halves where the code has them. Ends get tables of 3 to 5 bits, or rings up to 6.
// Nothing else can be mixed.
func CandidatesFor(r quantize.Recipe, ends bool) (c Candidates, err error) {
	named := r.Default
	d := r.Complete().Default
	switch {
	case d.Kind == trellis.Name:
		step := 2
		if d.Codebook == trellis.Pairs {
			step = 1
		}
		for rate := 4 - step; rate <= 12; rate += step {
			c.Formats = append(c.Formats, weight.Spec{Bits: rate / 2, Half: rate%2 == 1})
		}
		if ends {
			for rate := 6; rate <= 12; rate += step {
				c.Ends = append(c.Ends, weight.Spec{Bits: rate / 2, Half: rate%2 == 1})
			}
		}
	case d.Kind != lut.Name:
		return c, fmt.Errorf("weights of kind %s are not mixed: those of kinds %s and %s are", d.Kind, lut.Name, trellis.Name)
	case lut.OnlyBits(d.Codebook) != 0 || strings.HasPrefix(d.Codebook, "file:"):
		return c, fmt.Errorf("codebook %s has one width, and widths are mixed", d.Codebook)
	default:
		groups := []int{64, 128}
		if named.Group != 0 {
			groups = []int{named.Group}
		}
		for bits := lut.MinBits; bits <= lut.MaxBits; bits++ {
			for _, g := range groups {
				c.Formats = append(c.Formats, weight.Spec{Bits: bits, Group: g})
			}
		}
		if ends {
			for bits := 3; bits <= lut.MaxBits; bits++ {
				c.Ends = append(c.Ends, weight.Spec{Bits: bits})
			}
			c.Ends = append(c.Ends, weight.Spec{Bits: 6, Codebook: trellis.Pairs})
		}
	}
	c.Keep = ends
	return c, nil
}

// NewAllocation finds what each choice of every set takes and loses. Rules of the recipe stand: a set of which they say the bits has
// one choice.
func NewAllocation(ctx context.Context, m *source.Model, r quantize.Recipe, sets []quantize.Set, s []Sensitivity, c Candidates) (*Allocation, error) {
	a := &Allocation{}
	for i := range sets {
		a.Parts = append(a.Parts, Part{Set: sets[i], Sensitivity: s[i]})
	}
	round := func(formats []weight.Spec, ends bool) error {
		for _, f := range formats {
			if err := a.add(ctx, m, r, f, ends); err != nil {
				return err
			}
		}
		return nil
	}
	if err := errors.Join(round(c.Formats, false), round(c.Ends, true)); err != nil {
		return nil, err
	}
	if c.Ends == nil || c.Keep {
		if err := a.add(ctx, m, r, weight.Spec{}, true); err != nil {
			return nil, err
		}
	}
	plan, err := quantize.NewPlan(m, r)
	if err != nil {
		return nil, err
	}
	a.Fixed = plan.Totals().BytesOut
	for i := range a.Parts {
		for _, t := range a.Parts[i].Tensors {
			_, n := plan.Stored(t)
			a.Fixed -= n
		}
	}
	return a, nil
}

// add adds a format to the choices of linear layers, or of the ends. One without bits is what the recipe says of them.
func (a *Allocation) add(ctx context.Context, m *source.Model, r quantize.Recipe, f weight.Spec, ends bool) error {
	of := make([][]quantize.Rule, len(a.Parts))
	var all []quantize.Rule
	for i := range a.Parts {
		if p := &a.Parts[i]; p.End == ends && f.Bits != 0 && !decided(r.Rules, p.Tensors) {
			of[i] = rulesFor(p.Tensors, f)
			all = append(all, of[i]...)
		}
	}
	r.Rules = append(all, r.Rules...)
	plan, err := quantize.NewPlan(m, r)
	if err != nil {
		return err
	}
	for i := range a.Parts {
		p := &a.Parts[i]
		if p.End != ends {
			continue
		}
		e, err := setError(ctx, plan, &p.Set)
		if err != nil {
			return err
		}
		choice := Choice{rules: of[i], Choice: mix.Choice{Loss: p.lossOf(e)}}
		for _, t := range p.Tensors {
			spec, n := plan.Stored(t)
			choice.Spec = spec
			choice.Bytes += n
		}
		if !slices.ContainsFunc(p.Choices, func(c Choice) bool { return c.Spec == choice.Spec }) {
			p.Choices = append(p.Choices, choice)
		}
	}
	return nil
}

// decided reports whether rules say how wide one of some tensors is.
func decided(rules []quantize.Rule, tensors []string) bool {
	return slices.ContainsFunc(rules, func(r quantize.Rule) bool {
		return (r.Keep || r.Format.Bits != 0) && slices.ContainsFunc(tensors, r.Match.MatchString)
	})
}

// evenness is the power that ratios of sensitivities to their mean are raised to before bytes are divided: a probe finds what a set
// costs to within some 10 %, and what is fitted and learned afterwards makes up for more of what costs more. NOTES.md of package mix
// has what it gains.
const evenness = .75

// Allocate takes the best choices whose bytes are within a budget, of the sets for which that is wanted; others keep theirs.
func (a *Allocation) Allocate(budget int64) error {
	sets := make([][]mix.Choice, len(a.Parts))
	even := a.evened()
	for i, p := range a.Parts {
		for _, c := range p.Choices {
			c.Loss *= even[i]
			sets[i] = append(sets[i], c.Choice)
		}
	}
	at, err := mix.Allocate(sets, budget)
	if err != nil {
		return err
	}
	for i := range a.Parts {
		a.Parts[i].Chosen = at[i]
	}
	return nil
}

// evened returns what the loss of each set is multiplied by, for what its weights cost to be nearer to what others' do.
func (a *Allocation) evened() []float64 {
	var sum, weights float64
	of := make([]float64, len(a.Parts)) // a weight of each set, where it costs anything
	for i := range a.Parts {
		p := &a.Parts[i]
		if of[i] = p.lossOf(p.Error) / float64(p.Weights); of[i] > 0 {
			sum += math.Log(of[i]) * float64(p.Weights)
			weights += float64(p.Weights)
		}
	}
	for i, cost := range of {
		of[i] = 1
		if cost > 0 {
			of[i] = math.Pow(cost/math.Exp(sum/weights), evenness-1)
		}
	}
	return of
}

// Uniform returns the bytes and the predicted divergence of all sets as a plan stores them.
func (a *Allocation) Uniform(ctx context.Context, plan *quantize.Plan) (t mix.Choice, err error) {
	for i := range a.Parts {
		p := &a.Parts[i]
		e, err := setError(ctx, plan, &p.Set)
		if err != nil {
			return t, err
		}
		for _, tensor := range p.Tensors {
			_, n := plan.Stored(tensor)
			t.Bytes += n
		}
		t.Loss += p.lossOf(e)
	}
	return t, nil
}

// lossOf returns the divergence that an error of the set's weights is predicted to make.
func (p *Part) lossOf(e float64) float64 {
	if e == 0 {
		return 0
	}
	return min(p.KL*p.Fitted*e/p.Error, math.MaxFloat32)
}

// Linear returns the bytes and weights of the sets that are quantized and no ends, as they are chosen.
func (a *Allocation) Linear() (bytes, weights int64) {
	for _, p := range a.Parts {
		if c := p.Choices[p.Chosen]; !p.End && c.Bits != 0 {
			bytes, weights = bytes+c.Bytes, weights+p.Weights
		}
	}
	return bytes, weights
}

// Apply makes the choices ordinary rules of a recipe, before those that it has, and the width that most weights get its default.
func (a *Allocation) Apply(r *quantize.Recipe) {
	weights := make(map[weight.Spec]int64)
	tensors := make(map[weight.Spec][]string)
	ends := make(map[weight.Spec][]string)
	for _, p := range a.Parts {
		c := p.Choices[p.Chosen]
		if len(c.rules) == 0 {
			continue
		}
		f := c.rules[0].Format
		if p.End {
			ends[f] = append(ends[f], p.Tensors...)
			continue
		}
		weights[f] += p.Weights
		tensors[f] = append(tensors[f], p.Tensors...)
	}
	order := func(a, b weight.Spec) int { return cmp.Or(a.Rate()-b.Rate(), a.Group-b.Group) }
	var rules []quantize.Rule
	formats := slices.SortedFunc(maps.Keys(weights), order)
	if len(formats) > 0 {
		most := slices.MaxFunc(formats, func(a, b weight.Spec) int { return cmp.Or(cmp.Compare(weights[a], weights[b]), order(a, b)) })
		r.Default.Bits, r.Default.Half = most.Bits, most.Half
	}
	d := r.Complete().Default // whose group stays, since other rules may leave it to that
	for _, f := range formats {
		own := f.Without(d)
		if own != (weight.Spec{}) {
			if own.Bits == 0 { // as a rule has to say
				own.Bits, own.Half = f.Bits, f.Half
			}
			rules = append(rules, compact(tensors[f], own)...)
		}
	}
	for _, f := range slices.SortedFunc(maps.Keys(ends), order) {
		rules = append(rules, compact(ends[f], f)...)
	}
	r.Rules = append(rules, r.Rules...)
}

// rulesFor gives tensors a format.
func rulesFor(tensors []string, f weight.Spec) []quantize.Rule { return compact(tensors, f) }

var blockNumber = regexp.MustCompile(`\.\d+\.`)

// compact gives tensors a format, with one rule for those whose names differ in the number of their block alone.
func compact(tensors []string, f weight.Spec) []quantize.Rule {
	blocks := make(map[string][]string)
	var names []string
	for _, t := range tensors {
		at := blockNumber.FindStringIndex(t)
		name, block := t, ""
		if at != nil {
			name, block = t[:at[0]+1]+"\x00"+t[at[1]-1:], t[at[0]+1:at[1]-1]
		}
		if _, ok := blocks[name]; !ok {
			names = append(names, name)
		}
		blocks[name] = append(blocks[name], block)
	}
	var rules []quantize.Rule
	for _, name := range names {
		of := blocks[name][0]
		if len(blocks[name]) > 1 {
			of = "(" + strings.Join(blocks[name], "|") + ")"
		}
		pattern := strings.Replace(regexp.QuoteMeta(name), "\x00", of, 1)
		rules = append(rules, quantize.Rule{Match: regexp.MustCompile("^" + pattern + "$"), Format: f})
	}
	return rules
}
