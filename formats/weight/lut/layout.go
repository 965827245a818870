package lut

// Layout is a matrix in an order that some kernel reads, which turns back into the canonical
// one bit for bit.
type Layout interface {
	// Shape returns output and input features.
	Shape() (n, k int)
	// Bytes returns the memory that the matrix takes.
	Bytes() int64
	// Matrix returns the canonical form. It fails where fields disagree, or where padding
	// is not 0.
	Matrix() (*Matrix, error)
}
