package cuda

import (
	"cmp"
	_ "embed"
	"fmt"
	"math"
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

// Kernel returns the source of a kernel as it is to be compiled under a configuration. It
// includes no header.
func (f Format) Kernel(c Config) driver.Kernel {
	name, source := "lutgemm", gemmSource
	if c.Tiles != 0 {
		name, source = "lutwide", wideSource
	}
	return driver.Kernel{
		Name:    fmt.Sprintf("%s.%s.cu", name, f.name()),
		Source:  ptxSource + lutSource + source,
		Options: driver.CompileOptions{Defines: f.defines(c)},
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

// configs returns the configurations of lutgemm.cu worth trying for m rows of X and Ŵ of n, the
// best guess first. The first works for every shape.
func (f Format) configs(n, m int) []Config {
	manyScales := f.Group == 32 && (f.Scale == lut.F32 || f.Bits == 5 && f.Scale == lut.BF16) // for the registers
	switch {
	case manyScales:
		return []Config{{AtomsPerStep: 1, Depth: 1, Rows: rowsOfB * (1 + (m-1)/rowsOfB)}}
	case m > rowsOfB || f.inThree(n, m):
		// The fragments of X fill the registers at half a unit. This is for where lutwide.cu is
		// not: on GPUs without room for it or without a compiler, and with float32 scales. What is
		// compiled for up to 8 rows knows of eight and sixteen slices alone.
		return []Config{{AtomsPerStep: 1, Depth: 2, Rows: MaxRows}}
	}
	all := []Config{{AtomsPerStep: 2, Depth: 2, Rows: rowsOfB}}
	if f.Group != 32 && f.Scale != lut.F32 { // whose scales take the registers
		all = append(all, Config{AtomsPerStep: 2, Depth: 4, Rows: rowsOfB})
		if f.Bits == 4 { // which the longer lead of a double buffer helps the most
			slices.Reverse(all)
		}
	}
	return all
}

// rare reports whether few models have such a format. To compile less it has fewer kernels of
// lutwide.cu, and takes up to 18 % longer for some shapes.
func (f Format) rare() bool {
	return f.Scale.Size() == 1 || f.Group == 256 || f.Group == 0 || f.Scale == lut.BF16 && f.Type == driver.F16
}

// wideConfigs returns the configurations of lutwide.cu for m rows of X, those of fewer tiles
// first.
func (f Format) wideConfigs(m int) []Config {
	switch {
	case !f.mayBeWide(m):
		return nil
	case m <= rowsOfB:
		return f.fewRowsConfigs()
	}
	var all []Config
	for _, s := range []int{8, 4, 2} { // as wideSlices has them
		add := func(tiles, depth int) {
			all = append(all, Config{Tiles: tiles, Depth: depth, Slices: s, Warps: 8, Rows: MaxRows})
		}
		few := 5
		if s == 8 {
			few = 4
		}
		manyScales := f.Group == 32 || f.Group == 64 && f.Bits == 5 && s != 8 // for the registers
		if s == 8 && !f.rare() {
			add(2, 4)
		}
		switch {
		case s != 8 && f.rare():
		case manyScales:
			add(few, few)
		default:
			add(few, 2*few)
		}
		add(7, 7)
	}
	return all
}

// fewRowsConfigs is wideConfigs for up to 8 rows, where registers suffice for more warps.
func (f Format) fewRowsConfigs() []Config {
	var all []Config
	add := func(tiles, depth, slices, warps int) {
		all = append(all, Config{Tiles: tiles, Depth: depth, Slices: slices, Warps: warps, Rows: rowsOfB})
	}
	if !f.rare() {
		add(2, 4, 16, 16)
		if f.Group != 32 && f.Bits != 5 { // which take the registers
			add(3, 6, 16, 16)
		}
		add(2, 4, 8, 8)
	}
	add(4, 4, 16, 16)
	add(4, 8, 8, 8)
	if f.inThree(math.MaxInt, rowsOfB) {
		add(7, 7, 3, 12)
	}
	return all
}

// wide reports whether the configurations of lutwide.cu are worth trying for a product, as far as
// they split K as it is split: with more than 8 rows of X; where blocks have up to four tiles; and
// in three slices.
func (f Format) wide(n, m int) bool {
	return m > rowsOfB || n <= fourTiles || f.inThree(n, m)
}

// wideFirst reports whether lutwide.cu, where it is worth trying, is the better guess.
func wideFirst(n, k, m int) bool {
	return m > rowsOfB/2 || n > twoTiles && k > 16*repack.UnitCols
}

// allConfigs returns every configuration that kernels of the format are compiled under for m rows
// of X.
func (f Format) allConfigs(m int) []Config {
	return slices.Concat(f.configs(1, m), f.wideConfigs(m))
}

// OtherConfigs returns the configurations that Configs leaves out for a product, but that have
// kernels for as many rows of X and room on the engine's device, for tests: they split K otherwise
// or are slower.
func (e *Engine) OtherConfigs(f Format, n, k, m int) []Config {
	m = min(m, MaxRows)
	narrow := f.configs(n, m)[0]
	slicings := []int{8, 16}
	if narrow.Rows == MaxRows {
		slicings = []int{2, 3, 4, 8, 16}
	}
	var all []Config
	for _, s := range slicings {
		if s != f.slicesOf(n, k, m) {
			narrow.Slices = s
			all = append(all, narrow)
		}
	}
	if e.noCompiler == nil {
		chosen := e.Configs(f, n, k, m)
		for _, c := range f.wideConfigs(m) {
			if !slices.Contains(chosen, c) {
				all = append(all, c)
			}
		}
	}
	return slices.DeleteFunc(all, func(c Config) bool {
		_, _, err := f.planSliced(c, n, k, m, c.Slices, e.limits)
		return err != nil
	})
}

// Configs returns the configurations that m rows of X can be multiplied under by an
// N×K matrix of the engine's device, the best guess first. For more than
// [MaxRows] rows they are those of MaxRows. Without a compiler they are those that
// a prebuilt kernel stands in for.
func (e *Engine) Configs(f Format, n, k, m int) []Config {
	m = min(m, MaxRows)
	all := f.configs(n, m)
	if n <= 2*repack.TileRows*e.limits.sms {
		// A block of one or two tiles has nothing to load far ahead.
		slices.SortStableFunc(all, func(a, b Config) int { return cmp.Compare(a.Depth, b.Depth) })
	}
	all = slices.DeleteFunc(all, func(c Config) bool {
		_, _, err := f.plan(c, n, k, m, e.limits)
		return err != nil
	})
	if !f.wide(n, m) || e.noCompiler != nil {
		return all
	}
	// Of lutwide.cu the one that goes over X the least, with no more tiles than that takes.
	var wide []Config
	fewest := uint32(math.MaxUint32)
	for _, c := range f.wideConfigs(m) {
		if p, _, err := f.plan(c, n, k, m, e.limits); err == nil && p.passes() < fewest {
			wide, fewest = []Config{c}, p.passes()
		}
	}
	if wideFirst(n, k, m) {
		return append(wide, all...)
	}
	return append(all, wide...)
}

// Formats returns every format that kernels exist for.
func Formats() []Format {
	var all []Format
	for bits := lut.MinBits; bits <= lut.MaxBits; bits++ {
		for _, group := range []int{32, 64, 128, 256, 0} {
			for _, scale := range []lut.ScaleType{lut.F16, lut.BF16, lut.F32, lut.E4M4, lut.S1E4M3} {
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
