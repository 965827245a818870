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

// Alone returns how m rows of X are multiplied in one launch where nothing is measured.
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

// WideAlone is how many rows of X are multiplied: they are prepared first.
type WideAlone struct {
	Alone
	Work           []byte // the second argument, without the addresses of sums and flags at bytes 0 and 8
	Prepare        Alone  // with the addresses of X and of what is prepared at bytes 0 and 8, and m at byte 16
	Sums, Prepared int    // bytes of scratch memory
}

// PowersAt is where Work has the power of two by which scales are multiplied, and its inverse, of 4 bytes each. They are 1.
const PowersAt = 16

// WideAlone returns how m rows of X, and as many as have the same multiple of 8 above them, are multiplied in one of the ways of
// lutmany.cu or lutpair.cu, or false for any other.
func (t *Tiles) WideAlone(g cuda.GPU, by cuda.Way, m int) (WideAlone, bool) {
	var l cuda.Launch
	var name string
	at := []driver.Ptr{0, 0}
	switch by := by.(type) {
	case Many:
		l, name = t.many(at, by, cuda.Operands{M: m}, Workers, g.SMs), manyName
	case pairVariant:
		l, name = t.byPairs(at, by, cuda.Operands{M: m}, Pairs, g.SMs), pairName
	default:
		return WideAlone{}, false
	}
	needs := by.Needs(t.n, t.k, m)
	prepare := needs.Form.Prepare(g, t.format.Type, 0, 0, m, t.k)
	return WideAlone{
		Alone: Alone{
			l.Launch, fmt.Sprintf("%s.%s.%s", name, t.format.name(), strings.ReplaceAll(by.String(), " ", "-")),
			l.Of.Kernel(), l.Function, l.Args[0][:len((&Params{}).fixed())],
		},
		Work:    l.Args[1],
		Prepare: Alone{prepare.Launch, fmt.Sprintf("%s.order%d", columnsName, needs.Form), prepare.Of.Kernel(), prepare.Function, prepare.Args[0]},
		Sums:    needs.Sums, Prepared: needs.Form.Bytes(m, t.k),
	}, true
}

// DenseAlone returns how all weights are written as numbers.
func (t *Tiles) DenseAlone(g cuda.GPU) (Alone, error) {
	d, l, p := t.densePlan([]driver.Ptr{0, 0}, 0, 0, t.n, g.SMs)
	if l.Shared > g.SharedPerBlock {
		return Alone{}, fmt.Errorf("%d bits need %d bytes of shared memory, and a block has %d", t.format.Bits, l.Shared, g.SharedPerBlock)
	}
	return Alone{l, fmt.Sprintf("%s.%s", denseName, t.format.name()), d.Kernel(), denseName, p.fixed()}, nil
}
