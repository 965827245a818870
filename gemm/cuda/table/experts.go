package table

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/lutq/lutq/gemm/cuda"
	"github.com/lutq/lutq/gemm/cuda/driver"
	"github.com/lutq/lutq/repack"
)

// expertKernel is [Format.Kernel] for experts, with gates if any.
func (f Format) expertKernel(c config, activation string) driver.Kernel {
	k := source{format: f, config: c, gates: activation}.Kernel()
	k.Options.Defines = append(k.Options.Defines, "EXPERTS=1")
	k.PTX = nil
	return k
}

// expertSlices returns into how many slices the K of experts is split: so that most warps have as much to do, whatever the rows of X.
func expertSlices(units int) int {
	best, most := 0, 0.0
	for _, slices := range []int{16, 8, 4, 3} {
		busy := float64(units) / float64((units+slices-1)/slices*slices) * float64(gemmWarps/slices*slices)
		if busy > most {
			best, most = slices, busy
		}
	}
	return best
}

// mixed is how groups of rows of X are multiplied by experts: under a configuration, all groups in one launch.
type mixed struct {
	config
	shape Shape // of a group's product
}

// Mixed implements [cuda.Mixer]. It takes a compiler.
func (t *Tiles) Mixed(g cuda.GPU, experts, m int, by cuda.Gates) (cuda.Way, error) {
	s := Shape{Format: t.format, n: t.n / max(experts, 1), k: t.k, m: m, gated: by.Activation != ""}
	switch {
	case g.NoCompiler != nil:
		return nil, g.NoCompiler
	case experts < 1 || t.n%experts != 0 || s.n%(s.together()*repack.TileRows) != 0:
		return nil, fmt.Errorf("%d experts in a matrix of %d rows: want each of whole tiles", experts, t.n)
	case m < 1 || m > cuda.GroupRows:
		return nil, fmt.Errorf("groups of %d rows of activations: want 1 to %d", m, cuda.GroupRows)
	}
	s.slices = expertSlices(s.Units())
	c := t.format.expertConfig(s.slices)
	if _, _, err := s.planExperts(c, LimitsOf(g), 1); err != nil {
		return nil, err
	}
	return mixed{c, s}, nil
}

// mixed returns how the experts of all groups are shared out to the blocks of one grid. The bits of a row are those that it has alone.
func (t *Tiles) mixed(g cuda.GPU, at []driver.Ptr, by mixed, o cuda.Operands) (cuda.Launch, error) {
	p, l, err := by.shape.planExperts(by.config, LimitsOf(g), o.Experts.Most)
	p.set(at, o, t.codebook)
	p.chosen, p.rows = uint64(o.Experts.Groups), uint64(o.Experts.Rows)
	return cuda.Launch{
		Launch: l, Of: source{format: t.format, config: by.config, gates: o.Gates.Activation, experts: true}, Function: gemmName, Args: [][]byte{p.Bytes()},
	}, err
}

// expertConfig returns the configuration with the fewest codes ahead: what a block finds out first takes registers.
func (f Format) expertConfig(split int) config {
	c := slices.MinFunc(lutgemm{}.variants(f, cuda.GroupRows), func(a, b config) int { return cmp.Compare(a.(gemmVariant).depth, b.(gemmVariant).depth) }).(gemmVariant)
	c.slices = split
	return c
}

// planExperts is plan for up to so many groups of rows of X, each of which has an expert.
func (s Shape) planExperts(c config, l Limits, groups int) (Params, driver.Launch, error) {
	all := s
	all.n *= groups
	p, launch, err := all.Plan(c, l)
	if err != nil {
		return p, launch, err
	}
	tile := s.Units() * repack.UnitCols * repack.TileRows / 8 * s.Bits
	p.n = uint32(s.n)
	p.experts, p.tiles, p.most = true, uint32(s.n/repack.TileRows), uint32(groups)
	p.codesOf, p.scalesOf = uint64(p.tiles)*uint64(tile), uint64(p.tiles)*uint64(s.scaleBytes(s.Units()))
	return p, launch, nil
}
