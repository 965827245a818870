package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/term"

	"github.com/lutq/lutq/calib/chat"
	"github.com/lutq/lutq/calib/decode"
	"github.com/lutq/lutq/calib/model"
	"github.com/lutq/lutq/calib/tokenizer"
	"github.com/lutq/lutq/formats/input"
	"github.com/lutq/lutq/formats/lutq"
	"github.com/lutq/lutq/formats/source"
	"github.com/lutq/lutq/gemm/cpu"
	"github.com/lutq/lutq/gemm/cuda/driver"
)

type generateOptions struct {
	prompt, file string
	chat         bool
	writeFlags
	tableFlag
}

// writeFlags say what a model writes, and on what.
type writeFlags struct {
	maxTokens, threads, headBits int
	exact, noVerify, json        bool
	stops                        []string
	decode.Sampling
	deviceFlags
	actFlag

	tiles tileFolders
}

// addText adds the flags of the text to a command's, with how long it may be if nothing is said.
func (o *writeFlags) addText(f *pflag.FlagSet, maxTokens int) {
	f.Var(newNumber(&o.maxTokens, maxTokens, 1, maxContext), "max-tokens", "write `N` tokens at most")
	f.StringArrayVar(&o.stops, "stop", nil, "end before this `TEXT`; repeatable")
	f.Float64Var(&o.Temperature, "temperature", 0, "divide logits by `T`; 0 (default): the most likely token")
	f.Var(newNumber(&o.TopK, 0, 0, maxContext), "top-k", "draw from the `K` most likely tokens; 0 (default): all")
	f.Float64Var(&o.TopP, "top-p", 0, "draw from the fewest that have share `P` together; 0 (default): all")
	f.Float64Var(&o.MinP, "min-p", 0, "draw from those at least `P` times as likely as the first; 0 (default): all")
	f.Uint64Var(&o.Seed, "seed", 0, "number `N` that tokens are drawn by (default 0)")
	setGroup(f, "Text", "max-tokens", "stop", "temperature", "top-k", "top-p", "min-p", "seed")
}

// addRun adds those of the run.
func (o *writeFlags) addRun(f *pflag.FlagSet) {
	f.Var(newNumber(&o.threads, 0, 0, maxThreads), "threads", "`N` workers (default one for each processor)")
	o.addDevice(f, "a GPU if any")
	o.addDevices(f, "each with a part of the model")
	o.addDType(f, "activations on cuda: f16 (default), bf16 or f32")
	o.addAct(f)
	o.addPrefill(f)
	o.tiles.register(f)
	addHeadBits(f, &o.headBits)
	f.BoolVar(&o.exact, "exact", false, "compute in float32 where the cpu would in fixed point")
	f.BoolVar(&o.noVerify, "no-verify", false, "do not check a quantized model while reading it")
	f.BoolVar(&o.json, "json", false, "print text and numbers as JSON, at the end")
	setGroup(f, "Run", "threads", "device", "devices", "dtype", "act", "prefill-cache", "tiles", "head-bits", "exact", "no-verify", "json")
	setLater(f, "devices", "act", "prefill-cache", "tiles", "head-bits", "exact", "no-verify")
}

// checkText refuses what makes no sense together in a command.
func (o *writeFlags) checkText(c *cobra.Command) error {
	for _, name := range []string{"top-k", "top-p", "min-p"} {
		if c.Flags().Changed(name) && o.Greedy() {
			return usage("%s: --%s is for drawing tokens, with a --temperature above 0", c.Name(), name)
		}
	}
	if err := o.Check(); err != nil {
		return usageError{err}
	}
	if len(o.devices) > 1 && o.fp8() {
		return usage("%s: --act fp8 is for one GPU", c.Name())
	}
	return checkHeadBits(o.headBits)
}

// load loads a model that is to write.
func (o *writeFlags) load(u *ui, from *source.Model, ops model.Ops) (*model.Model, error) {
	return u.loadOn(from, ops, model.OpenOptions{
		HeadBits: quantizedHead(o.headBits),
		Layouts:  func(m *lutq.Model) (model.Layouts, error) { return o.tiles.of(m, ops.Name()) },
	})
}

