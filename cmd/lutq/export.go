package main

import (
	"context"
	"fmt"
	"runtime"
	"strings"

	"github.com/spf13/cobra"

	"github.com/lutq/lutq/formats/dense"
	"github.com/lutq/lutq/formats/export"
	"github.com/lutq/lutq/formats/foreign"
	"github.com/lutq/lutq/formats/gguf"
	"github.com/lutq/lutq/formats/input"
	"github.com/lutq/lutq/formats/outdir"
	"github.com/lutq/lutq/formats/source"
	"github.com/lutq/lutq/formats/weight"
	"github.com/lutq/lutq/quantize/rtn"
)

type exportOptions struct {
	target string
	dtype  string
	blocks string
	kept   string

	noTokenizer bool

	requantize bool
	force      bool
	dryRun     bool
	noVerify   bool
	threads    int
	json       bool
}

func newExportCommand(u *ui) *cobra.Command {
	var o exportOptions
	c := &cobra.Command{
		Use:   "export MODEL OUT --to TARGET",
		Short: "Write a quantized model in a format of other programs",
		Long: `Export writes MODEL, which quantize made, to the folder OUT in the format of
other programs:

  ct     compressed-tensors, integers of 2 to 5 bits: transformers; vLLM (4
         bits)
  bnb    bitsandbytes NF4: transformers
  gptq   GPTQ, integers of 2 to 4 bits: gptqmodel, transformers; vLLM (4 bits)
  awq    AWQ, integers of 4 bits: gptqmodel, transformers, vLLM
  mlx    MLX, integers of 2 to 5 bits: mlx-lm
  nvfp4  compressed-tensors, E2M1 codes and E4M3 scales: vLLM, transformers
  mxfp4  compressed-tensors, E2M1 codes and powers of two: vLLM, transformers
  exl3   EXL3, kind trellis with codebook mul1, mcg or 3inst: exllamav3
  gguf   one file, model.gguf: llama.cpp and its kin, transformers
  dense  weights of 16 or 32 bits: every program

  lutq quantize MODEL OUT --for gguf
  lutq export OUT GGUF --to gguf

Codes and scales are copied where the target can hold them. quantize --for NAME
makes layers that it can ("lutq help formats"). Layers that do not fit are
listed before anything is written. They are an error, unless --requantize
quantizes them anew. For dense and gguf MODEL may be any model.`,
		Annotations: more(withLimits(`The last line says what became of the weights:
  loss-free           all are the same, bit for bit
  scales re-rounded   scales had to be rounded once more; it says by how much
  weights rounded     a dense type holds fewer digits
  re-quantized        codes were chosen anew, from the weights that the layers
                      stand for

In GGUF, matrices that are not quantized keep their type unless --kept names
one. --type has lutq search blocks of llama.cpp's own types (q4_k and others)
for all linear layers. The report lists the type of every matrix, and the reason
where it is not the one asked for. It also lists what llama.cpp has no place
for, such as a third token that ends texts; lutq's own readers still find it in
the file. Of the families that "lutq help eval-ppl" names, Nemotron, DeepSeek-
V3.2 and GLM-5 have no GGUF here.`, input.Config, input.Index, input.Header)),
		Args:              cobra.ExactArgs(2),
		ValidArgsFunction: folders(2),
		RunE: func(c *cobra.Command, args []string) error {
			if o.target == "" {
				return hintError{usage("export: --to is missing"), "--to takes " + alternatives(export.Names())}
			}
			return u.export(c.Context(), args[0], args[1], o)
		},
	}
	f := c.Flags()
	f.Var(newTarget(&o.target, export.Names()), "to", "format `NAME` (required): "+strings.Join(export.Names(), ", "))
	f.BoolVar(&o.requantize, "requantize", false, "quantize layers anew that do not fit")
	f.Var(newWord(&o.dtype, "", "f16", "bf16", "f32"), "dtype", "dense: `TYPE` of all weights, f16, bf16 or f32 (default the model's)")
	f.Var(newWord(&o.kept, "", gguf.KeptNames()...), "kept", "gguf: `TYPE` of what is not quantized, f16, bf16, f32 or q8_0 (default as it is)")
	f.Var(newWord(&o.blocks, "", gguf.WeightNames()...), "type", "gguf: `TYPE` of all linear layers, q4_k, q6_k, iq4_xs, … (default as they are stored)")
	f.BoolVar(&o.noTokenizer, "no-tokenizer", false, "gguf: leave the tokenizer out")
	f.Var(newNumber(&o.threads, 0, 0, maxThreads), "threads", "`N` workers (default one for each processor)")
	f.BoolVar(&o.force, "force", false, "replace OUT if lutq wrote it")
	f.BoolVar(&o.dryRun, "dry-run", false, "tell what would become of the layers; write nothing")
	f.BoolVar(&o.noVerify, "no-verify", false, "do not check MODEL while reading it")
	f.BoolVar(&o.json, "json", false, "print the result as JSON")
	return c
}

