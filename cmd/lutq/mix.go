package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"strconv"
	"time"

	"github.com/spf13/pflag"

	"github.com/lutq/lutq/calib/corpus"
	"github.com/lutq/lutq/calib/eval"
	"github.com/lutq/lutq/calib/model"
	"github.com/lutq/lutq/calib/probe"
	"github.com/lutq/lutq/formats/arch"
	"github.com/lutq/lutq/formats/input"
	"github.com/lutq/lutq/formats/source"
	"github.com/lutq/lutq/formats/weight"
	"github.com/lutq/lutq/formats/weight/lut"
	"github.com/lutq/lutq/gemm/cpu"
	"github.com/lutq/lutq/quantize"
	"github.com/lutq/lutq/quantize/mix"
)

// bitsFlag takes the width of a code, or as a mean over layers a number of bits for each weight of a linear layer.
type bitsFlag struct {
	width
	mean float64 // 0 where a width was given
}

func (b *bitsFlag) String() string {
	if b.mean != 0 {
		return strconv.FormatFloat(b.mean, 'g', -1, 64)
	}
	return b.width.String()
}

// Set implements pflag.Value.
func (b *bitsFlag) Set(s string) error {
	err := b.width.Set(s)
	if err == nil {
		b.mean = 0
		return nil
	}
	v, mean := strconv.ParseFloat(s, 64)
	if least, most := quantize.Widths(); mean != nil || v < float64(least) || v > float64(most) || v == math.Trunc(v) {
		return err
	}
	b.mean, b.Bits, b.Half = v, 0, false
	return nil
}

// mixOptions are the flags of bits that are mixed over layers.
type mixOptions struct {
	on      bool // --mix
	size    size // of all of the output
	fit     size // of memory
	fitCtx  int
	runtime string
}

// register adds the flags.
func (o *mixOptions) register(f *pflag.FlagSet) {
	f.BoolVar(&o.on, "mix", false, "mix widths in as many bytes as --bits takes")
	f.Var(&o.size, "size", "mix widths so that OUT has `SIZE`, as 4.6GB")
	f.Var(&o.fit, "fit", "mix widths so that OUT runs in `SIZE` of memory")
	f.Var(newNumber(&o.fitCtx, 0, 1, maxContext), "fit-ctx", "with texts of `N` tokens (default 8192 at most)")
	f.Var(newWord(&o.runtime, string(probe.Lutq), probe.Runtimes()...), "fit-runtime", "by program `NAME`: lutq, vllm, …")
	setLater(f, "mix", "fit-ctx", "fit-runtime")
}

// mixed reports whether widths are mixed over layers.
func (o *quantizeOptions) mixed() bool { return o.bits.mean != 0 || o.mix.on || o.mix.whole() }

// whole reports whether the goal is of the whole model, of which embedding and head are a part.
func (o *mixOptions) whole() bool { return o.size != 0 || o.fit != 0 }

// widen takes what is no width of tables for a mean of widths: 2.5 bits, which only rings have as they are.
func (o *quantizeOptions) widen(r *quantize.Recipe) {
	if r.Default.Half && o.given("bits") && o.recipe == "" && r.Complete().Default.Kind == lut.Name {
		o.bits.mean = float64(r.Default.Rate()) / 2
	}
	if o.bits.mean != 0 {
		r.Default.Bits, r.Default.Half = 0, false
	}
}

// checkMix refuses flags that are no use with mixed widths.
func (o *quantizeOptions) checkMix(r quantize.Recipe) error {
	switch {
	case o.given("mix") && !o.mix.on && o.bits.mean != 0:
		return usage("--bits %v is a mean of widths, which --mix=false leaves alike: name a width", &o.bits)
	case o.given("mix") && !o.mix.on && o.mix.whole():
		return usage("--size and --fit mix widths, which --mix=false forbids")
	case (o.given("fit-ctx") || o.given("fit-runtime")) && o.mix.fit == 0:
		return usage("--fit-ctx and --fit-runtime are for --fit")
	case !o.mixed():
		return nil
	case o.mix.size != 0 && o.mix.fit != 0:
		return usage("--size and --fit are two goals: name one")
	case o.given("bits") && o.mix.whole():
		return usage("--size and --fit say how many bits there are: without --bits")
	case o.target != "":
		return usage("--for %s takes one width: without --mix, and with whole --bits", o.target)
	}
	if _, err := probe.CandidatesFor(r, false); err != nil {
		return usageError{err}
	}
	return nil
}

