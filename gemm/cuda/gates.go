package cuda

import (
	"fmt"
	"slices"
	"strings"

	"github.com/lutq/lutq/gemm/cuda/driver"
	"github.com/lutq/lutq/repack"
)

// Gates says that the first half of the rows of a matrix makes gates, which are rounded, activated, and multiplied by the
// results of the second half, rounded: Y is [M, N/2] then. The activation is compiled into a kernel.
type Gates struct {
	Activation   string  // by its name in package arch; "": there are no gates
	Alpha, Limit float32 // of the activation
}

// activations are the names of those in glu.cuh.
func activations() []string { return []string{"silu", "gelu", "gelu_tanh", "relu", "swiglu_oai"} }

// gates reports whether a kernel can be compiled so.
func gates(k kernel) bool {
	switch k.(type) {
	case lutgemm, lutwide:
		return true
	}
	return false
}

// together returns how many tiles are finished at once.
func (s shape) together() int {
	if s.gated {
		return 2
	}
	return 1
}

// CanGate reports whether there is a kernel for gates of a matrix and m rows of X. It takes a compiler.
func (e *Engine) CanGate(w *Matrix, m int, g Gates) bool {
	_, err := e.gated(w, m, g)
	return err == nil
}

// gated returns the configuration of a product with gates. Sums have the bits that they have without.
func (e *Engine) gated(w *Matrix, m int, g Gates) (Config, error) {
	switch {
	case e.noCompiler != nil:
		return nil, e.noCompiler
	case !slices.Contains(activations(), g.Activation):
		return nil, fmt.Errorf("activation %q: want one of %s", g.Activation, strings.Join(activations(), ", "))
	case m > MaxRows:
		return nil, fmt.Errorf("%d rows of activations of a product with gates: want at most %d", m, MaxRows)
	case w.N%(2*repack.TileRows) != 0:
		return nil, fmt.Errorf("gates of a matrix of %d rows: want halves of whole tiles", w.N)
	}
	chosen, err := e.choice(w, m)
	if err != nil {
		return nil, err
	}
	s := shapeOf(w.Format, w.N, w.K, m).under(chosen)
	s.gated = true
	all, err := e.tried(s)
	if err != nil {
		return nil, err
	}
	for _, c := range slices.Concat([]Config{chosen}, all, lutgemm{}.variantsFor(s)) {
		if !gates(c.kernel()) || c.rowsOfX() < m || !slices.Contains(c.splits(), s.slices) {
			continue
		}
		if _, _, err := s.plan(c, e.limits); err == nil {
			return c, nil
		}
	}
	return nil, fmt.Errorf("no kernel with gates for %d rows of activations and %s", m, w.Format.name())
}

// MatMulGated queues a product of at most [MaxRows] rows with gates, as [Engine.MatMul] does: Y is [M, N/2], and Bias [N].
func (e *Engine) MatMulGated(s *driver.Stream, w *Matrix, o Operands, g Gates) error {
	if err := o.check(w); err != nil {
		return err
	}
	c, err := e.gated(w, o.M, g)
	if err != nil {
		return err
	}
	return e.launchGated(s, w, o, g, c, gemmName)
}
