package cuda

import (
	_ "embed"
	"errors"
	"fmt"

	"github.com/lutq/lutq/gemm/cuda/driver"
	"github.com/lutq/lutq/gemm/cuda/ptx"
	"github.com/lutq/lutq/repack"
)

//go:embed sparserows.cu
var sparseRowsSource string

const sparseRowsName = "sparserows"

// sparseRows is sparserows.cu as it is compiled: the kernel that writes rows of what two in four are kept of.
type sparseRows struct {
	format Format
	out    driver.DType // the format's own or F32
}

// kernel returns the source. With NT=2 all codes are looked up in shared memory.
func (r sparseRows) kernel() driver.Kernel {
	same := 0
	if r.out == r.format.Type {
		same = 1
	}
	k := driver.Kernel{
		Name:   fmt.Sprintf("%s.%s-%v.cu", sparseRowsName, r.format.name(), r.out),
		Source: ptx.Instructions() + lutSource + sparseRowsSource,
		Options: driver.CompileOptions{Defines: append(r.format.defines(),
			"NT=2", fmt.Sprintf("WARPS=%d", denseWarps), "DEPTH=1", fmt.Sprintf("BLOCKS=%d", lutdense{r.format}.blocks()), fmt.Sprintf("OUT=%d", same))},
	}
	k.PTX = func(i driver.DeviceInfo) ([]byte, error) { return r.format.ptxSparse(k, i) }
	return k
}

// SparseUnpackKernels returns the sources of the kernels that write rows of a format of what is kept as numbers of its type or as F32.
func SparseUnpackKernels(f Format) []driver.Kernel {
	return []driver.Kernel{sparseRows{f, f.Type}.kernel(), sparseRows{f, driver.F32}.kernel()}
}

// Rows implements [Packed]: numbers are the products of rounded table values and scales, and zeros.
func (m *SparseMatrix) Rows(s *driver.Stream, dst driver.Ptr, out driver.DType, index driver.Ptr, first, count int) error {
	switch {
	case m.codes == 0:
		return errors.New("the matrix has been closed")
	case out != m.Format.Type && out != driver.F32:
		return fmt.Errorf("rows of type %v of a matrix of type %v", out, m.Format.Type)
	case dst%16 != 0:
		return fmt.Errorf("rows at %#x: want a multiple of 16", uint64(dst))
	case first < 0 || count < 0 || index == 0 && first+count > m.N:
		return fmt.Errorf("%d rows from row %d of a matrix of %d", count, first, m.N)
	case count == 0:
		return nil
	}
	launch, p := m.rowsPlan(dst, index, first, count, m.engine.dev.Info.SMs)
	return m.engine.launchOther(s, sparseRows{m.Format, out}, sparseRowsName, launch, p.bytes())
}

// rowsPlan returns how the kernel is launched on sms multiprocessors, and its argument.
func (m *SparseMatrix) rowsPlan(dst, index driver.Ptr, first, count, sms int) (driver.Launch, params) {
	if index != 0 {
		first = 0
	}
	p := params{
		codes: uint64(m.codes), scales: uint64(m.scales), units: uint32(m.shape(1).units()),
		tilesEach: uint32(first), n: uint32(count), k: uint32(m.K), x: uint64(index), y: uint64(dst), codebook: m.codebook,
	}
	items := int(p.units) * count
	if index == 0 {
		items = int(p.units) * ((first+count+repack.TileRows-1)/repack.TileRows - first/repack.TileRows)
	}
	d := lutdense{m.Format}
	return driver.Launch{
		Grid:   driver.Dim{X: uint32(min((items+denseWarps-1)/denseWarps, d.blocks()*sms))},
		Block:  driver.Dim{X: 32 * denseWarps},
		Shared: d.shared(),
	}, p
}
