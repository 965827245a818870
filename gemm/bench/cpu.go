package bench

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/lutq/lutq/formats/input"
	"github.com/lutq/lutq/formats/num"
	"github.com/lutq/lutq/gemm/conform"
	"github.com/lutq/lutq/gemm/cpu"
	"github.com/lutq/lutq/gemm/cuda"
	"github.com/lutq/lutq/gemm/ref"
	"github.com/lutq/lutq/quantize/bcq"
	"github.com/lutq/lutq/quantize/lut"
	"github.com/lutq/lutq/quantize/weight"
	"github.com/lutq/lutq/repack"
)

// ErrMismatch is in the chain of the error of a kernel whose results are not
// those of the reference.
var ErrMismatch = errors.New("result differs from the reference")

// ErrorBound returns the relative error that a row's product may have: a little more than rounding its results
// to their type costs and, where weights or sums in tables are rounded as well, these.
func (r *Row) ErrorBound() float64 {
	t, err := halfType(r.DType)
	switch {
	case strings.HasPrefix(r.Kernel, fixedKernel):
		return cpu.FixedError
	case strings.HasPrefix(r.Kernel, tabledKernel):
		return tabledError
	case err != nil:
		return 1e-5
	case r.Kernel == unpackedKernel, strings.HasPrefix(r.Kernel, manyKernel), strings.HasPrefix(r.Kernel, cuda.SparseManyName), strings.HasPrefix(r.Kernel, gatherKernel):
		return 1.5 * conform.Bound(t)
	}
	return conform.Bound(t)
}

// fixedKernel begins the name of a kernel in fixed point.
const fixedKernel = "fixed-"

// maxRelErr is the relative error that float32 sums stay below.
const maxRelErr = 4e-6

// Shape is that of a weight matrix.
type Shape struct {
	N, K int // output and input features
}

// ParseShape reads "NxK".
func ParseShape(s string) (Shape, error) {
	n, k, ok := strings.Cut(s, "x")
	if ok {
		a, errA := strconv.Atoi(n)
		b, errB := strconv.Atoi(k)
		if errA == nil && errB == nil && a > 0 && b > 0 && a <= math.MaxInt32/b {
			return Shape{a, b}, nil
		}
	}
	return Shape{}, fmt.Errorf("shape %q: want NxK, two positive numbers", s)
}

// Layer is a real layer to measure.
type Layer struct {
	Name   string
	Matrix weight.Matrix
	Layout lut.Layout // of Matrix, for the device; nil: it is laid out
}

// Options say what [CPU] measures. Zero values have the defaults given.
type Options struct {
	Shapes []Shape // random matrices of every shape, width and M
	Kind   string  // of those: that of tables, or one of [KindNames]
	Bits   []int   // 2, 3, 4, 5
	Group  int     // 64; cut to K where that is smaller

	// Layers are measured besides, each with its own width and group.
	Layers []Layer

	M []int // rows of X: 1

	Threads int    // GOMAXPROCS
	ISA     string // see [cpu.Options]
	Seed    uint64 // of the random data

	// BLAS names a CBLAS library, such as libopenblas.so.0, to time sgemm of
	// on the dequantized matrix; "" times none.
	BLAS string

	// PoolBytes is the least size of the pool that weights rotate through:
	// eight times the last cache, and a little.
	PoolBytes int

	// Time is the least time to spend on each of the four measurements of a
	// row: 300 ms.
	Time time.Duration

	// Memory is the most memory of the host to take in bytes; 0 is no limit.
	Memory int64

	// Done is called after each matrix and M, if not nil, with the number of
	// them to come in all.
	Done func(row Row, total int)
}

// turns is the number of times that each measurement takes its turn.
const turns = 5

