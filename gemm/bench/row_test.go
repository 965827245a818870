package bench

import (
	"testing"

	"github.com/lutq/lutq/gemm/conform"
	"github.com/lutq/lutq/gemm/cpu"
	"github.com/lutq/lutq/gemm/cuda/driver"
	"github.com/lutq/lutq/gemm/cuda/sparse"
)

func TestErrorBound(t *testing.T) {
	f16, bf16 := conform.Bound(driver.F16), conform.Bound(driver.BF16)
	for _, test := range []struct {
		kernel, dtype string
		want          float64
	}{
		{"a2 d4", "f16", f16},
		{"a2 d4", "bf16", bf16},
		{unpackedKernel, "f16", 1.5 * f16},
		{foldedKernel, "f16", 1.5 * f16},
		{manyKernel + "c256 g2", "bf16", 1.5 * bf16},
		{sparse.Family{}.Names()[1], "f16", 1.5 * f16},
		{sparse.Family{}.Names()[0], "f16", f16},
		{"planes", "f16", f16},
		{gatherKernel + ":half", "f16", 1.5 * f16},
		{ringsKernel + "8 w16 k4", "f16", 1.6 * f16},
		{"rings-avx2", "f32", 1e-5},
		{fixedKernel + "avx2", "f32", cpu.FixedError},
		{"lut-avx2", "f32", 1e-5},
	} {
		r := Row{Kernel: test.kernel, DType: test.dtype}
		if got := r.ErrorBound(); got != test.want {
			t.Errorf("%s, %s: got %g, want %g", test.kernel, test.dtype, got, test.want)
		}
	}
}
