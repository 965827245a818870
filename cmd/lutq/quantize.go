package main

import (
	"cmp"
	"context"
	"encoding"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/lutq/lutq/calib/eval"
	"github.com/lutq/lutq/calib/fit"
	"github.com/lutq/lutq/calib/learn"
	"github.com/lutq/lutq/formats/export"
	"github.com/lutq/lutq/formats/foreign"
	"github.com/lutq/lutq/formats/hf"
	"github.com/lutq/lutq/formats/input"
	"github.com/lutq/lutq/formats/lutq"
	"github.com/lutq/lutq/formats/outdir"
	"github.com/lutq/lutq/formats/source"
	"github.com/lutq/lutq/formats/weight"
	"github.com/lutq/lutq/formats/weight/bcq"
	"github.com/lutq/lutq/formats/weight/lut"
	"github.com/lutq/lutq/formats/weight/lut24"
	"github.com/lutq/lutq/formats/weight/trellis"
	"github.com/lutq/lutq/quantize"
	"github.com/lutq/lutq/quantize/planes"
	"github.com/lutq/lutq/quantize/preset"
	"github.com/lutq/lutq/quantize/rounding"
)

type quantizeOptions struct {
	threads                                   int
	bits                                      bitsFlag
	group, codebook, method, scale, scaleType string
	recipe, target, kbitEncode, preset        string
	shardsFrom                                string  // "hub" or ""
	aim                                       float64 // bits that a size is for, 0 where none is named
	rules                                     []string
	maxRAM, maxShard                          size
	dryRun, force, splitFused, json           bool
	vision, mtp                               bool
	embedBits                                 embedWidth
	mix                                       mixOptions
	parts                                     partOptions

	calib     calibOptions
	transform transformOptions
	bcq       quantize.BCQOptions
	learn     learnOptions
	given     func(flag string) bool // whether a flag is in the command line
}

func newQuantizeCommand(u *ui) *cobra.Command {
	var o quantizeOptions
	var after evaluation
	c := &cobra.Command{
		Use:   "quantize MODEL OUT",
		Short: "Store a model's linear layers in 2 to 5 bits",
		Long: `Quantize writes a smaller copy of the model MODEL to the folder OUT. Each weight
of a linear layer becomes a code of a few bits. The code chooses a number from a
table, and a scale, which neighbouring weights of a row share, multiplies it.
All other tensors are copied. MODEL is a folder, a GGUF file or org/name.

  lutq quantize MODEL OUT --bits 4
  lutq quantize MODEL OUT --bits 3 --preset best
  lutq quantize MODEL OUT --bits 3 --tensor 'down_proj=4'

"lutq help presets" tells what a preset does, "lutq help mixing" of --size and
means of bits, "lutq help formats" of tables and exceptions.`,
		Annotations: more(withLimits(`OUT is a Hugging Face folder. A quantized layer P is three tensors: P.codes,
P.scales and P.codebook. With lutq_hf.py, which it also holds, transformers
opens it (trust_remote_code=True). README.md is a model card, yours to edit.
Interrupted, the same command goes on, to the same bytes.

Towers that see or hear, projectors and layers that predict further tokens (MTP)
stay as they are. --vision and --mtp round their linear layers. Every tensor of
MODEL is in OUT, or what replaces it is: verify OUT --against MODEL checks it.

Exceptions. --tensor REGEX=bits:group:codebook:scale:scale-type:kind:method sets
the format of the tensors whose name matches. Any field may be left out.
REGEX=keep leaves them as they are. A recipe file holds the same in JSON, and
flags override its defaults:

  {"bits": 3, "codebook": "js", "tensors": [{"match": "down_proj", "bits": 4}]}`, input.Config, input.Index, input.Header, input.GGUF, input.Recipe, input.Codebook, input.Tokenizer, input.Text)),
		Args:              cobra.ExactArgs(2),
		ValidArgsFunction: folders(2),
		RunE: func(c *cobra.Command, args []string) error {
			o.given = c.Flags().Changed
			after.threads = o.threads
			return u.quantize(c.Context(), args[0], args[1], o, after)
		},
	}
	d := quantize.DefaultFormat(quantize.DefaultBits)
	f := c.Flags()
	f.Var(newWord(&o.preset, "", preset.Names()...), "preset", "recipe `NAME`: fast, good or best (default good)")
	o.bits.Bits = d.Bits
	f.Var(&o.bits, "bits", "`BITS` of a code: 1 to 8; as 3.25: a mean")
	f.Var(newWord(&o.group, fmt.Sprint(d.Group), weight.GroupNames()...), "group", "`COLUMNS` to a scale: 32 to 256, or row")
	f.Var(&o.embedBits, "embed-bits", "`BITS` of embedding and head: 2 to 6 (default 16)")
	o.mix.register(f)
	codebook := newWord(&o.codebook, "", slices.Concat([]string{quantize.AutoCodebook}, trellis.Codebooks(), lut.CodebookNames())...)
	codebook.also = "file:"
	codebook.meant = func(name string) (string, error) {
		if name == "exl3" { // by which people know it
			return trellis.Mul1, nil
		}
		return "", nil
	}
	f.Var(codebook, "codebook", "table `NAME`, or trellis (default js or nf)")
	f.Var(newWord(&o.scaleType, d.ScaleType.String(), append(weight.ScaleTypes(), "e4m3")...), "scale-type", "`TYPE` of scales: f16, bf16, f32, …")
	f.Var(newTarget(&o.target, export.PresetNames()), "for", "set what export --to `NAME` copies without loss")
	f.StringArrayVar(&o.rules, "tensor", nil, "exception: `RULE`, as down_proj=4; repeatable")
	f.StringVar(&o.recipe, "recipe", "", "JSON `FILE` with all of the above")
	f.BoolVar(&o.splitFused, "split-fused", false, "let q/k/v, or gate/up, differ in bits, group or kind")
	f.BoolVar(&o.vision, "vision", false, "quantize what sees and hears as well, to the nearest")
	f.BoolVar(&o.mtp, "mtp", false, "quantize layers that predict further tokens as well")
	f.Var(newWord(&o.method, d.Method, quantize.Methods()...), "method", "choose codes by `NAME`: rtn, gptq, …")
	f.Var(newWord(&o.scale, "", weight.ScaleMethods()...), "scale", "choose scales by `NAME`: absmax or mse (default mse)")
	o.learn.registerSwitch(f)
	f.Var(newNumber(&o.bcq.Rounds, planes.DefaultRounds, 0, maxRounds), "bcq-rounds", "fit binary codes `N` times at most")
	f.BoolVar(&o.bcq.Offset, "bcq-offset", true, "give binary codes an offset")
	o.calib.register(f)
	o.transform.register(f)
	f.StringVar(&after.text, "eval-text", "", "evaluate OUT beside MODEL on text `FILE` at the end")
	o.learn.register(f)
	f.Var(newWord(&o.kbitEncode, "", "bnb"), "kbit-encode", "k-bit codes as `NAME` makes them: bnb (default none)")
	f.Var(newNumber(&o.threads, 0, 0, maxThreads), "threads", "`N` workers (default one for each processor)")
	f.Var(&o.maxRAM, "max-ram", "most memory, as 8GB (default what is fastest)")
	f.Var(&o.maxShard, "max-shard-size", "most tensor data in a file (default 5GB)")
	f.Var(newWord(&o.shardsFrom, "", "hub"), "shards-from", "hub: fetch a file of MODEL at a time, keep none")
	f.BoolVar(&o.dryRun, "dry-run", false, "print sizes, memory and time; write nothing")
	f.BoolVar(&o.force, "force", false, "replace OUT if lutq wrote it")
	f.BoolVar(&o.json, "json", false, "print the result as JSON")
	o.parts.register(f)
	setGroup(f, "What to store", "preset", "bits", "size", "fit", "fit-ctx", "fit-runtime", "mix", "embed-bits", "group", "codebook", "scale-type", "for", "tensor", "recipe", "split-fused", "vision", "mtp")
	setGroup(f, "How", "method", "scale", "learn", "transform", "bcq-rounds", "bcq-offset", "damp", "retarget", "rescale", "stream")
	setGroup(f, "Text (for gptq, wanda, sparsegpt, nfl and --learn)", "calib", "calib-windows", "calib-ctx", "calib-bos", "seed", "device", "devices", "eval-text")
	setGroup(f, "Run", "threads", "max-ram", "max-shard-size", "shards-from", "part", "merge", "dry-run", "force", "json")
	setLater(f, "stream", "scale-type", "scale", "split-fused", "vision", "mtp", "transform", "bcq-rounds", "bcq-offset", "damp", "retarget", "rescale", "calib-bos", "seed", "devices", "max-shard-size", "shards-from")
	setResearch(f, "kbit-encode", "learn-control")
	return c
}

