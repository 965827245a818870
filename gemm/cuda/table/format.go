package table

import (
	"fmt"

	"github.com/lutq/lutq/formats/weight"
	"github.com/lutq/lutq/formats/weight/lut"
	"github.com/lutq/lutq/gemm/cuda"
	"github.com/lutq/lutq/gemm/cuda/driver"
	"github.com/lutq/lutq/repack"
)

// Format is what the kernels are compiled for.
type Format cuda.Format

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
	f := Held(Format{t.Bits, t.Group, t.ScaleType, dtype}, t.K)
	if dtype != driver.F16 && dtype != driver.BF16 {
		return Format{}, fmt.Errorf("activations of type %v: want f16 or bf16", dtype)
	}
	return f, nil
}

// Held returns a format of k columns as kernels hold it: one group a row has none, and scales may be of another type.
func Held(f Format, k int) Format {
	if f.Group == k {
		f.Group = 0
	}
	f.Scale = heldScale(f.Group, f.Scale)
	return f
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

func (f Format) name() string { return cuda.Format(f).Name() }

// Defines returns the definitions that kernels share, as lut.cuh lists them.
func (f Format) Defines() []string { return cuda.Format(f).Defines() }

// tableBytes is the shared memory that the table spans, and gaps whether the
// second half of each of its 256-byte rows is free.
func (f Format) tableBytes() (size int, gaps bool) {
	if f.Bits == 5 {
		return 1024 * 128, false
	}
	return 256 * 256, f.Bits != 2
}

// Scales returns the scales of a matrix in the type of the format.
func (f Format) Scales(t *repack.CUDATiles) []byte {
	if f.Scale == t.ScaleType {
		return t.Scales
	}
	values := make([]float32, len(t.Scales)/t.ScaleType.Size())
	t.ScaleType.Decode(values, t.Scales)
	scales := make([]byte, len(values)*f.Scale.Size())
	f.Scale.Encode(scales, values)
	return scales
}

// Table rounds the values of a table to the type of X.
func (f Format) Table(values []float32) ([]uint32, error) {
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
func (f Format) convert(v float32) uint16 { return cuda.Format(f).Round(v) }

// infinite reports whether a number of type f.Type is not finite.
func (f Format) infinite(h uint16) bool {
	if f.Type == driver.BF16 {
		return h&0x7f80 == 0x7f80
	}
	return h&0x7c00 == 0x7c00
}

// Sizes returns the bytes that the codes and the scales of an N×K matrix take in a GPU's memory.
func (f Format) Sizes(n, k int) (codes, scales int) {
	tiles, units := (n+repack.TileRows-1)/repack.TileRows, (k+repack.UnitCols-1)/repack.UnitCols
	return tiles * units * repack.UnitCols * repack.TileRows / 8 * f.Bits, tiles * f.scaleBytes(units)
}

// scaleBytes returns what the scales of a tile of some units take.
func (f Format) scaleBytes(units int) int {
	scales := 1 // of a row
	if f.Group != 0 {
		scales = units * repack.UnitCols / f.Group
	}
	return repack.TileRows * scales * f.Scale.Size()
}

// prebuilt reports whether a kernel of the format is built ahead of time: with the
// groups and scales that models mostly have, to keep the program small. Scales of a byte
// are held as float16, and so have them too.
func (f Format) prebuilt() bool {
	return (f.Group == 64 || f.Group == 128) && f.Scale == weight.F16
}

// ptx returns what was built ahead of time of one of the format's kernels.
func (f Format) ptx(k driver.Kernel, i driver.DeviceInfo) ([]byte, error) {
	if !f.prebuilt() {
		return nil, fmt.Errorf("without it there are kernels for groups of 64 and 128 with f16 scales or scales of a byte, and none for %s", f.name())
	}
	return cuda.Prebuilt(k, i)
}
