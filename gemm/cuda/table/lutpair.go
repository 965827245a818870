package table

import (
	_ "embed"
	"fmt"
	"math"

	"github.com/lutq/lutq/gemm/cuda"
	"github.com/lutq/lutq/gemm/cuda/driver"
	"github.com/lutq/lutq/gemm/cuda/ptx"
)

//go:embed lutpair.cu
var pairSource string

const pairName = "lutpair"

// pairsTried is whether lutpair.cu is tried beside others. It has yet to run on a GPU, which is what TestGPUPair is for.
const pairsTried = false

// pairVariant is lutpair.cu as it is compiled: fields of 128 rows of Ŵ, each of two blocks.
type pairVariant struct {
	Columns int // rows of X of a field
	Splits  int // warpgroups of a block that share the columns of 64 rows of Ŵ
	Lookup  Lookup
}

const (
	// Pairs are what the fields of a product are divided among, on whatever GPU.
	Pairs = Workers / 2

	pairGroups  = 2   // of 64 rows of Ŵ, of a field
	fewestPairs = 33  // rows of X for which lutpair.cu is tried, and
	mostPairs   = 256 // the most
)

// pairVariants returns all that lutpair.cu is compiled as for a format.
func (f Format) pairVariants() []pairVariant {
	if !f.hasMany() {
		return nil
	}
	var all []pairVariant
	for _, v := range []pairVariant{{Columns: 48, Splits: 2}, {Columns: 64, Splits: 2}, {Columns: 64, Splits: 1}, {Columns: 96, Splits: 1}, {Columns: 128, Splits: 1}, {Columns: 192, Splits: 1}, {Columns: 256, Splits: 1}} {
		for _, l := range []Lookup{Replicated, Integers} {
			v.Lookup = l
			stages, _ := v.rings(f)
			if l == Integers && f.Bits != 4 || f.Bits == 5 || stages < v.fewestStages() || v.Splits == 2 && f.Group == 32 { // whose scales take the registers
				continue
			}
			all = append(all, v)
		}
	}
	return all
}

func (v pairVariant) String() string {
	s := fmt.Sprintf("pair c%d s%d", v.Columns, v.Splits)
	if v.Lookup == Integers {
		s += " integers"
	}
	return s
}

// Label names the way among all that [lutq bench] may name.
func (v pairVariant) Label() string { return "wgmma " + v.String() }

// Rows implements [cuda.Way]: any number.
func (v pairVariant) Rows() int { return 0 }

// Needs implements [cuda.Way].
func (v pairVariant) Needs(int, int, int) cuda.Needs {
	return cuda.Needs{Form: v.many().form(), Sums: v.many().SumBytes(Pairs), Flags: true}
}

// many returns lutmany.cu for the same fields, as it lays out its operands and sums.
func (v pairVariant) many() Many {
	return Many{Columns: v.Columns, Groups: pairGroups, Lookup: v.Lookup}
}

func (v pairVariant) threads() int { return 128 * (pairGroups*v.Splits + 1) }

// halves returns how many half atoms of X are a stage.
func (v pairVariant) halves() int { return v.Splits }

// fewestStages returns how many half atoms of X there have to be at once.
func (v pairVariant) fewestStages() int { return max(3, 2*v.halves()*v.Splits) }

// wideRows reports whether the table is that of lut.cuh, which takes fewer instructions, but more room.
func (v pairVariant) wideRows(f Format) bool {
	return v.Lookup == Replicated && (v.Columns <= 128 || f.Bits != 4)
}

// tableBytes returns what the table takes.
func (v pairVariant) tableBytes(f Format) int {
	switch {
	case v.Lookup == Integers:
		return 0
	case v.wideRows(f):
		size, _ := f.tableBytes()
		return size
	}
	return manyRowBytes << (2 * f.Bits)
}

// sentBytes returns what the sums of other warpgroups take, and phases that count them.
func (v pairVariant) sentBytes() int {
	const rows, phases = 64, 48
	return (2*v.Splits-1)*rows*v.Columns*4 + phases
}

// rings returns how many half atoms of X and atoms of codes there is room for: as many of codes as memory is kept busy by, if that leaves X enough.
func (v pairVariant) rings(f Format) (stages, atoms int) {
	const phases = 16
	m := v.many()
	for _, atoms = range []int{4, 2} {
		left := HopperShared - v.tableBytes(f) - m.Tiles()*OutBytes - v.sentBytes() - atoms*(m.AtomBytes(f)+phases)
		stages = min(MostStages, max(left, 0)/(128*v.Columns+phases))
		stages -= stages % (v.halves() * v.Splits)
		if stages >= v.fewestStages() && stages >= 4 {
			break
		}
	}
	return stages, atoms
}

