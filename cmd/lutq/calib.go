package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/pflag"

	"github.com/lutq/lutq/calib/corpus"
	"github.com/lutq/lutq/calib/model"
	"github.com/lutq/lutq/calib/tokenizer"
	"github.com/lutq/lutq/formats/lutq"
	"github.com/lutq/lutq/formats/source"
	"github.com/lutq/lutq/gemm/cpu"
	"github.com/lutq/lutq/quantize"
	"github.com/lutq/lutq/quantize/gptq"
)

// calibOptions are the flags of what is fitted to a text, and where.
type calibOptions struct {
	deviceFlags
	texts        []string
	windows, ctx int
	seed         uint64
	damp         float64
	retarget     float64

	// Known once there is a recipe: whether a method reads damp and retarget, and whether windows are the first ones
	// after BOS, as flute takes them, and not drawn by the seed.
	hessian, inOrder bool
}

// register adds the flags.
func (o *calibOptions) register(f *pflag.FlagSet) {
	f.StringArrayVar(&o.texts, "calib", nil, "text `FILE` to fit to; repeatable")
	f.Var(newNumber(&o.windows, 128, 1, maxWindows), "calib-windows", "`N` windows, of all texts together")
	f.Var(newNumber(&o.ctx, 2048, 3, maxContext), "calib-ctx", "`TOKENS` in a window")
	f.Uint64Var(&o.seed, "seed", 0, "number `N` that windows are drawn by (default 0)")
	o.addDevice(f, "a GPU if any")
	f.Float64Var(&o.damp, "damp", 0.1, "gptq: add `SHARE` of the mean square of inputs to each one's")
	f.Float64Var(&o.retarget, "retarget", 0.5, "gptq: make up for `SHARE` of earlier layers' errors")
}

// check refuses flags that are no use together, or without others.
func (o *calibOptions) check(what string) error {
	switch {
	case len(o.texts) == 0:
		return usage("%s a text: name it with --calib FILE", what)
	case o.windows < len(o.texts):
		return usage("%d texts need as many windows at least: --calib-windows is %d", len(o.texts), o.windows)
	case !(o.damp >= 0 && o.damp <= 100):
		return usage("--damp takes a number from 0 to 100")
	case !(o.retarget >= 0 && o.retarget <= 1):
		return usage("--retarget takes a number from 0 to 1")
	}
	return nil
}

// read reads the texts for a model, with so many windows to hold
// out.
func (o *calibOptions) read(m *source.Model, valid int) (*corpus.Mixture, error) {
	d, err := m.Decoder()
	if err != nil {
		return nil, fmt.Errorf("%s: no text can be run through the model: %w", m.Dir(), err)
	}
	tok, err := tokenizer.Read(m)
	if err != nil {
		return nil, err
	}
	mo := corpus.MixOptions{Windows: o.windows, Valid: valid, Context: o.ctx, BOSToken: d.BOS, InOrder: o.inOrder, Seed: o.seed}
	if o.inOrder {
		mo.BOS = corpus.BOSWindow
	}
	return corpus.MixFiles(o.texts, tok, mo)
}

// flags are those that ask for the text again. Of one the name is given, not its folder.
func (o *calibOptions) flags(text *corpus.Mixture) []string {
	var args []string
	for _, t := range text.Texts {
		args = append(args, "--calib", quoted(t.Name))
	}
	return append(args, "--calib-windows", strconv.Itoa(o.windows), "--calib-ctx", strconv.Itoa(o.ctx))
}

// where are the flags of what windows were drawn by, and of the device.
func (o *calibOptions) where() []string {
	device := []string{"--device", o.device}
	if o.inOrder {
		return device
	}
	return append([]string{"--seed", strconv.FormatUint(o.seed, 10)}, device...)
}

// textKey names texts by their sums.
func textKey(text *corpus.Mixture) (key string) {
	for _, t := range text.Texts {
		key += " " + t.SHA256
	}
	return key
}

// gptq returns the settings of the method.
func (o *calibOptions) gptq() gptq.Options {
	return gptq.Options{Damp: o.damp, Retarget: o.retarget}
}

// calibrator runs a text through a model as the flags say, and shows how far that is. It
// implements quantize.Calibrator.
type calibrator struct {
	ui      *ui
	o       calibOptions
	threads int
	src     *model.Checkpoint
	text    *corpus.Mixture
	pauser
}

// newCalibrator returns what runs a text through a model.
func (u *ui) newCalibrator(m *source.Model, text *corpus.Mixture, o calibOptions, threads int) (*calibrator, error) {
	from, err := model.NewCheckpoint(m)
	if err != nil {
		return nil, err
	}
	return &calibrator{ui: u, o: o, threads: threads, src: from, text: text}, nil
}

// Flags implements quantize.Calibrator.
func (c *calibrator) Flags() []string {
	args := c.o.flags(c.text)
	if c.o.hessian {
		args = append(args, "--damp", number64(c.o.damp), "--retarget", number64(c.o.retarget))
	}
	return append(args, c.o.where()...)
}

// Key implements quantize.Calibrator.
func (c *calibrator) Key() string { return strings.Join(c.Flags(), " ") + textKey(c.text) }

// Record implements quantize.Calibrator.
func (c *calibrator) Record() *lutq.Calibration {
	r := &lutq.Calibration{
		Windows: len(c.text.Windows), Context: c.text.Context, BOS: string(c.text.BOS), Tokens: c.text.Tokens(),
		Damp: c.o.damp, Retarget: c.o.retarget, Seed: c.o.seed, Device: c.o.device,
	}
	for _, f := range c.text.Texts {
		r.Texts = append(r.Texts, lutq.CalibText(f))
	}
	return r
}

// Block implements quantize.Calibrator. A GPU rounds the columns of many rows at once.
func (c *calibrator) Block() int {
	if c.o.device == "cpu" {
		return 0
	}
	return 4 << 20
}

// Memory implements quantize.Calibrator.
func (c *calibrator) Memory() int64 {
	return model.WalkMemory(c.src, c.options(), c.o.device)
}

// Seconds implements quantize.Calibrator.
func (c *calibrator) Seconds(_ context.Context, products float64) (seconds float64, err error) {
	ops, done, err := openOps(c.o.device, "bf16", cpu.Options{Threads: c.threads}, 0)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, done()) }()
	perSecond, err := model.Speed(ops, c.src.Decoder(), min(c.text.Context, 512))
	return (model.WalkWork(c.src.Decoder(), c.options()) + products) / perSecond, err
}

func (c *calibrator) options() model.WalkOptions {
	return model.WalkOptions{Windows: c.text.Windows, Original: c.o.retarget > 0}
}

// Walk implements quantize.Calibrator.
func (c *calibrator) Walk(ctx context.Context, v *quantize.Visitor) (err error) {
	defer c.paused()()
	ops, done, err := openOps(c.o.device, "bf16", cpu.Options{Threads: c.threads}, 0)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, done()) }()
	stats, ok := ops.(model.StatsOps)
	if !ok {
		return fmt.Errorf("nothing can be calibrated on the device %s", ops.Name())
	}
	bar := c.ui.startProgress("calibrating", 1, false)
	defer func() { bar.finish() }()
	o, blocks := c.options(), len(c.src.Decoder().Blocks)
	o.Progress = func(done, all int) {
		bar.resize(int64(all))
		bar.set(int64(done), fmt.Sprintf("block %d of %d", min(done*blocks/all+1, blocks), blocks))
	}
	return model.Walk(ctx, c.src, stats, v, o)
}

// number64 is a number as a flag takes it.
func number64(x float64) string { return strconv.FormatFloat(x, 'g', -1, 64) }
