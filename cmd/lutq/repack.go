package main

import (
	"context"
	"errors"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/lutq/lutq/formats/input"
	"github.com/lutq/lutq/formats/kernels"
	"github.com/lutq/lutq/formats/outdir"
	"github.com/lutq/lutq/formats/source"
	"github.com/lutq/lutq/formats/weight/bcq"
	"github.com/lutq/lutq/formats/weight/lut"
	"github.com/lutq/lutq/formats/weight/lut24"
	"github.com/lutq/lutq/gemm/cuda/torch"
	"github.com/lutq/lutq/quantize"
	"github.com/lutq/lutq/repack/tiles"
)

type repackOptions struct {
	target  string
	gpu     string // of the target torch
	to      string // the kind of weights instead
	from    string // the layout that MODEL is in instead
	threads int
	force   bool
	json    bool

	noVerify bool
}

func newRepackCommand(u *ui) *cobra.Command {
	var o repackOptions
	c := &cobra.Command{
		Use:   "repack MODEL [OUT]",
		Short: "Derive a kernel's tiles from a quantized model",
		Long: withLimits(`Repack lays the quantized layers of MODEL out as a kernel reads them, and writes
these tiles to a folder. Each layer is checked by its SHA-256 first, and turned
back and compared before its tiles are written.

--target cpu and cuda are for lutq itself. bench, eval-ppl and generate find the
tiles in the cache folder, which is the default for OUT, or in a folder that
--tiles names. Tiles can be deleted and made again. A layer P becomes P.panels
and P.panel_scales (cpu), or P.tiles and P.tile_scales (cuda, the same for every
NVIDIA GPU), with P.codebook and the checksum P.crc32c. The documentation of
package repack has the layouts bit by bit.

--target torch writes a folder OUT for PyTorch: tiles of cuda, kernels for one
GPU, and lutq_torch.py. lutq_torch.use(model) replaces the layers of MODEL
opened in transformers. Setting LUTQ_TORCH=OUT in the environment does the same.

Other targets are layouts of other programs ("lutq help layouts"). OUT is a
model folder for them; --from reads such a folder back. A layer that a layout
cannot hold exactly is refused, and nothing is written.

--to KIND writes another quantized model OUT with the same weights in another
form: lut (a table), bcq (binary codes; for tables of equal steps such as q2 to
q5) or lut24 (for layers with two zeros in every four columns). Nothing is
written if a layer has no such form.`, input.Config, input.Index, input.Header),
		Args:              cobra.RangeArgs(1, 2),
		ValidArgsFunction: folders(2),
		RunE: func(c *cobra.Command, args []string) error {
			out := ""
			if len(args) == 2 {
				out = args[1]
			}
			if o.from != "" {
				switch {
				case out == "":
					return usage("--from takes a folder OUT")
				case o.to != "" || c.Flags().Changed("target"):
					return usage("--from reads a model into a container, which --to and --target take")
				}
				from, err := kernels.For(o.from)
				if err != nil {
					return err
				}
				return u.fromLayout(c.Context(), args[0], out, from, o)
			}
			if o.to != "" {
				switch {
				case out == "":
					return usage("--to takes a folder OUT")
				case c.Flags().Changed("target"):
					return usage("--to writes a model, --target a kernel's tiles of one")
				}
				return u.convert(c.Context(), args[0], out, o)
			}
			switch {
			case o.target == torchTarget && out == "":
				return usage("--target torch takes a folder OUT")
			case o.target != torchTarget && c.Flags().Changed("gpu"):
				return usage("--gpu is for --target torch")
			}
			if to, err := kernels.For(o.target); err == nil {
				if out == "" {
					return usage("--target %s takes a folder OUT", o.target)
				}
				return u.toLayout(c.Context(), args[0], out, to, o)
			}
			return u.repack(c.Context(), args[0], out, o)
		},
	}
	f := c.Flags()
	f.Var(newWord(&o.target, "cpu", slices.Concat(tiles.Names(), []string{torchTarget}, kernels.Names())...), "target", "lay out for `NAME`: cpu, cuda, torch, "+strings.Join(kernels.Names(), ", "))
	f.Var(newWord(&o.gpu, autoGPU, gpuNames()...), "gpu", "GPU of --target torch, `NAME`: h200, h100, a100, rtx4090, l40s, or auto: this machine's, else h200")
	f.Var(newWord(&o.to, "", lut.Name, bcq.Name, lut24.Name), "to", "write a model whose layers have kind `NAME` instead: lut, bcq or lut24")
	f.Var(newWord(&o.from, "", kernels.Names()...), "from", "read MODEL from layout `NAME`: "+strings.Join(kernels.Names(), ", "))
	f.Var(newNumber(&o.threads, 0, 0, maxThreads), "threads", "`N` workers (default one for each processor)")
	f.BoolVar(&o.force, "force", false, "replace OUT if lutq wrote it")
	f.BoolVar(&o.noVerify, "no-verify", false, "do not check MODEL while reading it")
	f.BoolVar(&o.json, "json", false, "print the result as JSON")
	return c
}

