package cuda

import (
	"fmt"

	"github.com/lutq/lutq/formats/num"
	"github.com/lutq/lutq/formats/weight"
	"github.com/lutq/lutq/formats/weight/lut"
	"github.com/lutq/lutq/gemm/cuda/driver"
	"github.com/lutq/lutq/repack"
)

// Format is what a kernel is compiled for.
type Format struct {
	Bits  int
	Group int              // 32, 64, 128, 256, or 0 for one scale a row
	Scale weight.ScaleType // as heldScale has it
	Type  driver.DType     // of X, Y, the bias and the table: F16 or BF16
}

// Formats returns every format that kernels exist for.
func Formats() []Format {
	var all []Format
	for bits := lut.MinBits; bits <= lut.MaxBits; bits++ {
		for _, group := range []int{32, 64, 128, 256, 0} {
			for _, scale := range []weight.ScaleType{weight.F16, weight.BF16, weight.F32, weight.E4M4, weight.S1E4M3} {
				if heldScale(group, scale) != scale {
					continue
				}
				for _, t := range []driver.DType{driver.F16, driver.BF16} {
					all = append(all, Format{bits, group, scale, t})
				}
			}
		}
	}
	return all
}

// FormatOf returns the format of a matrix multiplied by activations of a type.
func FormatOf(t *repack.CUDATiles, dtype driver.DType) (Format, error) {
	f := Format{Bits: t.Bits, Group: t.Group, Type: dtype}
	if t.RowScale() {
		f.Group = 0
	}
	f.Scale = heldScale(f.Group, t.ScaleType)
	if dtype != driver.F16 && dtype != driver.BF16 {
		return Format{}, fmt.Errorf("activations of type %v: want f16 or bf16", dtype)
	}
	return f, nil
}

// heldScale returns the type that scales have in a GPU's memory. Those of a byte become float16,
// which has all their values, where groups are so large that it takes 3 % more memory at most: so
// there are fewer kernels, of which the usual ones have more variants. Powers of two become
// bfloat16, which has all of them, whatever the group.
func heldScale(group int, st weight.ScaleType) weight.ScaleType {
	if st == weight.E8M0 {
		return weight.BF16
	}
	if group != 32 && st.Size() == 1 {
		return weight.F16
	}
	return st
}

func (f Format) name() string {
	group := "row"
	if f.Group != 0 {
		group = fmt.Sprint(f.Group)
	}
	return fmt.Sprintf("%dbit-%s-%v-%v", f.Bits, group, f.Scale, f.Type)
}

// defines returns the definitions that kernels share, as lut.cuh lists them.
func (f Format) defines() []string {
	bf16 := 0
	if f.Type == driver.BF16 {
		bf16 = 1
	}
	return []string{
		fmt.Sprintf("BITS=%d", f.Bits), fmt.Sprintf("GROUP=%d", f.Group), fmt.Sprintf("SCALE=%d", f.Scale), fmt.Sprintf("BF16=%d", bf16),
	}
}

// tableBytes is the shared memory that the table spans, and gaps whether the
// second half of each of its 256-byte rows is free.
func (f Format) tableBytes() (size int, gaps bool) {
	if f.Bits == 5 {
		return 1024 * 128, false
	}
	return 256 * 256, f.Bits != 2
}

// scales returns the scales of a matrix in the type of the format.
func (f Format) scales(t *repack.CUDATiles) []byte {
	if f.Scale == t.ScaleType {
		return t.Scales
	}
	values := make([]float32, len(t.Scales)/t.ScaleType.Size())
	t.ScaleType.Decode(values, t.Scales)
	scales := make([]byte, len(values)*f.Scale.Size())
	f.Scale.Encode(scales, values)
	return scales
}

// table rounds the values of a table to the type of X.
func (f Format) table(values []float32) ([]uint32, error) {
	var all []uint32
	for i, v := range values {
		h := f.convert(v)
		if f.infinite(h) {
			return nil, fmt.Errorf("table value %d, %g, does not fit in %v", i, v, f.Type)
		}
		all = append(all, uint32(h))
	}
	return all, nil
}

// convert rounds a table value to the type of X.
func (f Format) convert(v float32) uint16 {
	if f.Type == driver.BF16 {
		return num.F32ToBF16(v)
	}
	return num.F32ToF16(v)
}

// value is the number that h is in type f.Type.
func (f Format) value(h uint16) float32 {
	if f.Type == driver.BF16 {
		return num.BF16ToF32(h)
	}
	return num.F16ToF32(h)
}

// infinite reports whether a number of type f.Type is not finite.
func (f Format) infinite(h uint16) bool {
	if f.Type == driver.BF16 {
		return h&0x7f80 == 0x7f80
	}
	return h&0x7c00 == 0x7c00
}
