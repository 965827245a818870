package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/lutq/lutq/calib/chat"
	"github.com/lutq/lutq/calib/decode"
	"github.com/lutq/lutq/calib/model"
	"github.com/lutq/lutq/calib/tokenizer"
	"github.com/lutq/lutq/formats/input"
	"github.com/lutq/lutq/formats/source"
	"github.com/lutq/lutq/gemm/cpu"
)

type chatOptions struct {
	beside, system string
	ctx            int
	writeFlags
}

// chatContext is the context of a session if nothing is said.
const chatContext = 8192

const chatCommands = `  /reset     begin anew, after the system prompt
  /undo      take back the last turn
  /history   print what was said
  /help      list these
  /quit      end, as Ctrl-D does`

func newChatCommand(u *ui) *cobra.Command {
	o := chatOptions{writeFlags: writeFlags{tiles: tileFolders{ui: u}}}
	c := &cobra.Command{
		Use:   "chat MODEL [--beside MODEL]",
		Short: "Talk to a model, or to two side by side",
		Long: `Chat puts what you say into a model's chat template and prints answers as they
come. What the model has read is kept: it reads only what is new. MODEL is as
for generate.

  lutq chat OUT --beside MODEL --temperature 0.7 --seed 1
  printf 'Name a river.\nAnd a longer one?\n' | lutq chat OUT --quiet

With --beside two models answer, each in a conversation of its own, in columns
where a terminal has 100 or more, else one below the other. The first difference
is marked.

A line that begins with / is a command; // stands for a / that is said:
` + chatCommands + `

Ctrl-C ends an answer, a second one at the prompt the session. From a pipe each
line is a turn.`,
		Annotations: more(withLimits(`The template writes the whole conversation anew at each turn. Its tokens are
held against those that the model has read: as many as are the same at the
beginning are kept. So where a template leaves out what a model thought in
answers before, it reads on from there. Models that cannot go back to part of a
text (with states or convolutions) then read it again.

A session has --ctx tokens, 8192 or what the model was made for if that is less;
memory for their keys and values is taken at once. When they are full a line
says so, and /undo or /reset makes room.

After each answer a line on stderr tells of tokens and times; --quiet leaves it
out. Turn i draws tokens by the seed and i, the same for both models: the first
is what "generate --chat" writes.

--json prints one object at the end, and nothing before: turns, each of prompt,
answers (model, text, tokens, prompt_tokens, kept_tokens, tokens_per_second,
finish) and first_difference (after so many characters, words).`, input.Config, input.Index, input.Header, input.GGUF, input.Tokenizer, input.Text)),
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: folders(1),
		RunE: func(c *cobra.Command, args []string) error {
			if err := o.checkText(c); err != nil {
				return err
			}
			return u.chat(c.Context(), args[0], o)
		},
	}
	f := c.Flags()
	f.StringVar(&o.beside, "beside", "", "another `MODEL` that answers the same")
	f.StringVar(&o.system, "system", "", "begin with `TEXT` as the system prompt")
	f.Var(newNumber(&o.ctx, 0, 2, maxContext), "ctx", fmt.Sprintf("most `TOKENS` of a conversation (default %d)", chatContext))
	setGroup(f, "Conversation", "beside", "system", "ctx")
	o.addText(f, 2048)
	o.addRun(f)
	return c
}

// chatJSON is what chat prints as JSON.
type chatJSON struct {
	Turns   []turnJSON `json:"turns"`
	Context int        `json:"ctx"`
	Device  string     `json:"device"`
	DType   string     `json:"dtype"`
}

// turnJSON is what was said and answered.
type turnJSON struct {
	Prompt  string       `json:"prompt"`
	Answers []answerJSON `json:"answers"`
	// FirstDifference of two answers is null where they are the same.
	FirstDifference *difference `json:"first_difference,omitempty"`
}

