package cuda

import (
	_ "embed"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/lutq/lutq/formats/weight"
	"github.com/lutq/lutq/gemm/cuda/driver"
	"github.com/lutq/lutq/gemm/cuda/ptx"
	"github.com/lutq/lutq/repack"
)

//go:embed bcqgather.cu
var bcqGatherSource string

// The functions of bcqgather.cu.
const (
	bcqGatherName     = "bcqgather"
	bcqGatherReadName = "bcqgatherread"
)

// gatherMostRows is the number of rows of X that one launch multiplies at most.
const gatherMostRows = 2

// gatherTables is the shared memory that tables take at most.
const gatherTables = 128 << 10

// bcqGather is bcqgather.cu as it is compiled.
type bcqGather struct {
	format BCQFormat
	half   bool
	rows   int // of X: 1 or 2
}

// bcqGatherTwin is its read-only twin.
type bcqGatherTwin struct{ bcqGather }

func (g bcqGather) kernel() driver.Kernel {
	half := 0
	if g.half {
		half = 1
	}
	return driver.Kernel{
		Name:   fmt.Sprintf("%s.%s.cu", bcqGatherName, g.format.name()),
		Source: ptx.Instructions() + bcqGatherSource,
		Options: driver.CompileOptions{Defines: append(g.format.defines(),
			fmt.Sprintf("HALF=%d", half), fmt.Sprintf("ROWS=%d", g.rows), fmt.Sprintf("WARPS=%d", gemmWarps))},
		PTX: noPTX,
	}
}

// BCQGatherKernels returns the kernels of products by matrices of a format, of factors in float16, that look up in whole tables or in halves.
func BCQGatherKernels(f BCQFormat, half bool) []driver.Kernel {
	return []driver.Kernel{bcqGather{f, half, 1}.kernel(), bcqGather{f, half, gatherMostRows}.kernel()}
}

// chunkBytes is what the tables of 128 columns take.
func (g bcqGather) chunkBytes() int {
	entries := 256
	if g.half {
		entries = 128
	}
	return 16 * entries * 2 * g.rows
}

// sets returns how many sets of factors 128 columns have.
func (g bcqGather) sets() int {
	if g.format.Group == 0 {
		return 1
	}
	return max(1, 128/g.format.Group)
}

// BCQGatherMatrix is a matrix of binary codes in a GPU's memory, to look bytes of planes up in tables of eight activations of one type.
// Its products are in one stream.
type BCQGatherMatrix struct {
	N, K   int
	Format BCQFormat

	half                         bool
	engine                       *Engine
	planes, factors, parts, done driver.Ptr
	bytes                        int64
}

// UploadBCQGather copies a matrix to the GPU. K must be a multiple of 32.
func (e *Engine) UploadBCQGather(t *repack.BCQGather, dtype driver.DType) (*BCQGatherMatrix, error) {
	f := BCQFormat{t.Bits, t.Group, weight.F16, dtype}
	if t.Group == t.K {
		f.Group = 0
	}
	m := &BCQGatherMatrix{N: t.N, K: t.K, Format: f, half: t.Half, engine: e, bytes: int64(len(t.Planes) + len(t.Factors))}
	if t.K%32 != 0 {
		return nil, fmt.Errorf("%d input features: the kernel wants a multiple of 32", t.K)
	}
	_, p, _ := m.plan(gatherMostRows, e.limits)
	slices := (p.chunks + p.sliceChunks - 1) / p.sliceChunks
	var err error
	if m.planes, err = e.dev.Upload(t.Planes); err == nil {
		m.factors, err = e.dev.Upload(t.Factors)
	}
	if err == nil {
		m.parts, err = e.dev.Alloc(4 * gatherMostRows * int(slices) * t.N)
	}
	if err == nil {
		m.done, err = e.dev.Upload(make([]byte, 4*e.dev.Info.SMs))
	}
	if err != nil {
		return nil, errors.Join(err, m.Close())
	}
	return m, nil
}

