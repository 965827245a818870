package driver

import (
	"bytes"
	"fmt"
	"unsafe"
)

// Module is loaded machine code.
type Module struct {
	api    *cudaAPI
	handle uintptr
}

// The numbers of CUjit_option.
const (
	jitErrorLogBuffer     = 5
	jitErrorLogBufferSize = 6
	jitLogBytes           = 16 << 10
)

// LoadModule loads an image: machine code (a cubin) or PTX, which the driver
// then compiles for the GPU.
func (d *Device) LoadModule(image []byte) (*Module, error) {
	if len(image) == 0 {
		return nil, fmt.Errorf("loading an empty module")
	}
	if !bytes.HasPrefix(image, []byte("\x7fELF")) {
		image = append(bytes.Clone(image), 0) // PTX is a C string
	}
	log := make([]byte, jitLogBytes)
	options := [2]uint32{jitErrorLogBuffer, jitErrorLogBufferSize}
	values := struct { // an array of void pointers, which hold numbers too
		log  unsafe.Pointer
		size uintptr
	}{unsafe.Pointer(&log[0]), jitLogBytes}
	m := &Module{api: d.api}
	err := d.api.check("cuModuleLoadDataEx", call(d.api.moduleLoadDataEx,
		uintptr(unsafe.Pointer(&m.handle)), uintptr(unsafe.Pointer(&image[0])), uintptr(len(options)),
		uintptr(unsafe.Pointer(&options)), uintptr(unsafe.Pointer(&values))))
	if err != nil {
		if text := cText(log); text != "" {
			err.(*Error).Detail += ": " + text
		}
		return nil, err
	}
	return m, nil
}

// cText returns the text before the first NUL without space around it.
func cText(b []byte) string {
	b, _, _ = bytes.Cut(b, []byte{0})
	return string(bytes.TrimSpace(b))
}

// Close unloads the module.
func (m *Module) Close() error {
	return m.api.check("cuModuleUnload", call(m.api.moduleUnload, m.handle))
}

// Function returns a kernel of the module by its symbol: its name, where it is
// declared extern "C".
func (m *Module) Function(name string) (*Function, error) {
	f := &Function{api: m.api, name: name}
	symbol := cString(name)
	err := m.api.check("cuModuleGetFunction", call(m.api.moduleGetFunction,
		uintptr(unsafe.Pointer(&f.handle)), m.handle, uintptr(unsafe.Pointer(&symbol[0]))))
	if err != nil {
		return nil, fmt.Errorf("kernel %s: %w", name, err)
	}
	return f, nil
}

// Global returns the address and the bytes of a variable of the module.
func (m *Module) Global(name string) (Ptr, int, error) {
	var p Ptr
	var n uint64
	symbol := cString(name)
	err := m.api.check("cuModuleGetGlobal_v2", call(m.api.moduleGetGlobal,
		uintptr(unsafe.Pointer(&p)), uintptr(unsafe.Pointer(&n)), m.handle, uintptr(unsafe.Pointer(&symbol[0]))))
	if err != nil {
		return 0, 0, fmt.Errorf("variable %s: %w", name, err)
	}
	return p, int(n), nil
}

// Function is a kernel.
type Function struct {
	api    *cudaAPI
	handle uintptr
	name   string
}

// Name returns the kernel's symbol.
func (f *Function) Name() string { return f.name }

// FunctionInfo tells what a kernel takes.
type FunctionInfo struct {
	Registers  int // per thread
	Local      int // bytes per thread, spilled registers among them
	Shared     int // bytes per block that are not dynamic
	Const      int // bytes
	MaxThreads int // per block
	Binary     int // the architecture compiled for: 90 for sm_90
}

// The numbers of CUfunction_attribute.
const (
	funcMaxThreads         = 0
	funcShared             = 1
	funcConst              = 2
	funcLocal              = 3
	funcRegisters          = 4
	funcBinaryVersion      = 6
	funcMaxDynamicShared   = 8
	funcNonPortableCluster = 14
)

// Info returns what the kernel takes.
func (f *Function) Info() (FunctionInfo, error) {
	var i FunctionInfo
	for _, a := range []struct {
		attribute uintptr
		to        *int
	}{
		{funcRegisters, &i.Registers},
		{funcLocal, &i.Local},
		{funcShared, &i.Shared},
		{funcConst, &i.Const},
		{funcMaxThreads, &i.MaxThreads},
		{funcBinaryVersion, &i.Binary},
	} {
		var v int32
		err := f.api.check("cuFuncGetAttribute", call(f.api.funcGetAttribute, uintptr(unsafe.Pointer(&v)), a.attribute, f.handle))
		if err != nil {
			return i, fmt.Errorf("kernel %s: %w", f.name, err)
		}
		*a.to = int(v)
	}
	return i, nil
}

// SetMaxDynamicShared lets launches ask for up to n bytes of dynamic shared
// memory, which without this call is 48 KiB.
func (f *Function) SetMaxDynamicShared(n int) error { return f.set(funcMaxDynamicShared, n) }

// AllowLargeClusters lets launches use clusters of more than 8 blocks.
func (f *Function) AllowLargeClusters() error { return f.set(funcNonPortableCluster, 1) }

func (f *Function) set(attribute uintptr, v int) error {
	err := f.api.check("cuFuncSetAttribute", call(f.api.funcSetAttribute, f.handle, attribute, uintptr(v)))
	if err != nil {
		return fmt.Errorf("kernel %s: %w", f.name, err)
	}
	return nil
}

// BlocksPerSM returns how many blocks of a number of threads and bytes of
// dynamic shared memory fit on a multiprocessor at the same time.
func (f *Function) BlocksPerSM(threads, shared int) (int, error) {
	var n int32
	err := f.api.check("cuOccupancyMaxActiveBlocksPerMultiprocessor", call(f.api.occupancyBlocks,
		uintptr(unsafe.Pointer(&n)), f.handle, uintptr(threads), uintptr(shared)))
	if err != nil {
		return 0, fmt.Errorf("kernel %s: %w", f.name, err)
	}
	return int(n), nil
}
