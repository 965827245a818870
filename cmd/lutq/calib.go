package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/lutq/lutq/calib/corpus"
	"github.com/lutq/lutq/calib/tokenizer"
	"github.com/lutq/lutq/formats/arch"
	"github.com/lutq/lutq/formats/hf"
)

// calibOptions are the flags of what is learned from text, and where.
type calibOptions struct {
	deviceFlags
	texts        []string
	windows, ctx int
	seed         uint64

	names []string // of the flags that say nothing where nothing is learned
}

// register adds the flags.
func (o *calibOptions) register(c *cobra.Command) {
	own := func(name string) string {
		o.names = append(o.names, name)
		return name
	}
	f := c.Flags()
	f.StringArrayVar(&o.texts, own("calib"), nil, "text `FILE` to learn on; repeatable")
	f.Var(newNumber(&o.windows, 128, 1, maxWindows), own("calib-windows"), "`N` windows of text to learn on")
	f.Var(newNumber(&o.ctx, 2048, 3, maxContext), own("calib-ctx"), "`TOKENS` in a window")
	f.Uint64Var(&o.seed, own("seed"), 0, "`N` that windows are drawn by (default 0)")
	o.addDevice(f, "cuda where there is a GPU")
	own("device")
	setGroup(f, "Calibration text (--learn, --method nfl)", o.names...)
}

// check refuses flags that are no use together, or without others.
func (o *calibOptions) check(what string) error {
	switch {
	case len(o.texts) == 0:
		return usage("%s a text: name it with --calib FILE", what)
	case o.windows < len(o.texts):
		return usage("%d texts need as many windows at least: --calib-windows is %d", len(o.texts), o.windows)
	}
	return nil
}

// read reads the texts for the model of a checkpoint, with so many windows to hold
// out. Flute takes the first windows after BOS.
func (o *calibOptions) read(src *hf.Checkpoint, valid int, flute bool) (*corpus.Mixture, error) {
	d, err := arch.Read(src.Dir(), nil)
	if err != nil {
		return nil, fmt.Errorf("%s: no text can be run through the model: %w", src.Dir(), err)
	}
	tok, err := tokenizer.Load(src.Dir())
	if err != nil {
		return nil, err
	}
	mo := corpus.MixOptions{Windows: o.windows, Valid: valid, Context: o.ctx, BOSToken: d.BOS, InOrder: flute, Seed: o.seed}
	if flute {
		mo.BOS = corpus.BOSWindow
	}
	return corpus.MixFiles(o.texts, tok, mo)
}
