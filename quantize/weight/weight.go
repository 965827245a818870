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

// Dequantize returns all weights of a matrix, row by row.
func Dequantize(m Matrix) []float32 {
	n, k := m.Shape()
	w := make([]float32, n*k)
	for i := range n {
		m.Row(w[i*k:(i+1)*k], i)
	}
	return w
}

// A Quantizer turns the rows of one layer into the data of its parts. Rows do
// not depend on each other. It keeps scratch memory, so each goroutine needs its
// own.
type Quantizer interface {
	// Rows quantizes len(errs) rows of equal length in w. parts are those of the layer, in
	// the order of [Kind.Parts]: of each that has rows it writes as many. It writes the
	// error of each row to errs.
	//
	// It fails with a [NotFiniteError] on a weight that is NaN or infinite, its
	// row counted from the first one given.
	Rows(parts [][]byte, errs []RowError, w []float32) error
	// Shared writes the parts that have no rows.
	Shared(parts [][]byte)
}

// RowError is what quantization did to a row of weights.
type RowError struct {
	Energy  float64 // Σ w²
	Squared float64 // Σ (w - ŵ)²

	// By methods that look at what the layer reads, the squared error that the row's
	// output is left with, as a mean over the tokens, and what it were if
	// each weight were rounded to nearest. The two are equal where it was.
	Loss, NearestLoss float64

	// By the same methods, the squares of the row's output and of what it is off by, in one unit for all rows of a layer:
	// w·H·wᵀ and (w - ŵ)·H·(w - ŵ)ᵀ, H without damping, or its diagonal where no more is known. Of a row that makes up
	// for errors of its inputs, w is what does.
	Output, OutputSquared float64

	// Wants is the scale type that would hold the row's scales, where those of groups with a hundredth
	// of its energy or more are too small for the type they have; else 0. It is that very type where
	// there is no wider one.
	Wants ScaleType
}

// Add takes in a weight and what is stored of it.
func (e *RowError) Add(w, stored float32) {
	d := float64(w) - float64(stored)
	e.Energy += float64(w) * float64(w)
	e.Squared += d * d
}

// NotFiniteError reports a weight that no code can stand for.
type NotFiniteError struct {
	Row, Col int
	Value    float32
}

func (e *NotFiniteError) Error() string {
	return fmt.Sprintf("weight [%d, %d] is %v", e.Row, e.Col, e.Value)
}

// Stats are what a layer reads on a text: x̂ are the inputs in the model whose
// blocks before are quantized, x those in the original. They may lie in a device's memory until
// they are asked for.
type Stats interface {
	K() int      // elements of an input
	Tokens() int // inputs that were seen
	// Diagonal returns Σ x̂ₖ², [K].
	Diagonal() ([]float32, error)
	// Hessian returns Σ x̂·x̂ᵀ, [K, K].
	Hessian() ([]float32, error)
	// Drift returns Σ (x − x̂)·x̂ᵀ, [K, K], or nil where the original was not run.
	Drift() ([]float32, error)
}

// Device are statistics on a device that columns can be rounded on as well, see package
// gptq.
type Device interface {
	Stats
	// Feedback prepares for that. It returns nil if the Hessian, with what is added to its
	// diagonal, is not positive definite.
	Feedback(o FeedbackOptions) (Feedback, error)
}

// FeedbackOptions say how to prepare for rounding columns.
type FeedbackOptions struct {
	Order  []int   // the column that comes i-th
	Add    float32 // to the diagonal
	Tokens int     // that losses are a mean over

	Retarget float32 // the share of the way to the weights that make up for earlier losses, 0 for none
}

// Feedback rounds the columns of layers that read one state on a device. Goroutines may share it.
type Feedback interface {
	// Retarget changes rows of weights to those that make up for earlier losses.
	Retarget(w []float32) error
	// Round rounds rows of weights to the nearest of count levels, which each group of columns in
	// a row has: [rows, groups, count]. It does so with each column's error fed into those
	// after it, and without. levels' index is the code, and the lower one the nearer of equals. outputs is the
	// loss of weights that are all 0, of each row.
	Round(fed, nearest Rounded, outputs, w, levels []float32, group, count int) error
	// Close gives the device's memory back.
	Close()
}

// Rounded are rows of weights that were rounded.
type Rounded struct {
	Codes []uint8   // [rows, K]
	Loss  []float32 // as RowError has it, of each row
}

// ScaleError reports a scale, or another factor of a group, that is too large for its type.
type ScaleError struct {
	Row, Group int
	What       string // the scale, or a factor
	Value      float32
	Type       ScaleType
}

func (e *ScaleError) Error() string {
	return fmt.Sprintf("row %d: %s of group %d does not fit %v", e.Row, e.What, e.Group, e.Type)
}

// Wants returns the type that holds it, or Type if there is none.
func (e *ScaleError) Wants() ScaleType { return e.Type.wider(e.Value) }

// CheckParts reports the first of a layer's parts that has not the size it should have: those of a
// quantizer's rows, in the order of [Kind.Parts].
func CheckParts(parts [][]byte, sizes map[int]int) error {
	for i, part := range parts {
		if size, ok := sizes[i]; ok && len(part) != size {
			return fmt.Errorf("part %d takes %d bytes: want %d", i, len(part), size)
		}
	}
	for i := range sizes {
		if i >= len(parts) {
			return fmt.Errorf("%d parts: want %d", len(parts), i+1)
		}
	}
	return nil
}
