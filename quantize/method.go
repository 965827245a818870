package quantize

import (
	"fmt"
	"slices"
	"strings"

	"github.com/lutq/lutq/formats/weight"
	"github.com/lutq/lutq/formats/weight/bcq"
	"github.com/lutq/lutq/formats/weight/lut"
	"github.com/lutq/lutq/formats/weight/lut24"
	"github.com/lutq/lutq/formats/weight/trellis"
	"github.com/lutq/lutq/quantize/gptq"
	"github.com/lutq/lutq/quantize/planes"
	"github.com/lutq/lutq/quantize/rings"
	"github.com/lutq/lutq/quantize/rounding"
	"github.com/lutq/lutq/quantize/rtn"
)

// A Method turns the weights of layers into what is stored of them. One that has to know
// what the layers read on a text is given that by a [Calibrator].
type Method interface {
	// Name is what recipes and containers call the method.
	Name() string
	// Kinds returns the kinds of weights that it makes, by name: first the one that is meant
	// where none is named.
	Kinds() []string
	// Needs says what it has to know of a state, which layers read.
	Needs() Needs
	// Prepare takes in what it needs for layers of a kind, and columns in a group, which is nil where that is [Nothing], and says
	// how many rows of weights read that, 0 where it is not known. The stats stay for as long as the state.
	Prepare(stats rounding.Stats, kind string, group, rows int) (State, error)
}

// Needs is what a method has to know of what layers read.
type Needs int

// The needs: nothing, or second moments of the inputs over the tokens of a text.
const (
	Nothing  Needs = iota
	Diagonal       // Σ x̂ₖ²
	Hessian        // Σ x̂·x̂ᵀ
)

// State is what a method knows of a state that one or more layers read.
type State interface {
	// Quantizer returns a quantizer for rows of a layer. Each goroutine takes its own, and all
	// give the same.
	Quantizer(l Layer) (rounding.Quantizer, error)
	// Remark says what was out of the ordinary.
	Remark() Remark
	// Close gives back what lies on a device.
	Close()
}

// Layer is a layer that is to be quantized.
type Layer struct {
	weight.Spec              // complete
	Codebook    lut.Codebook // of a layer with a table
	K           int          // columns
	Blocks      []float32    // of a layer whose rows are mixed, see [rings.MixedOptions]
}

// Remark says what was out of the ordinary about what a layer reads. It is zero where nothing
// was.
type Remark struct {
	What string `json:"what"`
	// Nearest tells that weights were rounded to nearest for it.
	Nearest bool `json:"nearest,omitempty"`
	Expert  int  `json:"expert,omitempty"` // the matrix of a stack
}

// Fit is what a method that looks at what layers read has made of their rows: sums of
// [rounding.RowError]'s losses, and how many rows were rounded to nearest because that lost no more.
type Fit struct {
	Rows        int     `json:"fitted_rows,omitempty"`  // that have losses
	NearestRows int     `json:"nearest_rows,omitempty"` // of them
	Loss        float64 `json:"loss,omitempty"`
	NearestLoss float64 `json:"nearest_loss,omitempty"`
}

// add takes in a row. Losses that are not finite, as a device may have them, cannot be added.
func (f *Fit) add(e rounding.RowError) {
	switch loss := e.NearestLoss; {
	case loss == 0: // of no calibrated method, or nothing is lost
		return
	case loss-loss == 0:
		f.Loss += e.Loss
		f.NearestLoss += loss
	}
	f.Rows++
	if !(e.Loss < e.NearestLoss) {
		f.NearestRows++
	}
}

func (f *Fit) addAll(of Fit) {
	f.Rows += of.Rows
	f.NearestRows += of.NearestRows
	f.Loss += of.Loss
	f.NearestLoss += of.NearestLoss
}

// Outputs are sums of [rounding.RowError]'s squares of outputs.
type Outputs struct {
	Output        float64 `json:"output,omitempty"`
	OutputSquared float64 `json:"output_squared,omitempty"`
}

// Narrow tells of rows whose scales do not fit their type, and are stored as others.
type Narrow struct {
	Rows int `json:"narrow_rows,omitempty"`
	// Wants is the type that would hold them all, as [rounding.RowError] has it.
	Wants weight.ScaleType `json:"wants_scale_type,omitempty"`
}

