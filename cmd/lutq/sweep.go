package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/lutq/lutq/calib/report"
	"github.com/lutq/lutq/formats/input"
	"github.com/lutq/lutq/formats/lutq"
	"github.com/lutq/lutq/quantize/preset"
)

type sweepOptions struct {
	reportOptions
	bits, preset string
	beside       []string
	rest         []string // flags for quantize
}

// What a sweep writes beside its models.
const (
	sweepSettings = "sweep.json"
	sweepCSV      = "frontier.csv"
	sweepSVG      = "frontier.svg"
	sweepPage     = "report.html"
)

func newSweepCommand(u *ui) *cobra.Command {
	o := sweepOptions{reportOptions: reportOptions{evalOptions: evalOptions{tiles: tileFolders{ui: u}}}}
	c := &cobra.Command{
		Use:   "sweep MODEL OUTDIR --bits LIST --text FILE [-- FLAGS]",
		Short: "Quantize a model at several widths, and compare",
		Long: `Sweep quantizes MODEL at each of some widths, measures all of them on a text,
and shows divergence by bytes.

  lutq sweep MODEL work --bits 2,2.5,3,3.5,4 --preset best --text wiki.txt
  lutq sweep MODEL work --bits 3,4 --text wiki.txt --beside other.gguf
  lutq sweep MODEL work --bits 3,4 --text wiki.txt -- --group 128 --codebook nf

What stands behind -- are flags of quantize. OUTDIR gets a folder for each
width, as 3.5bit, and beside it what "quantize --json" tells of it; frontier.csv
and frontier.svg; and the page report.html (lutq help report).

Models that are finished are kept, and an interrupted one goes on, so that
widths may be added later. Another MODEL, preset or FLAGS need another OUTDIR.
--beside measures other folders and GGUF files too.`,
		Annotations: more(withLimits(`All models are measured anew each time, in one pass over MODEL, and all must fit
in memory at once.`, input.Config, input.Index, input.Header, input.GGUF, input.Tokenizer, input.Text)),
		Args: func(c *cobra.Command, args []string) error {
			if n := sweepArgs(c, args); n != 2 {
				return fmt.Errorf("accepts 2 arg(s), received %d", n)
			}
			return nil
		},
		ValidArgsFunction: folders(2),
		RunE: func(c *cobra.Command, args []string) error {
			o.rest = args[sweepArgs(c, args):]
			line := commandLine(c, args[:2])
			if len(o.rest) > 0 {
				line += " --"
				for _, w := range o.rest {
					line += " " + shellWord(w)
				}
			}
			return u.sweep(c.Context(), args[0], args[1], o, line)
		},
	}
	f := c.Flags()
	f.StringVar(&o.bits, "bits", "", "`LIST` of widths, as 2,2.5,3 (required)")
	f.Var(newWord(&o.preset, "", preset.Names()...), "preset", "recipe `NAME` for quantize: fast, good or best")
	f.StringArrayVar(&o.beside, "beside", nil, "measure `MODEL` as well; repeatable")
	o.registerTexts(f, u)
	f.BoolVar(&o.json, "json", false, "print what the page shows as JSON")
	f.Lookup("text").Usage = "text `FILE` to evaluate on; repeatable (required)"
	f.Lookup("against").Usage = "compare with `FOLDER` (default MODEL)"
	setGroup(f, "What to make", "bits", "preset", "beside")
	setGroup(f, "Texts", "text", "against", "protocol", "bos", "windows", "ctx")
	setGroup(f, "Run", "threads", "device", "devices", "dtype", "tiles", "no-verify", "json")
	setLater(f, "bos", "devices", "tiles", "no-verify")
	return c
}

// sweepArgs counts the arguments before --.
func sweepArgs(c *cobra.Command, args []string) int {
	if n := c.ArgsLenAtDash(); n >= 0 {
		return n
	}
	return len(args)
}

// widths returns those of a list, as they are written, without repetition.
func widths(list string) (all []string, err error) {
	if list == "" {
		return nil, usage("sweep: --bits names the widths, as 2,3,4")
	}
	for text := range strings.SplitSeq(list, ",") {
		var b bitsFlag
		if err := b.Set(strings.TrimSpace(text)); err != nil {
			return nil, usage("--bits %q: %w", text, err)
		}
		if name := b.String(); !slices.Contains(all, name) {
			all = append(all, name)
		}
	}
	return all, nil
}

// sweepOf is what all models of a sweep have in common.
type sweepOf struct {
	Model string   `json:"model"`
	Flags []string `json:"flags"` // of quantize
}

// settle notes what a sweep is of, or refuses a folder with another.
func (s sweepOf) settle(dir string) error {
	path := filepath.Join(dir, sweepSettings)
	data, err := input.ReadFile(path, input.Recipe)
	if errors.Is(err, fs.ErrNotExist) {
		entries, err := os.ReadDir(dir)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		if len(entries) > 0 {
			return hintError{fmt.Errorf("%s: not a folder of a sweep: it is not empty", dir), "name another OUTDIR"}
		}
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
		text, err := json.MarshalIndent(s, "", "  ")
		if err != nil {
			return err
		}
		return writeFile(path, append(text, '\n'))
	}
	if err != nil {
		return err
	}
	was, err := parseSweep(data)
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	if was.Model != s.Model || !slices.Equal(was.Flags, s.Flags) {
		return hintError{
			fmt.Errorf("%s: a sweep of %s with other settings: %s", dir, was.Model, strings.Join(was.Flags, " ")),
			"name another OUTDIR",
		}
	}
	return nil
}

