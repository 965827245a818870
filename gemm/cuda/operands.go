package cuda

import (
	"errors"
	"fmt"

	"github.com/lutq/lutq/gemm/cuda/driver"
)

// MaxRows is the number of rows of X that one launch multiplies whatever the matrix and the GPU.
const MaxRows = 16

// GroupRows is how many rows of Y a group of [Experts] has at most.
const GroupRows = 8

// Operands are the dense sides of a multiplication, in the matrix's type and
// row-major: X [M, K] and Y [M, N]; Bias [N] may be 0. Addresses are multiples of
// 16 bytes; Y and Bias need only their type's alignment.
type Operands struct {
	Y, X, Bias driver.Ptr
	M          int

	// Scratch is memory of [Engine.ScratchBytes], at a multiple of 16, or 0. Products that share it are in one stream.
	Scratch driver.Ptr
	// Form is how X lies: nil is row by row, else that of [Engine.Needs], in which case Scratch need be of its sums only.
	Form Form

	Gates   Gates
	Experts *Experts // that Ŵ is of, or nil

	Step *Step // that the product is one of, or nil

	// Flags are those of [Needs], or what is left there, which the engine fills in.
	Flags driver.Ptr
}

// Gates says that the first half of the rows of a matrix makes gates, which are rounded, activated, and multiplied by the
// results of the second half, rounded: Y is [M, N/2] then. The activation is compiled into a kernel.
type Gates struct {
	Activation   string  // by its name in package arch; "": there are no gates
	Alpha, Limit float32 // of the activation
	Into         Form    // that Y is written in, at a multiple of 16, for another product to read; nil: row by row
}

// Experts says that a matrix is several of as many rows each, one behind the other. Rows of Y come in groups, each of which has an
// expert: M is how many a group may have. N is that of an expert, and Bias [Count, N].
type Experts struct {
	Count int

	// Rows are the rows of X, uint32 [rows of Y], that Y's are of; 0: the same ones. Groups is how many there are, and three words
	// that mean nothing; and for each an expert, the first row of Y, how many, at most [GroupRows], and a word that means nothing: uint32
	// [1 + groups, 4]. What makes both is the kernel in front of the product, or where Rows is 0 one before that.
	Rows, Groups driver.Ptr

	Most int // groups that there may be
}

func (o Operands) check(w *Matrix) error {
	switch {
	case len(w.at) == 0 || w.at[0] == 0:
		return errors.New("the matrix has been closed")
	case o.M < 1:
		return fmt.Errorf("%d rows of activations", o.M)
	case o.X == 0 || o.Y == 0:
		return errors.New("no memory for activations or results")
	case o.Form != nil:
		return errors.New("activations are prepared for another product")
	case o.X%16 != 0:
		return fmt.Errorf("activations at %#x: want a multiple of 16", uint64(o.X))
	case o.Y%2 != 0 || o.Bias%2 != 0:
		return errors.New("results or bias at an odd address")
	case o.Gates.Into != nil && o.Y%16 != 0:
		return fmt.Errorf("results in another form than row by row at %#x: want a multiple of 16", uint64(o.Y))
	case o.Scratch%16 != 0:
		return fmt.Errorf("scratch memory at %#x: want a multiple of 16", uint64(o.Scratch))
	case o.Experts != nil && (o.Experts.Groups == 0 || o.Experts.Most < 1):
		return errors.New("no groups of rows")
	}
	return nil
}

// each calls f with up to so many rows at a time of a product by an n×k matrix.
func each(n, k int, o Operands, rows int, f func(Operands) error) error {
	for m := 0; m < o.M; m += rows {
		part := o
		part.Y, part.X, part.M = o.Y+driver.Ptr(2*m*n), o.X+driver.Ptr(2*m*k), min(rows, o.M-m)
		if err := f(part); err != nil {
			return err
		}
	}
	return nil
}

// Parts returns how many of m rows of X each of several launches takes, of up to most; the last may have fewer.
func Parts(m, most int) int {
	launches := (m + most - 1) / most
	return (m + launches - 1) / launches
}
