package arch

import (
	"errors"
	"fmt"
	"math"
)

// Rope is a rotary embedding: the pairs (i, i+Dim/2) of a head's first Dim elements
// turn by position · frequency i. Formulas are those of transformers'
// modeling_rope_utils.
type Rope struct {
	Type  string // default, linear, dynamic, llama3, yarn, longrope or proportional
	Dim   int
	Theta float64

	Factor   float64 // by which the context is stretched; 1 for type default
	Original int     // positions before that

	// Type llama3: wavelengths above Original/LowFreq are stretched by Factor, those
	// below Original/HighFreq not, those between in part.
	LowFreq, HighFreq float64

	// Type yarn: pairs that turn more than BetaFast times in the original context stay, those that
	// turn less than BetaSlow times are stretched, with a ramp between, whose ends Truncate makes whole.
	BetaFast, BetaSlow float64
	Truncate           bool

	// Type longrope: divisors of the frequencies [Dim/2], Short up to the original context and Long beyond.
	Short, Long []float64

	// Type proportional: only the first Turning pairs turn, by the frequencies that they have where all do.
	Turning int

	// Amplitude is what cosines and sines are multiplied by, in types yarn and longrope; 1 elsewhere.
	Amplitude float64

	// Growth, if not 0, is β of an amplitude that grows by 1 + β·ln(1 + ⌊position/Original⌋), as that of queries does in Llama 4.
	Growth float64
	Next   bool // the position is that of the next token there

	Adjacent bool // the pairs are (2i, 2i+1) instead
}

// AmplitudeAt is what cosines and sines of a position are multiplied by.
func (r *Rope) AmplitudeAt(pos int) float64 {
	if r.Growth == 0 {
		return r.Amplitude
	}
	if r.Next {
		pos++
	}
	return r.Amplitude * (1 + r.Growth*math.Log1p(float64(pos/max(r.Original, 1))))
}

// Frequencies returns the Dim/2 frequencies, in radians per position, of a
// window of so many tokens, on which they depend in types dynamic and longrope.
func (r *Rope) Frequencies(tokens int) []float64 {
	f := make([]float64, r.Dim/2)
	theta := r.Theta
	if r.Type == "dynamic" && tokens > r.Original {
		stretch := r.Factor*float64(tokens)/float64(r.Original) - (r.Factor - 1)
		theta *= math.Pow(stretch, float64(r.Dim)/float64(r.Dim-2))
	}
	for i := range f {
		f[i] = math.Pow(theta, -2*float64(i)/float64(r.Dim))
	}
	switch r.Type {
	case "linear":
		for i := range f {
			f[i] /= r.Factor
		}
	case "llama3":
		r.llama3(f)
	case "yarn":
		r.yarn(f)
	case "longrope":
		divisors := r.Short
		if tokens > r.Original {
			divisors = r.Long
		}
		for i := range f {
			f[i] /= divisors[i]
		}
	case "proportional":
		for i := range f {
			f[i] /= r.Factor
		}
		clear(f[r.Turning:])
	}
	return f
}

// Stage tells lengths apart whose frequencies differ: those of two windows are the same where their stages are.
func (r *Rope) Stage(tokens int) int {
	switch {
	case r.Type == "dynamic":
		return max(tokens, r.Original)
	case r.Type == "longrope" && tokens > r.Original:
		return 1
	}
	return 0
}

// llama3 is Meta's way for Llama 3.1.
func (r *Rope) llama3(f []float64) {
	old := float64(r.Original)
	for i, v := range f {
		wavelength := 2 * math.Pi / v
		switch {
		case wavelength > old/r.LowFreq:
			f[i] = v / r.Factor
		case wavelength >= old/r.HighFreq && r.HighFreq > r.LowFreq: // else none is between
			s := (old/wavelength - r.LowFreq) / (r.HighFreq - r.LowFreq)
			f[i] = v * ((1-s)/r.Factor + s)
		}
	}
}

