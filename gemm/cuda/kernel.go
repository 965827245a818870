package cuda

import (
	_ "embed"
	"fmt"
	"slices"

	"github.com/lutq/lutq/gemm/cuda/driver"
)

//go:embed ptx.cuh
var ptxSource string

//go:embed lut.cuh
var lutSource string

// The functions of a module; kernel.twin says which have the second.
const (
	gemmName = "lutgemm"
	readName = "lutread"
)

// kernels returns all that multiply. Adding one is adding its .cu, its type in the .go beside that,
// and a line here: it is then compiled, tested and tuned wherever it has configurations, and a row
// of choices may call it the best guess.
func kernels() []kernel { return []kernel{lutgemm{}, lutwide{}} }

// kernel is a .cu file that multiplies. Its arguments are [params].
type kernel interface {
	name() string   // of the file
	source() string // what follows ptx.cuh and lut.cuh
	twin() bool     // whether there is one that only reads

	// has reports whether the kernel is compiled for a format and m rows of X.
	has(f Format, m int) bool
	// variants returns all that it is then compiled as, the best guess first.
	variants(f Format, m int) []Config
	// tried returns those worth trying for a product, the best guess first, or why it has none.
	tried(s shape, l limits) ([]Config, error)
	// others returns configurations that tried leaves out though they can multiply so, for tests:
	// they split K otherwise or are slower. A GPU may have no room for them.
	others(s shape) []Config
	// prebuilt returns what is built ahead of time to stand in for all variants, or nil.
	prebuilt() Config
}

// Config is a kernel in one of the ways to compile and launch it, a value that can be compared. No
// choice changes a bit of the result, but for that of slices.
type Config interface {
	String() string
	kernel() kernel
	defines() []string // beside those of the format
	rowsOfX() int      // that it is compiled for: 8 or 16
	warpsOfBlock() int
	splits() []int // into how many slices it can split K; if only into one number, whatever the product's own is
	// room returns what a block has for its tiles, of which there are up to most.
	room(s shape, most int, l limits) (room, error)
}

// Kernel returns the source of a kernel as it is to be compiled under a configuration. It
// includes no header.
func (f Format) Kernel(c Config) driver.Kernel {
	k := c.kernel()
	return driver.Kernel{
		Name:    fmt.Sprintf("%s.%s.cu", k.name(), f.name()),
		Source:  ptxSource + lutSource + k.source(),
		Options: driver.CompileOptions{Defines: append(f.defines(), c.defines()...)},
		PTX: func(i driver.DeviceInfo) ([]byte, error) {
			in := k.prebuilt()
			if in == nil {
				return nil, fmt.Errorf("without it there is no kernel for the configuration %v", c)
			}
			return f.ptx(f.Kernel(in), i)
		},
	}
}

// variants returns every configuration that kernels are compiled under for m rows of X.
func (f Format) variants(m int) []Config {
	var all []Config
	for _, k := range kernels() {
		all = append(all, k.variants(f, m)...)
	}
	return all
}

// tried returns the configurations that are worth trying for a product on the engine's device,
// the best guess first, or why there is none.
func (e *Engine) tried(s shape) ([]Config, error) {
	var all []Config
	var why error
	for _, k := range s.order() {
		if e.noCompiler != nil && k.prebuilt() == nil {
			continue
		}
		some, err := k.tried(s, e.limits)
		if all = append(all, some...); why == nil {
			why = err
		}
	}
	switch {
	case len(all) > 0:
		return all, nil
	case why == nil:
		why = fmt.Errorf("no kernel for %d rows of activations and %s", s.m, s.name())
	}
	return nil, why
}

// fitting returns those of some configurations that a shape can be multiplied under, or why none of
// those that split K so can.
func (s shape) fitting(some []Config, l limits) (fit []Config, why error) {
	for _, c := range some {
		if !slices.Contains(c.splits(), s.slices) {
			continue
		}
		if _, _, err := s.plan(c, l); err != nil {
			why = err
			continue
		}
		fit = append(fit, c)
	}
	if len(fit) > 0 {
		why = nil
	}
	return fit, why
}

// Configs returns the configurations that m rows of X can be multiplied under by an
// N×K matrix of the engine's device, the best guess first. For more than
// [MaxRows] rows they are those of MaxRows. Without a compiler they are those that
// a prebuilt kernel stands in for.
func (e *Engine) Configs(f Format, n, k, m int) []Config {
	all, _ := e.tried(shapeOf(f, n, k, min(m, MaxRows)))
	return all
}

// ReadConfigs returns the configurations for m rows of X that have a twin for [Engine.Read].
func (e *Engine) ReadConfigs(f Format, n, k, m int) []Config {
	return slices.DeleteFunc(e.Configs(f, n, k, m), func(c Config) bool { return !c.kernel().twin() })
}

// OtherConfigs returns the configurations that Configs leaves out for a product, but that have
// kernels for as many rows of X and room on the engine's device, for tests: they split K otherwise
// or are slower.
func (e *Engine) OtherConfigs(f Format, n, k, m int) []Config {
	s := shapeOf(f, n, k, min(m, MaxRows))
	chosen, _ := e.tried(s)
	var all []Config
	for _, k := range kernels() {
		if e.noCompiler != nil && k.prebuilt() == nil {
			continue
		}
		all = append(all, k.others(s)...)
	}
	return slices.DeleteFunc(all, func(c Config) bool {
		_, _, err := s.under(c).plan(c, e.limits)
		return err != nil || slices.Contains(chosen, c)
	})
}
