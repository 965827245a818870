package bench

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/lutq/lutq/formats/weight"
	"github.com/lutq/lutq/formats/weight/bcq"
	"github.com/lutq/lutq/formats/weight/lut"
	"github.com/lutq/lutq/gemm/conform"
	"github.com/lutq/lutq/gemm/cuda"
	cudabcq "github.com/lutq/lutq/gemm/cuda/bcq"
	"github.com/lutq/lutq/gemm/cuda/driver"
	"github.com/lutq/lutq/gemm/cuda/table"
	"github.com/lutq/lutq/gemm/cuda/timing"
	"github.com/lutq/lutq/gemm/fp8"
)

// CUDAOptions say what [CUDA] measures. Zero values have the defaults
// given.
type CUDAOptions struct {
	Shapes []Shape // random matrices of every shape, width and M
	Bits   []int   // 4
	Group  int     // 128; cut to K where that is smaller
	Kind   string  // of the random matrices: that of tables, or one of [KindNames]
	Kernel string  // that multiplies by those, where a kind has several; the fastest

	// Layers are measured besides, each with its own width and group. Those of
	// one shape and format make one row, which is timed over all of them and
	// has the largest error of any.
	Layers []Layer

	M     []int  // rows of X: 1
	DType string // of X and Y: f16 or bf16; f16
	FP8   bool   // measure products of many rows also with X and weights rounded to E4M3, in a row behind the other; where weights are folded in another that keeps them so
	Seed  uint64 // of the random data

	// Lookups compare how codes become weights: a row for each. Where [table.Integers] is among them random
	// tables are those. Empty is as ever, by the table of a matrix.
	Lookups []table.Lookup

	// NoTune has products multiplied as was found to be the fastest before, or else by rule.
	NoTune bool

	// Sustain is for how long each product is called over and over besides, as [Row.Seconds] tells: 0.
	Sustain time.Duration

	// Energy has the energy of each product measured besides, and that of dense weights: see [Row.JoulesPerCall].
	Energy bool

	// RingBytes is the least size of the ring that weights rotate through,
	// unless that takes more than 4096 matrices: four times the level-2 cache.
	RingBytes int

	// Replays is the number of times that each graph is timed: 25.
	Replays int

	// Memory is the most memory of the host to take in bytes; 0 is no limit.
	Memory int64

	// Done is called after each row, if not nil, with the number of rows to
	// come in all.
	Done func(row Row, total int)

	// Doing is called before what takes long, if not nil, with what it is.
	Doing func(what string)
}

func (o *CUDAOptions) setDefaults() error {
	if len(o.Bits) == 0 {
		o.Bits = []int{4}
	}
	if o.Group == 0 {
		o.Group = 128
	}
	if len(o.M) == 0 {
		o.M = []int{1}
	}
	if o.DType == "" {
		o.DType = driver.F16.String()
	}
	if o.Replays == 0 {
		o.Replays = 25
	}
	if o.RingBytes < 0 || o.Replays < 0 {
		return errors.New("ring size and replays must not be negative")
	}
	on := Options{Shapes: o.Shapes, Kind: o.Kind, Bits: o.Bits, Group: o.Group, M: o.M}
	if err := on.check(); err != nil {
		return err
	}
	if o.Kernel != "" {
		if _, _, err := familyOf(o.Kind, o.Kernel); err != nil {
			return err
		}
	}
	// The host has a matrix in all its forms at a time as well, if no rings.
	on.Memory, on.PoolBytes = o.Memory, 1
	_, err := on.plan(false)
	return err
}

// CUDA measures products on the first GPU, in the order layers, shapes;
// width; M. It fails with [driver.ErrNoGPU] where there is none, and with
// [ErrMismatch] at the first result that is not written whole or not the same
// every time; how far results are from float64 stands in the rows, for the
// caller to hold against [Row.ErrorBound].
//
// Before the timing, every matrix of the ring multiplies into poisoned memory,
// twice. Then graphs of the product, of its read-only twin and of cuBLAS take
// turns, see the package's documentation. Kernels are tuned for each row first, unless they are not to be.
func CUDA(ctx context.Context, o CUDAOptions) (rows []Row, err error) {
	err = onFirst(o, func(b *cudaBench) (err error) {
		rows, err = b.run(ctx)
		return errors.Join(err, b.close())
	})
	return rows, err
}

