package table

import (
	_ "embed"
	"fmt"
	"math"

	"github.com/lutq/lutq/gemm/cuda"
	"github.com/lutq/lutq/gemm/cuda/driver"
	"github.com/lutq/lutq/gemm/cuda/ptx"
)

//go:embed lutspread.cu
var spreadSource string

const spreadName = "lutspread"

// spreadsTried is whether lutspread.cu is tried beside others. It has yet to run on a GPU, which is what TestGPUSpread is for.
const spreadsTried = false

// spread is lutspread.cu as it is compiled: fields whose sums all workers that share them add up.
type spread struct {
	Columns int // rows of X of a field
	Groups  int // of 64 rows of Ŵ, of a field
	Splits  int // warpgroups that share the columns of 64 rows of Ŵ
	Lookup  Lookup
}

const (
	fewestSpread = 33  // rows of X for which lutspread.cu is tried, and
	mostSpread   = 256 // the most
	spreadStages = 16  // at most
	spreadAmong  = 16  // workers of a field at most
	spreadTried  = 2   // variants of it that are tried
)

// spreadVariants returns all that lutspread.cu is compiled as for a format.
func (f Format) spreadVariants() []spread {
	if !f.hasMany() {
		return nil
	}
	var all []spread
	for _, v := range []spread{
		{Columns: 48, Groups: 2, Splits: 2},
		{Columns: 48, Groups: 4, Splits: 1},
		{Columns: 64, Groups: 1, Splits: 4},
		{Columns: 64, Groups: 2, Splits: 2},
		{Columns: 64, Groups: 4, Splits: 1},
		{Columns: 96, Groups: 2, Splits: 1},
		{Columns: 96, Groups: 3, Splits: 1},
		{Columns: 128, Groups: 2, Splits: 1},
		{Columns: 128, Groups: 3, Splits: 1},
		{Columns: 192, Groups: 2, Splits: 1},
	} {
		for _, l := range []Lookup{Replicated, Integers} {
			v.Lookup = l
			stages, atoms := v.rings(f)
			if l == Integers && f.Bits != 4 || stages == 0 || atoms == 0 || v.Groups*v.Splits == 4 && f.Group == 32 { // whose scales take the registers
				continue
			}
			all = append(all, v)
		}
	}
	return all
}

func (v spread) String() string {
	s := fmt.Sprintf("spread c%d g%d s%d", v.Columns, v.Groups, v.Splits)
	if v.Lookup == Integers {
		s += " integers"
	}
	return s
}

// Label names the way among all that [lutq bench] may name.
func (v spread) Label() string { return "wgmma " + v.String() }

// Rows implements [cuda.Way]: any number.
func (v spread) Rows() int { return 0 }

// Needs implements [cuda.Way].
func (v spread) Needs(int, int, int) cuda.Needs {
	return cuda.Needs{Form: v.many().form(), Left: true}
}

// many returns lutmany.cu for the same fields.
func (v spread) many() Many { return Many{Columns: v.Columns, Groups: v.Groups, Lookup: v.Lookup} }

func (v spread) threads() int { return 128 * (v.Groups*v.Splits + 1) }

// fieldBytes returns what the sums of a field take, which a worker leaves.
func (v spread) fieldBytes() int { return v.Columns * 64 * v.Groups * 4 }

// rings returns how many half atoms of X, in whose place sums have room, and atoms of codes there is room for; 0 where there is none.
func (v spread) rings(f Format) (stages, atoms int) {
	const phases = 16
	m := v.many()
	stage, atom := 128*v.Columns+phases, m.AtomBytes(f)+phases
	for _, atoms = range []int{max(4, 2*v.Splits), 3, 2} {
		if atoms%v.Splits != 0 {
			continue
		}
		stages = min(spreadStages, max(HopperShared-m.TableBytes(f)-atoms*atom-phases, 0)/stage)
		stages -= stages % (2 * v.Splits)
		if stages >= 4 && stages*128*v.Columns >= v.Splits*v.fieldBytes() {
			return stages, atoms
		}
	}
	return 0, 0
}

// shared returns the bytes of shared memory that a block takes.
func (v spread) shared(f Format) int {
	stages, atoms := v.rings(f)
	return v.many().TableBytes(f) + stages*(128*v.Columns+16) + atoms*(v.many().AtomBytes(f)+16) + 16
}

// spreadKernel is lutspread.cu for a format.
type spreadKernel struct {
	Format
	spread
}

