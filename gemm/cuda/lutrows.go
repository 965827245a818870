package cuda

import (
	_ "embed"
	"encoding/binary"
	"errors"
	"fmt"

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

// kernel returns the source.
func (r lutrows) kernel() driver.Kernel {
	same := 0
	if r.out == r.format.Type {
		same = 1
	}
	k := driver.Kernel{
		Name:    fmt.Sprintf("%s.%s-%v.cu", rowsName, r.format.name(), r.out),
		Source:  ptx.Instructions() + rowsSource,
		Options: driver.CompileOptions{Defines: append(r.format.defines(), fmt.Sprintf("OUT=%d", same))},
	}
	k.PTX = func(i driver.DeviceInfo) ([]byte, error) { return r.format.ptx(k, i) }
	return k
}

// UnpackKernels returns the sources of the kernels that write rows of a format as numbers of its type or as F32.
func (f Format) UnpackKernels() []driver.Kernel {
	return []driver.Kernel{lutdense{f}.kernel(), lutrows{f, driver.F32}.kernel()}
}

// functions are kernels that are loaded when they are first asked for.
type functions struct {
	dev     *driver.Device
	kernels map[compiled]loaded
}

// compiled is a kernel, in one of the ways to compile it: a value that can be compared.
type compiled interface{ kernel() driver.Kernel }

type loaded struct {
	module   *driver.Module
	function *driver.Function
}

func (f *functions) close() error {
	var errs []error
	for _, k := range f.kernels {
		errs = append(errs, k.module.Close())
	}
	clear(f.kernels)
	return errors.Join(errs...)
}

// Rows implements [Packed]: numbers are the products of rounded table values and scales.
// Whole tiles as numbers of the matrix's type are written at the speed of memory, others
// one number at a time.
func (w *Matrix) Rows(s *driver.Stream, dst driver.Ptr, out driver.DType, index driver.Ptr, first, count int) error {
	switch {
	case w.codes == 0:
		return errors.New("the matrix has been closed")
	case out != w.Format.Type && out != driver.F32:
		return fmt.Errorf("rows of type %v of a matrix of type %v", out, w.Format.Type)
	case first < 0 || count < 0 || index == 0 && first+count > w.N:
		return fmt.Errorf("%d rows from row %d of a matrix of %d", count, first, w.N)
	case count == 0:
		return nil
	}
	if out == w.Format.Type && index == 0 && first%repack.TileRows == 0 && dst%16 == 0 {
		l, args := w.denseLaunch(dst, first, count, w.engine.dev.Info.SMs)
		return w.engine.launchOther(s, lutdense{w.Format}, denseName, l, args)
	}
	l, args := w.rowsLaunch(dst, index, first, count)
	return w.engine.launchOther(s, lutrows{w.Format, out}, rowsName, l, args)
}

// launchOther launches a kernel that is no [Config].
func (e *Engine) launchOther(s *driver.Stream, k compiled, name string, l driver.Launch, args []byte) error {
	shared := 0
	if l.Shared > 0 {
		shared = e.limits.sharedBlock // for launches that follow too
	}
	f, err := e.others.function(k, name, shared)
	if err != nil {
		return err
	}
	return f.Launch(s, l, e.args.Reset().Struct(args))
}

// rowsLaunch returns how the kernel is launched, and its argument in C's layout.
func (w *Matrix) rowsLaunch(dst, index driver.Ptr, first, count int) (driver.Launch, []byte) {
	atoms := (w.K + repack.UnitCols - 1) / repack.UnitCols * (repack.UnitCols / repack.AtomCols)
	var p []byte
	for _, address := range []driver.Ptr{w.codes, w.scales, dst, index} {
		p = binary.LittleEndian.AppendUint64(p, uint64(address))
	}
	for _, n := range append([]uint32{uint32(first), uint32(w.K), uint32(atoms)}, w.codebook...) {
		p = binary.LittleEndian.AppendUint32(p, n)
	}
	for len(p)%8 != 0 { // the struct's alignment
		p = append(p, 0)
	}
	const threads, most = 256, 8 // of a block; blocks for a row
	return driver.Launch{
		Grid:  driver.Dim{X: uint32(count), Y: uint32(min((w.K+threads-1)/threads, most))},
		Block: driver.Dim{X: threads},
	}, p
}

// function returns the function of a kernel, which may have so much dynamic shared memory.
func (f *functions) function(k compiled, name string, shared int) (*driver.Function, error) {
	if l, ok := f.kernels[k]; ok {
		return l.function, nil
	}
	m, err := f.dev.LoadKernel(k.kernel())
	if err != nil {
		return nil, err
	}
	l := loaded{module: m}
	l.function, err = m.Function(name)
	if err == nil && shared > 0 {
		err = l.function.SetMaxDynamicShared(shared)
	}
	if err != nil {
		return nil, errors.Join(err, m.Close())
	}
	f.kernels[k] = l
	return l.function, nil
}