// answerJSON is what a model answered.
type answerJSON struct {
	Model                 string     `json:"model"`
	Text                  string     `json:"text"`
	Tokens                int        `json:"tokens"`
	PromptTokens          int        `json:"prompt_tokens"`
	KeptTokens            int        `json:"kept_tokens"` // of the prompt, which had been read before
	TokensPerSecond       float64    `json:"tokens_per_second"`
	PromptTokensPerSecond float64    `json:"prompt_tokens_per_second"` // of those that were read
	Finish                decode.End `json:"finish"`
}

// speaker is a model that answers, and its conversation.
type speaker struct {
	name     string
	tok      *tokenizer.Tokenizer
	template *chat.Template
	ends     []int
	now      time.Time // that templates print: one for all turns, so that what was read stays the same
	dialog   *decode.Dialog
	longest  int            // tokens that the model was made for; 0: any number
	said     []chat.Message // behind the system prompt
	close    func()
}

// conversation is a session of chat.
type conversation struct {
	u        *ui
	o        chatOptions
	speakers []*speaker
	system   []chat.Message // nothing or one
	turns    []turnJSON     // since the last reset
	all      []turnJSON
	answered int  // turns that were answered, of which each draws other tokens
	together bool // models take steps in turns
	colour   bool

	mu  sync.Mutex
	end context.CancelCauseFunc // of what Ctrl-C ends; nil: the run
}

func (u *ui) chat(ctx context.Context, dir string, o chatOptions) (err error) {
	c := &conversation{u: u, o: o, together: true, colour: u.columns > 0 && os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb"}
	if o.system != "" {
		c.system = []chat.Message{{Role: "system", Content: o.system}}
	}
	names := []string{dir}
	if o.beside != "" {
		names = append(names, o.beside)
	}
	var from []*source.Model
	for _, name := range names {
		m, err := u.open(name, source.Options{Unchecked: o.noVerify})
		if err != nil {
			return err
		}
		s, err := c.newSpeaker(ctx, name, m)
		if err != nil {
			return err
		}
		from, c.speakers = append(from, m), append(c.speakers, s)
	}
	for _, m := range from {
		if err := checkDivided(m, len(o.devices)); err != nil {
			return err
		}
	}
	ops, done, err := u.openWriteOps(&o.deviceFlags, cpu.Options{Threads: o.threads, Exact: o.exact}, "chatting")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(hintGenerate(err, o.dtype), done()) }()
	if ops, err = o.rounding(ops); err != nil {
		return err
	}
	c.together = ops.Name() == "cpu" // a GPU has steps under way
	context, free := 0, availableMemory()
	for i, s := range c.speakers {
		m, err := o.load(u, from[i], ops)
		if err != nil {
			return err
		}
		s.close = m.Close
		defer func() { s.close() }()
		if context, err = chatLength(m, o.ctx); err != nil {
			return err
		}
		if ops.Name() == "cpu" {
			need := sessionBytes(m, context, context)
			if free > 0 && need > free {
				return hintError{
					fmt.Errorf("a conversation of %d tokens needs %s of memory: %s are available", context, formatBytes(need), formatBytes(free)),
					"a smaller --ctx needs less",
				}
			}
			free = max(free-need, 1)
		}
		session, err := decode.NewSession(m, decode.Options{Context: context})
		if err != nil {
			return err
		}
		s.dialog, s.longest = decode.NewDialog(session), decode.Longest(m.Decoder())
		s.close = func() { session.Close(); m.Close() }
	}
	u.noteRounding(ops)
	if err := o.tiles.unused(ops.Name()); err != nil {
		return err
	}
	err = c.run(ctx)
	if o.json {
		all := chatJSON{Turns: c.all, Context: context, Device: ops.Name(), DType: o.dtype}
		err = errors.Join(u.printJSON(all), err)
	}
	u.noteKept(ops)
	return err
}

// chatLength returns the context of a session: what was asked for, or the usual one as far as the model was made for it.
func chatLength(m *model.Model, asked int) (int, error) {
	most := decode.Longest(m.Decoder())
	switch {
	case asked > 0 && most > 0 && asked > most:
		return 0, usage("--ctx %d: the model was made for %d tokens", asked, most)
	case asked > 0:
		return asked, nil
	case most > 0:
		return min(chatContext, most), nil
	}
	return chatContext, nil
}

