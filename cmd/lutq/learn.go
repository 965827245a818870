package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/lutq/lutq/calib/corpus"
	"github.com/lutq/lutq/calib/learn"
	"github.com/lutq/lutq/calib/model"
	"github.com/lutq/lutq/calib/tokenizer"
	"github.com/lutq/lutq/formats/arch"
	"github.com/lutq/lutq/formats/lutq"
	"github.com/lutq/lutq/quantize/lut"
)

// learnOptions are the flags of learned scales.
type learnOptions struct {
	on, table, control            bool // on: asked for beside another method
	mode, objective, params, grad string
	device                        string
	texts                         []string
	windows, valid, ctx           int
	epochs, batch, recode         int
	rate                          float64
	seed                          uint64
}

// register adds the flags of learned scales, and returns the names of those that
// say nothing where none are learned.
func (o *learnOptions) register(c *cobra.Command) (names []string) {
	own := func(name string) string {
		names = append(names, name)
		return name
	}
	f := c.Flags()
	f.BoolVar(&o.on, "learn", false, "learn scales, whatever the codebook")
	f.StringArrayVar(&o.texts, own("calib"), nil, "text `FILE` to learn scales on; repeatable, all give an equal part")
	f.Var(newNumber(&o.windows, 128, 1, maxWindows), own("calib-windows"), "`N` windows of text to learn on")
	f.Var(newNumber(&o.ctx, 2048, 3, maxContext), own("calib-ctx"), "`TOKENS` in a window")
	f.Var(newNumber(&o.valid, 8, 0, maxWindows), own("valid-windows"), "`N` more windows to hold out")
	f.Var(newWord(&o.mode, string(learn.Lutq), string(learn.Lutq), string(learn.Flute)), own("learn-mode"), "`NAME` of the way to learn: lutq or flute")
	f.Var(newWord(&o.objective, "", string(learn.KL), string(learn.NLL)), own("learn-objective"), "`NAME` of the loss: kl, the divergence from MODEL, or nll, the text's (default kl; flute nll)")
	f.Float64Var(&o.rate, own("learn-rate"), 0, "learning `RATE` (default by bits: 0.016 for 2, 0.006 for 3, 0.003 above; flute 1e-4)")
	f.Var(newNumber(&o.epochs, 1, 1, maxWindows), own("learn-epochs"), "`N` passes over the windows")
	f.Var(newNumber(&o.batch, 1, 1, maxWindows), own("learn-batch"), "`N` windows a step")
	f.Var(newNumber(&o.recode, 0, 0, maxWindows), own("learn-recode"), "choose codes anew every `N` steps (default never; flute 1)")
	f.Var(newWord(&o.grad, "ste", "ste", "lsq"), own("learn-grad"), "`NAME` of the gradient: ste holds codes fixed, lsq lets them move with the scale")
	f.Var(newWord(&o.params, "f32", "f32", "bf16"), own("learn-params"), "`TYPE` of parameters in mode flute: f32, or bf16 as published")
	f.BoolVar(&o.table, own("learn-table"), false, "learn the tables as well (mode lutq)")
	f.BoolVar(&o.control, own("learn-control"), false, "the control of an experiment: write MODEL with its weights multiplied by as many learned factors, not quantized")
	f.Uint64Var(&o.seed, own("seed"), 0, "`N` that the choice and order of windows depend on")
	f.Var(newWord(&o.device, "auto", devices()...), own("device"), "device `NAME` to learn on: auto, cpu or cuda")
	setGroup(f, "Learned scales (--method nfl, --learn)", append(names, "learn")...)
	return names
}

// learner refines a plan's layers by learning their scales. It implements
// quantize.Refiner.
type learner struct {
	ui          *ui
	model       string
	o           learnOptions
	threads     int
	bos         corpus.BOS
	texts       []lutq.CalibText
	train, hold [][]int
	decoder     *arch.Decoder
	weights     int64 // bytes of the model's tensors
	// pause, if set, takes other progress off the screen, and returns what brings it back.
	pause  func() (resume func())
	report *learn.Report
}

