package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/lutq/lutq/calib/corpus"
	"github.com/lutq/lutq/calib/eval"
	"github.com/lutq/lutq/calib/report"
	"github.com/lutq/lutq/calib/tokenizer"
	"github.com/lutq/lutq/formats/hf"
	"github.com/lutq/lutq/formats/input"
	"github.com/lutq/lutq/formats/lutq"
	"github.com/lutq/lutq/formats/source"
)

type reportOptions struct {
	evalOptions
	texts, quantized []string
	to, title        string
	force            bool
}

func newReportCommand(u *ui) *cobra.Command {
	o := reportOptions{evalOptions: evalOptions{tiles: tileFolders{ui: u}}}
	c := &cobra.Command{
		Use:   "report MODEL... --to FILE",
		Short: "Show a quantized model as a page of pictures",
		Long: `Report writes a page about quantized models: what they store, where the error of
their weights lies, and with a text how far they are from their original.

  lutq report OUT --against MODEL --text wiki.txt --to report.html

The page is one file that needs nothing else, neither a network nor scripts, and
prints. With --to report.md it is Markdown, and its pictures, in SVG, lie beside
it in files that begin with its name.

It shows recipe and sizes, bytes by part, errors of weights by block and layer,
outlier columns of the original, perplexity, divergence and agreement with
intervals, divergence by position and by class of token, and the tokens where
the model is furthest from its original, with what both expected. Of several
MODELs it shows divergence by bytes, and holds each against the others.`,
		Annotations: more(withLimits(`Texts are read as eval-ppl reads them (lutq help eval-ppl). Without --text the
page tells of what is stored alone, and runs no model.

--quantized names what "lutq quantize --json" printed of a MODEL; repeat it for
others. The page then shows what layers put out, losses of fitted weights beside
weights rounded to nearest, and how many tokens experts were fitted to. Which
MODEL it is of is told by its SHA-256.

A FILE that report wrote before is replaced; any other is with --force.`, input.Config, input.Index, input.Header, input.GGUF, input.Tokenizer, input.Text)),
		Args:              cobra.MinimumNArgs(1),
		ValidArgsFunction: completeFolders,
		RunE: func(c *cobra.Command, args []string) error {
			return u.report(c.Context(), args, o, commandLine(c, args))
		},
	}
	f := c.Flags()
	f.StringVar(&o.to, "to", "", "`FILE` to write: its name ends in .html or .md (required)")
	f.StringVar(&o.title, "title", "", "`TITLE` of the page (default the names of the models)")
	f.StringArrayVar(&o.quantized, "quantized", nil, "`FILE` that quantize --json printed; repeatable")
	o.registerTexts(f, u)
	f.BoolVar(&o.force, "force", false, "replace FILE, whatever it is")
	f.BoolVar(&o.json, "json", false, "print what the page shows as JSON")
	setGroup(f, "What to show", "to", "title", "against", "text", "quantized")
	setGroup(f, "Texts", "protocol", "bos", "windows", "ctx")
	setGroup(f, "Run", "threads", "device", "devices", "dtype", "tiles", "no-verify", "force", "json")
	setLater(f, "bos", "devices", "tiles", "no-verify")
	return c
}

// registerTexts adds the flags that say on what models are evaluated, and how.
func (o *reportOptions) registerTexts(f *pflag.FlagSet, u *ui) {
	f.StringArrayVar(&o.texts, "text", nil, "text `FILE` to evaluate on; repeatable")
	f.StringVar(&o.against, "against", "", "the original model's `FOLDER`, to compare with")
	f.Var(newWord(&o.protocol, string(corpus.Raw), string(corpus.Raw), string(corpus.GPTQ), string(corpus.LlamaCPP)), "protocol", "protocol `NAME`: raw, gptq or llama.cpp")
	f.Var(newWord(&o.bos, "", string(corpus.BOSNone), string(corpus.BOSStart), string(corpus.BOSWindow)), "bos", "`WHERE` BOS goes: none, start or window (default as the protocol says)")
	f.Var(newNumber(&o.windows, 0, 0, maxWindows), "windows", "evaluate only the first `N` windows; 0: all (default)")
	f.Var(newNumber(&o.ctx, 0, 3, maxContext), "ctx", "`TOKENS` in a window (default 2048; llama.cpp 512)")
	f.Var(newNumber(&o.threads, 0, 0, maxThreads), "threads", "`N` workers (default one for each processor)")
	o.addDevice(f, "a GPU if any")
	o.addDevices(f, "which share the work")
	o.addDType(f, "activations on cuda: f16 (default), bf16 or f32")
	o.tiles.register(f)
	f.BoolVar(&o.noVerify, "no-verify", false, "do not check quantized models while reading them")
}

