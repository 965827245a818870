package cuda

import (
	_ "embed"
	"encoding/binary"
	"fmt"
	"math"

	"github.com/lutq/lutq/formats/weight"
	"github.com/lutq/lutq/gemm/cuda/driver"
	"github.com/lutq/lutq/gemm/cuda/ptx"
	"github.com/lutq/lutq/repack"
)

//go:embed lutmany.cu
var manySource string

const manyName = "lutmany"

// manyVariant is lutmany.cu as it is compiled: for very many rows of X, on Hopper, which alone has its instructions.
type manyVariant struct {
	columns int    // rows of X of a field
	groups  int    // warpgroups that multiply, each 64 rows of Ŵ of a field
	lookup  Lookup // Replicated or Integers
}

// What lutmany.cu is built on; it has the same numbers.
const (
	manyRowBytes = 128     // of the table, unless it has room for wide rows
	outBytes     = 32 * 48 // of a warp, for results
	groupTiles   = 4       // of a warpgroup
	mostTiles    = 16      // of a field
	mostStages   = 8
	hopperShared = 227 << 10 // bytes of shared memory that a block can have there

	// Workers that the fields of a product are divided among, on whatever GPU: as many as an H200 has multiprocessors.
	manyWorkers = 132
)

// hasMany reports whether lutmany.cu is compiled for a format: scales have to fit into 16 bits.
func (f Format) hasMany() bool { return f.Scale != weight.F32 || f.Group == 0 }

// manyVariants returns all that lutmany.cu is compiled as for a format.
func (f Format) manyVariants() []manyVariant {
	if !f.hasMany() {
		return nil
	}
	var all []manyVariant
	for _, v := range []manyVariant{{columns: 256, groups: 2}, {columns: 192, groups: 2}, {columns: 128, groups: 2}, {columns: 128, groups: 3}, {columns: 96, groups: 3}, {columns: 64, groups: 4}, {columns: 48, groups: 4}} {
		stages, _ := v.rings(f)
		if stages < 3 || v.groups == 4 && f.Group == 32 { // whose scales take the registers
			continue
		}
		all = append(all, v)
	}
	return all
}

// with returns the variant with a lookup.
func (v manyVariant) with(l Lookup) manyVariant {
	v.lookup = l
	return v
}

func (v manyVariant) String() string {
	s := fmt.Sprintf("c%d g%d", v.columns, v.groups)
	if v.lookup == Integers {
		s += " integers"
	}
	return s
}
func (v manyVariant) tiles() int   { return groupTiles * v.groups }
func (v manyVariant) threads() int { return 128 * (v.groups + 1) }

// wideRows reports whether the table has rows of 256 bytes, for a byte of codes to be one of the address.
func (v manyVariant) wideRows(f Format) bool {
	return v.columns <= 128 && f.Bits != 5 && v.lookup == Replicated
}

// tableBytes returns what the table takes.
func (v manyVariant) tableBytes(f Format) int {
	switch {
	case v.lookup == Integers:
		return 0
	case v.wideRows(f):
		return 2 * manyRowBytes << 8 // a row for each byte
	}
	return manyRowBytes << (2 * f.Bits)
}

// atomBytes returns what the codes and scales of an atom of a field take.
func (v manyVariant) atomBytes(f Format) int {
	scales := 0
	switch {
	case f.Group == 256:
		scales = repack.TileRows * f.Scale.Size()
	case f.Group != 0:
		scales = repack.TileRows * repack.AtomCols / f.Group * f.Scale.Size()
	}
	return v.tiles() * (repack.TileRows*repack.AtomCols/8*f.Bits + scales)
}

// rings returns how many stages of X and atoms of codes there is room for.
func (v manyVariant) rings(f Format) (stages, atoms int) {
	atoms = 3
	if f.Bits == 5 { // whose table takes more than half of it
		atoms = 2
	}
	const phases = 16
	left := hopperShared - v.tableBytes(f) - v.tiles()*outBytes - atoms*(v.atomBytes(f)+phases)
	return min(mostStages, max(left, 0)/(128*v.columns+phases)), atoms
}

