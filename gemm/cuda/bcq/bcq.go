// Package bcq has the kernels for matrices of binary codes.
package bcq

import (
	"encoding/binary"
	"fmt"
	"math/bits"

	"github.com/lutq/lutq/formats/weight"
	"github.com/lutq/lutq/formats/weight/bcq"
	"github.com/lutq/lutq/formats/weight/lut"
	"github.com/lutq/lutq/gemm/cuda"
	"github.com/lutq/lutq/gemm/cuda/driver"
	"github.com/lutq/lutq/gemm/cuda/table"
	"github.com/lutq/lutq/repack"
)

// Family is that of binary codes.
type Family struct{}

var _ cuda.Family = Family{}

// Name implements [cuda.Family].
func (Family) Name() string { return "planes" }

// Kind implements [cuda.Family].
func (Family) Kind() string { return bcq.Name }

// Formats implements [cuda.Family].
func (Family) Formats() []cuda.Format {
	var all []cuda.Format
	for bits := bcq.MinBits; bits <= bcq.MaxBits; bits++ {
		for _, group := range []int{32, 64, 128, 256, 0} {
			for _, scale := range (bcq.Kind{}).ScaleTypes() {
				for _, t := range []driver.DType{driver.F16, driver.BF16} {
					all = append(all, cuda.Format{Bits: bits, Group: group, Scale: scale, Type: t})
				}
			}
		}
	}
	return all
}

// Pack implements [cuda.Family]. What is a table as well is multiplied by as that.
func (Family) Pack(w weight.Matrix, t driver.DType) (cuda.Tiles, [][]byte, error) {
	m := w.(*bcq.Matrix)
	if !table.Fuses(m.K, m.Group, t) {
		return nil, nil, nil
	}
	if l := TableOf(m, t); l != nil {
		return table.Family{}.Pack(l, t)
	}
	return Planes(m, t)
}

// Planes is Pack of binary codes as they are, where [table.Fuses] has it so.
func Planes(m *bcq.Matrix, t driver.DType) (cuda.Tiles, [][]byte, error) {
	laid, err := repack.BCQ(m)
	if err != nil {
		return nil, nil, err
	}
	f := cuda.Format{Bits: laid.Bits, Group: laid.Group, Scale: laid.ScaleType, Type: t}
	if laid.RowScale() {
		f.Group = 0
	}
	return Family{}.Like(f, laid.N, laid.K), [][]byte{laid.Planes, laid.Factors}, nil
}

// Like implements [cuda.Family].
func (Family) Like(of cuda.Format, n, k int) cuda.Tiles {
	f := format{of}
	units := (k + repack.UnitCols - 1) / repack.UnitCols
	tiles, planes := (n+repack.TileRows-1)/repack.TileRows, f.Bits*planeBytes
	factors := units * (f.recordBytes() - planes)
	if f.Group == 0 {
		factors /= units
	}
	return &Tiles{cuda.Base{Family: "planes", N: n, K: k, Of: of, Parts: []int{tiles * units * planes, tiles * factors}}}
}

// TableOf returns a matrix of binary codes as one of a table, whose kernels are faster, where that stands for the same
// numbers and the table is one of numbers of a type; or nil.
func TableOf(m *bcq.Matrix, t driver.DType) *lut.Matrix {
	l, err := m.LUT()
	if err != nil {
		return nil
	}
	f := cuda.Format{Type: t}
	for _, v := range l.Codebook {
		if f.Value(f.Round(v)) != v {
			return nil
		}
	}
	return l
}

// Tiles is a matrix of binary codes. Its parts are planes and factors.
type Tiles struct{ cuda.Base }

var _ cuda.Tiles = (*Tiles)(nil)

// byPlanes multiplies up to 16 rows of X, by the kernel for as many.
type byPlanes struct{}

// twin only reads, as byPlanes does.
type twin struct{ byPlanes }

// String implements [cuda.Way].
func (byPlanes) String() string { return "planes" }

// Rows implements [cuda.Way].
func (byPlanes) Rows() int { return cuda.MaxRows }

// Needs implements [cuda.Way].
func (byPlanes) Needs(int, int, int) cuda.Needs { return cuda.Needs{} }

// Runs implements [cuda.Tiles].
func (t *Tiles) Runs(g cuda.GPU) error {
	if g.NoCompiler != nil && !(format{t.Of}).prebuilt() {
		return fmt.Errorf("%w: products by binary codes: %w", cuda.ErrNoKernel, g.NoCompiler)
	}
	for _, rows := range rowsAtMost() {
		if _, _, _, err := t.plan(g, rows); err != nil {
			return err
		}
	}
	return nil
}

// Configs implements [cuda.Tiles].
func (t *Tiles) Configs(cuda.GPU, int) ([]cuda.Way, error) { return []cuda.Way{byPlanes{}}, nil }

// Twins implements [cuda.Tiles].
func (t *Tiles) Twins(cuda.GPU, int) []cuda.Way { return []cuda.Way{twin{}} }

// kernel returns the kernel for up to so many rows of X that can be had.
func (t *Tiles) kernel(g cuda.GPU, rows int) planes {
	if g.NoCompiler != nil {
		return prebuiltPlanes(format{t.Of})
	}
	return planesFor(format{t.Of}, rows, table.LimitsOf(g))
}

// Kernels implements [cuda.Tiles].
func (t *Tiles) Kernels(g cuda.GPU, by cuda.Way, m int) []driver.Kernel {
	switch by.(type) {
	case byPlanes, twin:
		return []driver.Kernel{t.kernel(g, m).Kernel()}
	}
	return nil
}

