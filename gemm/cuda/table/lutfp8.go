package table

import (
	_ "embed"
	"encoding/binary"
	"fmt"

	"github.com/lutq/lutq/gemm/cuda"
	"github.com/lutq/lutq/gemm/cuda/driver"
	"github.com/lutq/lutq/gemm/cuda/ptx"
	"github.com/lutq/lutq/gemm/fp8"
	"github.com/lutq/lutq/repack"
)

var (
	//go:embed lutfp8.cu
	fp8Source string
	//go:embed lutbytes.cu
	bytesSource string
)

const (
	fp8Name   = "lutfp8"
	bytesName = "lutbytes"
)

// fp8Variant is lutfp8.cu as it is compiled: as lutmany.cu, of the same fields.
type fp8Variant struct{ Many }

// hasFP8 reports whether lutfp8.cu is compiled for a format.
func (f Format) hasFP8() bool { return f.Group != 32 }

// fp8Variants returns all that lutfp8.cu is compiled as for a format.
func (f Format) fp8Variants() []fp8Variant {
	if !f.hasFP8() {
		return nil
	}
	var all []fp8Variant
	for _, v := range []Many{{Columns: 128, Groups: 2}, {Columns: 96, Groups: 2}, {Columns: 64, Groups: 3}} {
		if stages, _ := (fp8Variant{v}).rings(f); stages >= 3 {
			all = append(all, fp8Variant{v})
		}
	}
	return all
}

func (v fp8Variant) String() string { return "fp8 " + v.Many.String() }

// Label is that of [Many].
func (v fp8Variant) Label() string { return "wgmma " + v.String() }

// FP8 says that X and the table are rounded to E4M3.
func (v fp8Variant) FP8() bool { return true }

// Needs implements [cuda.Way].
func (v fp8Variant) Needs(int, int, int) cuda.Needs {
	return cuda.Needs{Form: Rounded, Sums: v.SumBytes(Workers), Flags: true}
}

// fixedBytes returns the shared memory that is neither X nor codes.
func (v fp8Variant) fixedBytes(f Format) int {
	table, _ := f.tableBytes()
	return table + v.Tiles()*OutBytes
}

// mostAtoms are the atoms of codes in shared memory where there is room: enough for memory to be busy.
const mostAtoms = 6

// rings returns how many stages of X, each of an atom, and atoms of codes there is room for.
func (v fp8Variant) rings(f Format) (stages, atoms int) {
	const phases = 16
	left := max(HopperShared-v.fixedBytes(f), 0)
	x, codes := 128*v.Columns+phases, v.AtomBytes(f)+phases
	atoms = min(mostAtoms, max(left-4*x, 0)/codes)
	if atoms < 2 {
		atoms = 2
	}
	return min(MostStages, max(left-atoms*codes, 0)/x), atoms
}

// shared returns the bytes of shared memory that a block takes.
func (v fp8Variant) shared(f Format) int {
	stages, atoms := v.rings(f)
	return v.fixedBytes(f) + stages*(128*v.Columns+16) + atoms*(v.AtomBytes(f)+16)
}

// fp8Kernel is lutfp8.cu for a format.
type fp8Kernel struct {
	Format
	fp8Variant
}

// Kernel implements [cuda.Kernel].
func (k fp8Kernel) Kernel() driver.Kernel {
	stages, atoms := k.rings(k.Format)
	return driver.Kernel{
		Name:   fmt.Sprintf("%s.%s.cu", fp8Name, k.name()),
		Source: Source() + ptx.WGMMA() + ptx.Fields() + blockSource + fp8Source,
		Options: driver.CompileOptions{Defines: append(k.Defines(), "NT=2", "DEPTH=1", "FP8=1", fmt.Sprintf("WARPS=%d", k.threads()/32),
			fmt.Sprintf("COLUMNS=%d", k.Columns), fmt.Sprintf("GROUPS4=%d", k.Groups), fmt.Sprintf("STAGES=%d", stages), fmt.Sprintf("ATOMS=%d", atoms),
			"PLANES=0", "WIDE_ROWS=1", "OF_ATOM=1")},
	}
}

// lutbytes is lutbytes.cu: the kernel that rounds X, of a type, and prepares it for lutfp8.cu.
type lutbytes struct{ dtype driver.DType }

