package quantize

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/lutq/lutq/formats/input"
	"github.com/lutq/lutq/formats/lutq"
	"github.com/lutq/lutq/formats/weight"
	"github.com/lutq/lutq/formats/weight/bcq"
	"github.com/lutq/lutq/formats/weight/lut"
	"github.com/lutq/lutq/formats/weight/trellis"
)

// A Recipe says how each tensor of a checkpoint is stored.
type Recipe struct {
	Default weight.Spec
	// Rules are applied in order to every tensor whose name their pattern
	// matches; later ones win, field by field.
	Rules []Rule
	// SplitFused allows the layers that runtimes fuse, q/k/v and gate/up, to
	// differ in bits and group.
	SplitFused bool
	// Vision and MTP have the linear layers of what sees, hears or joins, and of layers that predict further tokens, quantized as
	// well: those that look like it by their names, each weight to the nearest value.
	Vision, MTP bool
	// Methods are the settings of methods, and Calibrate runs a text for those that need it.
	Methods   MethodOptions
	Calibrate Calibrator
	// Transform, if set, is what was done to the weights of the model that a plan is made of.
	Transform Transform
	// Refine, if set, improves the quantized layers when they are written.
	// The method nfl, learned scales on NormalFloat tables, needs one.
	Refine Refiner
}

// A Rule overrides the defaults for some tensors.
type Rule struct {
	Match *regexp.Regexp
	// Format holds the fields to override. A rule that gives Bits also
	// quantizes tensors that stay as they are by default, such as lm_head.
	Format weight.Spec
	// Keep leaves the tensors as they are.
	Keep bool
}

// DefaultBits is the width of a code where none is named.
const DefaultBits = 4

// AutoCodebook names no table, but that each layer gets the one of [autoTables] that errs less on
// what the layer reads.
const AutoCodebook = "auto"

// DefaultFormat is what an empty recipe means for codes of so many bits: the
// tables and scales whose worst result was best among the models measured, see NOTES.md.
// Other formats of the same width differ from it only where a recipe says so: naming a table
// changes no scales.
func DefaultFormat(bits int) weight.Spec {
	return weight.Spec{Bits: bits, Group: 64, Codebook: AutoCodebook, Method: methodRTN, Scale: weight.MSE, ScaleType: weight.F16}
}

// complete fills in the defaults.
func (r Recipe) complete() Recipe {
	d := &r.Default
	if d.Method == MethodKBit {
		*d = encoded(*d)
	}
	if d.Bits == 0 {
		d.Bits = cmp.Or(lut.OnlyBits(d.Codebook), DefaultBits)
	}
	if d.Kind == "" {
		d.Kind = r.kindFor(d.Method)
		if ringed(d.Codebook) {
			d.Kind = trellis.Name
		}
	}
	if d.Codebook == "" && d.Method == methodNFL && tabled(d.Kind) {
		d.Codebook = "nf"
	}
	*d = d.Or(r.defaults(d.Kind, d.Bits))
	if kind, err := lutq.KindOf(d.Kind); err == nil {
		*d = kind.Fit(*d)
	}
	return r
}

// Complete returns the recipe with its defaults filled in.
func (r Recipe) Complete() Recipe { return r.complete() }

// tabled reports whether weights of a kind are those of a table, times scales that a method finds.
func tabled(kind string) bool {
	k, err := lutq.KindOf(kind)
	return err == nil && k.Fit(weight.Spec{Scale: weight.MSE}).Scale != 0
}

// Scaled reports whether a scale method finds the scales of layers that no rule is for.
func (r Recipe) Scaled() bool { return tabled(r.complete().Default.Kind) }

// grouped reports whether groups of columns share scales in weights of a kind.
func grouped(kind string) bool {
	group := weight.Groups()[0]
	k, err := lutq.KindOf(kind)
	return err == nil && k.Fit(weight.Spec{Group: group}).Group == group
}

// ringed reports whether a codebook is one of rings.
func ringed(codebook string) bool { return slices.Contains(trellis.Codebooks(), codebook) }

// kindFor names the kind that a method makes.
func (r Recipe) kindFor(method string) string {
	if m, err := r.Methods.method(method); err == nil {
		return m.Kinds()[0]
	}
	return lutq.Kinds()[0].Name()
}