// shared returns the bytes of shared memory that a block takes.
func (v manyVariant) shared(f Format) int {
	stages, atoms := v.rings(f)
	return v.tableBytes(f) + stages*(128*v.columns+16) + atoms*(v.atomBytes(f)+16) + v.tiles()*outBytes
}

// manyKernel is lutmany.cu for a format.
type manyKernel struct {
	Format
	manyVariant
}

func (k manyKernel) kernel() driver.Kernel {
	stages, atoms := k.rings(k.Format)
	of := k.source(k.Format, stages, atoms, 0)
	of.Options.Defines = append(of.Options.Defines, "OF_ATOM=2")
	return of
}

// source returns lutmany.cu with all that is set but for how many stages of X an atom has.
func (v manyVariant) source(f Format, stages, atoms, planes int) driver.Kernel {
	wide := 0
	if planes == 0 && v.wideRows(f) {
		wide = 1
	}
	return driver.Kernel{
		Name:   fmt.Sprintf("%s.%s.cu", manyName, f.name()),
		Source: ptx.Instructions() + lutSource + v.lookup.source() + ptx.WGMMA() + ptx.Fields() + manySource,
		Options: driver.CompileOptions{Defines: append(append(f.defines(), v.lookup.defines()...), "NT=2", "DEPTH=1", fmt.Sprintf("WARPS=%d", v.threads()/32),
			fmt.Sprintf("COLUMNS=%d", v.columns), fmt.Sprintf("GROUPS4=%d", v.groups), fmt.Sprintf("STAGES=%d", stages), fmt.Sprintf("ATOMS=%d", atoms), fmt.Sprintf("PLANES=%d", planes), fmt.Sprintf("WIDE_ROWS=%d", wide))},
	}
}

// form returns how X is read.
func (v manyVariant) form() Form {
	if v.lookup == Integers {
		return Skipping
	}
	return Columns
}

// work is the kernel's second argument, in C's layout: how a product is divided.
type work struct {
	sums, flags                          uint64
	power, back                          float32
	fields, rows, atoms, workers, shared uint32
	groupsOfX                            uint32

	cost int // about, in atoms of a field that a worker multiplies by: no part of the argument
}

func (w *work) bytes() []byte {
	b := binary.LittleEndian.AppendUint64(nil, w.sums)
	b = binary.LittleEndian.AppendUint64(b, w.flags)
	for _, v := range []uint32{
		math.Float32bits(w.power), math.Float32bits(w.back), w.fields, w.rows, w.atoms, w.workers, w.shared, w.groupsOfX,
	} {
		b = binary.LittleEndian.AppendUint32(b, v)
	}
	return b
}

// mostSharers are the workers that have parts of a field where there are few: each but the last leaves its sums in memory.
const mostSharers = 4

// What it takes, in atoms of a field, that two workers share one: in parts of their own, and in equal shares of all. For each more
// whose sums are added by who has the field's end it takes forSharer beside.
const forParts, forShares, forSharer = 3, 5, 1

// divide returns how m rows of X by an N×K matrix are divided among up to so many workers, as takes the least: whole
// fields; with equal shares of what would leave some without a field at the end, and of one field each with it, so that
// there are two workers to a field at most; or, of fields that are few, with an equal number of workers each.
func (v manyVariant) divide(n, k, m, most int) work {
	return v.divideBy(n, k, m, most, forParts, forShares)
}

// divideBy is divide where sharing takes so many atoms.
func (v manyVariant) divideBy(n, k, m, most, toPart, toShare int) work {
	rows := (n + repack.TileRows*v.tiles() - 1) / (repack.TileRows * v.tiles())
	fields := rows * ((m + v.columns - 1) / v.columns)
	w := work{
		fields: uint32(fields), rows: uint32(rows), atoms: uint32(atomsOf(k)), workers: uint32(most),
		groupsOfX: uint32((m + preparedRows - 1) / preparedRows),
	}
	w.cost = (fields + most - 1) / most * atomsOf(k)
	if shares := (fields*atomsOf(k)+most-1)/most + toShare + max(0, most/fields-1)*forSharer; shares < w.cost {
		w.shared, w.cost = uint32(min(fields, fields%most+most)), shares
	}
	for sharers := 2; sharers <= min(mostSharers, atomsOf(k)) && sharers*fields <= most; sharers++ {
		if part := (atomsOf(k)+sharers-1)/sharers + toPart + (sharers-2)*forSharer; part < w.cost {
			w.shared, w.workers, w.cost = uint32(fields), uint32(sharers*fields), part
		}
	}
	w.workers = min(w.workers, max(w.shared*w.atoms, w.fields-w.shared))
	return w
}

