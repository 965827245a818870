package weight

import "fmt"

// A Kind is a way to store the weight of a linear layer.
type Kind interface {
	// Name is what configurations call the kind.
	Name() string
	// Widths returns the least and the most bits of a weight's code.
	Widths() (least, most int)
	// ScaleTypes returns the types that scales may have.
	ScaleTypes() []ScaleType
	// Fit returns a spec without the fields that say nothing of a layer of this
	// kind, which defaults may have given it.
	Fit(s Spec) Spec
	// Suffix is that of a part that every layer of this kind has, and that no
	// tensor has that is copied.
	Suffix() string
	// Parts returns the tensors that store a layer of n rows and k columns, in the
	// order in which they are written, optional ones last. It fails where there is no such layer.
	Parts(s Spec, n, k int) ([]Part, error)
	// Open returns the matrix that parts hold, whose data are as Parts has them; that of optional
	// parts may be nil or missing. It keeps the data. It fails on data that is no weight: a scale that is not finite, a
	// table that is not ascending.
	Open(s Spec, n, k int, data [][]byte) (Matrix, error)
}

// Part is one of the tensors that store a layer.
type Part struct {
	Suffix   string // of the tensor's name, behind the layer's
	DType    string // as safetensors spell it
	Shape    []int
	Rows     bool // the first axis is the layer's rows
	Per      int  // rows that share an entry of that axis, the last of which may have fewer; 0 is 1
	Optional bool // may be left out
}

// Matrix is the quantized weight of a linear layer.
type Matrix interface {
	// Kind is the name of the matrix's kind.
	Kind() string
	// Shape returns output and input features.
	Shape() (n, k int)
	// Bytes returns what the matrix takes on disk.
	Bytes() int64
	// Validate reports the first disagreement between the matrix's fields. It does not look at
	// the data.
	Validate() error
	// Row writes the k weights of row n to dst. It defines the weight. Several
	// goroutines may call it.
	Row(dst []float32, n int)
	// Rows returns the matrix of n of the rows: first, and every step-th after it.
	Rows(first, step, n int) Matrix
	// Parts returns the data of the parts, as Open takes them.
	Parts() [][]byte
	// CheckPadding reports a bit that is set where nothing is stored.
	CheckPadding() error
	// Farther returns the first column of row n whose code is not that of the
	// nearest value to w, but for rounding, or -1.
	Farther(n int, w []float32) int
}

// CheckShape reports the first thing that no matrix has: no rows or columns, bits out of a range, or
// a group that is longer than a row.
func CheckShape(n, k, bits, group, least, most int) error {
	switch {
	case n <= 0 || k <= 0:
		return fmt.Errorf("shape %d×%d has no elements", n, k)
	case bits < least || bits > most:
		return fmt.Errorf("%d bits a code: want %d to %d", bits, least, most)
	case group <= 0 || group > k:
		return fmt.Errorf("group of %d columns in a row of %d", group, k)
	}
	return nil
}

// Entries returns how many entries n rows have in a part that has rows.
func (p Part) Entries(n int) int {
	per := max(p.Per, 1)
	return (n + per - 1) / per
}

// Several is implemented by matrices whose rows are read faster together.
type Several interface {
	// RowsTo writes n rows from a first one on to dst [n, K], each as Row does. Several goroutines may call it.
	RowsTo(dst []float32, first, n int)
}

// RowsTo writes n rows of a matrix from a first one on to dst [n, K].
func RowsTo(dst []float32, m Matrix, first, n int) {
	if s, ok := m.(Several); ok {
		s.RowsTo(dst, first, n)
		return
	}
	_, k := m.Shape()
	for i := range n {
		m.Row(dst[i*k:(i+1)*k], first+i)
	}
}

// Together is how many rows, from a multiple on, are read at a time where that is faster: kinds have 8 or 128 that are stored together.
const Together = 128

// Reader reads rows of a matrix that come near each other, mostly in order. It is for one goroutine.
type Reader struct {
	m    Matrix
	rows []float32 // [Together, K]
	held int       // which multiple of Together they are from, or -1
}

// NewReader returns a reader of a matrix.
func NewReader(m Matrix) *Reader { return &Reader{m: m, held: -1} }

// Row returns a row as [Matrix.Row] does. It is good until the next call.
func (r *Reader) Row(n int) []float32 {
	rows, k := r.m.Shape()
	s, ok := r.m.(Several)
	if !ok {
		if r.rows == nil {
			r.rows = make([]float32, k)
		}
		r.m.Row(r.rows, n)
		return r.rows
	}
	if r.rows == nil {
		r.rows = make([]float32, min(Together, rows)*k)
	}
	if at := n / Together; at != r.held {
		first := at * Together
		many := min(Together, rows-first)
		s.RowsTo(r.rows[:many*k], first, many)
		r.held = at
	}
	return r.rows[n%Together*k:][:k]
}

// Dequantize returns all weights of a matrix, row by row.
func Dequantize(m Matrix) []float32 {
	n, k := m.Shape()
	w := make([]float32, n*k)
	RowsTo(w, m, 0, n)
	return w
}
