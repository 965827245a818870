package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"path/filepath"
	"slices"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/lutq/lutq/calib/corpus"
	"github.com/lutq/lutq/calib/eval"
	"github.com/lutq/lutq/calib/model"
	"github.com/lutq/lutq/calib/tokenizer"
	"github.com/lutq/lutq/formats/input"
	"github.com/lutq/lutq/formats/lutq"
	"github.com/lutq/lutq/formats/source"
	"github.com/lutq/lutq/gemm/cpu"
	"github.com/lutq/lutq/gemm/cuda/driver"
)

type evalOptions struct {
	text, against, protocol, bos string
	windows, ctx, threads        int
	noVerify, json               bool
	format                       string
	deviceFlags
	actFlag
	tableFlag

	tiles tileFolders
}

func newEvalCommand(u *ui) *cobra.Command {
	o := evalOptions{tiles: tileFolders{ui: u}}
	c := &cobra.Command{
		Use:   "eval-ppl MODEL... --text FILE",
		Short: "Measure a model's perplexity on a text",
		Long: `Eval-ppl measures how well a model predicts a text: its perplexity, of which
less is better. MODEL is a Hugging Face folder, a GGUF file, or a folder that
lutq has quantized, which is evaluated from its packed weights.

  lutq eval-ppl OUT --text wiki.txt --against MODEL

--against names the original. It reads the same tokens, and the report compares:
the Kullback-Leibler divergence from it (mean, median, 99th percentile), the
share of tokens for which both models find the same one most likely, and the
logarithm of the ratio of perplexities, with a 95 % interval.

A protocol (--protocol) says how the text becomes windows of tokens:
  raw        the file as it is, in consecutive windows of --ctx tokens. All
             tokens of a window but the first are scored
  gptq       the same on the rows of the WikiText dataset, joined by blank
             lines, after one BOS token if the tokenizer adds it: as papers
             report
  llama.cpp  windows of 512 tokens, BOS first. The second half of each is scored
The end of the text that does not fill a window is left out.`,
		Annotations: more(withLimits(`Several MODELs share one pass over the original. Each is compared with those
before it too. All must make the same tokens of the text. Intervals come from a
paired bootstrap over windows. The report warns where a model is ruined.

A quantized model is checked while it is read: config.json, the tokenizer,
headers and tensors have a SHA-256. Exit code 3 means that one differs.
--no-verify leaves that out.

Tiles. lutq repack lays a model out for a device, in the cache folder or in one
that --tiles names. Eval-ppl then reads its layers from there, and checks them
by a checksum.

It knows Llama, Mistral, Ministral 3, SmolLM2 and 3, Qwen2, 2.5 and 3, Gemma 2
and 3, Phi-3 and 4, OLMo 2 and 3, Seed-OSS, Granite, ERNIE 4.5, Hunyuan, gpt-
oss, Mixtral, Qwen2-MoE and Qwen3-MoE, GLM-4.5 to 4.7, MiniMax M2, Qwen3-Next,
Qwen3.5, Gemma 4, DeepSeek-V2-Lite and V3, Kimi K2 and K2.5, GLM-4.7-Flash,
Llama 4, LFM2 and its models of experts, Granite 4, Nemotron-H and 3, on
the cpu DeepSeek-V3.2 and GLM-5, and the text model of those that see or hear.
It reads weights that other programs quantized (lutq help formats).

On the cpu activations are float32. On cuda they are float16, or bfloat16 for
models whose activations float16 cannot hold. The sum that runs through the
blocks (the residual stream) is float32 on both.

--devices 0,1 divides the windows among GPUs. The report is that of one.

--act fp8 multiplies with activations of 8 bits (lutq help fp8).

--act-table multiplies quantized layers on the cpu through tables, as LUT Tensor
Core does, and counts them (lutq help tables). Entries have 16 bits with fp16,
and with int8:T 8 bits and a scale for each T tables. Layers need a codebook of
equal steps (q2 to q5) or binary codes. The model of --against is multiplied as
ever; it may be MODEL itself.`, input.Config, input.Index, input.Header, input.GGUF, input.Tokenizer, input.Text)),
		Args:              cobra.MinimumNArgs(1),
		ValidArgsFunction: completeFolders,
		RunE: func(c *cobra.Command, args []string) error {
			if err := o.checkFormat(c.Flags().Changed("format")); err != nil {
				return err
			}
			rep, err := u.eval(c.Context(), args, o)
			if err != nil {
				return err
			}
			return u.printEval(rep, o.format)
		},
	}
	f := c.Flags()
	f.StringVar(&o.text, "text", "", "text `FILE` to evaluate on (required)")
	f.StringVar(&o.against, "against", "", "the original model's `FOLDER`, to compare with")
	f.Var(newWord(&o.protocol, string(corpus.Raw), string(corpus.Raw), string(corpus.GPTQ), string(corpus.LlamaCPP)), "protocol", "protocol `NAME`: raw, gptq or llama.cpp")
	f.Var(newWord(&o.bos, "", string(corpus.BOSNone), string(corpus.BOSStart), string(corpus.BOSWindow)), "bos", "`WHERE` BOS goes: none, start or window (default as the protocol says)")
	f.Var(newNumber(&o.windows, 0, 0, maxWindows), "windows", "evaluate only the first `N` windows; 0: all (default)")
	f.Var(newNumber(&o.ctx, 0, 3, maxContext), "ctx", "`TOKENS` in a window (default 2048; llama.cpp 512)")
	o.addActTable(f)
	f.Var(newNumber(&o.threads, 0, 0, maxThreads), "threads", "`N` workers (default one for each processor)")
	o.addDevice(f, "a GPU if any")
	o.addDevices(f, "which share the work")
	o.addDType(f, "activations on cuda: f16 (default), bf16 or f32")
	o.addAct(f)
	o.addPrefill(f)
	o.tiles.register(f)
	f.BoolVar(&o.noVerify, "no-verify", false, "do not check quantized models while reading them")
	f.Var(newWord(&o.format, "table", "table", "md", "json", "csv"), "format", "output `NAME`: table, md, json or csv")
	f.BoolVar(&o.json, "json", false, "the same as --format json")
	setGroup(f, "What to evaluate", "text", "against", "protocol", "bos", "windows", "ctx")
	setGroup(f, "Run", "threads", "device", "devices", "dtype", "act", "prefill-cache", "tiles", "no-verify", "format", "json")
	setLater(f, "bos", "devices", "act", "prefill-cache", "tiles", "no-verify")
	setResearch(f, "act-table")
	return c
}

