package cuda

import (
	"slices"

	"github.com/lutq/lutq/formats/weight"
	"github.com/lutq/lutq/formats/weight/bcq"
	"github.com/lutq/lutq/formats/weight/lut"
	"github.com/lutq/lutq/formats/weight/lut24"
	"github.com/lutq/lutq/gemm/cuda/driver"
	"github.com/lutq/lutq/repack"
)

// Packed is a quantized matrix of any kind in a GPU's memory, in the layout of the kernels of its kind. Its methods are
// called inside [driver.Device.Do].
type Packed interface {
	// Shape returns [N, K].
	Shape() (n, k int)
	// Type returns that of the activations that it is multiplied by, F16 or BF16.
	Type() driver.DType
	// Bytes returns what the matrix takes of the GPU's memory, which a multiplication reads once.
	Bytes() int64
	// MatMul queues Y = X·Ŵᵀ + Bias, with scratch memory of ScratchBytes or without.
	MatMul(s *driver.Stream, o Operands) error
	// ScratchBytes returns the scratch memory that MatMul wants for m rows of X, 0 if it does without.
	ScratchBytes(m int) int
	// Unpacks reports whether a product of m rows of X is taken to be faster by [Unpacked.MatMul] than by MatMul.
	Unpacks(m int) bool
	// Rows queues the writing of count rows to dst [count, K], as numbers of the matrix's type or as F32.
	// The rows are those whose numbers, 32 bits each, lie at index, or where index is 0 those from first on.
	Rows(s *driver.Stream, dst driver.Ptr, out driver.DType, index driver.Ptr, first, count int) error
	// Close frees the matrix.
	Close() error
}

var _ Packed = (*Matrix)(nil)

// Kinds lists the kinds of weight that there are kernels for.
func Kinds() []string { return []string{lut.Name, bcq.Name, lut24.Name} }

// Pack lays a matrix out for the kernels of its kind, which takes no GPU, and returns what uploads it to an engine's, for
// activations of a type; or nil where there is no kernel for it. What uploads returns nil where the GPU has none.
func Pack(m weight.Matrix, t driver.DType) (upload func(*Engine) (Packed, error), err error) {
	switch m := m.(type) {
	case *lut.Matrix:
		if !Fuses(m.K, m.Group, t) {
			return nil, nil
		}
		tiles, err := repack.CUDA(m)
		if err != nil {
			return nil, err
		}
		return func(e *Engine) (Packed, error) { return e.Upload(tiles, t) }, nil
	case *lut24.Matrix:
		if !fusesSparse(m, t) {
			return nil, nil
		}
		tiles, err := repack.SparseCUDA(m)
		if err != nil {
			return nil, err
		}
		return func(e *Engine) (Packed, error) {
			if !e.canSparse(tiles, t) {
				return nil, nil
			}
			return e.UploadSparse(tiles, t)
		}, nil
	case *bcq.Matrix:
		if !Fuses(m.K, m.Group, t) {
			return nil, nil
		}
		if l := TableOf(m, t); l != nil {
			return Pack(l, t)
		}
		tiles, err := repack.BCQ(m)
		if err != nil {
			return nil, err
		}
		return func(e *Engine) (Packed, error) {
			if !e.canBCQ(bcqFormatOf(tiles, t)) {
				return nil, nil
			}
			return e.UploadBCQ(tiles, t)
		}, nil
	}
	return nil, nil
}

// TableOf returns a matrix of binary codes as one of a table, whose kernels are faster, where that stands for the same
// numbers and the table is one of numbers of a type; or nil.
func TableOf(m *bcq.Matrix, t driver.DType) *lut.Matrix {
	l, err := m.LUT()
	if err != nil {
		return nil
	}
	f := Format{Type: t}
	for _, v := range l.Codebook {
		if f.value(f.convert(v)) != v {
			return nil
		}
	}
	return l
}

// Fuses reports whether there is a kernel to multiply activations of a type by rows of k weights in groups: where k
// is a multiple of 32 and the groups are of [weight.Groups] or whole rows.
func Fuses(k, group int, t driver.DType) bool {
	return t != driver.F32 && k%32 == 0 && (group == k || slices.Contains(weight.Groups(), group))
}

// fusesSparse reports whether there is a kernel by what is kept of a matrix, in groups of half as many columns.
func fusesSparse(m *lut24.Matrix, t driver.DType) bool {
	f := Format{Bits: m.Kept.Bits, Group: m.Kept.Group, Scale: m.Kept.ScaleType, Type: t}
	if m.Kept.Group == m.Kept.K {
		f.Group = 0
	}
	f.Scale = heldScale(f.Group, f.Scale)
	_, k := m.Shape()
	return k%32 == 0 && slices.Contains(SparseFormats(), f)
}

// Shape implements [Packed].
func (m *Matrix) Shape() (n, k int) { return m.N, m.K }

// Type implements [Packed].
func (m *Matrix) Type() driver.DType { return m.Format.Type }

// MatMul implements [Packed] by [Engine.MatMul].
func (m *Matrix) MatMul(s *driver.Stream, o Operands) error { return m.engine.MatMul(s, m, o) }

// ScratchBytes implements [Packed] by [Engine.ScratchBytes].
func (m *Matrix) ScratchBytes(rows int) int { return m.engine.ScratchBytes(m, rows) }

// Unpacks implements [Packed] by [Engine.Unpacks].
func (m *Matrix) Unpacks(rows int) bool { return m.engine.Unpacks(m, rows) }
