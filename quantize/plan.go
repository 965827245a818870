package quantize

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/lutq/lutq/formats/arch"
	"github.com/lutq/lutq/formats/hf"
	"github.com/lutq/lutq/formats/lutq"
	"github.com/lutq/lutq/formats/source"
	"github.com/lutq/lutq/formats/weight"
	"github.com/lutq/lutq/formats/weight/bcq"
	"github.com/lutq/lutq/formats/weight/lut"
)

// A Plan is what a recipe makes of a model, before any weight is read.
type Plan struct {
	Source *hf.Checkpoint // the model's weights
	Recipe Recipe         // with every default filled in
	Items  []Item         // a tensor of the source each, in the source's order

	// Repo is the name of the source on the Hugging Face hub, and Commit which one it is there, for the card; "" where they
	// are not known.
	Repo, Commit string

	names   *modelNames
	at      map[string]int // of items by tensor, once that was asked for
	command string         // that makes it again, in the place of the recipe's
}

// Command returns the command that makes the same bytes again from the same model.
func (p *Plan) Command() string { return cmp.Or(p.command, p.Recipe.Command()) }

// An Item is one tensor's part of a plan.
type Item struct {
	Tensor *hf.Tensor
	// Layer is the name of a quantized layer, empty for a tensor that is
	// copied; the fields below describe the former.
	Layer string
	N, K  int // rows and columns; of a stack, the rows of all its matrices
	// Experts is how many matrices a stack has, 0 for what is none. Transposed says that the
	// source has them as [K, N].
	Experts    int
	Transposed bool

	Format   weight.Spec
	method   Method // of that name
	plain    State  // of a method that needs no text: this one, or the kind's
	Codebook lut.Codebook
	auto     bool // the codebook is chosen, see [AutoCodebook]
	BytesOut int64
	Kept     Reason // why the tensor is copied; empty for a layer

	taken  taken         // a layer whose codes are another program's
	parts  []weight.Part // of a layer
	stored []stored      // what the tensor becomes: a layer's parts, or itself
}

// stored is one of the tensors that an item becomes.
type stored struct {
	hf.Entry
	size int64 // of the data in bytes
}

// unit is the number of rows that have to be read together: the columns of a
// matrix that is stored transposed lie side by side, and some kinds store rows together.
func (it *Item) unit() int {
	if it.Transposed {
		return it.N / max(it.Experts, 1)
	}
	return it.per()
}

// per is the number of rows that are stored together.
func (it *Item) per() int {
	per := 1
	for _, p := range it.parts {
		per = max(per, p.Per)
	}
	return per
}

// Quantized reports whether the item is quantized rather than copied.
func (it *Item) Quantized() bool { return it.Layer != "" }

// NewPlan decides how each tensor of a model is stored, which stays open as long as the plan is used. It fails on a
// model that is quantized already, a rule that matches no tensor, a format
// that does not exist, and fused layers that would differ.
func NewPlan(m *source.Model, r Recipe) (*Plan, error) {
	src, err := m.Weights()
	if err != nil {
		return nil, err
	}
	if err := src.CheckPlain(); err != nil {
		return nil, err
	}
	if err := r.Check(); err != nil {
		return nil, err
	}
	r = r.complete()
	if r.Default.Method == methodNFL && r.Default.Codebook != "nf" {
		return nil, fmt.Errorf("method nfl is for the codebook nf: %s is refined with method rtn", r.Default.Codebook)
	}
	p := &Plan{Source: src, Recipe: r, names: newNames(m, src)}
	if err := p.names.ask(r, src); err != nil {
		return nil, err
	}
	matched := make([]bool, len(r.Rules))
	for _, t := range src.Tensors() {
		it, err := r.item(t, p.names, matched)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", t.Name, err)
		}
		p.Items = append(p.Items, it)
	}
	for i, ok := range matched {
		if !ok {
			return nil, fmt.Errorf("no tensor that can be quantized matches %q", r.Rules[i].Match)
		}
	}
	if !r.SplitFused {
		if err := p.checkFused(); err != nil {
			return nil, err
		}
	}
	if !slices.ContainsFunc(p.Items, func(it Item) bool { return it.Quantized() }) {
		return nil, fmt.Errorf("no tensor of the checkpoint would be quantized: %s%s", p.keptInShort(), p.names.mismatch(src))
	}
	// What cannot be written at the end is better known before the work.
	if _, err := p.configJSON(&lutq.Config{}); err != nil {
		return nil, err
	}
	return p, nil
}

