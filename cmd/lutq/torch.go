package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/lutq/lutq/formats/input"
	"github.com/lutq/lutq/formats/lutq"
	"github.com/lutq/lutq/formats/weight/lut"
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

// writeTorch writes the kernels for a container's layers to a folder, and how they are launched.
func writeTorch(ctx context.Context, dir string, m *lutq.Model, gpu string) (op *torch.Op, bytes int64, err error) {
	info, err := gpuOf(gpu)
	if err != nil {
		return nil, 0, err
	}
	c, err := driver.Open(driver.Options{})
	if err != nil {
		return nil, 0, err
	}
	layers := make(map[string]*repack.CUDATiles)
	for _, name := range m.Linears() {
		t, s := m.Config().Tensors[name], m.Spec(name)
		if s.Kind == lut.Name && t.Experts == 0 { // a stack is multiplied by an expert at a time
			layers[name] = &repack.CUDATiles{N: t.Shape[0], K: t.Shape[1], Bits: s.Bits, Group: s.Columns(t.Shape[1]), ScaleType: s.ScaleType}
		}
	}
	if op, err = torch.New(ctx, c, info, m.Config().SHA256, layers); err != nil {
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
