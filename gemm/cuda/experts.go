package cuda

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"github.com/lutq/lutq/gemm/cuda/driver"
	"github.com/lutq/lutq/repack"
)

// GroupRows is how many rows of Y a group of [ExpertOperands] has at most.
const GroupRows = rowsOfB

// ExpertOperands are the dense sides of a multiplication by a matrix that some of as many rows each, the experts, were joined to.
// Rows of Y come in groups, each of which has an expert. X and Y are as in [Operands], with N of an expert, and so is Bias, [Experts, N].
type ExpertOperands struct {
	Y, X, Bias driver.Ptr
	Experts    int

	// Rows are the rows of X, uint32 [rows of Y], that Y's are of; 0: the same ones. Groups is how many there are, and three words
	// that mean nothing; and for each an expert, the first row of Y, how many, at most [GroupRows], and a word that means nothing: uint32
	// [1 + groups, 4]. What makes both is at least two kernels in front of the product, or the one in front.
	Rows, Groups driver.Ptr

	GroupsMost int // that there may be
	M          int // rows of Y that a group may have
}

// expertKernel is [Format.Kernel] for experts, with gates if any.
func (f Format) expertKernel(c Config, activation string) driver.Kernel {
	k := moduleKey{format: f, config: c, gates: activation}.kernel()
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

// experts returns the shape of a product by one of so many experts of a matrix and the configuration for it.
func (e *Engine) experts(w *Matrix, experts, m int, g Gates) (shape, Config, error) {
	s := shape{Format: w.Format, n: w.N / max(experts, 1), k: w.K, m: m, gated: g.Activation != ""}
	switch {
	case e.noCompiler != nil:
		return s, nil, e.noCompiler
	case experts < 1 || w.N%experts != 0 || s.n%(s.together()*repack.TileRows) != 0:
		return s, nil, fmt.Errorf("%d experts in a matrix of %d rows: want each of whole tiles", experts, w.N)
	case m < 1 || m > GroupRows:
		return s, nil, fmt.Errorf("groups of %d rows of activations: want 1 to %d", m, GroupRows)
	}
	s.slices = expertSlices(s.units())
	return s, w.Format.expertConfig(s.slices), nil
}

// expertConfig returns the configuration with the fewest codes ahead: what a block finds out first takes registers.
func (f Format) expertConfig(split int) Config {
	c := slices.MinFunc(lutgemm{}.variants(f, GroupRows), func(a, b Config) int { return cmp.Compare(a.(gemmVariant).depth, b.(gemmVariant).depth) }).(gemmVariant)
	c.slices = split
	return c
}

// planExperts is plan for up to so many groups of rows of X, each of which has an expert.
func (s shape) planExperts(c Config, l limits, groups int) (params, driver.Launch, error) {
	all := s
	all.n *= groups
	p, launch, err := all.plan(c, l)
	if err != nil {
		return p, launch, err
	}
	tile := s.units() * repack.UnitCols * repack.TileRows / 8 * s.Bits
	p.n = uint32(s.n)
	p.experts, p.tiles, p.most = true, uint32(s.n/repack.TileRows), uint32(groups)
	p.codesOf, p.scalesOf = uint64(p.tiles)*uint64(tile), uint64(p.tiles)*uint64(s.scaleBytes(s.units()))
	return p, launch, nil
}

// CanMix reports whether there is a kernel for a matrix of so many experts, with gates or without. It takes a compiler.
func (e *Engine) CanMix(w *Matrix, experts int, g Gates) bool {
	s, c, err := e.experts(w, experts, GroupRows, g)
	if err == nil {
		_, _, err = s.planExperts(c, e.limits, 1)
	}
	return err == nil
}

// MatMulExperts queues the products of groups of rows, as [Engine.MatMul] and [Engine.MatMulGated] do: the experts of all groups are
// shared out to the blocks of one grid. The bits of a row are those that it has alone.
func (e *Engine) MatMulExperts(stream *driver.Stream, w *Matrix, o ExpertOperands, g Gates) error {
	if err := (Operands{Y: o.Y, X: o.X, Bias: o.Bias, M: o.M}).check(w); err != nil {
		return err
	}
	if o.Groups == 0 || o.GroupsMost < 1 {
		return errors.New("no groups of rows")
	}
	s, c, err := e.experts(w, o.Experts, o.M, g)
	if err != nil {
		return err
	}
	p, launch, err := s.planExperts(c, e.limits, o.GroupsMost)
	if err != nil {
		return err
	}
	launch.Programmatic = e.dev.Info.Major >= 9
	mod, err := e.module(moduleKey{format: w.Format, config: c, gates: g.Activation, experts: true})
	if err != nil {
		return err
	}
	p.codes, p.scales = uint64(w.codes), uint64(w.scales)
	p.x, p.y, p.bias = uint64(o.X), uint64(o.Y), uint64(o.Bias)
	p.chosen, p.rows = uint64(o.Groups), uint64(o.Rows)
	p.alpha, p.limit = g.Alpha, g.Limit
	p.codebook = w.codebook
	return mod.gemm.Launch(stream, launch, e.args.Reset().Struct(p.bytes()))
}
