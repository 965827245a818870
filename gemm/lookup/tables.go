package lookup

import (
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/lutq/lutq/formats/num"
)

// Columns is how many activations a table is of.
const Columns = 4

// signed is the length of a table with its negatives, which follow their originals: what [Remap]
// returns is a place in it.
const signed = 1 << Columns

// Sums is such a table.
type Sums[T int8 | float32] [signed]T

// Plain returns it by bits of weights that were not remapped.
func (s *Sums[T]) Plain() (all [signed]T) {
	for w := range all {
		all[w] = s[Remap(uint8(w), Columns)]
	}
	return all
}

// maxShared bounds the tables that share a scale: sums over them are exact in 32 bits.
const maxShared = 1 << 20

// Precision is how entries of tables are kept. The zero value is float32.
type Precision struct {
	F16    bool // entries are float16, times a power of two for each row
	Shared int  // entries are whole numbers from −127 to 127, times a scale that so many tables share; 0 for none
}

// ParsePrecision reads fp16 or int8:T.
func ParsePrecision(s string) (Precision, error) {
	if s == "fp16" {
		return Precision{F16: true}, nil
	}
	if t, ok := strings.CutPrefix(s, "int8:"); ok {
		n, err := strconv.Atoi(t)
		if err == nil && n >= 1 && n <= maxShared && strconv.Itoa(n) == t {
			return Precision{Shared: n}, nil
		}
	}
	return Precision{}, fmt.Errorf("tables %.40q: want fp16, or int8:T with T tables, 1 to %d, for each scale", s, maxShared)
}

// String is what [ParsePrecision] reads.
func (p Precision) String() string {
	switch {
	case p.Shared > 0:
		return fmt.Sprintf("int8:%d", p.Shared)
	case p.F16:
		return "fp16"
	}
	return "f32"
}

// Bytes is what the half tables of rows of k activations take as they are kept, with scales in 16 bits.
func (p Precision) Bytes(rows, k int) int64 {
	tables := int64(ceilDiv(k, Columns))
	entries := int64(rows) * tables * int64(Entries(Columns))
	switch {
	case p.Shared > 0:
		return entries + 2*int64(rows)*((tables+int64(p.Shared)-1)/int64(p.Shared))
	case p.F16:
		return 2 * entries
	}
	return 4 * entries
}

// Tables are those of rows of activations, of each [Columns] of them one.
type Tables struct {
	Precision
	Rows, K int

	entries []Sums[float32] // [Rows, tables], of F16 and float32
	codes   []Sums[int8]    // the same of int8
	scales  []float32       // [Rows, scales] of those
	sums    []float32       // [Rows, tables]: Σx of each
}

func ceilDiv(a, b int) int { return (a + b - 1) / b }

// perRow is the number of tables of a row.
func (t *Tables) perRow() int { return ceilDiv(t.K, Columns) }

// shared is the number of scales of a row.
func (t *Tables) shared() int { return ceilDiv(t.perRow(), t.Shared) }

// NewTables returns room for the tables of rows of k activations, for Fill.
func NewTables(p Precision, rows, k int) *Tables {
	t := &Tables{Precision: p, Rows: rows, K: k}
	n := rows * t.perRow()
	t.sums = make([]float32, n)
	if p.Shared > 0 {
		t.codes, t.scales = make([]Sums[int8], n), make([]float32, rows*t.shared())
	} else {
		t.entries = make([]Sums[float32], n)
	}
	return t
}

// Fill makes the tables of a row of activations. An activation that is not finite makes
// products that are not. Rows can be filled in parallel.
func (t *Tables) Fill(row int, x []float32) {
	per := t.perRow()
	half := make([]float32, per*Entries(Columns))
	var piece [Columns]float32
	for i := range per {
		clear(piece[:])
		copy(piece[:], x[i*Columns:min((i+1)*Columns, t.K)])
		table := half[i*Entries(Columns):][:Entries(Columns)]
		Half(table, piece[:])
		t.sums[row*per+i] = -table[0]
	}
	if t.Shared == 0 {
		if t.F16 {
			roundF16(half)
		}
		for i, v := range half {
			e, w := &t.entries[row*per+i/Entries(Columns)], i%Entries(Columns)
			e[w], e[w+Entries(Columns)] = v, -v
		}
		return
	}
	for s := range t.shared() {
		from, to := s*t.Shared*Entries(Columns), min((s+1)*t.Shared*Entries(Columns), len(half))
		scale := scaleOf(half[from:to])
		t.scales[row*t.shared()+s] = scale
		for i := from; i < to; i++ {
			var c int8
			if scale > 0 { // neither zero nor NaN
				c = int8(math.RoundToEven(float64(half[i]) / float64(scale)))
			}
			e, w := &t.codes[row*per+i/Entries(Columns)], i%Entries(Columns)
			e[w], e[w+Entries(Columns)] = c, -c
		}
	}
}

// Row is what the tables of a row are.
type Row struct {
	Entries []Sums[float32] // of F16 and float32
	Codes   []Sums[int8]    // of int8
	Scales  []float32       // of Shared of those each
	Sums    []float32       // Σx of each table
}

// Row returns the tables of a row, not copied.
func (t *Tables) Row(row int) Row {
	per := t.perRow()
	r := Row{Sums: t.sums[row*per:][:per]}
	if t.Shared > 0 {
		r.Codes, r.Scales = t.codes[row*per:][:per], t.scales[row*t.shared():][:t.shared()]
	} else {
		r.Entries = t.entries[row*per:][:per]
	}
	return r
}

// largest returns the largest magnitude, NaN if there is a number that is not finite.
func largest(v []float32) float32 {
	var most float32
	for _, v := range v {
		a := float32(math.Abs(float64(v)))
		if !(a <= math.MaxFloat32) {
			return float32(math.NaN())
		}
		most = max(most, a)
	}
	return most
}

// scaleOf returns the step of entries in 8 bits: a float16 that is no less than a 127th of the largest. It is NaN where
// there is none.
func scaleOf(entries []float32) float32 {
	want := float64(largest(entries)) / 127
	h := num.F32ToF16(float32(want))
	if float64(num.F16ToF32(h)) < want {
		h++ // of numbers that are not negative the next
	}
	if s := num.F16ToF32(h); s <= 65504 {
		return s
	}
	return float32(math.NaN())
}

// UnitF16 is the power of two that brings a row whose largest magnitude is most into the range of float16.
func UnitF16(most float32) float32 {
	unit := float32(1)
	for most <= math.MaxFloat32 && most/unit > 1<<15 {
		unit *= 2
	}
	return unit
}

// roundF16 rounds to float16, times the power of two that brings the largest into its range.
func roundF16(v []float32) {
	unit := UnitF16(largest(v))
	for i, x := range v {
		v[i] = num.F16ToF32(num.F32ToF16(x/unit)) * unit
	}
}
