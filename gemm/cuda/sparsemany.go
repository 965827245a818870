package cuda

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"github.com/lutq/lutq/gemm/cuda/driver"
)

// sparseMany is lutmany.cu as it is compiled for matrices of which every four columns keep two: for what is kept it is as for
// a matrix of half as many columns, in fields of the same kind.
type sparseMany struct {
	manyVariant
	planes bool // whether weights are looked up in registers, by bytes, and not in shared memory, whose port X fills
}

// patternBytes are those of an atom of a tile.
const patternBytes = 512

// sparseManyVariants returns all that it is compiled as for a format of what is kept.
func (f Format) sparseManyVariants() []sparseMany {
	if !(lutsparse{}).has(f, 1) {
		return nil
	}
	var all []sparseMany
	for _, v := range []manyVariant{
		{columns: 256, groups: 2},
		{columns: 128, groups: 3},
		{columns: 128, groups: 2},
		{columns: 96, groups: 3},
		{columns: 64, groups: 4},
		{columns: 64, groups: 3},
		{columns: 64, groups: 2},
		{columns: 48, groups: 4},
		{columns: 32, groups: 4},
		{columns: 32, groups: 2},
	} {
		if v.groups == 4 && f.Group == 32 { // whose scales take the registers
			continue
		}
		for _, planes := range []bool{false, true} {
			v := sparseMany{v, planes}
			if _, ok := v.rings(f); ok && (!planes || v.hasPlanes(f)) {
				all = append(all, v)
			}
		}
	}
	return all
}

// hasPlanes reports whether there is a variant that looks up in registers: of 4 bits, for as many rows of X as fill the port.
func (v sparseMany) hasPlanes(f Format) bool { return f.Bits == 4 && v.columns >= 96 }

func (v sparseMany) String() string {
	if v.planes {
		return "sparse " + v.manyVariant.String() + " planes"
	}
	return "sparse " + v.manyVariant.String()
}

// sparseRings are what of X and of codes is in shared memory.
type sparseRings struct {
	parts         int // of a stage, 64 columns each
	stages, atoms int
}

// bytes returns what they take.
func (v sparseMany) bytes(f Format, r sparseRings) int {
	const phases = 16
	return r.stages*(128*v.columns*r.parts+phases) + r.atoms*(v.atomBytes(f)+v.tiles()*patternBytes+phases)
}

// fixed returns the shared memory that is neither X nor codes.
func (v sparseMany) fixed(f Format) int {
	if v.planes {
		return v.tiles() * outBytes
	}
	return v.tableBytes(f) + v.tiles()*outBytes
}

// rings returns those that there is room for, if any: with stages of half an atom, three at least, or else of a quarter, of which
// two are multiplied by at once and two have been before.
func (v sparseMany) rings(f Format) (r sparseRings, ok bool) {
	left := hopperShared - v.fixed(f)
	for _, r := range []sparseRings{{2, 3, 3}, {2, 3, 2}, {1, 4, 3}, {1, 4, 2}} {
		for ; r.stages <= mostStages && v.bytes(f, r) <= left; r.stages++ {
			ok = true
		}
		if ok {
			r.stages--
			return r, true
		}
	}
	return r, false
}

// shared returns the bytes of shared memory that a block takes.
func (v sparseMany) shared(f Format) int {
	r, _ := v.rings(f)
	return v.fixed(f) + v.bytes(f, r)
}

// sparseManyKernel is lutmany.cu for a format of what is kept.
type sparseManyKernel struct {
	Format
	sparseMany
}

func (k sparseManyKernel) String() string { return k.name() + " " + k.sparseMany.String() }

func (k sparseManyKernel) kernel() driver.Kernel {
	r, _ := k.rings(k.Format)
	planes := 0
	if k.planes {
		planes = 1
	}
	of := k.source(k.Format, r.stages, r.atoms, planes)
	of.Options.Defines = append(of.Options.Defines, fmt.Sprintf("OF_ATOM=%d", 4/r.parts), "SPARSE=1")
	return of
}