// onFirst has products measured on the first GPU.
func onFirst(o CUDAOptions, measure func(b *cudaBench) error) error {
	if err := o.setDefaults(); err != nil {
		return err
	}
	dtype, err := driver.ParseHalf(o.DType)
	if err != nil {
		return err
	}
	c, err := driver.OpenGPU()
	if err != nil {
		return err
	}
	return onGPU(c, func(g *gpu) error {
		if o.RingBytes == 0 {
			o.RingBytes = 4 * g.dev.Info.L2
		}
		return measure(&cudaBench{CUDAOptions: o, gpu: g, dtype: dtype, rand: rand.New(rand.NewPCG(o.Seed, 0))})
	})
}

// gpu is a GPU in use.
type gpu struct {
	dev    *driver.Device
	engine *cuda.Engine
	stream *driver.Stream
}

// onGPU runs f on the first GPU.
func onGPU(c *driver.CUDA, f func(g *gpu) error) error {
	dev, err := c.OpenDevice(0)
	if err != nil {
		return err
	}
	err = dev.Do(func() (err error) {
		g := &gpu{dev: dev}
		if g.engine, err = cuda.New(dev, c.Cache()); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, g.engine.Close()) }()
		if g.stream, err = dev.NewStream(); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, g.stream.Close()) }()
		return f(g)
	})
	return errors.Join(err, dev.Close())
}

// cudaBench is a run of [CUDA].
type cudaBench struct {
	CUDAOptions
	*gpu
	dtype driver.DType
	rand  *rand.Rand
	dense *denseRing    // of the last shape
	meter *driver.Meter // of Energy
	fp8   *driver.FP8BLAS
	total int
	rows  []Row
}

func (b *cudaBench) run(ctx context.Context) ([]Row, error) {
	sets, err := layerSets(b.tables(b.Layers))
	if err != nil {
		return nil, err
	}
	if b.Energy {
		if b.meter, err = b.dev.Meter(); err != nil {
			return nil, err
		}
	}
	b.compile()
	products := max(len(b.Lookups), 1) * len(b.M)
	for _, m := range b.M {
		if b.FP8 && m >= fp8.FewestRows {
			products++
		}
		if b.FP8 && m >= fp8.FoldedRows {
			products++
		}
	}
	b.total = products * (len(sets) + len(b.Shapes)*len(b.Bits))
	for _, set := range sets {
		if err := b.set(ctx, set); err != nil {
			return b.rows, fmt.Errorf("%s: %w", set[0].Name, err)
		}
	}
	kind, err := kindOf(b.Kind)
	if err != nil {
		return nil, err
	}
	for _, s := range b.Shapes {
		for _, bits := range b.Bits {
			m := kind.Random(b.rand, s.N, s.K, bits, b.Group, weight.F16)
			if t, ok := m.(*lut.Matrix); ok && slices.Contains(b.Lookups, table.Integers) {
				integers, err := lut.NewCodebook("sym", bits, b.Group)
				if err != nil {
					return b.rows, err
				}
				t.Codebook = integers.Values
			}
			if err := b.set(ctx, []Layer{{Matrix: m}}); err != nil {
				what := fmt.Sprintf("%d×%d, %d bits", s.N, s.K, bits)
				if b.Kind != "" {
					what += ", " + b.Kind
				}
				return b.rows, fmt.Errorf("%s: %w", what, err)
			}
		}
	}
	return b.rows, nil
}

// compile compiles what products by random tables take, of all shapes and widths together to keep all processors busy.
func (b *cudaBench) compile() {
	if b.Kind != "" || len(b.Lookups) > 0 || len(b.Shapes) == 0 {
		return
	}
	if b.Doing != nil {
		b.Doing("compiling")
	}
	var like []cuda.Tiles
	for _, s := range b.Shapes {
		for _, bits := range b.Bits {
			t := table.Like(b.format(s, bits), s.N, s.K)
			like = append(like, t)
			if r := t.RoundToFP8(b.engine.GPU()); b.FP8 && r != nil {
				like = append(like, r)
			}
		}
	}
	b.engine.Compile(like, !b.NoTune, b.M...)
}

