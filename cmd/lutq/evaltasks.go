package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/lutq/lutq/calib/decode"
	"github.com/lutq/lutq/calib/model"
	"github.com/lutq/lutq/calib/tasks"
	"github.com/lutq/lutq/calib/tokenizer"
	"github.com/lutq/lutq/formats/input"
	"github.com/lutq/lutq/formats/lutq"
	"github.com/lutq/lutq/formats/source"
	"github.com/lutq/lutq/gemm/cpu"
)

type evalTasksOptions struct {
	tasks, shotsFrom        []string
	shots, limit, ctx       int
	seed                    uint64
	items                   string
	agree                   string
	prompts, promptTokens   int
	threads                 int
	format                  string
	noVerify, json, hasShot bool
	deviceFlags

	tiles tileFolders
}

// agreedAfter are the tokens after which --agree compares texts.
var agreedAfter = []int{16, 64, 256}

func newEvalTasksCommand(u *ui) *cobra.Command {
	o := evalTasksOptions{tiles: tileFolders{ui: u}}
	c := &cobra.Command{
		Use:   "eval-tasks MODEL... --tasks TASK",
		Short: "Measure models by questions with answers",
		Long: `Eval-tasks asks models questions: which of some choices they find most likely
behind a text, and whether it is the right one. Of several models each is held
against those before it, item by item.

  lutq eval-tasks MODEL OUT --tasks arc_easy,piqa,mine.jsonl

TASK is the name of a task, whose data comes from the Hugging Face hub, or is
NAME=FILE; a task file of lm-evaluation-harness in YAML; or a JSONL file, of
which a line is an item:
  {"context": "The sky is", "choices": ["blue", "green"], "answer": 0}

The report has the share of right answers (acc), the same with likelihoods over
the choices' lengths (acc norm), and standard errors. It equals that of
lm-evaluation-harness on the same items.

--agree needs no answers: models go on with parts of a text by their most likely
tokens, and the report says how many texts are the same after 16, 64 and 256.`,
		Annotations: more(withLimits(`Names are arc_easy, arc_challenge, boolq, hellaswag, lambada_openai, mmlu,
openbookqa, piqa and winogrande. Their forms are part of the program. Their data
is that of the data sets that lm-evaluation-harness names, as Parquet; it lies
in the cache of "lutq help names", and the report has its commit and SHA-256.
Or FILE has it, JSONL or Parquet with the same fields. mmlu is all 57 subjects,
each with its own examples and --limit, and mmlu_anatomy is one; of mmlu=FILE
the file is one subject's.

A task file says what is asked by templates: output_type multiple_choice or
loglikelihood, doc_to_text, doc_to_choice, doc_to_target, and what else changes
the prompt. Functions in Python are not run. Data is where its data_files say,
in the data set of the hub that dataset_path names, or --tasks FILE.yaml=FILE.

--shots puts items with their answers before each, from --shots-from, or from
where the task has them; a plain JSONL file draws from its other items. They are
drawn as lm-evaluation-harness draws them by the same --seed.

Intervals are of 95 %: Newcombe's of paired shares for differences, Wilson's for
shares. McNemar p is how likely as large a difference is of models that are as
good. Of several tasks there is a mean, where each has the same weight.

--items writes what was found of each item as JSONL.

On the cpu activations are float32, on cuda float16, or as --dtype says. A text
longer than the model's context loses its beginning. A quantized model is
checked while it is read, and read from tiles where lutq repack has made them,
as by eval-ppl, whose help lists the families.`, input.Config, input.Index, input.Header, input.GGUF, input.Tokenizer, input.Text, input.Recipe)),
		Args:              cobra.MinimumNArgs(1),
		ValidArgsFunction: completeFolders,
		RunE: func(c *cobra.Command, args []string) error {
			o.hasShot = c.Flags().Changed("shots")
			if o.json {
				if c.Flags().Changed("format") && o.format != "json" {
					return usage("--json and --format %s do not go together", o.format)
				}
				o.format = "json"
			}
			switch {
			case len(o.tasks) == 0 && o.agree == "":
				return usage("eval-tasks: --tasks names what to ask, or --agree a text")
			case o.agree != "" && len(args) < 2:
				return usage("eval-tasks: --agree is for two models and more")
			}
			rep, err := u.evalTasks(c.Context(), args, o)
			if err != nil {
				return err
			}
			return u.printTasks(rep, o.format)
		},
	}
	f := c.Flags()
	f.StringSliceVar(&o.tasks, "tasks", nil, "`TASKS` to ask: NAME, NAME=FILE or FILE, with commas between")
	f.Var(newNumber(&o.shots, 0, 0, 1000), "shots", "put `N` items with answers before each (default as the task says)")
	f.StringSliceVar(&o.shotsFrom, "shots-from", nil, "`FILE` with these, or NAME=FILE for one task")
	f.Var(newNumber(&o.limit, 0, 0, maxWindows), "limit", "ask only the first `N` items of each task; 0: all (default)")
	f.Uint64Var(&o.seed, "seed", 1234, "number `N` that shots are drawn by")
	f.Var(newNumber(&o.ctx, 0, 0, maxContext), "ctx", "most `TOKENS` of a text (default as the model was made for)")
	f.StringVar(&o.items, "items", "", "write log-likelihoods and answers, item by item, to `FILE`")
	f.StringVar(&o.agree, "agree", "", "text `FILE` whose parts all models go on with")
	f.Var(newNumber(&o.prompts, 100, 1, maxWindows), "prompts", "`N` parts of it")
	f.Var(newNumber(&o.promptTokens, 64, 1, maxContext), "prompt-tokens", "`TOKENS` in a part")
	f.Var(newNumber(&o.threads, 0, 0, maxThreads), "threads", "`N` workers (default one for each processor)")
	o.addDevice(f, "a GPU if any")
	o.addDevices(f, "which share the work")
	o.addDType(f, "activations on cuda: f16 (default), bf16 or f32")
	o.tiles.register(f)
	f.BoolVar(&o.noVerify, "no-verify", false, "do not check quantized models while reading them")
	f.Var(newWord(&o.format, "table", "table", "md", "json", "csv"), "format", "output `NAME`: table, md, json or csv")
	f.BoolVar(&o.json, "json", false, "the same as --format json")
	setGroup(f, "What to ask", "tasks", "shots", "shots-from", "limit", "seed", "ctx", "items")
	setGroup(f, "What to go on with", "agree", "prompts", "prompt-tokens")
	setGroup(f, "Run", "threads", "device", "devices", "dtype", "tiles", "no-verify", "format", "json")
	setLater(f, "seed", "ctx", "devices", "tiles", "no-verify")
	return c
}

