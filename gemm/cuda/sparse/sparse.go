// Package sparse has the kernels for matrices of which every four columns keep two, in the formats of what is kept, which is a matrix of
// codes with a table.
package sparse

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/lutq/lutq/formats/weight"
	"github.com/lutq/lutq/formats/weight/lut24"
	"github.com/lutq/lutq/gemm/cuda"
	"github.com/lutq/lutq/gemm/cuda/driver"
	"github.com/lutq/lutq/gemm/cuda/table"
	"github.com/lutq/lutq/repack"
)

// Family is that of matrices of which every four columns keep two.
type Family struct{}

var _ cuda.Family = Family{}

// Name implements [cuda.Family].
func (Family) Name() string { return "sparse" }

// Kind implements [cuda.Family].
func (Family) Kind() string { return lut24.Name }

// Formats implements [cuda.Family].
func (Family) Formats() []cuda.Format {
	var all []cuda.Format
	for _, f := range Formats() {
		all = append(all, cuda.Format(f))
	}
	return all
}

// Pack implements [cuda.Family].
func (Family) Pack(w weight.Matrix, t driver.DType) (cuda.Tiles, [][]byte, error) {
	m := w.(*lut24.Matrix)
	f := table.Held(table.Format{Bits: m.Kept.Bits, Group: m.Kept.Group, Scale: m.Kept.ScaleType, Type: t}, m.Kept.K)
	if _, k := m.Shape(); k%32 != 0 || !slices.Contains(Formats(), f) {
		return nil, nil, nil
	}
	laid, err := repack.SparseCUDA(m)
	if err != nil {
		return nil, nil, err
	}
	return of(laid, t)
}

// of returns what lies in the GPU's memory of a matrix that is laid out.
func of(laid *repack.SparseTiles, dtype driver.DType) (cuda.Tiles, [][]byte, error) {
	if err := laid.Validate(); err != nil {
		return nil, nil, err
	}
	f, err := table.FormatOf(laid.Kept, dtype)
	if err != nil {
		return nil, nil, err
	}
	n, k := laid.Shape()
	t := &Tiles{n: n, k: k, format: f}
	if t.codebook, err = f.Table(laid.Kept.Codebook); err != nil {
		return nil, nil, err
	}
	scales := f.Scales(laid.Kept)
	t.exponent = f.ScaleExponent(scales, laid.Kept.Codebook)
	return t, [][]byte{interleaved(laid), scales}, nil
}

// interleaved returns the codes of a matrix with the pattern of each atom behind the atom's.
func interleaved(t *repack.SparseTiles) []byte {
	size := t.Kept.AtomBytes()
	all := make([]byte, 0, len(t.Kept.Codes)+len(t.Pattern))
	for i := range t.Kept.Tiles() * t.Kept.Atoms() {
		all = append(all, t.Kept.Codes[i*size:][:size]...)
		all = append(all, t.Pattern[i*repack.PatternAtomBytes:][:repack.PatternAtomBytes]...)
	}
	return all
}

// Like implements [cuda.Family].
func (Family) Like(f cuda.Format, n, k int) cuda.Tiles {
	return &Tiles{n: n, k: k, format: table.Format(f)}
}

// Columns implements [cuda.Grouper]: a format's are those that are kept.
func (Family) Columns(f cuda.Format) int { return f.Group * lut24.Chunk / lut24.Kept }

// Names implements [cuda.Namer].
func (Family) Names() []string {
	names := []string{cuda.Label(variant{})}
	for _, f := range Formats() {
		for _, v := range manyVariants(f) {
			if name := v.Label(); !slices.Contains(names, name) {
				names = append(names, name)
			}
		}
	}
	return names
}

// Named implements [cuda.Namer].
func (Family) Named(name string, f cuda.Format) cuda.Way {
	if name == cuda.Label(variant{}) {
		return cuda.InTurns
	}
	for _, v := range manyVariants(table.Format(f)) {
		if v.Label() == name {
			return v
		}
	}
	return nil
}