// evalReport is what eval-ppl prints.
type evalReport struct {
	text    string
	set     *corpus.Set
	models  []string // of results
	against string
	results []eval.Result
	tables  *tablesJSON // nil where there were none
	act     string      // what activations were rounded to, or nothing
}

// evalJSON is the report on one model as JSON.
type evalJSON struct {
	Model string `json:"model"`
	Text  string `json:"text"`
	eval.Result
	Tables *tablesJSON `json:"act_tables,omitempty"`
	Act    string      `json:"act,omitempty"`
}

// pairJSON holds two of the models against each other as JSON.
type pairJSON struct {
	A string `json:"a"`
	B string `json:"b"`
	eval.Difference
}

// pairs holds each model against those before it.
func (r *evalReport) pairs() []pairJSON {
	var all []pairJSON
	for b := range r.results {
		for a := b + 1; a < len(r.results); a++ {
			all = append(all, pairJSON{r.models[a], r.models[b], eval.Compare(r.results[a], r.results[b], 0)})
		}
	}
	return all
}

// json returns one object: the result itself for one model, a list under
// "results" for several, and one under "pairs" of what tells them apart.
func (r *evalReport) json() any {
	var all []evalJSON
	for i, res := range r.results {
		all = append(all, evalJSON{Model: r.models[i], Text: r.text, Result: res, Act: r.act})
	}
	if len(all) == 1 {
		all[0].Tables = r.tables
		return all[0]
	}
	return struct {
		Results []evalJSON  `json:"results"`
		Pairs   []pairJSON  `json:"pairs"`
		Tables  *tablesJSON `json:"act_tables,omitempty"` // of all
	}{all, r.pairs(), r.tables}
}

