package cuda

import (
	_ "embed"
	"encoding/binary"
	"fmt"

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
type fp8Variant struct{ manyVariant }

// hasFP8 reports whether lutfp8.cu is compiled for a format.
func (f Format) hasFP8() bool { return f.Group != 32 }

// fp8Variants returns all that lutfp8.cu is compiled as for a format.
func (f Format) fp8Variants() []fp8Variant {
	if !f.hasFP8() {
		return nil
	}
	var all []fp8Variant
	for _, v := range []manyVariant{{columns: 128, groups: 2}, {columns: 96, groups: 2}, {columns: 64, groups: 3}} {
		if stages, _ := (fp8Variant{v}).rings(f); stages >= 3 {
			all = append(all, fp8Variant{v})
		}
	}
	return all
}

func (v fp8Variant) String() string { return "fp8 " + v.manyVariant.String() }

// fixedBytes returns the shared memory that is neither X nor codes.
func (v fp8Variant) fixedBytes(f Format) int {
	table, _ := f.tableBytes()
	return table + v.tiles()*outBytes
}

// mostAtoms are the atoms of codes in shared memory where there is room: enough for memory to be busy.
const mostAtoms = 6

// rings returns how many stages of X, each of an atom, and atoms of codes there is room for.
func (v fp8Variant) rings(f Format) (stages, atoms int) {
	const phases = 16
	left := max(hopperShared-v.fixedBytes(f), 0)
	x, codes := 128*v.columns+phases, v.atomBytes(f)+phases
	atoms = min(mostAtoms, max(left-4*x, 0)/codes)
	if atoms < 2 {
		atoms = 2
	}
	return min(mostStages, max(left-atoms*codes, 0)/x), atoms
}

// shared returns the bytes of shared memory that a block takes.
func (v fp8Variant) shared(f Format) int {
	stages, atoms := v.rings(f)
	return v.fixedBytes(f) + stages*(128*v.columns+16) + atoms*(v.atomBytes(f)+16)
}

// fp8Kernel is lutfp8.cu for a format.
type fp8Kernel struct {
	Format
	fp8Variant
}

func (k fp8Kernel) kernel() driver.Kernel {
	stages, atoms := k.rings(k.Format)
	return driver.Kernel{
		Name:   fmt.Sprintf("%s.%s.cu", fp8Name, k.name()),
		Source: ptx.Instructions() + lutSource + ptx.WGMMA() + ptx.Fields() + fp8Source,
		Options: driver.CompileOptions{Defines: append(k.defines(), "NT=2", "DEPTH=1", "FP8=1", fmt.Sprintf("WARPS=%d", k.threads()/32),
			fmt.Sprintf("COLUMNS=%d", k.columns), fmt.Sprintf("GROUPS4=%d", k.groups), fmt.Sprintf("STAGES=%d", stages), fmt.Sprintf("ATOMS=%d", atoms),
			"PLANES=0", "WIDE_ROWS=1", "OF_ATOM=1")},
	}
}

// lutbytes is lutbytes.cu: the kernel that rounds X, of a type, and prepares it for lutfp8.cu.
type lutbytes struct{ dtype driver.DType }

func (b lutbytes) kernel() driver.Kernel {
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

// bytesLaunch returns how lutbytes.cu is launched to round X [m, k] to an address, and its argument in C's layout.
func bytesLaunch(x, to driver.Ptr, m, k int) (driver.Launch, []byte) {
	var p []byte
	for _, address := range []driver.Ptr{x, to, scalesAt(to, m, k)} {
		p = binary.LittleEndian.AppendUint64(p, uint64(address))
	}
	for _, n := range []int{m, k, atomsOf(k), 0} { // to the end of 8 bytes
		p = binary.LittleEndian.AppendUint32(p, uint32(n))
	}
	return driver.Launch{Grid: driver.Dim{X: uint32(roundedRows(m))}, Block: driver.Dim{X: 256}, Programmatic: true}, p
}

// fp8Plan is how a product is launched.
type fp8Plan struct {
	multiply driver.Launch
	params   params
	work     work
	scales   driver.Ptr // of rows of X
}

// fp8Plan returns how a product by a matrix is launched for so many workers on sms multiprocessors, as manyPlan does.
func (v fp8Variant) fp8Plan(w *Matrix, o Operands, flags driver.Ptr, workers, sms int) fp8Plan {
	p := fp8Plan{scales: scalesAt(o.X, o.M, w.K), work: v.divide(w.N, w.K, o.M, workers)}
	p.work.sums, p.work.flags = uint64(o.Scratch), uint64(flags)
	p.work.power, p.work.back = 1/w.factor8, 1
	p.params = params{
		codes: uint64(w.codes), scales: uint64(w.scales), units: uint32((w.K + repack.UnitCols - 1) / repack.UnitCols),
		n: uint32(w.N), k: uint32(w.K), m: uint32(o.M), x: uint64(o.X), y: uint64(o.Y), bias: uint64(o.Bias), codebook: w.codebook8,
	}
	p.multiply = driver.Launch{
		Grid:  driver.Dim{X: min(p.work.workers, uint32(sms))},
		Block: driver.Dim{X: uint32(v.threads())}, Shared: v.shared(w.Format), Programmatic: true,
	}
	return p
}

// matMulFP8 queues a product with X and the table rounded to E4M3.
func (e *Engine) matMulFP8(s *driver.Stream, w *Matrix, o Operands, v fp8Variant, flags driver.Ptr) error {
	p := v.fp8Plan(w, o, flags, manyWorkers, e.limits.sms)
	multiply, err := e.others.function(fp8Kernel{w.Format, v}, fp8Name, p.multiply.Shared)
	if err != nil {
		return err
	}
	return multiply.Launch(s, p.multiply, e.args.Reset().Struct(p.params.bytes()).Struct(p.work.bytes()).Ptr(p.scales))
}

// RoundToFP8 has products of [fp8.FewestRows] rows of X and more by a matrix round X and the table to E4M3 as package fp8
// does, also where that is slower than 16 bits: it changes results. It reports whether there are kernels for that; without
// any it changes nothing.
func (e *Engine) RoundToFP8(w *Matrix) bool {
	w.fp8 = true
	w.fp8 = len(e.fp8Ways(w, fp8.FewestRows)) > 0
	return w.fp8
}

// fp8Ways returns [Engine.Ways] of a matrix for which E4M3 is asked for, the best guess first, or none.
func (e *Engine) fp8Ways(w *Matrix, m int) []Way {
	if !w.fp8 || e.dev.Info.Major != 9 || e.noCompiler != nil {
		return nil
	}
	var all []Way
	for _, v := range w.Format.fp8Variants() {
		if v.shared(w.Format) <= e.limits.sharedBlock {
			all = append(all, Way{fp8: v})
		}
	}
	return shortlist(all, func(a Way) float64 { return a.fp8.guess(w.N, w.K, m) })
}

// guess returns about how many cycles a product takes on an H200.
func (v fp8Variant) guess(n, k, m int) float64 {
	const fixed = 15000              // to begin, to write and to add what others left
	atom := map[manyVariant]float64{ // of a field
		{128, 2, 0}: 1280, {96, 2, 0}: 1080, {64, 3, 0}: 1400,
	}[v.manyVariant]
	w := v.divide(n, k, m, manyWorkers)
	atoms := float64(w.shared*w.atoms)/float64(w.workers) + float64((w.fields-w.shared)/manyWorkers*w.atoms)
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
