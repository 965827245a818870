// Package trellis has the kernels for matrices of windows on rings of bits.
//
// X is rotated before it is multiplied, once for all matrices that read it and have no factors of their own: by what writes it, in a model, where 128
// divides K, or else by a launch. Products are of float16, whatever
// the activations: what rings hold is float16 exactly, and rotated numbers are rounded to it, of which bfloat16 would keep fewer bits.
// Those beyond its range, 65504, become that.
package trellis

import (
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/lutq/lutq/formats/weight"
	codes "github.com/lutq/lutq/formats/weight/trellis"
	"github.com/lutq/lutq/gemm/cuda"
	"github.com/lutq/lutq/gemm/cuda/driver"
	"github.com/lutq/lutq/repack"
)

// Family is that of rings of codebook [codes.Pairs]. Matrices of EXL3's are multiplied by as numbers.
type Family struct{}

var _ cuda.Family = Family{}

// Name implements [cuda.Family].
func (Family) Name() string { return "rings" }

// Kind implements [cuda.Family].
func (Family) Kind() string { return codes.Name }

// Rates of two weights that there are kernels for.
const (
	leastRate = 2
	mostRate  = 12
)

// Formats implements [cuda.Family]: those of whole bits. Scales are held in float32.
func (Family) Formats() []cuda.Format {
	var all []cuda.Format
	for rate := leastRate; rate <= mostRate; rate += 2 {
		for _, t := range []driver.DType{driver.F16, driver.BF16} {
			all = append(all, formatOf(rate, t))
		}
	}
	return all
}

// formatOf returns the format of a rate. Half a bit is left out of it.
func formatOf(rate int, t driver.DType) cuda.Format {
	return cuda.Format{Bits: rate / 2, Scale: weight.F32, Type: t}
}

// Pack implements [cuda.Family].
func (Family) Pack(w weight.Matrix, t driver.DType) (cuda.Tiles, [][]byte, error) {
	m := w.(*codes.Matrix)
	if t == driver.F32 || m.Code.Codebook != codes.Pairs || m.K%32 != 0 || !m.Whole() {
		return nil, nil, nil
	}
	laid, err := repack.Trellis(m)
	if err != nil {
		return nil, nil, err
	}
	tiles := like(m.Code.Rate, m.N, m.K, t, m.Factors != nil)
	tiles.table = m.Code.Table
	scales := make([]byte, 4*laid.Bands()*repack.TrellisRows)
	weight.F32.Encode(scales, m.RowScales())
	parts := [][]byte{laid.Rings, scales, codes.EncodeTable(m.Code.Table)}
	if m.Factors != nil {
		parts = append(parts, m.Factors)
	}
	return tiles, parts, nil
}

// Like implements [cuda.Family]: what has no factors.
func (Family) Like(f cuda.Format, n, k int) cuda.Tiles { return like(2*f.Bits, n, k, f.Type, false) }

func like(rate, n, k int, t driver.DType, factors bool) *Tiles {
	laid := repack.TrellisTiles{N: n, K: k, Code: &codes.Code{Codebook: codes.Pairs, Rate: rate}}
	parts := []int{laid.Bands() * laid.Columns() * laid.TileBytes(), 4 * laid.Bands() * repack.TrellisRows, 4 * codes.Entries}
	if factors {
		parts = append(parts, 2*k)
	}
	return &Tiles{
		Base: cuda.Base{Family: Family{}.Name(), N: n, K: k, Of: formatOf(rate, t), Parts: parts},
		rate: rate, factors: factors,
	}
}

// Loosened says how many times as large errors may be: rotated activations are rounded as well.
func (Family) Loosened() float64 { return 1.6 }

// The parts of [Tiles].
const (
	ringsPart = iota
	scalesPart
	tablePart
	factorsPart
)

// Tiles is a matrix as rings. Its parts are those, scales in float32, the table, and factors in float16 if it has them.
type Tiles struct {
	cuda.Base
	rate    int
	table   []uint32
	factors bool
}

var (
	_ cuda.Tiles  = (*Tiles)(nil)
	_ cuda.Joiner = (*Tiles)(nil)
)