// evaluation is that of a fresh container beside its original, on a text; without one it is not wanted.
type evaluation struct {
	text    string
	threads int
}

func (e evaluation) wanted() bool { return e.text != "" }

// files returns what it reads besides the models.
func (e evaluation) files() []string {
	if !e.wanted() {
		return nil
	}
	return []string{e.text}
}

// check reports what would stand against it, before there is a
// container: the model's family, its tokenizer, or the text.
func (e evaluation) check(original *source.Model) error {
	if !e.wanted() {
		return nil
	}
	if _, err := original.Decoder(); err != nil {
		return fmt.Errorf("%s: cannot be evaluated: %w", original.Path(), err)
	}
	_, _, err := evalSet(original, evalOptions{text: e.text, protocol: string(corpus.Raw), windows: 1})
	return err
}

// run evaluates a container.
func (e evaluation) run(ctx context.Context, u *ui, dir string, original *source.Model) (*evalReport, error) {
	return u.eval(ctx, []string{dir}, evalOptions{
		text: e.text, against: original.Path(), protocol: string(corpus.Raw), threads: e.threads,
		deviceFlags: deviceFlags{device: "auto"}, tiles: tileFolders{ui: u},
	})
}

func (u *ui) eval(ctx context.Context, dirs []string, o evalOptions) (*evalReport, error) {
	if o.text == "" {
		return nil, usage("eval-ppl: --text names the file to evaluate on")
	}
	reps, err := u.evalTexts(ctx, dirs, []string{o.text}, o, nil)
	if err != nil {
		return nil, err
	}
	return reps[0], nil
}

// watching returns who is told of tokens of a set that a tokenizer made.
type watching func(set *corpus.Set, tok *tokenizer.Tokenizer) eval.Watcher

// evalTexts evaluates models on some texts in turn. watch may be nil.
func (u *ui) evalTexts(ctx context.Context, dirs, texts []string, o evalOptions, watch watching) (reps []*evalReport, err error) {
	tables, err := o.tables(&o.deviceFlags, &o.actFlag)
	if err != nil {
		return nil, err
	}
	devices, done, err := u.openModelDevices(&o.deviceFlags, cpu.Options{Threads: o.threads}, "evaluating")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(hintEval(err, o), done()) }()
	of := evalModels{names: dirs}
	defer of.close()
	for _, ops := range devices {
		// The reference is multiplied as it is.
		candidateOps, err := o.rounding(ops)
		if err != nil {
			return nil, err
		}
		candidateOps = tables.over(candidateOps)
		on := eval.Replica{Ops: ops}
		load := func(dir string, by model.Ops) (*model.Model, error) {
			m, err := u.open(dir, source.Options{Unchecked: o.noVerify})
			if err != nil {
				return nil, err
			}
			l, err := u.load(m, by, model.OpenOptions{
				Layouts: func(m *lutq.Model) (model.Layouts, error) { return o.tiles.of(m, ops.Name()) },
			})
			if err != nil {
				return nil, onDevice(devices, ops, err)
			}
			if of.loaded = append(of.loaded, l); len(of.on) == 0 {
				of.from = append(of.from, m)
			}
			return l, nil
		}
		for _, dir := range dirs {
			m, err := load(dir, candidateOps)
			if err != nil {
				return nil, err
			}
			on.Candidates = append(on.Candidates, m)
		}
		if o.against != "" {
			if on.Ref, err = load(o.against, ops); err != nil {
				return nil, err
			}
		}
		if len(of.on) == 0 {
			if err := o.tiles.unused(ops.Name()); err != nil {
				return nil, err
			}
			u.noteRounding(candidateOps)
		}
		of.on = append(of.on, on)
	}
	for _, o.text = range texts {
		rep, err := u.evalText(ctx, of, o, watch)
		if err != nil {
			return nil, err
		}
		rep.tables = tables.report()
		reps = append(reps, rep)
	}
	u.noteKept(devices...)
	return reps, nil
}

