package cuda

import (
	"cmp"
	_ "embed"
	"fmt"
	"slices"

	"github.com/lutq/lutq/gemm/cuda/driver"
	"github.com/lutq/lutq/quantize/lut"
	"github.com/lutq/lutq/repack"
)

//go:embed ptx.cuh
var ptxSource string

//go:embed lut.cuh
var lutSource string

//go:embed lutgemm.cu
var gemmSource string

//go:embed lutwide.cu
var wideSource string

// The kernels of a module; lutwide.cu has no twin that only reads.
const (
	gemmName = "lutgemm"
	readName = "lutread"
)

// Kernel returns the source of the kernel for up to m rows of X, as it is to be
// compiled under a configuration. It includes no header.
func (f Format) Kernel(c Config, m int) driver.Kernel {
	name, source := "lutgemm", gemmSource
	if c.Tiles != 0 {
		name, source = "lutwide", wideSource
	}
	return driver.Kernel{
		Name:    fmt.Sprintf("%s.%s.cu", name, f.name()),
		Source:  ptxSource + lutSource + source,
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

// configs returns the configurations of lutgemm.cu worth trying for m rows of X, the best
// guess first. The first works for every shape.
func (f Format) configs(m int) []Config {
	manyScales := f.Group == 32 && (f.Scale == lut.F32 || f.Bits == 5 && f.Scale == lut.BF16) // for the registers
	switch {
	case manyScales:
		return []Config{{AtomsPerStep: 1, Depth: 1}}
	case m > rowsOfB:
		// The fragments of X fill the registers at half a unit. This is for where lutwide.cu is
		// not: on GPUs without room for it or without a compiler, and with rare scales.
		return []Config{{AtomsPerStep: 1, Depth: 2}}
	}
	all := []Config{{AtomsPerStep: 2, Depth: 2}}
	if f.Group != 32 && (f.Group != 64 || f.Bits != 5 || f.Scale != lut.F32) { // whose scales take the registers
		all = append(all, Config{AtomsPerStep: 2, Depth: 4})
		if f.Bits == 4 { // which the longer lead of a double buffer helps the most
			slices.Reverse(all)
		}
	}
	return all
}

// wideConfigs returns the configurations of lutwide.cu for m rows of X, those of fewer tiles
// first.
func (f Format) wideConfigs(m int) []Config {
	if !f.mayBeWide() {
		return nil
	}
	few, many := Config{Depth: 8, Tiles: 4}, Config{Depth: 7, Tiles: 7}
	if f.Group == 32 { // whose scales take the registers
		few.Depth = few.Tiles
	}
	var all []Config
	for _, s := range []int{8, 4, 2} { // as wideSlices has them
		few.Slices, many.Slices = s, s
		switch {
		case f.Bits == 5 && s == 8:
		case m > rowsOfB && s == 2: // for blocks of many tiles
			all = append(all, many)
		case m > rowsOfB:
			all = append(all, few, many)
		case s == 8:
			all = append(all, few)
		}
	}
	return all
}

// Configs returns the configurations that m rows of X can be multiplied under by an
// N×K matrix of the engine's device, the best guess first. For more than
// [MaxRows] rows they are those of MaxRows. Without a compiler they are those that
// a prebuilt kernel stands in for.
func (e *Engine) Configs(f Format, n, k, m int) []Config {
	m = min(m, MaxRows)
	type guess struct {
		Config
		passes uint32
	}
	var wide []guess
	if f.wide(n, k, m) && e.noCompiler == nil {
		for _, c := range f.wideConfigs(m) {
			if p, _, err := f.plan(c, n, k, m, e.limits); err == nil {
				wide = append(wide, guess{c, p.passes()})
			}
		}
	}
	slices.SortStableFunc(wide, func(a, b guess) int { return cmp.Compare(a.passes, b.passes) })
	var all []Config
	for _, g := range wide {
		all = append(all, g.Config)
	}
	narrow := f.configs(m)
	if n <= 2*repack.TileRows*e.limits.sms {
		// A block of one or two tiles has nothing to load far ahead.
		slices.SortStableFunc(narrow, func(a, b Config) int { return cmp.Compare(a.Depth, b.Depth) })
	}
	for _, c := range narrow {
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