// RowKernels implements [cuda.Tiles].
func (t *Tiles) RowKernels() []driver.Kernel {
	f := format{t.Of}
	return []driver.Kernel{rows{f, f.Type}.Kernel(), rows{f, driver.F32}.Kernel()}
}

// Launch implements [cuda.Tiles].
func (t *Tiles) Launch(g cuda.GPU, at []driver.Ptr, by cuda.Way, o cuda.Operands) ([]cuda.Launch, error) {
	v, p, l, err := t.plan(g, o.M)
	if err != nil {
		return nil, err
	}
	p.planes, p.factors = uint64(at[0]), uint64(at[1])
	p.x, p.y, p.bias = uint64(o.X), uint64(o.Y), uint64(o.Bias)
	function := v.function()
	switch by.(type) {
	case byPlanes:
	case twin:
		function = readName
	default:
		return nil, cuda.Foreign(by, t)
	}
	return []cuda.Launch{{Launch: l, Of: v, Function: function, Args: [][]byte{p.bytes()}}}, nil
}

// plan returns the kernel for up to 16 rows of X, its grid and the arguments that follow from that.
func (t *Tiles) plan(g cuda.GPU, rows int) (planes, params, driver.Launch, error) {
	v, l := t.kernel(g, rows), table.LimitsOf(g)
	fail := func(format string, args ...any) (planes, params, driver.Launch, error) {
		return v, params{}, driver.Launch{}, fmt.Errorf(format, args...)
	}
	if t.K%32 != 0 || t.K > table.MaxColumns {
		return fail("%d input features: the kernel wants a multiple of 32, up to %d", t.K, table.MaxColumns)
	}
	slices := slicesOf(t.N, t.K, v.warps)
	teams := v.warps / slices
	tiles := (t.N + repack.TileRows - 1) / repack.TileRows
	grid := min(tiles, l.SMs)
	most := (tiles + grid - 1) / grid // tiles of a block
	parts := v.parts(rows)
	slots := slices * parts * pairBytes
	fit := (l.Shared - v.fixedBytes()) / slots
	fit -= fit % teams
	if fit <= 0 {
		return fail("%d bits, %d rows and %d columns need more shared memory than a block has here", t.Of.Bits, rows, t.K)
	}
	runs := (most + fit - 1) / fit
	run := (most + runs - 1) / runs
	run = (run + teams - 1) / teams * teams
	p := params{
		units: uint32((t.K + repack.UnitCols - 1) / repack.UnitCols), slices: uint32(slices), teams: uint32(teams),
		tilesEach: uint32(tiles / grid), tilesOver: uint32(tiles % grid),
		run: uint32(run), n: uint32(t.N), k: uint32(t.K), m: uint32(rows), parts: uint32(parts), slicesLog: uint32(bits.TrailingZeros(uint(slices))),
	}
	return v, p, driver.Launch{
		Grid: driver.Dim{X: uint32(grid)}, Block: driver.Dim{X: uint32(32 * v.warps)}, Shared: v.fixedBytes() + run*slots, Programmatic: true,
	}, nil
}

// Rows implements [cuda.Tiles]: numbers are rounded once. Whole tiles as numbers of the matrix's type are written several times as fast
// as others.
func (t *Tiles) Rows(g cuda.GPU, at []driver.Ptr, r cuda.Rows) (cuda.Launch, error) {
	units := (t.K + repack.UnitCols - 1) / repack.UnitCols
	args, err := binary.Append(nil, binary.LittleEndian, struct {
		planes, factors, dst, index uint64
		first, k, units, count      uint32
	}{
		uint64(at[0]), uint64(at[1]), uint64(r.To), uint64(r.Index), uint32(r.First), uint32(t.K), uint32(units), uint32(r.Count),
	})
	l := cuda.Launch{Of: rows{format{t.Of}, r.Type}, Function: rowsName, Args: [][]byte{args}}
	if r.Type == t.Of.Type && r.Index == 0 && r.First%repack.TileRows == 0 && r.To%16 == 0 {
		const warps, blocks = 8, 6 // of a block; of a multiprocessor
		units *= (r.Count + repack.TileRows - 1) / repack.TileRows
		l.Function = denseName
		l.Launch = driver.Launch{Grid: driver.Dim{X: uint32(min((units+warps-1)/warps, blocks*g.SMs))}, Block: driver.Dim{X: 32 * warps}}
		return l, err
	}
	const threads, most = 256, 8 // of a block; blocks for a row
	l.Launch = driver.Launch{
		Grid:  driver.Dim{X: uint32(r.Count), Y: uint32(min((t.K+threads-1)/threads, most))},
		Block: driver.Dim{X: threads},
	}
	return l, err
}

// Prebuilt returns the kernels that are built ahead of time, each for an architecture.
func (Family) Prebuilt() []driver.Kernel {
	var all []driver.Kernel
	for _, of := range (Family{}).Formats() {
		f := format{of}
		if !f.prebuilt() {
			continue
		}
		k := prebuiltPlanes(f).Kernel()
		for _, k.Options.Arch = range driver.PrebuiltArchs() {
			all = append(all, k)
		}
		for _, out := range []driver.DType{f.Type, driver.F32} {
			k := rows{f, out}.Kernel()
			k.Options.Arch = "compute_80"
			all = append(all, k)
		}
	}
	return all
}
