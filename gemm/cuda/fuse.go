package cuda

import (
	"fmt"
	"slices"
	"strings"

	"github.com/lutq/lutq/gemm/cuda/driver"
	"github.com/lutq/lutq/repack"
)

// Fusion says what a kernel does beside multiplying. It is compiled into it.
type Fusion struct {
	// Adds adds results, rounded to the type of X, to Y of float32.
	Adds bool
	// Gates, if not empty, is an activation by its name in package arch. The first half of the rows of Ŵ makes gates, and Y
	// [M, N/2] has these, rounded and activated, times the results of the second half, rounded.
	Gates string
	// Norms has X of float32, of which the RMS norm, rounded to the matrix's type, is multiplied, for [NormRows] rows at most.
	Norms bool
}

// NormRows is how many rows a kernel takes the norm of.
const NormRows = 4

// Fused are operands of a product with what is done besides.
type Fused struct {
	Operands
	Fusion
	Alpha, Limit float32    // of the activation
	Norm         driver.Ptr // [K], float32
	Eps          float32
}

// activations are the names of those in glu.cuh.
func activations() []string { return []string{"silu", "gelu", "gelu_tanh", "relu", "swiglu_oai"} }

// defines returns the definitions of lut.cuh.
func (f Fusion) defines() []string {
	if f == (Fusion{}) {
		return nil
	}
	truth := map[bool]int{true: 1}
	act := "SILU"
	if f.Gates != "" {
		act = strings.ToUpper(f.Gates)
	}
	return []string{
		fmt.Sprintf("ADDS=%d", truth[f.Adds]), fmt.Sprintf("GATES=%d", truth[f.Gates != ""]), "ACTIVATION=" + act, fmt.Sprintf("NORMS=%d", truth[f.Norms]),
	}
}

// fuses reports whether a kernel can be compiled so.
func (f Fusion) fuses(k kernel) bool {
	switch k.(type) {
	case lutgemm:
		return true
	case lutwide:
		return !f.Norms
	}
	return f == Fusion{}
}

// kernel is [Format.Kernel] with what is fused.
func (f Fusion) kernel(of Format, c Config) driver.Kernel {
	k := of.Kernel(c)
	if f == (Fusion{}) {
		return k
	}
	k.Source = ptxSource + gluSource + lutSource + c.kernel().source()
	k.Options.Defines = append(k.Options.Defines, f.defines()...)
	k.PTX = nil
	return k
}

// together returns how many tiles are finished at once.
func (f Fusion) together() int {
	if f.Gates != "" {
		return 2
	}
	return 1
}

// fits returns what stands against a product.
func (f Fusion) fits(w *Matrix, m int) error {
	switch {
	case m > MaxRows:
		return fmt.Errorf("%d rows of activations in a fused product: want at most %d", m, MaxRows)
	case f.Norms && m > NormRows:
		return fmt.Errorf("%d rows of activations to be normalized: want at most %d", m, NormRows)
	case f.Gates != "" && !slices.Contains(activations(), f.Gates):
		return fmt.Errorf("activation %q: want one of %s", f.Gates, strings.Join(activations(), ", "))
	case f.Gates != "" && (f.Adds || w.N%(2*repack.TileRows) != 0):
		return fmt.Errorf("gates of %d rows, added: %v: want halves of whole tiles, not added", w.N, f.Adds)
	}
	return nil
}

// Fuses reports whether a product of m rows of X can be had with what is fused. It takes a compiler.
func (e *Engine) Fuses(w *Matrix, m int, f Fusion) bool {
	_, err := e.fused(w, m, f)
	return err == nil
}

// fused returns the configuration of a fused product. It has the bits of the one that is not.
func (e *Engine) fused(w *Matrix, m int, f Fusion) (Config, error) {
	if e.noCompiler != nil {
		return nil, e.noCompiler
	}
	if err := f.fits(w, m); err != nil {
		return nil, err
	}
	chosen, err := e.choice(w, m)
	if err != nil {
		return nil, err
	}
	s := shapeOf(w.Format, w.N, w.K, m).under(chosen)
	s.Fusion = f
	all, err := e.tried(s)
	if err != nil {
		return nil, err
	}
	for _, c := range slices.Concat([]Config{chosen}, all, lutgemm{}.variantsFor(s)) {
		if !f.fuses(c.kernel()) || c.rowsOfX() < m || !slices.Contains(c.splits(), s.slices) {
			continue
		}
		if _, _, err := s.plan(c, e.limits); err == nil {
			return c, nil
		}
	}
	return nil, fmt.Errorf("no kernel for %d rows of activations and %s that does %+v", m, w.Format.name(), f)
}

// MatMulFused queues a product of at most [MaxRows] rows and what is done besides, as [Engine.MatMul] does. X and Y of
// float32 have addresses that are multiples of 16 bytes, as Norm has.
func (e *Engine) MatMulFused(s *driver.Stream, w *Matrix, o Fused) error {
	if err := o.check(w); err != nil {
		return err
	}
	if (o.Norm == 0) == o.Norms || o.Norm%16 != 0 || o.Adds && o.Y%16 != 0 {
		return fmt.Errorf("a norm at %#x, Y at %#x for %+v", uint64(o.Norm), uint64(o.Y), o.Fusion)
	}
	c, err := e.fused(w, o.M, o.Fusion)
	if err != nil {
		return err
	}
	return e.launchFused(s, w, o, c, gemmName)
}
