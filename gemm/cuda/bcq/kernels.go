package bcq

import (
	_ "embed"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/lutq/lutq/formats/weight"
	"github.com/lutq/lutq/gemm/cuda"
	"github.com/lutq/lutq/gemm/cuda/driver"
	"github.com/lutq/lutq/gemm/cuda/ptx"
	"github.com/lutq/lutq/gemm/cuda/table"
	"github.com/lutq/lutq/repack"
)

var (
	//go:embed bcq.cuh
	headerSource string
	//go:embed bcqplanes.cu
	planesSource string
	//go:embed bcqdigits.cu
	digitsSource string
	//go:embed bcqrows.cu
	rowsSource string
)

// The functions of the kernels.
const (
	planesName = "bcqplanes"
	digitsName = "bcqdigits"
	readName   = "bcqread"
	rowsName   = "bcqrows"
	denseName  = "bcqdense"
)

// What the kernels are built on; they have the same numbers.
const (
	rowsOfB   = 8   // rows of X in a tile of the mma
	pairBytes = 128 // of sums, for a pair of rows of X
	mostWarps = 16  // of a block
)

// format is what the kernels are compiled for: of factors the type is F16, BF16 or F32.
type format struct{ cuda.Format }

// recordBytes is what a unit of a tile takes, with its factors.
func (f format) recordBytes() int {
	return f.Bits*planeBytes + f.groups()*(f.Bits+1)*repack.TileRows*f.Scale.Size()
}

// groups returns how many sets of factors a unit has.
func (f format) groups() int {
	if f.Group == 0 {
		return 1
	}
	return repack.UnitCols / f.Group
}

// planeBytes is what a plane of a unit takes of a tile.
const planeBytes = repack.TileRows * repack.UnitCols / 8

// planes is bcqplanes.cu, or for so few rows bcqdigits.cu, as it is compiled.
type planes struct {
	format format
	rows   int // of X, at most: 1, 2, 8 or 16
	warps  int // of a block
	stages int // of a warp's ring
}

// The shared memory that the number of warps is chosen for, and what sums are left of it at least.
const (
	hopperShared = 227 << 10
	sumsBytes    = 24 << 10
	mostStages   = 6 // at most
)

const digitRows = 2 // of X, that bcqdigits.cu is for at most

// planesFor returns the kernel for up to so many rows of X. The number of warps, which sums depend on, is a matter of the
// format; of stages there are as many as a block has room for.
func planesFor(f format, m int, l table.Limits) planes {
	v := planes{format: f, rows: rowsOfB, warps: mostWarps}
	sums := sumsBytes
	switch {
	case m <= digitRows:
		v.rows = m
	case m > rowsOfB:
		v.rows, v.warps, sums = cuda.MaxRows, mostWarps/2, 2*sumsBytes // whose X takes 128 registers
	}
	stages := func(shared int) int { return (shared - sums - v.warps*v.besideBytes()) / (v.warps * f.recordBytes()) }
	for v.warps > 4 && stages(hopperShared) < 2 {
		v.warps /= 2
	}
	v.stages = max(2, min(mostStages, stages(l.Shared)))
	return v
}

// prebuiltPlanes returns what is built ahead of time, for up to 16 rows of X and on any GPU.
func prebuiltPlanes(f format) planes {
	v := planesFor(f, cuda.MaxRows, table.Limits{})
	v.stages = 2
	return v
}

// rowsAtMost returns up to how many rows of X each kernel is for.
func rowsAtMost() []int { return []int{1, digitRows, rowsOfB, cuda.MaxRows} }

// digits reports whether it is bcqdigits.cu.
func (v planes) digits() bool { return v.rows <= digitRows }

// besideBytes is what a warp has in shared memory beside its ring: sums of X, or the digits of 256 columns of a row of X, each with its
// negative's, where a stage is too short for them.
func (v planes) besideBytes() int {
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
func (v planes) fixedBytes() int {
	return v.warps * (v.stages*v.format.recordBytes() + v.besideBytes())
}

// parts returns how many parts of 128 bytes the sums of a tile and a slice have: pairs of rows of X, or rows, whose digits have their own.
func (v planes) parts(rows int) int {
	if v.digits() {
		return rows
	}
	return (rows + 1) / 2
}

// function returns the name of the kernel.
func (v planes) function() string {
	if v.digits() {
		return digitsName
	}
	return planesName
}

// Kernel implements [cuda.Kernel].
func (v planes) Kernel() driver.Kernel {
	source, rows := ptx.Sparse()+headerSource+planesSource, fmt.Sprintf("NT=%d", v.rows/rowsOfB)
	if v.digits() {
		source, rows = headerSource+digitsSource, fmt.Sprintf("ROWS=%d", v.rows)
	}
	k := driver.Kernel{
		Name:   fmt.Sprintf("%s.%s.cu", v.function(), v.format.Name()),
		Source: ptx.Instructions() + source,
		Options: driver.CompileOptions{Defines: append(v.format.Defines(),
			rows, fmt.Sprintf("WARPS=%d", v.warps), fmt.Sprintf("STAGES=%d", v.stages), fmt.Sprintf("BESIDE=%d", v.besideBytes()))},
		PTX: noPTX,
	}
	if v == prebuiltPlanes(v.format) {
		k.PTX = func(i driver.DeviceInfo) ([]byte, error) { return v.format.ptx(k, i) }
	}
	return k
}

func noPTX(driver.DeviceInfo) ([]byte, error) {
	return nil, errors.New("this kernel for binary codes is compiled when it is needed")
}

// rows is bcqrows.cu as it is compiled.
type rows struct {
	format format
	out    driver.DType
}

// Kernel implements [cuda.Kernel].
func (r rows) Kernel() driver.Kernel {
	same := 0
	if r.out == r.format.Type {
		same = 1
	}
	k := driver.Kernel{
		Name:    fmt.Sprintf("%s.%s-%v.cu", rowsName, r.format.Name(), r.out),
		Source:  ptx.Instructions() + rowsSource,
		Options: driver.CompileOptions{Defines: append(r.format.Defines(), fmt.Sprintf("OUT=%d", same))},
	}
	k.PTX = func(i driver.DeviceInfo) ([]byte, error) { return r.format.ptx(k, i) }
	return k
}

// slicesOf returns into how many slices the warps of a block split K: so many, a power of two, that the busiest of them
// has the least to do on a GPU of 132 multiprocessors, and of those the most.
func slicesOf(n, k, warps int) int {
	const sms = table.OneTile / repack.TileRows
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

// params is the argument of bcqplanes.cu and bcqdigits.cu.
type params struct {
	planes, factors      uint64
	units, slices, teams uint32
	tilesEach, tilesOver uint32
	run, n, k            uint32
	x, y, bias           uint64
	m, parts             uint32
	slicesLog, _         uint32
}

func (p *params) bytes() []byte {
	b, _ := binary.Append(nil, binary.LittleEndian, p) // which has a size
	return b
}

// prebuilt reports whether kernels of the format are built ahead of time: of the widths that stand beside those of tables.
func (f format) prebuilt() bool {
	return f.Bits >= 2 && f.Bits <= 4 && (f.Group == 64 || f.Group == 128) && f.Scale == weight.F16
}

// ptx returns what was built ahead of time of a kernel.
func (f format) ptx(k driver.Kernel, i driver.DeviceInfo) ([]byte, error) {
	if !f.prebuilt() {
		return nil, fmt.Errorf("without it there are kernels for binary codes of 2 to 4 bits in groups of 64 and 128 with f16 factors, and none for %s", f.Name())
	}
	return cuda.Prebuilt(k, i)
}
