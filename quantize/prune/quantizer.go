package prune

import (
	"fmt"
	"math"
	"slices"

	"github.com/lutq/lutq/formats/weight"
	"github.com/lutq/lutq/formats/weight/lut"
	"github.com/lutq/lutq/formats/weight/lut24"
	"github.com/lutq/lutq/quantize/rounding"
	"github.com/lutq/lutq/quantize/rtn"
)

// Options describe the format that a [Quantizer] writes.
type Options struct {
	lut.Format // of the layer: Group counts all columns

	// Columns are how much the squares of each column count where weights are chosen, at least 0;
	// nil is all alike. A row has as many columns.
	Columns []float32
}

// Dropped is the code of a weight that is not kept.
const Dropped = math.MaxUint8

// A Quantizer turns rows of weights into a pattern, codes and scales. Scales are found for the weights
// that are kept. It keeps scratch memory, so each goroutine needs its own.
type Quantizer struct {
	columns []float32
	kept    *rtn.Quantizer // of the weights that are kept
	format  lut.Format     // of them

	k       int    // columns of the rows fitted
	pattern []byte // of the rows fitted, [rows, PatternBytes]
	weights []float32
	codes   []uint8
	row     []float32
}

// NewQuantizer returns a quantizer for a format, as [rtn.NewQuantizer] does.
func NewQuantizer(o Options) (*Quantizer, error) {
	if o.Group < 1 {
		return nil, fmt.Errorf("group of %d columns", o.Group)
	}
	if err := lut24.CheckColumns(lut24.Chunk, o.Group); err != nil {
		return nil, err
	}
	for i, h := range o.Columns {
		if !(h >= 0) || math.IsInf(float64(h), 0) {
			return nil, fmt.Errorf("column %d counts %v times", i, h)
		}
	}
	of := o.Format
	of.Group = o.Group / lut24.Chunk * lut24.Kept
	kept, err := rtn.NewQuantizer(of)
	if err != nil {
		return nil, err
	}
	return &Quantizer{columns: o.Columns, kept: kept, format: of}, nil
}

// Rows implements [rounding.Quantizer], as [rtn.Quantizer.Rows] does.
func (q *Quantizer) Rows(parts [][]byte, errs []rounding.RowError, w []float32) error {
	if len(errs) == 0 {
		return nil
	}
	if err := q.prune(w, len(errs)); err != nil {
		return err
	}
	if err := q.CheckParts(parts, len(errs), q.k); err != nil {
		return err
	}
	copy(parts[lut24.PatternPart], q.pattern)
	if err := q.kept.Rows(parts[:lut24.PatternPart], errs, q.weights); err != nil {
		return err
	}
	// What is dropped is all error.
	for n := range errs {
		e := &errs[n]
		row, pattern := w[n*q.k:(n+1)*q.k], q.rowPattern(n)
		for i, v := range row {
			if !keeps(pattern, i) {
				e.Add(v, 0)
			}
		}
	}
	if q.columns != nil {
		q.outputs(parts, errs, w)
	}
	return nil
}

// outputs adds to rows' errors what their outputs are off by, as far as the columns' squares say.
func (q *Quantizer) outputs(parts [][]byte, errs []rounding.RowError, w []float32) {
	m := q.matrix(parts, len(errs))
	q.row = slices.Grow(q.row[:0], q.k)[:q.k]
	for n := range errs {
		m.Row(q.row, n)
		for i, v := range w[n*q.k : (n+1)*q.k] {
			h, d := float64(q.columns[i]), float64(v)-float64(q.row[i])
			errs[n].Output += h * float64(v) * float64(v)
			errs[n].OutputSquared += h * d * d
		}
	}
}

// matrix returns rows as their parts hold them.
func (q *Quantizer) matrix(parts [][]byte, n int) *lut24.Matrix {
	return &lut24.Matrix{Pattern: parts[lut24.PatternPart], Kept: &lut.Matrix{
		N: n, K: q.k / lut24.Chunk * lut24.Kept, Bits: q.format.Codebook.Bits(), Group: min(q.format.Group, q.k/lut24.Chunk*lut24.Kept), ScaleType: q.format.ScaleType,
		Codes: parts[lut.CodesPart], Scales: parts[lut.ScalesPart], Codebook: q.format.Codebook.Values,
	}}
}

// CheckParts reports parts that n rows of k columns have no place in.
func (q *Quantizer) CheckParts(parts [][]byte, n, k int) error {
	if err := rounding.CheckParts(parts, map[int]int{lut24.PatternPart: n * lut24.PatternBytes(k)}); err != nil {
		return err
	}
	return q.kept.CheckParts(parts[:lut24.PatternPart], n, k/lut24.Chunk*lut24.Kept)
}

