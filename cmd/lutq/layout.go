package main

import (
	"context"
	"fmt"
	"runtime"

	"github.com/lutq/lutq/formats/export"
	"github.com/lutq/lutq/formats/kernels"
	"github.com/lutq/lutq/formats/outdir"
	"github.com/lutq/lutq/formats/source"
)

// toLayout writes a model in a layout of another program's kernel.
func (u *ui) toLayout(ctx context.Context, dir, out string, to kernels.Layout, o repackOptions) (err error) {
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
	if err := p.Check(export.Options{}); err != nil {
		return hintError{fmt.Errorf("%s: %w", dir, err), to.Advice()}
	}
	bar := u.startProgress("repacking", p.Size(), true)
	bytes, err := p.Run(ctx, out, export.Options{Force: o.force, Progress: bar.set})
	bar.finish()
	if err != nil {
		return outputHint(err)
	}
	layers := len(p.Model.Layers)
	if o.json {
		return u.printJSON(struct {
			Output string `json:"output"`
			Target string `json:"target"`
			Layers int    `json:"layers"`
			Bytes  int64  `json:"bytes"`
		}{out, o.target, layers, bytes})
	}
	return u.printLine("%s: %d layers as %s has them, %s", out, layers, to.Name(), formatBytes(bytes))
}

// fromLayout writes what lies in a layout of another program's kernel as a container.
func (u *ui) fromLayout(ctx context.Context, dir, out string, from kernels.Layout, o repackOptions) error {
	return u.takeOver(ctx, dir, out, source.Options{As: from}, importOptions{force: o.force, threads: o.threads, json: o.json})
}
