//go:build !amd64 || noasm

package cpu

// Binary codes, tables of activations and tables of equal steps have kernels on amd64 alone.

func (s isa) steps() bool { return false }

func (s isa) fixedBytes(dst, x []int16, sums, scales []float32) {
	fixedBytesGeneric(dst, x, sums, scales)
}

func (s isa) planes(y *[16]float32, c *planesCall) { planesGeneric(y, c) }

func (s isa) tables(tables []byte, units, sums, x []float32) { tablesGeneric(tables, units, sums, x) }

func (s isa) halfSums(entries []float32, most []uint32, sums, x []float32) {
	halfSumsGeneric(entries, most, sums, x)
}

func (s isa) shareMost(most []uint32, shared int) { shareMostGeneric(most, shared) }

func (s isa) tableScales(scales []float32, most []uint32) { tableScalesGeneric(scales, most) }

func (s isa) tableCodes(tables []byte, entries, scales []float32) {
	tableCodesGeneric(tables, entries, scales)
}

func (s isa) roundSteps(entries, scales []float32) { roundStepsGeneric(entries, scales) }

func (s isa) roundF16(v []float32, unit float32) { roundF16Generic(v, unit) }

func (s isa) tableEntries(tables []byte, units, entries []float32) {
	tableEntriesGeneric(tables, units, entries)
}

func (s isa) planesDecode(dst []float32, words []byte, factors *[planeFactors][16]float32, bits int) {
	planesDecodeGeneric(dst, words, factors, bits)
}