// yarn is the way of Peng et al., https://arxiv.org/abs/2309.00071.
func (r *Rope) yarn(f []float64) {
	// The pair that turns so many times in the original context.
	pair := func(turns float64) float64 {
		return float64(r.Dim) * math.Log(float64(r.Original)/(turns*2*math.Pi)) / (2 * math.Log(r.Theta))
	}
	low, high := pair(r.BetaFast), pair(r.BetaSlow)
	if r.Truncate {
		low, high = math.Floor(low), math.Ceil(high)
	}
	low, high = max(low, 0), min(high, float64(r.Dim-1))
	if low == high {
		high += 0.001
	}
	for i, v := range f {
		stretched := min(max((float64(i)-low)/(high-low), 0), 1)
		f[i] = v*(1-stretched) + v/r.Factor*stretched
	}
}

// rope reads rope_theta beside rope_scaling, as transformers 4 writes them, or
// rope_parameters, which holds both and has an object for each kind of layer
// where layers differ: kind names it. theta is the family's default. Of several readings it takes
// that of transformers 5.24: rope_scaling before rope_parameters, and a rope_theta within before one beside.
func (b *builder) rope(kind string, theta float64) *Rope {
	if in := b.scaling("rope_scaling", kind); in != nil && len(in.values) > 0 {
		if current := b.scaling("rope_parameters", kind); current != nil && kind != "" { // which the other adds to
			theta = current.positiveFloat("rope_theta", theta)
		}
		return b.ropeOf("rope_scaling", in, theta)
	}
	if in := b.scaling("rope_parameters", kind); in != nil {
		return b.ropeOf("rope_parameters", in, theta)
	}
	return b.plainRope(b.positiveFloat("rope_theta", theta))
}

// partialRope is rope for heads that turn in part: by the share of a family where a config has none.
func (b *builder) partialRope(theta, share float64) *Rope {
	b.partial, b.share = true, share
	return b.rope("", theta)
}

// plainRope is a rotary embedding of type default.
func (b *builder) plainRope(theta float64) *Rope {
	r := &Rope{Type: "default", Factor: 1, Amplitude: 1, Theta: theta}
	r.Dim = b.rotated(b.partialFactor(&fields{}, r.Type))
	b.checkFinite("rope_theta", r)
	return r
}

// ropeOf reads one of the two objects.
func (b *builder) ropeOf(key string, in *fields, theta float64) *Rope {
	r := &Rope{Type: in.text("rope_type", in.text("type", "default")), Factor: 1, Amplitude: 1}
	r.Theta = in.positiveFloat("rope_theta", b.positiveFloat("rope_theta", theta))
	if r.Type == "proportional" {
		r.Dim = b.rotated(1)
		r.Turning = int(in.positiveFloat("partial_rotary_factor", 1) * float64(r.Dim) / 2)
		if r.Turning > r.Dim/2 {
			in.fail("partial_rotary_factor", errors.New("want at most 1"))
			r.Turning = 0
		}
	} else {
		r.Dim = b.rotated(b.partialFactor(in, r.Type))
	}
	if b.err == nil {
		b.readRope(r, in)
	}
	if in.err != nil {
		b.fail(key, in.err)
	}
	b.checkFinite(key, r)
	return r
}

// checkFinite refuses an embedding that turns by what is no number, as extreme values would have it.
func (b *builder) checkFinite(key string, r *Rope) {
	if b.err != nil {
		return
	}
	sound := func(v float64) bool { return (v > 0 || v == 0 && r.Type == "proportional") && !math.IsInf(v, 0) }
	for _, tokens := range []int{1, r.Original + 1} {
		for _, f := range r.Frequencies(tokens) {
			if !sound(f) || !sound(r.Amplitude) {
				b.fail(key, fmt.Errorf("it would turn by %v, %v times as long: want positive numbers", f, r.Amplitude))
				return
			}
		}
	}
}

// partialFactor returns the share of a head that turns. Families whose heads turn as a whole ignore the key in
// type default, as transformers does; in the others nothing that it computes would fit.
func (b *builder) partialFactor(in *fields, typ string) float64 {
	const key = "partial_rotary_factor"
	if !b.partial && typ == "default" {
		return 1
	}
	share := in.positiveFloat(key, b.positiveFloat(key, b.shareOr1()))
	if !b.partial && share != 1 {
		b.fail(key, fmt.Errorf("%v: heads of this family turn as a whole", share))
	}
	return share
}

// shareOr1 is the share of a head that turns in a family.
func (b *builder) shareOr1() float64 {
	if b.share == 0 {
		return 1
	}
	return b.share
}

