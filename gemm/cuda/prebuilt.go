package cuda

import "github.com/lutq/lutq/gemm/cuda/driver"

// The archive is written anew whenever a kernel has changed, which takes NVRTC.
//go:generate go test -run ^TestPrebuilt$ -update ./families

// Prebuilt returns the PTX of a kernel that was built ahead of time, for use without a compiler.
func Prebuilt(k driver.Kernel, i driver.DeviceInfo) ([]byte, error) { return prebuiltPTX().PTX(k, i) }