// check refuses flags that are no use together. It opens nothing.
func (o *quantizeOptions) check(r quantize.Recipe, after evaluation) error {
	learned, calibrated := o.learned(r), r.Calibrated()
	if err := o.checkMix(r); err != nil {
		return err
	}
	if o.given("kbit-encode") && (o.given("method") || learned) {
		return usage("--kbit-encode is a method of its own: without --method and --learn")
	}
	for _, s := range quantize.Settings() {
		if o.given(s.Flag) && !(s.Transform && o.transform.name != "") {
			if err := r.Unread(s.Flag, learned); err != nil && !(o.mixed() && s.Transform) {
				return usageError{err}
			}
		}
	}
	if err := r.Check(); err != nil {
		if o.recipe != "" {
			return err // which may be the file's fault
		}
		return usageError{err}
	}
	switch {
	case o.given("method") && o.method == "nfl" && o.given("codebook") && o.codebook != "nf":
		return usage("method nfl is for the codebook nf: %s is refined with --learn", o.codebook)
	case learned && r.Makes(bcq.Name):
		return usage("scales are learned where there is a table: weights of kind bcq have none")
	case learned && r.Makes(lut24.Name):
		return usage("scales are learned of weights of kinds lut and trellis: those of kind lut24 are not")
	case o.learn.control && after.wanted():
		return usage("--learn-control and --eval-text do not go together")
	case o.learn.control && calibrated:
		return usage("--learn-control is a model that is not quantized: a method with a text has no part in it")
	case calibrated, learned, o.mixed():
		if err := o.calib.check(o.given); err != nil {
			return err
		}
	}
	if learned {
		if err := o.learn.check(o.given); err != nil {
			return err
		}
	}
	if err := o.checkParts(r, after); err != nil {
		return err
	}
	return o.checkTransform(r)
}

// fill completes a recipe, if it is one for a target, so that the target holds what it makes of a model. It
// refuses a recipe that says otherwise, before it opens anything where it can.
func (o *quantizeOptions) fill(r *quantize.Recipe, open func() (*source.Model, error)) error {
	if o.target == "" {
		return nil
	}
	preset := export.PresetFor(o.target)
	switch {
	case r.Makes(bcq.Name):
		return usage("--for %s: binary codes have no table", o.target)
	case r.Makes(lut24.Name):
		return usage("--for %s: it has no place for a pattern of zeros", o.target)
	case r.Makes(trellis.Name) && preset.Rings == nil:
		return usage("--for %s: it has no place for rings", o.target)
	case r.Default.Method == "nfl" && preset.Tables[4] != "nf":
		return usage("--for %s: method nfl is for the codebook nf: another is refined with --learn", o.target)
	}
	all := func(do func(s *weight.Spec, rule bool) error) error {
		if err := do(&r.Default, false); err != nil {
			return usage("--for %s: %w", o.target, err)
		}
		for i := range r.Rules {
			if err := do(&r.Rules[i].Format, true); err != nil && !r.Rules[i].Keep {
				return usage("--for %s: rule %q: %w", o.target, r.Rules[i], err)
			}
		}
		return nil
	}
	err := all(func(s *weight.Spec, _ bool) error {
		known := *s
		if preset.Scales == nil {
			known.ScaleType = 0 // which the model decides
		}
		return preset.Check(known, 0)
	})
	if err != nil {
		return err
	}
	m, err := open()
	if err != nil {
		return err
	}
	src, err := m.Stored()
	if err != nil {
		return err
	}
	config, err := src.ConfigJSON()
	if err != nil {
		return err
	}
	dtype := foreign.DTypeOf(config, src.Tensors())
	return all(func(s *weight.Spec, rule bool) error {
		if rule {
			return preset.FillRule(s, dtype)
		}
		return preset.Fill(s, dtype)
	})
}

