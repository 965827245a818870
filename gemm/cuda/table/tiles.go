package table

import (
	"errors"
	"fmt"
	"slices"

	"github.com/lutq/lutq/gemm/cuda"
	"github.com/lutq/lutq/gemm/cuda/driver"
	"github.com/lutq/lutq/repack"
)

// Tiles is a matrix in the tiles of [repack.CUDATiles], whose parts are codes and scales, for activations of one type.
type Tiles struct {
	n, k     int
	format   Format
	codebook []uint32
	lookup   Lookup
	integers bool      // whether the table is that of Integers
	exponent int       // of the power of two by which lutmany.cu multiplies the scales
	fp8      bool      // whether products of many rows are in E4M3
	values   []float32 // of the table, as they are
	table8   []uint32  // of lutfp8.cu, with its factor
	factor8  float32
}

var (
	_ cuda.Tiles   = (*Tiles)(nil)
	_ cuda.Gater   = (*Tiles)(nil)
	_ cuda.Mixer   = (*Tiles)(nil)
	_ cuda.Joiner  = (*Tiles)(nil)
	_ cuda.Rounder = (*Tiles)(nil)
	_ cuda.Folder  = (*Tiles)(nil)
	_ cuda.Waver   = (*Tiles)(nil)
	_ cuda.Reader  = (*Tiles)(nil)
)

// New returns the tiles of an N×K matrix with a table, which is rounded to the type of the activations, F16 or BF16; like is some of
// its scales, or all.
func New(f Format, n, k int, codebook []float32, like []byte) (*Tiles, error) {
	t := &Tiles{n: n, k: k, format: f, lookup: chosen, exponent: f.ScaleExponent(like, codebook)}
	t.values = codebook
	var err error
	if t.codebook, err = f.Table(codebook); err != nil {
		return nil, err
	}
	t.table8, t.factor8 = table8(codebook)
	t.integers = f.areIntegers(t.codebook)
	return t, nil
}

// Of returns what lies in the GPU's memory of a matrix that is laid out. K is a multiple of 32.
func Of(t *repack.CUDATiles, dtype driver.DType) (cuda.Tiles, [][]byte, error) {
	if err := t.Validate(); err != nil {
		return nil, nil, err
	}
	f, err := FormatOf(t, dtype)
	if err != nil {
		return nil, nil, err
	}
	scales := f.Scales(t)
	tiles, err := New(f, t.N, t.K, t.Codebook, scales)
	if err != nil {
		return nil, nil, err
	}
	return tiles, [][]byte{t.Codes, scales}, nil
}

// Shape implements [cuda.Tiles].
func (t *Tiles) Shape() (n, k int) { return t.n, t.k }

// Format implements [cuda.Tiles].
func (t *Tiles) Format() cuda.Format { return cuda.Format(t.format) }

// Sizes implements [cuda.Tiles].
func (t *Tiles) Sizes() []int {
	codes, scales := t.format.Sizes(t.n, t.k)
	return []int{codes, scales}
}

// Runs implements [cuda.Tiles].
func (t *Tiles) Runs(g cuda.GPU) error {
	configs, err := tried(shapeOf(t.format, t.n, t.k, 1), g)
	if err != nil {
		return err
	}
	if g.NoCompiler != nil {
		if _, err := t.format.Kernel(configs[0]).PTX(g.DeviceInfo); err != nil {
			return fmt.Errorf("%w; %w", g.NoCompiler, err)
		}
	}
	return nil
}

// shape returns that of a product of m rows of X.
func (t *Tiles) shape(m int) Shape {
	s := shapeOf(t.format, t.n, t.k, m)
	s.lookup = t.lookup
	return s
}

// AtOnce implements [cuda.Tiles]: all rows, or of more than one launch takes a part.
func (t *Tiles) AtOnce(g cuda.GPU, m int) int {
	if m <= cuda.MaxRows {
		return m
	}
	rows := cuda.Parts(m, mostRows)
	if all, _ := tried(shapeOf(t.format, t.n, t.k, rows), g); len(all) > 0 {
		return rows
	}
	return cuda.Parts(m, cuda.MaxRows)
}

// Configs implements [cuda.Tiles].
func (t *Tiles) Configs(g cuda.GPU, m int) ([]cuda.Way, error) {
	all, err := tried(t.shape(m), g)
	return ways(all), err
}

// ways returns configurations as ways.
func ways[C cuda.Way](all []C) []cuda.Way {
	var some []cuda.Way
	for _, c := range all {
		some = append(some, c)
	}
	return some
}