// evalModels are models to be evaluated, in the order of their names, and the reference, if there is one, which is the last of
// those that they are from.
type evalModels struct {
	names  []string
	from   []*source.Model
	loaded []*model.Model // on all devices
	on     []eval.Replica // the same, by devices
}

func (m *evalModels) close() {
	for _, l := range m.loaded {
		l.Close()
	}
}

// onDevice names the device of an error where there are several.
func onDevice(devices []model.Ops, ops model.Ops, err error) error {
	if len(devices) == 1 {
		return err
	}
	return model.On(ops, err)
}

// evalText evaluates models on the text that the options name.
func (u *ui) evalText(ctx context.Context, of evalModels, o evalOptions, watch watching) (*evalReport, error) {
	set, tok, err := evalSet(of.from[0], o)
	if err != nil {
		return nil, err
	}
	read := readText{of.from[0], tok, set}
	for _, m := range of.from[1:] {
		if err := u.checkTokens(read, m, o); err != nil {
			return nil, err
		}
	}
	if most := of.loaded[0].Decoder().MaxPositions; most > 0 && set.Context > most {
		fmt.Fprintf(u.stderr, "lutq: windows of %d tokens are longer than the %d that the model was made for\n", set.Context, most)
	}
	first := of.on[0]
	if first.Ops.Name() == "cpu" {
		need := int64(0)
		for _, m := range of.loaded {
			need += m.ActivationBytes(set.Context)
		}
		if free := availableMemory(); free > 0 && need > free {
			return nil, hintError{
				fmt.Errorf("windows of %d tokens need %s of memory: %s are available", set.Context, formatBytes(need), formatBytes(free)),
				"a smaller --ctx needs less",
			}
		}
	}
	bar := u.startProgress("evaluating", int64(len(set.Windows)), false)
	var watcher eval.Watcher
	if watch != nil {
		watcher = watch(set, tok)
	}
	results, err := eval.Run(ctx, first.Ref, first.Candidates, set, eval.Options{
		Ops: first.Ops, Beside: of.on[1:], DType: o.dtype, Watch: watcher,
		Progress: func(p eval.Progress) {
			bar.set(int64(p.Done), fmt.Sprintf("perplexity so far %.3f", math.Exp(p.NLL[0])))
		},
	})
	bar.finish()
	if err != nil {
		return nil, err
	}
	rep := &evalReport{text: filepath.Base(o.text), set: set, models: of.names, against: o.against, results: results}
	if o.fp8() {
		rep.act = o.act
	}
	u.warnRuined(rep)
	return rep, nil
}

// warnRuined says which models have lost more than a model survives.
func (u *ui) warnRuined(r *evalReport) {
	any := false
	for i, res := range r.results {
		if res.Comparison == nil || !res.Ruined {
			continue
		}
		any = true
		fmt.Fprintf(u.stderr, "lutq: %s is ruined: a divergence of %s and %s times the perplexity of the original; few models are of use above %v, or %v times\n",
			input.Name(r.models[i]), digits(res.KLMean, 3), digits(math.Exp(res.LnRatio), 3), eval.RuinKL, eval.RuinRatio)
	}
	if any {
		fmt.Fprintln(u.stderr, "hint: more --bits, or fitting to a text (--method gptq or --learn, and --calib FILE) help")
	}
}

// load loads a model to be run.
func (u *ui) load(m *source.Model, ops model.Ops, o model.OpenOptions) (*model.Model, error) {
	if err := checkModelMemory(m, ops); err != nil {
		return nil, err
	}
	loaded, err := model.Open(m, ops, o)
	if err != nil {
		return nil, hintDiffers(err)
	}
	for _, kind := range loaded.Unpacked() {
		u.note("%s: the %s has no kernel for weights of kind %s: they are multiplied dense", m.Path(), ops.Name(), kind)
	}
	return loaded, nil
}

