package cuda

import (
	"errors"
	"fmt"

	"github.com/lutq/lutq/formats/weight"
	"github.com/lutq/lutq/gemm/cuda/driver"
)

// Family is a family of kernels: how weights of a kind lie in a GPU's memory, and how they are multiplied by.
type Family interface {
	// Name names the family. No two have the same.
	Name() string
	// Kind is that of the weights. Several families may be of one kind.
	Kind() string
	// Formats returns every format that there are kernels for.
	Formats() []Format
	// Pack lays a matrix out for activations of a type, which takes no GPU, and returns what becomes of it in the GPU's memory. It
	// returns nil where no kernel is compiled for such a matrix.
	Pack(m weight.Matrix, t driver.DType) (Tiles, [][]byte, error)
	// Like returns what Pack does of an N×K matrix, without numbers: for choices, which hang on nothing else.
	Like(f Format, n, k int) Tiles
}

// Grouper is implemented by families whose formats have other groups than their matrices.
type Grouper interface {
	// Columns returns how many columns of a matrix a group of a format has, 0 if all.
	Columns(f Format) int
}

// Columns returns how many columns of a matrix a group has in a format of a family, 0 if all.
func Columns(of Family, f Format) int {
	if g, ok := of.(Grouper); ok {
		return g.Columns(f)
	}
	return f.Group
}

// Holder is implemented by families whose kernels hold matrices otherwise.
type Holder interface {
	// Held returns a matrix as kernels for activations of a type hold it: what they look up is rounded to that.
	Held(m weight.Matrix, t driver.DType) weight.Matrix
}

// Namer is implemented by families of which several ways to multiply can be asked for by name.
type Namer interface {
	// Names returns the names, first that of [InTurns].
	Names() []string
	// Named returns the way of a name, for a format, or nil.
	Named(name string, f Format) Way
}

// Label names a way among those of all families.
func Label(by Way) string {
	if l, ok := by.(interface{ Label() string }); ok {
		return l.Label()
	}
	return by.String()
}

// RoundsToFP8 reports whether X and what is looked up are rounded to E4M3.
func RoundsToFP8(by Way) bool {
	f, ok := by.(interface{ FP8() bool })
	return ok && f.FP8()
}

// Tiles is a matrix as a family lays it out: what is known of it when its numbers are in the GPU's memory. [Base] has the methods that
// a family of few kernels needs not write.
type Tiles interface {
	// Shape returns [N, K].
	Shape() (n, k int)
	// Format is what kernels are compiled for.
	Format() Format
	// Sizes returns what each of the parts takes of the GPU's memory, in bytes.
	Sizes() []int
	// Runs returns nil where a GPU has kernels to multiply by them, or else why not: [ErrNoKernel] where the weights are to be
	// multiplied by as numbers instead.
	Runs(g GPU) error

	// AtOnce returns how many of m rows of X one launch multiplies.
	AtOnce(g GPU, m int) int
	// Configs returns how m rows of X, as many as AtOnce has, can be multiplied in one launch, the best guess first.
	Configs(g GPU, m int) ([]Way, error)
	// Others returns configurations that Configs leaves out though they can multiply so, for tests.
	Others(g GPU, m int) []Way
	// Twins returns read-only twins of Configs: they read the same bytes in the same order, without arithmetic or a result.
	Twins(g GPU, m int) []Way
	// Ways returns what is worth trying for m rows of X, more than [MaxRows], the best guess first.
	Ways(g GPU, m int) []Way
	// Order tells in which order sums are added for m rows of X under one of Configs or Others: those of the same order give the same bits.
	Order(g GPU, by Way, m int) int

	// Kernels returns what is launched for m rows of X.
	Kernels(g GPU, by Way, m int) []driver.Kernel
	// RowKernels returns what Rows launches.
	RowKernels() []driver.Kernel
	// Launch returns how o.M rows of X are multiplied, up to as many as one launch takes, by a matrix whose parts are at some addresses.
	Launch(g GPU, at []driver.Ptr, by Way, o Operands) ([]Launch, error)
	// Rows returns how rows are written as numbers.
	Rows(g GPU, at []driver.Ptr, r Rows) (Launch, error)

	// Key is a value that can be compared, of what choices for so many rows of X hold for. Its digits are part of what is on disk.
	Key(g GPU, rows int) any
}

// ErrNoKernel is of weights that a GPU has no kernel for, but that can be multiplied by as numbers.
var ErrNoKernel = errors.New("no kernel")

// Way is how rows of X are multiplied: a value that can be compared, which says nothing of the matrix.
type Way interface {
	// String is its name among the ways for the same rows, and what is kept of a choice.
	String() string
	// Rows returns how many rows of X one launch takes at most, 0 if any number.
	Rows() int
	// Needs returns what a product of m rows by an n×k matrix takes besides operands.
	Needs(n, k, m int) Needs
}

// Needs is what a product takes besides operands.
type Needs struct {
	Form  Form // that it reads X in; nil: row by row
	Sums  int  // bytes of scratch memory
	Flags bool // [FlagWords] words that are 0 before and after
	Left  bool // [LeftWords] of them instead
}