// MethodOptions are the settings of methods that have any.
type MethodOptions struct {
	GPTQ gptq.Options
	BCQ  BCQOptions // of the kind bcq, by whatever method
}

// BCQOptions are settings of the kind bcq.
type BCQOptions struct {
	Rounds int  // as [planes.Options] has it
	Offset bool // groups have one
}

// methods lists all methods.
func methods(o MethodOptions) []Method {
	return []Method{
		nearest(methodRTN),
		nearest(methodNFL),
		feedback{o},
		binary{o.BCQ},
		blockwise{},
		magnitude{},
		wanda{},
		sparseGPT{o.GPTQ},
	}
}

// Methods lists the names of methods that a recipe may give.
func Methods() []string {
	var names []string
	for _, m := range methods(MethodOptions{}) {
		names = append(names, m.Name())
	}
	return names
}

// A Setting is what only some methods read, or the making of only some kinds of weights.
type Setting struct {
	Flag    string   // of the command line
	Methods []string // that read it
	Learned bool     // what learns scales reads it
	Kinds   []string // that are made with it, by whatever method

	Transform bool // what changes the model before reads it
}

// Settings lists what methods read besides bits, groups and the type of scales, which all do.
func Settings() []Setting {
	tables := []string{lut.Name, lut24.Name}
	named := append(slices.Clone(tables), trellis.Name)
	text := []string{methodGPTQ, methodWanda, methodSparseGPT} // which is run for them
	hessian := []string{methodGPTQ, methodSparseGPT}
	return []Setting{
		{Flag: "codebook", Kinds: named},
		{Flag: "scale", Kinds: tables},
		{Flag: "bcq-rounds", Kinds: []string{bcq.Name}},
		{Flag: "bcq-offset", Kinds: []string{bcq.Name}},
		{Flag: "calib", Methods: text, Learned: true, Transform: true},
		{Flag: "calib-windows", Methods: text, Learned: true, Transform: true},
		{Flag: "calib-ctx", Methods: text, Learned: true, Transform: true},
		{Flag: "calib-bos", Methods: text, Learned: true, Transform: true},
		{Flag: "seed", Methods: text, Learned: true, Transform: true},
		{Flag: "device", Methods: text, Learned: true, Transform: true},
		{Flag: "stream", Methods: text},
		{Flag: "devices", Methods: text, Learned: true, Transform: true},
		{Flag: "damp", Methods: hessian},
		{Flag: "retarget", Methods: hessian},
		{Flag: "rescale", Methods: []string{methodGPTQ}},
		{Flag: "learn", Methods: []string{methodRTN, methodNFL, methodGPTQ}},
		{Flag: "valid-windows", Learned: true},
		{Flag: "learn-mode", Learned: true},
		{Flag: "learn-objective", Learned: true},
		{Flag: "learn-rate", Learned: true},
		{Flag: "learn-epochs", Learned: true},
		{Flag: "learn-batch", Learned: true},
		{Flag: "learn-recode", Learned: true},
		{Flag: "learn-grad", Learned: true},
		{Flag: "learn-params", Learned: true},
		{Flag: "learn-table", Learned: true},
		{Flag: "learn-control", Learned: true},
	}
}

// Unread returns an error that says who reads the setting of a flag, where no method of a recipe does. learned says
// that scales are learned. Flags that every method reads, or none, are no settings.
func (r Recipe) Unread(flag string, learned bool) error {
	all := Settings()
	at := slices.IndexFunc(all, func(s Setting) bool { return s.Flag == flag })
	if at < 0 {
		return nil
	}
	s := all[at]
	if s.Learned && learned || slices.ContainsFunc(s.Kinds, r.Makes) {
		return nil
	}
	methods := r.methods()
	if slices.ContainsFunc(s.Methods, func(m string) bool { return slices.Contains(methods, m) }) {
		return nil
	}
	readers := slices.Clone(s.Methods)
	if s.Learned {
		readers = append(readers, methodNFL, "--learn")
	}
	if s.Transform {
		readers = append(readers, "--transform")
	}
	for _, kind := range s.Kinds {
		readers = append(readers, "weights of kind "+kind)
	}
	return fmt.Errorf("--%s is not read by method %s: it is for %s", s.Flag, strings.Join(methods, ", "), oneOf(readers))
}

