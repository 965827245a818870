package sparse

import (
	"fmt"
	"math"

	"github.com/lutq/lutq/gemm/cuda"
	"github.com/lutq/lutq/gemm/cuda/driver"
	"github.com/lutq/lutq/gemm/cuda/table"
)

// many is lutmany.cu as it is compiled for matrices of which every four columns keep two: for what is kept it is as for
// a matrix of half as many columns, in fields of the same kind.
type many struct {
	table.Many
	planes bool // whether weights are looked up in registers, by bytes, and not in shared memory, whose port X fills
}

// patternBytes are those of an atom of a tile.
const patternBytes = 512

// manyVariants returns all that it is compiled as for a format of what is kept.
func manyVariants(f table.Format) []many {
	if !has(f) {
		return nil
	}
	var all []many
	for _, v := range []table.Many{
		{Columns: 256, Groups: 2},
		{Columns: 128, Groups: 3},
		{Columns: 128, Groups: 2},
		{Columns: 96, Groups: 3},
		{Columns: 64, Groups: 4},
		{Columns: 64, Groups: 3},
		{Columns: 64, Groups: 2},
		{Columns: 48, Groups: 4},
		{Columns: 32, Groups: 4},
		{Columns: 32, Groups: 2},
	} {
		if v.Groups == 4 && f.Group == 32 { // whose scales take the registers
			continue
		}
		for _, planes := range []bool{false, true} {
			v := many{v, planes}
			if _, ok := v.rings(f); ok && (!planes || v.hasPlanes(f)) {
				all = append(all, v)
			}
		}
	}
	return all
}

// hasPlanes reports whether there is a variant that looks up in registers: of 4 bits, for as many rows of X as fill the port.
func (v many) hasPlanes(f table.Format) bool { return f.Bits == 4 && v.Columns >= 96 }

// String implements [cuda.Way].
func (v many) String() string {
	if v.planes {
		return "sparse " + v.Many.String() + " planes"
	}
	return "sparse " + v.Many.String()
}

// sparseRings are what of X and of codes is in shared memory.
type sparseRings struct {
	parts         int // of a stage, 64 columns each
	stages, atoms int
}

// bytes returns what they take.
func (v many) bytes(f table.Format, r sparseRings) int {
	const phases = 16
	return r.stages*(128*v.Columns*r.parts+phases) + r.atoms*(v.AtomBytes(f)+v.Tiles()*patternBytes+phases)
}

// fixed returns the shared memory that is neither X nor codes.
func (v many) fixed(f table.Format) int {
	if v.planes {
		return v.Tiles() * table.OutBytes
	}
	return v.TableBytes(f) + v.Tiles()*table.OutBytes
}

// rings returns those that there is room for, if any: with stages of half an atom, three at least, or else of a quarter, of which
// two are multiplied by at once and two have been before.
func (v many) rings(f table.Format) (r sparseRings, ok bool) {
	left := table.HopperShared - v.fixed(f)
	for _, r := range []sparseRings{{2, 3, 3}, {2, 3, 2}, {1, 4, 3}, {1, 4, 2}} {
		for ; r.stages <= table.MostStages && v.bytes(f, r) <= left; r.stages++ {
			ok = true
		}
		if ok {
			r.stages--
			return r, true
		}
	}
	return r, false
}

// shared returns the bytes of shared memory that a block takes.
func (v many) shared(f table.Format) int {
	r, _ := v.rings(f)
	return v.fixed(f) + v.bytes(f, r)
}

// manyKernel is lutmany.cu for a format of what is kept.
type manyKernel struct {
	format table.Format
	many
}

// Kernel implements [cuda.Kernel].
func (k manyKernel) Kernel() driver.Kernel {
	r, _ := k.rings(k.format)
	planes := 0
	if k.planes {
		planes = 1
	}
	of := k.Source(k.format, r.stages, r.atoms, planes)
	of.Options.Defines = append(of.Options.Defines, fmt.Sprintf("OF_ATOM=%d", 4/r.parts), "SPARSE=1")
	return of
}

// Needs implements [cuda.Way].
func (v many) Needs(int, int, int) cuda.Needs {
	return cuda.Needs{Form: table.InOrder, Sums: v.SumBytes(table.Workers), Flags: true}
}

// many returns how a product is launched for so many workers on sms multiprocessors, for X that is prepared.
func (t *Tiles) many(at []driver.Ptr, v many, o cuda.Operands, workers, sms int) cuda.Launch {
	return table.Product{N: t.n, K: t.k / 2, At: at, Codebook: t.codebook, Exponent: t.exponent}.Launch(
		v.Many, manyKernel{t.format, v}, v.divide(t.n, t.k, o.M, workers), o, sms, v.shared(t.format))
}

// divide is that of what is kept. Its atoms take about twice as long, and what it takes to share fields as long as ever.
func (v many) divide(n, k, m, most int) table.Work {
	return v.DivideBy(n, k/2, m, most, (table.ForParts+1)/2, (table.ForShares+1)/2)
}

// cost returns about how many cycles a product takes on an H200: predicted from what the port of shared memory passes, and by
// how much more dense weights take than that. It was right to 64 rows, and from 256 on it takes c256 g2 to be the fastest, where c128 g3 is.
func (v many) cost(n, k, m int) float64 {
	const (
		fixed   = 8000   // as by dense weights
		waits   = 270    // of an atom, beside the port
		lookups = 4 * 32 // of a warpgroup, wavefronts
		planes  = 150    // what lookups in registers take instead, about
		codes   = 4 * 24 // as they come and as they are read
		least   = 1300   // between the products of a warpgroup
	)
	// X passes as it comes and for each warpgroup that multiplies by it, 512 bytes of a row.
	own := 4*v.Columns + codes + lookups
	if v.planes {
		own += planes - lookups
	}
	atom := max(v.Groups*own+4*v.Columns+waits, least)
	return fixed + float64(v.divide(n, k, m, table.Workers).Cost()*atom)
}

// tried is how many variants are tried: twice those of dense weights, for what the cost is wrong in.
const tried = 2 * table.Tried

// Ways implements [cuda.Tiles]: the kernel for all rows wherever there is one.
func (t *Tiles) Ways(g cuda.GPU, m int) []cuda.Way {
	var all []cuda.Way
	if g.Hopper() {
		for _, v := range manyVariants(t.format) {
			if v.shared(t.format) <= g.SharedPerBlock {
				all = append(all, v)
			}
		}
		all = cuda.Shortlist(all, func(a cuda.Way) float64 { return a.(many).cost(t.n, t.k, m) }, tried, math.Inf(1))
	}
	if m > table.PackedRows(t.n, t.k) {
		return append(all, cuda.AsNumbers, cuda.InTurns)
	}
	return append(all, cuda.InTurns, cuda.AsNumbers)
}

// Label names the way among all.
func (v many) Label() string {
	name := fmt.Sprintf("wgmma.sp:c%dg%d", v.Columns, v.Groups)
	if v.planes {
		name += "planes"
	}
	return name
}
