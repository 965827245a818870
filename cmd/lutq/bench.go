package main

import (
	"context"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/lutq/lutq/formats/hf"
	"github.com/lutq/lutq/formats/lutq"
	"github.com/lutq/lutq/gemm"
	"github.com/lutq/lutq/gemm/cpu"
	"github.com/lutq/lutq/quantize"
)

type benchOptions struct {
	shapes, m, bits  []string
	group            string
	dtype, device    string
	format           string
	threads          int
	selftest, asJSON bool
}

func newBenchCommand(u *ui) *cobra.Command {
	var o benchOptions
	c := &cobra.Command{
		Use:   "bench [MODEL | config.json]",
		Short: "Time the multiplication by quantized weights",
		Long: `Bench times Y = X·Ŵᵀ and checks every result against float64. What it multiplies
by is, in this order: the shapes given by --shapes, with random weights; the
layers of the quantized model MODEL; or the shapes of the layers of an ordinary
model folder or config.json, with random weights.

Weights rotate through a pool larger than the caches, so that they come from
memory as in a model. Beside each time stands what reading the same bytes takes
in the same run (read ratio 1.00 means as fast as memory), and how many times
faster the product is than the same one with dense float32 weights.

--selftest instead runs every kernel of this machine on random data of awkward
shapes.

Exit code 3 means that an error exceeds its bound.`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			model := ""
			if len(args) == 1 {
				model = args[0]
			}
			return u.bench(c.Context(), model, o)
		},
	}
	f := c.Flags()
	f.StringSliceVar(&o.shapes, "shapes", nil, "output by input features, such as `NxK,…`")
	f.StringSliceVar(&o.bits, "bits", []string{"4"}, "`BITS` of a code, a list")
	f.StringVar(&o.group, "group", "128", "`COLUMNS` that share a scale: 32, 64, 128, 256 or row")
	f.StringSliceVar(&o.m, "m", []string{"1", "2", "4", "8", "16"}, "`ROWS` of X, a list")
	f.StringVar(&o.dtype, "dtype", "f32", "`TYPE` of X and Y: f32 on the cpu")
	f.StringVar(&o.device, "device", "cpu", "device `NAME`: cpu")
	f.StringVar(&o.format, "format", "table", "output `NAME`: table, md, json or csv")
	f.IntVar(&o.threads, "threads", 0, "`N` workers (default one for each processor)")
	f.BoolVar(&o.selftest, "selftest", false, "check every kernel instead of timing")
	f.BoolVar(&o.asJSON, "json", false, "the same as --format json")
	return c
}

// errorBound is the relative error that a float32 product may have.
const errorBound = 1e-5

func (u *ui) bench(ctx context.Context, model string, o benchOptions) error {
	if o.asJSON {
		o.format = "json"
	}
	switch {
	case o.device != "cpu":
		return usageError{fmt.Errorf("unknown device %q: want cpu", o.device)}
	case o.dtype != "f32":
		return usageError{fmt.Errorf("unknown type %q: want f32 on the cpu", o.dtype)}
	case o.format != "table" && o.format != "md" && o.format != "json" && o.format != "csv":
		return usageError{fmt.Errorf("unknown format %q: want table, md, json or csv", o.format)}
	}
	if o.selftest {
		return u.selftest(ctx, o.format == "json")
	}
	bo, err := o.parse()
	if err != nil {
		return usageError{err}
	}
	if len(bo.Shapes) == 0 {
		if model == "" {
			return usageError{errors.New("bench: give a model folder, a config.json or --shapes")}
		}
		if err := addLayers(&bo, model); err != nil {
			return err
		}
	}
	bar := u.startProgress("timing", 1, false)
	done := int64(0)
	bo.Done = func(r gemm.Row, total int) {
		done++
		bar.resize(int64(total))
		bar.set(done, fmt.Sprintf("%dx%d, %d bits, m %d", r.N, r.K, r.Bits, r.M))
	}
	rows, err := gemm.Bench(ctx, bo)
	bar.finish()
	if err != nil {
		return err
	}
	if err := u.printRows(rows, o.format); err != nil {
		return err
	}
	for _, r := range rows {
		if !(r.RelErr <= errorBound) {
			return checkError{fmt.Errorf("%dx%d, %d bits, m %d: relative error %.2g is above %.0e", r.N, r.K, r.Bits, r.M, r.RelErr, errorBound)}
		}
	}
	return nil
}

// parse reads the lists among the flags.
func (o *benchOptions) parse() (gemm.Options, error) {
	b := gemm.Options{Threads: o.threads, Seed: 1}
	for _, s := range o.shapes {
		shape, err := gemm.ParseShape(s)
		if err != nil {
			return b, err
		}
		b.Shapes = append(b.Shapes, shape)
	}
	for _, list := range []struct {
		name string
		text []string
		to   *[]int
	}{{"bits", o.bits, &b.Bits}, {"m", o.m, &b.M}} {
		for _, s := range list.text {
			v, err := strconv.Atoi(s)
			if err != nil || v < 1 {
				return b, fmt.Errorf("--%s %q: want positive numbers", list.name, s)
			}
			*list.to = append(*list.to, v)
		}
	}
	for _, v := range b.Bits {
		if v < 2 || v > 5 {
			return b, fmt.Errorf("--bits %d: want 2 to 5", v)
		}
	}
	g, err := quantize.ParseGroup(o.group)
	if err != nil {
		return b, err
	}
	b.Group = g
	if g == lutq.RowGroup {
		b.Group = math.MaxInt32 // cut to K
	}
	return b, nil
}

