package bench

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/lutq/lutq/formats/weight"
	"github.com/lutq/lutq/formats/weight/lut"
	"github.com/lutq/lutq/gemm/conform"
	"github.com/lutq/lutq/gemm/cuda"
	"github.com/lutq/lutq/gemm/cuda/driver"
	"github.com/lutq/lutq/gemm/cuda/table"
	"github.com/lutq/lutq/gemm/cuda/timing"
)

// surveyReplays is how often [Survey] replays graphs that take about surveyUs, if that is more than some calls.
const (
	surveyReplays = 3
	surveyUs      = 1000
	surveyCalls   = 4
)

// Survey is [CUDA] for many shapes in little time, to tell only how products stand beside cuBLAS: all multiply by the same memory of random
// codes, no result is checked, which self-tests do, and each of the ways that are worth trying is timed in turn with cuBLAS, in graphs of a
// millisecond; the fastest makes the row. With NoTune that is the one which is chosen. Of the options layers, kinds, lookups and E4M3 are left out.
func Survey(ctx context.Context, o CUDAOptions) (rows []Row, err error) {
	if o.Replays == 0 {
		o.Replays = surveyReplays
	}
	err = onFirst(o, func(b *cudaBench) (err error) {
		rows, err = b.survey(ctx)
		return err
	})
	return rows, err
}

// surveyMemory is what all products of a [Survey] share.
type surveyMemory struct {
	memory
	codes, scales, dense, x, columns, y, scratch, unpacked driver.Ptr
	unpackedBytes                                          int

	someScales []byte // of which scales are copies
	codebooks  map[int][]float32
	blas       *driver.BLAS // nil where there is no cuBLAS
}

// survey times all shapes for all widths and numbers of rows.
func (b *cudaBench) survey(ctx context.Context) (_ []Row, err error) {
	b.compile()
	mem, err := b.surveyMemory()
	if err != nil {
		return nil, err
	}
	defer func() {
		err = errors.Join(err, mem.free())
		if mem.blas != nil {
			err = errors.Join(err, mem.blas.Close())
		}
	}()
	b.total = len(b.Shapes) * len(b.M) * len(b.Bits)
	for _, s := range b.Shapes {
		for _, m := range b.M {
			if err := ctx.Err(); err != nil {
				return nil, err
			}
			b.doing("timing", form{n: s.N, k: s.K, bits: b.Bits[0]}, m)
			if err := b.surveyed(mem, s, m); err != nil {
				return nil, fmt.Errorf("%d×%d, m %d: %w", s.N, s.K, m, err)
			}
		}
	}
	return b.rows, nil
}

// format returns that of products by a shape.
func (b *cudaBench) format(s Shape, bits int) table.Format {
	return table.Held(table.Format{Bits: bits, Group: min(b.Group, s.K), Scale: weight.F16, Type: b.dtype}, s.K)
}

// surveyMemory allocates and fills what the largest of the products takes.
func (b *cudaBench) surveyMemory() (_ *surveyMemory, err error) {
	mem := &surveyMemory{memory: memory{dev: b.dev}, codebooks: make(map[int][]float32)}
	defer func() {
		if err != nil {
			err = errors.Join(err, mem.free())
		}
	}()
	var codes, scales, dense, x, columns, y, scratch int
	for _, s := range b.Shapes {
		most := slices.Max(b.M)
		dense, x, y = max(dense, 2*s.N*s.K), max(x, 2*most*s.K), max(y, 2*most*s.N)
		columns = max(columns, table.Columns.Bytes(most, s.K))
		for _, bits := range b.Bits {
			w := table.Like(b.format(s, bits), s.N, s.K)
			c, sc := b.format(s, bits).Sizes(s.N, s.K)
			codes, scales = max(codes, c), max(scales, sc)
			mem.unpackedBytes = max(mem.unpackedBytes, cuda.UnpackedScratch(w))
			for _, m := range b.M {
				if m > cuda.MaxRows {
					scratch = max(scratch, b.engine.MostScratch(w, m))
				}
			}
		}
	}
	for _, bits := range b.Bits {
		table, err := lut.NewCodebook("nf", bits, b.Group)
		if err != nil {
			return nil, err
		}
		mem.codebooks[bits] = table.Values
	}
	values := make([]float32, 1<<16)
	for i := range values {
		values[i] = float32(0.02 * (0.5 + b.rand.Float64()))
	}
	mem.someScales = make([]byte, 2*len(values))
	weight.F16.Encode(mem.someScales, values)
	some := make([]byte, 1<<24)
	for i := range some {
		some[i] = byte(b.rand.Uint32())
	}
	halves := driver.Bytes(conform.RandomHalves(b.rand, 1<<22, b.dtype))
	// A ring goes beyond its least size by less than a matrix, and has two.
	mem.codes, mem.scales = mem.filled(b.RingBytes+2*codes, some), mem.filled(b.RingBytes+2*scales, mem.someScales)
	mem.x, mem.columns, mem.y = mem.filled(x, halves), mem.filled(columns, halves), mem.alloc(y)
	if scratch > 0 {
		mem.scratch = mem.alloc(scratch)
	}
	blas, err := b.dev.NewBLAS(b.stream)
	var missing *driver.MissingError
	switch {
	case err == nil:
		mem.blas = blas
		mem.dense, mem.unpacked = mem.filled(b.RingBytes+2*dense, halves), mem.alloc(mem.unpackedBytes)
	case !errors.As(err, &missing):
		return nil, err
	}
	return mem, mem.err
}

