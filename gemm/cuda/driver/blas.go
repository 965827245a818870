package driver

import (
	"cmp"
	"fmt"
	"runtime"
	"strings"
	"unsafe"
)

const purposeBLAS = "multiply unquantized matrices on the GPU"

// blasAPI holds the functions of cuBLAS.
type blasAPI struct {
	lib     *library
	version string

	getStatusName, getStatusString, getProperty, create, destroy uintptr
	setStream, setWorkspace, setMathMode                         uintptr
	gemmEx, gemmStridedBatchedEx                                 uintptr
}

func openBLAS(p places, majors []int) (*blasAPI, error) {
	// cuBLAS lies beside cublasLt, which it is linked to.
	lib, err := p.find(purposeBLAS, sonames("libcublas", majors), []string{"libcublasLt.so.1[23]"})
	if err != nil {
		return nil, err
	}
	a := &blasAPI{lib: lib}
	err = lib.resolve(purposeBLAS, []symbol{
		{"cublasGetStatusName", &a.getStatusName},
		{"cublasGetStatusString", &a.getStatusString},
		{"cublasGetProperty", &a.getProperty},
		{"cublasCreate_v2", &a.create},
		{"cublasDestroy_v2", &a.destroy},
		{"cublasSetStream_v2", &a.setStream},
		{"cublasSetWorkspace_v2", &a.setWorkspace},
		{"cublasSetMathMode", &a.setMathMode},
		{"cublasGemmEx", &a.gemmEx},
		{"cublasGemmStridedBatchedEx", &a.gemmStridedBatchedEx},
	})
	if err != nil {
		return nil, err
	}
	var parts []string
	for property := range uintptr(3) { // major, minor, patch level
		var v int32
		if err := a.check("cublasGetProperty", call(a.getProperty, property, uintptr(unsafe.Pointer(&v)))); err != nil {
			return nil, err
		}
		parts = append(parts, fmt.Sprint(v))
	}
	a.version = strings.Join(parts, ".")
	return a, nil
}

func (a *blasAPI) check(op string, result uintptr) error {
	return statusError(op, result, a.getStatusName, a.getStatusString)
}

// statusError is what a function of cuBLAS or cuBLASLt came to, by the library's functions that name and describe it.
func statusError(op string, result, name, text uintptr) error {
	code := int32(result)
	if code == 0 {
		return nil
	}
	e := &Error{Op: op, Code: int(code)}
	named, told := call(name, uintptr(code)), call(text, uintptr(code)) // static strings
	e.Name = goString(*(**byte)(unsafe.Pointer(&named)))
	e.Detail = goString(*(**byte)(unsafe.Pointer(&told)))
	return e
}

// DType is a type of matrix elements.
type DType int

// The types, by the numbers of cudaDataType_t.
const (
	F32  DType = 0
	F16  DType = 2
	BF16 DType = 14
	E4M3 DType = 28 // of [Device.NewFP8BLAS] alone
)

// Size returns the bytes of an element.
func (t DType) Size() int {
	switch t {
	case F32:
		return 4
	case E4M3:
		return 1
	}
	return 2
}

func (t DType) String() string {
	switch t {
	case F32:
		return "f32"
	case F16:
		return "f16"
	case BF16:
		return "bf16"
	case E4M3:
		return "e4m3"
	}
	return fmt.Sprintf("DType(%d)", int(t))
}

// ParseHalf returns the type of 16 bits that a name is of, f16 or bf16.
func ParseHalf(name string) (DType, error) {
	for _, t := range []DType{F16, BF16} {
		if t.String() == name {
			return t, nil
		}
	}
	return 0, fmt.Errorf("type %q: want f16 or bf16", name)
}

// The numbers of cuBLAS's enumerations.
const (
	blasOpN         = 0
	blasOpT         = 1
	blasCompute32F  = 68
	blasGemmDefault = -1
	blasDefaultMath = 0
	blasFullSums    = 16 // CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION
)

// blasWorkspace is the size that cuBLAS recommends for Hopper, and more than
// others need.
const blasWorkspace = 32 << 20

// BLAS multiplies dense matrices with cuBLAS on one device. It has its own
// workspace, so that its calls can be captured in graphs.
type BLAS struct {
	api       *blasAPI
	dev       *Device
	handle    uintptr
	stream    *Stream
	workspace Ptr
	factors   *[2]float32 // alpha and beta
	args      []uintptr
}

// NewBLAS opens cuBLAS for a device. Its calls queue work on one stream.
func (d *Device) NewBLAS(s *Stream) (*BLAS, error) {
	a, err := d.cuda.blas()
	if err != nil {
		return nil, err
	}
	b := &BLAS{api: a, dev: d, factors: &[2]float32{1, 0}, args: make([]uintptr, 23)}
	if err := a.check("cublasCreate_v2", call(a.create, uintptr(unsafe.Pointer(&b.handle)))); err != nil {
		return nil, err
	}
	if b.workspace, err = d.Alloc(blasWorkspace); err == nil {
		err = a.check("cublasSetMathMode", call(a.setMathMode, b.handle, blasDefaultMath))
	}
	if err == nil {
		err = b.SetStream(s)
	}
	if err != nil {
		_ = b.Close()
		return nil, err
	}
	return b, nil
}

