package cuda

import (
	_ "embed"
	"fmt"

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
		Source:  ptx.Instructions() + lutSource + k.source(),
		Options: driver.CompileOptions{Defines: append(f.defines(), c.defines()...)},
		PTX: func(i driver.DeviceInfo) ([]byte, error) {
			in := k.prebuilt()
			if in == nil || len(in.splits()) == 1 && c != in { // which is compiled to split K as it does
				return nil, fmt.Errorf("without it there is no kernel for the configuration %v", c)
			}
			if k == (lutsparse{}) {
				return f.ptxSparse(f.Kernel(in), i)
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

// Traits returns what a kernel is compiled for, in words, of which no two things have the same.
func (f Format) Traits(c Config) []string {
	return append(f.traits(), fmt.Sprintf("%v to %d rows", c, c.rowsOfX()))
}

func (f Format) traits() []string {
	return []string{
		fmt.Sprintf("%d bits", f.Bits), fmt.Sprintf("groups of %d", f.Group), fmt.Sprintf("scales %v", f.Scale), f.Type.String(),
	}
}
