package driver

import (
	"errors"
	"fmt"
	"runtime"
	"unsafe"
)

const purposeBLASLt = "multiply in fp8 on the GPU"

// blasLtAPI holds the functions of cuBLASLt.
type blasLtAPI struct {
	lib     *library
	version int // 10000·major + 100·minor + patch level

	getStatusName, getStatusString, getVersion, create, destroy uintptr
	descCreate, descDestroy, descSet                            uintptr
	layoutCreate, layoutDestroy                                 uintptr
	preferenceCreate, preferenceDestroy, preferenceSet          uintptr
	heuristic, matmul                                           uintptr
}

func openBLASLt(p places, majors []int) (*blasLtAPI, error) {
	lib, err := p.find(purposeBLASLt, sonames("libcublasLt", majors), nil)
	if err != nil {
		return nil, err
	}
	a := &blasLtAPI{lib: lib}
	err = lib.resolve(purposeBLASLt, []symbol{
		{"cublasLtGetStatusName", &a.getStatusName},
		{"cublasLtGetStatusString", &a.getStatusString},
		{"cublasLtGetVersion", &a.getVersion},
		{"cublasLtCreate", &a.create},
		{"cublasLtDestroy", &a.destroy},
		{"cublasLtMatmulDescCreate", &a.descCreate},
		{"cublasLtMatmulDescDestroy", &a.descDestroy},
		{"cublasLtMatmulDescSetAttribute", &a.descSet},
		{"cublasLtMatrixLayoutCreate", &a.layoutCreate},
		{"cublasLtMatrixLayoutDestroy", &a.layoutDestroy},
		{"cublasLtMatmulPreferenceCreate", &a.preferenceCreate},
		{"cublasLtMatmulPreferenceDestroy", &a.preferenceDestroy},
		{"cublasLtMatmulPreferenceSetAttribute", &a.preferenceSet},
		{"cublasLtMatmulAlgoGetHeuristic", &a.heuristic},
		{"cublasLtMatmul", &a.matmul},
	})
	if err != nil {
		return nil, err
	}
	a.version = int(call(a.getVersion))
	return a, nil
}

func (a *blasLtAPI) check(op string, result uintptr) error {
	return statusError(op, result, a.getStatusName, a.getStatusString)
}

// outerScales is the first version that multiplies by a scale for each row of both sides on Hopper: that of CUDA 12.9.
const outerScales = 120900

// The numbers of cuBLASLt's enumerations.
const (
	ltTransA, ltTransB               = 3, 4
	ltScalesA, ltScalesB             = 17, 18
	ltFastSums                       = 25
	ltScaleModeA, ltScaleModeB       = 31, 32
	ltOuterScales              int32 = 3
	ltWorkspaceBytes                 = 1
	ltAlgorithmSize                  = 64
	ltResults                        = 8 // algorithms that the heuristic is asked for
)

// ltResult is cublasLtMatmulHeuristicResult_t.
type ltResult struct {
	algorithm [ltAlgorithmSize / 8]uint64
	workspace uint64
	state     int32
	waves     float32
	reserved  [4]int32
}

// FP8BLAS multiplies matrices of E4M3 with cuBLASLt on one device. It has its own workspace, so that its calls can be captured in graphs.
type FP8BLAS struct {
	api       *blasLtAPI
	dev       *Device
	handle    uintptr
	workspace Ptr
	plans     map[ltShape]*ltPlan
	factors   *[2]float32
	args      []uintptr
}

// ltShape is what an algorithm is chosen for.
type ltShape struct {
	m, n, k, ld int
	out         DType
	add         bool
}

// ltPlan is a product as cuBLASLt has it.
type ltPlan struct {
	desc    uintptr
	layouts [3]uintptr // of weights, activations and results
	result  ltResult   // of the heuristic
}

