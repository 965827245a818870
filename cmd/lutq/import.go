package main

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/lutq/lutq/formats/input"
	"github.com/lutq/lutq/formats/outdir"
	"github.com/lutq/lutq/formats/source"
	"github.com/lutq/lutq/formats/weight"
	"github.com/lutq/lutq/quantize"
)

type importOptions struct {
	keepDense bool
	scaleType string
	force     bool
	dryRun    bool
	threads   int
	json      bool
}

func newImportCommand(u *ui) *cobra.Command {
	var o importOptions
	c := &cobra.Command{
		Use:   "import MODEL OUT",
		Short: "Take over what another program quantized, weight for weight",
		Long: withLimits(`Import writes MODEL, which another program quantized, to the folder OUT as a
quantized model of lutq. Every weight stays the same number: codes and scales
are copied, and each weight is compared. (quantize takes the same models, and
quantizes them anew.) It reads

  compressed-tensors  integers, NVFP4, MXFP4
  GPTQ, AWQ           all widths
  EXL3                all widths and codebooks
  bitsandbytes        4 bits, NF4 and FP4, nested or not
  MLX                 all widths, NVFP4, MXFP4
  Model Optimizer     NVFP4
  gpt-oss             MXFP4
  GGUF                Q4_0, Q5_0, Q8_0, IQ4_NL, MXFP4
  MARLIN, k-bit, LUT-GEMM, as "lutq help layouts" has them

Integers of up to 5 bits become a table times scales. Integers with zero points
or offsets for each group, and those of more bits, become binary codes with
offsets ("lutq help methods"), which hold them exactly. Their factors get a type
of 16 bits if one holds all digits, else 32 bits. --scale-type f16 rounds them,
as LUT-GEMM's layout needs it, and the report tells the error. EXL3's tiles
become layers of kind trellis, byte for byte.

Some weights have no exact form: those whose columns were reordered, and those
whose sums would round. They are listed before anything is written. They are an
error, unless --keep-dense stores them in 32 bits.`, input.Config, input.Index, input.Header, input.GGUF),
		Args:              cobra.ExactArgs(2),
		ValidArgsFunction: folders(2),
		RunE:              func(c *cobra.Command, args []string) error { return u.importModel(c.Context(), args[0], args[1], o) },
	}
	f := c.Flags()
	f.BoolVar(&o.keepDense, "keep-dense", false, "store weights without an exact form in 32 bits")
	f.Var(newWord(&o.scaleType, "", "f16", "bf16", "f32"), "scale-type", "round factors of binary codes to `TYPE`: f16, bf16 or f32 (default exact)")
	f.Var(newNumber(&o.threads, 0, 0, maxThreads), "threads", "`N` workers (default one for each processor)")
	f.BoolVar(&o.force, "force", false, "replace OUT if lutq wrote it")
	f.BoolVar(&o.dryRun, "dry-run", false, "tell what would become of the weights; write nothing")
	f.BoolVar(&o.json, "json", false, "print the result as JSON")
	return c
}

// importJSON is what import --json prints.
type importJSON struct {
	quantizeJSON
	Homeless []quantize.Homeless `json:"homeless"` // weights without a form as a table
}

func (u *ui) importModel(ctx context.Context, dir, out string, o importOptions) error {
	return u.takeOver(ctx, dir, out, source.Options{}, o)
}