// openModelOps opens the device that the flags name for what a model does, and puts what has been
// chosen into them.
func (u *ui) openModelOps(d *deviceFlags, onCPU cpu.Options, doing string) (ops model.Ops, done func() error, err error) {
	all, done, err := u.openModelDevices(d, onCPU, doing)
	if err != nil {
		return nil, nil, err
	}
	return all[0], done, nil
}

// openModelDevices is openModelOps for all devices that are named.
func (u *ui) openModelDevices(d *deviceFlags, onCPU cpu.Options, doing string) (all []model.Ops, done func() error, err error) {
	device, err := d.choose()
	if err != nil {
		return nil, nil, err
	}
	if device == "cuda" {
		dtype := d.dtype
		if dtype == "" {
			dtype = "f16"
		}
		all, done, err = d.openDevices(device, dtype, onCPU, 0)
		var missing *driver.MissingError
		if err == nil || d.device == "cuda" || len(d.devices) > 0 || !errors.As(err, &missing) {
			d.dtype = dtype
			return all, done, err
		}
		fmt.Fprintf(u.stderr, "lutq: the GPU is left alone: %v\n", err)
	}
	if d.dtype != "" && d.dtype != "f32" {
		fmt.Fprintf(u.stderr, "lutq: %s on the cpu, in f32 instead of %s\n", doing, d.dtype)
	}
	d.dtype = "f32"
	return d.openDevices("cpu", d.dtype, onCPU, 0)
}

// hintDiffers says that damage failed a check, and what to do about it.
func hintDiffers(err error) error {
	if errors.Is(err, lutq.ErrDiffers) {
		return hintError{checkError{err}, "lutq verify names all that differs; --no-verify takes it as it is"}
	}
	return err
}

// hintEval adds what to do about an error.
func hintEval(err error, o evalOptions) error {
	switch {
	case errors.Is(err, model.ErrNotFinite) && o.dtype == "f16":
		return hintError{err, "--dtype bf16 has the range that this model may need"}
	case driver.IsOutOfMemory(err):
		return hintError{err, "--device cpu has the host's memory, and a smaller --ctx needs less"}
	}
	return err
}

// evalSet cuts the text into windows with the model's tokenizer.
func evalSet(m *source.Model, o evalOptions) (*corpus.Set, *tokenizer.Tokenizer, error) {
	protocol, err := corpus.ParseProtocol(o.protocol)
	if err != nil {
		return nil, nil, usageError{err}
	}
	bos, err := corpus.ParseBOS(o.bos)
	if err != nil {
		return nil, nil, usageError{err}
	}
	d, err := m.Decoder()
	if err != nil {
		return nil, nil, err
	}
	if err := m.Check(m.TokenizerFiles()...); err != nil {
		return nil, nil, hintDiffers(err)
	}
	tok, err := tokenizer.Read(m)
	if err != nil {
		return nil, nil, err
	}
	set, err := corpus.BuildFile(o.text, tok, corpus.Options{
		Protocol: protocol, BOS: bos, Context: o.ctx, MaxWindows: o.windows, BOSToken: d.BOS,
	})
	var large *input.TooLargeError
	if errors.As(err, &large) && large.Kind == input.Text {
		return nil, nil, hintError{err, "with --windows N no more of it is read than they need"}
	}
	return set, tok, err
}

// readText is a text as the tokenizer of a model reads it.
type readText struct {
	model *source.Model
	tok   *tokenizer.Tokenizer
	set   *corpus.Set
}