func newGenerateCommand(u *ui) *cobra.Command {
	o := generateOptions{writeFlags: writeFlags{tiles: tileFolders{ui: u}}}
	c := &cobra.Command{
		Use:   "generate MODEL [--prompt TEXT | --file FILE | -]",
		Short: "Write text with a model",
		Long: `Generate goes on with a text and prints what follows as it comes. MODEL is a
Hugging Face folder, a GGUF file or a folder that lutq has quantized. The prompt
is --prompt, a file, or with - the standard input.

  lutq generate MODEL --prompt 'Once upon a time'
  lutq generate MODEL --chat --prompt 'Name three rivers.' --temperature 0.7

With --chat the prompt is what a user says: the model's chat template wraps it.
With --temperature 0, the default, each token is the most likely one. Above 0
tokens are drawn: logits are divided by the temperature, then --top-k, --top-p
and --min-p leave out the less likely, in this order. The same seed writes the
same text on the same device.`,
		Annotations: more(withLimits(`The chat template is that of the folder, in chat_template.jinja or
tokenizer_config.json. Without --chat the tokenizer adds what it puts before a
text, such as a BOS token. Sampling is that of transformers: 0 switches --top-k,
--top-p and --min-p off (in transformers a top-p of 0 takes the most likely
token). A token that the tokenizer does not know prints nothing.

The text ends for one of these reasons, which --json calls "finish":
  eos          a token that generation_config.json, or else config.json, names
               as an end
  stop         a --stop text, which is not printed
  length       --max-tokens, or the end of the model's context
  interrupted  a signal; the exit code is 130

--json prints one object at the end: text, tokens, prompt_tokens,
tokens_per_second (without the prompt), prompt_tokens_per_second, finish,
device, dtype and head_bits.

The output head may be a fifth of what is read for a token. --head-bits
quantizes it to nearest values when the model is opened.

--devices 0,1 is for models beyond one GPU: each has a part of all layers, as
"lutq help decode" says. Models of experts, and of other mixers than attention,
are refused.

On a cpu products are in fixed point: faster, and off by up to 2e-4. With
AVX-512 they are so where it has VNNI, those by rings where it has float16.
--exact computes in float32.

A quantized model is checked while it is read, and read from tiles where lutq
repack has made them, as by eval-ppl. "lutq help fp8" explains --act, "lutq help
tables" --act-table.`, input.Config, input.Index, input.Header, input.GGUF, input.Tokenizer, input.Text)),
		Args: func(c *cobra.Command, args []string) error {
			if err := cobra.RangeArgs(1, 2)(c, args); err != nil {
				return err
			}
			if len(args) == 2 && args[1] != "-" {
				return fmt.Errorf("%q behind MODEL: want - for the standard input, or --prompt", args[1])
			}
			return nil
		},
		ValidArgsFunction: completeFolders,
		RunE: func(c *cobra.Command, args []string) error {
			sources := 0
			for _, given := range []bool{c.Flags().Changed("prompt"), c.Flags().Changed("file"), len(args) == 2} {
				if given {
					sources++
				}
			}
			if sources != 1 {
				return usage("generate: want one of --prompt, --file and - for the prompt")
			}
			if err := o.checkText(c); err != nil {
				return err
			}
			return u.generate(c.Context(), args[0], len(args) == 2, o)
		},
	}
	f := c.Flags()
	f.StringVar(&o.prompt, "prompt", "", "the `TEXT` to go on with")
	f.StringVar(&o.file, "file", "", "`FILE` with the text to go on with")
	f.BoolVar(&o.chat, "chat", false, "put the prompt into the model's chat template")
	o.addText(f, 256)
	o.addActTable(f)
	o.addRun(f)
	setGroup(f, "Prompt", "prompt", "file", "chat")
	setResearch(f, "act-table")
	return c
}

// generated is what generate prints as JSON.
type generated struct {
	Text                  string     `json:"text"`
	Tokens                int        `json:"tokens"`
	PromptTokens          int        `json:"prompt_tokens"`
	TokensPerSecond       float64    `json:"tokens_per_second"`
	PromptTokensPerSecond float64    `json:"prompt_tokens_per_second"`
	Finish                decode.End `json:"finish"`
	Device                string     `json:"device"`
	DType                 string     `json:"dtype"`
	HeadBits              int        `json:"head_bits"`

	Tables *tablesJSON `json:"act_tables,omitempty"`
}

