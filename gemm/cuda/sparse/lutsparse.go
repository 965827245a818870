package sparse

import (
	_ "embed"
	"fmt"
	"slices"

	"github.com/lutq/lutq/formats/weight"
	"github.com/lutq/lutq/gemm/cuda"
	"github.com/lutq/lutq/gemm/cuda/driver"
	"github.com/lutq/lutq/gemm/cuda/ptx"
	"github.com/lutq/lutq/gemm/cuda/table"
)

//go:embed lutsparse.cu
var sparseSource string

const (
	sparseName = "lutsparse" // of the file
	gemmName   = "lutgemm"   // of the function that multiplies
	readName   = "lutread"   // of its twin
)

// has reports whether there are kernels for a format of what is kept.
// To compile less there is none for scales of float32, and the sums of 256 kept columns would be no group's of
// a model's.
func has(f table.Format) bool { return f.Scale != weight.F32 && f.Group <= 128 }

// Formats returns every format of what is kept that kernels exist for.
func Formats() []table.Format {
	return slices.DeleteFunc(table.Formats(), func(f table.Format) bool { return !has(f) })
}

// variant is lutsparse.cu as it is compiled. It implements [table.Config].
type variant struct {
	rows   int // of X, at most: 8 or 16
	slices int // of K
	warps  int // of a block
	batch  int // tiles that are loaded at once
}

// Rows up to which a kernel is for few.
const fewRows = 8

// variants returns all that it is compiled as for m rows of X, up to [cuda.MaxRows].
func variants(f table.Format, m int) []variant {
	if !has(f) {
		return nil
	}
	var all []variant
	for _, v := range []variant{
		{fewRows, 16, 16, 2},
		{fewRows, 16, 16, 1},
		{fewRows, 8, 16, 1},
		{cuda.MaxRows, 8, 8, 3},
		{cuda.MaxRows, 4, 8, 3},
	} {
		if v.batch == 2 && f.Group == 32 && f.Bits >= 4 { // whose scales take the registers
			continue
		}
		if (v.rows == fewRows) == (m <= fewRows) {
			all = append(all, v)
		}
	}
	return all
}

// prebuilt returns the variant for any number of rows up to [cuda.MaxRows], which is built ahead of time. Without a compiler K is split as
// it does.
func prebuilt() variant { return variant{cuda.MaxRows, 8, 8, 3} }

// isPrebuilt reports whether kernels for a format of what is kept are built ahead of time: their groups are half as long as a table's.
func isPrebuilt(f table.Format) bool {
	return (f.Group == 32 || f.Group == 64) && f.Scale == weight.F16
}

// ptxOf returns what was built ahead of time of a kernel for what is kept.
func ptxOf(f table.Format, k driver.Kernel, i driver.DeviceInfo) ([]byte, error) {
	if !isPrebuilt(f) {
		return nil, fmt.Errorf("without it there are kernels for what is kept for groups of 64 and 128 with f16 scales, and none for %s", cuda.Format(f).Name())
	}
	return cuda.Prebuilt(k, i)
}

// Rows implements [cuda.Way].
func (v variant) Rows() int { return v.rows }

// String implements [cuda.Way].
func (v variant) String() string { return fmt.Sprintf("sparse b%d k%d", v.batch, v.slices) }

// Label names the way among all.
func (v variant) Label() string { return "mma.sp" }

// Needs implements [cuda.Way].
func (v variant) Needs(int, int, int) cuda.Needs { return cuda.Needs{} }

// Warps implements [table.Config].
func (v variant) Warps() int { return v.warps }

// Splits implements [table.Config].
func (v variant) Splits() []int { return []int{v.slices} }

// Defines implements [table.Config].
func (v variant) Defines() []string {
	return []string{
		fmt.Sprintf("NT=%d", v.rows/fewRows), fmt.Sprintf("DEPTH=%d", 2*v.batch), fmt.Sprintf("WARPS=%d", v.warps), fmt.Sprintf("SLICES=%d", v.slices),
	}
}

// Room implements [table.Config].
func (v variant) Room(s table.Shape, most int, l table.Limits) (table.Room, error) {
	return table.SlotRoom(s, most, l)
}

// twin only reads, as a variant does.
type twin struct{ variant }

// kernel is lutsparse.cu for a format of what is kept.
type kernel struct {
	format table.Format
	variant
}

// Kernel implements [cuda.Kernel].
func (k kernel) Kernel() driver.Kernel {
	of := func(v variant) driver.Kernel {
		return driver.Kernel{
			Name:    fmt.Sprintf("%s.%s.cu", sparseName, cuda.Format(k.format).Name()),
			Source:  table.Source() + ptx.Slots() + ptx.Quad() + ptx.Sparse() + sparseSource,
			Options: driver.CompileOptions{Defines: append(k.format.Defines(), v.Defines()...)},
		}
	}
	all := of(k.variant)
	all.PTX = func(i driver.DeviceInfo) ([]byte, error) {
		if k.variant != prebuilt() {
			return nil, fmt.Errorf("without it there is no kernel for the configuration %v", k.variant)
		}
		return ptxOf(k.format, of(prebuilt()), i)
	}
	return all
}

// splits returns into how many slices the K of m rows of X by so many units is split: sixteen load warps the most evenly, as soon as each
// has an atom.
func splits(units, m int) int {
	switch {
	case m <= fewRows && units > 8:
		return 16
	case m <= fewRows || units > 4:
		return 8
	}
	return 4
}