// filled allocates memory and fills it with copies of some bytes.
func (m *surveyMemory) filled(size int, with []byte) driver.Ptr {
	p := m.alloc(size)
	if m.err != nil {
		return 0
	}
	m.err = m.dev.Write(p, with[:min(size, len(with))])
	for done := len(with); done < size && m.err == nil; done *= 2 {
		m.err = m.dev.Copy(p+driver.Ptr(done), p, min(done, size-done))
	}
	return p
}

// surveyed adds the rows of a shape and a number of rows of X, one for each width.
func (b *cudaBench) surveyed(mem *surveyMemory, s Shape, m int) error {
	flops := 2 * float64(m) * float64(s.N) * float64(s.K)
	few := func(bytes int) int { // calls that take about surveyUs at 4 TB/s and 600 TFLOP/s
		return min(max(int(surveyUs/max(float64(bytes)/4e6, flops/6e8)), surveyCalls), 64)
	}
	ring := func(size int) int {
		n := 2
		for !ringIsLong(n, size, b.RingBytes) {
			n++
		}
		return n
	}
	o := cuda.Operands{M: m, X: mem.x, Y: mem.y}
	if m > cuda.MaxRows {
		o.Scratch = mem.scratch
	}
	var arms []*timing.Arm
	var ways []surveyWay
	first := make([]int, 0, len(b.Bits)) // arms of a width
	var rows []Row
	for _, bits := range b.Bits {
		f := b.format(s, bits)
		codes, scales := f.Sizes(s.N, s.K)
		like, err := table.New(f, s.N, s.K, mem.codebooks[bits], mem.someScales)
		if err != nil {
			return err
		}
		matrices, err := b.engine.Over(like, ring(codes+scales), mem.codes, mem.scales)
		if err != nil {
			return err
		}
		first = append(first, len(arms))
		all, err := b.surveyWays(mem, matrices, o)
		if err != nil {
			return err
		}
		for _, w := range all {
			ways = append(ways, w)
			arms = append(arms, &timing.Arm{Ring: len(matrices), Few: few(codes + scales), Call: w.call})
		}
		rows = append(rows, Row{
			Device: "cuda", GPU: b.dev.Info.Name, N: s.N, K: s.K, M: m, Bits: bits, Group: min(b.Group, s.K), DType: b.DType,
			Ring: len(matrices), Bytes: matrices[0].Bytes() + 4*int64(len(mem.codebooks[bits])),
		})
	}
	var plain *timing.Arm
	if size := 2 * s.N * s.K; mem.blas != nil {
		n := ring(size)
		plain = &timing.Arm{Ring: n, Few: few(size), Call: func(i int) error {
			return mem.blas.MatMul(mem.y, mem.x, mem.dense+driver.Ptr(i%n*size), m, s.N, s.K, b.dtype, b.dtype)
		}}
		arms = append(arms, plain)
	}
	if err := timing.Measure(b.dev, b.stream, arms, b.Replays); err != nil {
		return err
	}
	for i, r := range rows {
		end := len(ways)
		if i+1 < len(first) {
			end = first[i+1]
		}
		best := first[i]
		for j := first[i]; j < end; j++ {
			if arms[j].Median() < arms[best].Median() {
				best = j
			}
		}
		r.Kernel, r.Us = ways[best].name, arms[best].Median()
		r.GBPerS, r.GFLOPPerS = float64(r.Bytes)/r.Us/1e3, flops/r.Us/1e3
		if plain != nil {
			r.DenseUs = plain.Median()
			r.DenseRatio, r.DenseGFLOPS = r.DenseUs/r.Us, flops/r.DenseUs/1e3
		}
		b.rows = append(b.rows, r)
		if b.Done != nil {
			b.Done(r, b.total)
		}
	}
	return nil
}

// surveyWay is one of the ways to multiply by the matrices of a ring.
type surveyWay struct {
	name string
	call func(i int) error
}

// surveyWays returns those that are worth trying, or the one that is chosen.
func (b *cudaBench) surveyWays(mem *surveyMemory, ring []*cuda.Matrix, o cuda.Operands) ([]surveyWay, error) {
	t := ring[0].Tiles
	_, k := t.Shape()
	u := cuda.Unpacked{BLAS: mem.blas, Scratch: mem.unpacked, Bytes: mem.unpackedBytes}
	way := func(by cuda.Way) surveyWay {
		if by == cuda.AsNumbers {
			return surveyWay{unpackedKernel, func(i int) error { return u.MatMul(b.stream, ring[i%len(ring)], o, b.dtype, false) }}
		}
		o := o
		if form := b.engine.NeedsOf(t, by, o.M).Form; form != nil && form.Written(k) {
			o.X, o.Form = mem.columns, form
		}
		return surveyWay{cuda.Label(by), func(i int) error { return b.engine.MatMulWay(b.stream, ring[i%len(ring)], o, by) }}
	}
	if b.NoTune {
		chosen := b.engine.Way(t, o.M)
		if chosen == cuda.AsNumbers && mem.blas == nil {
			chosen = cuda.InTurns
		}
		return []surveyWay{way(chosen)}, nil
	}
	of := b.engine.Configs(t, o.M)
	if o.M > cuda.MaxRows {
		of = b.engine.Ways(t, o.M)
	}
	var all []surveyWay
	for _, by := range of {
		if by != cuda.AsNumbers || mem.blas != nil {
			all = append(all, way(by))
		}
	}
	if len(all) == 0 {
		return nil, errors.New("no kernel")
	}
	return all, nil
}
