package cuda

import (
	"errors"
	"fmt"

	"github.com/lutq/lutq/gemm/cuda/driver"
	"github.com/lutq/lutq/repack"
)

// SparseMatrix is a matrix of which every four columns keep two, in a GPU's memory, for activations of one type.
type SparseMatrix struct {
	N, K   int
	Format Format // of what is kept

	engine        *Engine
	codes, scales driver.Ptr // codes with the pattern of each atom behind its own
	codebook      []uint32
	exponent      int // of the power of two by which lutmany.cu multiplies the scales
	bytes         int64
}

// SparseFormats returns every format of what is kept that kernels exist for.
func SparseFormats() []Format {
	var all []Format
	for _, f := range Formats() {
		if (lutsparse{}).has(f, 1) {
			all = append(all, f)
		}
	}
	return all
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

// UploadSparse copies a matrix to the GPU and rounds its table to the type of the activations, F16 or BF16. K must be a
// multiple of 32.
func (e *Engine) UploadSparse(t *repack.SparseTiles, dtype driver.DType) (*SparseMatrix, error) {
	if err := t.Validate(); err != nil {
		return nil, err
	}
	f, err := FormatOf(t.Kept, dtype)
	if err != nil {
		return nil, err
	}
	if e.noCompiler != nil && !f.prebuiltSparse() {
		return nil, fmt.Errorf("products by weights of which two in four are kept: %w", e.noCompiler)
	}
	n, k := t.Shape()
	m := &SparseMatrix{N: n, K: k, Format: f, engine: e}
	// Whatever stands in the way of multiplying shows here.
	if _, err := e.sparseConfigs(m, 1); err != nil {
		return nil, err
	}
	if m.codebook, err = f.table(t.Kept.Codebook); err != nil {
		return nil, err
	}
	codes, scales := interleaved(t), f.scales(t.Kept)
	m.bytes, m.exponent = int64(len(codes))+int64(len(scales)), f.scaleExponent(scales, t.Kept.Codebook)
	if m.codes, err = e.dev.Upload(codes); err != nil {
		return nil, err
	}
	if m.scales, err = e.dev.Upload(scales); err != nil {
		return nil, errors.Join(err, m.Close())
	}
	return m, nil
}

// canSparse reports whether there are kernels for a matrix on the engine's device, compiled or built ahead of time.
func (e *Engine) canSparse(t *repack.SparseTiles, dtype driver.DType) bool {
	f, err := FormatOf(t.Kept, dtype)
	if err != nil || e.noCompiler != nil && !f.prebuiltSparse() {
		return false
	}
	n, k := t.Shape()
	_, err = e.sparseConfigs(&SparseMatrix{N: n, K: k, Format: f}, 1)
	return err == nil
}

// Bytes returns what the matrix takes of the GPU's memory, which a multiplication reads once.
func (m *SparseMatrix) Bytes() int64 { return m.bytes }

// Close frees the matrix.
func (m *SparseMatrix) Close() error {
	var errs []error
	for _, p := range []*driver.Ptr{&m.codes, &m.scales} {
		if *p != 0 {
			errs = append(errs, m.engine.dev.Free(*p))
		}
		*p = 0
	}
	return errors.Join(errs...)
}

// shape returns that of a product of m rows of X.
func (m *SparseMatrix) shape(rows int) shape {
	s := shape{Format: m.Format, n: m.N, k: m.K, m: rows}
	s.slices = s.sparseSlices()
	return s
}

// SparseConfigs returns the configurations for m rows of X, or for more than one launch multiplies those of the first, the
// best guess first; with others also those that split K otherwise, for tests.
func (e *Engine) SparseConfigs(w *SparseMatrix, m int, others bool) []Config {
	m = min(m, MaxRows)
	all, _ := e.sparseConfigs(w, m)
	if others && e.noCompiler == nil {
		s := w.shape(m)
		for _, c := range (lutsparse{}).others(s) {
			if _, _, err := s.under(c).plan(c, e.limits); err == nil {
				all = append(all, c)
			}
		}
	}
	return all
}

// SparseSlices returns into how many slices K is split for m rows of X under a configuration, or under what
// [SparseMatrix.MatMul] chooses if that is nil.
func (e *Engine) SparseSlices(w *SparseMatrix, c Config, m int) int {
	if c == nil && e.noCompiler != nil {
		c = lutsparse{}.prebuilt()
	}
	return w.shape(min(parts(m, MaxRows), m)).under(c).slices
}

// sparseChoice returns the configuration that a multiplication runs under: the tuned one, or the first.
func (e *Engine) sparseChoice(w *SparseMatrix, m int) (Config, error) {
	key := tuningKey{format: w.Format, n: w.N, k: w.K, rows: bucket(m)}
	if c, ok := e.sparse[key]; ok {
		return c, nil
	}
	all, err := e.sparseConfigs(w, m)
	if err != nil {
		return nil, err
	}
	e.sparse[key] = all[0]
	return all[0], nil
}

// sparseConfigs returns the configurations for so many rows of X, up to MaxRows, the best guess first, or why there is none.
func (e *Engine) sparseConfigs(w *SparseMatrix, rows int) ([]Config, error) {
	s := w.shape(rows)
	if !(lutsparse{}).has(s.Format, s.m) {
		return nil, fmt.Errorf("no kernel for %d rows of activations and what is kept of %s", rows, s.name())
	}
	if e.noCompiler == nil {
		return lutsparse{}.tried(s, e.limits)
	}
	c := lutsparse{}.prebuilt()
	return s.under(c).fitting([]Config{c}, e.limits)
}

var _ Packed = (*SparseMatrix)(nil)

// Shape implements [Packed].
func (m *SparseMatrix) Shape() (n, k int) { return m.N, m.K }

// Type implements [Packed].
func (m *SparseMatrix) Type() driver.DType { return m.Format.Type }

// MatMul implements [Packed] by a launch for every 16 rows of X, or with scratch memory and where [SparseMatrix.Way] has it so by
// one that prepares X and one for all rows.
func (m *SparseMatrix) MatMul(s *driver.Stream, o Operands) error {
	if o.M <= MaxRows || o.Scratch == 0 {
		return m.engine.MatMulSparseWay(s, m, o, Way{})
	}
	way := m.Way(o.M)
	way.unpacked = false // which is for who asked
	return m.engine.MatMulSparseWay(s, m, o, way)
}

// ScratchBytes implements [Packed].
func (m *SparseMatrix) ScratchBytes(rows int) int { return m.Way(rows).ScratchBytes(rows, m.K) }

// Unpacks implements [Packed].
func (m *SparseMatrix) Unpacks(rows int) bool { return m.Way(rows).unpacked }

// MatMulSparseWith is [SparseMatrix.MatMul] under one of [Engine.SparseConfigs].
func (e *Engine) MatMulSparseWith(s *driver.Stream, w *SparseMatrix, o Operands, c Config) error {
	return e.launchSparse(s, w, o, c, gemmName)
}

// Read queues the read-only twin of MatMul for up to [MaxRows] rows of X, of which it reads the weights once.
func (m *SparseMatrix) Read(s *driver.Stream, o Operands) error {
	o.M = min(o.M, MaxRows)
	c, err := m.engine.sparseChoice(m, o.M)
	if err != nil {
		return err
	}
	return m.engine.ReadSparse(s, m, o, c)
}

// ReadSparse queues the read-only twin of MatMulSparseWith.
func (e *Engine) ReadSparse(s *driver.Stream, w *SparseMatrix, o Operands, c Config) error {
	return e.launchSparse(s, w, o, c, readName)
}

func (e *Engine) launchSparse(s *driver.Stream, w *SparseMatrix, o Operands, c Config, kernel string) error {
	if err := o.checkFor(w.codes); err != nil {
		return err
	}
	mod, err := e.module(moduleKey{format: w.Format, config: c})
	if err != nil {
		return err
	}
	f := mod.gemm
	if kernel == readName {
		f = mod.read
	}
	return each(w.N, w.K, o, parts(o.M, c.rowsOfX()), func(o Operands) error {
		p, launch, err := w.shape(o.M).under(c).plan(c, e.limits)
		if err != nil {
			return err
		}
		launch.Programmatic = e.dev.Info.Major >= 9
		p.codes, p.scales, p.codebook = uint64(w.codes), uint64(w.scales), w.codebook
		p.x, p.y, p.bias = uint64(o.X), uint64(o.Y), uint64(o.Bias)
		return f.Launch(s, launch, e.args.Reset().Struct(p.bytes()))
	})
}