// sumBytes returns the bytes that workers take to leave sums for each other.
func (v manyVariant) sumBytes(workers int) int { return workers * v.tiles() * v.columns / 8 * 32 * 16 }

// manyPlan returns how a product by a matrix is launched on sms multiprocessors, for X that is prepared, with sums at the begin
// of scratch memory and a flag of 4 bytes for each tile of a worker's field, and its arguments.
func (v manyVariant) manyPlan(w *Matrix, o Operands, flags driver.Ptr, workers, sms int) (driver.Launch, params, work) {
	return v.planDivided(w, v.divide(w.N, w.K, o.M, workers), o, flags, sms, v.shared(w.Format))
}

// planDivided is manyPlan for a product that has been divided, of which a block takes so much shared memory.
func (v manyVariant) planDivided(w *Matrix, share work, o Operands, flags driver.Ptr, sms, shared int) (driver.Launch, params, work) {
	share.sums, share.flags = uint64(o.Scratch), uint64(flags)
	share.power, share.back = float32(math.Ldexp(1, w.exponent)), float32(math.Ldexp(1, -w.exponent))
	p := params{
		codes: uint64(w.codes), scales: uint64(w.scales), units: uint32((w.K + repack.UnitCols - 1) / repack.UnitCols),
		n: uint32(w.N), k: uint32(w.K), m: uint32(o.M), x: uint64(o.X), y: uint64(o.Y), bias: uint64(o.Bias), codebook: w.codebook,
	}
	return driver.Launch{
		Grid:  driver.Dim{X: min(share.workers, uint32(sms))},
		Block: driver.Dim{X: uint32(v.threads())}, Shared: shared, Programmatic: true,
	}, p, share
}

// scaleExponent returns the power of two by which the scales of a matrix are multiplied to make the most of float16:
// the largest weight comes to between 2^12 and 2^13, so that those as small as a 2^27th of it keep all their bits.
func (f Format) scaleExponent(scales []byte, codebook []float32) int {
	if f.Type != driver.F16 || f.Group == 0 {
		return 0
	}
	largest, value := float32(0), float32(1) // scales themselves have to fit
	for _, v := range codebook {
		value = max(value, float32(math.Abs(float64(v))))
	}
	values := make([]float32, min(len(scales)/f.Scale.Size(), 1<<16))
	for len(scales) > 0 {
		part := values[:min(len(values), len(scales)/f.Scale.Size())]
		f.Scale.Decode(part, scales[:len(part)*f.Scale.Size()])
		for _, v := range part {
			largest = max(largest, float32(math.Abs(float64(v))))
		}
		scales = scales[len(part)*f.Scale.Size():]
	}
	if largest == 0 || value*largest == 0 {
		return 0
	}
	_, e := math.Frexp(float64(value) * float64(largest))
	if e = 13 - e; f.Scale == weight.F16 { // which is multiplied in float16
		return min(max(e, -14), 15)
	}
	return min(max(e, -126), 126)
}

// guess returns about how many cycles a product takes on an H200.
func (v manyVariant) guess(n, k, m int) float64 {
	const fixed = 8000               // to begin and to write
	atom := map[manyVariant]float64{ // of a field
		{256, 2, 0}: 2160, {192, 2, 0}: 1730, {128, 2, 0}: 1410, {128, 3, 0}: 1860, {96, 3, 0}: 1580, {64, 4, 0}: 1870,
		{48, 4, 0}: 1800, // not timed
	}[v.with(0)]
	return fixed + float64(v.divide(n, k, m, manyWorkers).cost)*atom
}