// takeOver imports a model that is opened as options say.
func (u *ui) takeOver(ctx context.Context, dir, out string, so source.Options, o importOptions) error {
	begin := time.Now()
	if !o.dryRun {
		if err := outdir.Check(out, outdir.Options{Inputs: []string{dir}, Force: o.force}); err != nil {
			return outputHint(err)
		}
	}
	m, err := u.open(dir, so)
	if err != nil {
		return err
	}
	var factors weight.ScaleType
	if o.scaleType != "" {
		if factors, err = weight.ParseScaleType(o.scaleType); err != nil {
			return usageError{err}
		}
	}
	plan, homeless, err := quantize.NewImport(m, quantize.ImportOptions{Factors: factors})
	if err != nil {
		return err
	}
	nameSource(plan, m)
	u.warnFamily(plan)
	if !o.json {
		u.listHomeless(homeless)
	}
	if o.dryRun {
		return u.dryImport(plan, homeless, o.json)
	}
	if len(homeless) > 0 && !o.keepDense {
		return hintError{
			fmt.Errorf("%s: %d weights have no form as a table, the first %s: %s", dir, len(homeless), homeless[0].Tensor, homeless[0].Why),
			"--keep-dense stores them in 32 bits; lutq quantize quantizes all weights anew",
		}
	}
	bar := u.startProgress("importing", plan.Totals().BytesIn, true)
	res, err := plan.Run(ctx, out, quantize.RunOptions{Threads: o.threads, Force: o.force, Progress: bar.set})
	bar.finish()
	if err != nil {
		return quantizeHint(err, out)
	}
	j := importJSON{newQuantizeJSON(res, time.Since(begin).Seconds()), append([]quantize.Homeless{}, homeless...)}
	if o.json {
		return u.printJSON(j)
	}
	return u.facts(func(w io.Writer) {
		fmt.Fprintf(w, "output\t%s\n", out)
		fmt.Fprintf(w, "family\t%s\n", familyName(j.Family))
		fmt.Fprintf(w, "tensors\t%d, %d of them quantized\n", j.Tensors, j.Quantized)
		fmt.Fprintf(w, "size\t%s → %s\n", formatBytes(j.BytesIn), formatBytes(j.BytesOut))
		fmt.Fprintf(w, "bits per weight\t%.3f over all %d parameters\n", j.BitsPerWeight, j.Parameters)
		if j.Error > 0 {
			fmt.Fprintf(w, "relative error\t%.2g %% by factors that are rounded\n", 100*j.Error)
		}
		printImported(w, j.Decoded)
		printKept(w, j.Kept)
		fmt.Fprintf(w, "sha256\t%s\n", j.SHA256)
		fmt.Fprintf(w, "time, memory\t%.1f s, %s\n", j.Seconds, formatBytes(j.PeakRSS))
	})
}

// printImported prints what is taken over, and what is decoded instead.
func printImported(w io.Writer, decoded []quantize.Decoded) {
	for _, d := range decoded {
		if n := d.Tensors - d.Kept; n > 0 {
			fmt.Fprintf(w, "taken over\t%d weights from %s\n", n, d.Encoding)
		}
		if d.Kept > 0 {
			fmt.Fprintf(w, "decoded\t%d weights from %s, stored as %s\n", d.Kept, d.Encoding, d.KeptAs)
		}
	}
}

// listHomeless says which weights have no form as a table, and why.
func (u *ui) listHomeless(homeless []quantize.Homeless) {
	for _, h := range homeless {
		fmt.Fprintf(u.stderr, "lutq: %s, stored as %s, has no form as a table: %s\n", input.Name(h.Tensor), h.From, h.Why)
	}
}

// dryImport prints the plan.
func (u *ui) dryImport(plan *quantize.Plan, homeless []quantize.Homeless, asJSON bool) error {
	t := plan.Totals()
	if asJSON {
		out := struct {
			Tensors       int                 `json:"tensors"`
			Quantized     int                 `json:"quantized"`
			BitsPerWeight float64             `json:"bits_per_weight"`
			BytesIn       int64               `json:"bytes_in"`
			BytesOut      int64               `json:"bytes_out"`
			Homeless      []quantize.Homeless `json:"homeless"`
			Layers        []layerJSON         `json:"layers"`
		}{t.Tensors, t.Quantized, t.BitsPerWeight, t.BytesIn, t.BytesOut, append([]quantize.Homeless{}, homeless...), plannedLayers(plan)}
		return u.printJSON(out)
	}
	if err := u.printPlan(plan); err != nil {
		return err
	}
	fmt.Fprintln(u.stdout)
	return u.facts(func(w io.Writer) {
		fmt.Fprintf(w, "tensors\t%d, %d of them quantized\n", t.Tensors, t.Quantized)
		fmt.Fprintf(w, "size\t%s → %s\n", formatBytes(t.BytesIn), formatBytes(t.BytesOut))
		printImported(w, plan.Decoded())
		printKept(w, plan.Kept())
	})
}
