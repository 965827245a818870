package cuda

import (
	_ "embed"
	"fmt"
	"slices"

	"github.com/lutq/lutq/gemm/cuda/driver"
	"github.com/lutq/lutq/quantize/lut"
)

//go:embed ptx.cuh
var ptxSource string

//go:embed lutgemm.cu
var gemmSource string

// The kernels of the module.
const (
	gemmName = "lutgemm"
	readName = "lutread"
)

// Kernel returns the source of the kernel for up to m rows of X, as it is to be
// compiled under a configuration. It includes no header.
func (f Format) Kernel(c Config, m int) driver.Kernel {
	return driver.Kernel{
		Name:    fmt.Sprintf("lutgemm.%s.cu", f.name()),
		Source:  ptxSource + gemmSource,
		Options: driver.CompileOptions{Defines: f.defines(c, xTiles(m))},
		PTX:     func(i driver.DeviceInfo) ([]byte, error) { return f.ptx(c, i) },
	}
}

func (f Format) name() string {
	group := "row"
	if f.Group != 0 {
		group = fmt.Sprint(f.Group)
	}
	return fmt.Sprintf("%dbit-%s-%v-%v", f.Bits, group, f.Scale, f.Type)
}

// configs returns the configurations worth trying for m rows of X, the best
// guess first. The first works for every shape.
func (f Format) configs(m int) []Config {
	if f.Group == 32 && (f.Scale == lut.F32 || f.Bits == 5 && f.Scale == lut.BF16) { // whose scales take the registers
		return []Config{{1, 1, 16, 1, 1}}
	}
	if m > rowsOfB {
		// The fragments of X fill the registers of sixteen warps at half a unit;
		// eight warps have room for the whole.
		return []Config{{1, 2, 16, 1, 1}, {2, 4, 8, 1, 1}}
	}
	all := []Config{{2, 2, 16, 1, 1}}
	wide := f.Group == 64 && f.Bits == 5 && f.Scale == lut.F32
	if f.Group != 32 && !wide { // the scales of which take the registers
		all = append(all, Config{2, 4, 16, 1, 1})
		if f.Bits == 4 { // which the longer lead of a double buffer helps the most
			slices.Reverse(all)
		}
	}
	if f.Bits < 5 { // the table of which leaves room for one block
		all = append(all, Config{2, 2, 8, 2, 2})
	}
	return all
}

// Configs returns the configurations that m rows of X can be multiplied under by an
// N×K matrix of the engine's device, the best guess first. For more than
// [MaxRows] rows they are those of MaxRows. Without a compiler they are those that
// a prebuilt kernel stands in for.
func (e *Engine) Configs(f Format, n, k, m int) []Config {
	m = min(m, MaxRows)
	var all []Config
	for _, c := range f.configs(m) {
		if e.noCompiler != nil && !c.standsIn() {
			continue
		}
		if _, _, err := f.plan(c, n, k, m, e.limits); err == nil {
			all = append(all, c)
		}
	}
	return all
}

// Formats returns every format that kernels exist for.
func Formats() []Format {
	var all []Format
	for bits := lut.MinBits; bits <= lut.MaxBits; bits++ {
		for _, group := range []int{32, 64, 128, 256, 0} {
			for _, scale := range []lut.ScaleType{lut.F16, lut.BF16, lut.F32, lut.E4M4, lut.S1E4M3} {
				for _, t := range []driver.DType{driver.F16, driver.BF16} {
					all = append(all, Format{bits, group, scale, t})
				}
			}
		}
	}
	return all
}
