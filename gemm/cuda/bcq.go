package cuda

import (
	_ "embed"
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"

	"github.com/lutq/lutq/formats/weight"
	"github.com/lutq/lutq/formats/weight/bcq"
	"github.com/lutq/lutq/gemm/cuda/driver"
	"github.com/lutq/lutq/gemm/cuda/ptx"
	"github.com/lutq/lutq/repack"
)

var (
	//go:embed bcq.cuh
	bcqSource string
	//go:embed bcqplanes.cu
	bcqPlanesSource string
	//go:embed bcqdigits.cu
	bcqDigitsSource string
	//go:embed bcqrows.cu
	bcqRowsSource string
)

// The functions of the kernels that read BCQTiles.
const (
	bcqPlanesName = "bcqplanes"
	bcqDigitsName = "bcqdigits"
	bcqReadName   = "bcqread"
	bcqRowsName   = "bcqrows"
	bcqDenseName  = "bcqdense"
)

// BCQFormat is what the kernels for binary codes are compiled for.
type BCQFormat struct {
	Bits  int
	Group int              // 32, 64, 128, 256, or 0 for one set of factors a row
	Scale weight.ScaleType // of the factors: F16, BF16 or F32
	Type  driver.DType     // of X, Y and the bias: F16 or BF16
}

// BCQFormats returns every format that kernels for binary codes exist for.
func BCQFormats() []BCQFormat {
	var all []BCQFormat
	for bits := bcq.MinBits; bits <= bcq.MaxBits; bits++ {
		for _, group := range []int{32, 64, 128, 256, 0} {
			for _, scale := range (bcq.Kind{}).ScaleTypes() {
				for _, t := range []driver.DType{driver.F16, driver.BF16} {
					all = append(all, BCQFormat{bits, group, scale, t})
				}
			}
		}
	}
	return all
}

// Traits returns what the kernels are compiled for, in words.
func (f BCQFormat) Traits() []string { return Format(f).traits() }

func (f BCQFormat) name() string { return Format(f).name() }

func (f BCQFormat) defines() []string { return Format(f).defines() }

// recordBytes is what a unit of a tile takes, with its factors.
func (f BCQFormat) recordBytes() int {
	return f.Bits*bcqPlaneBytes + f.groups()*(f.Bits+1)*repack.TileRows*f.Scale.Size()
}

// groups returns how many sets of factors a unit has.
func (f BCQFormat) groups() int {
	if f.Group == 0 {
		return 1
	}
	return repack.UnitCols / f.Group
}

// bcqPlaneBytes is what a plane of a unit takes of a tile.
const bcqPlaneBytes = repack.TileRows * repack.UnitCols / 8

// bcqPlanes is bcqplanes.cu, or for so few rows bcqdigits.cu, as it is compiled.
type bcqPlanes struct {
	format BCQFormat
	rows   int // of X, at most: 1, 2, 8 or 16
	warps  int // of a block
	stages int // of a warp's ring
}

// bcqTwin is its read-only twin.
type bcqTwin struct{ bcqPlanes }

// The shared memory that the number of warps is chosen for, and what sums are left of it at least.
const (
	bcqShared = 227 << 10
	bcqSums   = 24 << 10
	bcqStages = 6 // at most
)

const bcqDigitRows = 2 // of X, that bcqdigits.cu is for at most

// bcqPlanesFor returns the kernel for up to so many rows of X. The number of warps, which sums depend on, is a matter of the
// format; of stages there are as many as a block has room for.
func bcqPlanesFor(f BCQFormat, m int, l limits) bcqPlanes {
	v := bcqPlanes{format: f, rows: rowsOfB, warps: gemmWarps}
	sums := bcqSums
	switch {
	case m <= bcqDigitRows:
		v.rows = m
	case m > rowsOfB:
		v.rows, v.warps, sums = MaxRows, gemmWarps/2, 2*bcqSums // whose X takes 128 registers
	}
	stages := func(shared int) int { return (shared - sums - v.warps*v.besideBytes()) / (v.warps * f.recordBytes()) }
	for v.warps > 4 && stages(bcqShared) < 2 {
		v.warps /= 2
	}
	v.stages = max(2, min(bcqStages, stages(l.sharedBlock)))
	return v
}

// bcqPrebuilt returns what is built ahead of time, for up to 16 rows of X and on any GPU.
func bcqPrebuilt(f BCQFormat) bcqPlanes {
	v := bcqPlanesFor(f, MaxRows, limits{})
	v.stages = 2
	return v
}

// planesFor returns the kernel for up to so many rows of X that can be had.
func (m *BCQMatrix) planesFor(rows int, l limits) bcqPlanes {
	if m.engine != nil && m.engine.noCompiler != nil {
		return bcqPrebuilt(m.Format)
	}
	return bcqPlanesFor(m.Format, rows, l)
}

