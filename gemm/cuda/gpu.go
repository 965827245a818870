package cuda

import "github.com/lutq/lutq/gemm/cuda/driver"

// GPU is what a family knows of a device.
type GPU struct {
	driver.DeviceInfo       // with the blocks that grids have at most for its multiprocessors
	NoCompiler        error // why only prebuilt kernels can be loaded, or nil
}

// Hopper reports whether kernels can be compiled for Hopper's own instructions.
func (g GPU) Hopper() bool { return g.Major == 9 && g.NoCompiler == nil }

// GPUs lists GPUs that kernels can be compiled for where they are not at hand. The first is the usual.
func GPUs() []driver.DeviceInfo {
	return []driver.DeviceInfo{
		{Name: "h200", Major: 9, SMs: 132, SharedPerBlock: 227 << 10},
		{Name: "h100", Major: 9, SMs: 132, SharedPerBlock: 227 << 10},
		{Name: "a100", Major: 8, SMs: 108, SharedPerBlock: 163 << 10},
		{Name: "rtx4090", Major: 8, Minor: 9, SMs: 128, SharedPerBlock: 99 << 10},
		{Name: "l40s", Major: 8, Minor: 9, SMs: 142, SharedPerBlock: 99 << 10},
	}
}