// SetStream makes the calls from now on queue their work on s.
func (b *BLAS) SetStream(s *Stream) error {
	if err := b.api.check("cublasSetStream_v2", call(b.api.setStream, b.handle, s.handle)); err != nil {
		return err
	}
	b.stream = s
	// Setting the stream takes the workspace away.
	return b.api.check("cublasSetWorkspace_v2", call(b.api.setWorkspace, b.handle, uintptr(b.workspace), blasWorkspace))
}

// SumInFloat32 keeps every partial sum of the calls from now on in float32, where
// cuBLAS would otherwise be free to add the parts of a long sum in the type of the
// result.
func (b *BLAS) SumInFloat32() error {
	return b.api.check("cublasSetMathMode", call(b.api.setMathMode, b.handle, blasDefaultMath|blasFullSums))
}

// Operand is a row-major matrix on the GPU, or a batch of them.
type Operand struct {
	Ptr    Ptr
	Ld     int // elements from one row to the next; 0 means that rows are contiguous
	Stride int // elements from one matrix of a batch to the next; 0, of what is read, is the same matrix for all
}

// GEMM is a product C = Alpha·op(A)·op(B) + Beta·C of row-major matrices: op(A) is
// M×K, op(B) K×N and C M×N, where op transposes the matrices that TransA and TransB
// name. A and B are of type In, C of type Out. Sums are taken in float32. In is F16
// or BF16, with Out the same or F32, or all is F32. With Beta 0, C is not read.
type GEMM struct {
	M, N, K        int
	A, B, C        Operand
	TransA, TransB bool
	In, Out        DType
	Alpha, Beta    float32
	Batch          int // number of products; 0 counts as 1
}

// GEMM queues a product.
func (b *BLAS) GEMM(g GEMM) error {
	// cuBLAS is column-major, where a row-major matrix is its transpose: it is asked
	// for Cᵀ = op(B)ᵀ·op(A)ᵀ.
	opA, ldA := blasOpN, g.K
	if g.TransA {
		opA, ldA = blasOpT, g.M
	}
	opB, ldB := blasOpN, g.N
	if g.TransB {
		opB, ldB = blasOpT, g.K
	}
	*b.factors = [2]float32{g.Alpha, g.Beta}
	alpha, beta := uintptr(unsafe.Pointer(&b.factors[0])), uintptr(unsafe.Pointer(&b.factors[1]))
	op, f := "cublasGemmEx", b.api.gemmEx
	args := append(b.args[:0], b.handle, uintptr(opB), uintptr(opA), uintptr(g.N), uintptr(g.M), uintptr(g.K), alpha)
	matrix := func(m Operand, t DType, ld int) {
		args = append(args, uintptr(m.Ptr), uintptr(t), uintptr(cmp.Or(m.Ld, ld)))
		if g.Batch > 1 {
			args = append(args, uintptr(m.Stride))
		}
	}
	matrix(g.B, g.In, ldB)
	matrix(g.A, g.In, ldA)
	args = append(args, beta)
	matrix(g.C, g.Out, g.N)
	if g.Batch > 1 {
		op, f = "cublasGemmStridedBatchedEx", b.api.gemmStridedBatchedEx
		args = append(args, uintptr(g.Batch))
	}
	algorithm := blasGemmDefault
	args = append(args, blasCompute32F, uintptr(algorithm))
	err := b.api.check(op, call(f, args...))
	runtime.KeepAlive(b)
	if err != nil {
		return fmt.Errorf("product %d×%d×%d, %s to %s: %w", g.M, g.N, g.K, g.In, g.Out, err)
	}
	return nil
}

// MatMul queues Y = X·Wᵀ, all row-major: X is M×K and W N×K, both of type in,
// and Y is M×N of type out. Sums are taken in float32. in is F16 or BF16, with
// out the same or F32, or all is F32.
func (b *BLAS) MatMul(y, x, w Ptr, m, n, k int, in, out DType) error {
	return b.GEMM(GEMM{
		M: m, N: n, K: k,
		A: Operand{Ptr: x}, B: Operand{Ptr: w}, C: Operand{Ptr: y}, TransB: true,
		In: in, Out: out, Alpha: 1,
	})
}

// Close releases cuBLAS and its workspace.
func (b *BLAS) Close() error {
	err := b.api.check("cublasDestroy_v2", call(b.api.destroy, b.handle))
	if freeErr := b.dev.Free(b.workspace); err == nil {
		err = freeErr
	}
	return err
}