// CPU measures products on the CPU, in the order layers, shapes; width; M.
// It fails with [ErrMismatch] at the first result that is wrong.
func CPU(ctx context.Context, o Options) ([]Row, error) {
	if len(o.Bits) == 0 {
		o.Bits = []int{2, 3, 4, 5}
	}
	if o.Group == 0 {
		o.Group = 64
	}
	if len(o.M) == 0 {
		o.M = []int{1}
	}
	if o.PoolBytes == 0 {
		o.PoolBytes = 8*lastCache() + 1<<20
	}
	if o.Time == 0 {
		o.Time = 300 * time.Millisecond
	}
	if err := o.check(); err != nil {
		return nil, err
	}
	e, err := cpu.New(cpu.Options{Threads: o.Threads, ISA: o.ISA})
	if err != nil {
		return nil, err
	}
	defer e.Close()

	blas, err := o.openBLAS(e)
	if err != nil {
		return nil, err
	}
	b := bench{Options: o, engine: e, blas: blas, rand: rand.New(rand.NewPCG(o.Seed, 0))}
	total := len(o.M) * (len(o.Layers) + len(o.Shapes)*len(o.Bits))
	var rows []Row
	measure := func(l Layer) error {
		got, err := b.matrix(ctx, l, total)
		rows = append(rows, got...)
		return err
	}
	for _, l := range o.Layers {
		if err := measure(l); err != nil {
			return nil, fmt.Errorf("%s: %w", l.Name, err)
		}
	}
	for _, s := range o.Shapes {
		for _, bits := range o.Bits {
			if err := measure(Layer{Matrix: o.random(b.rand, s, bits)}); err != nil {
				return nil, fmt.Errorf("%d×%d, %d bits: %w", s.N, s.K, bits, err)
			}
		}
	}
	return rows, nil
}

func (o *Options) check() error {
	for _, s := range o.Shapes {
		if s.N <= 0 || s.K <= 0 {
			return fmt.Errorf("shape %d×%d has no elements", s.N, s.K)
		}
	}
	least, most := lut.MinBits, lut.MaxBits
	if o.Kind != "" && o.Kind != lut.Name {
		k, err := kindOf(o.Kind)
		if err != nil {
			return err
		}
		least, most = k.least, k.most
	}
	for _, b := range o.Bits {
		if b < least || b > most {
			return fmt.Errorf("%d bits a code: want %d to %d", b, least, most)
		}
	}
	for _, m := range o.M {
		if m <= 0 {
			return fmt.Errorf("%d rows of activations: want at least 1", m)
		}
	}
	if o.Group < 0 || o.PoolBytes < 0 || o.Time < 0 {
		return errors.New("group, pool size and time must not be negative")
	}
	for _, s := range o.Shapes {
		for _, m := range o.M {
			if need := o.bytes(s, m); o.Memory > 0 && need > float64(o.Memory) {
				return fmt.Errorf("%d×%d, m %d: needs about %.3g GB of memory: %.3g GB are available", s.N, s.K, m, need/1e9, float64(o.Memory)/1e9)
			}
		}
	}
	return nil
}

// bytes estimates the host's memory that measuring m rows on a shape takes: X
// and Y with what they are packed into, the matrix in float32, and two copies of
// it in each type that is measured, or as many as fill the pool.
func (o *Options) bytes(s Shape, m int) float64 {
	n, k := float64(s.N), float64(s.K)
	copies := 0.0
	for _, width := range []float64{1, 1, 2, 4} { // codes twice: also in fixed point
		copies += max(2*width*n*k, float64(o.PoolBytes)+width*n*k)
	}
	return 12*float64(m)*(n+k) + 5*n*k + copies
}

// bench is a run of [CPU].
type bench struct {
	Options
	engine *cpu.Engine
	blas   sgemm // nil: none
	rand   *rand.Rand
}

// random returns a matrix of a shape with weights of a layer.
func (o *Options) random(r *rand.Rand, s Shape, bits int) weight.Matrix {
	if k, err := kindOf(o.Kind); err == nil {
		return k.random(r, s, bits, o.Group)
	}
	return conform.RandomMatrix(r, s.N, s.K, bits, o.Group, weight.F16)
}

