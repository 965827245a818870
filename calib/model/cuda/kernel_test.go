package cuda_test

import (
	"flag"
	"strings"
	"testing"

	"github.com/lutq/lutq/calib/model/cuda"
	"github.com/lutq/lutq/gemm/cuda/driver"
	"github.com/lutq/lutq/gemm/cuda/kerneltest"
)

var long = flag.Bool("long", false, "compile all kernels")

// TestCompile compiles the kernels as the program does: with -long for every type of
// activations and both architectures.
func TestCompile(t *testing.T) {
	var variants []kerneltest.Variant
	for i, acts := range []driver.DType{driver.F16, driver.BF16, driver.F32} {
		for j, arch := range []string{"sm_90a", "sm_80"} {
			if i != j && !*long {
				continue
			}
			for _, k := range cuda.Kernels(acts) {
				k.Options.Arch = arch
				variants = append(variants, kerneltest.Variant{Group: k.Name, Kernel: k})
			}
		}
	}
	kerneltest.Compile(t, kerneltest.Compiler(t, *long), variants)
}

// TestNoHeaders holds the kernels to what NVRTC has without a toolkit.
func TestNoHeaders(t *testing.T) {
	for _, k := range cuda.Kernels(driver.F16) {
		if strings.Contains(k.Source, "#include") {
			t.Errorf("%s includes a header", k.Name)
		}
	}
}