// newSpeaker reads what a model needs to take part besides its weights.
func (c *conversation) newSpeaker(ctx context.Context, name string, m *source.Model) (*speaker, error) {
	files := slices.Concat(m.TokenizerFiles(), []string{source.EndsFile}, chat.Files())
	if err := m.Check(files...); err != nil {
		return nil, hintDiffers(err)
	}
	s := &speaker{name: name, now: time.Now(), close: func() {}}
	var err error
	if s.template, err = chat.Load(m); err != nil {
		if errors.Is(err, chat.ErrNone) {
			err = hintError{err, "lutq generate goes on with a text, which takes none"}
		}
		return nil, err
	}
	if s.tok, err = readTokenizer(m); err != nil {
		return nil, err
	}
	if s.ends, err = m.Ends(); err != nil {
		return nil, err
	}
	// A template may take no system prompt, or have mistakes: better known before the weights are read.
	_, err = s.tokens(ctx, slices.Concat(c.system, []chat.Message{{Role: "user", Content: "Hello"}}))
	return s, err
}

// makeRoom says what to do about a full context.
func (s *speaker) makeRoom() string {
	if s.longest > 0 && s.dialog.Context() >= s.longest {
		return "/undo takes back a turn, and /reset begins anew; the model was made for no more tokens"
	}
	return "/undo takes back a turn, /reset begins anew, and a larger --ctx has more room"
}

// tokens returns the tokens of a conversation that an answer follows.
func (s *speaker) tokens(ctx context.Context, messages []chat.Message) ([]int, error) {
	text, err := s.template.Render(ctx, messages, chat.Options{AddGenerationPrompt: true, Now: s.now})
	if err != nil {
		return nil, err
	}
	ids, err := s.tok.Encode(text, false) // a template has BOS itself
	if err != nil {
		return nil, fmt.Errorf("the conversation: %w", err)
	}
	return ids, nil
}

// run takes turns until the user ends.
func (c *conversation) run(ctx context.Context) error {
	in := c.input()
	typed, interactive := in.(*typedTurns)
	if interactive {
		defer onInterrupt(ctx, c.interrupted)()
		if !c.u.quiet {
			fmt.Fprintln(c.u.stderr, "lutq: /help lists what can be done besides talking; Ctrl-D ends")
		}
		typed.columns = func() int { return terminalColumns(c.u.stdout) } // which may change
	}
	for again := false; ; { // whether Ctrl-C came last
		prompt, done := c.interruptible(ctx, interactive)
		text, err := in.next(prompt)
		done()
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case errors.Is(err, errCtrlC) && again:
			return nil
		case errors.Is(err, errCtrlC):
			again = true
			fmt.Fprintln(c.u.stderr, "lutq: Ctrl-C again ends the session")
			continue
		case err != nil:
			return err
		}
		again = false
		text, command := saidOrCommand(text)
		if strings.TrimSpace(text) == "" {
			continue
		}
		if command {
			if quit, err := c.command(text); quit || err != nil {
				return err
			}
			continue
		}
		turn, done := c.interruptible(ctx, interactive)
		err = c.turn(turn, text)
		again = turn.Err() != nil && ctx.Err() == nil
		done()
		switch {
		case again: // the session goes on
			fmt.Fprintln(c.u.stderr, "lutq: the answer was interrupted; Ctrl-C again ends the session")
		case err != nil && interactive && ctx.Err() == nil:
			fmt.Fprintf(c.u.stderr, "lutq: %s\n", input.Message(err.Error()))
			printHint(c.u.stderr, err)
		case err != nil:
			return err
		}
	}
}

