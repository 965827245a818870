// Package table has the kernels for matrices of codes with a table.
//
// Codes are looked up, multiplied on tensor cores and scaled in one kernel: lutgemm.cu for few rows of X, lutwide.cu for up to 32, both
// of common parts in lut.cuh. On Hopper there are kernels for very many rows: lutmany.cu, lutpair.cu for up to 256 by pairs of
// blocks, lutspread.cu for those of small layers, and lutfp8.cu, which rounds to E4M3. Others write rows as numbers: lutrows.cu, lutdense.cu, and lutfold.cu in E4M3. A kernel is compiled for a width, group size, scale type and activation type; N, K and M are arguments.
package table

import (
	"slices"

	"github.com/lutq/lutq/formats/weight"
	"github.com/lutq/lutq/formats/weight/lut"
	"github.com/lutq/lutq/gemm/cuda"
	"github.com/lutq/lutq/gemm/cuda/driver"
	"github.com/lutq/lutq/repack"
)

// Family is that of matrices of codes with a table.
type Family struct{}

var _ cuda.Family = Family{}

// Name implements [cuda.Family].
func (Family) Name() string { return "table" }

// Kind implements [cuda.Family].
func (Family) Kind() string { return lut.Name }

// Formats implements [cuda.Family].
func (Family) Formats() []cuda.Format {
	var all []cuda.Format
	for _, f := range Formats() {
		all = append(all, cuda.Format(f))
	}
	return all
}

// Fuses reports whether there is a kernel to multiply activations of a type by rows of k weights in groups: where k
// is a multiple of 32 and the groups are of [weight.Groups] or whole rows.
func Fuses(k, group int, t driver.DType) bool {
	return t != driver.F32 && k%32 == 0 && (group == k || slices.Contains(weight.Groups(), group))
}

// Pack implements [cuda.Family].
func (Family) Pack(w weight.Matrix, t driver.DType) (cuda.Tiles, [][]byte, error) {
	m := w.(*lut.Matrix)
	if !Fuses(m.K, m.Group, t) {
		return nil, nil, nil
	}
	tiles, err := repack.CUDA(m)
	if err != nil {
		return nil, nil, err
	}
	return Of(tiles, t)
}

// PackLayout returns what Pack does of a matrix that is laid out so already, or nil if it is not.
func (Family) PackLayout(l lut.Layout, t driver.DType) (cuda.Tiles, [][]byte, error) {
	if tiles, ok := l.(*repack.CUDATiles); ok && Fuses(tiles.K, tiles.Group, t) {
		return Of(tiles, t)
	}
	return nil, nil, nil
}

// Like implements [cuda.Family].
func (Family) Like(f cuda.Format, n, k int) cuda.Tiles { return Like(Format(f), n, k) }

// Like returns tiles without a table.
func Like(f Format, n, k int) *Tiles { return &Tiles{n: n, k: k, format: f, lookup: chosen} }

// Held implements [cuda.Holder].
func (Family) Held(w weight.Matrix, t driver.DType) weight.Matrix {
	held := *w.(*lut.Matrix)
	held.Codebook = RoundedTable(held.Codebook, t)
	return &held
}

// RoundedTable returns table values rounded to a type.
func RoundedTable(values []float32, t driver.DType) []float32 {
	f := cuda.Format{Type: t}
	rounded := make([]float32, len(values))
	for i, v := range values {
		rounded[i] = f.Value(f.Round(v))
	}
	return rounded
}

// Prebuilt returns the kernels that are built ahead of time, each for an architecture.
func (Family) Prebuilt() []driver.Kernel {
	var all []driver.Kernel
	add := func(k driver.Kernel, archs ...string) {
		for _, k.Options.Arch = range archs {
			all = append(all, k)
		}
	}
	for _, f := range Formats() {
		if !f.prebuilt() {
			continue
		}
		for _, k := range kernels() {
			if in := k.prebuilt(); in != nil {
				add(f.Kernel(in), driver.PrebuiltArchs()...)
			}
		}
		for _, out := range []driver.DType{f.Type, driver.F32} {
			add(lutrows{f, out}.Kernel(), "compute_80")
		}
		add(lutdense{f}.Kernel(), driver.PrebuiltArchs()...)
	}
	return all
}