// Bytes returns what a multiplication reads of the matrix.
func (m *BCQGatherMatrix) Bytes() int64 { return m.bytes }

// Close frees the matrix.
func (m *BCQGatherMatrix) Close() error {
	var errs []error
	for _, p := range []*driver.Ptr{&m.planes, &m.factors, &m.parts, &m.done} {
		if *p != 0 {
			errs = append(errs, m.engine.dev.Free(*p))
		}
		*p = 0
	}
	return errors.Join(errs...)
}

// gatherParams is the argument of bcqgather.cu.
type gatherParams struct {
	planes, factors     uint64
	x, y, bias          uint64
	parts, done         uint64
	n, k                uint32
	chunks, sliceChunks uint32
	tiles, sets         uint32
	run, _              uint32
}

func (p *gatherParams) bytes() []byte {
	b, _ := binary.Append(nil, binary.LittleEndian, p) // which has a size
	return b
}

// plan returns the kernel for one or two rows of X, its argument and its grid: slices of K as equal as the tables that a block has room
// for allow, and a share of the tiles for each block of a slice.
func (m *BCQGatherMatrix) plan(rows int, l limits) (bcqGather, gatherParams, driver.Launch) {
	g := bcqGather{m.Format, m.half, rows}
	const tileRows, chunkCols = 32, 128
	chunks := (m.K + chunkCols - 1) / chunkCols
	slices := (chunks*g.chunkBytes() + gatherTables - 1) / gatherTables
	sliceChunks := (chunks + slices - 1) / slices
	slices = (chunks + sliceChunks - 1) / sliceChunks
	tiles := (m.N + tileRows - 1) / tileRows
	blocks := max(1, min(tiles, l.sms/slices))
	most := (tiles + blocks - 1) / blocks
	slot := gemmWarps * rows * 32 * 4
	fixed := sliceChunks*(g.chunkBytes()+4*rows*g.sets()) + 16
	run := min(most, (l.sharedBlock-fixed)/slot)
	runs := (most + run - 1) / run
	run = (most + runs - 1) / runs
	sets := 1
	if m.Format.Group != 0 {
		sets = (&repack.BCQGather{N: m.N, K: m.K, Group: m.Format.Group}).Sets()
	}
	p := gatherParams{
		planes: uint64(m.planes), factors: uint64(m.factors), parts: uint64(m.parts), done: uint64(m.done),
		n: uint32(m.N), k: uint32(m.K), chunks: uint32(chunks), sliceChunks: uint32(sliceChunks),
		tiles: uint32(tiles), sets: uint32(sets), run: uint32(run),
	}
	return g, p, driver.Launch{
		Grid: driver.Dim{X: uint32(blocks), Y: uint32(slices)}, Block: driver.Dim{X: 32 * gemmWarps}, Shared: fixed + run*slot, Programmatic: true,
	}
}

// MatMul queues Y = X·Ŵᵀ + Bias, with a launch for up to two rows of X each.
func (m *BCQGatherMatrix) MatMul(s *driver.Stream, o Operands) error { return m.launchAll(s, o, false) }

// Read queues the read-only twin of a product.
func (m *BCQGatherMatrix) Read(s *driver.Stream, o Operands) error { return m.launchAll(s, o, true) }

func (m *BCQGatherMatrix) launchAll(s *driver.Stream, o Operands, twin bool) error {
	if err := o.checkFor(m.planes); err != nil {
		return err
	}
	return each(m.N, m.K, o, gatherMostRows, func(o Operands) error {
		g, p, l := m.plan(o.M, m.engine.limits)
		l.Programmatic = m.engine.dev.Info.Major >= 9
		p.x, p.y, p.bias = uint64(o.X), uint64(o.Y), uint64(o.Bias)
		if twin {
			return m.engine.launchOther(s, bcqGatherTwin{g}, bcqGatherReadName, l, p.bytes())
		}
		return m.engine.launchOther(s, g, bcqGatherName, l, p.bytes())
	})
}