// Sets are probed with about probeTokens, of windows of probeContext at most that are drawn from the text. Half as many tokens change
// what a set loses by 3 % in the mean. Where that is more than so many multiplications on the processors of a host, it is half of
// that, or a quarter or an eighth.
const (
	probeTokens  = 4096
	probeContext = 512
	probeWork    = 6e12
	heldWindows  = 16 // to measure the result on
)

// mixture is what was made of mixed widths.
type mixture struct {
	*probe.Allocation
	memory   *probe.Memory // where that is the goal
	size     int64         // of all files, where that is
	goal     string
	uniform  float64 // predicted divergence with the same width throughout, 0 where that is no part of the goal
	seconds  float64
	tokens   int // probed with
	held     [][]int
	device   string
	measured *eval.Comparison
}

// mixWidths measures how much a model loses by each set of its layers, and makes what that says the rules of a recipe, which is complete but
// for them. It is nil where widths are not mixed.
func (u *ui) mixWidths(ctx context.Context, m *source.Model, r *quantize.Recipe, o quantizeOptions) (*mixture, error) {
	if !o.mixed() {
		return nil, nil
	}
	begin := time.Now()
	sets, err := quantize.SetsOf(m)
	if err != nil {
		return nil, hintError{fmt.Errorf("widths are mixed by what the model loses, and it cannot be run: %w", err), "whole --bits need no text, and --tensor gives layers widths by hand"}
	}
	candidates, err := probe.CandidatesFor(*r, o.mix.whole())
	if err != nil {
		return nil, err
	}
	x := &mixture{}
	if x.device, err = o.calib.choose(); err != nil {
		return nil, err
	}
	windows, err := x.read(ctx, u, m, o, r.Calibrated())
	if err != nil {
		return nil, err
	}
	ops, done, err := o.calib.openFirst(x.device, "f32", cpu.Options{Threads: o.threads}, 0)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, done()) }()
	po := probe.Options{Windows: windows, Run: quantize.RunOptions{Threads: o.threads}}
	var paths [][]string
	for _, s := range sets {
		paths = append(paths, s.Layers)
	}
	d, err := m.Decoder()
	if err != nil {
		return nil, err
	}
	for x.device == "cpu" && len(po.Windows) > probeTokens/probeContext/8 && model.ProbeWork(d, model.ProbeOptions{Windows: po.Windows, Sets: paths}) > probeWork {
		po.Windows = po.Windows[:len(po.Windows)/2]
	}
	for _, w := range po.Windows {
		x.tokens += len(w)
	}
	bar := u.startProgress("probing", 1, false)
	po.Progress = func(done, all int) {
		bar.resize(int64(all))
		bar.set(int64(done), fmt.Sprintf("%d sets of layers", len(sets)))
	}
	s, err := probe.Measure(ctx, m, ops, sets, po)
	if stats, ok := ops.(model.StatsOps); ok && err == nil && r.Calibrated() {
		err = probe.Fitted(ctx, m, stats, sets, s, o.calib.damp, o.calib.retarget, po)
	}
	bar.finish()
	if err != nil {
		return nil, err
	}
	if x.Allocation, err = probe.NewAllocation(ctx, m, *r, sets, s, candidates); err != nil {
		return nil, err
	}
	switch {
	case o.mix.size != 0:
		err = x.toSize(m, r, &o)
	case o.mix.fit != 0:
		err = x.toMemory(d, r, &o)
	default:
		err = x.toBits(ctx, m, r, &o)
	}
	if err != nil {
		return nil, err
	}
	x.Apply(r)
	x.seconds = time.Since(begin).Seconds()
	return x, nil
}