// input returns what reads the turns: with editing where both ends are a terminal.
func (c *conversation) input() turnReader {
	stdin, ok := c.u.stdin.(*os.File)
	ok = ok && term.IsTerminal(int(stdin.Fd()))
	if ok && isTerminal(c.u.stdout) && !c.o.json {
		return &typedTurns{from: &patient{r: stdin}, stdin: stdin, stdout: c.u.stdout, prompt: "> ", withoutPasting: os.Getenv("TERM") == "dumb"}
	}
	return newPipedTurns(c.u.stdin, func() {
		if ok && !c.u.quiet {
			fmt.Fprint(c.u.stderr, "> ")
		}
	})
}

// interruptible returns a context that Ctrl-C ends where a user can go on after it.
func (c *conversation) interruptible(ctx context.Context, interactive bool) (context.Context, func()) {
	if !interactive {
		return ctx, func() {}
	}
	ctx, cancel := context.WithCancelCause(ctx)
	set := func(end context.CancelCauseFunc) {
		c.mu.Lock()
		c.end = end
		c.mu.Unlock()
	}
	set(cancel)
	return ctx, func() { set(nil); cancel(nil) }
}

// interrupted ends what Ctrl-C ends, once.
func (c *conversation) interrupted() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.end == nil {
		return false
	}
	c.end(errCtrlC)
	c.end = nil
	return true
}

// saidOrCommand tells what is said from a command, of which it returns the name.
func saidOrCommand(line string) (text string, command bool) {
	switch {
	case strings.HasPrefix(line, "//"):
		return line[1:], false
	case strings.HasPrefix(line, "/"):
		return strings.TrimSpace(line), true
	}
	return line, false
}

// command does what is no talk, and reports whether that ends the session.
func (c *conversation) command(name string) (quit bool, err error) {
	switch name {
	case "/quit", "/exit":
		return true, nil
	case "/help":
		fmt.Fprintf(c.u.stderr, "%s\n", chatCommands)
	case "/reset":
		c.turns = nil
		for _, s := range c.speakers {
			s.said = nil
		}
		c.u.note("the conversation begins anew")
	case "/undo":
		if len(c.turns) == 0 {
			c.u.note("there is no turn to take back")
			return false, nil
		}
		c.turns = c.turns[:len(c.turns)-1]
		for _, s := range c.speakers {
			s.said = s.said[:len(s.said)-2]
		}
		c.u.note("the last turn is taken back; %d are left", len(c.turns))
	case "/history":
		return false, c.printHistory()
	default:
		names := []string{"/reset", "/undo", "/history", "/help", "/quit"}
		hint := suggestion(name, names)
		if hint == "" {
			hint = "/help lists the commands; // begins a line that is said"
		}
		fmt.Fprintf(c.u.stderr, "lutq: there is no %s\nhint: %s\n", input.Name(name), hint)
	}
	return false, nil
}

// printHistory prints what was said since the last reset.
func (c *conversation) printHistory() error {
	if c.o.json {
		return nil
	}
	out := c.u.prose()
	var b strings.Builder
	for _, m := range c.system {
		fmt.Fprintf(&b, "system: %s\n", m.Content)
	}
	for _, t := range c.turns {
		fmt.Fprintf(&b, "you: %s\n", t.Prompt)
		for _, a := range t.Answers {
			fmt.Fprintf(&b, "%s: %s\n", a.Model, strings.TrimSpace(a.Text))
		}
	}
	_, err := io.WriteString(out, visibleText(b.String()))
	return err
}

// errNoRoom is in the error of a conversation that has filled its context.
var errNoRoom = errors.New("the context is full")