// learned reports whether scales are learned.
func (o *quantizeOptions) learned(r quantize.Recipe) bool {
	return r.Default.Method == "nfl" || o.learn.on
}

// parseRecipe puts the recipe file, the flags and the defaults together. What is
// wrong in the file is bad input, not bad usage.
func (o *quantizeOptions) parseRecipe() (quantize.Recipe, error) {
	var r quantize.Recipe
	var rules []quantize.Rule
	for _, text := range o.rules {
		rule, err := quantize.ParseRule(text)
		if err != nil {
			return r, usageError{err}
		}
		rules = append(rules, rule)
	}
	if o.recipe != "" {
		data, err := input.ReadFile(o.recipe, input.Recipe)
		if err != nil {
			return r, err
		}
		if r, err = quantize.ParseRecipe(data); err != nil {
			return r, fmt.Errorf("%s: %w", o.recipe, err)
		}
	}
	if o.given("bits") {
		r.Default.Bits, r.Default.Half = o.bits.Bits, o.bits.Half
	}
	if o.given("group") {
		g, err := weight.ParseGroup(o.group)
		if err != nil {
			return r, usageError{err}
		}
		r.Default.Group = g
	}
	for _, f := range []struct {
		flag, value string
		field       *string
	}{
		{"codebook", o.codebook, &r.Default.Codebook},
		{"method", o.method, &r.Default.Method},
	} {
		if o.given(f.flag) {
			*f.field = f.value
		}
	}
	for _, f := range []struct {
		flag, value string
		field       encoding.TextUnmarshaler
	}{
		{"scale", o.scale, &r.Default.Scale},
		{"scale-type", o.scaleType, &r.Default.ScaleType},
	} {
		if o.given(f.flag) {
			if err := f.field.UnmarshalText([]byte(f.value)); err != nil {
				return r, usageError{err}
			}
		}
	}
	if o.given("kbit-encode") {
		r.Default.Method = quantize.MethodKBit
	}
	o.widen(&r)
	r.Rules = append(r.Rules, rules...)
	r.SplitFused = r.SplitFused || o.splitFused
	r.Vision, r.MTP = r.Vision || o.vision, r.MTP || o.mtp
	r.Methods.BCQ = o.bcq
	return r, nil
}

// quantize makes a container of a model, and evaluates it after that if that is wanted.
func (u *ui) quantize(ctx context.Context, model, out string, o quantizeOptions, after evaluation) error {
	begin := time.Now()
	recipe, err := o.parseRecipe()
	if err != nil {
		return err
	}
	open := func() (*source.Model, error) { return u.open(model, source.Options{}) }
	var shards *streamedShards
	if o.shardsFrom != "" {
		shards = &streamedShards{ui: u, model: model}
		open = func() (*source.Model, error) { return shards.open(ctx) }
	}
	way, err := o.way(&recipe)
	if err != nil {
		return err
	}
	if err := o.fill(&recipe, open); err != nil {
		return err
	}
	if err := o.check(recipe, after); err != nil {
		return err
	}
	if err := o.checkShards(recipe, after); err != nil {
		return err
	}
	ro := quantize.RunOptions{
		Threads: o.threads, MaxRAM: int64(o.maxRAM), MaxShardSize: int64(o.maxShard), Force: o.force,
		Inputs: append(o.files(&recipe), after.files()...), Leave: after.wanted(),
	}
	var exists error
	if !o.dryRun {
		check := outdir.Check
		if o.parts.one() {
			check = outdir.CheckParts
		}
		err := check(out, outdir.Options{Inputs: append([]string{model}, ro.Inputs...), Force: o.force})
		if errors.Is(err, outdir.ErrExists) && (after.wanted() || o.parts.merge) && outdir.Left(out) != nil {
			exists = err // unless it is what this command made, before it was interrupted
		} else if err != nil {
			return outputHint(err)
		}
	}
	m, err := open()
	if err != nil {
		return err
	}
	if _, err := m.Weights(); err != nil {
		return err
	}
	if shards != nil {
		ro.Shards = shards.remote
	}
	o.calib.settle(m, o.learned(recipe))
	if o.maxRAM > 0 {
		// What is freed is collected in time.
		defer debug.SetMemoryLimit(debug.SetMemoryLimit(max(int64(o.maxRAM)-programBytes, 1)))
	}
	var pause pauser
	plan, learner, mixed, err := u.plan(ctx, m, &way, recipe, o, out, ro, &pause)
	if err != nil {
		return err
	}
	nameSource(plan, m)
	if err := after.check(m); err != nil {
		return err
	}
	u.warnFamily(plan)
	u.warnStacks(plan)
	if o.dryRun {
		return u.dryRun(ctx, plan, way.preset, mixed, ro, o.json)
	}
	if o.learn.control {
		if err := plan.CheckMemory(ro); err != nil {
			return err
		}
		r, err := learner.Control(ctx, plan, out, ro)
		if err != nil {
			return quantizeHint(err, out)
		}
		return u.printControl(out, r, o.json)
	}
	if o.parts.one() {
		return u.part(ctx, plan, out, ro, o, begin)
	}
	res, err := u.carryOut(ctx, plan, out, ro, &pause, exists, o.parts.merge)
	if err != nil {
		return err
	}
	if err := mixed.measure(ctx, u, out, m, &o); err != nil {
		return err
	}
	done := newQuantizeJSON(res, time.Since(begin).Seconds())
	done.mixed, done.Mix = mixed, mixed.json()
	done.Preset = way.preset
	if learner != nil {
		done.Learn = learner.ReportOf(res)
		u.warnLearned(&done)
	}
	if !o.json {
		if err := u.printQuantized(out, done); err != nil {
			return err
		}
	}
	if !after.wanted() {
		if o.json {
			return u.printJSON(done)
		}
		return u.ending(model, out, false)
	}
	report, err := after.run(ctx, u, out, m)
	if err == nil {
		err = addMeasured(out, report)
	}
	if err != nil {
		return leftHint(err, out)
	}
	if o.json {
		err = u.printJSON(struct {
			quantizeJSON
			Eval any `json:"eval"`
		}{done, report.json()})
	} else {
		fmt.Fprintln(u.stdout)
		err = u.printEval(report, "table")
	}
	if err == nil {
		err = outdir.Settle(out)
	}
	if err != nil || o.json {
		return err
	}
	return u.ending(model, out, true)
}

