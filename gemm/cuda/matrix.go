package cuda

import (
	"errors"
	"fmt"
	"slices"

	"github.com/lutq/lutq/gemm/cuda/driver"
)

// Matrix is a quantized matrix in a GPU's memory, in the layout of the kernels of a family.
type Matrix struct {
	Tiles

	engine *Engine
	at     []driver.Ptr // of the parts
	part   bool         // of a matrix that has the memory

	scales driver.Ptr // of folded rows, and their inverses: float32 [2, N]; 0 until they are needed
	kept   kept
}

// kept are all rows of a matrix as numbers.
type kept struct {
	at driver.Ptr
	of driver.DType
}

// Upload copies a matrix to the GPU.
func (e *Engine) Upload(t Tiles, parts [][]byte) (*Matrix, error) {
	// Whatever stands in the way of multiplying shows here.
	if err := t.Runs(e.gpu); err != nil {
		return nil, err
	}
	sizes := t.Sizes()
	if len(parts) != len(sizes) {
		return nil, fmt.Errorf("%d parts of a matrix of %d", len(parts), len(sizes))
	}
	m := &Matrix{Tiles: t, engine: e}
	for i, p := range parts {
		if len(p) != sizes[i] {
			return nil, errors.Join(fmt.Errorf("part %d of a matrix has %d bytes: want %d", i, len(p), sizes[i]), m.Close())
		}
		at, err := e.dev.Upload(p)
		if err != nil {
			return nil, errors.Join(err, m.Close())
		}
		m.at = append(m.at, at)
	}
	return m, nil
}

// Over returns matrices that lie one behind the other in memory of somebody else, each part at an address that is a multiple of 16. It is
// to time products, which any codes do for.
func (e *Engine) Over(t Tiles, count int, at ...driver.Ptr) ([]*Matrix, error) {
	if err := t.Runs(e.gpu); err != nil {
		return nil, err
	}
	all := make([]*Matrix, count)
	for i := range all {
		m := &Matrix{Tiles: t, engine: e, part: true}
		for j, size := range t.Sizes() {
			if at[j]%16 != 0 {
				return nil, fmt.Errorf("part %d of a matrix at %#x: want a multiple of 16", j, uint64(at[j]))
			}
			m.at = append(m.at, at[j]+driver.Ptr(i*size))
		}
		all[i] = m
	}
	return all, nil
}

// As returns the matrix with other tiles of the same layout. It has the memory in common with m, which is closed instead of it, but for what it
// keeps or folds by.
func (m *Matrix) As(t Tiles) *Matrix {
	return &Matrix{Tiles: t, engine: m.engine, at: slices.Clone(m.at), part: true}
}

// Type returns that of the activations, F16 or BF16.
func (m *Matrix) Type() driver.DType { return m.Format().Type }

// Bytes returns what the matrix takes of the GPU's memory, which a
// multiplication reads once.
func (m *Matrix) Bytes() int64 {
	var all int64
	for _, size := range m.Sizes() {
		all += int64(size)
	}
	return all
}

// Close frees the matrix.
func (m *Matrix) Close() error {
	var errs []error
	for i, p := range m.at {
		if p != 0 && !m.part {
			errs = append(errs, m.engine.dev.Free(p))
		}
		m.at[i] = 0
	}
	errs = append(errs, m.engine.dev.Free(m.scales), m.Drop())
	m.scales = 0
	return errors.Join(errs...)
}

// Keep queues the writing of all rows in a type, that of the matrix or E4M3 of a [Folder], to memory of its own beside what the matrix takes. Products that would
// write them, by [Unpacked] or [Folded], read them there from now on.
func (m *Matrix) Keep(s *driver.Stream, t driver.DType) error {
	if err := m.Drop(); err != nil {
		return err
	}
	n, k := m.Shape()
	at, err := m.engine.dev.Alloc(n * k * t.Size())
	if err != nil {
		return err
	}
	r := Rows{To: at, Type: t, Count: n}
	if t == driver.E4M3 {
		_, r.Inverses, err = m.rowScales()
	}
	if err == nil {
		err = m.Rows(s, r)
	}
	if err != nil {
		return errors.Join(err, m.engine.dev.Free(at))
	}
	m.kept = kept{at, t}
	return nil
}

// Kept reports whether rows are kept, and KeptType as what.
func (m *Matrix) Kept() bool             { return m.kept.at != 0 }
func (m *Matrix) KeptType() driver.DType { return m.kept.of }