// Others implements [cuda.Tiles]: those that split K otherwise or are slower, as far as there is room on the GPU.
func (t *Tiles) Others(g cuda.GPU, m int) []cuda.Way {
	s := shapeOf(t.format, t.n, t.k, m)
	chosen, _ := tried(s, g)
	var all []config
	for _, k := range kernels() {
		if loads(k, g) {
			all = append(all, k.others(s)...)
		}
	}
	return ways(slices.DeleteFunc(all, func(c config) bool {
		_, _, err := s.Under(c).Plan(c, LimitsOf(g))
		return err != nil || slices.Contains(chosen, c)
	}))
}

// Twins implements [cuda.Tiles].
func (t *Tiles) Twins(g cuda.GPU, m int) []cuda.Way {
	var all []cuda.Way
	configs, _ := tried(shapeOf(t.format, t.n, t.k, m), g)
	for _, c := range configs {
		if c.kernel().twin() {
			all = append(all, twin{c})
		}
	}
	return all
}

// Order implements [cuda.Tiles]: into how many slices K is split.
func (t *Tiles) Order(_ cuda.GPU, by cuda.Way, m int) int {
	s := shapeOf(t.format, t.n, t.k, m)
	if c, ok := by.(config); ok {
		s = s.Under(c)
	}
	return s.slices
}

// Kernels implements [cuda.Tiles].
func (t *Tiles) Kernels(g cuda.GPU, by cuda.Way, m int) []driver.Kernel {
	switch by := by.(type) {
	case config:
		return []driver.Kernel{source{format: t.format, config: by, lookup: t.lookupIn(g, by, m)}.Kernel()}
	case Many:
		return []driver.Kernel{lutcolumns{by.form()}.Kernel(), manyKernel{t.format, by}.Kernel()}
	case pairVariant:
		return []driver.Kernel{lutcolumns{by.many().form()}.Kernel(), pairKernel{t.format, by}.Kernel()}
	case spread:
		return []driver.Kernel{lutcolumns{by.many().form()}.Kernel(), spreadKernel{t.format, by}.Kernel()}
	case fp8Variant:
		return []driver.Kernel{lutbytes{t.format.Type}.Kernel(), fp8Kernel{t.format, by}.Kernel()}
	}
	switch by {
	case cuda.AsNumbers:
		return []driver.Kernel{lutdense{t.format}.Kernel()}
	case cuda.InFP8:
		return []driver.Kernel{cuda.RoundedRowsKernel(t.format.Type), lutfold{t.format}.Kernel()}
	}
	return nil
}

// RowKernels implements [cuda.Tiles].
func (t *Tiles) RowKernels() []driver.Kernel {
	return []driver.Kernel{lutdense{t.format}.Kernel(), lutrows{t.format, driver.F32}.Kernel()}
}

// Launch implements [cuda.Tiles].
func (t *Tiles) Launch(g cuda.GPU, at []driver.Ptr, by cuda.Way, o cuda.Operands) ([]cuda.Launch, error) {
	var l cuda.Launch
	var err error
	switch by := by.(type) {
	case twin:
		l, err = t.few(g, at, by.config, o)
		l.Function = readName
	case mixed:
		l, err = t.mixed(g, at, by, o)
	case config:
		l, err = t.few(g, at, by, o)
	case Many:
		if by.Lookup == Integers && !t.hasIntegers(g) {
			return nil, fmt.Errorf("%v by a table that is not the integers", by)
		}
		l = t.many(at, by, o, Workers, g.SMs)
	case manyGated:
		if by.Lookup == Integers && !t.hasIntegers(g) {
			return nil, fmt.Errorf("%v by a table that is not the integers", by)
		}
		l = t.manyWithGates(at, by, o, Workers, g.SMs)
	case pairVariant:
		if by.Lookup == Integers && !t.hasIntegers(g) {
			return nil, fmt.Errorf("%v by a table that is not the integers", by)
		}
		l = t.byPairs(at, by, o, Pairs, g.SMs)
	case spread:
		if by.Lookup == Integers && !t.hasIntegers(g) {
			return nil, fmt.Errorf("%v by a table that is not the integers", by)
		}
		l = t.spreadOut(at, by, o, Workers, g.SMs)
	case fp8Variant:
		l = t.byFP8(at, by, o, Workers, g.SMs)
	default:
		err = cuda.Foreign(by, t)
	}
	return []cuda.Launch{l}, err
}

// few returns how few rows are multiplied, with gates or without.
func (t *Tiles) few(g cuda.GPU, at []driver.Ptr, c config, o cuda.Operands) (cuda.Launch, error) {
	if !t.lookup.has(c.kernel()) {
		return cuda.Launch{}, fmt.Errorf("no kernel of configuration %v with lookup %v", c, t.lookup)
	}
	s := t.fewShape(g, c, o)
	p, l, err := s.Plan(c, s.limits(g, o.Step))
	if err != nil {
		return cuda.Launch{}, err
	}
	p.set(at, o, t.codebook)
	of := source{format: t.format, config: c, gates: o.Gates.Activation, lookup: s.lookup}
	of.asking, p.ahead = s.reading(c, p, int(l.Grid.X)).asks(g, at, c, o.Step)
	return cuda.Launch{Launch: l, Of: of, Function: gemmName, Args: [][]byte{p.Bytes()}}, nil
}