// tasksReport is what eval-tasks prints. Its JSON keys are stable.
type tasksReport struct {
	Device string `json:"device"`
	DType  string `json:"dtype"`

	Data    []taskData   `json:"data,omitempty"` // that came from a hub
	Results []taskResult `json:"results"`
	Pairs   []taskPair   `json:"pairs,omitempty"`
	Means   []taskMean   `json:"means,omitempty"`
	Agree   []agreed     `json:"agree,omitempty"`

	tasks  []*tasks.Task
	models []string
}

// taskData says where items, or the examples before them, come from.
type taskData struct {
	Task string `json:"task"`
	tasks.Origin
}

type taskResult struct {
	Model string `json:"model"`
	Task  string `json:"task"`
	*tasks.Result
}

// taskPair holds the first model against the second on a task.
type taskPair struct {
	Models [2]string `json:"models"`
	Task   string    `json:"task"`
	tasks.Difference
}

// taskMean is of all tasks, and where Models has two the first less the second.
type taskMean struct {
	Models   []string    `json:"models"`
	Accuracy float64     `json:"accuracy"`
	Stderr   *float64    `json:"accuracy_stderr,omitempty"`
	Interval *[2]float64 `json:"interval,omitempty"`
}

type agreed struct {
	Models       [2]string `json:"models"`
	Prompts      int       `json:"prompts"`
	PromptTokens int       `json:"prompt_tokens"`
	tasks.Agreement
}