// carryOut carries a plan out and says what is out of the ordinary about the result. What this very command made before it was
// interrupted, with something left to do, is gone on with; otherwise exists, unless nil, stands against it.
func (u *ui) carryOut(ctx context.Context, plan *quantize.Plan, out string, ro quantize.RunOptions, others *pauser, exists error, merge bool) (res *quantize.Result, err error) {
	if ro.Leave && !merge {
		if res, err = plan.Finished(out, ro); err != nil {
			return nil, err
		}
	}
	switch {
	case res != nil:
		u.note("%s is finished: going on with its evaluation", out)
	case merge:
		if res, err = u.mergeParts(ctx, plan, out, ro); err != nil {
			return nil, quantizeHint(err, out)
		}
	case exists != nil:
		return nil, outputHint(exists)
	default:
		if res, err = u.run(ctx, plan, out, ro, others); err != nil {
			return nil, quantizeHint(err, out)
		}
	}
	u.warnRemarks(res)
	if res.OwnCode {
		fmt.Fprintf(u.stderr, "lutq: the model comes with code of its own, which its config.json still names: transformers opens %s where the program imports %s\n",
			input.Name(out), lutq.CodeName)
	}
	u.warnNarrow(res)
	u.warnRuin(res)
	return res, nil
}

// leftHint adds what to do about an evaluation that did not come to its end.
func leftHint(err error, out string) error {
	left := input.Name(out) + " is finished: the same command goes on with its evaluation"
	var h interface{ Hint() string }
	if errors.As(err, &h) {
		left = h.Hint() + "; " + left
	}
	return hintError{err, left}
}

// run carries a plan out, with its progress, which gives way to that of others.
func (u *ui) run(ctx context.Context, plan *quantize.Plan, out string, ro quantize.RunOptions, others *pauser) (*quantize.Result, error) {
	bar := u.startProgress("quantizing", plan.Totals().BytesIn, true)
	defer func() { bar.finish() }()
	ro.Progress = func(done int64, tensor string) { bar.set(done, tensor) }
	u.fetching = func(item string) { bar.note(item) }
	ro.Resumed = func(tensors int) {
		u.note("going on where an interrupted run stopped: %d of %d tensors are finished", tensors, len(plan.Items))
	}
	others.pause = func() func() {
		bar.finish()
		bar = &progress{} // for what is written meanwhile
		return func() { bar = u.startProgress("writing", plan.Totals().BytesIn, true) }
	}
	return plan.Run(ctx, out, ro)
}

// programBytes is the program's own part of its memory, which Go's limit on the
// heap does not count.
const programBytes = 30 << 20

// fit adds what fits weights to a text to a recipe that asks for it. It returns the model to quantize, and what learns
// scales, or nil.
func (u *ui) fit(ctx context.Context, m *source.Model, r *quantize.Recipe, o quantizeOptions, p *pauser) (*source.Model, *fit.Learner, error) {
	learned := o.learned(*r)
	if !learned && !r.Calibrated() && o.transform.name == "" {
		return m, nil, nil
	}
	device := o.calib.device
	if !o.parts.merge { // which runs no text, so that any machine can merge
		var err error
		if device, err = o.calib.choose(); err != nil {
			return nil, nil, err
		}
	}
	o.calib.say(u)
	var bar *progress
	fo := o.calib.options(device, o.threads)
	fo.Warn = func(s string) { fmt.Fprintf(u.stderr, "lutq: %s\n", s) }
	fo.Begin = func(doing string) func() {
		resume := p.paused()
		bar = u.startProgress(doing, 1, false)
		return func() {
			bar.finish()
			resume()
		}
	}
	show := func(done, all int, item string) {
		bar.resize(int64(all))
		bar.set(int64(done), item)
	}
	fo.Written = func(done, all int) { show(done, all, fmt.Sprintf("%d of %d tokens", done, all)) }
	fo.Unwritten = o.dryRun
	fo.Progress = func(done, all, block, blocks int) { show(done, all, fmt.Sprintf("block %d of %d", block, blocks)) }
	ready := func() error {
		src, err := m.Weights()
		if err != nil {
			return err
		}
		return checkMemory(src, device == "cpu")
	}
	if learned {
		fo.Learn = o.learn.options(o.calib.seed)
		fo.Learn.Progress = func(p learn.Progress) { show(p.Step, p.Steps, progressLine(p)) }
		fo.Learn.Resumed = func(step, steps int) { u.note("going on where learning stopped: %d of %d steps are done", step, steps) }
		fo.Learn.Warn = func(s string) { fmt.Fprintf(u.stderr, "lutq: %s\n", s) }
		fo.Learn.Ready = ready
	}
	if o.calib.self() {
		if o.dryRun {
			u.note("what the model writes itself is written first, in a time that is not counted here")
		} else if err := ready(); err != nil {
			return nil, nil, err
		}
	}
	if o.transform.name != "" && !o.dryRun {
		var err error
		if m, err = fit.Transform(ctx, m, r, &fo); err != nil {
			return nil, nil, err
		}
	}
	learner, err := fit.To(ctx, m, r, fo)
	return m, learner, err
}