// read reads the windows to probe with, and those to measure the result on, which nothing is fitted to.
func (x *mixture) read(ctx context.Context, u *ui, m *source.Model, o quantizeOptions, calibrated bool) (windows [][]int, err error) {
	fo := o.calib.options(x.device, o.threads)
	fo.Warn = func(s string) { fmt.Fprintf(u.stderr, "lutq: %s\n", s) }
	if !calibrated && !o.learn.on {
		if o.calib.unnamed {
			u.note("no text is named: probing with the bundled one (--calib FILE names another)")
		}
		fo.Context = min(fo.Context, probeContext)
		fo.Windows = max(min(fo.Windows, probeTokens/max(fo.Context, 2)), len(fo.Texts))
	}
	if o.learn.on {
		fo.Learn = o.learn.options(o.calib.seed)
	}
	var text *corpus.Mixture
	for held := heldWindows; ; held /= 2 { // a text may be short
		if text, x.held, err = fo.Hold(ctx, m, held); err == nil {
			break
		}
		if held == 0 && (calibrated || fo.Windows == 1) {
			return nil, err
		}
		if held == 0 {
			fo.Windows, held = max(fo.Windows/2, 1), 1
		}
	}
	for _, w := range drawnWindows(text.Windows, max(probeTokens/min(text.Context, probeContext), 1)) {
		if w = w[:min(len(w), probeContext)]; len(w) > 1 {
			windows = append(windows, w)
		}
	}
	for i, w := range x.held {
		x.held[i] = w[:min(len(w), probeContext)]
	}
	return windows, nil
}

// drawnWindows returns n windows of all, the same whenever they are drawn. Windows are not in any order that has a meaning, but texts take turns.
func drawnWindows(all [][]int, n int) (some [][]int) {
	n = max(min(n, len(all)), 1)
	for _, i := range rand.New(rand.NewPCG(1, uint64(len(all)))).Perm(len(all))[:n] {
		some = append(some, all[i])
	}
	return some
}

// toBits divides what the mean of bits gives linear layers, or one width for all would.
func (x *mixture) toBits(ctx context.Context, m *source.Model, r *quantize.Recipe, o *quantizeOptions) error {
	var ends, weights int64
	for _, p := range x.Parts {
		switch {
		case p.End:
			ends += p.Choices[0].Bytes
		case p.Choices[0].Bits != 0:
			weights += p.Weights
		default:
			ends += p.Choices[0].Bytes // kept by a rule
		}
	}
	if weights == 0 {
		return errors.New("no linear layer is left to mix widths over")
	}
	var budget int64
	if o.bits.mean != 0 {
		x.goal = fmt.Sprintf("%v bits a weight of linear layers", &o.bits)
		budget = int64(o.bits.mean * float64(weights) / 8)
	} else {
		alike, err := quantize.NewPlan(m, *r)
		if err != nil {
			return err
		}
		uniform, err := x.Uniform(ctx, alike)
		if err != nil {
			return err
		}
		budget, x.uniform = uniform.Bytes-ends, uniform.Loss
		x.goal = fmt.Sprintf("the bytes of %s bits throughout", r.Complete().Default.Width())
	}
	err := x.Allocate(budget + ends)
	var short *mix.BudgetError
	if errors.As(err, &short) {
		least := 8 * float64(short.Least-ends) / float64(weights)
		return hintError{
			fmt.Errorf("--bits %v: linear layers take %v bits a weight at least, scales included", &o.bits, math.Ceil(least*1000)/1000),
			fewerHint(r),
		}
	}
	return err
}

