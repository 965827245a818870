package sparse

import (
	_ "embed"
	"fmt"

	"github.com/lutq/lutq/gemm/cuda"
	"github.com/lutq/lutq/gemm/cuda/driver"
	"github.com/lutq/lutq/gemm/cuda/table"
	"github.com/lutq/lutq/repack"
)

//go:embed sparserows.cu
var rowsSource string

const rowsName = "sparserows"

// rowsKernel is sparserows.cu as it is compiled: the kernel that writes rows of what two in four are kept of.
type rowsKernel struct {
	format table.Format
	out    driver.DType // the format's own or F32
}

// Kernel implements [cuda.Kernel].
func (r rowsKernel) Kernel() driver.Kernel {
	same := 0
	if r.out == r.format.Type {
		same = 1
	}
	k := driver.Kernel{
		Name:    fmt.Sprintf("%s.%s-%v.cu", rowsName, cuda.Format(r.format).Name(), r.out),
		Source:  table.Source() + rowsSource,
		Options: driver.CompileOptions{Defines: append(r.format.DenseDefines(), fmt.Sprintf("OUT=%d", same))},
	}
	k.PTX = func(i driver.DeviceInfo) ([]byte, error) { return ptxOf(r.format, k, i) }
	return k
}

// Rows implements [cuda.Tiles]: numbers are the products of rounded table values and scales, and zeros.
func (t *Tiles) Rows(g cuda.GPU, at []driver.Ptr, r cuda.Rows) (cuda.Launch, error) {
	if r.To%16 != 0 {
		return cuda.Launch{}, fmt.Errorf("rows at %#x: want a multiple of 16", uint64(r.To))
	}
	first, units := r.First, t.shape(1).Units()
	items := units * ((first+r.Count+repack.TileRows-1)/repack.TileRows - first/repack.TileRows)
	if r.Index != 0 {
		first, items = 0, units*r.Count
	}
	return cuda.Launch{
		Launch: t.format.DenseLaunch(items, g.SMs), Of: rowsKernel{t.format, r.Type}, Function: rowsName,
		Args: [][]byte{table.RowParams(at, r.To, r.Index, units, first, r.Count, t.k, t.codebook)},
	}, nil
}