// ask has parts of a model quantized that a recipe asks for. A model that has none is an error.
func (m *modelNames) ask(r Recipe, src *hf.Checkpoint) error {
	m.also = make(map[Reason]bool)
	for _, part := range []struct {
		asked  bool
		reason Reason
		flag   string
	}{{r.Vision, KeptTower, "--vision"}, {r.MTP, KeptFurther, "--mtp"}} {
		if !part.asked {
			continue
		}
		if !slices.ContainsFunc(src.Tensors(), func(t *hf.Tensor) bool { return m.part(t.Name) == part.reason && linearByName(t) }) {
			return fmt.Errorf("%s: %s has no linear layers %s", part.flag, src.Dir(), map[Reason]string{
				KeptTower: "outside its language model", KeptFurther: "that predict further tokens",
			}[part.reason])
		}
		m.also[part.reason] = true
	}
	return nil
}

// item applies the recipe to one tensor and marks the rules that matched.
func (r Recipe) item(t *hf.Tensor, names *modelNames, matched []bool) (Item, error) {
	it := Item{Tensor: t, Kept: names.kept(t)}
	var own weight.Spec
	for i, rule := range r.Rules {
		if !rule.Match.MatchString(t.Name) {
			continue
		}
		if rule.Keep {
			matched[i], it.Kept, own = true, KeptByRule, weight.Spec{}
			continue
		}
		if !names.quantizable(t) {
			continue // a pattern for a whole block matches its norms too
		}
		matched[i], own = true, rule.Format.Or(own)
		if rule.Format.Bits != 0 {
			it.Kept = ""
		}
	}
	if it.Kept == KeptType && t.Packed() {
		return it, &PackedError{Type: t.DType}
	}
	if it.Kept != "" {
		if e := t.Encoding(); e != nil && e.Turned {
			return it, fmt.Errorf("stored as %s, with its rows where 16 bits have columns: it can be quantized, but not kept (%s)", e, it.Kept)
		}
		return it, it.store(hf.Entry{Name: t.Name, DType: t.DType, Shape: t.Shape})
	}
	as := names.layer(t)
	it.Layer, it.N, it.K, it.Experts, it.Transposed = as.Path, as.Matrices()*as.N, as.K, as.Experts, as.Transposed
	var kind weight.Kind
	var err error
	if it.Format, kind, err = r.spec(own); err != nil {
		return it, err
	}
	if err := it.choose(r, names); err != nil {
		return it, err
	}
	if it.parts, err = kind.Parts(it.Format, it.N, it.K); err != nil {
		return it, err
	}
	if it.Format.Kind != bcq.Name || !r.Methods.BCQ.Offset { // which is what may be left out
		it.parts = slices.DeleteFunc(it.parts, func(p weight.Part) bool { return p.Optional })
	}
	if rows := it.N / max(it.Experts, 1); it.Experts > 0 && rows%it.per() != 0 {
		return it, fmt.Errorf("experts of %d rows: weights of kind %s are stored %d rows together: name another kind with --tensor, or keep it", rows, it.Format.Kind, it.per())
	}
	if err := it.resolve(); err != nil {
		return it, err
	}
	return it, it.store(lutq.Entries(it.Layer, it.parts)...)
}

// store sets what the item becomes.
func (it *Item) store(entries ...hf.Entry) error {
	for _, e := range entries {
		size, err := e.Bytes()
		if err != nil {
			return err
		}
		it.stored = append(it.stored, stored{e, size})
		it.BytesOut += size
	}
	return nil
}

