package cuda

import (
	"cmp"
	"flag"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/lutq/lutq/gemm/cuda/driver"
	"github.com/lutq/lutq/gemm/cuda/kerneltest"
	"github.com/lutq/lutq/quantize/lut"
)

var (
	long   = flag.Bool("long", false, "compile all kernels, and multiply in more formats")
	update = flag.Bool("update", false, "write prebuilt.zip")
)

// mostSpills is what a thread of the kernels may spill, in bytes: values that are
// read once a tile, where 128 registers are all that sixteen warps can have.
const mostSpills = 64

// TestCompile compiles the kernels with the options that the program uses: with
// -long every one, for the architectures that the compiler makes code for, as far as their GPUs have
// room for it. A configuration that does not leave its loop in registers has no place in the list.
func TestCompile(t *testing.T) {
	c := kerneltest.Compiler(t, *long)
	var variants []kerneltest.Variant
	add := func(f Format, config Config, arch string) {
		k := f.Kernel(config)
		k.Options.Arch = arch
		variants = append(variants, kerneltest.Variant{
			Group:  fmt.Sprintf("%d bits, to %d rows, %v", f.Bits, config.Rows, config),
			Kernel: k, Spills: mostSpills,
		})
	}
	if *long {
		for _, f := range Formats() {
			for _, rows := range []int{rowsOfB, MaxRows} {
				for _, config := range f.allConfigs(rows) {
					add(f, config, "sm_90a")
					slicesOfK := cmp.Or(config.Slices, 8)
					if _, _, err := f.planSliced(config, 1, 32, rows, slicesOfK, limits{sms: 108, sharedBlock: 163 << 10}); err == nil {
						add(f, config, "sm_80")
					}
				}
			}
		}
	} else {
		for bits := lut.MinBits; bits <= lut.MaxBits; bits++ {
			f := Format{bits, 128, lut.F16, driver.F16}
			add(f, f.configs(1, 1)[0], "sm_90a")
		}
		wide := Format{4, 64, lut.BF16, driver.BF16}
		bytes := Format{3, 32, lut.E4M4, driver.F16}
		add(bytes, bytes.configs(1, 1)[0], "sm_90a")
		row := Format{4, 0, lut.F32, driver.F16}
		add(row, row.configs(1, 1)[0], "sm_80")
		for _, config := range slices.Concat(wide.allConfigs(rowsOfB), wide.allConfigs(MaxRows)) {
			add(wide, config, "sm_90a")
		}
	}
	kerneltest.Compile(t, c, variants)
}

// TestPrebuilt checks, and with -update writes, the PTX that stands in where there
// is no compiler.
func TestPrebuilt(t *testing.T) {
	var kernels []driver.Kernel
	for _, f := range Formats() {
		if !f.prebuilt() {
			continue
		}
		for _, arch := range driver.PrebuiltArchs() {
			k := f.Kernel(prebuiltConfig)
			k.Options.Arch = arch
			kernels = append(kernels, k)
		}
		for _, out := range []driver.DType{f.Type, driver.F32} {
			k := f.rowsKernel(out)
			k.Options.Arch = "compute_80"
			kernels = append(kernels, k)
		}
	}
	kerneltest.Prebuilt(t, "prebuilt.zip", kernels, *update)
}

// TestNoHeaders holds the kernels to what NVRTC has without a toolkit.
func TestNoHeaders(t *testing.T) {
	f := Format{4, 128, lut.F16, driver.F16}
	for _, c := range []Config{f.configs(1, 1)[0], f.wideConfigs(MaxRows)[0]} {
		if k := f.Kernel(c); strings.Contains(k.Source, "#include") {
			t.Errorf("the kernel of %v includes a header", c)
		}
	}
}