// toSize divides what is left of a size for all files. What stands around the tensors depends on the choices by a little, so they are made
// again where it came out larger.
func (x *mixture) toSize(m *source.Model, r *quantize.Recipe, o *quantizeOptions) error {
	goal := int64(o.mix.size)
	x.goal = formatBytes(goal) + " of files"
	ro := quantize.RunOptions{MaxShardSize: int64(o.maxShard)}
	alike, err := quantize.NewPlan(m, *r)
	if err != nil {
		return err
	}
	around, err := alike.OutBytes(ro)
	if err != nil {
		return err
	}
	around -= alike.Totals().BytesOut
	for range 8 {
		err := x.Allocate(goal - around - x.Fixed)
		var short *mix.BudgetError
		if errors.As(err, &short) {
			least := short.Least + around + x.Fixed
			return hintError{
				fmt.Errorf("--size %s: the least possible is %s, of which other files and tensors that stay take %s", formatBytes(goal), formatBytes(least), formatBytes(around+x.Fixed+x.kept())),
				x.smallerHint(r, o),
			}
		}
		if err != nil {
			return err
		}
		as := *r
		x.Apply(&as)
		plan, err := quantize.NewPlan(m, as)
		if err != nil {
			return err
		}
		if x.size, err = plan.OutBytes(ro); err != nil {
			return err
		}
		if x.size <= goal {
			return nil
		}
		around = max(around+1, x.size-plan.Totals().BytesOut)
	}
	return fmt.Errorf("--size %s: no division of it was found", formatBytes(goal))
}

// kept returns the bytes of sets that have no choice but to stay as they are.
func (x *mixture) kept() (n int64) {
	for _, p := range x.Parts {
		if len(p.Choices) == 1 && p.Choices[0].Bits == 0 {
			n += p.Choices[0].Bytes
		}
	}
	return n
}

// toMemory divides what is left of a size of memory when a text is run.
func (x *mixture) toMemory(d *arch.Decoder, r *quantize.Recipe, o *quantizeOptions) error {
	goal, runtime, tokens := int64(o.mix.fit), probe.Runtime(o.mix.runtime), o.mix.fitCtx
	if tokens == 0 {
		tokens = probe.FitContext(d)
	}
	x.goal = fmt.Sprintf("%s of memory", formatBytes(goal))
	err := x.Allocate(probe.WeightsFor(runtime, d, goal, tokens) - x.Fixed)
	var short *mix.BudgetError
	if errors.As(err, &short) {
		least := probe.MemoryFor(runtime, d, short.Least+x.Fixed, tokens)
		hint := x.smallerHint(r, o)
		if least.Cache > least.Total/20 {
			hint = "--fit-ctx N, with fewer tokens, takes less; " + hint
		}
		return hintError{
			fmt.Errorf("--fit %s: %s takes %s at least: weights %s, %d tokens of cache %s, working %s",
				formatBytes(goal), runtime, formatBytes(least.Total), formatBytes(least.Weights), tokens, formatBytes(least.Cache), formatBytes(least.Working)),
			hint,
		}
	}
	if err != nil {
		return err
	}
	memory := probe.MemoryFor(runtime, d, x.Chosen().Bytes+x.Fixed, tokens)
	x.memory = &memory
	return nil
}

// ringsHint says what takes less than tables do.
const ringsHint = "--codebook trellis goes down to 1.5 bits"

// smallerHint says what makes the least size smaller.
func (x *mixture) smallerHint(r *quantize.Recipe, o *quantizeOptions) string {
	switch {
	case o.embedBits > leastEmbed:
		return fmt.Sprintf("--embed-bits %d takes less, and so does leaving it out", leastEmbed)
	case r.Complete().Default.Kind == lut.Name:
		return ringsHint
	}
	return "a smaller model is better at such sizes"
}

// fewerHint says what takes fewer bits than the least that a recipe's kind is mixed of.
func fewerHint(r *quantize.Recipe) string {
	if r.Complete().Default.Kind == lut.Name {
		return ringsHint
	}
	return "--bits 1 takes less"
}