// defaults are the fields of a spec of a kind where nothing is said about them.
func (r Recipe) defaults(kind string, bits int) weight.Spec {
	f := DefaultFormat(bits)
	f.Kind = kind
	if kind == lut.Name {
		return f
	}
	if !tabled(kind) {
		f.Codebook, f.Scale = "", 0
	}
	if m, err := r.Methods.plain(kind); err == nil {
		f.Method = m.Name()
	}
	if k, err := lutq.KindOf(kind); err == nil {
		f = k.Fit(f)
	}
	return f
}

// spec completes the spec that rules give a tensor, in a complete recipe.
func (r Recipe) spec(own weight.Spec) (weight.Spec, weight.Kind, error) {
	d := r.Default
	m, err := r.Methods.method(own.Or(d).Method)
	if err != nil {
		return own, nil, err
	}
	if own.Kind == "" {
		own.Kind = d.Kind
		switch {
		case ringed(own.Codebook):
			own.Kind = trellis.Name
		case !slices.Contains(m.Kinds(), d.Kind), d.Kind == trellis.Name && own.Codebook != "":
			own.Kind = m.Kinds()[0]
		}
	}
	kind, err := lutq.KindOf(own.Kind)
	if err != nil {
		return own, nil, err
	}
	if own.Kind != d.Kind {
		of := r.defaults(own.Kind, own.Or(d).Bits)
		if slices.Contains(m.Kinds(), own.Kind) {
			of.Method = d.Method
		}
		if tabled(own.Kind) && tabled(d.Kind) && d.Codebook != r.defaults(d.Kind, d.Bits).Codebook {
			of.Codebook, of.Scale = d.Codebook, d.Scale // which were named
		}
		of.Bits, of.Half, of.ScaleType = d.Bits, d.Half, d.ScaleType
		if grouped(d.Kind) {
			of.Group = d.Group
		}
		d = of
	}
	s := own.Or(d)
	if m, err = r.Methods.method(s.Method); err == nil && !slices.Contains(m.Kinds(), s.Kind) {
		err = fmt.Errorf("method %s makes no weights of kind %s", s.Method, s.Kind)
	}
	return kind.Fit(s), kind, err
}

// Check reports the first thing that is wrong with a recipe whatever it is for.
func (r Recipe) Check() error {
	full := r.complete()
	check := func(own weight.Spec) error {
		s, kind, err := full.spec(own)
		if err != nil {
			return err
		}
		if err := unfit(own, kind); err != nil {
			return err
		}
		if s.Half && s.Kind != trellis.Name {
			return halfError(s)
		}
		if s.Kind == trellis.Name {
			if _, err := kind.Parts(s, trellis.Block, trellis.Block); err != nil {
				return err
			}
		}
		if s.Method == MethodKBit {
			if err := (blockwise{}).check(s); err != nil {
				return err
			}
		}
		return s.Check(kind)
	}
	if err := check(r.Default); err != nil {
		return err
	}
	if d := full.Default; namesTable(d.Codebook) {
		if _, err := lut.NewCodebook(d.Codebook, d.Bits, 1); err != nil {
			return err
		}
	}
	for _, rule := range r.Rules {
		if rule.Keep {
			continue
		}
		if err := check(rule.Format); err != nil {
			return fmt.Errorf("rule %q: %w", rule, err)
		}
	}
	return nil
}

// unfit reports a field of a spec that says of a kind what its layers have not.
func unfit(s weight.Spec, kind weight.Kind) error {
	switch fit := kind.Fit(s); {
	case s.Codebook != "" && fit.Codebook == "" || fit.Scale != s.Scale && fit.Codebook == "":
		return fmt.Errorf("weights of kind %s have neither a codebook nor a scale method", kind.Name())
	case fit.Scale != s.Scale:
		return fmt.Errorf("weights of kind %s have no scale method", kind.Name())
	case s.Group != 0 && fit.Group != s.Group:
		return fmt.Errorf("weights of kind %s have one scale a row: no group of %d", kind.Name(), s.Group)
	}
	return nil
}