// checkTokens fails where another model of a table turns the text into other ids: what it says of these would be about another
// text. Where the files of the tokenizers are the same it need not be read again.
func (u *ui) checkTokens(first readText, other *source.Model, o evalOptions) error {
	want, err := first.model.TokenizerSum()
	if err != nil {
		return err
	}
	got, err := other.TokenizerSum()
	if errors.Is(err, fs.ErrNotExist) {
		fmt.Fprintf(u.stderr, "lutq: %s has no tokenizer: it reads the ids of %s\n", other.Path(), first.model.Path())
		return nil
	}
	if err != nil || got == want {
		return err
	}
	set, tok, err := evalSet(other, o)
	if err != nil {
		return err
	}
	at, differs := first.set.Differs(set)
	if !differs {
		return nil
	}
	spelled := func(s *corpus.Set, t *tokenizer.Tokenizer) string {
		if at.Window >= len(s.Windows) {
			return "none"
		}
		id := s.Windows[at.Window].Tokens[at.Token]
		text, err := t.Decode([]int{id})
		if err != nil {
			text = ""
		}
		return fmt.Sprintf("%d (%q)", id, text)
	}
	return hintError{
		fmt.Errorf("%s and %s turn the text into different ids: token %d of window %d is %s in the first and %s in the second",
			first.model.Path(), other.Path(), at.Token+1, at.Window+1, spelled(first.set, first.tok), spelled(set, tok)),
		"models of one table need tokenizers that agree on the text: evaluate them one at a time",
	}
}

// checkFormat settles in which format the report is printed, one of which is given or is not.
func (o *evalOptions) checkFormat(given bool) error {
	if o.json {
		if given && o.format != "json" {
			return usage("--json and --format %s do not go together", o.format)
		}
		o.format = "json"
	}
	return nil
}

// printEval prints the report as one of the formats table, md, json or csv.
func (u *ui) printEval(r *evalReport, format string) error {
	switch format {
	case "json":
		return u.printJSON(r.json())
	case "csv":
		header, cells := r.csv()
		return u.printCells(format, tableShape{}, header, cells)
	}
	s := r.set
	bos := "no BOS"
	if s.BOS != corpus.BOSNone {
		bos = "BOS at every " + string(s.BOS)
	}
	of := fmt.Sprintf("%d of %d", len(s.Windows), s.Available)
	if !s.Whole {
		of = fmt.Sprintf("the first %d", len(s.Windows))
	}
	err := u.printLine("%s, protocol %s (%s), %s windows of %d tokens, %d tokens scored, on %s in %s",
		r.text, s.Protocol, bos, of, s.Context, s.Targets(), r.results[0].Device, r.results[0].DType)
	if err != nil {
		return err
	}
	if r.act != "" {
		if err := u.printLine("activations and tables rounded to %s in products of 17 rows and more", r.act); err != nil {
			return err
		}
	}
	if r.tables != nil {
		if err := u.printLine("%v", r.tables); err != nil {
			return err
		}
	}
	fmt.Fprintln(u.stdout)
	header, cells := r.cells()
	if err := u.printCells(format, evalShape(), header, cells); err != nil || len(r.results) < 2 {
		return err
	}
	fmt.Fprintln(u.stdout)
	header, cells = r.pairCells()
	return u.printCells(format, pairShape(), header, cells)
}

// evalShape: perplexity and mean divergence matter most.
func evalShape() tableShape {
	return tableShape{
		names: []string{"model"},
		drop:  []string{"tokens/s", "99 %", "median", "same top token", "ln ratio to the original", "KL mean"},
	}
}

// pairShape: the divergence from the original tells models apart best.
func pairShape() tableShape {
	return tableShape{names: []string{"model", "against"}, drop: []string{"same top token", "ln ratio"}}
}

// interval prints a number and, if there is one, its interval.
func interval(x float64, ci *[2]float64) string {
	if ci == nil {
		return fmt.Sprintf("%+.4f", x)
	}
	return fmt.Sprintf("%+.4f (%+.4f to %+.4f)", x, ci[0], ci[1])
}