func (u *ui) evalTasks(ctx context.Context, dirs []string, o evalTasksOptions) (rep *tasksReport, err error) {
	all, err := u.loadTasks(ctx, o)
	if err != nil {
		return nil, err
	}
	if o.items != "" {
		if _, err := os.Lstat(o.items); !errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("--items: %s is there already", o.items)
		}
	}
	text := ""
	if o.agree != "" {
		if text, err = readAgreeText(o.agree); err != nil {
			return nil, err
		}
	}
	devices, done, err := u.openModelDevices(&o.deviceFlags, cpu.Options{Threads: o.threads, Exact: true}, "evaluating")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(hintEval(err, evalOptions{deviceFlags: o.deviceFlags}), done()) }()
	ops := devices[0]
	rep = &tasksReport{Device: ops.Name(), DType: o.dtype, Results: []taskResult{}, tasks: all, models: dirs}
	for _, t := range all {
		for _, from := range t.Origins {
			rep.Data = append(rep.Data, taskData{t.Name, from})
		}
	}
	r := &tasksRun{ui: u, o: o, devices: devices, text: text, rep: rep}
	for _, dir := range dirs {
		if err := r.model(ctx, dir); err != nil {
			return nil, err
		}
	}
	if err := o.tiles.unused(ops.Name()); err != nil {
		return nil, err
	}
	if err := r.compare(); err != nil {
		return nil, err
	}
	if o.items != "" {
		return r.rep, writeWhole(o.items, r.items.Bytes())
	}
	return r.rep, nil
}

// writeWhole writes a file, all of it or none.
func writeWhole(path string, data []byte) error {
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+"-*")
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if closeErr := f.Close(); err == nil {
		err = closeErr
	}
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		os.Remove(f.Name())
	}
	return err
}

// loadTasks reads what is asked.
func (u *ui) loadTasks(ctx context.Context, o evalTasksOptions) ([]*tasks.Task, error) {
	shotsFor := make(map[string]string)
	for _, s := range o.shotsFrom {
		name, file, ok := strings.Cut(s, "=")
		if !ok {
			name, file = "", s
		}
		shotsFor[name] = file
	}
	options := tasks.Options{Limit: o.limit, Seed: o.seed, Fetch: u.fetchSplit}
	if o.hasShot {
		options.Shots = &o.shots
	}
	var all []*tasks.Task
	for _, spec := range o.tasks {
		spec, data, _ := strings.Cut(spec, "=")
		from := tasks.Source{Spec: spec, Data: data, Shots: cmp.Or(shotsFor[spec], shotsFor[""])}
		t, err := tasks.Load(ctx, from, options)
		if err != nil {
			return nil, err
		}
		if slices.ContainsFunc(all, func(other *tasks.Task) bool { return other.Name == t.Name }) {
			return nil, fmt.Errorf("two tasks are called %s", t.Name)
		}
		if len(t.Uncounted) > 0 {
			u.note("task %s: not computed: %s", input.Printable(t.Name), input.Printable(strings.Join(t.Uncounted, ", ")))
		}
		all = append(all, t)
	}
	return all, nil
}

func readAgreeText(path string) (string, error) {
	f, err := input.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	if err := input.CheckSize(f, input.Text); err != nil {
		return "", fmt.Errorf("%s: %w", path, err)
	}
	text, err := input.ReadAll(input.UTF8(f), input.Text, 0)
	if err != nil {
		return "", fmt.Errorf("%s: %w", path, err)
	}
	return string(text), nil
}

// tasksRun is models under way, one after the other.
type tasksRun struct {
	*ui
	o       evalTasksOptions
	devices []model.Ops
	text    string // of --agree

	rep     *tasksReport
	results [][]*tasks.Result // by model and task
	prompts [][]int           // as the first model has them
	written [][][]int         // by model
	items   bytes.Buffer
}

