// Package gather has an experiment: products by binary codes that look bytes of planes up in tables of eight activations.
package gather

import (
	_ "embed"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"github.com/lutq/lutq/formats/weight"
	codes "github.com/lutq/lutq/formats/weight/bcq"
	"github.com/lutq/lutq/gemm/cuda"
	"github.com/lutq/lutq/gemm/cuda/bcq"
	"github.com/lutq/lutq/gemm/cuda/driver"
	"github.com/lutq/lutq/gemm/cuda/ptx"
	"github.com/lutq/lutq/gemm/cuda/table"
	"github.com/lutq/lutq/repack"
)

//go:embed bcqgather.cu
var gatherSource string

// The functions of bcqgather.cu.
const (
	gatherName = "bcqgather"
	readName   = "bcqgatherread"
)

// What the kernel is built on; it has the same numbers.
const (
	warps     = 16        // of a block
	tileRows  = 32        // of a matrix
	chunkCols = 128       // of which tables are made together
	mostRows  = 2         // of X, that one launch multiplies
	tables    = 128 << 10 // bytes of shared memory that tables take at most
)

// kernel is bcqgather.cu as it is compiled.
type kernel struct {
	format cuda.Format
	half   bool
	rows   int // of X: 1 or 2
}

// Kernel implements [cuda.Kernel].
func (g kernel) Kernel() driver.Kernel {
	half := 0
	if g.half {
		half = 1
	}
	return driver.Kernel{
		Name:   fmt.Sprintf("%s.%s.cu", gatherName, g.format.Name()),
		Source: ptx.Instructions() + gatherSource,
		Options: driver.CompileOptions{Defines: append(g.format.Defines(),
			fmt.Sprintf("HALF=%d", half), fmt.Sprintf("ROWS=%d", g.rows), fmt.Sprintf("WARPS=%d", warps))},
		PTX: func(driver.DeviceInfo) ([]byte, error) {
			return nil, errors.New("this kernel for binary codes is compiled when it is needed")
		},
	}
}

// chunkBytes is what the tables of 128 columns take.
func (g kernel) chunkBytes() int {
	entries := 256
	if g.half {
		entries = 128
	}
	return 16 * entries * 2 * g.rows
}

// sets returns how many sets of factors 128 columns have.
func (g kernel) sets() int {
	if g.format.Group == 0 {
		return 1
	}
	return max(1, chunkCols/g.format.Group)
}

// Family is that of binary codes of factors in float16, which are looked up in whole tables or in halves.
type Family struct{ Half bool }

var _ cuda.Family = Family{}

// Name implements [cuda.Family].
func (f Family) Name() string {
	if f.Half {
		return "gather:half"
	}
	return "gather:full"
}

// Kind implements [cuda.Family].
func (Family) Kind() string { return codes.Name }

// Formats implements [cuda.Family].
func (Family) Formats() []cuda.Format {
	return slices.DeleteFunc(bcq.Family{}.Formats(), func(f cuda.Format) bool { return f.Scale != weight.F16 })
}

// Pack implements [cuda.Family].
func (f Family) Pack(w weight.Matrix, t driver.DType) (cuda.Tiles, [][]byte, error) {
	m := w.(*codes.Matrix)
	if !table.Fuses(m.K, m.Group, t) {
		return nil, nil, nil
	}
	laid, err := repack.GatherBCQ(m, f.Half)
	if err != nil {
		return nil, nil, err
	}
	of := cuda.Format{Bits: laid.Bits, Group: laid.Group, Scale: weight.F16, Type: t}
	if laid.Group == laid.K {
		of.Group = 0
	}
	tiles := &Tiles{cuda.Base{Family: f.Name(), N: laid.N, K: laid.K, Of: of, Parts: []int{len(laid.Planes), len(laid.Factors)}}, f.Half}
	return tiles, [][]byte{laid.Planes, laid.Factors}, nil
}

// Like implements [cuda.Family]: what is like a matrix takes no memory.
func (f Family) Like(of cuda.Format, n, k int) cuda.Tiles {
	return &Tiles{cuda.Base{Family: f.Name(), N: n, K: k, Of: of, Parts: []int{0, 0}}, f.Half}
}

// Loosened says how many times as large errors may be: entries of tables are rounded as well.
func (Family) Loosened() float64 { return 1.5 }

// Tiles is a matrix of binary codes. Its parts are planes and factors.
type Tiles struct {
	cuda.Base
	half bool
}

var _ cuda.Tiles = (*Tiles)(nil)

// byTables multiplies up to two rows of X. What slices of K come to lies in scratch memory, by half tables as by whole ones.
type byTables struct{ half bool }

// twin only reads, as byTables does.
type twin struct{ byTables }

// String implements [cuda.Way].
func (b byTables) String() string { return Family{b.half}.Name() }

// Rows implements [cuda.Way].
func (byTables) Rows() int { return mostRows }

// Needs implements [cuda.Way].
func (b byTables) Needs(n, k, m int) cuda.Needs {
	slices, _ := kernel{half: b.half, rows: min(m, mostRows)}.slices(k)
	return cuda.Needs{Sums: 4 * mostRows * slices * n, Flags: true}
}

