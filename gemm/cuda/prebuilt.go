package cuda

import (
	"fmt"

	"github.com/lutq/lutq/gemm/cuda/driver"
	"github.com/lutq/lutq/quantize/weight"
)

// The archive is written anew whenever a kernel has changed, which takes NVRTC.
//go:generate go test -run ^TestPrebuilt$ -update .

// prebuilt reports whether a kernel of the format is built ahead of time: with the
// groups and scales that models mostly have, to keep the program small. Scales of a byte
// are held as float16, and so have them too.
func (f Format) prebuilt() bool {
	return (f.Group == 64 || f.Group == 128) && f.Scale == weight.F16
}

// ptx returns what was built ahead of time of one of the format's kernels, for use without a
// compiler.
func (f Format) ptx(k driver.Kernel, i driver.DeviceInfo) ([]byte, error) {
	if !f.prebuilt() {
		return nil, fmt.Errorf("without it there are kernels for groups of 64 and 128 with f16 scales or scales of a byte, and none for %s", f.name())
	}
	return prebuiltPTX().PTX(k, i)
}