// layerSets puts layers that run the same kernel on the same shape together, in
// the order of their first.
func layerSets(layers []Layer) ([][]Layer, error) {
	at := make(map[form]int)
	var sets [][]Layer
	for _, l := range layers {
		f, err := formOf(l.Matrix)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", l.Name, err)
		}
		i, ok := at[f]
		if !ok {
			i = len(sets)
			at[f] = i
			sets = append(sets, nil)
		}
		sets[i] = append(sets[i], l)
	}
	return sets, nil
}

// tables returns layers with those of binary codes that a table stands for as that, whose kernels models are multiplied by.
func (b *cudaBench) tables(layers []Layer) []Layer {
	all := slices.Clone(layers)
	for i, l := range all {
		if m, ok := l.Matrix.(*bcq.Matrix); ok {
			if t := cudabcq.TableOf(m, b.dtype); t != nil {
				all[i].Matrix = t
			}
		}
	}
	return all
}

// set measures the layers of one set at every M.
func (b *cudaBench) set(ctx context.Context, set []Layer) (err error) {
	f, named, err := familyOf(set[0].Matrix.Kind(), b.Kernel)
	if err != nil {
		return err
	}
	if f.Kind() != lut.Name && (len(b.Lookups) > 0 || b.FP8) {
		return fmt.Errorf("weights of kind %s: lookups and products in fp8 are of kind %s", f.Kind(), lut.Name)
	}
	asked := ""
	if named {
		asked = b.Kernel
	}
	var ring []*cuda.Matrix
	defer func() {
		for _, w := range ring {
			err = errors.Join(err, w.Close())
		}
	}()
	// A copy of each layer, then of each again, until the ring is long enough.
	var tiles []cuda.Tiles
	var parts [][][]byte
	for i := 0; i < len(set) || !ringIsLong(i, int(ring[0].Bytes()), b.RingBytes); i++ {
		if err := ctx.Err(); err != nil {
			return err
		}
		if i < len(set) {
			t, p, err := pack(f, set[i], b.dtype)
			if err != nil {
				return err
			}
			tiles, parts = append(tiles, t), append(parts, p)
		}
		w, err := b.engine.Upload(tiles[i%len(set)], parts[i%len(set)])
		if err != nil {
			return err
		}
		ring = append(ring, w)
	}
	turns, err := b.turns(ring)
	defer func() {
		for _, t := range turns {
			for _, w := range t.ring {
				if t.own {
					err = errors.Join(err, w.Close())
				}
			}
		}
	}()
	if err != nil {
		return err
	}
	if err := b.makeDense(set[0].Matrix); err != nil {
		return err
	}
	for _, m := range b.M {
		for _, t := range turns {
			if err := ctx.Err(); err != nil {
				return err
			}
			if m < t.least {
				continue
			}
			row, err := b.row(ctx, f, asked, set, t.ring, m)
			if err != nil {
				return fmt.Errorf("m %d: %w", m, err)
			}
			row.Lookup = t.lookup
			b.rows = append(b.rows, row)
			if b.Done != nil {
				b.Done(row, b.total)
			}
		}
	}
	return nil
}

// maxRing is the greatest number of copies in a ring. Very small matrices do
// not fill four caches with them; what counts for those is the launching.
const maxRing = 4096

// ringIsLong reports whether n matrices of some bytes each make a ring.
func ringIsLong(n, bytes, least int) bool {
	return n >= maxRing || n >= 2 && n*bytes >= least
}