// addLayers adds the layers of a container, or the shapes of a model.
func addLayers(b *gemm.Options, path string) error {
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	if info.IsDir() && isContainer(path) {
		m, err := lutq.Open(path)
		if err != nil {
			return err
		}
		defer m.Close()
		for _, name := range m.Linears() {
			mat, err := m.Linear(name)
			if err != nil {
				return err
			}
			b.Layers = append(b.Layers, gemm.Layer{Name: name, Matrix: mat})
		}
		return nil
	}
	c, err := hf.ReadConfig(path)
	if err != nil {
		return err
	}
	if err := c.Supported(); err != nil {
		return err
	}
	b.Shapes = layerShapes(c)
	return nil
}

// layerShapes returns the different shapes of a decoder's linear layers, in
// the order q, k, o, gate, down.
func layerShapes(c *hf.Config) []gemm.Shape {
	var shapes []gemm.Shape
	seen := make(map[gemm.Shape]bool)
	for _, s := range []gemm.Shape{
		{N: c.Heads * c.HeadDim, K: c.HiddenSize},
		{N: c.KVHeads * c.HeadDim, K: c.HiddenSize},
		{N: c.HiddenSize, K: c.Heads * c.HeadDim},
		{N: c.IntermediateSize, K: c.HiddenSize},
		{N: c.HiddenSize, K: c.IntermediateSize},
	} {
		if !seen[s] {
			seen[s] = true
			shapes = append(shapes, s)
		}
	}
	return shapes
}

func (u *ui) selftest(ctx context.Context, asJSON bool) error {
	r, err := gemm.Selftest(ctx, 1)
	if err != nil {
		return err
	}
	if asJSON {
		err = u.printJSON(struct {
			OK       bool     `json:"ok"`
			ISAs     []string `json:"isas"`
			Checks   int      `json:"checks"`
			WorstErr float64  `json:"worst_rel_err"`
			Failures []string `json:"failures"`
		}{len(r.Failures) == 0, r.ISAs, r.Checks, r.WorstErr, append([]string{}, r.Failures...)})
		if err != nil {
			return err
		}
	} else {
		for _, f := range r.Failures {
			fmt.Fprintln(u.stdout, f)
		}
		fmt.Fprintf(u.stdout, "%d checks on %s, worst relative error %.2g\n", r.Checks, strings.Join(r.ISAs, ", "), r.WorstErr)
	}
	if n := len(r.Failures); n > 0 {
		return checkError{fmt.Errorf("%d of %d checks failed", n, r.Checks)}
	}
	return nil
}

// printRows prints the measurements in one of the formats.
func (u *ui) printRows(rows []gemm.Row, format string) error {
	if format == "json" {
		return u.printJSON(struct {
			ISA  string     `json:"isa"`
			Rows []gemm.Row `json:"rows"`
		}{isaName(), rows})
	}
	header := []string{"layer", "n", "k", "m", "bits", "group", "kernel", "us", "read ratio", "dense ratio", "GB/s", "rel err"}
	var cells [][]string
	for _, r := range rows {
		noisy := ""
		if r.Noisy {
			noisy = "*"
		}
		cells = append(cells, []string{
			r.Name, strconv.Itoa(r.N), strconv.Itoa(r.K), strconv.Itoa(r.M), strconv.Itoa(r.Bits), strconv.Itoa(r.Group), r.Kernel,
			digits(r.Us, 4) + noisy, fmt.Sprintf("%.3f", r.ReadOnlyRatio), fmt.Sprintf("%.2f", r.DenseRatio), fmt.Sprintf("%.2f", r.GBPerS), fmt.Sprintf("%.1e", r.RelErr),
		})
	}
	switch format {
	case "csv":
		w := csv.NewWriter(u.stdout)
		if err := w.Write(header); err != nil {
			return err
		}
		return w.WriteAll(cells)
	case "md":
		fmt.Fprintf(u.stdout, "| %s |\n|%s\n", strings.Join(header, " | "), strings.Repeat("---|", len(header)))
		for _, c := range cells {
			fmt.Fprintf(u.stdout, "| %s |\n", strings.Join(c, " | "))
		}
		return nil
	}
	w := tabwriter.NewWriter(u.stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
	for _, c := range append([][]string{header}, cells...) {
		fmt.Fprintln(w, strings.Join(c, "\t")+"\t")
	}
	if err := w.Flush(); err != nil {
		return err
	}
	return noteNoise(u.stdout, rows)
}

// noteNoise explains the mark of rows that the machine disturbed.
func noteNoise(w io.Writer, rows []gemm.Row) error {
	for _, r := range rows {
		if r.Noisy {
			_, err := fmt.Fprintln(w, "* the machine was busy: the probe's speed varied by more than a fifth")
			return err
		}
	}
	return nil
}

// isaName returns the instruction set that products use here.
func isaName() string {
	e, err := cpu.New(cpu.Options{Threads: 1})
	if err != nil {
		return ""
	}
	defer e.Close()
	return e.ISA()
}