// sparsePlan returns how a product by a matrix is launched, as manyPlan does.
func (v sparseMany) sparsePlan(w *SparseMatrix, o Operands, flags driver.Ptr, workers, sms int) (driver.Launch, params, work) {
	kept := &Matrix{N: w.N, K: w.K / 2, Format: w.Format, codes: w.codes, scales: w.scales, codebook: w.codebook, exponent: w.exponent}
	return v.planDivided(kept, v.divide(w.N, w.K, o.M, workers), o, flags, sms, v.shared(w.Format))
}

// divide is that of what is kept. Its atoms take about twice as long, and what it takes to share fields as long as ever.
func (v sparseMany) divide(n, k, m, most int) work {
	return v.divideBy(n, k/2, m, most, (forParts+1)/2, (forShares+1)/2)
}

// guess returns about how many cycles a product takes on an H200: predicted from what the port of shared memory passes, and by
// how much more dense weights take than that. It was right to 64 rows, and from 256 on it takes c256 g2 to be the fastest, where c128 g3 is.
func (v sparseMany) guess(n, k, m int) float64 {
	const (
		fixed   = 8000   // as by dense weights
		waits   = 270    // of an atom, beside the port
		lookups = 4 * 32 // of a warpgroup, wavefronts
		planes  = 150    // what lookups in registers take instead, about
		codes   = 4 * 24 // as they come and as they are read
		least   = 1300   // between the products of a warpgroup
	)
	// X passes as it comes and for each warpgroup that multiplies by it, 512 bytes of a row.
	own := 4*v.columns + codes + lookups
	if v.planes {
		own += planes - lookups
	}
	atom := max(v.groups*own+4*v.columns+waits, least)
	return fixed + float64(v.divide(n, k, m, manyWorkers).cost*atom)
}

// SparseWays returns what is worth trying for m rows of X, more than [MaxRows], by a matrix of which every four columns keep two,
// the best guess first: the kernel for all rows wherever there is one.
func (e *Engine) SparseWays(w *SparseMatrix, m int) []Way {
	var all []Way
	if e.dev.Info.Major == 9 && e.noCompiler == nil {
		for _, v := range w.Format.sparseManyVariants() {
			if v.shared(w.Format) <= e.limits.sharedBlock {
				all = append(all, Way{sparse: v})
			}
		}
		guess := func(a Way) float64 { return a.sparse.guess(w.N, w.K, m) }
		slices.SortStableFunc(all, func(a, b Way) int { return cmp.Compare(guess(a), guess(b)) })
		all = all[:min(len(all), tunedSparse)]
	}
	rest := []Way{{}, {unpacked: true}}
	if m > packedRows(w.N, w.K) {
		slices.Reverse(rest)
	}
	return append(all, rest...)
}

// tunedSparse is how many variants are tried: twice those of dense weights, for what the guess is wrong in.
const tunedSparse = 2 * tunedMany

// SparseKernels lists the names of the kernels for all rows that there are for any format, for who asks for one.
func SparseKernels() []string {
	var names []string
	for _, f := range SparseFormats() {
		for _, v := range f.sparseManyVariants() {
			if name := v.kernelName(); !slices.Contains(names, name) {
				names = append(names, name)
			}
		}
	}
	return names
}

// kernelName is that of a kernel for who asks for one.
func (v sparseMany) kernelName() string {
	name := fmt.Sprintf("%s:c%dg%d", SparseManyName, v.columns, v.groups)
	if v.planes {
		name += "planes"
	}
	return name
}

// SparseManyName begins the names of [SparseKernels].
const SparseManyName = "wgmma.sp"

// Kernel returns the name among [SparseKernels] of the way's kernel, if it is by one of them.
func (w Way) Kernel() string {
	if w.sparse == (sparseMany{}) {
		return ""
	}
	return w.sparse.kernelName()
}

// KernelWay returns the way that is by one of [SparseKernels], if that is compiled for the matrix.
func (m *SparseMatrix) KernelWay(name string) (Way, error) {
	for _, v := range m.Format.sparseManyVariants() {
		if v.kernelName() == name {
			return Way{sparse: v}, nil
		}
	}
	return Way{}, fmt.Errorf("no kernel %q by what is kept of %s", name, m.Format.name())
}

