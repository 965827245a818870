// Package foreign says what another program's format must tell about itself so that lutq can write it: which layers of
// a container it holds without a change, what becomes of the others, and how a model is written in it.
//
// Each format lies in a package of its own, such as formats/ct. Package formats/export lists them and drives them.
// Package foreign/codes reads them.
package foreign

import (
	"context"
	"io"

	"github.com/lutq/lutq/formats/arch"
	"github.com/lutq/lutq/formats/hf"
	"github.com/lutq/lutq/formats/weight"
	"github.com/lutq/lutq/formats/weight/lut"
)

// Target is a format that another program opens.
type Target interface {
	// Name is what the command line calls the target.
	Name() string
	// Format prepares to write a model. It fails where the target has no form for a model
	// like this, whatever its layers are.
	Format(m *Model) (Format, error)
}

// Format is a target that is about to hold a model. Its methods may be called from several
// goroutines, [Format.Write] once and after the others.
type Format interface {
	// Fit says whether the target holds a layer as it is. The matrix has scales and a table,
	// and may be without codes; it is nil for a layer that no table holds.
	Fit(l *Layer, w *lut.Matrix) Fit
	// Anew returns how a layer that does not fit is quantized so that it does. An error says why
	// there is no way: such a layer is stored in 16 or 32 bits.
	Anew(l *Layer) (lut.Format, error)
	// Write writes the files of the model to dir, an empty folder.
	Write(ctx context.Context, dir string, s Source) error
}

// OwnError is the error of [Format.Anew] for a layer that the format quantizes itself, from
// [Source.Weights]. The layer is [Dense] then.
type OwnError struct {
	Type string // what in
}

func (e *OwnError) Error() string { return "quantized anew to " + e.Type }

// Warner is a format that knows of clients that do not take all that it holds.
type Warner interface {
	// Warnings returns a line for each such thing about the model, whose layers' forms are known.
	Warnings() []string
}

// Typer is a format that has types of its own, of which a matrix may not get the one that was asked for.
type Typer interface {
	// Types returns what matrices are written in, when the layers' forms are known.
	Types() []Written
}

// Written are matrices that are written in one type.
type Written struct {
	Type     string `json:"type"`
	Matrices int    `json:"matrices"`
	Why      string `json:"why,omitempty"` // where they were to be of another
}

// Universal is a target that takes any model, and not only one that lutq has quantized.
type Universal interface{ Universal() }

// Hinter is a target for whose layers there is no preset of quantize.
type Hinter interface {
	// Hint says what makes layers that fit, and what becomes of others with --requantize.
	Hint() string
}

// Lacker is a format whose programs have no place for something that a model has beside its weights.
type Lacker interface {
	// Lacks returns what they have, as in "no rope type dynamic".
	Lacks() []string
}

// Rounder is a format that may write kept tensors with fewer digits than they have.
type Rounder interface {
	// Rounds reports whether it does.
	Rounds() bool
}

// Fit is what becomes of a layer that is stored as it is.
type Fit struct {
	// Why is the reason why the layer does not fit, "" where it does. It names no layer.
	Why string
	// Change is by how much, at most, one of the layer's scales changes, as a part of it: 0
	// where weights stay what they are to the bit.
	Change float64
	// Stored tells that the target takes the layer from [Source.Weights], as the container has it, and so
	// needs no table that holds it.
	Stored bool
	// Dense tells that the target holds the layer's weights themselves, which may change by Change as
	// a part of each.
	Dense bool
}

// Model is what is written.
type Model struct {
	Dir string
	// OpenFile opens one of the files beside the weights; nil is for those of the folder.
	OpenFile func(name string) (io.ReadCloser, error)
	Config   []byte           // config.json, without anything about how weights are quantized
	Decoder  *arch.Decoder    // nil: of no known family
	Why      error            // then
	DType    weight.ScaleType // that weights are computed with: F16, BF16 or F32
	Layers   []*Layer         // that are quantized, in the order of the tensors that store them
	Kept     []*hf.Tensor     // all other tensors, in order
	Side     []string         // base names of the files that are no weights and not config.json
}

// Layer is a quantized layer.
type Layer struct {
	Name string // without a suffix, as in "model.layers.0.mlp.up_proj"
	N, K int
	// Experts, if not 0, is how many matrices of N/Experts rows each a stack has that the model
	// has as one tensor, [Experts, N/Experts, K], or with Transposed [Experts, K, N/Experts].
	Experts    int
	Transposed bool
	Tensor     string // of the model, before it was quantized
	Shape      []int  // of that
	Role       arch.Role
	Fuse       string      // layers of the same name here are one matrix in runtimes; "": none
	Stored     weight.Spec // as the container has it
	Offsets    bool        // there: a layer of binary codes may do without

	// Table, Bits and Group, at most K, are those of the matrix that is written; before its form is
	// known, of the matrix that is stored. A layer of binary codes has no table then.
	Table []float32
	Bits  int
	Group int

	Top float32 // no weight of a layer that does not fit is larger; set for [Format.Anew]
	As  Form    // what becomes of it; set for [Format.Write]
}

// Form is what becomes of a layer.
type Form int

// The forms: as the container has it; quantized anew; in 16 or 32 bits.
const (
	AsIs Form = iota
	Anew
	Dense
)

// Round finds the codes and scales of n rows of weights and writes them to parts, which lie as [lut.Kind.Parts] has them.
type Round = func(parts [][]byte, w []float32, n int) error

// Source hands out what is to be written. Its methods may be called from several goroutines.
type Source interface {
	// Model returns what is written.
	Model() *Model
	// Matrix returns a layer that is not [Dense] in its form.
	Matrix(l *Layer) (*lut.Matrix, error)
	// Weights returns a layer of any form as it was stored.
	Weights(l *Layer) (weight.Matrix, error)
	// Rounder returns what rounds rows of weights to a table, see [Round]. Each goroutine needs its own.
	Rounder(f lut.Format) (Round, error)
	// Copy hands the data of a kept tensor to write, piece by piece, and checks that it is what was
	// once written.
	Copy(t *hf.Tensor, write func(p []byte, off int64) error) error
	// Wrote tells of bytes that were written for a layer or a tensor.
	Wrote(bytes int64, name string)
}