// files returns the files besides the model that the options name, and the
// recipe made of them.
func (o *quantizeOptions) files(r *quantize.Recipe) []string {
	files := r.CodebookFiles()
	for _, f := range append([]string{o.recipe}, o.calib.files()...) {
		if f != "" {
			files = append(files, f)
		}
	}
	return files
}

// quantizeHint adds what to do about an error.
func quantizeHint(err error, out string) error {
	if errors.Is(err, context.Canceled) {
		return hintError{err, "the same command goes on where this one stopped; " + filepath.Clean(out) + ".partial holds what is done"}
	}
	if late, ok := errors.AsType[*quantize.FetchError](err); ok {
		hint := "the same command goes on where this one stopped"
		var h interface{ Hint() string }
		if errors.As(err, &h) && h.Hint() != "" {
			hint = h.Hint() + "; " + hint
		}
		return hintError{late.Err, hint}
	}
	var scale *rounding.ScaleError
	if errors.As(err, &scale) {
		return hintError{err, scaleHint(scale.Type, scale.Wants())}
	}
	return outputHint(err)
}

// scaleHint says what to do about scales that do not fit a type, and that another may hold.
func scaleHint(t, wants weight.ScaleType) string {
	if wants == t {
		return "no scale type holds such scales: --tensor REGEX=keep leaves a tensor as it is"
	}
	return fmt.Sprintf("--scale-type %v holds such scales, or --tensor REGEX=::::%v for a tensor alone", wants, wants)
}

// quantizeJSON is what quantize --json prints.
type quantizeJSON struct {
	Tensors       int                `json:"tensors"`
	Quantized     int                `json:"quantized"`
	Resumed       int                `json:"resumed"`
	Parameters    int64              `json:"parameters"`
	BitsPerWeight float64            `json:"bits_per_weight"`
	LinearBits    float64            `json:"linear_bits_per_weight"`
	BytesIn       int64              `json:"bytes_in"`
	BytesOut      int64              `json:"bytes_out"`
	Error         float64            `json:"error"`
	Ruined        bool               `json:"ruined"`                 // by the errors
	Experts       []quantize.Experts `json:"experts,omitempty"`      // of blocks whose experts were fitted to a text
	OutputError   float64            `json:"output_error,omitempty"` // of layers that were fitted to a text, as root mean square
	SHA256        string             `json:"sha256"`
	PeakRSS       int64              `json:"peak_rss_bytes"`
	Seconds       float64            `json:"seconds"`
	Layers        []layerJSON        `json:"layers"`

	Preset       preset.Recipe      `json:"preset,omitzero"`
	Family       string             `json:"family,omitempty"` // of the model, where it is known
	Kept         []quantize.Kept    `json:"kept"`
	Decoded      []quantize.Decoded `json:"decoded,omitempty"` // of a source that stores codes
	Transform    *lutq.Transform    `json:"transform,omitempty"`
	Calib        *lutq.Calibration  `json:"calib,omitempty"`
	Learn        *learn.Report      `json:"learn,omitempty"`
	quantize.Fit                    // of all layers
	// What was out of the ordinary about what layers read.
	Remarks []quantize.LayerRemark `json:"remarks,omitempty"`

	Mix *mixJSON `json:"mix,omitempty"` // of widths over layers

	totals quantize.Totals
	mixed  *mixture
}

// layerJSON is one stored tensor or layer.
type layerJSON struct {
	Name     string  `json:"name"`
	Shape    []int   `json:"shape"`
	DType    string  `json:"dtype,omitempty"` // of a tensor that is not quantized
	BytesIn  int64   `json:"bytes_in,omitempty"`
	BytesOut int64   `json:"bytes_out"`
	Error    float64 `json:"error,omitempty"`
	Output   float64 `json:"output_error,omitempty"` // of one that was fitted to a text
	weight.Spec
	quantize.Fit
	quantize.Narrow
	*encodingJSON
}

// encodingJSON is how a tensor is stored whose values are decoded when they are
// read.
type encodingJSON struct {
	ReadAs     hf.DType `json:"read_as"`     // the type of its values; dtype is that of the codes
	ScaleBlock [2]int   `json:"scale_block"` // rows and columns that share a scale
}

// storedAs returns the type that a tensor is stored in and, of one that is decoded,
// how.
func storedAs(t *hf.Tensor) (string, *encodingJSON) {
	e := t.Encoding()
	if e == nil {
		return string(t.DType), nil
	}
	return e.Type, &encodingJSON{ReadAs: t.DType, ScaleBlock: [2]int{e.Rows, e.Cols}}
}

func newQuantizeJSON(res *quantize.Result, seconds float64) quantizeJSON {
	worst, all := res.Ruined()
	j := quantizeJSON{
		Tensors: res.Tensors, Quantized: res.Quantized, Resumed: res.Resumed, Parameters: res.Parameters,
		BitsPerWeight: res.BitsPerWeight, LinearBits: res.LinearBits, totals: res.Totals, BytesIn: res.BytesIn, BytesOut: res.BytesOut,
		Error: res.Error, OutputError: res.OutputError, Experts: res.Experts, Ruined: all || worst != nil, SHA256: res.SHA256, PeakRSS: peakRSS(), Seconds: seconds, Family: res.Family, Kept: res.Kept, Decoded: res.Decoded,
		Transform: res.Transform, Calib: res.Calib, Remarks: res.Remarks, Fit: res.Fit,
	}
	for _, l := range res.Layers {
		j.Layers = append(j.Layers, layerJSON{
			Name: l.Layer, Shape: []int{l.N, l.K}, BytesIn: l.BytesIn, BytesOut: l.BytesOut, Error: l.Error, Output: l.OutputError, Spec: l.Format, Fit: l.Fit, Narrow: l.Narrow,
		})
	}
	return j
}