// turn has the models answer, prints that, and makes it part of the conversation.
func (c *conversation) turn(ctx context.Context, text string) error {
	said := chat.Message{Role: "user", Content: text}
	prompts := make([][]int, len(c.speakers))
	for i, s := range c.speakers {
		ids, err := s.tokens(ctx, slices.Concat(c.system, s.said, []chat.Message{said}))
		if err != nil {
			return err
		}
		if most := s.dialog.Context(); len(ids) >= most {
			return hintError{
				fmt.Errorf("%w: with this the conversation with %s has %d tokens of %d", errNoRoom, s.name, len(ids), most),
				s.makeRoom(),
			}
		}
		prompts[i] = ids
	}
	t := turnJSON{Prompt: text}
	var err error
	if len(c.speakers) == 1 {
		t.Answers, err = c.alone(ctx, prompts[0])
	} else {
		t.Answers, err = c.beside(ctx, prompts)
	}
	if err != nil && ctx.Err() == nil {
		return err
	}
	answered := len(t.Answers) == len(c.speakers)
	for _, a := range t.Answers {
		answered = answered && (a.Tokens > 0 || a.Finish == decode.EndEOS)
	}
	if !answered { // is no part of the conversation
		return err
	}
	if len(t.Answers) == 2 {
		t.FirstDifference = firstDifference(t.Answers[0].Text, t.Answers[1].Text)
	}
	c.answered++
	c.turns, c.all = append(c.turns, t), append(c.all, t)
	for i, s := range c.speakers {
		s.said = append(s.said, said, chat.Message{Role: "assistant", Content: t.Answers[i].Text})
	}
	c.tell(t)
	return err
}

// tell says on stderr how a turn went.
func (c *conversation) tell(t turnJSON) {
	if c.o.json {
		return
	}
	for i, a := range t.Answers {
		of := ""
		if len(t.Answers) > 1 {
			of = input.Name(a.Model) + ": "
		}
		most := c.speakers[i].dialog.Context()
		has := a.PromptTokens + a.Tokens
		c.u.note("%s%d tokens (%s), %s tokens/s; %d of the prompt's %d were kept; %d of %d in the context", of, a.Tokens, a.Finish,
			digits(a.TokensPerSecond, 3), a.KeptTokens, a.PromptTokens, min(has, most), most)
		if a.Finish == decode.EndLength && a.Tokens < c.o.maxTokens {
			fmt.Fprintf(c.u.stderr, "lutq: the context of %d tokens is full\nhint: %s\n", most, c.speakers[i].makeRoom())
		}
	}
}

// write has a model answer a prompt, and emits the answer in pieces. What emit takes is no time of the model's.
func (c *conversation) write(ctx context.Context, s *speaker, ids []int, emit func(piece string) error) (answerJSON, error) {
	a := answerJSON{Model: s.name, PromptTokens: len(ids), Finish: decode.EndInterrupted}
	sampling := c.o.Sampling
	sampling.Seed += uint64(c.answered)
	p := decode.NewPrinter(s.tok, ids, c.o.stops)
	var failed error // of the printer, or of emit
	var text strings.Builder
	add := func(piece string, err error) {
		if text.WriteString(piece); err == nil && piece != "" {
			err = emit(piece)
		}
		failed = errors.Join(failed, err)
	}
	var reading, writing time.Duration
	since, prompted := time.Now(), false
	lap := func(of *time.Duration) { now := time.Now(); *of += now.Sub(since); since = now }
	w, err := s.dialog.Write(ctx, ids, decode.WriteOptions{
		Sampling: sampling, MaxTokens: c.o.maxTokens, EOS: s.ends, Prompted: func() { lap(&reading); prompted = true },
	}, func(token int) bool {
		lap(&writing)
		piece, stopped, err := p.Add(token)
		add(piece, err)
		since = time.Now()
		return failed == nil && !stopped
	})
	if prompted {
		lap(&writing)
	} else {
		lap(&reading)
	}
	if w == nil {
		return a, errors.Join(failed, err)
	}
	if failed == nil {
		add(p.Rest())
	}
	a.Text, a.Tokens, a.KeptTokens, a.Finish = text.String(), len(w.Tokens), w.Kept, w.End
	if prompted {
		a.PromptTokensPerSecond = rate(len(ids)-w.Kept, reading)
		steps := len(w.Tokens) - 1 // the first token is the prompt's
		if w.End == decode.EndEOS {
			steps++
		}
		a.TokensPerSecond = rate(steps, writing)
	}
	if failed != nil {
		return a, failed
	}
	return a, err
}

