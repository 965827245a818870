//go:build linux && (amd64 || arm64) && !nocuda

package kerneltest

import (
	_ "embed"
	"os"
	"path/filepath"
	"sync"
	"testing"
)

//go:embed blaslt.h
var blasLtSource string

var hostBLASLt = sync.OnceValues(func() ([]byte, error) { return compiled(hostNumbersSource+blasLtSource, "-O1", "-shared") })

// HostFP8BLAS makes the GPU that [HostGPU] has made have cuBLASLt too, whose products are done while they are queued.
func HostFP8BLAS(t *testing.T) {
	t.Helper()
	code, err := hostBLASLt()
	if err == nil {
		err = os.WriteFile(filepath.Join(os.Getenv("LUTQ_CUDA_PATH"), "libcublasLt.so.13"), code, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
}