// parseSweep reads what a sweep is of.
func parseSweep(data []byte) (s sweepOf, err error) {
	if err := json.Unmarshal(data, &s); err != nil {
		return s, err
	}
	if s.Model == "" {
		return s, errors.New("it names no model")
	}
	return s, nil
}

func (u *ui) sweep(ctx context.Context, model, dir string, o sweepOptions, command string) error {
	all, err := widths(o.bits)
	if err != nil {
		return err
	}
	if len(o.texts) == 0 {
		return usage("sweep: --text names the file to evaluate on")
	}
	for _, text := range o.texts {
		if _, err := os.Stat(text); err != nil {
			return err
		}
	}
	of := sweepOf{Model: model, Flags: o.rest}
	if o.preset != "" {
		of.Flags = append([]string{"--preset", o.preset}, o.rest...)
	}
	if err := of.settle(dir); err != nil {
		return err
	}
	var models []string
	quantized := make(map[string]*report.Quantized)
	for i, bits := range all {
		out := filepath.Join(dir, bits+"bit")
		u.note("%s bits, %d of %d", bits, i+1, len(all))
		q, err := u.sweepOne(ctx, of, bits, out)
		if err != nil {
			return err
		}
		if q != nil {
			quantized[q.SHA256] = q
		}
		models = append(models, out)
	}
	if o.against == "" {
		o.against = model
	}
	r, err := u.newReport(ctx, append(models, o.beside...), o.reportOptions, quantized, command)
	if err != nil {
		return err
	}
	if err := writeSweep(r, dir); err != nil {
		return err
	}
	if o.json {
		return u.printJSON(r)
	}
	return u.printSweep(r, dir)
}

// sweepOne quantizes a model at one width, unless that is done, and returns what quantize told of it: nil where it was
// interrupted before that was written.
func (u *ui) sweepOne(ctx context.Context, of sweepOf, bits, out string) (*report.Quantized, error) {
	told := out + ".json"
	if m, err := lutq.Open(out); err == nil {
		m.Close()
		q, err := readQuantized([]string{told})
		if errors.Is(err, fs.ErrNotExist) {
			return nil, nil
		}
		for _, one := range q {
			return one, err
		}
		return nil, err
	} else if !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	line := append([]string{"quantize", of.Model, out}, of.Flags...)
	line = append(line, "--bits", bits, "--json")
	if u.quiet {
		line = append(line, "--quiet")
	}
	var printed bytes.Buffer
	root := newRoot(u.stdin, &printed, u.stderr)
	root.SetArgs(line)
	if err := root.ExecuteContext(ctx); err != nil {
		return nil, err
	}
	q, err := report.ParseQuantized(printed.Bytes())
	if err != nil {
		return nil, usage("sweep: quantize with %s makes no model", strings.Join(of.Flags, " "))
	}
	return q, writeFile(told, printed.Bytes())
}

// writeSweep writes what a sweep came to.
func writeSweep(r *report.Report, dir string) error {
	var b bytes.Buffer
	if err := r.CSV(&b); err != nil {
		return err
	}
	if err := writeFile(filepath.Join(dir, sweepCSV), b.Bytes()); err != nil {
		return err
	}
	if p := r.Frontier(&r.Texts[0]); p != nil {
		if err := writePicture(p, filepath.Join(dir, sweepSVG)); err != nil {
			return err
		}
	}
	return writePage(r, filepath.Join(dir, sweepPage))
}

// sweepShape: bytes and divergence matter most.
func sweepShape() tableShape {
	return tableShape{names: []string{"model"}, drop: []string{"bits", "perplexity", "same top token"}}
}

func (u *ui) printSweep(r *report.Report, dir string) error {
	for i := range r.Texts {
		t := &r.Texts[i]
		if len(r.Texts) > 1 {
			if err := u.printLine("%s", t.Name); err != nil {
				return err
			}
		}
		best := r.Best(t)
		err := u.table(sweepShape(), func(w io.Writer) {
			fmt.Fprintln(w, "model\tbytes\tbits\tperplexity\tKL mean\tsame top token\tbest at its size")
			for j, res := range t.Results {
				m, yes := &r.Models[j], ""
				if slices.Contains(best, j) {
					yes = "yes"
				}
				fmt.Fprintf(w, "%s\t%s\t%.3f\t%.4f\t%.4f\t%.2f %%\t%s\n", input.Name(m.Name), formatBytes(m.Bytes), m.BitsPerWeight, res.PPL, res.KLMean, 100*res.Top1, yes)
			}
		})
		if err != nil {
			return err
		}
	}
	fmt.Fprintln(u.stdout)
	return u.printLine("%s and %s are in %s", sweepPage, sweepCSV, dir)
}
