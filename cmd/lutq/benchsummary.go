package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/lutq/lutq/gemm/bench"
)

// What bench --summary measures where nothing else is asked for.
var (
	summaryBits   = []string{"2", "3", "4", "5"}
	summaryGroups = []string{"64", "128"}
	summaryM      = []string{"1", "16", "24", "48", "96", "192", "384", "1024"}
)

// benchSummary times all shapes of several models and sums them up for each width, group size and number of rows of X.
func (u *ui) benchSummary(ctx context.Context, models []string, o benchOptions) error {
	for _, name := range []string{"selftest", "decode", "kind", "kernel", "lookup", "sustain", "energy", "roofline", "act", "blas"} {
		if o.given(name) {
			return usage("--summary and --%s do not go together", name)
		}
	}
	if len(models) == 0 && len(o.shapes) == 0 {
		return usage("bench --summary: give model folders, config.json files or --shapes")
	}
	if err := o.check(slices.Concat(models, []string{""})[0]); err != nil {
		return err
	}
	if o.asJSON {
		o.format = "json"
	}
	groups := summaryGroups
	if o.given("group") {
		groups = []string{o.group}
	}
	if !o.given("bits") {
		o.bits = summaryBits
	}
	if !o.given("m") {
		o.m = summaryM
	}
	gpu, err := o.onGPU()
	if err != nil {
		return err
	}
	device := "cpu"
	if gpu {
		device = "cuda"
	}
	var all []bench.Summary
	for _, o.group = range groups {
		bo, err := o.parse()
		if err != nil {
			return usageError{err}
		}
		for _, model := range models {
			var of bench.Options
			if err := o.addLayers(ctx, u, &of, model, device); err != nil {
				return hintDiffers(err)
			}
			if len(of.Layers) > 0 {
				return usage("%s is quantized: --summary is for shapes alone", model)
			}
			for _, s := range of.Shapes {
				if !slices.Contains(bo.Shapes, s) {
					bo.Shapes = append(bo.Shapes, s)
				}
			}
		}
		rows, err := u.survey(ctx, o, bo, gpu)
		if errors.Is(err, bench.ErrMismatch) {
			return checkError{err}
		}
		if err != nil {
			return hintDoctor(err)
		}
		all = append(all, bench.Summarize(rows, bo.Group)...)
	}
	return u.printSummaries(all, o.format)
}

// survey times products, quickly on a GPU.
func (u *ui) survey(ctx context.Context, o benchOptions, bo bench.Options, gpu bool) ([]bench.Row, error) {
	bar := u.startProgress("timing", 1, false)
	defer bar.finish()
	done, all := int64(0), 0
	bo.Done = func(r bench.Row, total int) {
		done, all = done+1, total
		bar.resize(int64(total))
		bar.set(done, fmt.Sprintf("%dx%d, groups of %s, m %d", r.N, r.K, o.group, r.M))
	}
	if !gpu {
		rows, err := bench.CPU(ctx, bo)
		return rows, u.timeUp(err, done, all)
	}
	return bench.Survey(ctx, bench.CUDAOptions{
		Shapes: bo.Shapes, Bits: bo.Bits, Group: bo.Group, M: bo.M, DType: o.dtype, Seed: bo.Seed, Memory: bo.Memory, NoTune: o.noTune, Done: bo.Done,
	})
}

// printSummaries prints a line for each summary, and the products that are below dense weights.
func (u *ui) printSummaries(all []bench.Summary, format string) error {
	if format == "json" {
		return u.printJSON(map[string]any{"summaries": all})
	}
	ratio := func(r float64) string { return fmt.Sprintf("%.2f", r) }
	shape := func(r bench.Row) string { return fmt.Sprintf("%dx%d", r.N, r.K) }
	var cells, below [][]string
	for _, s := range all {
		line := []string{fmt.Sprint(s.Bits), groupName(s.Group), fmt.Sprint(s.M)}
		cells = append(cells, append(slices.Clone(line), fmt.Sprint(s.Shapes), ratio(s.Least), ratio(s.Median), shape(s.Worst), s.Worst.Kernel, fmt.Sprint(len(s.Below))))
		for _, r := range s.Below {
			below = append(below, append(slices.Clone(line), shape(r), r.Kernel, digits(r.Us, 3), digits(r.DenseUs, 3), fmt.Sprintf("%.3f", r.DenseRatio)))
		}
	}
	head := []string{"bits", "group", "m"}
	under := fmt.Sprintf("below %.2f", bench.NearDense)
	if err := u.printCells(format, numbersShape("kernel", "shapes", "worst shape"), append(slices.Clone(head), "shapes", "least", "median", "worst shape", "kernel", under), cells); err != nil || len(below) == 0 {
		return err
	}
	fmt.Fprintf(u.prose(), "\n%s of dense weights:\n\n", under)
	return u.printCells(format, numbersShape("kernel", "dense us", "us"), append(slices.Clone(head), "shape", "kernel", "us", "dense us", "ratio"), below)
}

// groupName returns the name of a group size as parse has it.
func groupName(group int) string {
	if group == math.MaxInt32 {
		return "row"
	}
	return fmt.Sprint(group)
}