// ReadKept fills dst with the bytes of rows that are kept, once all that is queued is done.
func (m *Matrix) ReadKept(dst []byte) error { return m.engine.dev.Read(dst, m.kept.at) }

// Drop gives back what is kept, once what uses it is done.
func (m *Matrix) Drop() error {
	at := m.kept.at
	m.kept = kept{}
	return m.engine.dev.Free(at)
}

// rowScales returns the scales of folded rows and their inverses. The first time it waits for all that is queued.
func (m *Matrix) rowScales() (scales, inverses driver.Ptr, err error) {
	n, _ := m.Shape()
	f, ok := m.Tiles.(Folder)
	if !ok {
		return 0, 0, fmt.Errorf("%s cannot be folded", m.Format().Name())
	}
	if m.scales == 0 {
		all, err := f.RowScales(func(i int) ([]byte, error) {
			raw := make([]byte, m.Sizes()[i])
			return raw, m.engine.dev.Read(raw, m.at[i])
		})
		if err != nil {
			return 0, 0, err
		}
		for _, s := range all[:n:n] {
			all = append(all, 1/s)
		}
		if m.scales, err = m.engine.dev.Upload(driver.Bytes(all)); err != nil {
			return 0, 0, err
		}
	}
	return m.scales, m.scales + driver.Ptr(4*n), nil
}

// Rows queues the writing of some rows as numbers.
func (m *Matrix) Rows(s *driver.Stream, r Rows) error {
	n, _ := m.Shape()
	switch {
	case len(m.at) == 0 || m.at[0] == 0:
		return errors.New("the matrix has been closed")
	case r.Type == driver.E4M3 && (r.Inverses == 0 || r.Index != 0 || r.First%16 != 0 || r.To%16 != 0):
		return errors.New("rows in E4M3 want scales, and are of whole tiles")
	case r.Type != m.Type() && r.Type != driver.F32 && r.Type != driver.E4M3:
		return fmt.Errorf("rows of type %v of a matrix of type %v", r.Type, m.Type())
	case r.First < 0 || r.Count < 0 || r.Index == 0 && r.First+r.Count > n:
		return fmt.Errorf("%d rows from row %d of a matrix of %d", r.Count, r.First, n)
	case r.Count == 0:
		return nil
	}
	l, err := m.Tiles.Rows(m.engine.gpu, m.at, r)
	if err != nil {
		return err
	}
	return m.engine.launch(s, l)
}

// RoundToFP8 has products of [fp8.FewestRows] rows of X and more by a matrix round X and what is looked up to E4M3 as package fp8
// does, also where that is slower than 16 bits: it changes results. It reports whether there are kernels for that; without
// any it changes nothing.
func (e *Engine) RoundToFP8(w *Matrix) bool {
	r, ok := w.Tiles.(Rounder)
	if !ok {
		return false
	}
	t := r.RoundToFP8(e.gpu)
	if t == nil {
		return false
	}
	w.Tiles = t
	return true
}

// Joined returns what [Engine.Join] would make of several matrices, or nil.
func Joined(parts ...*Matrix) Tiles {
	first, ok := parts[0].Tiles.(Joiner)
	var all []Tiles
	for _, m := range parts {
		if m.part || len(m.at) == 0 || m.at[0] == 0 {
			return nil
		}
		all = append(all, m.Tiles)
	}
	if !ok {
		return nil
	}
	return first.Join(all)
}

// Join makes one matrix of several that X is multiplied by together, the rows of one behind those of the other. They
// become parts of it: their own memory is given back, and closing them gives back none. It returns nil where the
// matrices differ in more than their rows, or one before the last does not end with a tile.
func (e *Engine) Join(parts ...*Matrix) (*Matrix, error) {
	t := Joined(parts...)
	if t == nil {
		return nil, nil
	}
	all := &Matrix{Tiles: t, engine: e}
	for i, size := range t.Sizes() {
		at, err := e.dev.Alloc(size)
		if err != nil {
			return nil, errors.Join(err, all.Close())
		}
		all.at = append(all.at, at)
		for _, m := range parts {
			size := m.Sizes()[i]
			if err := e.dev.Copy(at, m.at[i], size); err != nil {
				return nil, errors.Join(err, all.Close())
			}
			at += driver.Ptr(size)
		}
	}
	at := append([]driver.Ptr(nil), all.at...)
	for _, m := range parts {
		if err := m.Close(); err != nil {
			return nil, err
		}
		m.at, m.part = append([]driver.Ptr(nil), at...), true
		for i, size := range m.Sizes() {
			at[i] += driver.Ptr(size)
		}
	}
	return all, nil
}