// model has a model do all that is asked.
func (r *tasksRun) model(ctx context.Context, dir string) error {
	from, err := r.open(dir, source.Options{Unchecked: r.o.noVerify})
	if err != nil {
		return err
	}
	if err := from.Check(from.TokenizerFiles()...); err != nil {
		return hintDiffers(err)
	}
	encoder, err := encoderOf(from, r.o.ctx)
	if err != nil {
		return err
	}
	reads := make([][][]tasks.Read, len(r.rep.tasks))
	total := 0
	for i, t := range r.rep.tasks {
		if reads[i], err = encoder.EncodeAll(t); err != nil {
			return fmt.Errorf("%s: %w", from.Path(), err)
		}
		total += len(t.Items)
	}
	var on []*model.Model
	for _, ops := range r.devices {
		m, err := r.load(from, ops, model.OpenOptions{
			Layouts: func(m *lutq.Model) (model.Layouts, error) { return r.o.tiles.of(m, ops.Name()) },
		})
		if err != nil {
			return onDevice(r.devices, ops, err)
		}
		defer m.Close()
		on = append(on, m)
	}
	if err := r.ask(ctx, dir, on, reads, total); err != nil {
		return err
	}
	if r.o.agree == "" {
		return nil
	}
	return r.write(ctx, from, on[0], encoder.Tokenizer)
}

// ask asks a model all tasks.
func (r *tasksRun) ask(ctx context.Context, dir string, on []*model.Model, reads [][][]tasks.Read, total int) error {
	bar := r.startProgress("asking "+filepath.Base(dir), int64(total), false)
	defer bar.finish()
	before := 0
	var results []*tasks.Result
	for i, t := range r.rep.tasks {
		answers, err := tasks.ScoreOn(ctx, on, reads[i], func(done int) { bar.set(int64(before+done), t.Name) })
		if err != nil {
			return fmt.Errorf("task %s: %w", t.Name, err)
		}
		before += len(t.Items)
		result := t.Judge(answers)
		results = append(results, result)
		r.rep.Results = append(r.rep.Results, taskResult{dir, t.Name, result})
		if err := r.keep(dir, t, answers, result); err != nil {
			return err
		}
	}
	r.results = append(r.results, results)
	return nil
}

// itemJSON is a line of --items.
type itemJSON struct {
	Model          string    `json:"model"`
	Task           string    `json:"task"`
	Item           int       `json:"item"` // from 0
	LogLikelihoods []float64 `json:"log_likelihoods"`
	Greedy         []bool    `json:"greedy"`
	Right          bool      `json:"right"`
	RightNorm      bool      `json:"right_norm"`
}

// keep keeps what was found of each item, where that is wanted.
func (r *tasksRun) keep(dir string, t *tasks.Task, a *tasks.Answers, result *tasks.Result) error {
	if r.o.items == "" {
		return nil
	}
	enc := json.NewEncoder(&r.items)
	for i, c := range result.Chosen {
		line := itemJSON{Model: dir, Task: t.Name, Item: i, Right: c.Right, RightNorm: c.RightNorm}
		for _, l := range a.Likelihoods[i] {
			line.LogLikelihoods, line.Greedy = append(line.LogLikelihoods, l.Sum), append(line.Greedy, l.Greedy)
		}
		if err := enc.Encode(line); err != nil {
			return err
		}
	}
	return nil
}

// write has a model go on with the parts of a text.
func (r *tasksRun) write(ctx context.Context, from *source.Model, m *model.Model, tok *tokenizer.Tokenizer) error {
	ids, err := tok.Encode(r.text, false)
	if err != nil {
		return fmt.Errorf("%s: %w", r.o.agree, err)
	}
	before, _ := tok.Special()
	prompts, err := tasks.Prompts(ids, before, r.o.prompts, r.o.promptTokens)
	if err != nil {
		return fmt.Errorf("%s: %w", r.o.agree, err)
	}
	if r.prompts == nil {
		r.prompts = prompts
	}
	if !slices.EqualFunc(prompts, r.prompts, slices.Equal) {
		return fmt.Errorf("%s and %s turn the text into different ids", r.rep.models[0], from.Path())
	}
	longest := agreedAfter[len(agreedAfter)-1]
	if most := decode.Longest(m.Decoder()); most > 0 && r.o.promptTokens+len(before)+longest > most {
		return fmt.Errorf("%s: prompts of %d tokens leave no room for %d more in the %d that the model was made for", from.Path(), r.o.promptTokens, longest, most)
	}
	ends, err := from.Ends()
	if err != nil {
		return err
	}
	bar := r.startProgress("writing", int64(len(prompts)), false)
	defer bar.finish()
	written, err := tasks.Continue(ctx, m, prompts, longest, ends, func(done int) { bar.set(int64(done), "") })
	r.written = append(r.written, written)
	return err
}

