package cpu

import (
	"math"
	"slices"

	"github.com/lutq/lutq/formats/num"
	"github.com/lutq/lutq/gemm/lookup"
	"github.com/lutq/lutq/repack"
)

// Tables whose entries are rounded as package lookup defines it, to show what that does.

// tableEight is how many tables a half-block has, and how many entries half of one.
const tableEight = 8

// entryMost is the largest entry of those that are rounded already, and entryBits the exponent of the largest, times the
// inverse of the unit.
const (
	entryMost = 1<<23 - 1
	entryBits = 22
)

// codesMost is the most half-blocks whose entries of 8 bits add up in words, four tables to each.
const codesMost = math.MaxInt16 / (4 * math.MaxInt8)

// tableScratch is what a worker needs to make the tables of a row.
type tableScratch struct {
	entries []float32 // [tables][8]
	most    []uint32  // [tables]: the largest magnitudes, as bits
	scales  []float32 // [tables]
}

// Reset makes room for tables of rows of k columns, with entries of a precision, for [Engine.FillTables].
func (t *PlaneTables) Reset(p lookup.Precision, rows, k int) {
	width, block := entryBytes, tableBlock
	if p.Shared > 0 && p.Shared%tableEight == 0 {
		width, block = 1, p.Shared/tableEight
		for d := 2; block > codesMost; d++ {
			for block > codesMost && block%d == 0 {
				block /= d
			}
		}
	}
	t.precision, t.k = p, k
	t.resize(rows, k, width, block)
}

// FillTables makes the tables of row r, which is x. They are those of [lookup.Tables]; where scales are not those of whole
// half-blocks, or entries not of 8 bits, entries are rounded to 24 bits of the largest of 32 tables in addition. Workers are
// those of [Engine.Parallel], which may fill other rows.
func (e *Engine) FillTables(t *PlaneTables, worker, r int, x []float32) {
	if len(x) != t.k || r >= t.rows {
		panic(badShape)
	}
	s, c := e.isa, &e.tableScratch[worker]
	bytes, units, sums := t.row(r)
	n := tableEight * t.halves
	c.entries = slices.Grow(c.entries[:0], tableEight*n)[:tableEight*n]
	c.most = slices.Grow(c.most[:0], n)[:n]
	c.scales = slices.Grow(c.scales[:0], n)[:n]
	whole := t.k / repack.Half
	s.halfSums(c.entries, c.most, sums, x[:repack.Half*whole])
	if whole < t.halves {
		var last [repack.Half]float32
		copy(last[:], x[repack.Half*whole:])
		s.halfSums(c.entries[repack.Half/lookup.Columns*tableEight*whole:], c.most[tableEight*whole:], sums[whole:], last[:])
	}
	switch {
	case t.width == 1:
		c.share(s, t.precision.Shared)
		for i := range units {
			units[i] = c.scales[tableEight*t.block*i]
		}
		s.tableCodes(bytes, c.entries, c.scales)
		return
	case t.precision.Shared > 0:
		c.share(s, t.precision.Shared)
		s.roundSteps(c.entries, c.scales)
	case t.precision.F16:
		s.roundF16(c.entries, lookup.UnitF16(math.Float32frombits(slices.Max(c.most))))
	}
	s.tableEntries(bytes, units, c.entries)
}

// share finds the scales of entries of 8 bits, which so many tables share.
func (c *tableScratch) share(s isa, shared int) {
	if shared > 1 {
		s.shareMost(c.most, shared)
	}
	s.tableScales(c.scales, c.most)
}

// halfSumsGeneric makes the half tables of x: their entries [tables][8], the largest magnitude of each as bits, and the sum
// of the columns of each half-block.
func halfSumsGeneric(entries []float32, most []uint32, sums, x []float32) {
	for h := range len(x) / repack.Half {
		var sum [tableEight]float64
		for t := range tableEight {
			i := tableEight*h + t
			table := entries[tableEight*i:][:tableEight]
			lookup.Half(table, x[lookup.Columns*i:][:lookup.Columns])
			most[i] = 0
			for _, v := range table {
				most[i] = max(most[i], math.Float32bits(v)&^(1<<31)) // as whole numbers, absolute values are in order
			}
			sum[t] = -float64(table[0])
		}
		for n := tableEight / 2; n > 0; n /= 2 {
			for t := range n {
				sum[t] += sum[t+n]
			}
		}
		sums[h] = float32(sum[0])
	}
}

// shareMostGeneric sets so many numbers each to the largest of them.
func shareMostGeneric(most []uint32, shared int) {
	for of := range slices.Chunk(most, shared) {
		largest := slices.Max(of)
		for i := range of {
			of[i] = largest
		}
	}
}

// tableScalesGeneric writes the scales of entries of 8 bits: the least float16 of which 127 are no less than the largest
// magnitude, NaN where there is none.
func tableScalesGeneric(scales []float32, most []uint32) {
	for i, m := range most {
		largest := math.Float32frombits(m)
		if !(largest <= 127*65504) {
			scales[i] = math.Float32frombits(math.MaxUint32)
			continue
		}
		h := num.F32ToF16(largest / 127)
		if 127*num.F16ToF32(h) < largest { // exactly, in 18 bits
			h++
		}
		scales[i] = num.F16ToF32(h)
	}
}

// tableCodesGeneric writes tables of one byte an entry: entries by the scale of their table, rounded to even, 0 where that
// is 0 or NaN. The quotients of float32 suffice: none that is not half way between two whole numbers rounds to that.
func tableCodesGeneric(tables []byte, entries, scales []float32) {
	for i, s := range scales {
		to := (*[2 * tableEight]byte)(tables[2*tableEight*i:])
		for w, v := range entries[tableEight*i:][:tableEight] {
			var c int8
			if s > 0 {
				c = int8(math.RoundToEven(float64(v / s)))
			}
			to[w], to[len(to)-1-w] = byte(c), byte(-c)
		}
	}
}

// roundStepsGeneric rounds entries as tableCodes does, and multiplies them by the scale again.
func roundStepsGeneric(entries, scales []float32) {
	for i, s := range scales {
		for w := tableEight * i; w < tableEight*(i+1); w++ {
			if s == 0 {
				entries[w] = 0
			} else {
				entries[w] = float32(math.RoundToEven(float64(entries[w]/s))) * s
			}
		}
	}
}

// roundF16Generic rounds to float16 times a unit, a power of two.
func roundF16Generic(v []float32, unit float32) {
	for i, x := range v {
		v[i] = num.F16ToF32(num.F32ToF16(x/unit)) * unit
	}
}

// tableEntriesGeneric writes tables of three bytes an entry, of half-blocks of entries.
func tableEntriesGeneric(tables []byte, units, entries []float32) {
	const size = tableBlock * repack.Half / lookup.Columns * tableEight
	for b := range units {
		block := entries[b*size : min((b+1)*size, len(entries))]
		most := math.Float32bits(tableTiny)
		for _, v := range block {
			most = max(most, math.Float32bits(v)&^(1<<31))
		}
		var inverse float32
		inverse, units[b] = tableUnit(most, entryBits)
		for i := range len(block) / tableEight {
			var whole [2 * tableEight]int32
			for w, v := range block[tableEight*i:][:tableEight] {
				c := tableWhole(float32(v*inverse), entryMost)
				whole[w], whole[len(whole)-1-w] = c, -c
			}
			setTable(tables[(b*tableBlock+i/tableEight)*128*entryBytes:], entryBytes, i%tableEight, &whole)
		}
	}
}
