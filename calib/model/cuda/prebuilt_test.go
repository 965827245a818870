package cuda_test

import (
	"testing"

	"github.com/lutq/lutq/calib/model/cuda"
	"github.com/lutq/lutq/gemm/cuda/cudatest"
	"github.com/lutq/lutq/gemm/cuda/driver"
	"github.com/lutq/lutq/gemm/cuda/kerneltest"
)

// TestPrebuilt checks, and with -update writes, the PTX that stands in where there
// is no compiler.
func TestPrebuilt(t *testing.T) {
	var kernels []driver.Kernel
	for _, acts := range []driver.DType{driver.F16, driver.BF16, driver.F32} {
		for _, k := range cuda.Kernels(acts) {
			if k.PTX == nil {
				continue
			}
			for _, arch := range driver.PrebuiltArchs() { // the newer one begins early, see begin of prelude.cuh
				k.Options.Arch = arch
				kernels = append(kernels, k)
			}
		}
	}
	kerneltest.Prebuilt(t, "prebuilt.gz", kernels, *cudatest.Update, *cudatest.Long)
}
