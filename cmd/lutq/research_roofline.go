package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/lutq/lutq/formats/input"
	"github.com/lutq/lutq/formats/outdir"
	"github.com/lutq/lutq/gemm/bench"
	"github.com/lutq/lutq/gemm/research/roofline"
)

// rooflineFolder says what --roofline may replace.
func (o *benchOptions) rooflineFolder(model string) outdir.Options {
	fo := outdir.Options{Force: o.force, Plan: "roofline"}
	if model != "" {
		fo.Inputs = []string{model}
	}
	return fo
}

// roofline measures what the device reads and multiplies at most, and writes the products beside it.
func (u *ui) roofline(ctx context.Context, model string, o benchOptions, gpu bool, rows []bench.Row) (err error) {
	var roofs *roofline.Roofs
	if gpu {
		roofs, err = roofline.OnCUDA(ctx, o.dtype)
	} else {
		roofs, err = roofline.OnCPU(ctx, o.reading())
	}
	if err != nil {
		return fmt.Errorf("--roofline: %w", err)
	}
	work, err := outdir.Create(o.roofline, o.rooflineFolder(model))
	if err != nil {
		return outputHint(err)
	}
	defer func() { err = errors.Join(err, work.Discard()) }()
	line := roofline.New(*roofs, rows)
	for name, write := range map[string]func(io.Writer) error{"roofline.csv": line.CSV, "roofline.svg": line.Plot} {
		var b bytes.Buffer
		if err := write(&b); err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(work.Dir(), name), b.Bytes(), 0o644); err != nil {
			return err
		}
	}
	if err := work.Install(); err != nil {
		return outputHint(err)
	}
	u.note("%s has roofline.csv and roofline.svg", input.Name(o.roofline))
	return nil
}