func (u *ui) generate(ctx context.Context, dir string, stdin bool, o generateOptions) (err error) {
	tables, err := o.tables(&o.deviceFlags, &o.actFlag)
	if err != nil {
		return err
	}
	if len(o.devices) > 1 && tables != nil {
		return usage("generate: --act-table is for one GPU")
	}
	if tables != nil && quantizedHead(o.headBits) > 0 {
		return usage("generate: --act-table takes equal steps, which a head that --head-bits quantizes has not")
	}
	from, err := u.open(dir, source.Options{Unchecked: o.noVerify})
	if err != nil {
		return err
	}
	tok, ids, err := u.readPrompt(ctx, from, stdin, o)
	if err != nil {
		return err
	}
	if err := checkDivided(from, len(o.devices)); err != nil {
		return err
	}
	ops, done, err := u.openWriteOps(&o.deviceFlags, cpu.Options{Threads: o.threads, Exact: o.exact}, "generating")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(hintGenerate(err, o.dtype), done()) }()
	if ops, err = o.rounding(ops); err != nil {
		return err
	}
	ops = tables.over(ops)
	m, err := o.load(u, from, ops)
	if err != nil {
		return err
	}
	defer m.Close()
	u.noteRounding(ops)
	if err := o.tiles.unused(ops.Name()); err != nil {
		return err
	}
	ends, err := from.Ends()
	if err != nil {
		return err
	}
	sizes, err := sizesOf(from, heldBy(ops, actBytes(o.dtype)), o.headBits)
	if err != nil {
		return err
	}
	s, err := newGenerateSession(m, len(ids), o.maxTokens)
	if err != nil {
		return err
	}
	defer s.Close()

	out := &textWriter{u: u, live: !o.json, visible: isTerminal(u.stdout)}
	p := decode.NewPrinter(tok, ids, o.stops)
	var failed error // of the printer, or of writing
	begin := time.Now()
	var prompted time.Time
	texts, err := decode.Write(ctx, s, [][]int{ids}, decode.WriteOptions{
		Sampling: o.Sampling, MaxTokens: o.maxTokens, EOS: ends, Prompted: func() { prompted = time.Now() },
	}, func(_, token int) bool {
		text, stopped, err := p.Add(token)
		if err == nil {
			err = out.add(text)
		}
		failed = err
		return err == nil && !stopped
	})
	ended := time.Now()
	if failed != nil {
		return failed
	}
	if texts == nil {
		return err
	}
	rest, restErr := p.Rest()
	if restErr == nil {
		restErr = out.add(rest)
	}
	if restErr != nil {
		return restErr
	}
	t := texts[0]
	g := generated{
		Text: out.text.String(), Tokens: len(t.Tokens), PromptTokens: len(ids), Finish: t.End, Device: ops.Name(), DType: o.dtype,
		HeadBits: sizes.Head(m.Decoder()).Bits, Tables: tables.report(),
	}
	if !prompted.IsZero() {
		g.PromptTokensPerSecond = rate(len(ids), prompted.Sub(begin))
		steps := len(t.Tokens) - 1 // the first token is the prompt's
		if t.End == decode.EndEOS {
			steps++
		}
		g.TokensPerSecond = rate(steps, ended.Sub(prompted))
	}
	err = errors.Join(u.printGenerated(g, o.json), err)
	u.noteKept(ops)
	return err
}

// actBytes is the size of an activation.
func actBytes(dtype string) int {
	if dtype == "f32" {
		return 4
	}
	return 2
}

// printGenerated ends what was printed as it came, or prints all as JSON.
func (u *ui) printGenerated(g generated, asJSON bool) error {
	if asJSON {
		return u.printJSON(g)
	}
	if !strings.HasSuffix(g.Text, "\n") {
		fmt.Fprintln(u.stdout)
	}
	u.note("%d tokens after %d of the prompt (%s): %s tokens/s, prompt %s tokens/s, on %s in %s, a head of %d bits",
		g.Tokens, g.PromptTokens, g.Finish, digits(g.TokensPerSecond, 3), digits(g.PromptTokensPerSecond, 3), g.Device, g.DType, g.HeadBits)
	if g.Tables != nil {
		u.note("%v", g.Tables)
	}
	return nil
}

// rate is n in a time, by the second.
func rate(n int, d time.Duration) float64 {
	if n <= 0 || d <= 0 {
		return 0
	}
	return float64(n) / d.Seconds()
}