// choose sets the item's method. What is learned later, and what no layer of the model is,
// is made without a text.
func (it *Item) choose(r Recipe, names *modelNames) error {
	name := it.Format.Method
	m, err := r.Methods.method(name)
	if err != nil {
		return err
	}
	plain, err := r.Methods.plain(it.Format.Kind)
	if err != nil {
		return err
	}
	switch {
	case name == methodNFL && r.Refine == nil, m.Needs() != Nothing && r.Calibrate == nil:
		return fmt.Errorf("method %s: %w", name, errNoText)
	case m.Needs() != Nothing && names.model == nil:
		return fmt.Errorf("method %s: %w", name, names.why)
	case name == methodNFL, m.Needs() != Nothing && names.stored[it.Tensor.Name] == nil:
		it.Format.Method = plain.Name()
		m = plain
	}
	if m.Needs() == Nothing {
		plain = m
	}
	it.method = m
	it.plain, err = plain.Prepare(nil, it.Format.Kind, it.Format.Group, 0)
	return err
}

// resolve checks the item's format and loads its codebook, if it has one. Where that is to be chosen
// it is the first of the choice so far, while the format says that it is not.
func (it *Item) resolve() error {
	if it.auto = it.Format.Codebook == AutoCodebook; it.auto {
		if err := it.use(autoTables()[0]); err != nil {
			return err
		}
		it.Format.Codebook = AutoCodebook
	} else if tabled(it.Format.Kind) {
		cb, err := codebook(it.Format, it.K)
		if err != nil {
			return err
		}
		it.Codebook = cb
		it.Format.Codebook = cb.Name
	}
	_, err := it.plain.Quantizer(it.layer(it.Codebook))
	return err
}

// layer returns the item for a method, with the given table.
func (it *Item) layer(cb lut.Codebook) Layer { return Layer{Spec: it.Format, Codebook: cb, K: it.K} }

// checkFused reports layers that inference engines run as one matrix but that
// differ in bits, group or kind.
func (p *Plan) checkFused() error {
	first := make(map[string]*Item)
	for i := range p.Items {
		it := &p.Items[i]
		set := p.names.fused(strings.TrimSuffix(it.Tensor.Name, lutq.WeightSuffix))
		if set == "" {
			continue
		}
		other, ok := first[set]
		if !ok {
			first[set] = it
			continue
		}
		if a, b := other.Format, it.Format; a.Rate() != b.Rate() || a.Group != b.Group || a.Kind != b.Kind {
			return fmt.Errorf("%s and %s would differ in bits, group or kind, but runtimes fuse them: give them the same, or allow it with --split-fused",
				other.Tensor.Name, it.Tensor.Name)
		}
	}
	return nil
}

// Totals are a plan's sums over all tensors.
type Totals struct {
	Tensors       int   // of the source
	Quantized     int   // of them
	Parameters    int64 // elements of all tensors
	Weights       int64 // elements of the quantized ones
	BytesIn       int64
	BytesOut      int64
	BitsPerWeight float64 // stored bits over all parameters
	// Those of the linear layers alone, scales and tables included: of what is quantized but for the ends, see [Ends].
	LinearBits float64
	EndBytes   int64 // of the ends in 16 bits or more
}

// Totals sums up the plan.
func (p *Plan) Totals() Totals {
	var t Totals
	var linear, stored int64
	for i := range p.Items {
		it := &p.Items[i]
		role := p.names.role(it.Tensor)
		switch end := role == arch.EmbeddingWeight || role == arch.HeadWeight; {
		case !end && it.Quantized():
			linear += it.Tensor.Elements()
			stored += it.BytesOut
		case end && !it.Quantized() && !p.names.outside(it.Tensor.Name):
			t.EndBytes += it.BytesOut
		}
		t.Tensors++
		t.Parameters += it.Tensor.Elements()
		t.BytesIn += it.Tensor.StoredBytes()
		t.BytesOut += it.BytesOut
		if it.Quantized() {
			t.Quantized++
			t.Weights += it.Tensor.Elements()
		}
	}
	t.BitsPerWeight = 8 * float64(t.BytesOut) / float64(max(t.Parameters, 1))
	t.LinearBits = 8 * float64(stored) / float64(max(linear, 1))
	return t
}

// entries returns the stored tensors of a plan, in the source's order.
func (p *Plan) entries() []hf.Entry {
	var all []hf.Entry
	for i := range p.Items {
		for _, s := range p.Items[i].stored {
			all = append(all, s.Entry)
		}
	}
	return all
}