func (u *ui) printQuantized(out string, q quantizeJSON) error {
	return u.facts(func(w io.Writer) {
		fmt.Fprintf(w, "output\t%s\n", out)
		printPreset(w, q.Preset)
		fmt.Fprintf(w, "family\t%s\n", familyName(q.Family))
		fmt.Fprintf(w, "tensors\t%d, %d of them quantized\n", q.Tensors, q.Quantized)
		fmt.Fprintf(w, "size\t%s → %s (%.2fx smaller)\n", formatBytes(q.BytesIn), formatBytes(q.BytesOut), float64(q.BytesIn)/float64(q.BytesOut))
		printBits(w, q.totals)
		if q.mixed != nil {
			q.mixed.print(w)
		}
		printDecoded(w, q.Decoded)
		printKept(w, q.Kept)
		printTables(w, q.Layers)
		fmt.Fprintf(w, "relative error\t%.3f %%\n", 100*q.Error)
		if q.OutputError > 0 {
			fmt.Fprintf(w, "output error\t%.3f %% of what layers put out on the text%s\n", 100*q.OutputError, beforeLearning(q.Learn))
		}
		printTransform(w, q.Transform)
		if c := q.Calib; c != nil {
			fmt.Fprintf(w, "fitted\tto %s, %s, on %s%s\n", textNames(c.Texts), windowsName(c), c.Device, nearestCount(q.Remarks))
			printExperts(w, q.Experts)
			if q.Fit.Rows > 0 {
				fmt.Fprintf(w, "squared loss\t%.1f %% of that of rounding to nearest; %d of %d rows are rounded to nearest\n",
					100*q.Fit.Loss/q.Fit.NearestLoss, q.Fit.NearestRows, q.Fit.Rows)
			}
		}
		if r := q.Learn; r != nil {
			if r.Layers > 0 {
				fmt.Fprintf(w, "learned\t%d scales and table values of %d layers, mode %s, %d steps, %d tokens on %s\n",
					r.Parameters, r.Layers, r.Mode, r.Steps, r.Tokens, r.Device)
			} else {
				fmt.Fprintf(w, "learned\tby the run before, mode %s, %d steps, %d tokens on %s\n", r.Mode, r.Steps, r.Tokens, r.Device)
			}
			if r.InitialLoss > 0 {
				fmt.Fprintf(w, "held-out %s\t%.4f → %.4f (step %d)\n", r.Objective, r.InitialLoss, r.Loss, r.BestStep)
			}
			if r.Seconds > 0 {
				fmt.Fprintf(w, "learning took\t%.1f s, %s tokens/s\n", r.Seconds, digits(r.TokensPerSecond, 3))
			}
		}
		fmt.Fprintf(w, "sha256\t%s\n", q.SHA256)
		fmt.Fprintf(w, "time, memory\t%.1f s, %s\n", q.Seconds, formatBytes(q.PeakRSS))
	})
}

// printBits prints what a weight takes, of all and of linear layers, and what share of the bytes is not quantized at the model's ends.
func printBits(w io.Writer, t quantize.Totals) {
	fmt.Fprintf(w, "bits per weight\t%.3f over all %d parameters, %.3f in linear layers\n", t.BitsPerWeight, t.Parameters, t.LinearBits)
	if line := endsLine(t); line != "" {
		fmt.Fprintf(w, "embedding, head\t%s\n", line)
	}
}

// printTables prints what tables layers have, that of most first, and which the others are of.
func printTables(w io.Writer, layers []layerJSON) {
	of := make(map[string][]string)
	for _, l := range layers {
		if l.Codebook != "" {
			of[l.Codebook] = append(of[l.Codebook], l.Name)
		}
	}
	label := "codebook"
	byCount := func(a, b string) int { return cmp.Or(len(of[b])-len(of[a]), strings.Compare(a, b)) }
	for i, table := range slices.SortedFunc(maps.Keys(of), byCount) {
		names := ""
		if i > 0 {
			names = " (" + fewNames(of[table]) + ")"
		}
		fmt.Fprintf(w, "%s\t%s: %d%s\n", label, input.Name(table), len(of[table]), names)
		label = ""
	}
}

// fewNames lists the first two names.
func fewNames(all []string) string {
	names := input.Name(all[0])
	if len(all) > 1 {
		names += ", " + input.Name(all[1])
	}
	if more := len(all) - 2; more > 0 {
		names += fmt.Sprintf(" and %d more", more)
	}
	return names
}

// beforeLearning says of a number that it is not of what was learned.
func beforeLearning(r *learn.Report) string {
	if r == nil {
		return ""
	}
	return ", before scales were learned"
}

// nearestCount says how many layers were not fitted.
func nearestCount(remarks []quantize.LayerRemark) string {
	n := 0
	for _, r := range remarks {
		if r.Nearest {
			n++
		}
	}
	if n == 0 {
		return ""
	}
	return fmt.Sprintf(", %d layers or experts rounded to nearest", n)
}

// familyName is a model's family as tables print it.
func familyName(family string) string {
	if family == "" {
		return "none that is known"
	}
	return family
}

// warnFamily says by what rule the layers of a model of no known family are found.
func (u *ui) warnFamily(plan *quantize.Plan) {
	if _, why := plan.Family(); why != nil {
		fmt.Fprintf(u.stderr, "lutq: %s: so its linear layers are those that their names tell\n", input.Message(why.Error()))
	}
}

// warnStacks says that experts stored in one tensor, which may be most of a
// model, are left out.
func (u *ui) warnStacks(plan *quantize.Plan) {
	for _, k := range plan.Kept() {
		if k.Reason == quantize.KeptRank {
			fmt.Fprintf(u.stderr, "lutq: %s of %s stay as they are: stacks of matrices in one tensor are not quantized (%s)\n",
				formatBytes(k.Bytes), formatBytes(plan.Totals().BytesIn), input.Name(k.Names[0]))
		}
	}
}

