package table

import (
	_ "embed"
	"fmt"

	"github.com/lutq/lutq/gemm/cuda"
	"github.com/lutq/lutq/gemm/cuda/driver"
	"github.com/lutq/lutq/gemm/cuda/ptx"
	"github.com/lutq/lutq/repack"
)

//go:embed lutdense.cu
var denseSource string

const denseName = "lutdense"

// lutdense is lutdense.cu as it is compiled: the kernel that writes whole tiles of a matrix as numbers of the
// format's type, as fast as memory takes them.
type lutdense struct{ Format }

// Warps of a block.
const denseWarps = 16

// blocks returns how many blocks a multiprocessor has room for: the table takes 64 KB, at 5 bits 128.
func (d lutdense) blocks() int {
	if d.Bits == 5 {
		return 1
	}
	return 2
}

// shared returns the bytes of the table.
func (d lutdense) shared() int {
	if d.Bits == 5 {
		return 128 << 10
	}
	return 64 << 10
}

// Kernel implements [cuda.Kernel]. With NT=2, as for more than 8 rows of X, all codes are looked up in shared memory, so
// that columns are in order.
func (d lutdense) Kernel() driver.Kernel {
	k := driver.Kernel{
		Name:    fmt.Sprintf("%s.%s.cu", denseName, d.name()),
		Source:  ptx.Instructions() + lutSource + denseSource,
		Options: driver.CompileOptions{Defines: d.DenseDefines()},
	}
	k.PTX = func(i driver.DeviceInfo) ([]byte, error) { return d.ptx(k, i) }
	return k
}

// denseLaunch returns how the kernel is launched to write count rows from row first on, a multiple of 16, on sms multiprocessors.
func (t *Tiles) denseLaunch(at []driver.Ptr, dst driver.Ptr, first, count, sms int) cuda.Launch {
	d, l, p := t.densePlan(at, dst, first, count, sms)
	return cuda.Launch{Launch: l, Of: d, Function: denseName, Args: [][]byte{p.Bytes()}}
}

func (t *Tiles) densePlan(at []driver.Ptr, dst driver.Ptr, first, count, sms int) (lutdense, driver.Launch, Params) {
	d := lutdense{t.format}
	units, tile := (t.k+repack.UnitCols-1)/repack.UnitCols, first/repack.TileRows
	tiles := (count + repack.TileRows - 1) / repack.TileRows
	p := Params{
		codes:  uint64(at[0]) + uint64(tile)*uint64(units*repack.UnitCols*repack.TileRows/8*t.format.Bits),
		scales: uint64(at[1]) + uint64(tile)*uint64(t.format.scaleBytes(units)),
		units:  uint32(units), tilesEach: uint32(tiles), n: uint32(count), k: uint32(t.k), y: uint64(dst), codebook: t.codebook,
	}
	return d, d.DenseLaunch(tiles*units*(repack.UnitCols/repack.AtomCols), sms), p
}

// DenseLaunch returns how a kernel is launched whose warps write so many atoms as numbers, with a table.
func (f Format) DenseLaunch(atoms, sms int) driver.Launch {
	d := lutdense{f}
	return driver.Launch{
		Grid:   driver.Dim{X: uint32(min((atoms+denseWarps-1)/denseWarps, d.blocks()*sms))},
		Block:  driver.Dim{X: 32 * denseWarps},
		Shared: d.shared(),
	}
}

// DenseDefines returns the definitions of such a kernel.
func (f Format) DenseDefines() []string {
	return append(f.Defines(), "NT=2", fmt.Sprintf("WARPS=%d", denseWarps), "DEPTH=1", fmt.Sprintf("BLOCKS=%d", lutdense{f}.blocks()))
}