// Scratch returns the bytes of scratch memory with room for m rows of k numbers in the form.
func (n Needs) Scratch(m, k int) int {
	if n.Form == nil {
		return n.Sums
	}
	return n.Sums + n.Form.Bytes(m, k)
}

// FlagWords are the words by which the blocks of a product tell each other of sums.
const FlagWords = 132 * 16

// LeftWords are the words in which blocks leave each other sums without flags: 96 KiB for each of 132 workers.
const LeftWords = 132 * 96 << 10 / 4

// Form is an order other than row by row in which products read X: a value that can be compared.
type Form interface {
	// Bytes returns what m rows of k columns take.
	Bytes(m, k int) int
	// Written reports whether norms, gates and attention of a model write k columns so.
	Written(k int) bool
	// Prepare returns how X [m, k] of a type is written so to an address.
	Prepare(g GPU, t driver.DType, to, x driver.Ptr, m, k int) Launch
}

// Kernel is the source of a kernel: a value that can be compared, by which what is compiled is found.
type Kernel interface{ Kernel() driver.Kernel }

// Launch is a kernel's launch.
type Launch struct {
	driver.Launch // programmatic where the GPU has that
	Of            Kernel
	Function      string
	Args          [][]byte // the memory of each argument, in C's layout
}

// Rows says which rows of a matrix are written as numbers, and where.
type Rows struct {
	To    driver.Ptr   // [Count, K]
	Type  driver.DType // of the numbers: the format's or F32; or E4M3 of a [Folder], in terms of the scale of each row
	Index driver.Ptr   // of the rows' numbers, 32 bits each; or 0:
	First int          // the first of rows that follow each other, of whole tiles in E4M3
	Count int

	Inverses driver.Ptr // float32 [N], of the scales of rows in E4M3
}

// Gater is implemented by tiles that have kernels with gates.
type Gater interface {
	// Gated returns how m rows of X are multiplied with gates by the kernel that is chosen without. Of up to [MaxRows] rows sums have the bits that
	// they have then.
	Gated(g GPU, chosen Way, m int, by Gates) (Way, error)
}

// Mixer is implemented by tiles that may be matrices of several experts.
type Mixer interface {
	// Mixed returns how groups of up to m rows of X, at most [GroupRows], are multiplied by so many experts, with gates or without.
	Mixed(g GPU, experts, m int, by Gates) (Way, error)
}

// Joiner is implemented by tiles that may become parts of one matrix.
type Joiner interface {
	// Join returns the matrix that has the rows of some one behind the other, whose parts are theirs one behind the other, or nil
	// where they differ in more than rows. The tiles are all of its type.
	Join(all []Tiles) Tiles
}

// Rounder is implemented by tiles that may be multiplied in E4M3.
type Rounder interface {
	// RoundToFP8 returns the same weights, multiplied by [fp8.FewestRows] rows of X and more so, or nil where there are no kernels for that.
	RoundToFP8(g GPU) Tiles
}

// Folder is implemented by tiles whose rows may be written in E4M3 in terms of a scale each, as package fp8 folds them.
type Folder interface {
	// Folds reports whether products of [fp8.FoldedRows] rows of X and more are by such rows.
	Folds() bool
	// RowScales returns the scales [N], from the parts as they are in the GPU's memory.
	RowScales(part func(i int) ([]byte, error)) ([]float32, error)
}

// Waver is implemented by tiles that tell how evenly work is divided.
type Waver interface {
	// WaveEfficiency returns the mean work of a multiprocessor over the work of the fullest, for m rows of X.
	WaveEfficiency(g GPU, by Way, m int) (float64, error)
}

// Base has what tiles of few kernels have in common. One way takes up to [MaxRows] rows, and nothing is measured.
type Base struct {
	Family string
	N, K   int
	Of     Format
	Parts  []int // bytes
}

// Shape implements [Tiles].
func (b *Base) Shape() (n, k int) { return b.N, b.K }

// Format implements [Tiles].
func (b *Base) Format() Format { return b.Of }

// Sizes implements [Tiles].
func (b *Base) Sizes() []int { return b.Parts }

// AtOnce implements [Tiles].
func (b *Base) AtOnce(_ GPU, m int) int { return Parts(m, MaxRows) }

// Others implements [Tiles].
func (b *Base) Others(GPU, int) []Way { return nil }

// Order implements [Tiles].
func (b *Base) Order(GPU, Way, int) int { return 0 }

// mostTurns are the rows of X up to which launches of [MaxRows] are taken to be faster than numbers and cuBLAS: as an H200 has it by
// binary codes at 28672×4096 and 4 bits.
const mostTurns = 48

// Ways implements [Tiles].
func (b *Base) Ways(_ GPU, m int) []Way {
	if m > mostTurns {
		return []Way{AsNumbers}
	}
	return []Way{InTurns}
}

// Key implements [Tiles].
func (b *Base) Key(_ GPU, rows int) any {
	return struct {
		family string
		format Format
		n, k   int
		rows   int
	}{b.Family, b.Of, b.N, b.K, rows}
}

// Foreign is the error of a way that is none of some tiles'.
func Foreign(by Way, t Tiles) error {
	return fmt.Errorf("%v is no way to multiply by %s", by, t.Format().Name())
}
