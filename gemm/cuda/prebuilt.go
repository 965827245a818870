package cuda

import (
	"fmt"

	"github.com/lutq/lutq/formats/weight"
	"github.com/lutq/lutq/gemm/cuda/driver"
)

// The archive is written anew whenever a kernel has changed, which takes NVRTC.
//go:generate go test -run ^TestPrebuilt$ -update .

// prebuilt reports whether a kernel of the format is built ahead of time: with the
// groups and scales that models mostly have, to keep the program small. Scales of a byte
// are held as float16, and so have them too.
func (f Format) prebuilt() bool {
	return (f.Group == 64 || f.Group == 128) && f.Scale == weight.F16
}

// prebuiltSparse reports the same of kernels for what is kept, whose groups are half as long.
func (f Format) prebuiltSparse() bool {
	return (f.Group == 32 || f.Group == 64) && f.Scale == weight.F16
}

// prebuilt reports the same of kernels for binary codes, of the widths that stand beside those of tables.
func (f BCQFormat) prebuilt() bool {
	return f.Bits >= 2 && f.Bits <= 4 && (f.Group == 64 || f.Group == 128) && f.Scale == weight.F16
}

// ptxSparse returns what was built ahead of time of a kernel for what is kept.
func (f Format) ptxSparse(k driver.Kernel, i driver.DeviceInfo) ([]byte, error) {
	if !f.prebuiltSparse() {
		return nil, fmt.Errorf("without it there are kernels for what is kept for groups of 64 and 128 with f16 scales, and none for %s", f.name())
	}
	return prebuiltPTX().PTX(k, i)
}

// ptx returns what was built ahead of time of a kernel for binary codes.
func (f BCQFormat) ptx(k driver.Kernel, i driver.DeviceInfo) ([]byte, error) {
	if !f.prebuilt() {
		return nil, fmt.Errorf("without it there are kernels for binary codes of 2 to 4 bits in groups of 64 and 128 with f16 factors, and none for %s", f.name())
	}
	return prebuiltPTX().PTX(k, i)
}

// ptx returns what was built ahead of time of one of the format's kernels, for use without a
// compiler.
func (f Format) ptx(k driver.Kernel, i driver.DeviceInfo) ([]byte, error) {
	if !f.prebuilt() {
		return nil, fmt.Errorf("without it there are kernels for groups of 64 and 128 with f16 scales or scales of a byte, and none for %s", f.name())
	}
	return prebuiltPTX().PTX(k, i)
}