// matrix measures one matrix at every M: by its kind's kernels, or by dense weights where there are none.
func (b *bench) matrix(ctx context.Context, l Layer, total int) ([]Row, error) {
	f, err := formOf(l.Matrix)
	if err == nil {
		err = l.Matrix.Validate()
	}
	if err != nil {
		return nil, err
	}
	s := subject{Matrix: l.Matrix, form: f}
	var w pools
	if w.f32, w.f32Bytes, err = b.densePool(l.Matrix, "F32"); err != nil {
		return nil, err
	}
	if w.f16, _, err = b.densePool(l.Matrix, "F16"); err != nil {
		return nil, err
	}
	switch m := l.Matrix.(type) {
	case *lut.Matrix:
		panels, ok := l.Layout.(*repack.CPUPanels)
		if !ok {
			if panels, err = repack.CPU(m); err != nil {
				return nil, err
			}
		}
		s.kernel = "lut-"
		w.packed, w.fixed, w.bytes, err = b.packedPool(panels)
	case *bcq.Matrix:
		s.kernel = "planes-"
		w.packed, w.bytes, err = b.planesPool(m)
	default: // as in models
		s.kernel = "dense-"
		w.packed, w.bytes = w.f32, w.f32Bytes
	}
	if err != nil {
		return nil, err
	}
	return b.subject(ctx, s, w, l.Name, total)
}

// subject measures a matrix at every M, of which w has copies.
func (b *bench) subject(ctx context.Context, s subject, w pools, name string, total int) (rows []Row, err error) {
	for _, batch := range b.M {
		timed, err := b.row(ctx, s, w, batch)
		if err != nil {
			return nil, fmt.Errorf("m %d: %w", batch, err)
		}
		for i := range timed {
			timed[i].Name = name
		}
		rows = append(rows, timed...)
		if b.Done != nil {
			b.Done(timed[0], total)
		}
	}
	return rows, nil
}

// maxCopies is the most copies of a matrix in a pool. What is smaller than the pool's share of so
// many, some 16 KB, is read from the caches: to time a call of a microsecond from memory would take
// longer to prepare than to measure.
const maxCopies = 1 << 14

// copies returns how many matrices of so many bytes make a pool, two at least.
func (o *Options) copies(size int) int {
	return min(max(2, (o.PoolBytes+size-1)/size), maxCopies)
}

// packedPool returns copies of p that lie one after another in memory, and
// that memory cut into their parts; and the same in fixed point where products
// can be.
func (b *bench) packedPool(p *repack.CPUPanels) (weights, fixed []cpu.Weights, pool [][]byte, err error) {
	codes, size := len(p.Panels), len(p.Panels)+len(p.Scales)
	n := b.copies(size)
	all := make([]byte, n*size)
	for i := range n {
		part := all[i*size:][:size:size]
		c := *p
		c.Panels, c.Scales = part[:codes:codes], part[codes:]
		copy(c.Panels, p.Panels)
		copy(c.Scales, p.Scales)
		w, err := cpu.NewLUT(&c)
		if err != nil {
			return nil, nil, nil, err
		}
		weights = append(weights, w)
		pool = append(pool, part)
		if !b.engine.Fixes() {
			continue
		}
		if w, err = cpu.NewLUT(&c); err != nil {
			return nil, nil, nil, err
		}
		if w.Fix() {
			fixed = append(fixed, w)
		}
	}
	return weights, fixed, pool, nil
}

// pools are the copies of a matrix that the measurements rotate through.
type pools struct {
	packed   []cpu.Weights
	fixed    []cpu.Weights // none: not in fixed point
	bytes    [][]byte      // of packed
	f32, f16 []cpu.Weights
	f32Bytes [][]byte // of f32
}