// Kernel implements [cuda.Kernel].
func (k spreadKernel) Kernel() driver.Kernel {
	stages, atoms := k.rings(k.Format)
	wide := 0
	if k.many().wideRows(k.Format) {
		wide = 1
	}
	return driver.Kernel{
		Name:   fmt.Sprintf("%s.%s.cu", spreadName, k.name()),
		Source: Source() + k.Lookup.source() + ptx.WGMMA() + ptx.Left() + ptx.Fields() + weightsSource + spreadSource,
		Options: driver.CompileOptions{Defines: append(append(k.Defines(), k.Lookup.Defines()...), "NT=2", "DEPTH=1", fmt.Sprintf("WARPS=%d", k.threads()/32),
			fmt.Sprintf("COLUMNS=%d", k.Columns), fmt.Sprintf("GROUPS4=%d", k.Groups), fmt.Sprintf("SPLITS=%d", k.Splits),
			fmt.Sprintf("STAGES=%d", stages), fmt.Sprintf("ATOMS=%d", atoms), fmt.Sprintf("WIDE_ROWS=%d", wide), "PLANES=0", "OF_ATOM=2")},
	}
}

// divide returns how m rows of X by an N×K matrix are divided among up to so many workers, as takes the least: whole fields, or all fields with
// as many workers each.
func (v spread) divide(n, k, m, most int) Work {
	w := v.many().DivideBy(n, k, m, most, 0, 0)
	fields, atoms := int(w.fields), int(w.atoms)
	w.shared, w.workers = 0, uint32(min(fields, most))
	best := v.cycles(atoms, 1) * float64((fields+most-1)/most)
	for sharers := 2; sharers <= min(spreadAmong, atoms) && sharers*fields <= most; sharers++ {
		if c := v.cycles((atoms+sharers-1)/sharers, sharers); c < best {
			w.shared, w.workers, best = w.fields, uint32(sharers*fields), c
		}
	}
	w.cost = int(best)
	return w
}

// cycles returns about how many cycles a piece takes with what follows it, predicted from what lutmany.cu takes: none has been timed.
func (v spread) cycles(atoms, sharers int) float64 {
	const (
		far   = 27   // bytes of a cycle, from the level-2 cache
		near  = 100  // and to shared memory
		apart = 2000 // until others' sums are seen
	)
	turn := map[[2]int]float64{ // SPLITS atoms of a field, by rows of X and warpgroups
		{48, 4}: 1800, {64, 4}: 1870, {96, 2}: 1200, {96, 3}: 1580, {128, 2}: 1410, {128, 3}: 1860, {192, 2}: 1730,
	}[[2]int{v.Columns, v.Groups * v.Splits}]
	if v.Lookup == Integers {
		turn *= 0.97
	}
	turn = max(turn, float64(v.Splits*v.Columns*256)/far)
	c := float64((atoms+v.Splits-1)/v.Splits)*turn + 300 + 2*float64(v.Splits*v.fieldBytes())/near + float64(v.fieldBytes())/2/float64(sharers)/far
	if sharers > 1 {
		c += apart + 2*float64(v.fieldBytes())*float64(sharers-1)/float64(sharers)/far
	}
	return c
}

// cost returns about how many cycles a product takes on an H200.
func (v spread) cost(n, k, m int) float64 {
	const fixed = 3500 // to begin, and until the first codes are there
	return fixed + float64(v.divide(n, k, m, Workers).cost)
}

// spreadOut returns how a product is launched for so many workers on sms multiprocessors, for X that is prepared.
func (t *Tiles) spreadOut(at []driver.Ptr, v spread, o cuda.Operands, workers, sms int) cuda.Launch {
	share := v.divide(t.n, t.k, o.M, workers)
	share.flags = uint64(o.Flags)
	share.power, share.back = float32(math.Ldexp(1, t.exponent)), float32(math.Ldexp(1, -t.exponent))
	p := Product{N: t.n, K: t.k, At: at, Codebook: t.codebook}
	l := p.launch(v.many(), spreadKernel{t.format, v}, spreadName, share, o, sms, v.shared(t.format))
	l.Block.X = uint32(v.threads())
	return l
}

// spreadWays returns the ways of lutspread.cu that are tried beside others: those predicted to take less than lutmany.cu. There are none where not
// all blocks are at work at once.
func (t *Tiles) spreadWays(g cuda.GPU, m int) []cuda.Way {
	if !g.Hopper() || !g.CooperativeGrids || m < fewestSpread || m > mostSpread {
		return nil
	}
	least := math.Inf(1)
	for _, v := range t.format.manyVariants() {
		least = min(least, v.cost(t.n, t.k, m))
	}
	var all []cuda.Way
	for _, v := range t.format.spreadVariants() {
		allowed := t.lookup == chosen || t.lookup == v.Lookup
		if v.Lookup == Integers && !t.hasIntegers(g) || !allowed || v.shared(t.format) > g.SharedPerBlock || v.cost(t.n, t.k, m) > least {
			continue
		}
		all = append(all, v)
	}
	cost := func(a cuda.Way) float64 { return a.(spread).cost(t.n, t.k, m) }
	return cuda.Shortlist(all, cost, spreadTried, tunedWithin)
}