// warnRemarks says what was out of the ordinary about what layers read, of some by name.
func (u *ui) warnRemarks(res *quantize.Result) {
	const most = 5
	for i, r := range res.Remarks {
		if left := len(res.Remarks) - i; i == most && left > 1 {
			fmt.Fprintf(u.stderr, "lutq: %d more remarks on layers or experts: --json lists them\n", left)
			return
		}
		what := input.Name(r.Layer)
		if r.Experts > 0 {
			what += fmt.Sprintf(", expert %d", r.Expert)
		}
		if r.Nearest {
			what += " is rounded to nearest"
		}
		fmt.Fprintf(u.stderr, "lutq: %s: %s\n", what, r.What)
	}
}

// warnNarrow says where scales do not fit their type and are stored as others, of some layers by name.
func (u *ui) warnNarrow(res *quantize.Result) {
	const most = 5
	var narrow []quantize.LayerResult
	for _, l := range res.Layers {
		if l.Narrow.Rows > 0 {
			narrow = append(narrow, l)
		}
	}
	if len(narrow) == 0 {
		return
	}
	wants := narrow[0].Narrow.Wants
	for i, l := range narrow {
		if left := len(narrow) - i; i == most && left > 1 {
			fmt.Fprintf(u.stderr, "lutq: %d more layers have scales that do not fit their type: --json lists them\n", left)
			break
		}
		fmt.Fprintf(u.stderr, "lutq: %s: the scales of %d of %d rows do not fit %v\n", input.Name(l.Layer), l.Narrow.Rows, l.N, l.Format.ScaleType)
		wants = max(wants, l.Narrow.Wants)
	}
	fmt.Fprintf(u.stderr, "hint: %s\n", scaleHint(narrow[0].Format.ScaleType, wants))
}

// warnRuin says where rounding has cost more than a model survives.
func (u *ui) warnRuin(res *quantize.Result) {
	worst, all := res.Ruined()
	switch {
	case all:
		fmt.Fprintf(u.stderr, "lutq: a relative error of %.1f %%: few models are of use above %.0f %%\n", 100*res.Error, 100*quantize.RuinError)
	case worst != nil:
		fmt.Fprintf(u.stderr, "lutq: %s has a relative error of %.1f %%: above %.0f %% one layer may ruin a model\n",
			input.Name(worst.Layer), 100*worst.Error, 100*quantize.RuinLayerError)
	default:
		return
	}
	if slices.ContainsFunc(res.Layers, func(l quantize.LayerResult) bool { return l.Narrow.Rows > 0 && l.Error > quantize.RuinLayerError }) {
		return // whose scales were said to be the reason, with what to do
	}
	if slices.ContainsFunc(res.Layers, func(l quantize.LayerResult) bool { return l.Format.Kind == lut24.Name }) {
		fmt.Fprintln(u.stderr, "hint: 2:4 sparse weights have such errors: 3 bits without zeros take the same bytes")
		return
	}
	if slices.ContainsFunc(res.Layers, func(l quantize.LayerResult) bool { return l.Format.Kind == trellis.Name }) {
		fmt.Fprintln(u.stderr, "hint: more --bits, by halves, or fitting to a text (--method gptq) help")
		return
	}
	fmt.Fprintln(u.stderr, ruinHint)
}

// warnLearned says where a model is ruined after its scales were learned, by the windows held out.
func (u *ui) warnLearned(q *quantizeJSON) {
	if r := q.Learn; r.Objective == learn.KL && r.Loss > eval.RuinKL {
		q.Ruined = true
		fmt.Fprintf(u.stderr, "lutq: a divergence of %s after learning: few models are of use above %v\n", digits(r.Loss, 3), eval.RuinKL)
		fmt.Fprintln(u.stderr, learnHint)
	}
}

// What helps where a model is ruined, without learned scales and with them.
const (
	ruinHint  = "hint: more --bits, smaller groups (--group 32), or scales learned from text (--learn) help"
	learnHint = "hint: more --bits, smaller groups (--group 32) or more text (--calib, --calib-windows) help"
)

// printDecoded prints what the source stores in codes, and what is written of them as
// values.
func printDecoded(w io.Writer, decoded []quantize.Decoded) {
	for _, d := range decoded {
		kept := ""
		if d.Kept > 0 {
			kept = fmt.Sprintf("; %d are kept, written as %s", d.Kept, d.KeptAs)
		}
		fmt.Fprintf(w, "decoded\t%d tensors from %s%s\n", d.Tensors, d.Encoding, kept)
	}
}

// printKept prints what is copied as it is, and why, a line for each reason.
func printKept(w io.Writer, kept []quantize.Kept) {
	label := "kept as they are"
	for _, k := range kept {
		fmt.Fprintf(w, "%s\t%s: %d, %s (%s)\n", label, k.Reason, k.Tensors, formatBytes(k.Bytes), fewNames(k.Names))
		label = ""
	}
}