// rotated returns how many elements of a head turn.
func (b *builder) rotated(share float64) int {
	if share > 1 {
		b.fail("partial_rotary_factor", fmt.Errorf("%v is above 1", share))
		return b.headDim
	}
	dim := int(float64(b.headDim) * share)
	if dim%2 != 0 || dim == 0 {
		b.fail("head_dim", fmt.Errorf("%d of the %d elements of a head would be rotated: want pairs", dim, b.headDim))
	}
	return dim
}

// scaling returns one of the two objects, of the kind of layer where it has several.
func (b *builder) scaling(key, kind string) *fields {
	if !b.has(key) {
		return nil
	}
	in, err := readFields(b.values[key])
	if err != nil {
		b.fail(key, err)
		return nil
	}
	if kind == "" {
		kind = fullAttention
	}
	if !in.has(kind) {
		return in
	}
	inner, err := readFields(in.values[kind])
	if err != nil {
		b.fail(key, fmt.Errorf("%s: %w", kind, err))
		return nil
	}
	return inner
}

// readRope reads what a type needs.
func (b *builder) readRope(r *Rope, in *fields) {
	switch r.Type {
	case "default":
		return
	case "proportional":
		r.Factor = in.positiveFloat("factor", 1)
		return
	case "linear", "dynamic":
		in.require("factor")
	case "llama3":
		in.require("factor", "low_freq_factor", "high_freq_factor")
	case "su": // what Phi-3 called it first
		r.Type = "longrope"
	case "yarn", "longrope":
		if b.su && r.Type == "yarn" { // and what it called it then
			r.Type = "longrope"
		}
	case "mrope": // turns by three positions, which are one in text
		if !b.modes {
			in.fail("rope_type", errors.New("mrope is for models of several modes"))
		}
		r.Type = "default"
		return
	default:
		in.fail("rope_type", fmt.Errorf("%.40q is not supported: want default, linear, dynamic, llama3, yarn, longrope or proportional", r.Type))
		return
	}
	if r.Type != "linear" && r.Type != "dynamic" {
		// The key outside wins, as in Phi-3.
		r.Original = b.size("original_max_position_embeddings", in.size("original_max_position_embeddings", b.d.MaxPositions))
	}
	r.Factor = in.positiveFloat("factor", float64(b.d.MaxPositions)/float64(max(r.Original, 1)))
	switch r.Type {
	case "dynamic":
		r.Original = b.d.MaxPositions
		if r.Dim <= 2 {
			in.fail("rope_type", errors.New("dynamic wants more than one pair"))
		}
	case "llama3":
		r.LowFreq, r.HighFreq = in.positiveFloat("low_freq_factor", 1), in.positiveFloat("high_freq_factor", 4)
	case "yarn":
		r.BetaFast, r.BetaSlow = in.positiveUnlessZero("beta_fast", 32), in.positiveUnlessZero("beta_slow", 1)
		r.Truncate = in.boolean("truncate", true)
		r.Amplitude = in.positiveFloat("attention_factor", yarnAmplitude(r.Factor, in))
		if r.Theta <= 1 {
			in.fail("rope_theta", fmt.Errorf("%v: rope type yarn wants more than 1", r.Theta))
		}
	case "longrope":
		in.require("long_factor", "short_factor")
		if in.err != nil {
			return
		}
		r.Long, r.Short = in.positives("long_factor", r.Dim/2), in.positives("short_factor", r.Dim/2)
		amplitude := 1.0
		if r.Factor > 1 && r.Original > 1 {
			amplitude = math.Sqrt(1 + math.Log(r.Factor)/math.Log(float64(r.Original)))
		}
		r.Amplitude = in.positiveFloat("attention_factor", amplitude)
	}
}

// yarnAmplitude is what the paper, and DeepSeek after it, make of the factor.
func yarnAmplitude(factor float64, in *fields) float64 {
	of := func(scale float64) float64 {
		if factor <= 1 {
			return 1
		}
		return 0.1*scale*math.Log(factor) + 1
	}
	scale, all := in.positiveUnlessZero("mscale", 0), in.positiveUnlessZero("mscale_all_dim", 0)
	if scale != 0 && all != 0 {
		return of(scale) / of(all)
	}
	return of(1)
}
