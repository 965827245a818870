package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/lutq/lutq/formats/input"
	"github.com/lutq/lutq/formats/lutq"
	"github.com/lutq/lutq/formats/outdir"
	"github.com/lutq/lutq/formats/weight"
	"github.com/lutq/lutq/formats/weight/lut"
	"github.com/lutq/lutq/gemm/bench"
	"github.com/lutq/lutq/gemm/cuda"
	"github.com/lutq/lutq/gemm/cuda/driver"
	"github.com/lutq/lutq/gemm/cuda/torch"
	"github.com/lutq/lutq/repack"
)

// torchTarget is the target of repack that adds to the tiles what PyTorch needs to multiply by them.
const torchTarget = "torch"

// autoGPU stands for this machine's GPU, or the first of [cuda.GPUs] where there is none.
const autoGPU = "auto"

// gpuNames lists what --gpu takes.
func gpuNames() []string {
	names := []string{autoGPU}
	for _, g := range cuda.GPUs() {
		names = append(names, g.Name)
	}
	return names
}

// gpuOf returns the GPU of a name.
func gpuOf(name string) (driver.DeviceInfo, error) {
	gpus := cuda.GPUs()
	for _, g := range gpus {
		if g.Name == name {
			return g, nil
		}
	}
	info, err := driver.FirstGPU()
	if errors.Is(err, driver.ErrNoGPU) {
		return gpus[0], nil
	}
	return info, err
}

// newTorchKernelsCommand returns a command for programs, which help does not list: lutq_kernels.py makes tiles of codes on the GPU, and
// wants the kernels alone.
func newTorchKernelsCommand(u *ui) *cobra.Command {
	var o struct {
		gpu, dtype string
		measure    int
		force      bool
		json       bool
	}
	c := &cobra.Command{
		Use:    "torch-kernels OUT MATRIX...",
		Short:  "Write kernels for PyTorch without a model",
		Hidden: true,
		Long: `Torch-kernels writes to a folder OUT what "repack --target torch" writes beside
tiles: kernels, how they are launched, and lutq_torch.py. A MATRIX is
NxK:BITS:GROUP:SCALE, and its layer in lutq_torch.json has that name. The plugin
for vLLM calls this command when it first meets a shape. With --measure the ways
to multiply more rows of activations than one kernel takes are timed on a GPU of
this machine, and those whose results are right and that are the fastest are
written, with the times. Else they are those that are the fastest on an H200.

  lutq torch-kernels out 4096x4096:4:64:f16 1024x4096:3:row:bf16 --type bf16`,
		Args: cobra.MinimumNArgs(2),
		RunE: func(c *cobra.Command, args []string) (err error) {
			layers := make(map[string]*repack.CUDATiles)
			for _, name := range args[1:] {
				if layers[name], err = parseMatrix(name); err != nil {
					return usage("%v", err)
				}
			}
			types := slices.DeleteFunc(torch.Types(), func(t driver.DType) bool { return o.dtype != anyType && t.String() != o.dtype })
			work, err := outdir.Create(args[0], outdir.Options{Force: o.force, Plan: "torch-kernels"})
			if err != nil {
				return outputHint(err)
			}
			defer func() { err = errors.Join(err, work.Discard()) }() // nothing after Install
			op, bytes, err := writeKernels(c.Context(), work.Dir(), o.gpu, o.measure, "", layers, types...)
			if err != nil {
				return err
			}
			if err := work.Install(); err != nil {
				return outputHint(err)
			}
			if o.json {
				return u.printJSON(op)
			}
			return u.printLine("%s: %d kernels for %s (%s), %s", args[0], len(op.Kernels), op.GPU.Name, op.GPU.Arch, formatBytes(bytes))
		},
	}
	types := []string{anyType}
	for _, t := range torch.Types() {
		types = append(types, t.String())
	}
	f := c.Flags()
	f.Var(newWord(&o.gpu, autoGPU, gpuNames()...), "gpu", "GPU `NAME`, as repack has it")
	f.Var(newWord(&o.dtype, anyType, types...), "type", "activations of type `NAME`: "+strings.Join(types, ", "))
	f.IntVar(&o.measure, "measure", guessed, "GPU `INDEX` on which ways to multiply are timed")
	f.BoolVar(&o.force, "force", false, "replace OUT if lutq wrote it")
	f.BoolVar(&o.json, "json", false, "print lutq_torch.json")
	return c
}