// Key implements [cuda.Tiles].
func (t *Tiles) Key(_ cuda.GPU, rows int) any {
	return struct {
		family           string
		rate, n, k, rows int
		dtype            driver.DType
		factors          bool
	}{t.Family, t.rate, t.N, t.K, rows, t.Of.Type, t.factors}
}

// Join implements [cuda.Joiner]: rows of whole tiles, and no factors, of which each matrix would have its own.
func (t *Tiles) Join(all []cuda.Tiles) cuda.Tiles {
	n := 0
	for i, one := range all {
		m, ok := one.(*Tiles)
		if !ok || m.rate != t.rate || m.K != t.K || m.Of != t.Of || m.factors || !slices.Equal(m.table, t.table) ||
			m.N%repack.TrellisRows != 0 && i < len(all)-1 {
			return nil
		}
		n += m.N
	}
	joined := like(t.rate, n, t.K, t.Of.Type, false)
	joined.table = t.table
	joined.Parts[tablePart] *= len(all) // of which the first is read
	return joined
}

// Runs implements [cuda.Tiles].
func (t *Tiles) Runs(g cuda.GPU) error {
	if g.NoCompiler != nil && !prebuilt(t.rate) {
		return fmt.Errorf("%w: products by rings of %v bits: %w", cuda.ErrNoKernel, float64(t.rate)/2, g.NoCompiler)
	}
	if t.K%32 != 0 || t.K > maxColumns {
		return fmt.Errorf("%d input features: the kernel wants a multiple of 32, up to %d", t.K, maxColumns)
	}
	return nil
}

// AtOnce implements [cuda.Tiles]: all, or eight where a block has no room for the sums of more.
func (t *Tiles) AtOnce(g cuda.GPU, m int) int {
	if !t.way(g, cuda.MaxRows).fits(g, cuda.MaxRows) {
		return cuda.Parts(m, rowsOfB)
	}
	return t.Base.AtOnce(g, m)
}

// way returns how m rows of X are multiplied in a launch.
func (t *Tiles) way(g cuda.GPU, m int) byRings {
	w := variantOf(t.rate, m, g.NoCompiler != nil)
	w.slices, w.factors = slicesOf(t.N, w.warps), t.factors
	return w
}

// Configs implements [cuda.Tiles].
func (t *Tiles) Configs(g cuda.GPU, m int) ([]cuda.Way, error) {
	w := t.way(g, m)
	if !w.fits(g, m) {
		return nil, fmt.Errorf("%d rows of rings need more shared memory than a block has here", m)
	}
	return []cuda.Way{w}, nil
}

// Others implements [cuda.Tiles]: those that divide a piece otherwise.
func (t *Tiles) Others(g cuda.GPU, m int) []cuda.Way {
	var all []cuda.Way
	w := t.way(g, m)
	for _, slices := range slicesIn(w.warps) {
		other := w
		if other.slices = slices; slices != w.slices && other.fits(g, m) {
			all = append(all, other)
		}
	}
	return all
}

// Twins implements [cuda.Tiles].
func (t *Tiles) Twins(g cuda.GPU, m int) []cuda.Way { return []cuda.Way{twin{t.way(g, m)}} }

// Order implements [cuda.Tiles]: how a piece is divided among warps.
func (t *Tiles) Order(g cuda.GPU, by cuda.Way, m int) int {
	w, ok := by.(byRings)
	if !ok {
		w = t.way(g, m)
	}
	return w.warps<<8 | w.slices
}

// Kernels implements [cuda.Tiles].
func (t *Tiles) Kernels(_ cuda.GPU, by cuda.Way, _ int) []driver.Kernel {
	switch w := by.(type) {
	case twin:
		return t.Kernels(cuda.GPU{}, w.byRings, 0)
	case byRings:
		return []driver.Kernel{rotation{t.Of.Type}.Kernel(), product{t.rate, t.Of.Type, w.compiled()}.Kernel()}
	}
	if by == cuda.AsNumbers {
		return t.RowKernels()[:1]
	}
	return nil
}