// commandLine returns a command with the flags that were given, as a shell takes it.
func commandLine(c *cobra.Command, args []string) string {
	words := append([]string{"lutq", c.Name()}, args...)
	c.Flags().Visit(func(f *pflag.Flag) {
		if f.Name == "quiet" || f.Name == "json" || f.Name == "force" {
			return
		}
		if list, ok := f.Value.(pflag.SliceValue); ok {
			for _, v := range list.GetSlice() {
				words = append(words, "--"+f.Name, v)
			}
			return
		}
		if f.NoOptDefVal != "" && f.Value.String() == f.NoOptDefVal {
			words = append(words, "--"+f.Name)
			return
		}
		words = append(words, "--"+f.Name, f.Value.String())
	})
	for i, w := range words {
		words[i] = shellWord(w)
	}
	return strings.Join(words, " ")
}

// report writes the page.
func (u *ui) report(ctx context.Context, models []string, o reportOptions, command string) error {
	write, err := pageWriter(o.to)
	if err != nil {
		return err
	}
	if err := mayReplace(o.to, o.force); err != nil {
		return err
	}
	quantized, err := readQuantized(o.quantized)
	if err != nil {
		return err
	}
	r, err := u.newReport(ctx, models, o, quantized, command)
	if err != nil {
		return err
	}
	if err := write(r, o.to); err != nil {
		return err
	}
	if o.json {
		return u.printJSON(r)
	}
	return u.printLine("%s", o.to)
}

// pageWriter returns what writes a page of the kind that a name asks for.
func pageWriter(to string) (func(r *report.Report, to string) error, error) {
	switch ext := strings.ToLower(filepath.Ext(to)); {
	case to == "":
		return nil, usage("report: --to names the file to write")
	case ext == ".html", ext == ".htm":
		return writePage, nil
	case ext == ".md":
		return writeMarkdown, nil
	}
	return nil, usage("--to %q: want a name that ends in .html or .md", to)
}

// mayReplace refuses a file that report did not write.
func mayReplace(path string, force bool) error {
	info, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		_, err = os.Stat(filepath.Dir(path))
		return err
	}
	if err != nil {
		return err
	}
	foreign := hintError{fmt.Errorf("%s: not a file that lutq report wrote", path), "--force replaces it; another name keeps it"}
	if !info.Mode().IsRegular() {
		return hintError{fmt.Errorf("%s: not a file", path), "name another"}
	}
	if force {
		return nil
	}
	data, err := input.ReadFile(path, input.Text)
	if err != nil {
		return err
	}
	head := data[:min(len(data), 400)]
	if bytes.HasPrefix(head, []byte(report.MarkdownMark)) || bytes.Contains(head, []byte(report.PageMark)) {
		return nil
	}
	return foreign
}

// writeFile puts a file in its place whole or not at all.
func writeFile(path string, data []byte) (err error) {
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.Remove(f.Name()))
		}
	}()
	_, err = f.Write(data)
	if err == nil {
		err = f.Chmod(0o644)
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	return os.Rename(f.Name(), path)
}

func writePage(r *report.Report, to string) error {
	var b bytes.Buffer
	if err := r.HTML(&b); err != nil {
		return err
	}
	return writeFile(to, b.Bytes())
}

// writeMarkdown writes a page in Markdown, with its pictures beside it.
func writeMarkdown(r *report.Report, to string) error {
	var b bytes.Buffer
	stem := strings.TrimSuffix(to, filepath.Ext(to))
	err := r.Markdown(&b, func(p *report.Picture) (string, error) {
		path := stem + "." + p.Name + ".svg"
		return report.Address(filepath.Base(path)), writePicture(p, path)
	})
	if err != nil {
		return err
	}
	return writeFile(to, b.Bytes())
}

func writePicture(p *report.Picture, path string) error {
	var b bytes.Buffer
	if err := p.Write(&b); err != nil {
		return err
	}
	return writeFile(path, b.Bytes())
}

// readQuantized reads what quantize --json printed.
func readQuantized(paths []string) (map[string]*report.Quantized, error) {
	all := make(map[string]*report.Quantized)
	for _, path := range paths {
		data, err := input.ReadFile(path, input.Index)
		if err != nil {
			return nil, err
		}
		q, err := report.ParseQuantized(data)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		all[q.SHA256] = q
	}
	return all, nil
}

