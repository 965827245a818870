// Package fit fits the weights of a model to a text, while they are quantized and after. It gives package quantize what
// that asks for: a calibrator, which shows methods what layers read on the text, and a refiner, which learns scales.
package fit

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/lutq/lutq/calib/corpus"
	"github.com/lutq/lutq/calib/learn"
	"github.com/lutq/lutq/calib/model"
	"github.com/lutq/lutq/calib/tokenizer"
	"github.com/lutq/lutq/formats/source"
	"github.com/lutq/lutq/formats/weight"
	"github.com/lutq/lutq/quantize"
	"github.com/lutq/lutq/quantize/gptq"
)

// Options say to what text weights are fitted, how and where.
type Options struct {
	Texts            []string   // files, [Bundled], or what [ParseSelf] takes, mixed in equal parts
	Windows, Context int        // that all texts are cut into, and the tokens of one
	BOS              corpus.BOS // where it goes: half, window or none; empty: as the tokenizer and the way of learning say
	Seed             uint64     // that windows are drawn by
	GPTQ             gptq.Options
	// Float has layers fitted to what the original model makes of the text, so that none depends on another; else to what it
	// makes of it when the layers before are quantized.
	Float bool
	Learn *Learning // nil: no scales are learned

	Device  string // cpu or cuda, which Open opens
	Devices int    // of that kind, among which windows and rows are divided; 0 is one
	Threads int    // of the search of [Transform]; 0: one for each processor
	// Open returns the devices' operations, which leave that many bytes of their memory
	// free for more than the model. done is called when the text is through.
	Open func(reserve int64) (devices []model.Ops, done func() error, err error)

	// Warn is told of what is worth a message; may be nil.
	Warn func(string)
	// Begin is told when the text begins to be run through the model, with what is done to that, such as "calibrating". It
	// returns what is called in the end.
	Begin func(doing string) (end func())
	// Progress is told of calibrating: the work done of all that there is, and the block at hand, from 1 on.
	Progress func(done, all, block, blocks int)
	// Written, unless nil, is told of a text that the model writes: the tokens done of all that there are.
	Written func(done, all int)

	// Unwritten leaves out to write that text: a plan that is not carried out needs but the shapes of its windows.
	Unwritten bool
	// Keep is the folder that such texts are kept in, so that the next run need not write them again; "" is that of [SelfDir].
	Keep string

	text *corpus.Mixture // that was read already
}

// The models that --stream names, which the text runs through.
const (
	StreamQuantized = "quantized" // as far as it is quantized by then
	StreamFloat     = "float"     // the original one
)

// Learning says how scales are learned.
type Learning struct {
	learn.Options      // but for the windows and the state
	After         bool // a method that does not learn them by itself
	Valid         int  // windows more, that no step is taken on

	// Ready, unless nil, is asked before the model is opened. Its error says what stands against it.
	Ready func() error
}

// To adds what fits weights to a text to a recipe whose methods ask for it, or whose scales are to be learned, and what
// follows from that. The model stays open as long as the recipe is used. What learns scales is returned, nil where nothing
// does.
func To(ctx context.Context, m *source.Model, r *quantize.Recipe, o Options) (*Learner, error) {
	calibrated := r.Calibrated()
	if !calibrated && o.Learn == nil {
		return nil, nil
	}
	text, err := o.mixture(ctx, m)
	if err != nil {
		return nil, err
	}
	if calibrated {
		c, err := newCalibrator(m, text, o, r.Unread("damp", o.Learn != nil) == nil)
		if err != nil {
			return nil, err
		}
		c.rescale = r.Unread("rescale", o.Learn != nil) == nil
		r.Calibrate, r.Methods.GPTQ = c, c.o.GPTQ
	}
	if o.Learn == nil {
		return nil, nil
	}
	own := *o.Learn
	own.Fitted = calibrated && r.Unread("damp", true) == nil
	o.Learn = &own
	l, err := newLearner(m, text, o, !calibrated)
	if err != nil {
		return nil, err
	}
	if o.Learn.BF16 && r.Default.ScaleType == 0 {
		r.Default.ScaleType = weight.BF16 // which the learned ones are
	}
	if o.Learn.Mode == learn.Flute && r.Default.Method == "nfl" && r.Default.Scale == 0 {
		r.Default.Scale = weight.Absmax // where FLUTE begins, which chooses codes anew
	}
	r.Refine = l
	return l, nil
}

