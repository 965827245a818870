package table

import (
	_ "embed"
	"encoding/binary"
	"fmt"
	"math"

	"github.com/lutq/lutq/formats/weight"
	"github.com/lutq/lutq/gemm/cuda"
	"github.com/lutq/lutq/gemm/cuda/driver"
	"github.com/lutq/lutq/gemm/cuda/ptx"
	"github.com/lutq/lutq/repack"
)

var (
	//go:embed block.cuh
	blockSource string
	//go:embed weights.cuh
	weightsSource string
	//go:embed lutmany.cu
	manySource string
)

const manyName = "lutmany"

// Many is lutmany.cu as it is compiled: for very many rows of X, on Hopper, which alone has its instructions.
type Many struct {
	Columns int    // rows of X of a field
	Groups  int    // warpgroups that multiply, each 64 rows of Ŵ of a field
	Lookup  Lookup // Replicated or Integers
}

// What lutmany.cu is built on; it has the same numbers.
const (
	manyRowBytes = 128     // of the table, unless it has room for wide rows
	OutBytes     = 32 * 48 // of a warp, for results
	groupTiles   = 4       // of a warpgroup
	mostTiles    = 16      // of a field
	MostStages   = 8
	HopperShared = 227 << 10 // bytes of shared memory that a block can have there

	// Workers that the fields of a product are divided among, on whatever GPU: as many as an H200 has multiprocessors.
	Workers = 132
)

// hasMany reports whether lutmany.cu is compiled for a format: scales have to fit into 16 bits.
func (f Format) hasMany() bool { return f.Scale != weight.F32 || f.Group == 0 }

// manyVariants returns all that lutmany.cu is compiled as for a format.
func (f Format) manyVariants() []Many {
	if !f.hasMany() {
		return nil
	}
	var all []Many
	for _, v := range []Many{{Columns: 256, Groups: 2}, {Columns: 192, Groups: 2}, {Columns: 128, Groups: 2}, {Columns: 128, Groups: 3}, {Columns: 96, Groups: 3}, {Columns: 64, Groups: 4}, {Columns: 48, Groups: 4}} {
		stages, _ := v.rings(f)
		if stages < 3 || v.Groups == 4 && f.Group == 32 { // whose scales take the registers
			continue
		}
		all = append(all, v)
	}
	return all
}

// with returns the variant with a lookup.
func (v Many) with(l Lookup) Many {
	v.Lookup = l
	return v
}

func (v Many) String() string {
	s := fmt.Sprintf("c%d g%d", v.Columns, v.Groups)
	if v.Lookup == Integers {
		s += " integers"
	}
	return s
}

// Rows implements [cuda.Way]: any number.
func (v Many) Rows() int { return 0 }

// Needs implements [cuda.Way].
func (v Many) Needs(int, int, int) cuda.Needs {
	return cuda.Needs{Form: v.form(), Sums: v.SumBytes(Workers), Flags: true}
}

// Label names the way among all that [lutq bench] may name.
func (v Many) Label() string { return "wgmma " + v.String() }

// Tiles returns those of a field.
func (v Many) Tiles() int   { return groupTiles * v.Groups }
func (v Many) threads() int { return 128 * (v.Groups + 1) }

// wideRows reports whether the table has rows of 256 bytes, for a byte of codes to be one of the address.
func (v Many) wideRows(f Format) bool {
	return v.Columns <= 128 && f.Bits != 5 && v.Lookup == Replicated
}

// TableBytes returns what the table takes.
func (v Many) TableBytes(f Format) int {
	switch {
	case v.Lookup == Integers:
		return 0
	case v.wideRows(f):
		return 2 * manyRowBytes << 8 // a row for each byte
	}
	return manyRowBytes << (2 * f.Bits)
}

// AtomBytes returns what the codes and scales of an atom of a field take.
func (v Many) AtomBytes(f Format) int {
	scales := 0
	switch {
	case f.Group == 256:
		scales = repack.TileRows * f.Scale.Size()
	case f.Group != 0:
		scales = repack.TileRows * repack.AtomCols / f.Group * f.Scale.Size()
	}
	return v.Tiles() * (repack.TileRows*repack.AtomCols/8*f.Bits + scales)
}

// rings returns how many stages of X and atoms of codes there is room for.
func (v Many) rings(f Format) (stages, atoms int) {
	atoms = 3
	if f.Bits == 5 { // whose table takes more than half of it
		atoms = 2
	}
	const phases = 16
	left := HopperShared - v.TableBytes(f) - v.Tiles()*OutBytes - atoms*(v.AtomBytes(f)+phases)
	return min(MostStages, max(left, 0)/(128*v.Columns+phases)), atoms
}

// shared returns the bytes of shared memory that a block takes.
func (v Many) shared(f Format) int {
	stages, atoms := v.rings(f)
	return v.TableBytes(f) + stages*(128*v.Columns+16) + atoms*(v.AtomBytes(f)+16) + v.Tiles()*OutBytes
}

// manyKernel is lutmany.cu for a format.
type manyKernel struct {
	Format
	Many
}

// Kernel implements [cuda.Kernel].
func (k manyKernel) Kernel() driver.Kernel {
	stages, atoms := k.rings(k.Format)
	of := k.Source(k.Format, stages, atoms, 0)
	of.Options.Defines = append(of.Options.Defines, "OF_ATOM=2")
	return of
}