// methods returns the names of a recipe's methods.
func (r Recipe) methods() []string {
	r = r.complete()
	names := []string{r.Default.Method}
	for _, rule := range r.Rules {
		if m := rule.Format.Method; m != "" && !slices.Contains(names, m) {
			names = append(names, m)
		}
	}
	return names
}

// method finds a method by its name.
func (o MethodOptions) method(name string) (Method, error) {
	for _, m := range methods(o) {
		if m.Name() == name {
			return m, nil
		}
	}
	return nil, fmt.Errorf("unknown method %q: want %s", name, oneOf(Methods()))
}

// MakesKind reports whether a method, by its name, makes weights of a kind. What has no name yet may.
func MakesKind(method, kind string) bool {
	m, err := MethodOptions{}.method(method)
	return method == "" || err == nil && slices.Contains(m.Kinds(), kind)
}

// plain returns the method that makes a kind of weights of nothing but them.
func (o MethodOptions) plain(kind string) (Method, error) {
	for _, m := range methods(o) {
		if m.Needs() == Nothing && slices.Contains(m.Kinds(), kind) {
			return m, nil
		}
	}
	return nil, fmt.Errorf("no method makes weights of kind %q", kind)
}

// oneOf names a choice.
func oneOf(names []string) string {
	last := len(names) - 1
	if last == 0 {
		return names[0]
	}
	return strings.Join(names[:last], ", ") + " or " + names[last]
}

// Calibrated reports whether a recipe has a method that has to know what layers read on a text.
func (r Recipe) Calibrated() bool {
	needs := func(method string) bool {
		m, err := MethodOptions{}.method(method)
		return err == nil && m.Needs() != Nothing
	}
	return needs(r.Default.Method) || slices.ContainsFunc(r.Rules, func(rule Rule) bool { return needs(rule.Format.Method) })
}

// The methods, as recipes and containers spell them. What is learned after a method is
// [learnedSuffix] behind it, but for nfl, which is rounding to nearest on a NormalFloat
// table with learned scales.
const (
	methodRTN     = "rtn"
	methodNFL     = "nfl"
	methodGPTQ    = "gptq"
	methodBCQ     = "bcq"
	learnedSuffix = "+learn"
)

// learnedMethod names the method of a layer whose scales were learned after f.
func learnedMethod(f weight.Spec) string {
	if f.Codebook == "nf" && (f.Method == methodRTN || f.Method == methodNFL) {
		return methodNFL
	}
	return f.Method + learnedSuffix
}

// nearest is rounding to nearest, by its name. It needs nothing, and is its own state.
type nearest string

func (n nearest) Name() string                                            { return string(n) }
func (n nearest) Needs() Needs                                            { return Nothing }
func (n nearest) Prepare(rounding.Stats, string, int, int) (State, error) { return n, nil }
func (n nearest) Remark() Remark                                          { return Remark{} }
func (n nearest) Close()                                                  {}

func (n nearest) Kinds() []string {
	if n == methodNFL {
		return []string{lut.Name}
	}
	return []string{lut.Name, trellis.Name}
}

func (n nearest) Quantizer(l Layer) (rounding.Quantizer, error) {
	if l.Kind == trellis.Name {
		q, err := l.rings()
		if err != nil || !mixed(l.Spec) {
			return q, err
		}
		return rings.Padded(q, l.K), nil
	}
	return rtn.NewQuantizer(l.table())
}

// rings returns what makes rings of the layer.
func (l Layer) rings() (gptq.Blocker, error) {
	c, err := trellis.NewCode(l.Spec.Codebook, l.Rate())
	if err != nil {
		return nil, err
	}
	o := rings.Options{Code: c, ScaleType: l.ScaleType}
	if mixed(l.Spec) {
		return rings.NewMixed(rings.MixedOptions{Options: o, K: l.K, Blocks: l.Blocks})
	}
	return rings.NewQuantizer(o)
}

