package cuda

import (
	"fmt"

	"github.com/lutq/lutq/gemm/cuda/driver"
	"github.com/lutq/lutq/quantize/lut"
)

// The archive is written anew whenever a kernel has changed, which takes NVRTC.
//go:generate go test -run ^TestPrebuilt$ -update .

// prebuiltConfig is how the kernels that are built ahead of time are compiled: once for any
// number of rows up to MaxRows. They stand in for those of every other configuration of
// lutgemm.cu, which differ in their registers alone. Of its configurations it is the one of the
// least code: another atom to load ahead would take a third more of the program.
var prebuiltConfig = Config{AtomsPerStep: 1, Depth: 1, Rows: MaxRows}

// prebuilt reports whether a kernel of the format is built ahead of time: with the
// groups and scales that models mostly have, to keep the program small. Scales of a byte
// are held as float16, and so have them too.
func (f Format) prebuilt() bool {
	return (f.Group == 64 || f.Group == 128) && f.Scale == lut.F16
}

// check returns an error where there is no kernel without a compiler.
func (f Format) check() error {
	if f.prebuilt() {
		return nil
	}
	return fmt.Errorf("without it there are kernels for groups of 64 and 128 with f16 scales or scales of a byte, and none for %s", f.name())
}

// ptx returns the kernel that multiplies, for use without a compiler.
func (f Format) ptx(c Config, i driver.DeviceInfo) ([]byte, error) {
	if err := f.check(); err != nil {
		return nil, err
	}
	if c.Tiles != 0 {
		return nil, fmt.Errorf("without it there is no kernel for the configuration %v", c)
	}
	return prebuiltPTX().PTX(f.Kernel(prebuiltConfig), i)
}

// rowsPTX returns the kernel that dequantizes, for use without a compiler.
func (f Format) rowsPTX(out driver.DType, i driver.DeviceInfo) ([]byte, error) {
	if err := f.check(); err != nil {
		return nil, err
	}
	return prebuiltPTX().PTX(f.rowsKernel(out), i)
}
