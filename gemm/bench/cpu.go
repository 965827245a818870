package bench

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/lutq/lutq/formats/input"
	"github.com/lutq/lutq/formats/num"
	"github.com/lutq/lutq/formats/weight"
	"github.com/lutq/lutq/formats/weight/lut"
	"github.com/lutq/lutq/gemm/conform"
	"github.com/lutq/lutq/gemm/cpu"
	"github.com/lutq/lutq/gemm/cuda/driver"
	"github.com/lutq/lutq/gemm/cuda/trellis"
	"github.com/lutq/lutq/gemm/ref"
)

// ErrMismatch is in the chain of the error of a kernel whose results are not
// those of the reference.
var ErrMismatch = errors.New("result differs from the reference")

// ErrorBound returns the relative error that a row's product may have: a little more than rounding its results
// to their type costs and, where weights or sums in tables are rounded as well, these.
func (r *Row) ErrorBound() float64 {
	t, err := driver.ParseHalf(r.DType)
	switch {
	case strings.HasPrefix(r.Kernel, fixedKernel):
		return cpu.FixedError
	case strings.HasPrefix(r.Kernel, tabledKernel):
		return cpu.TabledError
	case err != nil:
		return 1e-5
	case r.Kernel == foldedKernel, r.Kernel == keptFolded:
		return 1.5*conform.Bound(t) + foldedSums*float64(r.K)
	case r.Kernel == unpackedKernel, strings.HasPrefix(r.Kernel, manyKernel), strings.HasPrefix(r.Kernel, keptKernel), strings.HasPrefix(r.Kernel, gatherKernel):
		return 1.5 * conform.Bound(t)
	case strings.HasPrefix(r.Kernel, ringsKernel):
		return trellis.Family{}.Loosened() * conform.Bound(t)
	}
	return conform.Bound(t)
}

// fixedKernel begins the name of a kernel in fixed point, and tabledKernel of one by tables of activations in 8 bits.
const (
	fixedKernel  = "fixed-"
	tabledKernel = "int8-"
)

// ringsKernel begins the name of a GPU's kernel by rings, for which activations are rounded once more.
const ringsKernel = "rings m"

// foldedSums is what each column adds at most to the error of products in E4M3, of whose sums tensor cores keep few bits: on an H200
// they are off by .0005, .0013 and .0028 with 1024, 4096 and 14,336 columns.
const foldedSums = 6e-7

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

	// LastCache is the size of the last level of cache in bytes: as the system
	// says.
	LastCache int

	// PoolBytes is the least size of each ring of copies that weights rotate
	// through: eight times LastCache, and a little. Where Memory is short it is
	// less, see [Row].ShortRing.
	PoolBytes int

	// Time is the least time to spend on each of the four measurements of a
	// row: 300 ms.
	Time time.Duration

	// Limit is the most time for all rows, with what prepares them: a minute
	// for each. A row that would take longer than its share of what is left is
	// repeated less often, see [Row].Repetitions.
	Limit time.Duration

	// Memory is the host's memory that is free, in bytes; 0: not known. More is
	// not taken, and by rings no more than a quarter of it in all, but for one
	// copy of each.
	Memory int64

	// Done is called after each matrix and M, if not nil, with the number of
	// them to come in all.
	Done func(row Row, total int)
}

// Repetitions is the number of turns that each measurement takes on the CPU.
const Repetitions = 5

// rowLimit is the time that a row has where no limit is given.
const rowLimit = time.Minute

// ErrLimit is in the chain of the error of a run whose time was up before all was measured.
var ErrLimit = errors.New("the time is up")