func (u *ui) repack(ctx context.Context, dir, out string, o repackOptions) (err error) {
	device := o.target
	if device == torchTarget {
		device = "cuda"
	}
	target := tiles.For(device)
	if o.threads > 0 {
		defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(o.threads)) // a layer is laid out on all of them
	}
	defer func() { err = hintDiffers(err) }()
	model, err := u.open(dir, source.Options{Unchecked: o.noVerify})
	if err != nil {
		return err
	}
	m, err := model.Container()
	if err != nil {
		return err
	}
	if err := checkMemory(m.Checkpoint(), false); err != nil {
		return err
	}
	if out == "" {
		out = tiles.CacheDir(m, target)
		if err := input.Private(filepath.Dir(out)); err != nil {
			return hintError{err, "name a folder OUT, or another cache folder with XDG_CACHE_HOME"}
		}
	}
	// A run that was killed is not gone on with: it takes seconds.
	work, err := outdir.Create(out, outdir.Options{Inputs: []string{model.Path()}, Force: o.force, Plan: "repack"})
	if err != nil {
		return outputHint(err)
	}
	defer func() { err = errors.Join(err, work.Discard()) }() // nothing after Install
	bar := u.startProgress("repacking", 1, true)
	bytes, err := tiles.Write(ctx, work.Dir(), m, target, func(done, total int64, layer string) {
		bar.resize(total)
		bar.set(done, layer)
	})
	bar.finish()
	if err != nil {
		return err
	}
	var op *torch.Op
	if o.target == torchTarget {
		var more int64
		if op, more, err = writeTorch(ctx, work.Dir(), m, o.gpu); err != nil {
			return err
		}
		bytes += more
		u.warnUnpacked(op)
	}
	if err := work.Install(); err != nil {
		return outputHint(err)
	}
	if o.json {
		return u.printJSON(struct {
			Output string    `json:"output"`
			Target string    `json:"target"`
			Layers int       `json:"layers"`
			Bytes  int64     `json:"bytes"`
			Torch  *torch.Op `json:"torch,omitempty"`
		}{out, o.target, len(m.Linears()), bytes, op})
	}
	if op != nil {
		return u.printLine("%s: %d layers in %s and %d kernels for %s (%s), %s", out, len(m.Linears()), target.Unit, len(op.Kernels), op.GPU.Name, op.GPU.Arch, formatBytes(bytes))
	}
	return u.printLine("%s: %d layers in %s, %s", out, len(m.Linears()), target.Unit, formatBytes(bytes))
}

// convert writes a model with its layers as another kind.
func (u *ui) convert(ctx context.Context, dir, out string, o repackOptions) (err error) {
	if o.threads > 0 {
		defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(o.threads))
	}
	if err := outdir.Check(out, outdir.Options{Inputs: []string{dir}, Force: o.force}); err != nil {
		return outputHint(err)
	}
	model, err := u.open(dir, source.Options{Unchecked: o.noVerify})
	if err != nil {
		return err
	}
	m, err := model.Container()
	if err != nil {
		return hintDiffers(err)
	}
	bar := u.startProgress("converting", 1, true)
	res, err := quantize.Convert(ctx, m, o.to, out, quantize.ConvertOptions{Force: o.force, Progress: func(done, total int64, tensor string) {
		bar.resize(total)
		bar.set(done, tensor)
	}})
	bar.finish()
	if err != nil {
		return hintDiffers(outputHint(err))
	}
	if o.json {
		return u.printJSON(struct {
			Output string `json:"output"`
			*quantize.Converted
		}{out, res})
	}
	return u.printLine("%s: %d of %d layers became %s, %s → %s, sha256 %s", out, res.Changed, res.Layers, res.Kind, formatBytes(res.BytesIn), formatBytes(res.BytesOut), res.SHA256)
}