// guessed stands for no GPU on which something is measured.
const guessed = -1

// anyType stands for all types of activations.
const anyType = "all"

// parseMatrix reads a matrix's shape and format: NxK:BITS:GROUP:SCALE.
func parseMatrix(s string) (*repack.CUDATiles, error) {
	parts := strings.Split(s, ":")
	if len(parts) != 4 {
		return nil, fmt.Errorf("matrix %q: want NxK:BITS:GROUP:SCALE", s)
	}
	fail := func(err error) (*repack.CUDATiles, error) { return nil, fmt.Errorf("matrix %q: %w", s, err) }
	shape, err := bench.ParseShape(parts[0])
	if err != nil {
		return fail(err)
	}
	bits, err := strconv.Atoi(parts[1])
	if err != nil || bits < lut.MinBits || bits > lut.MaxBits {
		return fail(fmt.Errorf("%s bits: want %d to %d", parts[1], lut.MinBits, lut.MaxBits))
	}
	group, err := weight.ParseGroup(parts[2])
	if err != nil {
		return fail(err)
	}
	scale, err := weight.ParseScaleType(parts[3])
	if err != nil {
		return fail(err)
	}
	if group == weight.RowGroup {
		group = shape.K
	}
	return &repack.CUDATiles{N: shape.N, K: shape.K, Bits: bits, Group: group, ScaleType: scale}, nil
}

// writeTorch writes the kernels for a container's layers to a folder, and how they are launched.
func writeTorch(ctx context.Context, dir string, m *lutq.Model, gpu string) (op *torch.Op, bytes int64, err error) {
	layers := make(map[string]*repack.CUDATiles)
	for _, name := range m.Linears() {
		t, s := m.Config().Tensors[name], m.Spec(name)
		if s.Kind == lut.Name && t.Experts == 0 { // a stack is multiplied by an expert at a time
			layers[name] = &repack.CUDATiles{N: t.Shape[0], K: t.Shape[1], Bits: s.Bits, Group: s.Columns(t.Shape[1]), ScaleType: s.ScaleType}
		}
	}
	return writeKernels(ctx, dir, gpu, guessed, m.Config().SHA256, layers, torch.Types()...)
}

// writeKernels writes the kernels for matrices, by name, and activations of some types to a folder. Ways to multiply are measured on a GPU of
// this machine, for which the kernels are then, unless it is to be guessed.
func writeKernels(ctx context.Context, dir, gpu string, measure int, sha256 string, layers map[string]*repack.CUDATiles, types ...driver.DType) (op *torch.Op, bytes int64, err error) {
	c, err := driver.Open(driver.Options{})
	if err != nil {
		return nil, 0, err
	}
	var info driver.DeviceInfo
	var by torch.Measurer
	if measure == guessed {
		info, err = gpuOf(gpu)
	} else if info, err = c.DeviceInfo(measure); err == nil {
		var g *torch.OnGPU
		if g, err = torch.NewOnGPU(c, measure); err == nil {
			by = g
			defer func() { err = errors.Join(err, g.Close()) }()
		}
	}
	if err != nil {
		return nil, 0, err
	}
	if op, err = torch.New(ctx, c, info, sha256, layers, by, types...); err != nil {
		return nil, 0, err
	}
	bytes, err = op.Write(dir)
	return op, bytes, err
}

// warnUnpacked says for which layers there is no kernel, one of them by name.
func (u *ui) warnUnpacked(op *torch.Op) {
	var first string
	n := 0
	for _, name := range slices.Sorted(maps.Keys(op.Layers)) {
		if op.Layers[name].Why != "" {
			if n++; n == 1 {
				first = name
			}
		}
	}
	if n > 0 {
		fmt.Fprintf(u.stderr, "lutq: %d of %d layers have no kernel and will be unpacked to be multiplied by, such as %s: %s\n",
			n, len(op.Layers), input.Name(first), input.Message(op.Layers[first].Why))
	}
}