// Held implements [cuda.Holder].
func (Family) Held(w weight.Matrix, t driver.DType) weight.Matrix {
	m := w.(*lut24.Matrix)
	kept, held := *m.Kept, *m
	kept.Codebook = table.RoundedTable(kept.Codebook, t)
	held.Kept = &kept
	return &held
}

// Tiles is a matrix of which every four columns keep two. Its parts are codes, with the pattern of each atom behind its own, and scales.
type Tiles struct {
	n, k     int
	format   table.Format // of what is kept
	codebook []uint32
	exponent int // of the power of two by which lutmany.cu multiplies the scales
}

var _ cuda.Tiles = (*Tiles)(nil)

// Shape implements [cuda.Tiles].
func (t *Tiles) Shape() (n, k int) { return t.n, t.k }

// Format implements [cuda.Tiles].
func (t *Tiles) Format() cuda.Format { return cuda.Format(t.format) }

// Sizes implements [cuda.Tiles].
func (t *Tiles) Sizes() []int {
	codes, scales := t.format.Sizes(t.n, t.k/2)
	return []int{codes + codes/(repack.TileRows*repack.AtomCols/8*t.format.Bits)*repack.PatternAtomBytes, scales}
}

// Runs implements [cuda.Tiles].
func (t *Tiles) Runs(g cuda.GPU) error {
	if g.NoCompiler != nil && !isPrebuilt(t.format) {
		return fmt.Errorf("%w: products by weights of which two in four are kept: %w", cuda.ErrNoKernel, g.NoCompiler)
	}
	if _, err := t.configs(g, 1); err != nil {
		return fmt.Errorf("%w: %w", cuda.ErrNoKernel, err)
	}
	return nil
}

// shape returns that of a product of m rows of X, of which codes are as many as of a matrix with as many columns as are kept.
func (t *Tiles) shape(m int) table.Shape {
	units := (t.k + repack.UnitCols - 1) / repack.UnitCols
	return table.NewShape(t.format, t.n, t.k, m, splits(units, m))
}

// AtOnce implements [cuda.Tiles].
func (t *Tiles) AtOnce(_ cuda.GPU, m int) int { return cuda.Parts(m, cuda.MaxRows) }

// configs returns the configurations for m rows of X, the best guess first, or why there is none.
func (t *Tiles) configs(g cuda.GPU, m int) ([]variant, error) {
	s := t.shape(m)
	all := variants(t.format, m)
	switch {
	case len(all) == 0 || m > cuda.MaxRows:
		return nil, fmt.Errorf("no kernel for %d rows of activations and what is kept of %s", m, t.Format().Name())
	case g.NoCompiler != nil:
		all = []variant{prebuilt()}
		s = s.Under(all[0])
	case t.n <= table.TwoTiles && s.Units() <= 16:
		// Where a warp has few tiles in all they are best loaded one by one, for there is less to wait for at first.
		slices.SortStableFunc(all, func(a, b variant) int { return cmp.Compare(a.batch, b.batch) })
	}
	return table.Fitting(s, all, table.LimitsOf(g))
}

// Configs implements [cuda.Tiles]: the best guess alone, as others take about as long.
func (t *Tiles) Configs(g cuda.GPU, m int) ([]cuda.Way, error) {
	all, err := t.configs(g, m)
	if err != nil {
		return nil, err
	}
	return []cuda.Way{all[0]}, nil
}

// Others implements [cuda.Tiles].
func (t *Tiles) Others(g cuda.GPU, m int) []cuda.Way {
	fit, _ := t.configs(g, m)
	var all []cuda.Way
	for i, v := range fit {
		if i > 0 {
			all = append(all, v)
		}
	}
	if g.NoCompiler != nil {
		return all
	}
	s := t.shape(m)
	for _, v := range variants(t.format, m) {
		if u := s.Under(v); u != s {
			if _, _, err := u.Plan(v, table.LimitsOf(g)); err == nil {
				all = append(all, v)
			}
		}
	}
	return all
}

