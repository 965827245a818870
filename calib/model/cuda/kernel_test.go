package cuda_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/lutq/lutq/calib/model/cuda"
	"github.com/lutq/lutq/formats/weight/trellis"
	"github.com/lutq/lutq/gemm/cuda/cudatest"
	"github.com/lutq/lutq/gemm/cuda/driver"
	"github.com/lutq/lutq/gemm/cuda/kerneltest"
)

// TestCompile compiles the kernels as the program does: for one type of activations and the newer
// architecture, or with -long for all. PTX of the others is built ahead, and assembled by [TestPrebuilt].
func TestCompile(t *testing.T) {
	var variants []kerneltest.Variant
	for i, acts := range []driver.DType{driver.F16, driver.BF16, driver.F32} {
		for j, arch := range []string{"sm_90a", "sm_80"} {
			if i+j > 0 && !*cudatest.Long {
				continue
			}
			kernels := cuda.Kernels(acts)
			if acts == driver.F16 {
				kernels = append(append(kernels, cuda.SearchKernel()), cuda.RingKernels(layouts(t, *cudatest.Long)...)...)
			}
			for _, k := range kernels {
				k.Options.Arch = arch
				variants = append(variants, kerneltest.Variant{Group: k.Name, Kernel: k})
			}
		}
	}
	kerneltest.Compile(t, kerneltest.Compiler(t, *cudatest.Long), variants)
}

// layouts returns those of rings that kernels are compiled for, or some.
func layouts(t *testing.T, all bool) (layouts []trellis.Layout) {
	for _, codebook := range []string{trellis.Pairs, trellis.MCG} {
		for rate := 2; rate <= 16; rate++ {
			c, err := trellis.NewCode(codebook, rate)
			if err == nil && (all || codebook == trellis.Pairs && rate%5 == 2) {
				layouts = append(layouts, c.Layout())
			}
		}
	}
	if len(layouts) == 0 {
		t.Fatal("no code has a layout")
	}
	return layouts
}

// TestNoHeaders holds the kernels to what NVRTC has without a toolkit.
func TestNoHeaders(t *testing.T) {
	for _, k := range append(append(cuda.Kernels(driver.F16), cuda.SearchKernel()), cuda.RingKernels(layouts(t, false)...)...) {
		if strings.Contains(k.Source, "#include") {
			t.Errorf("%s includes a header", k.Name)
		}
	}
}

// TestKernelNames finds every kernel that is launched by a literal name in the sources: the
// stand-in for a GPU does not run products of packed weights, which launch some of them.
func TestKernelNames(t *testing.T) {
	var sources strings.Builder
	for _, k := range append(append(cuda.Kernels(driver.F16), cuda.SearchKernel()), cuda.RingKernels(layouts(t, false)...)...) {
		sources.WriteString(k.Source)
	}
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	launched := regexp.MustCompile(`\.launch(?:Early)?\("([a-z0-9_]+)",`)
	names := 0
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range launched.FindAllStringSubmatch(string(text), -1) {
			names++
			if !regexp.MustCompile(`__launch_bounds__\([^)]+\)\s+` + m[1] + `\(`).MatchString(sources.String()) {
				t.Errorf("%s launches %s, which is no kernel", file, m[1])
			}
		}
	}
	if names == 0 {
		t.Error("no launch was found")
	}
}