// CPU measures products on the CPU, in the order layers, shapes; width; M.
// It fails with [ErrMismatch] at the first result that is wrong, and with
// [ErrLimit] and the rows that were measured when its time is up. It returns
// soon after ctx ends: a single step that takes long is left to end by itself.
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
		o.PoolBytes = o.pastCaches()
	}
	if o.Time == 0 {
		o.Time = 300 * time.Millisecond
	}
	total := len(o.M) * (len(o.Layers) + len(o.Shapes)*len(o.Bits))
	if o.Limit == 0 {
		o.Limit = time.Duration(total) * rowLimit
	}
	if err := o.check(); err != nil {
		return nil, err
	}
	e, err := cpu.New(cpu.Options{Threads: o.Threads, ISA: o.ISA})
	if err != nil {
		return nil, err
	}
	b := bench{Options: o, engine: e, rand: rand.New(rand.NewPCG(o.Seed, 0)), end: time.Now().Add(o.Limit), left: total}
	if b.plan, err = o.plan(e.Fixes()); err == nil {
		b.blas, err = o.openBLAS(e)
	}
	if err != nil {
		e.Close()
		return nil, err
	}

	ctx, cancel := context.WithDeadlineCause(ctx, b.end, ErrLimit)
	defer cancel()
	var rows []Row
	err = inParts(ctx, func(done func([]Row) error) error {
		defer e.Close()
		// The next run's memory is not to come beside what was this one's.
		defer debug.FreeOSMemory()
		return b.run(ctx, done)
	}, func(of []Row) {
		rows = append(rows, of...)
		if o.Done != nil {
			o.Done(of[0], total)
		}
	})
	return rows, err
}

// run measures everything and hands over the rows of each product.
func (b *bench) run(ctx context.Context, done func([]Row) error) error {
	defer func() { b.rings = rings{} }()
	for _, l := range b.Layers {
		if err := b.matrix(ctx, l, done); err != nil {
			return fmt.Errorf("%s: %w", l.Name, err)
		}
	}
	kind, err := kindOf(b.Kind)
	if err != nil {
		return err
	}
	for _, s := range b.Shapes {
		for _, bits := range b.Bits {
			runtime.GC() // what was made for the last matrix
			if err := b.matrix(ctx, Layer{Matrix: kind.Random(b.rand, s.N, s.K, bits, b.Group, weight.F16)}, done); err != nil {
				return fmt.Errorf("%d×%d, %d bits: %w", s.N, s.K, bits, err)
			}
		}
	}
	return nil
}

// grace is how long work may go on after its context has ended.
const grace = 200 * time.Millisecond