// shared returns the bytes of shared memory that a block takes.
func (v pairVariant) shared(f Format) int {
	stages, atoms := v.rings(f)
	return v.tableBytes(f) + stages*(128*v.Columns+16) + atoms*(v.many().AtomBytes(f)+16) + v.many().Tiles()*OutBytes + v.sentBytes()
}

// pairKernel is lutpair.cu for a format.
type pairKernel struct {
	Format
	pairVariant
}

// Kernel implements [cuda.Kernel].
func (k pairKernel) Kernel() driver.Kernel {
	stages, atoms := k.rings(k.Format)
	wide := 0
	if k.wideRows(k.Format) {
		wide = 1
	}
	return driver.Kernel{
		Name:   fmt.Sprintf("%s.%s.cu", pairName, k.name()),
		Source: Source() + k.Lookup.source() + ptx.WGMMA() + ptx.Fields() + ptx.Cluster() + pairSource,
		Options: driver.CompileOptions{Defines: append(append(k.Defines(), k.Lookup.Defines()...), "NT=2", "DEPTH=1", fmt.Sprintf("WARPS=%d", k.threads()/32),
			fmt.Sprintf("COLUMNS=%d", k.Columns), fmt.Sprintf("GROUPS4=%d", pairGroups), fmt.Sprintf("SPLITS=%d", k.Splits), fmt.Sprintf("HALVES=%d", k.halves()),
			fmt.Sprintf("STAGES=%d", stages), fmt.Sprintf("ATOMS=%d", atoms), fmt.Sprintf("WIDE_ROWS=%d", wide), "PLANES=0", "OF_ATOM=2")},
	}
}

// divide returns how m rows of X by an N×K matrix are divided among up to so many pairs.
func (v pairVariant) divide(n, k, m, most int) Work {
	share := max(3, 640/v.Columns) // atoms of a field that take a pair as long as sharing one does
	return v.many().DivideBy(n, k, m, most, share-2, share)
}

// byPairs returns how a product is launched for so many pairs on sms multiprocessors, for X that is prepared.
func (t *Tiles) byPairs(at []driver.Ptr, v pairVariant, o cuda.Operands, pairs, sms int) cuda.Launch {
	share := v.divide(t.n, t.k, o.M, pairs)
	share.sums, share.flags = uint64(o.Scratch), uint64(o.Flags)
	share.power, share.back = float32(math.Ldexp(1, t.exponent)), float32(math.Ldexp(1, -t.exponent))
	p := Product{N: t.n, K: t.k, At: at, Codebook: t.codebook}
	l := p.launch(v.many(), pairKernel{t.format, v}, pairName, share, o, sms, v.shared(t.format))
	l.Block.X = uint32(v.threads())
	l.Grid.X = 2 * min(share.workers, uint32(max(sms/2, 1)))
	l.Cluster.X = 2
	return l
}

// cost returns about how many cycles a product takes on an H200, predicted from what lutmany.cu takes and the port of shared memory: none has been timed.
func (v pairVariant) cost(n, k, m int) float64 {
	const fixed = 7000                   // to begin, and to pass sums on and write
	products := float64(8 * v.Columns)   // of an atom of a field, of both blocks
	port := float64(6*v.Columns + 4*128) // of shared memory, with the table
	if v.Lookup == Integers {
		port -= 256
	}
	return fixed + float64(v.divide(n, k, m, Pairs).cost)/2*max(1.1*products, 1.15*port)
}

// pairWays returns the ways of lutpair.cu that are tried beside others, or none.
func (t *Tiles) pairWays(g cuda.GPU, m int) []cuda.Way {
	if !g.Hopper() || !g.Clusters || m < fewestPairs || m > mostPairs {
		return nil
	}
	var all []cuda.Way
	for _, v := range t.format.pairVariants() {
		allowed := t.lookup == chosen || t.lookup == v.Lookup
		if v.Lookup == Integers && !t.hasIntegers(g) || !allowed || v.shared(t.format) > g.SharedPerBlock {
			continue
		}
		all = append(all, v)
	}
	cost := func(a cuda.Way) float64 { return a.(pairVariant).cost(t.n, t.k, m) }
	return cuda.Shortlist(all, cost, Tried, tunedWithin)
}
