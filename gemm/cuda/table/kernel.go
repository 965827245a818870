package table

import (
	_ "embed"
	"fmt"
	"strings"

	"github.com/lutq/lutq/gemm/cuda"
	"github.com/lutq/lutq/gemm/cuda/driver"
	"github.com/lutq/lutq/gemm/cuda/ptx"
)

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

// kernel is a .cu file that multiplies. Its arguments are [Params].
type kernel interface {
	name() string   // of the file
	source() string // what follows ptx.cuh and lut.cuh
	twin() bool     // whether there is one that only reads

	// has reports whether the kernel is compiled for a format and m rows of X.
	has(f Format, m int) bool
	// variants returns all that it is then compiled as, the best guess first.
	variants(f Format, m int) []config
	// tried returns those worth trying for a product, the best guess first, or why it has none.
	tried(s Shape, l Limits) ([]config, error)
	// others returns configurations that tried leaves out though they can multiply so, for tests:
	// they split K otherwise or are slower. A GPU may have no room for them.
	others(s Shape) []config
	// prebuilt returns what is built ahead of time to stand in for all variants, or nil.
	prebuilt() config
}

// Config is a kernel for few rows of X in one of the ways to compile and launch it, a value that can be compared. No
// choice changes a bit of the result, but for that of slices.
type Config interface {
	cuda.Way
	Defines() []string // beside those of the format
	Warps() int        // of a block
	Splits() []int     // into how many slices it can split K; if only into one number, whatever the product's own is
	// Room returns what a block has for its tiles, of which there are up to most.
	Room(s Shape, most int, l Limits) (Room, error)
}

// config is one of this package.
type config interface {
	Config
	kernel() kernel
}

// twin only reads, under a configuration.
type twin struct{ config }

// source says what is compiled to multiply.
type source struct {
	format Format
	config config
	gates  string // the activation of gates, or none

	experts bool
	lookup  Lookup
	asking  asking
}

// Kernel is [Format.Kernel] with gates, a lookup of its own and what is read ahead, if any. With one there is none built ahead of time.
func (s source) Kernel() driver.Kernel {
	k := s.format.Kernel(s.config)
	if s.experts {
		return s.format.expertKernel(s.config, s.gates)
	}
	if s.gates == "" && s.lookup == Replicated && s.asking == (asking{}) {
		return k
	}
	gates, ahead := "", ""
	if s.gates != "" {
		gates = ptx.GLU()
		k.Options.Defines = append(k.Options.Defines, "GATES=1", "ACTIVATION="+strings.ToUpper(s.gates))
	}
	if s.asking != (asking{}) {
		ahead = aheadSource
		k.Options.Defines = append(k.Options.Defines, s.asking.defines()...)
	}
	k.Source = ptx.Instructions() + gates + ahead + lutSource + s.lookup.source() + s.config.kernel().source()
	k.Options.Defines = append(k.Options.Defines, s.lookup.Defines()...)
	k.PTX = nil
	return k
}

// Kernel returns the source of a kernel as it is to be compiled under a configuration. It
// includes no header.
func (f Format) Kernel(c config) driver.Kernel {
	k := c.kernel()
	return driver.Kernel{
		Name:    fmt.Sprintf("%s.%s.cu", k.name(), f.name()),
		Source:  ptx.Instructions() + lutSource + k.source(),
		Options: driver.CompileOptions{Defines: append(f.Defines(), c.Defines()...)},
		PTX: func(i driver.DeviceInfo) ([]byte, error) {
			in := k.prebuilt()
			if in == nil || len(in.Splits()) == 1 && c != in { // which is compiled to split K as it does
				return nil, fmt.Errorf("without it there is no kernel for the configuration %v", c)
			}
			return f.ptx(f.Kernel(in), i)
		},
	}
}

// variants returns every configuration that kernels are compiled under for m rows of X.
func (f Format) variants(m int) []config {
	var all []config
	for _, k := range kernels() {
		all = append(all, k.variants(f, m)...)
	}
	return all
}

// Source returns what a kernel for matrices of tables has in front of its own source.
func Source() string { return ptx.Instructions() + lutSource }