// row measures a ring of the layers of one set, which stand in it in turn.
func (b *cudaBench) row(ctx context.Context, f cuda.Family, asked string, set []Layer, ring []*cuda.Matrix, m int) (_ Row, err error) {
	of, err := formOf(set[0].Matrix)
	if err != nil {
		return Row{}, err
	}
	x := conform.RandomHalves(b.rand, m*of.k, b.dtype)
	mem := memory{dev: b.dev}
	defer func() { err = errors.Join(err, mem.free()) }()
	o := cuda.Operands{M: m, X: mem.upload(driver.Bytes(x)), Y: mem.alloc(2 * (m*of.n + conform.Guard))}
	denseY := mem.alloc(2 * m * of.n)
	if mem.err != nil {
		return Row{}, mem.err
	}
	doing, tunes := "compiling and timing", b.tunes(ring[0].Tiles, m)
	if tunes {
		doing = "compiling and tuning"
	}
	b.doing(doing, of, m)
	c, err := b.choose(f, asked, ring, o, &mem)
	if err != nil {
		return Row{}, err
	}
	if tunes {
		b.doing("timing", of, m)
	}
	row := Row{
		Name: set[0].Name, Layers: names(set), Device: "cuda", GPU: b.dev.Info.Name, Kind: of.rowKind(), N: of.n, K: of.k, M: m, Bits: of.bits, Group: of.group,
		DType: b.DType, Kernel: c.kernel, Ring: len(ring), Bytes: ring[0].Bytes(),
	}
	if l, ok := set[0].Matrix.(*lut.Matrix); ok { // whose table is an argument of kernels
		row.Bytes += 4 * int64(len(l.Codebook))
	}
	if row.WaveEfficiency, err = b.engine.WaveEfficiency(ring[0].Tiles, m); err != nil {
		return Row{}, err
	}
	last, err := b.check(&row, set, len(ring), x, o.Y, c.reference, c.multiply)
	if err != nil {
		return Row{}, err
	}
	if err := b.time(ctx, &row, o, denseY, last, c.multiply, c.read); err != nil {
		return Row{}, err
	}
	if c.prepare != nil {
		arm := &timing.Arm{Call: c.prepare, Ring: 1}
		if err := timing.Measure(b.dev, b.stream, []*timing.Arm{arm}, b.Replays); err != nil {
			return Row{}, err
		}
		row.PrepareUs = arm.Median()
	}
	return row, nil
}

// doing tells of what comes next for a product.
func (b *cudaBench) doing(what string, of form, m int) {
	if b.Doing != nil {
		b.Doing(fmt.Sprintf("%s %dx%d, %d bits, m %d", what, of.n, of.k, of.bits, m))
	}
}

// names returns those of a set of several layers.
func names(set []Layer) []string {
	if len(set) == 1 {
		return nil
	}
	var all []string
	for _, l := range set {
		all = append(all, l.Name)
	}
	return all
}

// time times a product, its read-only twin, and where there is cuBLAS the product by dense weights, with results in denseY, and fills
// their times in, and those of the product over and over where they are asked for. The product is to leave the bits in o.Y that it had before.
func (b *cudaBench) time(ctx context.Context, row *Row, o cuda.Operands, denseY driver.Ptr, before []uint16, multiply, read func(i int) error) error {
	product, probe := &timing.Arm{Call: multiply, Ring: row.Ring}, &timing.Arm{Call: read, Ring: row.Ring}
	arms := []*timing.Arm{probe, product}
	var plain *timing.Arm
	if d := b.dense; d.blas != nil {
		plain = &timing.Arm{Ring: len(d.weights), Call: func(i int) error {
			return d.blas.MatMul(denseY, o.X, d.weights[i%len(d.weights)], row.M, row.N, row.K, b.dtype, b.dtype)
		}}
		arms = append(arms, plain)
	}
	if err := timing.Measure(b.dev, b.stream, arms, b.Replays); err != nil {
		return err
	}
	y, err := b.readResult(o.Y, row.M*row.N, b.dtype)
	if err != nil {
		return err
	}
	if !slices.Equal(y, before) {
		return fmt.Errorf("other bits in a graph than alone: %w", ErrMismatch)
	}
	row.times(product, probe, plain)
	if b.meter != nil {
		if err := b.energy(ctx, row, product, plain); err != nil {
			return err
		}
	}
	if b.Sustain > 0 {
		row.Seconds, err = timing.Sustain(ctx, b.dev, b.stream, &timing.Arm{Call: multiply, Ring: row.Ring}, b.Sustain)
	}
	return err
}

// energyWindow is how long energy is measured at least: ten times the grain of the counter.
const energyWindow = time.Second

