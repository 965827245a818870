package cuda

import (
	_ "embed"
	"fmt"

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

// kernel returns the source. With NT=2, as for more than 8 rows of X, all codes are looked up in shared memory, so
// that columns are in order.
func (d lutdense) kernel() driver.Kernel {
	k := driver.Kernel{
		Name:   fmt.Sprintf("%s.%s.cu", denseName, d.name()),
		Source: ptx.Instructions() + lutSource + denseSource,
		Options: driver.CompileOptions{Defines: append(d.defines(),
			"NT=2", fmt.Sprintf("WARPS=%d", denseWarps), "DEPTH=1", fmt.Sprintf("BLOCKS=%d", d.blocks()))},
	}
	k.PTX = func(i driver.DeviceInfo) ([]byte, error) { return d.ptx(k, i) }
	return k
}

// denseLaunch returns how the kernel is launched to write count rows from row first on, a multiple of 16, on sms
// multiprocessors, and its argument in C's layout.
func (w *Matrix) denseLaunch(dst driver.Ptr, first, count, sms int) (driver.Launch, []byte) {
	l, p := w.densePlan(dst, first, count, sms)
	return l, p.bytes()
}

func (w *Matrix) densePlan(dst driver.Ptr, first, count, sms int) (driver.Launch, params) {
	d := lutdense{w.Format}
	units, tile := (w.K+repack.UnitCols-1)/repack.UnitCols, first/repack.TileRows
	tiles := (count + repack.TileRows - 1) / repack.TileRows
	p := params{
		codes:  uint64(w.codes) + uint64(tile)*uint64(units*repack.UnitCols*repack.TileRows/8*w.Format.Bits),
		scales: uint64(w.scales) + uint64(tile)*uint64(w.Format.scaleBytes(units)),
		units:  uint32(units), tilesEach: uint32(tiles), n: uint32(count), k: uint32(w.K), y: uint64(dst), codebook: w.codebook,
	}
	warps := tiles * units * (repack.UnitCols / repack.AtomCols)
	return driver.Launch{
		Grid:   driver.Dim{X: uint32(min((warps+denseWarps-1)/denseWarps, d.blocks()*sms))},
		Block:  driver.Dim{X: 32 * denseWarps},
		Shared: d.shared(),
	}, p
}

// scaleBytes returns what the scales of a tile of some units take.
func (f Format) scaleBytes(units int) int {
	scales := 1 // of a row
	if f.Group != 0 {
		scales = units * repack.UnitCols / f.Group
	}
	return repack.TileRows * scales * f.Scale.Size()
}