// print says what was divided.
func (x *mixture) print(w io.Writer) {
	t := x.Chosen()
	fmt.Fprintf(w, "mixed widths\tto %s: %s\n", x.goal, x.summary())
	fmt.Fprintf(w, "predicted KL\t%s", digits(t.Loss, 3))
	if x.uniform > 0 {
		fmt.Fprintf(w, ", and %s with one width", digits(x.uniform, 3))
	}
	fmt.Fprintf(w, " (probed with %d tokens in %.1f s)\n", x.tokens, x.seconds)
	if x.size > 0 {
		fmt.Fprintf(w, "all files\t%s at most\n", formatBytes(x.size))
	}
	if m := x.memory; m != nil {
		fmt.Fprintf(w, "memory\t%s by estimate in %s: weights %s, %d tokens of cache %s, working %s\n",
			formatBytes(m.Total), m.Runtime, formatBytes(m.Weights), m.Context, formatBytes(m.Cache), formatBytes(m.Working))
	}
	if c := x.measured; c != nil {
		fmt.Fprintf(w, "measured KL\t%s", digits(c.KLMean, 3))
		if c.KLMeanCI != nil {
			fmt.Fprintf(w, " (%s to %s)", digits(c.KLMeanCI[0], 3), digits(c.KLMeanCI[1], 3))
		}
		fmt.Fprintf(w, " on %d windows held out\n", len(x.held))
	}
}

// summary says how many sets have which width.
func (x *mixture) summary() string {
	counts := make(map[string]int)
	var order []string
	for rate := 2; rate <= 32; rate++ {
		for _, p := range x.Parts {
			if c := p.Choices[p.Chosen]; !p.End && c.Rate() == rate {
				name := c.Width()
				if counts[name] == 0 {
					order = append(order, name)
				}
				counts[name]++
			}
		}
	}
	s := ""
	for i, name := range order {
		if i > 0 {
			s += ", "
		}
		sets := "sets"
		if counts[name] == 1 {
			sets = "set"
		}
		s += fmt.Sprintf("%s bits in %d %s", name, counts[name], sets)
	}
	return s
}

// mixJSON is what is said of mixed widths as JSON.
type mixJSON struct {
	Goal        string        `json:"goal"`
	Bytes       int64         `json:"bytes"`                    // of the sets
	Files       int64         `json:"bytes_of_files,omitempty"` // of all, at most, where that is the goal
	Memory      *probe.Memory `json:"memory,omitempty"`         // by estimate, where that is
	PredictedKL float64       `json:"predicted_kl"`
	UniformKL   float64       `json:"uniform_kl,omitempty"` // predicted, with one width in as many bytes
	MeasuredKL  float64       `json:"measured_kl,omitempty"`
	MeasuredCI  *[2]float64   `json:"measured_kl_ci,omitempty"`
	HeldWindows int           `json:"held_windows,omitempty"`
	Tokens      int           `json:"probe_tokens"`
	Seconds     float64       `json:"probe_seconds"`
	Sets        []mixSetJSON  `json:"sets"`
}

type mixSetJSON struct {
	Layers      []string `json:"layers"`
	Weights     int64    `json:"weights"`
	Bytes       int64    `json:"bytes"`
	ProbedKL    float64  `json:"probed_kl"` // rounded to the width of reference
	PredictedKL float64  `json:"predicted_kl"`
	weight.Spec
}

func (x *mixture) json() *mixJSON {
	if x == nil {
		return nil
	}
	t := x.Chosen()
	j := &mixJSON{Goal: x.goal, Bytes: t.Bytes, PredictedKL: t.Loss, UniformKL: x.uniform, Tokens: x.tokens, Seconds: x.seconds, Files: x.size, Memory: x.memory}
	if c := x.measured; c != nil {
		j.MeasuredKL, j.MeasuredCI, j.HeldWindows = c.KLMean, c.KLMeanCI, len(x.held)
	}
	for _, p := range x.Parts {
		c := p.Choices[p.Chosen]
		j.Sets = append(j.Sets, mixSetJSON{p.Layers, p.Weights, c.Bytes, p.KL, c.Loss, c.Spec})
	}
	return j
}

// printSets prints what each set gets.
func (u *ui) printSets(x *mixture) error {
	return u.table(tableShape{names: []string{"layers"}, drop: []string{"probed KL"}}, func(w io.Writer) {
		fmt.Fprintln(w, "layers\tto\tsize\tpredicted KL\tprobed KL")
		for _, p := range x.Parts {
			c := p.Choices[p.Chosen]
			to := "as it is"
			if c.Bits != 0 {
				to = formatName(c.Spec)
			}
			fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\n", input.Name(p.Name()), to, formatBytes(c.Bytes), digits(c.Loss, 3), digits(p.KL, 3))
		}
	})
}