// newReport gathers what there is to say of models.
func (u *ui) newReport(ctx context.Context, models []string, o reportOptions, quantized map[string]*report.Quantized, command string) (*report.Report, error) {
	r := &report.Report{Title: o.title, Against: o.against, Command: command}
	if r.Title == "" {
		r.Title = strings.Join(models, ", ")
	}
	if len(o.texts) > 0 {
		if err := u.reportTexts(ctx, r, models, o); err != nil {
			return nil, err
		}
	}
	var original *hf.Checkpoint
	if o.against != "" {
		m, err := u.open(o.against, source.Options{Unchecked: true})
		if err != nil {
			return nil, err
		}
		if original, err = m.Weights(); err != nil {
			return nil, err
		}
	}
	told := 0
	for _, name := range models {
		m, err := u.reportModel(ctx, name, original)
		if err != nil {
			return nil, err
		}
		if q := quantized[m.SHA256]; q != nil {
			m.Add(q)
			told++
		}
		r.Models = append(r.Models, *m)
	}
	if told < len(quantized) {
		return nil, hintError{errors.New("--quantized: a file is of none of the models: its sha256 is another"), "lutq inspect MODEL prints that of a model"}
	}
	return r, nil
}

// reportTexts evaluates the models of a report.
func (u *ui) reportTexts(ctx context.Context, r *report.Report, models []string, o reportOptions) error {
	var watches []*report.Watch
	reps, err := u.evalTexts(ctx, models, o.texts, o.evalOptions, func(set *corpus.Set, tok *tokenizer.Tokenizer) eval.Watcher {
		w := report.NewWatch(set, tok, len(models))
		watches = append(watches, w)
		return w
	})
	if err != nil {
		return err
	}
	for i, rep := range reps {
		t := report.Text{Name: rep.text, Results: rep.results, Tokens: watches[i].Results()}
		for _, p := range rep.pairs() {
			t.Pairs = append(t.Pairs, report.Pair{A: p.A, B: p.B, Difference: p.Difference})
		}
		r.Texts = append(r.Texts, t)
	}
	return nil
}

// reportModel gathers what a model stores. original may be nil.
func (u *ui) reportModel(ctx context.Context, name string, original *hf.Checkpoint) (*report.Model, error) {
	in, err := u.inspectModel(name)
	if err != nil {
		return nil, err
	}
	if strings.EqualFold(filepath.Ext(name), ".gguf") {
		in.Format = "gguf"
	}
	m := &report.Model{Name: name, Format: in.Format, SHA256: in.SHA256, Command: in.Command, Recipe: facts(in)}
	for _, l := range in.Layers {
		weights := int64(1)
		for _, n := range l.Shape {
			weights *= int64(n)
		}
		quantized := l.Kind != "" || l.encodingJSON != nil
		stored := l.DType
		if l.Kind != "" {
			stored = formatName(l.Spec)
		}
		m.AddPart(l.Name, stored, quantized, l.BytesOut, weights)
		if quantized && len(l.Shape) >= 2 {
			k := l.Shape[len(l.Shape)-1]
			m.Layers = append(m.Layers, report.Layer{Name: l.Name, Shape: [2]int{int(weights / int64(max(k, 1))), k}, Stored: stored, Bytes: l.BytesOut, Error: l.Error})
		}
	}
	m.Sum()
	if original == nil {
		return m, nil
	}
	var own *hf.Checkpoint
	if in.SHA256 == "" { // the errors of containers are known
		opened, err := u.open(name, source.Options{})
		if err != nil {
			return nil, err
		}
		if own, err = opened.Weights(); err != nil {
			return nil, err
		}
	}
	return m, m.Sample(ctx, own, original)
}

// formats lists how quantized tensors are stored, the most frequent ways first.
func formats(in *inspection) string {
	counts := make(map[string]int)
	for _, l := range in.Layers {
		switch {
		case l.Kind != "":
			counts[formatName(l.Spec)]++
		case l.encodingJSON != nil:
			counts[l.DType]++
		}
	}
	names := slices.SortedFunc(maps.Keys(counts), func(a, b string) int {
		return cmp.Or(cmp.Compare(counts[b], counts[a]), cmp.Compare(a, b))
	})
	const most = 8
	var all []string
	for i, name := range names {
		if i == most {
			all = append(all, fmt.Sprintf("and %d other ways", len(names)-most))
			break
		}
		all = append(all, fmt.Sprintf("%d as %s", counts[name], name))
	}
	return strings.Join(all, ", ")
}

// facts lists how a model was made.
func facts(in *inspection) (all []report.Fact) {
	add := func(what, is string) {
		if is != "" {
			all = append(all, report.Fact{What: what, Is: is})
		}
	}
	add("format", map[string]string{lutq.Method: "lutq's container", "gguf": "GGUF file", "hf": "Hugging Face folder"}[in.Format])
	add("tensors", fmt.Sprintf("%d, %d of them quantized", in.Tensors, in.Quantized))
	add("stored as", formats(in))
	add("quantized by", in.QuantizedBy)
	if t := in.Transform; t != nil {
		add("transform", fmt.Sprintf("%s, %d states", t.Name, t.States))
	}
	if in.Calib != nil {
		add("fitted to", calibName(in.Calib))
	}
	return all
}
