package rounding

import (
	"fmt"

	"github.com/lutq/lutq/formats/weight"
	"github.com/lutq/lutq/formats/weight/trellis"
)

// A Quantizer turns the rows of one layer into the data of its parts. Rows do
// not depend on each other. It keeps scratch memory, so each goroutine needs its
// own.
type Quantizer interface {
	// Rows quantizes len(errs) rows of equal length in w. parts are those of the layer, in
	// the order of [weight.Kind.Parts]: of each that has rows it writes as many. It writes the
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
	Wants weight.ScaleType
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

// Readers are layers that read the same, by the paths that they are stored under. A stack of experts comes alone, with statistics of
// each expert, and others with one.
type Readers struct {
	Layers []string
	Stats  []Stats
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

	// Readers is how many rows of weights there are to be retargeted, 0 where that is not known, see Apart.
	Readers int

	// Part and Parts say which of several devices that prepare the same this is, and how many they are, 0 being one. Each makes some
	// rows of what weights are retargeted by, see Rows.
	Part, Parts int

	// Block is the number of columns that are rounded together, so that none feeds its error into others of its block: those of a
	// ring, for [Feedback.Rings], or 0. Order has them beside each other.
	Block int
}

// Apart reports whether rows of weights, which are few beside the columns, are each retargeted by solving for them, and not by a matrix
// that is solved for beforehand. The device's statistics have to stay for as long as the feedback then.
func (o FeedbackOptions) Apart() bool {
	return o.Retarget > 0 && o.Block == 0 && o.Readers > 0 && 2*o.Readers <= len(o.Order)
}

// RetargetParts is how many parts a device makes what weights are retargeted by in, so that its numbers do not depend on how many devices
// share them.
const RetargetParts = 4

// Rows returns which of the k rows of what weights are retargeted by are the device's: some of the parts.
func (o FeedbackOptions) Rows(k int) (from, to int) {
	size, parts := (k+RetargetParts-1)/RetargetParts, max(o.Parts, 1)
	return min(o.Part*RetargetParts/parts*size, k), min((o.Part+1)*RetargetParts/parts*size, k)
}

// Rotator are statistics on a device that can be turned there.
type Rotator interface {
	Device
	// Rotated returns those of inputs whose columns are multiplied by factors and mixed by normed Hadamard matrices, see
	// [trellis.Blocks]. Their feedback takes weights as they are, and turns them as well.
	Rotated(factors []float32) (Rotated, error)
}

// Rotated are statistics that were turned. They take as much memory as those that they were made of, until Close.
type Rotated interface {
	Device
	Close()
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
	// Tables does all for rows of weights: it retargets them, searches their scales, and rounds them as Round does. It reports
	// whether the device can; if not, nothing was done.
	Tables(t Tables, w []float32) (ok bool, err error)
	// Rings rounds rows of weights ring by ring, with the error of each block of columns fed into those after it. It retargets them
	// itself.
	Rings(r Rings, w []float32) error
	// Close gives the device's memory back.
	Close()
}

// Rounded are rows of weights that were rounded.
type Rounded struct {
	Codes []uint8   // [rows, K]
	Loss  []float32 // as RowError has it, of each row
}

// Search says how a table's scales are found: as package rtn does, whose search a device repeats to the bit. Scales that are tried are
// multiples of that which brings a group's largest weight to the table's end.
type Search struct {
	Values      []float32 // of the table, rising
	Mids        []float32 // between them, one less: x has the code that is the number of mids below it
	Max, Reach  float32   // the largest magnitude, and what the largest weight is brought to
	Group       int       // of columns
	Type        weight.ScaleType
	Absmax      bool // nothing is tried
	Signed      bool // negative scales are tried as well
	UpperEnd    bool // the largest value is the largest magnitude
	First, More int  // how many of Coarse are tried at first, and then at a time for as long as the last is best
	Refine      int  // how often a scale is fitted to its codes, at most
	Coarse      []float32
	Fine        []float32 // around the best two

	// Of types of a byte, what bytes without sign stand for, rising, and the least magnitude that is stored as each.
	Bytes, Least []float32
}

// Tables are rows of weights that become codes of a table, and holds what became of them.
type Tables struct {
	Search *Search

	Codes  []uint8     // [rows, K]: those that errors were fed into, or the nearest ones where those lose no less
	Tops   []uint32    // [rows, groups]: the bits of a group's largest magnitude, in weights that make up for earlier losses
	Wanted []float32   // [rows, groups]: scales, not rounded to their type yet
	Sums   []TableSums // of each row
}

// TableSums are those over a row, of its weights w, those that make up for earlier losses, g, and ŵ.
type TableSums struct {
	Energy, Squared         float64 // Σ w², Σ (w-ŵ)²
	Goal, Missed            float64 // Σ g², Σ (g-ŵ)²
	Fed, NearestLoss, Loss0 float32 // what is lost with errors fed, by the nearest codes, and if all were 0: see [Feedback]
}

// Rings says how rows of weights become rings, and holds what became of them.
type Rings struct {
	Code *trellis.Code
	// Scales returns what each row is divided by, given its mean of squares.
	Scales func(means []float32) ([]float32, error)

	Bytes []byte     // of rings: [rows/layout's rows, rings across, bytes of a ring]
	Sums  []RingSums // of each row
}

// RingSums are those over a row, in terms of rotated weights w, those that were aimed at, g, what they were when their turn came,
// v, and ŵ. H is damped, over the number of tokens.
type RingSums struct {
	Squared                    float64 // Σ w²
	Off, OffStored, Stored     float64 // Σ (w-ŵ)², Σ (w-ŵ)·ŵ, Σ ŵ²
	Goal, Missed, MissedStored float64 // Σ g², Σ (g-ŵ)², Σ (g-ŵ)·ŵ
	ByChance                   float64 // Σ H[k,k]·(v-ŵ)², which is what were lost if errors were independent
	Output, OutputMissed, Loss float64 // g·H·gᵀ, g·H·(g-ŵ)ᵀ, (g-ŵ)·H·(g-ŵ)ᵀ
}

// ScaleError reports a scale, or another factor of a group, that is too large for its type.
type ScaleError struct {
	Row, Group int
	What       string // the scale, or a factor
	Value      float32
	Type       weight.ScaleType
}

func (e *ScaleError) Error() string {
	return fmt.Sprintf("row %d: %s of group %d does not fit %v", e.Row, e.What, e.Group, e.Type)
}

// Wants returns the type that holds it, or Type if there is none.
func (e *ScaleError) Wants() weight.ScaleType { return e.Type.Wider(e.Value) }

// CheckParts reports the first of a layer's parts that has not the size it should have: those of a
// quantizer's rows, in the order of [weight.Kind.Parts].
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
