package table

import (
	_ "embed"
	"encoding/binary"
	"fmt"

	"github.com/lutq/lutq/gemm/cuda"
	"github.com/lutq/lutq/gemm/cuda/driver"
	"github.com/lutq/lutq/gemm/cuda/ptx"
	"github.com/lutq/lutq/repack"
)

//go:embed lutrows.cu
var rowsSource string

const rowsName = "lutrows"

// lutrows is lutrows.cu as it is compiled: the kernel that writes the rows of a matrix as numbers of a type.
type lutrows struct {
	format Format
	out    driver.DType // the format's own or F32
}

// Kernel implements [cuda.Kernel].
func (r lutrows) Kernel() driver.Kernel {
	same := 0
	if r.out == r.format.Type {
		same = 1
	}
	k := driver.Kernel{
		Name:    fmt.Sprintf("%s.%s-%v.cu", rowsName, r.format.name(), r.out),
		Source:  ptx.Instructions() + rowsSource,
		Options: driver.CompileOptions{Defines: append(r.format.Defines(), fmt.Sprintf("OUT=%d", same))},
	}
	k.PTX = func(i driver.DeviceInfo) ([]byte, error) { return r.format.ptx(k, i) }
	return k
}

// Rows implements [cuda.Tiles]: numbers are the products of rounded table values and scales.
// Whole tiles as numbers of the matrix's type are written at the speed of memory, others
// one number at a time.
func (t *Tiles) Rows(g cuda.GPU, at []driver.Ptr, r cuda.Rows) (cuda.Launch, error) {
	if r.Type == driver.E4M3 {
		return t.foldLaunch(at, r, g.SMs), nil
	}
	if r.Type == t.format.Type && r.Index == 0 && r.First%repack.TileRows == 0 && r.To%16 == 0 {
		return t.denseLaunch(at, r.To, r.First, r.Count, g.SMs), nil
	}
	return t.rowsLaunch(at, r), nil
}

// rowsLaunch returns how the kernel is launched.
func (t *Tiles) rowsLaunch(at []driver.Ptr, r cuda.Rows) cuda.Launch {
	atoms := (t.k + repack.UnitCols - 1) / repack.UnitCols * (repack.UnitCols / repack.AtomCols)
	var p []byte
	for _, address := range []driver.Ptr{at[0], at[1], r.To, r.Index} {
		p = binary.LittleEndian.AppendUint64(p, uint64(address))
	}
	for _, n := range append([]uint32{uint32(r.First), uint32(t.k), uint32(atoms)}, t.codebook...) {
		p = binary.LittleEndian.AppendUint32(p, n)
	}
	for len(p)%8 != 0 { // the struct's alignment
		p = append(p, 0)
	}
	const threads, most = 256, 8 // of a block; blocks for a row
	return cuda.Launch{
		Launch: driver.Launch{
			Grid:  driver.Dim{X: uint32(r.Count), Y: uint32(min((t.k+threads-1)/threads, most))},
			Block: driver.Dim{X: threads},
		}, Of: lutrows{t.format, r.Type}, Function: rowsName, Args: [][]byte{p},
	}
}