// canBCQ reports whether there are kernels for a format, compiled or built ahead of time.
func (e *Engine) canBCQ(f BCQFormat) bool { return e.noCompiler == nil || f.prebuilt() }

// bcqRowsAtMost returns up to how many rows of X each kernel is for.
func bcqRowsAtMost() []int { return []int{1, bcqDigitRows, rowsOfB, MaxRows} }

// digits reports whether it is bcqdigits.cu.
func (v bcqPlanes) digits() bool { return v.rows <= bcqDigitRows }

// besideBytes is what a warp has in shared memory beside its ring: sums of X, or the digits of 256 columns of a row of X, each with its
// negative's, where a stage is too short for them.
func (v bcqPlanes) besideBytes() int {
	const digits = 3 * 2 * repack.UnitCols
	switch {
	case !v.digits():
		return max(2, v.format.groups()) * v.rows / rowsOfB * 4 * 8
	case v.format.recordBytes() < digits:
		return digits
	}
	return 0
}

// fixedBytes is the shared memory that a block takes whatever it multiplies.
func (v bcqPlanes) fixedBytes() int {
	return v.warps * (v.stages*v.format.recordBytes() + v.besideBytes())
}

// parts returns how many parts of 128 bytes the sums of a tile and a slice have: pairs of rows of X, or rows, whose digits have their own.
func (v bcqPlanes) parts(rows int) int {
	if v.digits() {
		return rows
	}
	return (rows + 1) / 2
}

// function returns the name of the kernel.
func (v bcqPlanes) function() string {
	if v.digits() {
		return bcqDigitsName
	}
	return bcqPlanesName
}

func (v bcqPlanes) kernel() driver.Kernel {
	source, rows := ptx.Sparse()+bcqSource+bcqPlanesSource, fmt.Sprintf("NT=%d", v.rows/rowsOfB)
	if v.digits() {
		source, rows = bcqSource+bcqDigitsSource, fmt.Sprintf("ROWS=%d", v.rows)
	}
	k := driver.Kernel{
		Name:   fmt.Sprintf("%s.%s.cu", v.function(), v.format.name()),
		Source: ptx.Instructions() + source,
		Options: driver.CompileOptions{Defines: append(v.format.defines(),
			rows, fmt.Sprintf("WARPS=%d", v.warps), fmt.Sprintf("STAGES=%d", v.stages), fmt.Sprintf("BESIDE=%d", v.besideBytes()))},
		PTX: noPTX,
	}
	if v == bcqPrebuilt(v.format) {
		k.PTX = func(i driver.DeviceInfo) ([]byte, error) { return v.format.ptx(k, i) }
	}
	return k
}

func noPTX(driver.DeviceInfo) ([]byte, error) {
	return nil, errors.New("this kernel for binary codes is compiled when it is needed")
}

// BCQKernels returns the sources of the kernels for a format that the engine's device has, those that write rows as numbers of its type
// and as F32 among them.
func (e *Engine) BCQKernels(f BCQFormat) []driver.Kernel {
	all := []driver.Kernel{bcqRows{f, f.Type}.kernel(), bcqRows{f, driver.F32}.kernel()}
	for _, rows := range bcqRowsAtMost() {
		all = append(all, bcqPlanesFor(f, rows, e.limits).kernel())
	}
	return all
}

// bcqRows is bcqrows.cu as it is compiled.
type bcqRows struct {
	format BCQFormat
	out    driver.DType
}

func (r bcqRows) kernel() driver.Kernel {
	same := 0
	if r.out == r.format.Type {
		same = 1
	}
	k := driver.Kernel{
		Name:    fmt.Sprintf("%s.%s-%v.cu", bcqRowsName, r.format.name(), r.out),
		Source:  ptx.Instructions() + bcqRowsSource,
		Options: driver.CompileOptions{Defines: append(r.format.defines(), fmt.Sprintf("OUT=%d", same))},
	}
	k.PTX = func(i driver.DeviceInfo) ([]byte, error) { return r.format.ptx(k, i) }
	return k
}

// bcqDense is the kernel of bcqrows.cu for whole tiles.
type bcqDense struct{ bcqRows }

// BCQMatrix is a matrix of binary codes in a GPU's memory, for activations of one type. It implements [Packed].
type BCQMatrix struct {
	N, K   int
	Format BCQFormat

	engine          *Engine
	planes, factors driver.Ptr
	bytes           int64
}

var _ Packed = (*BCQMatrix)(nil)