// densePool returns copies of the dequantized matrix in the given type, and their
// memory.
func (b *bench) densePool(m weight.Matrix, dtype string) (weights []cpu.Weights, pool [][]byte, err error) {
	rows, k := m.Shape()
	size, encode := 4*rows*k, num.EncodeF32
	if dtype == "F16" {
		size, encode = 2*rows*k, num.EncodeF16
	}
	one := make([]byte, size)
	encode(one, weight.Dequantize(m))
	n := b.copies(size)
	all := make([]byte, n*size)
	for i := range n {
		part := all[i*size:][:size:size]
		copy(part, one)
		w, err := cpu.NewDense(rows, k, dtype, part)
		if err != nil {
			return nil, nil, err
		}
		weights = append(weights, w)
		pool = append(pool, part)
	}
	return weights, pool, nil
}

// row measures one matrix at one M, with each kernel there is.
func (b *bench) row(ctx context.Context, m subject, w pools, batch int) ([]Row, error) {
	x := make([]float32, batch*m.k)
	for i := range x {
		x[i] = float32(b.rand.NormFloat64())
	}
	y := make([]float32, batch*m.n)
	multiply := func(w []cpu.Weights) *series {
		return &series{call: func(i int) { b.engine.MatMul(y, x, batch, w[i%len(w)]) }}
	}
	product, plain, half := multiply(w.packed), multiply(w.f32), multiply(w.f16)
	probe := &series{call: func(i int) { b.engine.ReadOnly(w.bytes[i%len(w.bytes)]) }}
	all := []*series{probe, product, plain, half}
	var blas, rounded *series // rounded: a kernel that rounds more, or tables that are rounded more
	var roundedName string
	if len(w.fixed) > 0 {
		rounded, roundedName = multiply(w.fixed), fixedKernel
	} else if first, ok := w.packed[0].(*cpu.Planes); ok && first.Tabled() {
		rounded, roundedName = &series{call: b.tabled(y, x, batch, m.k, w.packed)}, tabledKernel
	}
	if rounded != nil {
		all = append(all, rounded)
	}
	if b.blas != nil {
		blas = b.blas.times(make([]float32, len(y)), x, batch, m.n, m.k, w.f32Bytes)
		all = append(all, blas)
	}
	before, known := cpuTimeNow()
	for range turns {
		for _, s := range all {
			if err := s.turn(ctx, b.Time/turns); err != nil {
				return nil, err
			}
		}
	}
	var otherCPUs float64
	if after, ok := cpuTimeNow(); known && ok {
		otherCPUs = after.others(before)
	}

	var worst float64
	asIs := func([]float32) {}
	for _, check := range []struct {
		w     cpu.Weights
		round func(row []float32)
	}{{w.packed[len(w.packed)-1], asIs}, {w.f32[len(w.f32)-1], asIs}, {w.f16[len(w.f16)-1], roundF16}} {
		poison(y)
		b.engine.MatMul(y, x, batch, check.w)
		// max keeps a NaN.
		worst = max(worst, b.sampledError(y, x, m, batch, check.round))
	}
	if !(worst <= maxRelErr) {
		return nil, fmt.Errorf("relative error %.3g: %w", worst, ErrMismatch)
	}

	bytes := w.packed[0].Bytes()
	flops := 2 * float64(batch) * float64(m.n) * float64(m.k)
	us, readUs, denseUs, f16Us := product.best(), probe.best(), plain.best(), half.best()
	row := Row{
		Device: "cpu", Kind: m.rowKind(), N: m.n, K: m.k, M: batch, Bits: m.bits, Group: m.group,
		DType: "f32", Kernel: m.kernel + b.engine.ISA(), Threads: b.engine.Threads(),
		Us:         us,
		ReadOnlyUs: readUs, ReadOnlyRatio: readUs / us,
		DenseUs: denseUs, DenseRatio: denseUs / us,
		DenseF16Us: f16Us, DenseF16Ratio: f16Us / us,
		RelErr: worst, Bytes: bytes,
		GBPerS: float64(bytes) / us / 1e3, ReadGBPerS: float64(bytes) / readUs / 1e3,
		GFLOPPerS: flops / us / 1e3, DenseGFLOPS: flops / denseUs / 1e3,
	}
	row.setNoise(otherCPUs, product.us, probe.us, plain.us, half.us)
	if blas != nil {
		row.BLASUs = blas.best()
		row.BLASRatio = row.BLASUs / us
	}
	if rounded == nil {
		return []Row{row}, nil
	}
	other := row
	us = rounded.best()
	other.Us, other.Kernel = us, roundedName+b.engine.ISA()
	other.ReadOnlyRatio, other.DenseRatio, other.DenseF16Ratio, other.BLASRatio = readUs/us, denseUs/us, f16Us/us, row.BLASUs/us
	other.GBPerS, other.GFLOPPerS = float64(bytes)/us/1e3, flops/us/1e3
	other.setNoise(otherCPUs, rounded.us, probe.us, plain.us, half.us)
	poison(y)
	rounded.call(len(w.packed) - 1) // as many are in fixed point
	other.RelErr = b.sampledError(y, x, m, batch, asIs)
	return []Row{row, other}, nil
}