// check refuses flags that are no use together, or without others.
func (o *learnOptions) check() error {
	mode := learn.Mode(o.mode)
	switch {
	case len(o.texts) == 0:
		return usage("learned scales need a text: name it with --calib FILE")
	case o.params == "bf16" && mode != learn.Flute:
		return usage("--learn-params bf16 is for --learn-mode flute")
	case o.table && mode == learn.Flute:
		return usage("--learn-table is for --learn-mode lutq")
	case !(o.rate >= 0 && o.rate < 1):
		return usage("--learn-rate takes a number above 0 and below 1")
	case o.windows < len(o.texts):
		return usage("%d texts need as many windows at least: --calib-windows is %d", len(o.texts), o.windows)
	}
	return nil
}

// newLearner reads the texts.
func (u *ui) newLearner(dir string, o learnOptions, threads int) (_ *learner, err error) {
	if o.device, err = chooseDevice(o.device); err != nil {
		return nil, err
	}
	mode := learn.Mode(o.mode)
	d, err := arch.Read(dir, nil)
	if err != nil {
		return nil, fmt.Errorf("%s: scales cannot be learned: %w", dir, err)
	}
	tok, err := tokenizer.Load(dir)
	if err != nil {
		return nil, err
	}
	l := &learner{ui: u, model: dir, o: o, threads: threads, bos: corpus.BOSNone, decoder: d}
	if _, added := tok.BOS(); added || mode == learn.Flute {
		l.bos = corpus.BOSWindow
	}
	wo := learn.WindowOptions{
		Windows: o.windows, Valid: o.valid, Context: o.ctx, BOS: l.bos, BOSToken: d.BOS,
		InOrder: mode == learn.Flute, Seed: o.seed,
	}
	most := 0 // windows are drawn from all of a text
	if wo.InOrder {
		most = wo.Windows + wo.Valid
	}
	var texts []learn.Text
	var sums []hash.Hash
	for _, path := range o.texts {
		f, err := corpus.Open(path, most)
		if err != nil {
			return nil, err
		}
		defer f.Close()
		sum := sha256.New()
		sums = append(sums, sum)
		texts = append(texts, learn.Text{Name: path, Text: io.TeeReader(f, sum)})
	}
	if l.train, l.hold, err = learn.Windows(texts, tok, wo); err != nil {
		return nil, err
	}
	for i, text := range texts {
		// The sum is of the whole file, also where a part of it sufficed.
		if _, err := io.Copy(io.Discard, text.Text); err != nil {
			return nil, fmt.Errorf("%s: %w", text.Name, err)
		}
		l.texts = append(l.texts, lutq.CalibText{Name: filepath.Base(text.Name), SHA256: hex.EncodeToString(sums[i].Sum(nil))})
	}
	return l, nil
}

// Flags implements quantize.Refiner. Of a text the name is given, not its folder.
func (l *learner) Flags() []string {
	o := l.o
	var args []string
	if o.on {
		args = append(args, "--learn")
	}
	for _, t := range l.texts {
		args = append(args, "--calib", quoted(t.Name))
	}
	args = append(args, "--calib-windows", strconv.Itoa(o.windows), "--calib-ctx", strconv.Itoa(o.ctx),
		"--valid-windows", strconv.Itoa(o.valid), "--learn-mode", o.mode)
	for _, f := range []struct {
		name, value string
		given       bool
	}{
		{"--learn-objective", o.objective, o.objective != ""},
		{"--learn-rate", strconv.FormatFloat(o.rate, 'g', -1, 64), o.rate != 0},
		{"--learn-epochs", strconv.Itoa(o.epochs), o.epochs != 1},
		{"--learn-batch", strconv.Itoa(o.batch), o.batch != 1},
		{"--learn-recode", strconv.Itoa(o.recode), o.recode != 0},
		{"--learn-grad", o.grad, o.grad != "ste"},
		{"--learn-params", o.params, o.params != "f32"},
	} {
		if f.given {
			args = append(args, f.name, f.value)
		}
	}
	if o.table {
		args = append(args, "--learn-table")
	}
	return append(args, "--seed", strconv.FormatUint(o.seed, 10), "--device", o.device)
}