// readPrompt returns the model's tokenizer and the tokens of the prompt.
func (u *ui) readPrompt(ctx context.Context, m *source.Model, stdin bool, o generateOptions) (*tokenizer.Tokenizer, []int, error) {
	files := append(m.TokenizerFiles(), source.EndsFile)
	if o.chat {
		files = append(files, chat.Files()...)
	}
	if err := m.Check(files...); err != nil {
		return nil, nil, hintDiffers(err)
	}
	tok, err := readTokenizer(m)
	if err != nil {
		return nil, nil, err
	}
	prompt, err := u.promptText(ctx, stdin, o)
	if err != nil {
		return nil, nil, err
	}
	if prompt == "" {
		return nil, nil, errors.New("the prompt is empty")
	}
	if o.chat {
		template, err := chat.Load(m)
		if err != nil {
			return nil, nil, err
		}
		if prompt, err = template.Render(ctx, []chat.Message{{Role: "user", Content: prompt}}, chat.Options{AddGenerationPrompt: true, Now: time.Now()}); err != nil {
			return nil, nil, err
		}
	}
	ids, err := tok.Encode(prompt, !o.chat) // a template has BOS itself
	if err != nil {
		return nil, nil, fmt.Errorf("the prompt: %w", err)
	}
	return tok, ids, nil
}

// promptText reads the prompt where it is.
func (u *ui) promptText(ctx context.Context, stdin bool, o generateOptions) (string, error) {
	name, from := "--prompt", io.Reader(strings.NewReader(o.prompt))
	switch {
	case stdin:
		name, from = "standard input", u.stdinOf(ctx, input.Text)
	case o.file != "":
		f, err := input.Open(o.file)
		if err != nil {
			return "", err
		}
		defer f.Close()
		if err := input.CheckSize(f, input.Text); err != nil {
			return "", err
		}
		name, from = o.file, f
	}
	text, err := input.ReadAll(input.UTF8(from), input.Text, 0)
	if err != nil {
		return "", fmt.Errorf("%s: %w", name, err)
	}
	return string(text), nil
}

// newGenerateSession makes room for a prompt and what follows it.
func newGenerateSession(m *model.Model, prompt, more int) (*decode.Session, error) {
	most := decode.Longest(m.Decoder())
	if most > 0 && prompt > most {
		return nil, fmt.Errorf("a prompt of %d tokens is longer than the %d that the model was made for", prompt, most)
	}
	all := prompt + more
	if most > 0 {
		all = min(all, most)
	}
	if m.Ops().Name() == "cpu" {
		if err := checkTextMemory(m, prompt, all, availableMemory()); err != nil {
			return nil, err
		}
	}
	return decode.NewSession(m, decode.Options{Context: all})
}

// checkTextMemory fails where a text of so many tokens, the first of which are a prompt, needs more memory than is free. 0 is
// not known.
func checkTextMemory(m *model.Model, prompt, all int, free int64) error {
	need := sessionBytes(m, prompt, all)
	if free == 0 || need <= free {
		return nil
	}
	return hintError{
		fmt.Errorf("a text of %d tokens needs %s of memory: %s are available", all, formatBytes(need), formatBytes(free)),
		"a shorter prompt, and fewer --max-tokens, need less",
	}
}

// sessionBytes is what a text of so many tokens on the cpu takes besides the weights, the first of which are a prompt.
func sessionBytes(m *model.Model, prompt, all int) int64 {
	return 4*m.CacheElements(1, all) + m.ActivationBytes(min(prompt, decode.DefaultChunk(m)))
}

// hintGenerate adds what to do about an error.
func hintGenerate(err error, dtype string) error {
	switch {
	case errors.Is(err, model.ErrNotFinite) && dtype == "f16":
		return hintError{err, "--dtype bf16 has the range that this model may need"}
	case driver.IsOutOfMemory(err):
		return hintError{err, "--device cpu has the host's memory, and fewer --max-tokens need less"}
	}
	return err
}

// textWriter takes a text in pieces, and prints them as they come.
type textWriter struct {
	u       *ui
	text    strings.Builder
	live    bool
	visible bool // a terminal shows it: what would not show as itself is spelled
}

func (w *textWriter) add(piece string) error {
	w.text.WriteString(piece)
	if !w.live || piece == "" {
		return nil
	}
	if w.visible {
		piece = visibleText(piece)
	}
	_, err := io.WriteString(w.u.stdout, piece)
	return err
}

// visibleText is [input.Printable] of what stands between line breaks and tabs.
func visibleText(text string) string {
	var b strings.Builder
	for len(text) > 0 {
		n := strings.IndexAny(text, "\n\t")
		if n < 0 {
			n = len(text)
		}
		b.WriteString(input.Printable(text[:n]))
		if n < len(text) {
			b.WriteByte(text[n])
			n++
		}
		text = text[n:]
	}
	return b.String()
}

// isTerminal reports whether what is written there goes to a terminal.
func isTerminal(w io.Writer) bool {
	if o, ok := w.(*output); ok {
		w = o.w
	}
	f, ok := w.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}