// mixed reports whether rows of layers of a spec are mixed, in blocks with padding.
func mixed(s weight.Spec) bool { return s.Kind == trellis.Name && s.Codebook != trellis.Pairs }

// table returns the layer as one of a table.
func (l Layer) table() lut.Format {
	return lut.Format{Codebook: l.Codebook, Group: l.Columns(l.K), Scale: l.Scale, ScaleType: l.ScaleType}
}

// binary is package planes' quantizer. It needs nothing, and is its own state.
type binary struct{ BCQOptions }

func (b binary) Name() string                                            { return methodBCQ }
func (b binary) Kinds() []string                                         { return []string{bcq.Name} }
func (b binary) Needs() Needs                                            { return Nothing }
func (b binary) Prepare(rounding.Stats, string, int, int) (State, error) { return b, nil }
func (b binary) Remark() Remark                                          { return Remark{} }
func (b binary) Close()                                                  {}
func (b binary) Quantizer(l Layer) (rounding.Quantizer, error) {
	return planes.NewQuantizer(l.planes(b.BCQOptions))
}

// planes returns the layer as one of binary codes.
func (l Layer) planes(o BCQOptions) planes.Options {
	return planes.Options{Bits: l.Bits, Group: l.Columns(l.K), ScaleType: l.ScaleType, Rounds: o.Rounds, Offset: o.Offset}
}

// feedback is package gptq.
type feedback struct{ MethodOptions }

func (f feedback) Name() string    { return methodGPTQ }
func (f feedback) Kinds() []string { return []string{lut.Name, bcq.Name, trellis.Name} }
func (f feedback) Needs() Needs    { return Hessian }

func (f feedback) Prepare(stats rounding.Stats, kind string, group, rows int) (State, error) {
	o := f.GPTQ
	o.Rows = rows
	if o.Rescale && kind == lut.Name && group >= 16 && group <= 128 && stats.K()%group == 0 {
		o.Group = group
	}
	if kind == trellis.Name {
		rotation := rings.NewRotation(stats.K())
		o.Block = trellis.RingCols
		if device, ok := stats.(rounding.Rotator); ok {
			turned, err := device.Rotated(rotation.Factors())
			if err != nil {
				return nil, err
			}
			defer turned.Close() // what is kept of them is another matrix
			stats = turned
		} else {
			stats = rotation.Stats(stats)
		}
	}
	s, err := gptq.NewState(stats, o)
	if err != nil {
		return nil, err
	}
	return feedbackState{s, f.BCQ}, nil
}

// weighed returns what rounds to a table, with scales that errors of each column count so much for.
func weighed(f lut.Format, columns []float32) (*rtn.Quantizer, error) {
	q, err := rtn.NewQuantizer(f)
	if err != nil {
		return nil, err
	}
	q.Weigh(columns)
	return q, nil
}

type feedbackState struct {
	*gptq.State
	bcq BCQOptions
}

func (s feedbackState) Remark() Remark {
	switch r := s.Report(); {
	case r.Nearest != "":
		return Remark{What: r.Nearest, Nearest: true}
	case r.Raised > 0:
		return Remark{What: fmt.Sprintf("the Hessian is singular: damped by %v", r.Damp)}
	}
	return Remark{}
}

func (s feedbackState) Quantizer(l Layer) (rounding.Quantizer, error) {
	if l.Kind == trellis.Name {
		if s.OnDevice() {
			l.Blocks = nil // whose sizes devices do not know
		}
		b, err := l.rings()
		if err != nil {
			return nil, err
		}
		q, err := s.Blocks(b)
		if err != nil || !mixed(l.Spec) {
			return q, err
		}
		return rings.Padded(q, l.K), nil
	}
	return s.QuantizerBy(func() (q gptq.Rounder, err error) {
		if l.Kind == bcq.Name {
			o := l.planes(s.bcq)
			o.Weights = s.Weights()
			q, err = planes.NewQuantizer(o)
		} else {
			q, err = weighed(l.table(), s.Weights())
		}
		if err == nil && l.Scale == weight.Absmax && !s.OnDevice() {
			q = struct{ gptq.Rounder }{q} // whose scales stay
		}
		return q, err
	})
}