// exportResult is what a run of export did, or would do.
type exportResult struct {
	Output string `json:"output"`
	Target string `json:"target"`
	export.Outcome
	Unfit    []export.Unfit `json:"unfit"`
	Warnings []string       `json:"warnings"`
	Bytes    int64          `json:"bytes,omitempty"` // of tensors that were written
}

func (u *ui) export(ctx context.Context, dir, out string, o exportOptions) (err error) {
	to, err := o.format()
	if err != nil {
		return err
	}
	if o.threads > 0 {
		defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(o.threads))
	}
	if err := outdir.Check(out, outdir.Options{Inputs: []string{dir}, Force: o.force}); err != nil {
		return outputHint(err)
	}
	defer func() { err = hintDiffers(err) }()
	m, err := u.open(dir, source.Options{Unchecked: o.noVerify})
	if err != nil {
		return err
	}
	p, err := export.New(ctx, m, to)
	if err != nil {
		return err
	}
	r := exportResult{Output: out, Target: o.target, Outcome: p.Outcome(), Unfit: p.Unfit(), Warnings: append([]string{}, p.Warnings()...)}
	for _, w := range r.Warnings {
		u.note("%s", w)
	}
	if !o.json || !o.dryRun {
		u.listUnfit(r)
	}
	eo := export.Options{Requantize: o.requantize, Force: o.force, NewRounder: rtn.NewRounder}
	if !o.dryRun {
		if err := p.Check(eo); err != nil {
			return err
		}
		bar := u.startProgress("exporting", p.Size(), true)
		eo.Progress = bar.set
		r.Bytes, err = p.Run(ctx, out, eo)
		bar.finish()
		if err != nil {
			return outputHint(err)
		}
	}
	if o.json {
		return u.printJSON(r)
	}
	return u.printLine("%s", r.line(o.dryRun))
}

// format returns the target.
func (o exportOptions) format() (foreign.Target, error) {
	to, err := export.For(o.target)
	if err != nil {
		return nil, err
	}
	d, ok := to.(dense.Target)
	if !ok && o.dtype != "" {
		return nil, usage("--dtype is for --to dense")
	}
	g, isGGUF := to.(gguf.Target)
	if !isGGUF && (o.kept != "" || o.blocks != "" || o.noTokenizer) {
		return nil, usage("--kept, --type and --no-tokenizer are for --to gguf")
	}
	switch {
	case isGGUF:
		g.Kept, g.Type, g.NoTokenizer = o.kept, o.blocks, o.noTokenizer
		return g, nil
	case ok && o.dtype != "":
		d.DType, err = weight.ParseScaleType(o.dtype)
		return d, err
	}
	return to, nil
}

// listUnfit lists what does not fit and why.
func (u *ui) listUnfit(r exportResult) {
	for _, group := range r.Unfit {
		layers := "layers"
		if group.Layers == 1 {
			layers = "layer"
		}
		names := make([]string, len(group.Names))
		for i, name := range group.Names {
			names[i] = input.Name(name)
		}
		u.note("%d %s (%s) to be %s: %s", group.Layers, layers, strings.Join(names, ", "), group.Then, group.Why)
	}
}

// line says what became of a model.
func (r exportResult) line(dryRun bool) string {
	var parts []string
	for _, p := range []struct {
		n    int
		what string
	}{{r.AsIs, "as they are"}, {r.Anew, "quantized anew"}, {r.Dense, "dense"}} {
		if p.n > 0 {
			parts = append(parts, fmt.Sprintf("%d layers %s", p.n, p.what))
		}
	}
	if len(parts) == 0 && len(r.Types) == 0 {
		parts = append(parts, "no quantized layers")
	}
	for _, t := range r.Types {
		matrices := "matrices"
		if t.Matrices == 1 {
			matrices = "matrix"
		}
		part := fmt.Sprintf("%d %s in %s", t.Matrices, matrices, t.Type)
		if t.Why != "" {
			part += " (" + t.Why + ")"
		}
		parts = append(parts, part)
	}
	outcome := r.Outcome.Outcome
	if r.Change > 0 {
		outcome += fmt.Sprintf(" (largest relative change %.2g)", r.Change)
	}
	if len(r.Lacks) > 0 {
		outcome += ", though llama.cpp has " + strings.Join(r.Lacks, ", ")
	}
	if dryRun {
		return fmt.Sprintf("%s: would be %s: %s", r.Output, outcome, strings.Join(parts, ", "))
	}
	return fmt.Sprintf("%s: %s, %s: %s", r.Output, formatBytes(r.Bytes), outcome, strings.Join(parts, ", "))
}
