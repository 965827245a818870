package lookup

import (
	"fmt"

	"github.com/lutq/lutq/formats/weight"
	"github.com/lutq/lutq/formats/weight/bcq"
	"github.com/lutq/lutq/formats/weight/lut"
)

// Weights are a matrix as it is multiplied through tables: planes of places in them, and
// factors of the planes for each group of columns.
type Weights struct {
	m       *bcq.Matrix
	index   []uint8   // [N, bits, tables of a row], remapped
	alphas  []float32 // [N, groups, bits]
	offsets []float32 // [N, groups]
}

// Planes returns a matrix of binary codes, or one whose table has equal steps as that, which
// has as many planes as bits. It fails on any other.
func Planes(m weight.Matrix) (*bcq.Matrix, error) {
	if err := m.Validate(); err != nil {
		return nil, err
	}
	b, ok := m.(*bcq.Matrix)
	if l, isLUT := m.(*lut.Matrix); isLUT {
		var err error
		if b, err = bcq.FromLUT(l, weight.F32); err != nil {
			return nil, fmt.Errorf("tables of activations take equal steps or binary codes, other values of %d bits %d planes: %w", l.Bits, 1<<l.Bits-1, err)
		}
	} else if !ok {
		return nil, fmt.Errorf("tables of activations take equal steps or binary codes: the weights are of kind %s", m.Kind())
	}
	if b.Group < b.K && b.Group%Columns != 0 {
		return nil, fmt.Errorf("groups of %d columns: tables are of %d", b.Group, Columns)
	}
	return b, nil
}

// NewWeights returns the weights of a matrix that [Planes] takes.
func NewWeights(m weight.Matrix) (*Weights, error) {
	b, err := Planes(m)
	if err != nil {
		return nil, err
	}
	w := &Weights{m: b}
	per := ceilDiv(b.K, Columns)
	w.index = make([]uint8, b.N*b.Bits*per)
	for i := range b.N * b.Bits {
		plane := b.Planes[i*b.PlaneBytes():][:b.PlaneBytes()]
		for t := range per {
			w.index[i*per+t] = Remap(plane[t/2]>>(t%2*Columns)&(signed-1), Columns)
		}
	}
	w.alphas, w.offsets = make([]float32, b.N*b.Groups()*b.Bits), make([]float32, b.N*b.Groups())
	b.ScaleType.Decode(w.alphas, b.Alphas)
	if b.Offsets != nil {
		b.ScaleType.Decode(w.offsets, b.Offsets)
	}
	return w, nil
}

// Shape returns output and input features.
func (w *Weights) Shape() (n, k int) { return w.m.N, w.m.K }

// Row writes the k weights of row n to dst.
func (w *Weights) Row(dst []float32, n int) { w.m.Row(dst, n) }

// Dot returns the product of a row of activations by row n of the weights. Sums of int8 are exact within the
// tables that share a scale.
func (w *Weights) Dot(t *Tables, row, n int) float32 {
	if t.K != w.m.K {
		panic("lookup: tables of another length")
	}
	per, bits, groups := t.perRow(), w.m.Bits, w.m.Groups()
	sums := t.sums[row*per : (row+1)*per]
	var y float64
	for g := range groups {
		from, to := g*w.m.Group/Columns, min(ceilDiv((g+1)*w.m.Group, Columns), per)
		if z := w.offsets[n*groups+g]; z != 0 {
			var sum float64
			for _, s := range sums[from:to] {
				sum += float64(s)
			}
			y += float64(z) * sum
		}
		for i, a := range w.alphas[(n*groups+g)*bits:][:bits] {
			index := w.index[(n*bits+i)*per:][:per]
			if t.Shared > 0 {
				y += float64(a) * t.plane8(row, index, from, to)
			} else {
				y += float64(a) * t.plane(row, index, from, to)
			}
		}
	}
	return float32(y)
}

// plane sums what a plane chooses of the tables [from, to) of a row.
func (t *Tables) plane(row int, index []uint8, from, to int) float64 {
	index = index[from:to]
	entries := t.entries[row*t.perRow()+from:][:len(index)]
	var sum float64
	for i, w := range index {
		sum += float64(entries[i][w%signed]) // less than it as it is, which the compiler does not know
	}
	return sum
}

// plane8 is plane of entries in 8 bits.
func (t *Tables) plane8(row int, index []uint8, from, to int) float64 {
	codes, scales := t.codes[row*t.perRow():], t.scales[row*t.shared():]
	var total float64
	if t.Shared == 1 { // the same, without a loop for each table
		index := index[from:to]
		codes, scales := codes[from:][:len(index)], scales[from:][:len(index)]
		for i, w := range index {
			total += float64(scales[i]) * float64(codes[i][w%signed])
		}
		return total
	}
	for from < to {
		s := from / t.Shared
		end := min((s+1)*t.Shared, to)
		index, codes := index[from:end], codes[from:end]
		codes = codes[:len(index)]
		var sum int32
		for i, w := range index {
			sum += int32(codes[i][w%signed])
		}
		total += float64(scales[s]) * float64(sum)
		from = end
	}
	return total
}