// NewFP8BLAS opens cuBLASLt for a device.
func (d *Device) NewFP8BLAS() (*FP8BLAS, error) {
	a, err := d.cuda.blasLt()
	if err != nil {
		return nil, err
	}
	if a.version < outerScales {
		return nil, &MissingError{
			Library: "cuBLASLt", Purpose: purposeBLASLt,
			Broken: []string{fmt.Sprintf("%s is version %d: 12.9 or newer is needed", a.lib.path, a.version)},
		}
	}
	b := &FP8BLAS{api: a, dev: d, plans: map[ltShape]*ltPlan{}, factors: &[2]float32{1, 0}, args: make([]uintptr, 16)}
	if err := a.check("cublasLtCreate", call(a.create, uintptr(unsafe.Pointer(&b.handle)))); err != nil {
		return nil, err
	}
	if b.workspace, err = d.Alloc(blasWorkspace); err != nil {
		return nil, errors.Join(err, b.Close())
	}
	return b, nil
}

// FP8GEMM is a product Y = X·Wᵀ, or Y += X·Wᵀ, of row-major matrices of E4M3: X is M×K, W N×K, and element (m, n) of Y, which
// is F16, BF16 or F32, is multiplied by ScalesX[m]·ScalesW[n], float32. Y is added to in F32. Addresses are multiples of 16; N and Ld
// times the size of an element of Y are, and K is a multiple of 16. Sums are taken by tensor cores, which keep some 14 bits of them.
type FP8GEMM struct {
	M, N, K          int
	X, W, Y          Ptr
	ScalesX, ScalesW Ptr
	Ld               int // elements from one row of Y to the next
	Out              DType
	Add              bool
}

// GEMM queues a product on a stream. The algorithm is the one that cuBLASLt recommends for a shape.
func (b *FP8BLAS) GEMM(s *Stream, g FP8GEMM) error {
	p, err := b.plan(ltShape{g.M, g.N, g.K, g.Ld, g.Out, g.Add})
	if err == nil {
		err = b.multiply(s, p, g)
	}
	if err != nil {
		return fmt.Errorf("product %d×%d×%d, e4m3 to %s: %w", g.M, g.N, g.K, g.Out, err)
	}
	return nil
}

func (b *FP8BLAS) multiply(s *Stream, p *ltPlan, g FP8GEMM) error {
	a := b.api
	// cuBLASLt is column-major, where a row-major matrix is its transpose: it is asked for Yᵀ = W·Xᵀ.
	scales := [2]Ptr{g.ScalesW, g.ScalesX}
	for i, attribute := range []uintptr{ltScalesA, ltScalesB} {
		if err := b.set(p.desc, attribute, unsafe.Pointer(&scales[i]), 8); err != nil {
			return err
		}
	}
	*b.factors = [2]float32{1, float32(0)}
	if g.Add {
		b.factors[1] = 1
	}
	args := append(b.args[:0], b.handle, p.desc, uintptr(unsafe.Pointer(&b.factors[0])), uintptr(g.W), p.layouts[0], uintptr(g.X), p.layouts[1],
		uintptr(unsafe.Pointer(&b.factors[1])), uintptr(g.Y), p.layouts[2], uintptr(g.Y), p.layouts[2],
		uintptr(unsafe.Pointer(&p.result.algorithm)), uintptr(b.workspace), blasWorkspace, s.handle)
	err := a.check("cublasLtMatmul", call(a.matmul, args...))
	runtime.KeepAlive(b)
	runtime.KeepAlive(p)
	return err
}

// set sets an attribute of a product.
func (b *FP8BLAS) set(desc, attribute uintptr, value unsafe.Pointer, size uintptr) error {
	return b.api.check("cublasLtMatmulDescSetAttribute", call(b.api.descSet, desc, attribute, uintptr(value), size))
}

// plan returns how products of a shape are multiplied. Of those with a scale a row cuBLASLt 13 knows one algorithm.
func (b *FP8BLAS) plan(s ltShape) (*ltPlan, error) {
	if p, ok := b.plans[s]; ok {
		return p, nil
	}
	if len(b.plans) == mostPlans {
		if err := b.forget(); err != nil {
			return nil, err
		}
	}
	p, err := b.newPlan(s)
	if err != nil {
		return nil, errors.Join(err, b.closePlan(p))
	}
	b.plans[s] = p
	return p, nil
}