// bcqFormatOf returns the format of a matrix multiplied by activations of a type.
func bcqFormatOf(t *repack.BCQTiles, dtype driver.DType) BCQFormat {
	f := BCQFormat{t.Bits, t.Group, t.ScaleType, dtype}
	if t.RowScale() {
		f.Group = 0
	}
	return f
}

// UploadBCQ copies a matrix to the GPU. K must be a multiple of 32.
func (e *Engine) UploadBCQ(t *repack.BCQTiles, dtype driver.DType) (*BCQMatrix, error) {
	if err := t.Validate(); err != nil {
		return nil, err
	}
	f := bcqFormatOf(t, dtype)
	if e.noCompiler != nil && !f.prebuilt() {
		return nil, fmt.Errorf("products by binary codes: %w", e.noCompiler)
	}
	m := &BCQMatrix{N: t.N, K: t.K, Format: f, engine: e, bytes: int64(len(t.Planes) + len(t.Factors))}
	for _, rows := range bcqRowsAtMost() {
		if _, _, _, err := m.plan(rows, e.limits); err != nil {
			return nil, err
		}
	}
	var err error
	if m.planes, err = e.dev.Upload(t.Planes); err != nil {
		return nil, err
	}
	if m.factors, err = e.dev.Upload(t.Factors); err != nil {
		return nil, errors.Join(err, m.Close())
	}
	return m, nil
}

// Shape implements [Packed].
func (m *BCQMatrix) Shape() (n, k int) { return m.N, m.K }

// Type implements [Packed].
func (m *BCQMatrix) Type() driver.DType { return m.Format.Type }

// Bytes implements [Packed].
func (m *BCQMatrix) Bytes() int64 { return m.bytes }

// Close implements [Packed].
func (m *BCQMatrix) Close() error {
	var errs []error
	for _, p := range []*driver.Ptr{&m.planes, &m.factors} {
		if *p != 0 {
			errs = append(errs, m.engine.dev.Free(*p))
		}
		*p = 0
	}
	return errors.Join(errs...)
}

// ScratchBytes implements [Packed]: none.
func (m *BCQMatrix) ScratchBytes(int) int { return 0 }

// bcqMostRows are the rows of X up to which a kernel for every 16 is faster than unpacking, as an H200 has it at 28672×4096 and 4
// bits.
const bcqMostRows = 48

// Unpacks implements [Packed].
func (m *BCQMatrix) Unpacks(rows int) bool { return rows > bcqMostRows }

// bcqSlices returns into how many slices the warps of a block split K: so many, a power of two, that the busiest of them
// has the least to do on a GPU of 132 multiprocessors, and of those the most.
func bcqSlices(n, k, warps int) int {
	const sms = oneTile / repack.TileRows
	units := (k + repack.UnitCols - 1) / repack.UnitCols
	tiles := ((n+repack.TileRows-1)/repack.TileRows + sms - 1) / sms
	best, least := warps, 0
	for s := warps; s >= 1; s /= 2 {
		teams := warps / s
		if work := (units + s - 1) / s * ((tiles + teams - 1) / teams); least == 0 || work < least {
			best, least = s, work
		}
	}
	return best
}

// bcqParams is the argument of bcqplanes.cu and bcqdigits.cu.
type bcqParams struct {
	planes, factors      uint64
	units, slices, teams uint32
	tilesEach, tilesOver uint32
	run, n, k            uint32
	x, y, bias           uint64
	m, parts             uint32
	slicesLog, _         uint32
}

func (p *bcqParams) bytes() []byte {
	b, _ := binary.Append(nil, binary.LittleEndian, p) // which has a size
	return b
}

// plan returns the kernel for up to 16 rows of X, its grid and the arguments that follow from that.
func (m *BCQMatrix) plan(rows int, l limits) (bcqPlanes, bcqParams, driver.Launch, error) {
	v := m.planesFor(rows, l)
	fail := func(format string, args ...any) (bcqPlanes, bcqParams, driver.Launch, error) {
		return v, bcqParams{}, driver.Launch{}, fmt.Errorf(format, args...)
	}
	if m.K%32 != 0 || m.K > maxColumns {
		return fail("%d input features: the kernel wants a multiple of 32, up to %d", m.K, maxColumns)
	}
	slices := bcqSlices(m.N, m.K, v.warps)
	teams := v.warps / slices
	tiles := (m.N + repack.TileRows - 1) / repack.TileRows
	grid := min(tiles, l.sms)
	most := (tiles + grid - 1) / grid // tiles of a block
	parts := v.parts(rows)
	slots := slices * parts * pairBytes
	fit := (l.sharedBlock - v.fixedBytes()) / slots
	fit -= fit % teams
	if fit <= 0 {
		return fail("%d bits, %d rows and %d columns need more shared memory than a block has here", m.Format.Bits, rows, m.K)
	}
	runs := (most + fit - 1) / fit
	run := (most + runs - 1) / runs
	run = (run + teams - 1) / teams * teams
	p := bcqParams{
		planes: uint64(m.planes), factors: uint64(m.factors),
		units: uint32((m.K + repack.UnitCols - 1) / repack.UnitCols), slices: uint32(slices), teams: uint32(teams),
		tilesEach: uint32(tiles / grid), tilesOver: uint32(tiles % grid),
		run: uint32(run), n: uint32(m.N), k: uint32(m.K), m: uint32(rows), parts: uint32(parts), slicesLog: uint32(bits.TrailingZeros(uint(slices))),
	}
	return v, p, driver.Launch{
		Grid: driver.Dim{X: uint32(grid)}, Block: driver.Dim{X: uint32(32 * v.warps)}, Shared: v.fixedBytes() + run*slots, Programmatic: true,
	}, nil
}