// Twins implements [cuda.Tiles].
func (t *Tiles) Twins(g cuda.GPU, m int) []cuda.Way {
	all, err := t.configs(g, m)
	if err != nil {
		return nil
	}
	return []cuda.Way{twin{all[0]}}
}

// Order implements [cuda.Tiles]: into how many slices K is split.
func (t *Tiles) Order(g cuda.GPU, by cuda.Way, m int) int {
	s := t.shape(m)
	switch v, ok := by.(variant); {
	case ok:
		s = s.Under(v)
	case g.NoCompiler != nil:
		s = s.Under(prebuilt())
	}
	return s.Slices()
}

// Kernels implements [cuda.Tiles].
func (t *Tiles) Kernels(_ cuda.GPU, by cuda.Way, _ int) []driver.Kernel {
	switch by := by.(type) {
	case variant:
		return []driver.Kernel{kernel{t.format, by}.Kernel()}
	case twin:
		return []driver.Kernel{kernel{t.format, by.variant}.Kernel()}
	case many:
		return []driver.Kernel{table.InOrder.Kernel(), manyKernel{t.format, by}.Kernel()}
	}
	return nil
}

// RowKernels implements [cuda.Tiles].
func (t *Tiles) RowKernels() []driver.Kernel {
	return []driver.Kernel{rowsKernel{t.format, t.format.Type}.Kernel(), rowsKernel{t.format, driver.F32}.Kernel()}
}

// Launch implements [cuda.Tiles].
func (t *Tiles) Launch(g cuda.GPU, at []driver.Ptr, by cuda.Way, o cuda.Operands) ([]cuda.Launch, error) {
	var l cuda.Launch
	var err error
	switch by := by.(type) {
	case variant:
		l, err = t.few(g, at, by, o)
	case twin:
		l, err = t.few(g, at, by.variant, o)
		l.Function = readName
	case many:
		l = t.many(at, by, o, table.Workers, g.SMs)
	default:
		err = cuda.Foreign(by, t)
	}
	return []cuda.Launch{l}, err
}

// few returns how few rows are multiplied.
func (t *Tiles) few(g cuda.GPU, at []driver.Ptr, v variant, o cuda.Operands) (cuda.Launch, error) {
	p, l, err := t.shape(o.M).Under(v).Plan(v, table.LimitsOf(g))
	return cuda.Launch{Launch: l, Of: kernel{t.format, v}, Function: gemmName, Args: [][]byte{p.With(at, o, t.codebook)}}, err
}

// Key implements [cuda.Tiles].
func (t *Tiles) Key(_ cuda.GPU, rows int) any { return table.SparseKey(t.format, t.n, t.k, rows) }

// Choosable returns all kernels that a choice for many rows may be of, whatever the shape.
func (t *Tiles) Choosable(g cuda.GPU, _ int) []driver.Kernel {
	all := []driver.Kernel{rowsKernel{t.format, t.format.Type}.Kernel()}
	for _, v := range variants(t.format, cuda.MaxRows) {
		all = append(all, kernel{t.format, v}.Kernel())
	}
	for _, v := range manyVariants(t.format) {
		all = append(all, t.Kernels(g, v, cuda.MaxRows+1)...)
	}
	return all
}

// Prebuilt returns the kernels that are built ahead of time, each for an architecture.
func (Family) Prebuilt() []driver.Kernel {
	var all []driver.Kernel
	for _, f := range Formats() {
		if !isPrebuilt(f) {
			continue
		}
		for _, k := range []driver.Kernel{kernel{f, prebuilt()}.Kernel(), rowsKernel{f, f.Type}.Kernel(), rowsKernel{f, driver.F32}.Kernel()} {
			for _, k.Options.Arch = range driver.PrebuiltArchs() { // with a table, whose place they differ in
				all = append(all, k)
			}
		}
	}
	return all
}