// Kernel implements [cuda.Kernel].
func (b lutbytes) Kernel() driver.Kernel {
	bf16 := 0
	if b.dtype == driver.BF16 {
		bf16 = 1
	}
	return driver.Kernel{
		Name: bytesName + ".cu", Source: ptx.Instructions() + ptx.WGMMA() + bytesSource,
		Options: driver.CompileOptions{Defines: []string{fmt.Sprintf("BF16=%d", bf16)}},
	}
}

// roundedRows and roundedBytes return how many rows of X are prepared, and what they and their scales take, which
// follow.
func roundedRows(m int) int { return (m + preparedRows - 1) / preparedRows * preparedRows }

func roundedBytes(m, k int) int { return roundedRows(m) * (atomsOf(k)*repack.AtomCols + 4) }

// scalesAt returns where the scales of rows of X that are rounded to an address lie.
func scalesAt(x driver.Ptr, m, k int) driver.Ptr {
	return x + driver.Ptr(roundedRows(m)*atomsOf(k)*repack.AtomCols)
}

// launch returns how lutbytes.cu is launched to round X [m, k] to an address.
func (b lutbytes) launch(x, to driver.Ptr, m, k int) cuda.Launch {
	var p []byte
	for _, address := range []driver.Ptr{x, to, scalesAt(to, m, k)} {
		p = binary.LittleEndian.AppendUint64(p, uint64(address))
	}
	for _, n := range []int{m, k, atomsOf(k), 0} { // to the end of 8 bytes
		p = binary.LittleEndian.AppendUint32(p, uint32(n))
	}
	l := driver.Launch{Grid: driver.Dim{X: uint32(roundedRows(m))}, Block: driver.Dim{X: 256}, Programmatic: true}
	return cuda.Launch{Launch: l, Of: b, Function: bytesName, Args: [][]byte{p}}
}

// byFP8 returns how a product is launched for so many workers on sms multiprocessors, as many does.
func (t *Tiles) byFP8(at []driver.Ptr, v fp8Variant, o cuda.Operands, workers, sms int) cuda.Launch {
	share := v.divide(t.n, t.k, o.M, workers)
	share.sums, share.flags = uint64(o.Scratch), uint64(o.Flags)
	share.power, share.back = 1/t.factor8, 1
	p := Product{N: t.n, K: t.k, At: at, Codebook: t.table8}
	l := p.launch(v.Many, fp8Kernel{t.format, v}, fp8Name, share, o, sms, v.shared(t.format))
	l.Args = append(l.Args, binary.LittleEndian.AppendUint64(nil, uint64(scalesAt(o.X, o.M, t.k))))
	return l
}

// RoundToFP8 implements [cuda.Rounder].
func (t *Tiles) RoundToFP8(g cuda.GPU) cuda.Tiles {
	rounded := *t
	rounded.fp8 = true
	if len(rounded.fp8Ways(g, fp8.FewestRows)) == 0 {
		return nil
	}
	return &rounded
}

// fp8Ways returns the ways of a matrix for which E4M3 is asked for, the best guess first, or none.
func (t *Tiles) fp8Ways(g cuda.GPU, m int) []cuda.Way {
	if !t.fp8 || !g.Hopper() {
		return nil
	}
	var all []cuda.Way
	for _, v := range t.format.fp8Variants() {
		if v.shared(t.format) <= g.SharedPerBlock {
			all = append(all, v)
		}
	}
	return cuda.Shortlist(all, func(a cuda.Way) float64 { return a.(fp8Variant).cost(t.n, t.k, m) }, Tried, tunedWithin)
}

// cost returns about how many cycles a product takes on an H200.
func (v fp8Variant) cost(n, k, m int) float64 {
	const fixed = 15000       // to begin, to write and to add what others left
	atom := map[Many]float64{ // of a field
		{128, 2, 0}: 1280, {96, 2, 0}: 1080, {64, 3, 0}: 1400,
	}[v.Many]
	w := v.divide(n, k, m, Workers)
	atoms := float64(w.shared*w.atoms)/float64(w.workers) + float64((w.fields-w.shared)/Workers*w.atoms)
	return fixed + atoms*atom
}

// table8 returns a codebook as lutfp8.cu has it, and its factor.
func table8(codebook []float32) (table []uint32, factor float32) {
	codes, factor := fp8.Table(codebook)
	for _, c := range codes {
		table = append(table, uint32(c))
	}
	return table, factor
}
