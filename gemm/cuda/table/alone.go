package table

import (
	"fmt"
	"strings"

	"github.com/lutq/lutq/gemm/cuda"
	"github.com/lutq/lutq/gemm/cuda/driver"
)

// Alone is a launch for who multiplies without an engine.
type Alone struct {
	driver.Launch
	Name     string        // of what is compiled, for a file
	Kernel   driver.Kernel // that it is, or that stands in for it where there is no compiler
	Function string
	Fixed    []byte // the argument up to the table, without addresses
}

// Alone returns how m rows of X, at most [cuda.MaxRows], are multiplied where nothing is measured.
func (t *Tiles) Alone(g cuda.GPU, m int) (Alone, error) {
	s := shapeOf(t.format, t.n, t.k, m)
	configs, err := tried(s, g)
	if err != nil {
		return Alone{}, err
	}
	c := configs[0]
	p, l, err := s.Under(c).Plan(c, LimitsOf(g))
	if err != nil {
		return Alone{}, err
	}
	kernel := t.format.Kernel(c)
	if g.NoCompiler != nil {
		if _, err := kernel.PTX(g.DeviceInfo); err != nil {
			return Alone{}, err
		}
		c = c.kernel().prebuilt() // that stands in
	}
	l.Programmatic = g.Major >= 9
	name := fmt.Sprintf("%s.%s.%s-m%d", c.kernel().name(), t.format.name(), strings.ReplaceAll(c.String(), " ", "-"), c.Rows())
	return Alone{l, name, kernel, gemmName, p.fixed()}, nil
}

// DenseAlone returns how all weights are written as numbers.
func (t *Tiles) DenseAlone(g cuda.GPU) (Alone, error) {
	d, l, p := t.densePlan([]driver.Ptr{0, 0}, 0, 0, t.n, g.SMs)
	if l.Shared > g.SharedPerBlock {
		return Alone{}, fmt.Errorf("%d bits need %d bytes of shared memory, and a block has %d", t.format.Bits, l.Shared, g.SharedPerBlock)
	}
	return Alone{l, fmt.Sprintf("%s.%s", denseName, t.format.name()), d.Kernel(), denseName, p.fixed()}, nil
}