// fewShape returns the shape of a product of few rows.
func (t *Tiles) fewShape(g cuda.GPU, c config, o cuda.Operands) Shape {
	s := shapeOf(t.format, t.n, t.k, o.M).Under(c)
	s.gated, s.lookup = o.Gates.Activation != "", t.lookupIn(g, c, o.M)
	return s
}

// Key is what choices hold for, whose digits are on disk.
type Key struct {
	format Format
	n, k   int
	rows   int // treated alike
	lookup Lookup
	fp8    bool // whether ways in E4M3 were tried
	sparse bool // whether the matrix is one of which every four columns keep two
}

// SparseKey is the key of an n×k matrix of which every four columns keep two, of a format of what is kept.
func SparseKey(f Format, n, k, rows int) Key {
	return Key{format: f, n: n, k: k, rows: rows, sparse: true}
}

// Key implements [cuda.Tiles].
func (t *Tiles) Key(g cuda.GPU, rows int) any {
	key := Key{format: t.format, n: t.n, k: t.k, rows: rows, lookup: t.lookup, fp8: t.fp8 && rows > cuda.MaxRows}
	if t.lookup == chosen && !t.hasIntegers(g) {
		key.lookup = Replicated
	}
	return key
}

// Choosable returns all kernels that a choice for a number of rows may be of, whatever the shape: with any of them what was chosen before
// holds no more.
func (t *Tiles) Choosable(g cuda.GPU, rows int) []driver.Kernel {
	lookup := t.Key(g, rows).(Key).lookup
	var all []driver.Kernel
	configs := t.format.variants(min(rows, mostRows))
	if rows > cuda.MaxRows {
		configs = append(configs, t.format.variants(cuda.MaxRows)...) // which takes turns where no kernel takes more
	}
	for _, c := range configs {
		for _, l := range []Lookup{Replicated, Integers, max(lookup, Replicated)} {
			if l.has(c.kernel()) {
				all = append(all, source{format: t.format, config: c, lookup: l}.Kernel())
			}
		}
	}
	if rows <= cuda.MaxRows {
		return all
	}
	ways := []cuda.Way{cuda.AsNumbers}
	for _, v := range t.format.manyVariants() {
		ways = append(ways, v)
		if t.format.Bits == 4 {
			ways = append(ways, v.with(Integers))
		}
	}
	for _, v := range t.format.pairVariants() {
		ways = append(ways, v)
	}
	for _, v := range t.format.spreadVariants() {
		ways = append(ways, v)
	}
	for _, v := range t.format.fp8Variants() {
		ways = append(ways, v)
	}
	for _, by := range ways {
		all = append(all, t.Kernels(g, by, rows)...)
	}
	return all
}

// Join implements [cuda.Joiner].
func (t *Tiles) Join(all []cuda.Tiles) cuda.Tiles {
	joined := *t
	joined.n, joined.lookup = 0, chosen
	for i, one := range all {
		m, ok := one.(*Tiles)
		if !ok || m.k != t.k || m.format != t.format || !slices.Equal(m.codebook, t.codebook) ||
			m.fp8 != t.fp8 || m.factor8 != t.factor8 || !slices.Equal(m.table8, t.table8) ||
			m.n%repack.TileRows != 0 && i < len(all)-1 {
			return nil
		}
		joined.n += m.n
		joined.exponent = min(joined.exponent, m.exponent)
	}
	return &joined
}

// WaveEfficiency implements [cuda.Waver].
func (t *Tiles) WaveEfficiency(g cuda.GPU, by cuda.Way, m int) (float64, error) {
	switch by := by.(type) {
	case config:
		s := t.shape(m).Under(by)
		p, l, err := s.Plan(by, LimitsOf(g))
		if err != nil {
			return 0, err
		}
		return p.efficiency(l, g.SMs), nil
	case Many:
		share := by.divide(t.n, t.k, m, Workers)
		return share.efficiency(g.SMs), nil
	case pairVariant:
		share := by.divide(t.n, t.k, m, Pairs) // of which each is two multiprocessors
		return share.efficiency(max(g.SMs/2, 1)), nil
	case spread:
		share := by.divide(t.n, t.k, m, Workers)
		return share.efficiency(g.SMs), nil
	case fp8Variant:
		share := by.divide(t.n, t.k, m, Workers)
		return share.efficiency(g.SMs), nil
	}
	return 0, errors.New("no way of a table")
}