// halfError means that a spec asks for half a bit of a kind that has whole ones.
func halfError(s weight.Spec) error {
	return fmt.Errorf("%s bits: weights of kind %s have whole ones, and half a bit more is for --codebook %s", s.Width(), s.Kind, trellis.Pairs)
}

// ParseRule reads REGEX=FORMAT. FORMAT is "keep", or bits, group, codebook,
// scale method, scale type, kind and method in this order, separated by colons, each of
// which may be left out: "3:64:js", "5", "::nf:mse:bf16", ":::::bcq", "::::::gptq". A file
// codebook takes its colon: "4:64:file:PATH".
func ParseRule(s string) (Rule, error) {
	at := strings.LastIndexByte(s, '=')
	if at < 0 {
		return Rule{}, fmt.Errorf("rule %q: want REGEX=bits:group:codebook… or REGEX=keep", s)
	}
	re, err := regexp.Compile(s[:at])
	if err != nil {
		return Rule{}, fmt.Errorf("rule %q: %w", s, err)
	}
	rule := Rule{Match: re}
	spec := s[at+1:]
	if spec == "keep" {
		rule.Keep = true
		return rule, nil
	}
	fields := strings.Split(strings.Replace(spec, "file:", "file\x00", 1), ":")
	if spec == "" || len(fields) > 7 {
		return Rule{}, fmt.Errorf("rule %q: want bits:group:codebook:scale:scale-type:kind:method after the =", s)
	}
	for i, f := range fields {
		f = strings.Replace(f, "\x00", ":", 1)
		if f == "" {
			continue
		}
		switch i {
		case 0:
			rule.Format.Bits, rule.Format.Half, err = weight.ParseWidth(f)
		case 1:
			rule.Format.Group, err = weight.ParseGroup(f)
		case 2:
			rule.Format.Codebook = f
		case 3:
			rule.Format.Scale, err = weight.ParseScaleMethod(f)
		case 4:
			rule.Format.ScaleType, err = weight.ParseScaleType(f)
		case 5:
			rule.Format.Kind = f
		case 6:
			rule.Format.Method = f
		}
		if err != nil {
			return Rule{}, fmt.Errorf("rule %q: %w", s, err)
		}
	}
	if err := checkFormat(rule.Format); err != nil {
		return Rule{}, fmt.Errorf("rule %q: %w", s, err)
	}
	return rule, nil
}

// checkFormat reports the first field of a format that names nothing. Fields that
// are zero are not given, and the file of a codebook is not read.
func checkFormat(f weight.Spec) error {
	kinds := lutq.Kinds()
	if f.Kind != "" {
		kind, err := lutq.KindOf(f.Kind)
		if err != nil {
			return err
		}
		if err := unfit(f, kind); err != nil {
			return err
		}
		if f.Half && f.Kind != trellis.Name {
			return halfError(f)
		}
		kinds = []weight.Kind{kind}
	}
	if least, most := widths(kinds); f.Bits != 0 && (f.Bits < least || f.Bits > most) {
		return fmt.Errorf("%s bits: want %d to %d", f.Width(), least, most)
	}
	if namesTable(f.Codebook) {
		bits := lut.MinBits
		if only := lut.OnlyBits(f.Codebook); only != 0 {
			bits = cmp.Or(f.Bits, only)
		}
		if _, err := lut.NewCodebook(f.Codebook, bits, weight.Groups()[0]); err != nil {
			return err
		}
	}
	if f.Method != "" && !slices.Contains(Methods(), f.Method) {
		return fmt.Errorf("unknown method %q: want %s", f.Method, oneOf(Methods()))
	}
	return nil
}

// Widths returns the least and the most bits of a code, of all kinds of weights.
func Widths() (least, most int) { return widths(lutq.Kinds()) }

func widths(of []weight.Kind) (least, most int) {
	least, most = of[0].Widths()
	for _, kind := range of {
		a, b := kind.Widths()
		least, most = min(least, a), max(most, b)
	}
	return least, most
}