// measure evaluates a container beside its original on the windows that were held out.
func (x *mixture) measure(ctx context.Context, u *ui, out string, original *source.Model, o *quantizeOptions) (err error) {
	if x == nil || len(x.held) == 0 {
		return nil
	}
	src, err := original.Weights()
	if err != nil {
		return err
	}
	if checkMemory(src, x.device == "cpu") != nil {
		return nil // which is worth no failure
	}
	ops, done, err := o.calib.openFirst(x.device, "f32", cpu.Options{Threads: o.threads}, 0)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, done()) }()
	made, err := source.Open(out, source.Options{})
	if err != nil {
		return err
	}
	defer made.Close()
	ref, err := model.Open(original, ops, model.OpenOptions{})
	if err != nil {
		return err
	}
	defer ref.Close()
	candidate, err := model.Open(made, ops, model.OpenOptions{})
	if err != nil {
		return err
	}
	defer candidate.Close()
	set := &corpus.Set{}
	for _, w := range x.held {
		if len(w) > 1 {
			set.Windows = append(set.Windows, corpus.Window{Tokens: w, ScoreFrom: 1})
			set.Context = max(set.Context, len(w))
		}
	}
	bar := u.startProgress("measuring", int64(len(set.Windows)), false)
	res, err := eval.Run(ctx, ref, []eval.Model{candidate}, set, eval.Options{
		Ops: ops, Progress: func(p eval.Progress) { bar.set(int64(p.Done), "beside the original") },
	})
	bar.finish()
	if err != nil {
		return err
	}
	x.measured = res[0].Comparison
	return nil
}

const mixTopic = `Layers differ in how much a model loses by them: a bit more for one may gain
what two bits cost another. So lutq mixes widths where --bits is no width by
itself, as 3.25, which is the mean of stored bits for each weight of the linear
layers, scales included; where --size or --fit gives a size; and with --mix, in
as many bytes as one width takes.

How. Each set of layers that runtimes fuse (queries, keys and values; what
comes after them; gate and up; down; the experts of a block alike), and with
--size and --fit embedding and head, is rounded to 3 bits alone (embedding and
head: 4). A few thousand tokens of the text (--calib) run through the model
with it, and the divergence from the original's predictions is what the set
costs. What other widths cost follows from the squared errors of weights, and
where layers are fitted (--method gptq) from what that leaves of the errors of
outputs. Then bytes are divided so that the sum of divergences is least. Sums
hold for small ones: the report has the predicted divergence, and beside it the
one that was measured on windows of the text that nothing was fitted to.

What sets may get: tables of 2 to 5 bits in groups of 64 or 128 columns, or of
--group; trellis codes of 1.5 to 6 bits by halves. Embedding and head: tables
of 3 to 5 bits, trellis codes of 3 to 6, or the 16 bits that they have. What a
--tensor rule or --embed-bits gives bits stays as it says. The result is rules
by layer, which the recorded command has: it makes the same bytes again without
probing. --dry-run probes too, and prints what each set gets.

  lutq quantize MODEL OUT --bits 3.25
  lutq quantize MODEL OUT --size 4.6GB --preset best
  lutq quantize MODEL OUT --fit 8GB --fit-ctx 16384 --fit-runtime vllm

--size counts all files of OUT. The model card has room to be edited in.

--fit counts on one GPU that runs one text of --fit-ctx tokens:

  weights   as they are stored. Runtimes that lutq exports to have other sizes
  cache     4 bytes x KV heads x head size x tokens, for each block; with a
            window no more tokens than that has
  working   600 MiB for the driver and libraries, 2 bytes x r x (4 hidden +
            2 MLP + queries + 2 keys) for r tokens of a prompt at once, and 4
            bytes for each logit:
              lutq          r = 512; logits of one token
              transformers  r = all tokens; 80 MiB to unpack weights, and the
                            cache of a block twice more
              vllm          r = 2048; logits of 256 tokens, 1 GiB of graphs, and
                            all that is 9/10 of the total
              llama.cpp     r = 512; logits of as many

The numbers of working memory are rules of thumb and not measured.`
