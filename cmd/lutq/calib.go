package main

import (
	"slices"

	"github.com/spf13/pflag"

	"github.com/lutq/lutq/calib/corpus"
	"github.com/lutq/lutq/calib/fit"
	"github.com/lutq/lutq/calib/model"
	"github.com/lutq/lutq/formats/source"
	"github.com/lutq/lutq/gemm/cpu"
	"github.com/lutq/lutq/quantize/gptq"
)

// calibOptions are the flags of what is fitted to a text, and where.
type calibOptions struct {
	deviceFlags
	texts        []string
	unnamed      bool // nothing says what text
	windows, ctx int
	bos          string
	seed         uint64
	damp         float64
	retarget     float64
	rescale      bool
	stream       string
}

// register adds the flags.
func (o *calibOptions) register(f *pflag.FlagSet) {
	f.StringArrayVar(&o.texts, "calib", nil, "text `FILE`, bundled (default) or self; repeatable")
	f.Var(newNumber(&o.windows, 0, 1, maxWindows), "calib-windows", "`N` windows, of all texts (default 32 to 128 by width)")
	f.Var(newNumber(&o.ctx, 2048, 3, maxContext), "calib-ctx", "`TOKENS` in a window")
	f.Var(newWord(&o.bos, "", string(corpus.BOSHalf), string(corpus.BOSWindow), string(corpus.BOSNone)), "calib-bos", "windows with `BOS`: half (default), window (all), none")
	f.Uint64Var(&o.seed, "seed", 0, "number `N` that windows are drawn by (default 0)")
	o.addDevice(f, "a GPU if any")
	o.addDevices(f, "which share the work")
	f.Var(newWord(&o.stream, "", fit.StreamQuantized, fit.StreamFloat), "stream", "fit to `NAME` model: quantized (default) or float")
	f.Float64Var(&o.damp, "damp", 0.1, "gptq: add `SHARE` of mean squares to each")
	f.BoolVar(&o.rescale, "rescale", true, "gptq: choose scales of tables anew, but on a GPU")
	f.Float64Var(&o.retarget, "retarget", 0.5, "gptq: make up for `SHARE` of errors before")
}

// check names the text where none is named, and refuses flags that are no use together.
func (o *calibOptions) check(given func(flag string) bool) error {
	if len(o.texts) == 0 {
		o.texts, o.unnamed = []string{fit.Bundled}, true
	}
	for i, f := range o.texts {
		_, self, err := fit.ParseSelf(f)
		switch {
		case err != nil:
			return usage("--calib %w", err)
		case (self || f == fit.Bundled) && slices.Contains(o.texts[:i], f):
			return usage("--calib %s is named twice", f)
		}
	}
	switch {
	case o.windows > 0 && o.windows < len(o.texts):
		return usage("%d texts need as many windows at least: --calib-windows is %d", len(o.texts), o.windows)
	case !(o.damp >= 0 && o.damp <= 100):
		return usage("--damp takes a number from 0 to 100")
	case !(o.retarget >= 0 && o.retarget <= 1):
		return usage("--retarget takes a number from 0 to 1")
	case o.stream == fit.StreamFloat && given("retarget"):
		return usage("--retarget makes up for errors of the layers before, which --stream float does not see")
	}
	return nil
}

// settle says how many windows there are where nothing else does: as many as steps that scales are learned by, or as the layers
// of the model need.
func (o *calibOptions) settle(m *source.Model, learned bool) {
	if o.windows > 0 {
		return
	}
	o.windows = fit.MostWindows
	if d, err := m.Decoder(); err == nil && !learned { // else what reads the text says why not
		o.windows = fit.Windows(d, o.ctx)
	}
	o.windows = max(o.windows, len(o.texts))
}

// files are the texts that are files.
func (o *calibOptions) files() (files []string) {
	for _, f := range o.texts {
		if _, self, _ := fit.ParseSelf(f); f != fit.Bundled && !self {
			files = append(files, f)
		}
	}
	return files
}

// self reports whether the model writes a text itself.
func (o *calibOptions) self() bool {
	return slices.ContainsFunc(o.texts, func(f string) bool {
		_, self, _ := fit.ParseSelf(f)
		return self
	})
}

// say says what text is taken where none is named.
func (o *calibOptions) say(u *ui) {
	if o.unnamed {
		u.note("no text is named: fitting to the bundled one, %d windows of %d tokens (--calib FILE names another)", o.windows, o.ctx)
	}
}

// options are what the flags say, for a device.
func (o *calibOptions) options(device string, threads int) fit.Options {
	return fit.Options{
		Texts: o.texts, Windows: o.windows, Context: o.ctx, BOS: corpus.BOS(o.bos), Seed: o.seed, GPTQ: gptq.Options{Damp: o.damp, Retarget: o.retarget, Rescale: o.rescale && device == "cpu"},
		Float: o.stream == fit.StreamFloat, Device: device, Devices: max(len(o.devices), 1), Threads: threads,
		Open: func(reserve int64) ([]model.Ops, func() error, error) {
			return o.openDevices(device, "bf16", cpu.Options{Threads: threads}, reserve)
		},
	}
}