// cells are what each model is measured to be.
func (r *evalReport) cells() (header []string, cells [][]string) {
	if r.against == "" {
		for i, res := range r.results {
			cells = append(cells, []string{r.models[i], plusMinus(res), digits(res.TokensPerSecond, 3)})
		}
		return []string{"model", "perplexity", "tokens/s"}, cells
	}
	cells = append(cells, []string{r.against, fmt.Sprintf("%.4f", r.results[0].ReferencePPL), "", "", "", "", "", ""})
	for i, res := range r.results {
		cells = append(cells, []string{
			r.models[i], plusMinus(res), interval(res.LnRatio, res.LnRatioCI), fmt.Sprintf("%.4f", res.KLMean), fmt.Sprintf("%.4f", res.KLMedian),
			fmt.Sprintf("%.3f", res.KLP99), fmt.Sprintf("%.2f %%", 100*res.Top1), digits(res.TokensPerSecond, 3),
		})
	}
	return []string{"model", "perplexity", "ln ratio to the original", "KL mean", "median", "99 %", "same top token", "tokens/s"}, cells
}

// plusMinus prints a perplexity and its standard error.
func plusMinus(r eval.Result) string { return fmt.Sprintf("%.4f ± %.4f", r.PPL, r.PPLStderr) }

// pairCells are what tells the models apart. An interval without zero does.
func (r *evalReport) pairCells() (header []string, cells [][]string) {
	header = []string{"model", "against", "ln ratio"}
	if r.against != "" {
		header = append(header, "KL mean", "same top token")
	}
	for _, p := range r.pairs() {
		line := []string{p.A, p.B, interval(p.LnRatio, p.LnRatioCI)}
		if p.Distance != nil {
			line = append(line, interval(p.KLMean, p.KLMeanCI), fmt.Sprintf("%+.2f %%", 100*p.Top1))
		}
		cells = append(cells, line)
	}
	return header, cells
}

// csv is all that is known, for programs: a row for each model, for the original, and for each pair of models, of which it has
// the differences. Rows name what they are about, and on which tokens.
func (r *evalReport) csv() (header []string, cells [][]string) {
	header = []string{
		"row", "model", "against", "ppl", "ppl_stderr", "ln_ratio", "ln_ratio_low", "ln_ratio_high", "kl_mean", "kl_mean_low", "kl_mean_high",
		"kl_median", "kl_p99", "top1", "top1_low", "top1_high", "tokens_per_second",
		"text", "protocol", "bos", "ctx", "windows", "tokens_scored", "device", "dtype",
	}
	number := func(x float64) string { return strconv.FormatFloat(x, 'g', 8, 64) }
	ends := func(ci *[2]float64) []string {
		if ci == nil {
			return []string{"", ""}
		}
		return []string{number(ci[0]), number(ci[1])}
	}
	add := func(row, model, against string, numbers ...string) {
		s, res := r.set, r.results[0]
		cells = append(cells, slices.Concat([]string{row, model, against}, numbers, []string{
			r.text, string(s.Protocol), string(s.BOS), strconv.Itoa(s.Context), strconv.Itoa(len(s.Windows)), strconv.Itoa(s.Targets()), res.Device, res.DType,
		}))
	}
	none := func(n int) []string { return make([]string, n) }
	if r.against != "" {
		add("original", r.against, "", slices.Concat([]string{number(r.results[0].ReferencePPL)}, none(13))...)
	}
	for i, res := range r.results {
		numbers := []string{number(res.PPL), number(res.PPLStderr)}
		if c := res.Comparison; c != nil {
			numbers = slices.Concat(numbers, []string{number(c.LnRatio)}, ends(c.LnRatioCI), []string{number(c.KLMean)}, ends(c.KLMeanCI),
				[]string{number(c.KLMedian), number(c.KLP99), number(c.Top1)}, ends(c.Top1CI))
		} else {
			numbers = append(numbers, none(11)...)
		}
		add("model", r.models[i], r.against, append(numbers, number(res.TokensPerSecond))...)
	}
	for _, p := range r.pairs() {
		numbers := slices.Concat(none(2), []string{number(p.LnRatio)}, ends(p.LnRatioCI))
		if d := p.Distance; d != nil {
			numbers = slices.Concat(numbers, []string{number(d.KLMean)}, ends(d.KLMeanCI), none(2), []string{number(d.Top1)}, ends(d.Top1CI), none(1))
		} else {
			numbers = append(numbers, none(9)...)
		}
		add("pair", p.A, p.B, numbers...)
	}
	return header, cells
}