// Shared implements [rounding.Quantizer].
func (q *Quantizer) Shared(parts [][]byte) { q.kept.Shared(parts[:lut24.PatternPart]) }

// prune sets the pattern of n rows and gathers what they keep.
func (q *Quantizer) prune(w []float32, n int) error {
	q.k = len(w) / n
	if err := lut24.CheckColumns(q.k, lut24.Chunk); err != nil {
		return err
	}
	if q.columns != nil && len(q.columns) != q.k {
		return fmt.Errorf("%d columns count for rows of %d", len(q.columns), q.k)
	}
	size := lut24.PatternBytes(q.k)
	q.pattern = slices.Grow(q.pattern[:0], n*size)[:n*size]
	clear(q.pattern)
	q.weights = slices.Grow(q.weights[:0], len(w)/lut24.Chunk*lut24.Kept)[:len(w)/lut24.Chunk*lut24.Kept]
	for r := range n {
		row, pattern := w[r*q.k:(r+1)*q.k], q.rowPattern(r)
		for i, v := range row {
			if v-v != 0 {
				return &rounding.NotFiniteError{Row: r, Col: i, Value: v}
			}
		}
		for c := range q.k / lut24.Chunk {
			var score [lut24.Chunk]float64
			for i := range score {
				v := float64(row[lut24.Chunk*c+i])
				score[i] = v * v
				if q.columns != nil {
					score[i] *= float64(q.columns[lut24.Chunk*c+i])
				}
			}
			lut24.SetNibble(pattern, c, lut24.Choose(score))
		}
		lut24.Gather(q.weights[r*q.k/lut24.Chunk*lut24.Kept:][:q.k/lut24.Chunk*lut24.Kept], row, pattern)
	}
	return nil
}

func (q *Quantizer) rowPattern(n int) []byte {
	size := lut24.PatternBytes(q.k)
	return q.pattern[n*size : (n+1)*size]
}

// keeps reports whether a pattern keeps a column.
func keeps(pattern []byte, col int) bool {
	p, i := lut24.Nibble(pattern, col/lut24.Chunk), uint8(col%lut24.Chunk)
	return i == p&3 || i == p>>2
}

// Fit chooses what n rows of weights keep, and finds the scales of that, for others to choose codes. Both are
// kept until the next call.
func (q *Quantizer) Fit(w []float32, n int) error {
	if err := q.prune(w, n); err != nil {
		return err
	}
	return q.kept.Fit(q.weights, n)
}

// Wants returns what [rounding.RowError] wants for one of the rows fitted.
func (q *Quantizer) Wants(row int) weight.ScaleType { return q.kept.Wants(row) }

// Keep chooses anew what a chunk of one of the rows fitted keeps, which begins with a column and has the
// weights v: those whose squares are largest where they count h.
func (q *Quantizer) Keep(row, col int, v []float32, h []float64) {
	var score [lut24.Chunk]float64
	for i := range score {
		score[i] = float64(v[i]) * float64(v[i]) * h[i]
	}
	pattern, c := q.rowPattern(row), col/lut24.Chunk
	pattern[c/2] &^= 0xf << (c % 2 * 4)
	lut24.SetNibble(pattern, c, lut24.Choose(score))
}

// Nearest returns the code nearest to w in a column of one of the rows fitted, and the weight that it
// stands for: [Dropped] and 0 where the column is not kept.
func (q *Quantizer) Nearest(row, col int, w float32) (code uint8, stored float32) {
	if !keeps(q.rowPattern(row), col) {
		return Dropped, 0
	}
	return q.kept.Nearest(row, col/lut24.Chunk*lut24.Kept, w)
}

// Store writes one of the rows fitted, with a code for each column of which two of each chunk are not
// [Dropped], as row to of parts.
func (q *Quantizer) Store(parts [][]byte, to, row int, codes []uint8) {
	size := lut24.PatternBytes(len(codes))
	pattern := parts[lut24.PatternPart][to*size : (to+1)*size]
	clear(pattern)
	q.codes = q.codes[:0]
	for c := range len(codes) / lut24.Chunk {
		var nibble uint8 // a column enters above, and leaves room for the one before it
		for i, code := range codes[lut24.Chunk*c:][:lut24.Chunk] {
			if code != Dropped {
				nibble, q.codes = nibble>>2|uint8(i)<<2, append(q.codes, code)
			}
		}
		lut24.SetNibble(pattern, c, nibble)
	}
	q.kept.Store(parts[:lut24.PatternPart], to, row, q.codes)
}