// Source returns lutmany.cu with all that is set but for how many stages of X an atom has.
func (v Many) Source(f Format, stages, atoms, planes int) driver.Kernel {
	wide := 0
	if planes == 0 && v.wideRows(f) {
		wide = 1
	}
	return driver.Kernel{
		Name:   fmt.Sprintf("%s.%s.cu", manyName, f.name()),
		Source: Source() + v.Lookup.source() + ptx.WGMMA() + ptx.Fields() + blockSource + weightsSource + manySource,
		Options: driver.CompileOptions{Defines: append(append(f.Defines(), v.Lookup.Defines()...), "NT=2", "DEPTH=1", fmt.Sprintf("WARPS=%d", v.threads()/32),
			fmt.Sprintf("COLUMNS=%d", v.Columns), fmt.Sprintf("GROUPS4=%d", v.Groups), fmt.Sprintf("STAGES=%d", stages), fmt.Sprintf("ATOMS=%d", atoms), fmt.Sprintf("PLANES=%d", planes), fmt.Sprintf("WIDE_ROWS=%d", wide))},
	}
}

// form returns how X is read.
func (v Many) form() Form {
	if v.Lookup == Integers {
		return Skipping
	}
	return Columns
}

// work is the kernel's second argument, in C's layout: how a product is divided.
type Work struct {
	sums, flags                          uint64
	power, back                          float32
	fields, rows, atoms, workers, shared uint32
	groupsOfX                            uint32

	cost int // about, in atoms of a field that a worker multiplies by: no part of the argument
}

// Cost returns about how long it takes, in atoms of a field.
func (w Work) Cost() int { return w.cost }

func (w *Work) bytes() []byte {
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
const ForParts, ForShares, forSharer = 3, 5, 1

// divide returns how m rows of X by an N×K matrix are divided among up to so many workers, as takes the least: whole
// fields; with equal shares of what would leave some without a field at the end, and of one field each with it, so that
// there are two workers to a field at most; or, of fields that are few, with an equal number of workers each.
func (v Many) divide(n, k, m, most int) Work {
	return v.DivideBy(n, k, m, most, ForParts, ForShares)
}

// DivideBy is divide where sharing takes so many atoms.
func (v Many) DivideBy(n, k, m, most, toPart, toShare int) Work {
	rows := (n + repack.TileRows*v.Tiles() - 1) / (repack.TileRows * v.Tiles())
	fields := rows * ((m + v.Columns - 1) / v.Columns)
	w := Work{
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

// SumBytes returns the bytes that workers take to leave sums for each other.
func (v Many) SumBytes(workers int) int { return workers * v.Tiles() * v.Columns / 8 * 32 * 16 }

// many returns how a product is launched for so many workers on sms multiprocessors, for X that is prepared.
func (t *Tiles) many(at []driver.Ptr, v Many, o cuda.Operands, workers, sms int) cuda.Launch {
	return Product{N: t.n, K: t.k, At: at, Codebook: t.codebook, Exponent: t.exponent}.Launch(
		v, manyKernel{t.format, v}, v.divide(t.n, t.k, o.M, workers), o, sms, v.shared(t.format))
}

// manyWithGates is many with gates.
func (t *Tiles) manyWithGates(at []driver.Ptr, v manyGated, o cuda.Operands, workers, sms int) cuda.Launch {
	return Product{N: t.n, K: t.k, At: at, Codebook: t.codebook, Exponent: t.exponent}.Launch(
		v.Many, manyGatedKernel{t.format, v}, v.divide(t.n, t.k, o.M, workers), o, sms, v.shared(t.format))
}

// Product is a product for many rows of X, which are prepared, by an N×K matrix whose codes and scales lie at two addresses.
type Product struct {
	N, K     int
	At       []driver.Ptr
	Codebook []uint32
	Exponent int // of the power of two by which scales are multiplied
}

// Launch returns how it is launched by lutmany.cu as it is compiled, divided so, on sms multiprocessors with so much shared memory of
// a block.
func (p Product) Launch(v Many, of cuda.Kernel, share Work, o cuda.Operands, sms, shared int) cuda.Launch {
	share.sums, share.flags = uint64(o.Scratch), uint64(o.Flags)
	share.power, share.back = float32(math.Ldexp(1, p.Exponent)), float32(math.Ldexp(1, -p.Exponent))
	return p.launch(v, of, manyName, share, o, sms, shared)
}

// launch returns how one of the kernels for many rows is launched.
func (p Product) launch(v Many, of cuda.Kernel, function string, share Work, o cuda.Operands, sms, shared int) cuda.Launch {
	args := Params{units: uint32((p.K + repack.UnitCols - 1) / repack.UnitCols), n: uint32(p.N), k: uint32(p.K), m: uint32(o.M)}
	args.set(p.At, o, p.Codebook)
	args.gated = o.Gates.Activation != ""
	return cuda.Launch{
		Launch: driver.Launch{
			Grid:  driver.Dim{X: min(share.workers, uint32(sms))},
			Block: driver.Dim{X: uint32(v.threads())}, Shared: shared, Programmatic: true,
		}, Of: of, Function: function, Args: [][]byte{args.Bytes(), share.bytes()},
	}
}

// ScaleExponent returns the power of two by which the scales of a matrix are multiplied to make the most of float16:
// the largest weight comes to between 2^12 and 2^13, so that those as small as a 2^27th of it keep all their bits.
func (f Format) ScaleExponent(scales []byte, codebook []float32) int {
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

// cost returns about how many cycles a product takes on an H200.
func (v Many) cost(n, k, m int) float64 {
	const fixed = 8000        // to begin and to write
	atom := map[Many]float64{ // of a field
		{256, 2, 0}: 2160, {192, 2, 0}: 1730, {128, 2, 0}: 1410, {128, 3, 0}: 1860, {96, 3, 0}: 1580, {64, 4, 0}: 1870,
		{48, 4, 0}: 1800, // not timed
	}[v.with(0)]
	return fixed + float64(v.divide(n, k, m, Workers).cost)*atom
}