// Runs implements [cuda.Tiles].
func (t *Tiles) Runs(g cuda.GPU) error {
	switch {
	case g.NoCompiler != nil:
		return fmt.Errorf("%w: products by tables of activations: %w", cuda.ErrNoKernel, g.NoCompiler)
	case t.K%32 != 0:
		return fmt.Errorf("%d input features: the kernel wants a multiple of 32", t.K)
	}
	if k := (kernel{t.Of, t.half, mostRows}); k.fixed(t.K)+k.slot() > g.SharedPerBlock {
		return fmt.Errorf("%w: tables of activations need %d bytes of shared memory, and a block has %d", cuda.ErrNoKernel, k.fixed(t.K)+k.slot(), g.SharedPerBlock)
	}
	return nil
}

// AtOnce implements [cuda.Tiles].
func (t *Tiles) AtOnce(_ cuda.GPU, m int) int { return min(m, mostRows) }

// Ways implements [cuda.Tiles].
func (t *Tiles) Ways(cuda.GPU, int) []cuda.Way { return []cuda.Way{cuda.InTurns} }

// Configs implements [cuda.Tiles].
func (t *Tiles) Configs(cuda.GPU, int) ([]cuda.Way, error) {
	return []cuda.Way{byTables{t.half}}, nil
}

// Twins implements [cuda.Tiles].
func (t *Tiles) Twins(cuda.GPU, int) []cuda.Way { return []cuda.Way{twin{byTables{t.half}}} }

// Kernels implements [cuda.Tiles].
func (t *Tiles) Kernels(_ cuda.GPU, by cuda.Way, m int) []driver.Kernel {
	switch by.(type) {
	case byTables, twin:
		return []driver.Kernel{kernel{t.Of, t.half, min(m, mostRows)}.Kernel()}
	}
	return nil
}

// RowKernels implements [cuda.Tiles]: none.
func (t *Tiles) RowKernels() []driver.Kernel { return nil }

// Rows implements [cuda.Tiles]: it fails.
func (t *Tiles) Rows(cuda.GPU, []driver.Ptr, cuda.Rows) (cuda.Launch, error) {
	return cuda.Launch{}, errors.New("planes in the order of lookups are not written as numbers")
}

// Launch implements [cuda.Tiles].
func (t *Tiles) Launch(g cuda.GPU, at []driver.Ptr, by cuda.Way, o cuda.Operands) ([]cuda.Launch, error) {
	k, p, l := t.plan(g, o.M)
	p.planes, p.factors, p.parts, p.done = uint64(at[0]), uint64(at[1]), uint64(o.Scratch), uint64(o.Flags)
	p.x, p.y, p.bias = uint64(o.X), uint64(o.Y), uint64(o.Bias)
	function := gatherName
	switch by.(type) {
	case byTables:
	case twin:
		function = readName
	default:
		return nil, cuda.Foreign(by, t)
	}
	return []cuda.Launch{{Launch: l, Of: k, Function: function, Args: [][]byte{p.bytes()}}}, nil
}

// params is the argument of bcqgather.cu.
type params struct {
	planes, factors     uint64
	x, y, bias          uint64
	parts, done         uint64
	n, k                uint32
	chunks, sliceChunks uint32
	tiles, sets         uint32
	run, _              uint32
}

func (p *params) bytes() []byte {
	b, _ := binary.Append(nil, binary.LittleEndian, p) // which has a size
	return b
}

// slices returns into how many slices, as equal as the tables that a block has room for allow, the K of k columns is split, and of how many
// chunks each is.
func (g kernel) slices(k int) (slices, each int) {
	chunks := (k + chunkCols - 1) / chunkCols
	slices = (chunks*g.chunkBytes() + tables - 1) / tables
	each = (chunks + slices - 1) / slices
	return (chunks + each - 1) / each, each
}

// fixed returns the shared memory that a block takes for k columns, and slot what each tile of a run takes besides.
func (g kernel) fixed(k int) int {
	_, chunks := g.slices(k)
	return chunks*(g.chunkBytes()+4*g.rows*g.sets()) + 16
}

func (g kernel) slot() int { return warps * g.rows * 32 * 4 }

// plan returns the kernel for one or two rows of X, its argument and its grid: a share of the tiles for each block of a slice.
func (t *Tiles) plan(gpu cuda.GPU, rows int) (kernel, params, driver.Launch) {
	g := kernel{t.Of, t.half, rows}
	slices, sliceChunks := g.slices(t.K)
	tiles := (t.N + tileRows - 1) / tileRows
	blocks := max(1, min(tiles, gpu.SMs/slices))
	most := (tiles + blocks - 1) / blocks
	fixed, slot := g.fixed(t.K), g.slot()
	run := min(most, (gpu.SharedPerBlock-fixed)/slot)
	runs := (most + run - 1) / run
	run = (most + runs - 1) / runs
	sets := 1
	if t.Of.Group != 0 {
		sets = (&repack.BCQGather{N: t.N, K: t.K, Group: t.Of.Group}).Sets()
	}
	p := params{
		n: uint32(t.N), k: uint32(t.K), chunks: uint32((t.K + chunkCols - 1) / chunkCols), sliceChunks: uint32(sliceChunks),
		tiles: uint32(tiles), sets: uint32(sets), run: uint32(run),
	}
	return g, p, driver.Launch{
		Grid: driver.Dim{X: uint32(blocks), Y: uint32(slices)}, Block: driver.Dim{X: 32 * warps}, Shared: fixed + run*slot, Programmatic: true,
	}
}
