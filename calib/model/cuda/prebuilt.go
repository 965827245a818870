package cuda

import "github.com/lutq/lutq/gemm/cuda/driver"

// The archive is written anew whenever a kernel has changed, which takes NVRTC.
//go:generate go test -run ^TestPrebuilt$ -update .

// builtAhead returns what stands in for a module where there is no compiler.
func builtAhead(k driver.Kernel) func(driver.DeviceInfo) ([]byte, error) {
	return func(i driver.DeviceInfo) ([]byte, error) { return prebuiltPTX().PTX(k, i) }
}
