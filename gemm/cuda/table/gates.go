package table

import (
	_ "embed"
	"fmt"
	"slices"
	"strings"

	"github.com/lutq/lutq/gemm/cuda"
	"github.com/lutq/lutq/gemm/cuda/driver"
	"github.com/lutq/lutq/gemm/cuda/ptx"
	"github.com/lutq/lutq/repack"
)

//go:embed fieldgates.cuh
var fieldGatesSource string

// activations are the names of those in glu.cuh.
func activations() []string { return []string{"silu", "gelu", "gelu_tanh", "relu", "swiglu_oai"} }

// together returns how many tiles are finished at once.
func (s Shape) together() int {
	if s.gated {
		return 2
	}
	return 1
}

// Gated implements [cuda.Gater]. It takes a compiler.
func (t *Tiles) Gated(g cuda.GPU, chosen cuda.Way, m int, by cuda.Gates) (cuda.Way, error) {
	switch {
	case g.NoCompiler != nil:
		return nil, g.NoCompiler
	case !slices.Contains(activations(), by.Activation):
		return nil, fmt.Errorf("activation %q: want one of %s", by.Activation, strings.Join(activations(), ", "))
	case t.n%(2*repack.TileRows) != 0:
		return nil, fmt.Errorf("gates of a matrix of %d rows: want halves of whole tiles", t.n)
	}
	if v, ok := chosen.(Many); ok {
		return t.manyGated(g, v, by)
	}
	if m > cuda.MaxRows || by.Into != nil {
		return nil, fmt.Errorf("no kernel with gates for %d rows of activations by %v", m, chosen)
	}
	first, ok := chosen.(config)
	if !ok {
		return nil, cuda.Foreign(chosen, t)
	}
	s := shapeOf(t.format, t.n, t.k, m).Under(first)
	s.gated = true
	all, err := tried(s, g)
	if err != nil {
		return nil, err
	}
	for _, c := range slices.Concat([]config{first}, all, lutgemm{}.variantsFor(s)) {
		if c.Rows() < m || !slices.Contains(c.Splits(), s.slices) {
			continue
		}
		if _, _, err := s.Plan(c, LimitsOf(g)); err == nil {
			return c, nil
		}
	}
	return nil, fmt.Errorf("no kernel with gates for %d rows of activations and %s", m, t.format.name())
}

// manyGated is [Many] with gates, which lie in other fields then than without: where workers share fields, sums are added in another order.
type manyGated struct {
	Many
	activation string
	into       bool // Columns
}

// manyGated returns how many rows are multiplied with gates.
func (t *Tiles) manyGated(g cuda.GPU, v Many, by cuda.Gates) (cuda.Way, error) {
	if by.Into != nil && (by.Into != Columns || !Columns.Written(t.n/2)) {
		return nil, fmt.Errorf("results of gates of %d rows in another form than row by row", t.n)
	}
	gated := manyGated{v, by.Activation, by.Into != nil}
	if gated.shared(t.format) > g.SharedPerBlock {
		return nil, fmt.Errorf("no room for gates beside %v", v)
	}
	return gated, nil
}

// shared returns the bytes of shared memory that a block takes, with what its warps wait for each other by.
func (v manyGated) shared(f Format) int { return v.Many.shared(f) + 16 }

// manyGatedKernel is lutmany.cu with gates for a format.
type manyGatedKernel struct {
	Format
	manyGated
}

// Kernel implements [cuda.Kernel]. There is none built ahead of time.
func (k manyGatedKernel) Kernel() driver.Kernel {
	of := manyKernel{k.Format, k.Many}.Kernel()
	of.Source = ptx.Instructions() + ptx.Prepared() + ptx.GLU() + lutSource + k.Lookup.source() + ptx.WGMMA() + ptx.Fields() + fieldGatesSource + blockSource + weightsSource + manySource
	into := 0
	if k.into {
		into = 1
	}
	of.Options.Defines = append(of.Options.Defines, "GATES=1", "ACTIVATION="+strings.ToUpper(k.activation), fmt.Sprintf("INTO=%d", into))
	return of
}