// compare holds each model against those before it.
func (r *tasksRun) compare() error {
	rep := r.rep
	several := len(rep.tasks) > 1
	for a, dir := range rep.models {
		if several {
			accuracy, stderr := tasks.Mean(r.results[a])
			rep.Means = append(rep.Means, taskMean{Models: []string{dir}, Accuracy: accuracy, Stderr: &stderr})
		}
	}
	for b := range rep.models {
		for a := b + 1; a < len(rep.models); a++ {
			names := [2]string{rep.models[a], rep.models[b]}
			for i, t := range rep.tasks {
				d, err := tasks.Compare(r.results[a][i], r.results[b][i])
				if err != nil {
					return err
				}
				rep.Pairs = append(rep.Pairs, taskPair{names, t.Name, d})
			}
			if several {
				d, interval, err := tasks.CompareMean(r.results[a], r.results[b])
				if err != nil {
					return err
				}
				rep.Means = append(rep.Means, taskMean{Models: names[:], Accuracy: d, Interval: &interval})
			}
			if r.o.agree != "" {
				for _, x := range tasks.Agree(r.written[a], r.written[b], agreedAfter...) {
					rep.Agree = append(rep.Agree, agreed{names, len(r.prompts), r.o.promptTokens, x})
				}
			}
		}
	}
	return nil
}

// encoderOf returns what turns requests into a model's tokens. An empty context is BOS, or EOS where there is none.
func encoderOf(m *source.Model, most int) (*tasks.Encoder, error) {
	d, err := m.Decoder()
	if err != nil {
		return nil, err
	}
	tok, err := readTokenizer(m)
	if err != nil {
		return nil, err
	}
	e := &tasks.Encoder{Tokenizer: tok, Begin: -1, Context: cmp.Or(most, d.MaxPositions, 2048)}
	named, err := m.SpecialTokens()
	if err != nil {
		return nil, err
	}
	for _, name := range []string{"bos_token", "eos_token"} {
		if id, ok := tok.ID(named[name]); ok && e.Begin < 0 {
			e.Begin = id
		}
	}
	switch id, ok := tok.BOS(); {
	case e.Begin >= 0:
	case ok:
		e.Begin = id
	case d.BOS != nil:
		e.Begin = *d.BOS
	case len(d.EOS) > 0:
		e.Begin = d.EOS[0]
	default:
		return nil, fmt.Errorf("%s: there is neither a BOS nor an EOS token, which stands for an empty context", m.Path())
	}
	return e, nil
}

// printTasks prints the report.
func (u *ui) printTasks(r *tasksReport, format string) error {
	if format == "json" {
		return u.printJSON(r)
	}
	if format == "table" && len(r.tasks) > 0 {
		items := 0
		for _, t := range r.tasks {
			items += len(t.Items)
		}
		if err := u.printLine("%d tasks, %d items, on %s in %s", len(r.tasks), items, r.Device, r.DType); err != nil {
			return err
		}
		for _, d := range r.Data {
			if err := u.printLine("%s: %v", d.Task, d.Origin); err != nil {
				return err
			}
		}
	}
	first := format != "table" || len(r.tasks) == 0
	for _, t := range []struct {
		header []string
		cells  [][]string
		drop   []string
	}{
		{[]string{"model", "task", "shots", "items", "acc", "acc norm", "perplexity", "tokens/s"}, r.resultCells(), []string{"tokens/s", "shots", "items", "perplexity"}},
		{[]string{"model", "against", "task", "acc", "acc norm", "ln ratio", "McNemar p", "same answer"}, r.pairCells(), []string{"same answer", "McNemar p", "ln ratio", "acc norm"}},
		{[]string{"model", "against", "prompts", "tokens", "same text"}, r.agreeCells(), []string{"prompts"}},
	} {
		if len(t.cells) == 0 {
			continue
		}
		if !first {
			fmt.Fprintln(u.stdout)
		}
		first = false
		if err := u.printColumns(format, tableShape{names: []string{"model", "against", "task"}, drop: t.drop}, t.header, t.cells); err != nil {
			return err
		}
	}
	return nil
}