// manyKey is what a choice for so many rows of X, more than MaxRows, holds for.
func (m *SparseMatrix) manyKey(rows int) tuningKey {
	return tuningKey{format: m.Format, n: m.N, k: m.K, rows: manyBucket(rows), sparse: true}
}

// choosable implements [tunable] for choices for many rows.
func (m *SparseMatrix) choosable(tuningKey) []driver.Kernel {
	all := []driver.Kernel{sparseRows{m.Format, m.Format.Type}.kernel()}
	for _, c := range (lutsparse{}).variants(m.Format, MaxRows) {
		all = append(all, m.Format.Kernel(c))
	}
	for _, v := range m.Format.sparseManyVariants() {
		all = append(all, Way{sparse: v}.Kernels(m.Format)...)
	}
	return all
}

// Way returns how so many rows of X are multiplied, as [Engine.Way] does.
func (m *SparseMatrix) Way(rows int) Way {
	if rows <= MaxRows {
		return Way{}
	}
	return m.engine.wayOf(m, m.manyKey(rows), func(rows int) []Way { return m.engine.SparseWays(m, rows) })
}

// Form and SumBytes are [Matrix.Form] and [Matrix.SumBytes].
func (m *SparseMatrix) Form(rows int) Form    { return m.Way(rows).Form() }
func (m *SparseMatrix) SumBytes(rows int) int { return m.Way(rows).sumBytes() }

// MostScratch returns the scratch memory that any of [Engine.SparseWays] wants.
func (m *SparseMatrix) MostScratch(rows int) int {
	return mostScratch(m.engine.SparseWays(m, rows), rows, m.K)
}

// MatMulSparseWay is [SparseMatrix.MatMul] in one of [Engine.SparseWays] but that of [Unpacked].
func (e *Engine) MatMulSparseWay(s *driver.Stream, w *SparseMatrix, o Operands, way Way) error {
	if way == (Way{}) {
		if err := o.checkFor(w.codes); err != nil {
			return err
		}
		c, err := e.sparseChoice(w, parts(o.M, MaxRows))
		if err != nil {
			return err
		}
		return e.MatMulSparseWith(s, w, o, c)
	}
	v := way.sparse
	if v == (sparseMany{}) {
		return fmt.Errorf("%v products are not the engine's for what is kept", way)
	}
	o, flags, err := e.inForm(s, o, way, w.codes, w.Format.Type, w.K)
	if err != nil {
		return err
	}
	launch, p, share := v.sparsePlan(w, o, flags, manyWorkers, e.limits.sms)
	return e.launchMany(s, sparseManyKernel{w.Format, v}, launch, p, share)
}

// TuneSparse times the ways to multiply o.M rows, more than 16, by matrices of which every four columns keep two, as
// [Engine.TuneMany] does, with scratch memory of [SparseMatrix.MostScratch].
func (e *Engine) TuneSparse(s *driver.Stream, ring []*SparseMatrix, o Operands, u *Unpacked) ([]WayTiming, error) {
	if len(ring) == 0 || o.M <= MaxRows {
		return nil, errors.New("tuning wants more than 16 rows, and a matrix")
	}
	w := ring[0]
	key, tried := w.manyKey(o.M), e.SparseWays(w, o.M)
	var kernels []driver.Kernel
	for _, way := range tried {
		if way.sparse != (sparseMany{}) {
			kernels = append(kernels, way.Kernels(w.Format)...)
		}
	}
	e.dev.Prepare(kernels)
	all, err := e.timeWays(s, key, usable(tried, o, w.K, u), len(ring), func(way Way, i int) error {
		if way.unpacked {
			return u.MatMul(s, ring[i], o, w.Format.Type, false)
		}
		return e.MatMulSparseWay(s, ring[i], o, way)
	})
	if err != nil {
		return nil, err
	}
	e.keep(ofWay, w, key, all[0].Way.String())
	return all, nil
}