// MatMul implements [Packed], with a launch for up to 16 rows of X each.
func (m *BCQMatrix) MatMul(s *driver.Stream, o Operands) error { return m.launchAll(s, o, false) }

// Read queues the read-only twin of a product: the same grids, and the same bytes of the matrix read in the same order.
func (m *BCQMatrix) Read(s *driver.Stream, o Operands) error { return m.launchAll(s, o, true) }

func (m *BCQMatrix) launchAll(s *driver.Stream, o Operands, twin bool) error {
	if err := o.checkFor(m.planes); err != nil {
		return err
	}
	return each(m.N, m.K, o, parts(o.M, MaxRows), func(o Operands) error {
		v, p, l, err := m.plan(o.M, m.engine.limits)
		if err != nil {
			return err
		}
		l.Programmatic = m.engine.dev.Info.Major >= 9
		p.x, p.y, p.bias = uint64(o.X), uint64(o.Y), uint64(o.Bias)
		if twin {
			return m.engine.launchOther(s, bcqTwin{v}, bcqReadName, l, p.bytes())
		}
		return m.engine.launchOther(s, v, v.function(), l, p.bytes())
	})
}

// Rows implements [Packed]: numbers are rounded once. Whole tiles as numbers of the matrix's type are written several times as fast
// as others.
func (m *BCQMatrix) Rows(s *driver.Stream, dst driver.Ptr, out driver.DType, index driver.Ptr, first, count int) error {
	switch {
	case m.planes == 0:
		return errors.New("the matrix has been closed")
	case out != m.Format.Type && out != driver.F32:
		return fmt.Errorf("rows of type %v of a matrix of type %v", out, m.Format.Type)
	case first < 0 || count < 0 || index == 0 && first+count > m.N:
		return fmt.Errorf("%d rows from row %d of a matrix of %d", count, first, m.N)
	case count == 0:
		return nil
	}
	l, args := m.rowsLaunch(dst, index, first, count)
	if out == m.Format.Type && index == 0 && first%repack.TileRows == 0 && dst%16 == 0 {
		l = m.denseLaunch(count, m.engine.limits.sms)
		return m.engine.launchOther(s, bcqDense{bcqRows{m.Format, out}}, bcqDenseName, l, args)
	}
	return m.engine.launchOther(s, bcqRows{m.Format, out}, bcqRowsName, l, args)
}

// denseLaunch returns how the kernel for whole tiles is launched to write count rows; its argument is that of rowsLaunch.
func (m *BCQMatrix) denseLaunch(count, sms int) driver.Launch {
	const warps, blocks = 8, 6 // of a block; of a multiprocessor
	units := (count + repack.TileRows - 1) / repack.TileRows * ((m.K + repack.UnitCols - 1) / repack.UnitCols)
	return driver.Launch{Grid: driver.Dim{X: uint32(min((units+warps-1)/warps, blocks*sms))}, Block: driver.Dim{X: 32 * warps}}
}

func (m *BCQMatrix) rowsLaunch(dst, index driver.Ptr, first, count int) (driver.Launch, []byte) {
	args, _ := binary.Append(nil, binary.LittleEndian, struct {
		planes, factors, dst, index uint64
		first, k, units, count      uint32
	}{
		uint64(m.planes), uint64(m.factors), uint64(dst), uint64(index),
		uint32(first), uint32(m.K), uint32((m.K + repack.UnitCols - 1) / repack.UnitCols), uint32(count),
	})
	const threads, most = 256, 8 // of a block; blocks for a row
	return driver.Launch{
		Grid:  driver.Dim{X: uint32(count), Y: uint32(min((m.K+threads-1)/threads, most))},
		Block: driver.Dim{X: threads},
	}, args
}