// poison fills y with NaNs, to see what is written.
func poison(y []float32) {
	for i := range y {
		y[i] = float32(math.NaN())
	}
}

// roundF16 rounds row to float16.
func roundF16(row []float32) {
	half := make([]byte, 2*len(row))
	num.EncodeF16(half, row)
	num.DecodeF16(row, half)
}

// sampledError compares up to 16 rows of y, in up to 256 columns, with the
// reference for the weights of m, rounded by round.
func (b *bench) sampledError(y, x []float32, m subject, batch int, round func(row []float32)) float64 {
	row := make([]float32, m.k)
	batches := conform.Sample(b.rand, batch, 16)
	var got, want []float64
	for _, n := range conform.Sample(b.rand, m.n, 256) {
		m.Row(row, n)
		round(row)
		for _, i := range batches {
			got = append(got, float64(y[i*m.n+n]))
			want = append(want, ref.Dot(x[i*m.k:(i+1)*m.k], row))
		}
	}
	return ref.RelErr(got, want)
}

// series collects the times of calls that take turns with others. Call i uses
// the copy i of the pool, and the numbers go on from turn to turn.
type series struct {
	call func(i int)
	next int
	us   []float64 // of a call, by turn
}

// turn calls for at least d, and at least once.
func (s *series) turn(ctx context.Context, d time.Duration) error {
	start, calls := time.Now(), 0
	for calls == 0 || time.Since(start) < d {
		if err := ctx.Err(); err != nil {
			return err
		}
		s.call(s.next)
		s.next++
		calls++
	}
	s.us = append(s.us, float64(time.Since(start).Nanoseconds())/1e3/float64(calls))
	return nil
}

func (s *series) best() float64 { return slices.Min(s.us) }

// lastCache returns the size of the last level of cache in bytes, and 32 MiB
// where the system does not say.
func lastCache() int {
	size := 0
	for i := range 8 {
		text, err := input.ReadFile(fmt.Sprintf("/sys/devices/system/cpu/cpu0/cache/index%d/size", i), input.System)
		if err != nil {
			break
		}
		size = max(size, parseSize(strings.TrimSpace(string(text))))
	}
	if size == 0 {
		return 32 << 20
	}
	return size
}

// parseSize reads the kernel's spelling of a cache size, 32768K or 32M, and
// returns 0 for anything else.
func parseSize(s string) int {
	unit := 1
	for suffix, u := range map[string]int{"K": 1 << 10, "M": 1 << 20, "G": 1 << 30} {
		if rest, ok := strings.CutSuffix(s, suffix); ok {
			s, unit = rest, u
		}
	}
	n, err := strconv.Atoi(s)
	if err != nil || n < 0 || n > math.MaxInt32 {
		return 0
	}
	return n * unit
}
