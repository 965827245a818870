package cuda

import (
	"fmt"

	"github.com/lutq/lutq/formats/num"
	"github.com/lutq/lutq/formats/weight"
	"github.com/lutq/lutq/gemm/cuda/driver"
)

// Format is what kernels are compiled for.
type Format struct {
	Bits  int
	Group int              // 32, 64, 128, 256, or 0 for one scale a row
	Scale weight.ScaleType // as the kernels hold scales
	Type  driver.DType     // of X, Y, the bias and what is looked up: F16 or BF16
}

// Name names a format in the name of a kernel.
func (f Format) Name() string {
	group := "row"
	if f.Group != 0 {
		group = fmt.Sprint(f.Group)
	}
	return fmt.Sprintf("%dbit-%s-%v-%v", f.Bits, group, f.Scale, f.Type)
}

// Defines returns the definitions BITS, GROUP, SCALE and BF16, which all kernels take.
func (f Format) Defines() []string {
	bf16 := 0
	if f.Type == driver.BF16 {
		bf16 = 1
	}
	return []string{
		fmt.Sprintf("BITS=%d", f.Bits), fmt.Sprintf("GROUP=%d", f.Group), fmt.Sprintf("SCALE=%d", f.Scale), fmt.Sprintf("BF16=%d", bf16),
	}
}

// Traits returns a format in words, of which no two things have the same.
func (f Format) Traits() []string {
	return []string{
		fmt.Sprintf("%d bits", f.Bits), fmt.Sprintf("groups of %d", f.Group), fmt.Sprintf("scales %v", f.Scale), f.Type.String(),
	}
}

// Round rounds a number to the type of X.
func (f Format) Round(v float32) uint16 {
	if f.Type == driver.BF16 {
		return num.F32ToBF16(v)
	}
	return num.F32ToF16(v)
}

// Value is the number that h is in the type of X.
func (f Format) Value(h uint16) float32 {
	if f.Type == driver.BF16 {
		return num.BF16ToF32(h)
	}
	return num.F16ToF32(h)
}