// inParts does work that hands over its result in parts, each of which take gets. It returns soon after the context
// ends, whatever the work is at: of that it gets nothing more, and it should end where it next looks at the context.
func inParts[T any](ctx context.Context, work func(done func(T) error) error, take func(T)) error {
	parts, ended := make(chan T), make(chan error, 1)
	go func() {
		ended <- work(func(part T) error {
			select {
			case parts <- part:
				return nil
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		})
	}()
	over := ctx.Done()
	var late <-chan time.Time
	for {
		select {
		case part := <-parts:
			take(part)
		case err := <-ended:
			return err
		case <-over:
			over, late = nil, time.After(grace)
		case <-late:
			return context.Cause(ctx)
		}
	}
}

func (o *Options) check() error {
	for _, s := range o.Shapes {
		if s.N <= 0 || s.K <= 0 {
			return fmt.Errorf("shape %d×%d has no elements", s.N, s.K)
		}
	}
	least, most, err := KindWidths(o.Kind)
	if err != nil {
		return err
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
	if o.Group < 0 || o.PoolBytes < 0 || o.LastCache < 0 || o.Time < 0 || o.Limit < 0 {
		return errors.New("group, sizes of pool and cache, time and limit must not be negative")
	}
	return nil
}

// subject is a matrix that [CPU] measures.
type subject struct {
	weight.Matrix
	form
}

// bench is a run of [CPU].
type bench struct {
	Options
	engine *cpu.Engine
	blas   sgemm // nil: none
	rand   *rand.Rand
	plan   plan
	rings  rings
	end    time.Time // of the time for all rows
	left   int       // of them
}

// matrix measures one matrix at every M: by its kind's kernels, or by dense weights where there are none.
func (b *bench) matrix(ctx context.Context, l Layer, done func([]Row) error) error {
	f, err := formOf(l.Matrix)
	if err == nil {
		err = l.Matrix.Validate()
	}
	if err != nil {
		return err
	}
	w, err := b.pools(ctx, l)
	if err != nil {
		return err
	}
	for _, batch := range b.M {
		rows, err := b.row(ctx, subject{l.Matrix, f}, w, batch)
		if err != nil {
			return fmt.Errorf("m %d: %w", batch, err)
		}
		for i := range rows {
			rows[i].Name = l.Name
		}
		if err := done(rows); err != nil {
			return err
		}
		b.left--
	}
	return nil
}

// row measures one matrix at one M, with each kernel there is.
func (b *bench) row(ctx context.Context, m subject, w pools, batch int) ([]Row, error) {
	start := time.Now()
	share := b.end.Sub(start) / time.Duration(max(b.left, 1))
	x := floats(&b.rings.x, b.plan.x, batch*m.k)
	for i := range x {
		if i%m.k == 0 && ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		x[i] = float32(b.rand.NormFloat64())
	}
	y := floats(&b.rings.y, b.plan.y, batch*m.n)
	multiply := func(p pool) *series {
		return &series{call: func(i int) { b.engine.MatMul(y, x, batch, p.weights[i%len(p.weights)]) }}
	}
	product, plain, half := multiply(w.packed), multiply(w.f32), multiply(w.f16)
	probe := &series{call: func(i int) { b.engine.ReadOnly(w.packed.parts[i%len(w.packed.parts)]) }}
	all := []*series{probe, product, plain, half}
	var blas, rounded *series // rounded: a kernel that rounds more
	if w.how != nil {
		by := w.how.By(b.engine, x, batch)
		rounded = &series{call: func(i int) { by(y, w.rounded.weights[i%len(w.rounded.weights)]) }}
		all = append(all, rounded)
	}
	if b.blas != nil {
		blas = b.blas.times(floats(&b.rings.blasY, b.plan.y/2, len(y)), x, batch, m.n, m.k, w.f32.parts)
		all = append(all, blas)
	}
	before, known := cpuTimeNow()
	repetitions := 0
	for repetitions < Repetitions {
		for _, s := range all {
			if err := s.turn(ctx, b.Time/Repetitions); err != nil {
				return nil, err
			}
		}
		repetitions++
		// One more, and the calls whose results are checked, are to end in time.
		each := time.Since(start) / time.Duration(repetitions)
		if time.Since(start)+2*each > share {
			break
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
	}{{w.packed.last(), asIs}, {w.f32.last(), asIs}, {w.f16.last(), roundF16}} {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		poison(y)
		b.engine.MatMul(y, x, batch, check.w)
		// max keeps a NaN.
		worst = max(worst, b.sampledError(y, x, m, batch, check.round))
	}
	if !(worst <= maxRelErr) {
		return nil, fmt.Errorf("relative error %.3g: %w", worst, ErrMismatch)
	}

	bytes := w.packed.last().Bytes()
	flops := 2 * float64(batch) * float64(m.n) * float64(m.k)
	us, readUs, denseUs, f16Us := product.best(), probe.best(), plain.best(), half.best()
	row := Row{
		Device: "cpu", Kind: m.rowKind(), N: m.n, K: m.k, M: batch, Bits: m.bits, Group: m.group,
		DType: "f32", Kernel: w.kernel + "-" + b.engine.ISA(), Threads: b.engine.Threads(),
		Us:         us,
		ReadOnlyUs: readUs, ReadOnlyRatio: readUs / us,
		DenseUs: denseUs, DenseRatio: denseUs / us,
		DenseF16Us: f16Us, DenseF16Ratio: f16Us / us,
		RelErr: worst, Bytes: bytes,
		GBPerS: float64(bytes) / us / 1e3, ReadGBPerS: float64(bytes) / readUs / 1e3,
		GFLOPPerS: flops / us / 1e3, DenseGFLOPS: flops / denseUs / 1e3,
		Repetitions: repetitions, Ring: len(w.packed.weights), ShortRing: b.plan.short && len(w.packed.weights) < maxCopies,
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
	other.Us, other.Kernel = us, w.how.Kernel+"-"+b.engine.ISA()
	other.ReadOnlyRatio, other.DenseRatio, other.DenseF16Ratio, other.BLASRatio = readUs/us, denseUs/us, f16Us/us, row.BLASUs/us
	other.GBPerS, other.GFLOPPerS = float64(bytes)/us/1e3, flops/us/1e3
	other.setNoise(otherCPUs, rounded.us, probe.us, plain.us, half.us)
	poison(y)
	rounded.call(len(w.rounded.weights) - 1)
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
	columns := conform.Sample(b.rand, m.n, 256)
	got, want := make([]float64, 0, len(columns)*len(batches)), make([]float64, 0, len(columns)*len(batches))
	for _, n := range columns {
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
		if ctx.Err() != nil {
			return context.Cause(ctx)
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
