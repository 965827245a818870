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

//go:embed lutcolumns.cu
var columnsSource string

const columnsName = "lutcolumns"

// lutcolumns is lutcolumns.cu: the kernel that prepares X for lutmany.cu, of any type of 16 bits, in one of its forms.
type lutcolumns struct{ form Form }

// Kernel implements [cuda.Kernel].
func (c lutcolumns) Kernel() driver.Kernel {
	return driver.Kernel{
		Name: columnsName + ".cu", Source: ptx.Instructions() + ptx.Prepared() + columnsSource,
		Options: driver.CompileOptions{Defines: []string{fmt.Sprintf("ORDER=%d", c.form)}},
	}
}

// preparedRows is what rows of X are prepared in multiples of.
const preparedRows = 8

func atomsOf(k int) int { return (k + repack.AtomCols - 1) / repack.AtomCols }

// launch returns how the kernel is launched to prepare X [m, k] to an address on sms multiprocessors.
func (c lutcolumns) launch(x, to driver.Ptr, m, k, sms int) cuda.Launch {
	const warps, blocks = 4, 16 // of a block; of a multiprocessor
	atoms := c.form.atoms(k)
	var p []byte
	for _, address := range []driver.Ptr{x, to} {
		p = binary.LittleEndian.AppendUint64(p, uint64(address))
	}
	for _, n := range []int{m, k, atoms, 0} { // to the end of 8 bytes
		p = binary.LittleEndian.AppendUint32(p, uint32(n))
	}
	parts := (m + preparedRows - 1) / preparedRows * atoms
	return cuda.Launch{
		Launch: driver.Launch{
			Grid:         driver.Dim{X: uint32(min((parts+warps-1)/warps, blocks*sms))},
			Block:        driver.Dim{X: 32 * warps},
			Programmatic: true,
		}, Of: c, Function: columnsName, Args: [][]byte{p},
	}
}
