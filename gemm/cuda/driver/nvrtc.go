package driver

import (
	"fmt"
	"strings"
	"unsafe"
)

const purposeNVRTC = "compile kernels"

// nvrtcAPI holds the functions of the compiler.
type nvrtcAPI struct {
	lib          *library
	major, minor int

	getErrorString, version, createProgram, destroyProgram uintptr
	compileProgram, getPTXSize, getPTX                     uintptr
	getCUBINSize, getCUBIN, getLogSize, getLog             uintptr
}

func openNVRTC(p places, majors []int) (*nvrtcAPI, error) {
	lib, err := p.find(purposeNVRTC, sonames("libnvrtc", majors), []string{"libnvrtc-builtins.so.*"})
	if err != nil {
		return nil, err
	}
	a := &nvrtcAPI{lib: lib}
	err = lib.resolve(purposeNVRTC, []symbol{
		{"nvrtcGetErrorString", &a.getErrorString},
		{"nvrtcVersion", &a.version},
		{"nvrtcCreateProgram", &a.createProgram},
		{"nvrtcDestroyProgram", &a.destroyProgram},
		{"nvrtcCompileProgram", &a.compileProgram},
		{"nvrtcGetPTXSize", &a.getPTXSize},
		{"nvrtcGetPTX", &a.getPTX},
		{"nvrtcGetCUBINSize", &a.getCUBINSize},
		{"nvrtcGetCUBIN", &a.getCUBIN},
		{"nvrtcGetProgramLogSize", &a.getLogSize},
		{"nvrtcGetProgramLog", &a.getLog},
	})
	if err != nil {
		return nil, err
	}
	var major, minor int32
	err = a.check("nvrtcVersion", call(a.version, uintptr(unsafe.Pointer(&major)), uintptr(unsafe.Pointer(&minor))))
	if err != nil {
		return nil, err
	}
	a.major, a.minor = int(major), int(minor)
	return a, nil
}

func (a *nvrtcAPI) check(op string, result uintptr) error {
	code := int32(result)
	if code == 0 {
		return nil
	}
	e := &Error{Op: op, Code: int(code)}
	// The string is static, and the return value its address.
	if s := call(a.getErrorString, uintptr(code)); s != 0 {
		e.Name = goString(*(**byte)(unsafe.Pointer(&s)))
	}
	return e
}

// Header is a file that a kernel's source includes by name.
type Header struct{ Name, Source string }

// CompileOptions adjust [CUDA.Compile].
type CompileOptions struct {
	Arch    string   // such as sm_90a; compute_90 makes PTX alone
	Defines []string // NAME or NAME=VALUE
	Headers []Header // what the source may include
	MaxRegs int      // registers per thread at most; 0 means no limit
	Flags   []string // more options of NVRTC
}

// flags returns the command line for the compiler.
func (o CompileOptions) flags() []string {
	f := []string{"--gpu-architecture=" + o.Arch, "--std=c++17", "--ptxas-options=-v"}
	for _, d := range o.Defines {
		f = append(f, "-D"+d)
	}
	if o.MaxRegs > 0 {
		f = append(f, fmt.Sprintf("--maxrregcount=%d", o.MaxRegs))
	}
	return append(f, o.Flags...)
}

// Compiled is what the compiler makes of a source.
type Compiled struct {
	Cubin   []byte       // machine code; empty for a virtual architecture
	PTX     []byte       // without a NUL at its end
	Log     string       // warnings
	Kernels []KernelInfo // what each kernel of the cubin takes, by the assembler's log
}

// NVRTCVersion returns the version of the compiler.
func (c *CUDA) NVRTCVersion() (major, minor int, err error) {
	a, err := c.nvrtc()
	if err != nil {
		return 0, 0, err
	}
	return a.major, a.minor, nil
}

// Compile compiles CUDA C++ without any headers of the toolkit. It needs no
// GPU and no driver. name is what messages call the file. The error of a
// source that does not compile is an [Error] with the log as Detail.
func (c *CUDA) Compile(source, name string, o CompileOptions) (*Compiled, error) {
	a, err := c.nvrtc()
	if err != nil {
		return nil, err
	}
	var prog uintptr
	src, file := cString(source), cString(name)
	var headers, names cStrings
	for _, h := range o.Headers {
		headers.add(h.Source)
		names.add(h.Name)
	}
	err = a.check("nvrtcCreateProgram", call(a.createProgram, uintptr(unsafe.Pointer(&prog)),
		uintptr(unsafe.Pointer(&src[0])), uintptr(unsafe.Pointer(&file[0])),
		uintptr(len(o.Headers)), uintptr(headers.pointer()), uintptr(names.pointer())))
	if err != nil {
		return nil, fmt.Errorf("compiling %s: %w", name, err)
	}
	defer call(a.destroyProgram, uintptr(unsafe.Pointer(&prog)))

	var flags cStrings
	for _, f := range o.flags() {
		flags.add(f)
	}
	if a.major > 12 || a.major == 12 && a.minor >= 9 {
		// The compiler's own cache would leave the assembler's log empty.
		flags.add("--no-cache")
	}
	err = a.check("nvrtcCompileProgram", call(a.compileProgram, prog, uintptr(len(flags)), uintptr(flags.pointer())))
	log, logErr := a.output("nvrtcGetProgramLog", prog, a.getLogSize, a.getLog)
	out := new(Compiled)
	out.Kernels, out.Log = parsePTXAS(cText(log))
	if err != nil {
		err.(*Error).Detail = out.Log
		return nil, fmt.Errorf("compiling %s for %s: %w", name, o.Arch, err)
	}
	if logErr != nil {
		return nil, logErr
	}
	if out.PTX, err = a.output("nvrtcGetPTX", prog, a.getPTXSize, a.getPTX); err != nil {
		return nil, err
	}
	if n := len(out.PTX); n > 0 && out.PTX[n-1] == 0 {
		out.PTX = out.PTX[:n-1]
	}
	if strings.HasPrefix(o.Arch, "compute_") {
		return out, nil
	}
	if out.Cubin, err = a.output("nvrtcGetCUBIN", prog, a.getCUBINSize, a.getCUBIN); err != nil {
		return nil, err
	}
	return out, nil
}

// output fetches one of the program's results.
func (a *nvrtcAPI) output(op string, prog, size, get uintptr) ([]byte, error) {
	var n uint64
	if err := a.check(op+"Size", call(size, prog, uintptr(unsafe.Pointer(&n)))); err != nil {
		return nil, err
	}
	if n == 0 {
		return nil, nil
	}
	b := make([]byte, n)
	if err := a.check(op, call(get, prog, uintptr(unsafe.Pointer(&b[0])))); err != nil {
		return nil, err
	}
	return b, nil
}

// cStrings is an array of C strings.
type cStrings []*byte

func (s *cStrings) add(text string) { *s = append(*s, unsafe.SliceData(cString(text))) }

func (s cStrings) pointer() unsafe.Pointer { return unsafe.Pointer(unsafe.SliceData(s)) }