// inOrder reports whether windows are the first ones after BOS, as FLUTE takes them, and not drawn by the seed.
func (o *Options) inOrder() bool { return o.Learn != nil && o.Learn.Mode == learn.Flute }

// mixture returns the texts for a model, which are read once.
func (o *Options) mixture(ctx context.Context, m *source.Model) (text *corpus.Mixture, err error) {
	if o.text == nil {
		o.text, err = o.read(ctx, m)
	}
	return o.text, err
}

// read reads the texts for a model.
func (o *Options) read(ctx context.Context, m *source.Model) (*corpus.Mixture, error) {
	d, err := m.Decoder()
	if err != nil {
		return nil, fmt.Errorf("%s: no text can be run through the model: %w", m.Dir(), err)
	}
	tok, err := tokenizer.Read(m)
	if err != nil {
		return nil, err
	}
	mo := corpus.MixOptions{Windows: o.Windows, Context: o.Context, BOSToken: d.BOS, BOS: o.BOS, InOrder: o.inOrder(), Seed: o.Seed}
	if o.Learn != nil {
		mo.Valid = o.Learn.Valid
	}
	if mo.InOrder && mo.BOS == corpus.BOSDefault {
		mo.BOS = corpus.BOSWindow
	}
	mo.Made = map[string]corpus.Text{Bundled: {Name: Bundled, Windows: (&bundledText{m: m, tok: tok, bos: d.BOS, warn: o.Warn}).windows}}
	for _, name := range append([]string{Self}, o.Texts...) {
		temperature, ok, err := ParseSelf(name)
		if err != nil {
			return nil, err
		}
		if ok {
			s := &selfText{o: o, m: m, tok: tok, bos: d.BOS, temperature: temperature}
			mo.Made[name] = corpus.Text{Name: name, Windows: func(size, most int, bos corpus.BOS) ([][]int, string, error) {
				return s.windows(ctx, size, most, bos)
			}}
		}
	}
	return corpus.MixFiles(o.Texts, tok, mo)
}

// Hold reads the texts for a model as they are fitted to, and n windows more, which nothing is fitted to. What the model would have to
// write first is left out; where nothing is left the bundled text stands in for it.
func (o Options) Hold(ctx context.Context, m *source.Model, n int) (text *corpus.Mixture, held [][]int, err error) {
	own := Learning{}
	if o.Learn != nil {
		own = *o.Learn
	}
	own.Valid += n
	o.Learn = &own
	o.Texts = slices.DeleteFunc(slices.Clone(o.Texts), func(name string) bool {
		_, self, err := ParseSelf(name)
		return self && err == nil
	})
	if len(o.Texts) == 0 {
		o.Texts = []string{Bundled}
	}
	if text, err = o.read(ctx, m); err != nil {
		return nil, nil, err
	}
	return text, text.Valid[len(text.Valid)-n:], nil
}

// textFlags are those that ask for the text again. Of a file the name is given, not its folder.
func (o *Options) textFlags(text *corpus.Mixture) []string {
	var args []string
	for _, t := range text.Texts {
		args = append(args, "--calib", quoted(t.Name))
	}
	args = append(args, "--calib-windows", strconv.Itoa(o.Windows), "--calib-ctx", strconv.Itoa(o.Context))
	if text.BOS != corpus.BOSNone || o.BOS != corpus.BOSDefault {
		args = append(args, "--calib-bos", string(text.BOS))
	}
	return args
}

// whereFlags are those of what windows were drawn by, and of the device.
func (o *Options) whereFlags() []string {
	device := []string{"--device", o.Device}
	if o.inOrder() {
		return device
	}
	return append([]string{"--seed", strconv.FormatUint(o.Seed, 10)}, device...)
}

// key names what flags ask for of texts, which the flags do not tell all of.
func key(flags []string, text *corpus.Mixture) string {
	key := strings.Join(flags, " ")
	for _, t := range text.Texts {
		key += " " + t.SHA256
	}
	return key
}

// number is a number as a flag takes it.
func number(x float64) string { return strconv.FormatFloat(x, 'g', -1, 64) }

// quoted is a shell's word.
func quoted(s string) string {
	if strings.ContainsAny(s, " \t\n'\"\\$&|;<>()*?[]#~`!{}") {
		return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
	}
	return s
}