// dryRun prints the plan.
func (u *ui) dryRun(ctx context.Context, plan *quantize.Plan, as preset.Recipe, mixed *mixture, o quantize.RunOptions, asJSON bool) error {
	if o.Shards == nil { // else that comes with the files
		if err := plan.Choose(ctx, o); err != nil {
			return err
		}
	}
	est, err := plan.Estimate(ctx, o)
	if err != nil {
		return err
	}
	if mixed != nil {
		est.Seconds += mixed.seconds
	}
	t := plan.Totals()
	var fetchFiles int
	var fetchBytes int64
	if o.Shards != nil {
		fetchFiles, fetchBytes = plan.FetchBytes(o.Shards)
	}
	if asJSON {
		recipe, err := plan.Recipe.File()
		if err != nil {
			return err
		}
		out := struct {
			Tensors       int         `json:"tensors"`
			Quantized     int         `json:"quantized"`
			Parameters    int64       `json:"parameters"`
			BitsPerWeight float64     `json:"bits_per_weight"`
			LinearBits    float64     `json:"linear_bits_per_weight"`
			BytesIn       int64       `json:"bytes_in"`
			BytesOut      int64       `json:"bytes_out"`
			PeakRAM       int64       `json:"peak_ram_bytes"`
			Device        int64       `json:"gpu_bytes,omitempty"`
			Seconds       float64     `json:"expected_seconds"`
			Layers        []layerJSON `json:"layers"`

			Recipe  json.RawMessage    `json:"recipe"` // as --recipe takes it
			Preset  preset.Recipe      `json:"preset,omitzero"`
			Family  string             `json:"family,omitempty"`
			Kept    []quantize.Kept    `json:"kept"`
			Decoded []quantize.Decoded `json:"decoded,omitempty"`

			Mix *mixJSON `json:"mix,omitempty"`

			FetchFiles int   `json:"fetch_files,omitempty"` // of the hub, one at a time
			FetchBytes int64 `json:"fetch_bytes,omitempty"`
		}{t.Tensors, t.Quantized, t.Parameters, t.BitsPerWeight, t.LinearBits, t.BytesIn, t.BytesOut, est.PeakRAM, est.Device, est.Seconds, nil, recipe, as, "", plan.Kept(), plan.Decoded(), mixed.json(), fetchFiles, fetchBytes}
		out.Family, _ = plan.Family()
		out.Layers = plannedLayers(plan)
		return u.printJSON(out)
	}
	if err := u.printPlan(plan); err != nil {
		return err
	}
	fmt.Fprintln(u.stdout)
	if mixed != nil {
		if err := u.printSets(mixed); err != nil {
			return err
		}
		fmt.Fprintln(u.stdout)
	}
	family, _ := plan.Family()
	return u.facts(func(w io.Writer) {
		printPreset(w, as)
		fmt.Fprintf(w, "family\t%s\n", familyName(family))
		fmt.Fprintf(w, "tensors\t%d, %d of them quantized\n", t.Tensors, t.Quantized)
		fmt.Fprintf(w, "size\t%s → %s\n", formatBytes(t.BytesIn), formatBytes(t.BytesOut))
		printBits(w, t)
		if mixed != nil {
			mixed.print(w)
		}
		printDecoded(w, plan.Decoded())
		printKept(w, plan.Kept())
		if o.Shards != nil {
			fmt.Fprintf(w, "to fetch\t%s in %d files\n", formatBytes(fetchBytes), fetchFiles)
		}
		fmt.Fprintf(w, "expected memory\t%s at most\n", formatBytes(est.PeakRAM))
		if est.Device > 0 {
			fmt.Fprintf(w, "of the GPU\tabout %s for calibration\n", formatBytes(est.Device))
		}
		learning := ""
		switch {
		case plan.Recipe.Refine != nil:
			learning = ", learning included"
		case plan.Recipe.Calibrate != nil:
			learning = ", running the text included"
		case o.Shards != nil:
			learning = ", without the download"
		}
		fmt.Fprintf(w, "expected time\t%s%s\n", time.Duration(est.Seconds*float64(time.Second)).Round(100*time.Millisecond), learning)
	})
}

// plannedLayers lists what is planned for each tensor.
func plannedLayers(plan *quantize.Plan) (all []layerJSON) {
	for i := range plan.Items {
		it := &plan.Items[i]
		l := layerJSON{
			Name: it.Tensor.Name, Shape: it.Tensor.Shape,
			BytesIn: it.Tensor.StoredBytes(), BytesOut: it.BytesOut, Spec: it.Format,
		}
		l.DType, l.encodingJSON = storedAs(it.Tensor)
		all = append(all, l)
	}
	return all
}

// planShape: what a tensor becomes matters more than what it was.
func planShape() tableShape {
	return tableShape{names: []string{"tensor"}, drop: []string{"before", "shape", "from", "after"}}
}

// printPlan prints what is planned for each tensor.
func (u *ui) printPlan(plan *quantize.Plan) error {
	return u.table(planShape(), func(w io.Writer) {
		fmt.Fprintln(w, "tensor\tshape\tfrom\tto\tbefore\tafter")
		for i := range plan.Items {
			it := &plan.Items[i]
			to := string(it.Tensor.DType)
			if it.Quantized() {
				to = formatName(it.Format)
			}
			fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\n", input.Name(it.Tensor.Name), shapeName(it.Tensor.Shape), it.Tensor.StoredAs(), to,
				formatBytes(it.Tensor.StoredBytes()), formatBytes(it.BytesOut))
		}
	})
}

// formatName prints a format as a --tensor rule spells it, but for the method.
func formatName(f weight.Spec) string {
	f.Method = ""
	if f.Kind == lutq.Kinds()[0].Name() {
		f.Kind = "" // which goes without saying
	}
	return f.Fields()
}

// shapeName prints a shape as 4096×4096.
func shapeName(shape []int) string {
	if len(shape) == 0 {
		return "scalar"
	}
	dims := make([]string, len(shape))
	for i, d := range shape {
		dims[i] = fmt.Sprint(d)
	}
	return strings.Join(dims, "×")
}

// printExperts prints how the tokens of a text lie over experts: a line for all blocks, and one for each of the few that had the least.
func printExperts(w io.Writer, all []quantize.Experts) {
	if len(all) == 0 {
		return
	}
	experts, never, filled := 0, 0, 0
	for _, x := range all {
		experts, filled = experts+len(x.Tokens), filled+x.Filled
		for _, n := range x.Tokens {
			if n == 0 {
				never++
			}
		}
	}
	fmt.Fprintf(w, "experts\t%d in %d layers, %d to a token; never chosen: %.1f %%; with too few tokens, fitted to others' too: %.1f %%\n",
		experts, len(all), all[0].Top, 100*float64(never)/float64(experts), 100*float64(filled)/float64(experts))
	const most = 3
	few := slices.Clone(all)
	slices.SortStableFunc(few, func(a, b quantize.Experts) int { return cmp.Compare(a.Least, b.Least) })
	for _, x := range few[:min(most, len(few))] {
		fmt.Fprintf(w, "\t%s: %d tokens at least, %d at the median, %.1f %% never chosen\n", x.Block, x.Least, x.Median, 100*x.Never)
	}
}
