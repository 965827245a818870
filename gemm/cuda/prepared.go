package cuda

import (
	"errors"
	"fmt"

	"github.com/lutq/lutq/gemm/cuda/driver"
	"github.com/lutq/lutq/repack"
)

// Form is an order in which a product reads X.
type Form int

const (
	RowByRow Form = iota // as [Operands] have it
	Columns              // that of prepared.cuh, for lutmany.cu
	Skipping             // the same with the pairs that lutsym.cuh makes, of neighbours but one
	InOrder              // the same with columns as they are, for lutmany.cu by what is kept of every four
	Rounded              // to E4M3, that of lutbytes.cu, for lutfp8.cu
)

// Bytes returns what m rows of k columns take in a form.
func (f Form) Bytes(m, k int) int {
	switch f {
	case Columns, Skipping, InOrder:
		return roundedRows(m) * f.atoms(k) * repack.AtomCols * 2
	case Rounded:
		return roundedBytes(m, k)
	}
	return 2 * m * k
}

// Written reports whether norms, gates and attention of a model write k columns in a form: as Columns, of whole atoms, so that there
// is nothing to fill up.
func (f Form) Written(k int) bool { return f == Columns && k%repack.AtomCols == 0 }

// atoms returns of how many atoms rows of k columns are: where every four columns keep two, of whole ones of what is kept, which are
// two of X.
func (f Form) atoms(k int) int {
	if f == InOrder {
		return 2 * atomsOf(k/2)
	}
	return atomsOf(k)
}

// Form returns how X is read.
func (w Way) Form() Form {
	switch {
	case w.many != manyVariant{}:
		return w.many.form()
	case w.FP8():
		return Rounded
	case w.sparse != sparseMany{}:
		return InOrder
	}
	return RowByRow
}

// Form returns the form in which [Engine.MatMul] with scratch memory multiplies m rows of X, and has to prepare them if they
// are not in it.
func (m *Matrix) Form(rows int) Form { return m.engine.Way(m, rows).Form() }

// Prepare queues the writing of X [m, k], row by row, to memory of f.Bytes(m, k), in a form for a matrix's products, at a multiple
// of 16.
func (e *Engine) Prepare(s *driver.Stream, f Form, t driver.DType, to, x driver.Ptr, m, k int) error {
	if x == 0 || to == 0 || (x|to)%16 != 0 {
		return fmt.Errorf("preparing activations at %#x to %#x: want multiples of 16", uint64(x), uint64(to))
	}
	prepare := func(by compiled, name string, l driver.Launch, args []byte) error {
		l.Programmatic = e.dev.Info.Major >= 9
		return e.launchOther(s, by, name, l, args)
	}
	switch f {
	case Columns, Skipping, InOrder:
		by := lutcolumns{f}
		l, args := by.launch(x, to, m, k, e.dev.Info.SMs)
		return prepare(by, columnsName, l, args)
	case Rounded:
		l, args := bytesLaunch(x, to, m, k)
		return prepare(lutbytes{t}, bytesName, l, args)
	}
	return errors.New("activations row by row need not be prepared")
}

// flagsOf returns the flags by which the workers of a product tell each other of sums: 0 before and after, and of one stream, whose
// products follow each other.
func (e *Engine) flagsOf(s *driver.Stream) (driver.Ptr, error) {
	at, ok := e.flags[s]
	if ok {
		return at, nil
	}
	const n = manyWorkers * mostTiles
	at, err := e.dev.Alloc(4 * n)
	if err != nil {
		return 0, err
	}
	if err := s.Fill32(at, 0, n); err != nil {
		return 0, errors.Join(err, e.dev.Free(at))
	}
	e.flags[s] = at
	return at, nil
}