// quoted is a shell's word.
func quoted(s string) string {
	if strings.ContainsAny(s, " \t\n'\"\\$&|;<>()*?[]#~`!{}") {
		return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
	}
	return s
}

// Key implements quantize.Refiner.
func (l *learner) Key() string {
	key := strings.Join(l.Flags(), " ")
	for _, t := range l.texts {
		key += " " + t.SHA256
	}
	return key
}

// Refine implements quantize.Refiner.
func (l *learner) Refine(ctx context.Context, initial map[string]*lut.Matrix, state string) (map[string]*lut.Matrix, *lutq.Learning, error) {
	var better map[string]*lut.Matrix
	err := l.run(learn.Memory(initial), func(m *model.Model, o learn.Options) (rep *learn.Report, err error) {
		o.State = state
		better, rep, err = learn.Run(ctx, m, initial, o)
		return rep, err
	})
	if err != nil {
		return nil, nil, err
	}
	r := l.report
	return better, &lutq.Learning{
		Mode: string(r.Mode), Objective: string(r.Objective), Texts: l.texts, Windows: len(l.train), Context: l.o.ctx, BOS: string(l.bos),
		Tokens: r.Tokens, Steps: r.Steps, Rate: r.Rate, Seed: l.o.seed, Device: r.Device,
		ValidWindows: len(l.hold), InitialLoss: r.InitialLoss, Loss: r.Loss, BestStep: r.BestStep,
	}, nil
}

// run opens the model and has do learn with it, in so many bytes of the device's memory
// besides the model's.
func (l *learner) run(memory int64, do func(*model.Model, learn.Options) (*learn.Report, error)) (err error) {
	if l.pause != nil {
		defer l.pause()()
	}
	ops, done, err := openOps(l.o.device, "bf16", l.threads, memory)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, done()) }()
	if err := checkModelMemory(l.model, ops); err != nil {
		return err
	}
	m, err := model.Open(l.model, ops)
	if err != nil {
		return err
	}
	defer m.Close()
	bar := l.ui.startProgress("learning", 1, false)
	defer bar.finish()
	o := l.options()
	o.Progress = func(p learn.Progress) {
		bar.resize(int64(p.Steps))
		bar.set(int64(p.Step), progressLine(p))
	}
	o.Resumed = func(step, steps int) {
		l.ui.note("going on where learning stopped: %d of %d steps are done", step, steps)
	}
	o.Warn = func(s string) { fmt.Fprintf(l.ui.stderr, "lutq: %s\n", s) }
	l.report, err = do(m, o)
	return err
}

// options are the flags as package learn takes them.
func (l *learner) options() learn.Options {
	return learn.Options{
		Mode: learn.Mode(l.o.mode), Objective: learn.Objective(l.o.objective), Windows: l.train, Valid: l.hold,
		Epochs: l.o.epochs, Batch: l.o.batch, Rate: l.o.rate, Recode: l.o.recode, Seed: l.o.seed,
		BF16: l.o.params == "bf16", LSQ: l.o.grad == "lsq", Table: l.o.table,
	}
}

// Memory implements quantize.Refiner.
func (l *learner) Memory(initial map[string]*lut.Matrix) int64 {
	return learn.HostMemory(l.decoder, l.weights, initial, l.o.device, l.options())
}

// Seconds implements quantize.Refiner.
func (l *learner) Seconds(context.Context) (seconds float64, err error) {
	ops, done, err := openOps(l.o.device, "bf16", l.threads, 0)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, done()) }()
	return learn.Seconds(ops, l.decoder, l.options())
}

func progressLine(p learn.Progress) string {
	held := ""
	if p.Valid != 0 {
		held = fmt.Sprintf(" (held out %.4f)", p.Valid)
	}
	return fmt.Sprintf("loss %.4f%s, %s tokens/s", p.Loss, held, digits(p.TokensPerSecond, 3))
}