// mostPlans are kept, as prompts may have any length.
const mostPlans = 1024

// forget closes all plans.
func (b *FP8BLAS) forget() error {
	var errs []error
	for _, p := range b.plans {
		errs = append(errs, b.closePlan(p))
	}
	clear(b.plans)
	return errors.Join(errs...)
}

func (b *FP8BLAS) newPlan(s ltShape) (*ltPlan, error) {
	a, p := b.api, &ltPlan{}
	if err := a.check("cublasLtMatmulDescCreate", call(a.descCreate, uintptr(unsafe.Pointer(&p.desc)), blasCompute32F, uintptr(F32))); err != nil {
		return p, err
	}
	transposed, fast, mode := int32(blasOpT), int8(1), ltOuterScales
	for _, at := range []struct {
		attribute uintptr
		value     unsafe.Pointer
		size      uintptr
	}{
		{ltTransA, unsafe.Pointer(&transposed), 4},
		{ltFastSums, unsafe.Pointer(&fast), 1},
		{ltScaleModeA, unsafe.Pointer(&mode), 4},
		{ltScaleModeB, unsafe.Pointer(&mode), 4},
	} {
		if err := b.set(p.desc, at.attribute, at.value, at.size); err != nil {
			return p, err
		}
	}
	for i, l := range []struct {
		t              DType
		rows, cols, ld int
	}{{E4M3, s.k, s.n, s.k}, {E4M3, s.k, s.m, s.k}, {s.out, s.n, s.m, s.ld}} {
		err := a.check("cublasLtMatrixLayoutCreate", call(a.layoutCreate, uintptr(unsafe.Pointer(&p.layouts[i])), uintptr(l.t), uintptr(l.rows), uintptr(l.cols), uintptr(l.ld)))
		if err != nil {
			return p, err
		}
	}
	var preference uintptr
	if err := a.check("cublasLtMatmulPreferenceCreate", call(a.preferenceCreate, uintptr(unsafe.Pointer(&preference)))); err != nil {
		return p, err
	}
	workspace, found := uint64(blasWorkspace), int32(0)
	err := a.check("cublasLtMatmulPreferenceSetAttribute", call(a.preferenceSet, preference, ltWorkspaceBytes, uintptr(unsafe.Pointer(&workspace)), 8))
	if err == nil {
		// The heuristic looks at the scales, which are set anew for each product.
		err = b.set(p.desc, ltScalesA, unsafe.Pointer(&b.workspace), 8)
	}
	if err == nil {
		err = b.set(p.desc, ltScalesB, unsafe.Pointer(&b.workspace), 8)
	}
	if err == nil {
		err = a.check("cublasLtMatmulAlgoGetHeuristic", call(a.heuristic, b.handle, p.desc, p.layouts[0], p.layouts[1], p.layouts[2], p.layouts[2], preference,
			1, uintptr(unsafe.Pointer(&p.result)), uintptr(unsafe.Pointer(&found))))
	}
	err = errors.Join(err, a.check("cublasLtMatmulPreferenceDestroy", call(a.preferenceDestroy, preference)))
	if err == nil && found == 0 {
		err = errors.New("cuBLASLt has no algorithm for it")
	}
	return p, err
}

func (b *FP8BLAS) closePlan(p *ltPlan) error {
	var errs []error
	for _, l := range p.layouts {
		if l != 0 {
			errs = append(errs, b.api.check("cublasLtMatrixLayoutDestroy", call(b.api.layoutDestroy, l)))
		}
	}
	if p.desc != 0 {
		errs = append(errs, b.api.check("cublasLtMatmulDescDestroy", call(b.api.descDestroy, p.desc)))
	}
	return errors.Join(errs...)
}

// Close releases cuBLASLt and its workspace.
func (b *FP8BLAS) Close() error {
	return errors.Join(b.forget(), b.api.check("cublasLtDestroy", call(b.api.destroy, b.handle)), b.dev.Free(b.workspace))
}