// printColumns prints a table in the format table, md or csv, without columns that are empty.
func (u *ui) printColumns(format string, shape tableShape, header []string, cells [][]string) error {
	rows := append([][]string{header}, cells...)
	var used []int
	for i := range header {
		if slices.ContainsFunc(cells, func(row []string) bool { return row[i] != "" }) {
			used = append(used, i)
		}
	}
	for n, row := range rows {
		var line []string
		for _, i := range used {
			cell := row[i]
			if n > 0 && i < 3 && format != "csv" { // names, which may hold anything
				cell = input.Name(cell)
			}
			line = append(line, cell)
		}
		rows[n] = line
	}
	return u.printCells(format, shape, rows[0], rows[1:])
}

func percent(share float64) string { return fmt.Sprintf("%.2f %%", 100*share) }

func percentStderr(share, stderr *float64) string {
	if share == nil {
		return ""
	}
	if stderr == nil {
		return percent(*share)
	}
	return fmt.Sprintf("%.2f ± %.2f %%", 100**share, 100**stderr)
}

func percentInterval(d *float64, i *[2]float64) string {
	if d == nil {
		return ""
	}
	return fmt.Sprintf("%+.2f (%+.2f to %+.2f) %%", 100**d, 100*i[0], 100*i[1])
}

func (r *tasksReport) resultCells() [][]string {
	var cells [][]string
	for i, x := range r.Results {
		ppl := ""
		if x.Perplexity != nil {
			ppl = fmt.Sprintf("%.4f ± %.4f", *x.Perplexity, *x.PerplexityStderr)
		}
		cells = append(cells, []string{
			x.Model, x.Task, strconv.Itoa(x.Shots), strconv.Itoa(x.Items), percentStderr(&x.Accuracy, &x.AccuracyStderr),
			percentStderr(x.AccuracyNorm, x.AccuracyNormStderr), ppl, digits(x.TokensPerSecond, 3),
		})
		if n := len(r.tasks); n > 1 && (i+1)%n == 0 {
			m := r.Means[i/n]
			cells = append(cells, []string{x.Model, "mean", "", "", percentStderr(&m.Accuracy, m.Stderr), "", "", ""})
		}
	}
	return cells
}

func (r *tasksReport) pairCells() [][]string {
	var cells [][]string
	mean := len(r.models)
	for i, p := range r.Pairs {
		ln := ""
		if p.LnRatio != nil {
			ln = interval(*p.LnRatio, p.LnRatioCI)
		}
		cells = append(cells, []string{
			p.Models[0], p.Models[1], p.Task, percentInterval(&p.Difference.Difference, &p.Interval),
			percentInterval(p.DifferenceNorm, p.IntervalNorm), ln, fmt.Sprintf("%.3f", p.P), percent(p.SameAnswer),
		})
		if n := len(r.tasks); n > 1 && (i+1)%n == 0 {
			m := r.Means[mean]
			mean++
			cells = append(cells, []string{p.Models[0], p.Models[1], "mean", percentInterval(&m.Accuracy, m.Interval), "", "", "", ""})
		}
	}
	return cells
}

func (r *tasksReport) agreeCells() [][]string {
	var cells [][]string
	for _, a := range r.Agree {
		cells = append(cells, []string{
			a.Models[0], a.Models[1], strconv.Itoa(a.Prompts), strconv.Itoa(a.Tokens),
			fmt.Sprintf("%.1f (%.1f to %.1f) %%", 100*a.Share, 100*a.Interval[0], 100*a.Interval[1]),
		})
	}
	return cells
}