// energy fills in what a product takes of the GPU's energy, and what dense weights take, unless plain is nil.
func (b *cudaBench) energy(ctx context.Context, row *Row, product, plain *timing.Arm) error {
	e, err := timing.Energy(ctx, b.dev, b.stream, b.meter, product, energyWindow)
	if err != nil {
		return err
	}
	row.JoulesPerCall, row.Watts = e.EachJoules(), e.Watts
	if plain == nil {
		return nil
	}
	if e, err = timing.Energy(ctx, b.dev, b.stream, b.meter, plain, energyWindow); err != nil {
		return err
	}
	row.DenseJoulesPerCall, row.DenseWatts = e.EachJoules(), e.Watts
	return nil
}

// times fills in the times of a product, of its read-only twin and of dense weights, unless plain is nil, and what follows.
func (r *Row) times(product, probe, plain *timing.Arm) {
	flops := 2 * float64(r.M) * float64(r.N) * float64(r.K)
	r.Us, r.ReadOnlyUs = product.Median(), probe.Median()
	r.ReadOnlyRatio = r.ReadOnlyUs / r.Us
	r.GBPerS, r.ReadGBPerS = float64(r.Bytes)/r.Us/1e3, float64(r.Bytes)/r.ReadOnlyUs/1e3
	r.GFLOPPerS = flops / r.Us / 1e3
	r.setNoise(0, product.Us, probe.Us)
	if plain != nil {
		r.DenseUs = plain.Median()
		r.DenseRatio, r.DenseGFLOPS = r.DenseUs/r.Us, flops/r.DenseUs/1e3
		r.setNoise(0, plain.Us)
	}
}

// check multiplies by each of the ring's matrices twice, fills in the errors of
// the row, and returns the result of the last.
func (b *cudaBench) check(row *Row, set []Layer, ring int, x []uint16, y driver.Ptr, reference newReference, multiply func(i int) error) ([]uint16, error) {
	results := make([][]uint16, len(set)) // of the first time
	var last []uint16
	for i := range ring {
		for range 2 {
			if err := b.dev.Fill8(y, conform.Poison, 2*(row.M*row.N+conform.Guard)); err != nil {
				return nil, err
			}
			err := multiply(i)
			if err == nil {
				last, err = b.readResult(y, row.M*row.N, b.dtype)
			}
			if err != nil {
				return nil, err
			}
			first := &results[i%len(set)]
			if *first == nil {
				*first = last
				r := reference(b.rand, set[i%len(set)].Matrix, x, nil, row.M, len(set), b.dtype)
				rel, largest := r.Errors(last)
				// max keeps a NaN.
				row.RelErr, row.MaxErr = max(row.RelErr, rel), max(row.MaxErr, largest)
				row.TableRelErr = max(row.TableRelErr, r.TableErr)
			}
			if !slices.Equal(last, *first) {
				return nil, fmt.Errorf("other bits the second time: %w", ErrMismatch)
			}
		}
	}
	return last, nil
}

// readResult waits and returns n elements of Y, checking that they have been written and those
// behind them have not.
func (g *gpu) readResult(y driver.Ptr, n int, t driver.DType) ([]uint16, error) {
	all := make([]uint16, n+conform.Guard)
	if err := errors.Join(g.stream.Sync(), g.dev.Read(driver.Bytes(all), y)); err != nil {
		return nil, err
	}
	if err := conform.CheckWritten(all, t); err != nil {
		return nil, fmt.Errorf("%w: %w", err, ErrMismatch)
	}
	return all[:n:n], nil
}

// memory is what a row takes of the GPU's, apart from weights. After a failure
// it allocates no more.
type memory struct {
	dev *driver.Device
	all []driver.Ptr
	err error
}

func (m *memory) keep(p driver.Ptr, err error) driver.Ptr {
	m.all = append(m.all, p)
	m.err = err
	return p
}

func (m *memory) alloc(n int) driver.Ptr {
	if m.err != nil {
		return 0
	}
	return m.keep(m.dev.Alloc(n))
}

func (m *memory) upload(data []byte) driver.Ptr {
	if m.err != nil {
		return 0
	}
	return m.keep(m.dev.Upload(data))
}

func (m *memory) free() error {
	var errs []error
	for _, p := range m.all {
		errs = append(errs, m.dev.Free(p))
	}
	m.all = nil
	return errors.Join(errs...)
}