// RowKernels implements [cuda.Tiles].
func (t *Tiles) RowKernels() []driver.Kernel {
	return []driver.Kernel{rows{t.rate, t.Of.Type, t.Of.Type}.Kernel(), rows{t.rate, t.Of.Type, driver.F32}.Kernel()}
}

// Launch implements [cuda.Tiles]. A matrix with factors has X rotated for itself, behind the sums.
func (t *Tiles) Launch(g cuda.GPU, at []driver.Ptr, by cuda.Way, o cuda.Operands) ([]cuda.Launch, error) {
	function := productName
	w, ok := by.(byRings)
	if of, read := by.(twin); read {
		w, ok, function = of.byRings, true, readName
	}
	if !ok {
		return nil, cuda.Foreign(by, t)
	}
	if o.M < 1 || o.M > w.rows {
		return nil, fmt.Errorf("%d rows of activations in a launch: want 1 to %d", o.M, w.rows)
	}
	var all []cuda.Launch
	if t.factors && function == productName {
		to := o.Scratch + driver.Ptr(w.sumBytes())
		all = append(all, rotation{t.Of.Type}.launch(to, o.X, at[factorsPart], o.M, t.K))
		o.X = to
	}
	p := t.params(w, o)
	p.Rings, p.Scales, p.Table = uint64(at[ringsPart]), uint64(at[scalesPart]), uint64(at[tablePart])
	return append(all, cuda.Launch{
		Launch: driver.Launch{
			Grid:   driver.Dim{X: uint32(min(int(p.Workers), g.SMs))},
			Block:  driver.Dim{X: uint32(32 * w.warps)},
			Shared: w.shared(o.M), Programmatic: true,
		}, Of: product{t.rate, t.Of.Type, w.compiled()}, Function: function, Args: [][]byte{bytesOf(&p)},
	}), nil
}

// Rows implements [cuda.Tiles].
func (t *Tiles) Rows(_ cuda.GPU, at []driver.Ptr, r cuda.Rows) (cuda.Launch, error) {
	p := rowParams{
		Rings: uint64(at[ringsPart]), Scales: uint64(at[scalesPart]), Table: uint64(at[tablePart]), Out: uint64(r.To), Index: uint64(r.Index),
		First: uint32(r.First), Count: uint32(r.Count), K: uint32(t.K), Columns: uint32(columnsOf(t.K)),
	}
	if t.factors {
		p.Factors = uint64(at[factorsPart])
	}
	const warps, most = 8, 64 // of a block, a row each; blocks for those
	return cuda.Launch{
		Launch: driver.Launch{
			Grid:  driver.Dim{X: uint32((r.Count + warps - 1) / warps), Y: uint32(min((t.K+codes.Block-1)/codes.Block, most))},
			Block: driver.Dim{X: 32 * warps},
		}, Of: rows{t.rate, t.Of.Type, r.Type}, Function: rowsName, Args: [][]byte{bytesOf(&p)},
	}, nil
}

// bytesOf returns the memory of a kernel's argument.
func bytesOf(p any) []byte {
	b, _ := binary.Append(nil, binary.LittleEndian, p) // which has a size
	return b
}

// Prebuilt returns the kernels that are built ahead of time, each for an architecture.
func (Family) Prebuilt() []driver.Kernel {
	var all []driver.Kernel
	add := func(k driver.Kernel, archs ...string) {
		for _, k.Options.Arch = range archs {
			all = append(all, k)
		}
	}
	for _, t := range []driver.DType{driver.F16, driver.BF16} {
		add(rotation{t}.Kernel(), driver.PrebuiltArchs()...)
	}
	for _, f := range (Family{}).Formats() {
		rate := 2 * f.Bits
		if !prebuilt(rate) {
			continue
		}
		add(product{rate, f.Type, variantOf(rate, 1, true)}.Kernel(), driver.PrebuiltArchs()...)
		for _, out := range []driver.DType{f.Type, driver.F32} {
			add(rows{rate, f.Type, out}.Kernel(), "compute_80")
		}
	}
	return all
}