// formatJSON is a format as recipe files spell it.
type formatJSON struct {
	Kind      string             `json:"kind,omitempty"`
	Bits      float64            `json:"bits,omitempty"`
	Group     json.RawMessage    `json:"group,omitempty"` // a number or "row"
	Codebook  string             `json:"codebook,omitempty"`
	Method    string             `json:"method,omitempty"`
	Scale     weight.ScaleMethod `json:"scale,omitzero"`
	ScaleType weight.ScaleType   `json:"scale_type,omitzero"`
}

// asJSON is a format as recipe files spell it.
func asJSON(f weight.Spec) (out formatJSON, err error) {
	out = formatJSON{Kind: f.Kind, Codebook: f.Codebook, Method: f.Method, Scale: f.Scale, ScaleType: f.ScaleType}
	if f.Bits != 0 || f.Half {
		if out.Bits, err = strconv.ParseFloat(f.Width(), 64); err != nil {
			return out, err
		}
	}
	if f.Group != 0 {
		out.Group = json.RawMessage(weight.GroupName(f.Group))
		if f.Group == weight.RowGroup {
			out.Group = json.RawMessage(strconv.Quote(string(out.Group)))
		}
	}
	return out, nil
}

func (f formatJSON) format() (weight.Spec, error) {
	out := weight.Spec{Kind: f.Kind, Codebook: f.Codebook, Method: f.Method, Scale: f.Scale, ScaleType: f.ScaleType}
	if f.Bits != 0 {
		var err error
		if out.Bits, out.Half, err = weight.ParseWidth(strconv.FormatFloat(f.Bits, 'g', -1, 64)); err != nil {
			return out, err
		}
	}
	if f.Group != nil {
		var err error
		if out.Group, err = weight.ParseGroup(strings.Trim(string(f.Group), `"`)); err != nil {
			return out, err
		}
	}
	return out, checkFormat(out)
}

// recipeJSON is a recipe file.
type recipeJSON struct {
	formatJSON
	SplitFused bool       `json:"split_fused,omitempty"`
	Vision     bool       `json:"vision,omitempty"`
	MTP        bool       `json:"mtp,omitempty"`
	Tensors    []ruleJSON `json:"tensors,omitempty"`
}

type ruleJSON struct {
	Match string `json:"match"`
	Keep  bool   `json:"keep,omitempty"`
	formatJSON
}

// File returns what [ParseRecipe] reads of a recipe: all but settings of methods, and texts.
func (r Recipe) File() ([]byte, error) {
	file := recipeJSON{SplitFused: r.SplitFused, Vision: r.Vision, MTP: r.MTP}
	var err error
	if file.formatJSON, err = asJSON(r.Default); err != nil {
		return nil, err
	}
	for _, rule := range r.Rules {
		of := ruleJSON{Match: rule.Match.String(), Keep: rule.Keep}
		if of.formatJSON, err = asJSON(rule.Format); err != nil {
			return nil, err
		}
		file.Tensors = append(file.Tensors, of)
	}
	return json.Marshal(file)
}

// ParseRecipe reads a recipe from JSON. Fields it does not give are zero.
//
//	{"bits": 4, "group": 64, "codebook": "js",
//	 "tensors": [{"match": "down_proj", "bits": 5}, {"match": "layers\\.0\\.", "keep": true}]}
func ParseRecipe(data []byte) (Recipe, error) {
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.DisallowUnknownFields()
	var file recipeJSON
	if err := dec.Decode(&file); err != nil {
		name, unknown := strings.CutPrefix(err.Error(), "json: unknown field ")
		name = strings.Trim(name, `"`)
		if unknown && slices.ContainsFunc(Settings(), func(s Setting) bool { return s.Flag == name }) {
			err = fmt.Errorf("%q is no field: --%s is a flag", name, name)
		}
		return Recipe{}, fmt.Errorf("recipe: %w", err)
	}
	if _, err := dec.Token(); err != io.EOF {
		return Recipe{}, errors.New("recipe: more follows the JSON object")
	}
	r := Recipe{SplitFused: file.SplitFused, Vision: file.Vision, MTP: file.MTP}
	var err error
	if r.Default, err = file.format(); err != nil {
		return Recipe{}, fmt.Errorf("recipe: %w", err)
	}
	for i, t := range file.Tensors {
		rule := Rule{Keep: t.Keep}
		if t.Match == "" {
			return Recipe{}, fmt.Errorf(`recipe: tensors[%d] has no "match"`, i)
		}
		if rule.Match, err = regexp.Compile(t.Match); err != nil {
			return Recipe{}, fmt.Errorf("recipe: tensors[%d]: %w", i, err)
		}
		if rule.Format, err = t.format(); err != nil {
			return Recipe{}, fmt.Errorf("recipe: tensors[%d]: %w", i, err)
		}
		if rule.Keep && rule.Format != (weight.Spec{}) {
			return Recipe{}, fmt.Errorf("recipe: tensors[%d] is kept and quantized", i)
		}
		r.Rules = append(r.Rules, rule)
	}
	return r, nil
}