// print prints a piece of an answer.
func (c *conversation) print(text string) error {
	if c.o.json || text == "" {
		return nil
	}
	_, err := io.WriteString(c.u.stdout, text)
	return err
}

// piece is what a terminal shows of a piece of an answer; elsewhere it stays as it is.
func (c *conversation) piece(text string) string {
	if isTerminal(c.u.stdout) {
		return visibleText(text)
	}
	return text
}

// endLine ends an answer that has not ended its last line.
func (c *conversation) endLine(text string) error {
	if strings.HasSuffix(text, "\n") {
		return nil
	}
	return c.print("\n")
}

// alone has the only model answer.
func (c *conversation) alone(ctx context.Context, ids []int) ([]answerJSON, error) {
	a, err := c.write(ctx, c.speakers[0], ids, func(piece string) error { return c.print(c.piece(piece)) })
	return []answerJSON{a}, errors.Join(c.endLine(a.Text), err)
}

// beside has two models answer, and shows where they part.
func (c *conversation) beside(ctx context.Context, prompts [][]int) (answers []answerJSON, err error) {
	names := [2]string{c.speakers[0].name, c.speakers[1].name}
	columns := terminalColumns(c.u.stdout)
	if columns < leastColumns || c.o.json {
		answers, err = c.oneBelow(ctx, prompts, names)
	} else {
		answers, err = c.inColumns(ctx, prompts, names, columns)
	}
	if err != nil || len(answers) < 2 || c.o.json {
		return answers, err
	}
	d := firstDifference(answers[0].Text, answers[1].Text)
	return answers, c.u.printLine("%s", d.line([2]string{input.Name(names[0]), input.Name(names[1])}))
}

// oneBelow prints one answer below the other.
func (c *conversation) oneBelow(ctx context.Context, prompts [][]int, names [2]string) (answers []answerJSON, err error) {
	for i, s := range c.speakers {
		name := input.Name(names[i]) + ":"
		var mark *marking
		if c.colour {
			name = bold + name + plain
			if i > 0 {
				mark = &marking{other: answers[0].Text}
			}
		}
		if err := c.print(name + "\n"); err != nil {
			return answers, err
		}
		a, err := c.write(ctx, s, prompts[i], func(piece string) error {
			if mark != nil {
				return c.print(mark.add(piece))
			}
			return c.print(c.piece(piece))
		})
		if mark != nil {
			err = errors.Join(c.print(mark.end()), err)
		}
		answers = append(answers, a)
		if err := errors.Join(c.endLine(a.Text), c.print("\n"), err); err != nil {
			return answers, err
		}
	}
	return answers, nil
}

// inColumns prints answers side by side. Where models may take turns they write at the same time.
func (c *conversation) inColumns(ctx context.Context, prompts [][]int, names [2]string, columns int) ([]answerJSON, error) {
	table := newSideBySide(c.u.stdout, columns, c.colour, names)
	answers, errs := make([]answerJSON, len(c.speakers)), make([]error, len(c.speakers))
	write := func(i int, emit func(piece string) error) {
		answers[i], errs[i] = c.write(ctx, c.speakers[i], prompts[i], emit)
	}
	if !c.together {
		for i := range c.speakers {
			write(i, func(piece string) error { return table.add(i, piece) })
			table.end(i)
		}
		return answers, errors.Join(append(errs, table.err)...)
	}
	writing := make([]func() (string, bool), len(c.speakers))
	for i := range c.speakers {
		next, stop := iter.Pull(func(yield func(string) bool) {
			write(i, func(piece string) error {
				if !yield(piece) {
					return table.err // nobody listens any more
				}
				return nil
			})
		})
		defer stop()
		writing[i] = next
	}
	for open := len(writing); open > 0 && table.err == nil; {
		for i, next := range writing {
			if next == nil {
				continue
			}
			if piece, ok := next(); ok {
				_ = table.add(i, piece) // which keeps its error
				continue
			}
			table.end(i)
			writing[i] = nil
			open--
		}
	}
	return answers, errors.Join(append(errs, table.err)...)
}
