package table

import (
	"fmt"
	"slices"
	"strings"

	"github.com/lutq/lutq/gemm/cuda"
	"github.com/lutq/lutq/repack"
)

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
	case m > cuda.MaxRows:
		return nil, fmt.Errorf("%d rows of activations of a product with gates: want at most %d", m, cuda.MaxRows)
	case t.n%(2*repack.TileRows) != 0:
		return nil, fmt.Errorf("gates of a matrix of %d rows: want halves of whole tiles", t.n)
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