// Command returns the command that repeats the recipe: every flag that has a
// part in the result, and no other.
func (r Recipe) Command() string {
	d := r.Default
	args := []string{"lutq quantize MODEL OUT", "--bits", d.Width(), "--group", weight.GroupName(d.Group)}
	if d.Codebook != "" {
		args = append(args, "--codebook", d.Codebook)
	}
	args = append(args, "--method", d.Method)
	if d.Scale != 0 {
		args = append(args, "--scale", d.Scale.String())
	}
	args = append(args, "--scale-type", d.ScaleType.String())
	for _, rule := range r.Rules {
		args = append(args, "--tensor", "'"+rule.String()+"'")
	}
	if r.SplitFused {
		args = append(args, "--split-fused")
	}
	if r.Vision {
		args = append(args, "--vision")
	}
	if r.MTP {
		args = append(args, "--mtp")
	}
	if r.Makes(bcq.Name) {
		args = append(args, "--bcq-rounds", strconv.Itoa(r.Methods.BCQ.Rounds), "--bcq-offset="+strconv.FormatBool(r.Methods.BCQ.Offset))
	}
	if r.Transform != nil {
		args = append(args, r.Transform.Flags()...)
	}
	if r.Calibrate != nil {
		args = append(args, r.Calibrate.Flags()...)
	}
	if r.Refine != nil {
		args = append(args, r.Refine.Flags()...)
	}
	return strings.Join(args, " ")
}

// Makes reports whether a recipe may make weights of a kind.
func (r Recipe) Makes(kind string) bool {
	r = r.complete()
	if r.Default.Kind == kind {
		return true
	}
	return slices.ContainsFunc(r.Rules, func(rule Rule) bool {
		s, _, err := r.spec(rule.Format)
		return err == nil && !rule.Keep && s.Kind == kind
	})
}

// String returns the rule as [ParseRule] reads it.
func (r Rule) String() string {
	spec := "keep"
	if !r.Keep {
		spec = r.Format.Fields()
	}
	return r.Match.String() + "=" + spec
}

// filePrefix marks a codebook that is read from a JSON file.
const filePrefix = "file:"

// namesTable reports whether a codebook is that of one built-in table.
func namesTable(codebook string) bool {
	return codebook != "" && codebook != AutoCodebook && !ringed(codebook) && !strings.HasPrefix(codebook, filePrefix)
}

// CodebookFiles returns the paths of the files that codebooks are read from.
func (r *Recipe) CodebookFiles() []string {
	formats := []weight.Spec{r.Default}
	for _, rule := range r.Rules {
		formats = append(formats, rule.Format)
	}
	var paths []string
	for _, f := range formats {
		if path, ok := strings.CutPrefix(f.Codebook, filePrefix); ok {
			paths = append(paths, path)
		}
	}
	return paths
}

// codebook returns the table of a complete format for rows of k columns.
func codebook(f weight.Spec, k int) (lut.Codebook, error) {
	path, ok := strings.CutPrefix(f.Codebook, filePrefix)
	if !ok {
		return lut.NewCodebook(f.Codebook, f.Bits, f.Columns(k))
	}
	data, err := input.ReadFile(path, input.Codebook)
	if err != nil {
		return lut.Codebook{}, fmt.Errorf("codebook: %w", err)
	}
	return lut.ParseCodebook(data, filePrefix+filepath.Base(path), f.Bits)
}
