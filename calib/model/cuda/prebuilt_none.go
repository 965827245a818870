//go:build !linux || (!amd64 && !arm64) || nocuda

package cuda

import "github.com/lutq/lutq/gemm/cuda/driver"

func prebuiltPTX() *driver.Prebuilt { return driver.NewPrebuilt(nil) }
