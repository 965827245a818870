//go:build !linux || (!amd64 && !arm64) || nocuda

package kerneltest

import "testing"

// HostGPU skips the test.
func HostGPU(t *testing.T, _ int, _ bool) {
	t.Helper()
	t.Skip("a build without CUDA")
}

// HostFP8BLAS skips the test.
func HostFP8BLAS(t *testing.T) {
	t.Helper()
	t.Skip("a build without CUDA")
}
