package bench

import (
	"cmp"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"

	"github.com/lutq/lutq/formats/weight"
	"github.com/lutq/lutq/formats/weight/bcq"
	"github.com/lutq/lutq/formats/weight/lut"
	"github.com/lutq/lutq/formats/weight/lut24"
	"github.com/lutq/lutq/gemm/conform"
	"github.com/lutq/lutq/gemm/cuda"
	"github.com/lutq/lutq/gemm/cuda/driver"
	"github.com/lutq/lutq/gemm/cuda/timing"
	"github.com/lutq/lutq/gemm/fp8"
	"github.com/lutq/lutq/repack"
)

// family is the kernels for one kind of weight. What [CUDA] and the self-test know of a kind stands here alone.
type family struct {
	name    string
	kernels []string // that can be asked for by name
	tunes   bool     // whether products are tuned for a progress line of its own
	// table returns the bytes of a matrix that go to kernels as an argument, or is nil.
	table func(m weight.Matrix) int64
	// pack lays a layer out for a kernel and activations of a type.
	pack func(l Layer, kernel string, t driver.DType) (layout, error)
	// choose returns how rows of X are multiplied by a ring, tuned unless that is not to be.
	choose func(b *cudaBench, ring []product, o cuda.Operands, mem *memory) (choice, error)
	// tests returns the self-test of each format that is asked for.
	tests func(t *cudaSelftest, o *CUDASelftestOptions) []*formatTest
}

// layout is a matrix as a kernel reads it, not yet on the GPU.
type layout struct {
	bytes  int64 // by which the length of a ring is measured
	upload func(*cuda.Engine) (product, error)
}

// product is a matrix on the GPU.
type product interface {
	MatMul(s *driver.Stream, o cuda.Operands) error
	Bytes() int64
	Close() error
}

// choice is how some rows of X are multiplied by a ring.
type choice struct {
	kernel    string
	multiply  func(i int) error
	prepare   func(i int) error // writes X as multiply reads it, if that is not row by row
	read      func(i int) error // the read-only twin
	reference newReference
	waves     float64 // [Row.WaveEfficiency]
}

// The kernels of binary codes; the second's name goes on with the size of its tables.
const (
	planesKernel = "planes"
	gatherKernel = "gather"
)

// sparseKernel is that by what is kept of every four columns for up to 16 rows of X; others are for more.
const sparseKernel = "mma.sp"

// families lists them, those of tables first.
func families() []family {
	return []family{
		{
			name:  lut.Name,
			table: func(m weight.Matrix) int64 { return 4 * int64(len(m.(*lut.Matrix).Codebook)) },
			pack:  packTable, tunes: true, choose: (*cudaBench).chooseTable, tests: (*cudaSelftest).tableTests,
		},
		{
			name: bcq.Name, kernels: []string{planesKernel, gatherKernel + ":full", gatherKernel + ":half"},
			pack: packBCQ, choose: (*cudaBench).chooseBCQ, tests: (*cudaSelftest).bcqTests,
		},
		{
			name: lut24.Name, kernels: append([]string{sparseKernel}, cuda.SparseKernels()...),
			pack: packSparse, choose: (*cudaBench).chooseSparse, tests: (*cudaSelftest).sparseTests,
		},
	}
}

// familyOf returns that of a kind, "" for that of tables.
func familyOf(kind string) (family, error) {
	k, err := kindOf(kind)
	if err != nil {
		return family{}, err
	}
	return families()[slices.IndexFunc(families(), func(f family) bool { return f.name == k.Name() })], nil
}

// ringOf returns a ring of one type of matrix.
func ringOf[M product](ring []product) []M {
	all := make([]M, len(ring))
	for i, w := range ring {
		all[i] = w.(M)
	}
	return all
}

// packTable lays a table's codes out, unless the layer is so already.
func packTable(l Layer, _ string, t driver.DType) (layout, error) {
	tiles, ok := l.Layout.(*repack.CUDATiles)
	if !ok {
		var err error
		if tiles, err = repack.CUDA(l.Matrix.(*lut.Matrix)); err != nil {
			return layout{}, err
		}
	}
	return layout{tiles.Bytes(), func(e *cuda.Engine) (product, error) { return e.Upload(tiles, t) }}, nil
}

func packSparse(l Layer, _ string, t driver.DType) (layout, error) {
	tiles, err := repack.SparseCUDA(l.Matrix.(*lut24.Matrix))
	return layout{l.Matrix.Bytes(), func(e *cuda.Engine) (product, error) { return e.UploadSparse(tiles, t) }}, err
}

func packBCQ(l Layer, kernel string, t driver.DType) (layout, error) {
	m := l.Matrix.(*bcq.Matrix)
	if kernel == "" || kernel == planesKernel {
		tiles, err := repack.BCQ(m)
		return layout{m.Bytes(), func(e *cuda.Engine) (product, error) { return e.UploadBCQ(tiles, t) }}, err
	}
	laid, err := repack.GatherBCQ(m, kernel == gatherKernel+":half")
	return layout{m.Bytes(), func(e *cuda.Engine) (product, error) { return e.UploadBCQGather(laid, t) }}, err
}

// turn is a ring with a lookup, if one is asked for, of which rows are measured from some rows of X on.
type turn struct {
	ring   []product
	lookup string
	least  int
}

// turns returns what is measured of a ring: as it is, rounded to E4M3 and with lookups, as they are asked for. It compiles what
// the first two take, on all processors.
func (b *cudaBench) turns(ring []product) ([]turn, error) {
	if _, ok := ring[0].(*cuda.Matrix); !ok {
		return []turn{{ring: ring}}, nil
	}
	var all []turn
	var like []*cuda.Matrix
	add := func(lookup string, least int, change func(w *cuda.Matrix) (*cuda.Matrix, error)) error {
		of := make([]product, len(ring))
		for i, w := range ring {
			changed, err := change(w.(*cuda.Matrix))
			if err != nil {
				return err
			}
			of[i] = changed
		}
		if all = append(all, turn{of, lookup, least}); lookup == "" {
			like = append(like, of[0].(*cuda.Matrix))
		}
		return nil
	}
	var err error
	if len(b.Lookups) == 0 {
		err = add("", 0, func(w *cuda.Matrix) (*cuda.Matrix, error) { return w, nil })
	}
	if b.FP8 {
		err = errors.Join(err, add("", fp8.FewestRows, func(w *cuda.Matrix) (*cuda.Matrix, error) {
			r := *w // with the same memory
			if !b.engine.RoundToFP8(&r) {
				return nil, fmt.Errorf("no kernel in fp8 on %s for groups of %d: want Hopper, a compiler and groups of 64, 128, 256 or a row", b.dev.Info.Name, w.Format.Group)
			}
			return &r, nil
		}))
	}
	for _, l := range b.Lookups {
		if of := add(l.String(), 0, func(w *cuda.Matrix) (*cuda.Matrix, error) { return w.With(l) }); of != nil {
			err = errors.Join(err, fmt.Errorf("lookup %v: %w", l, of))
		}
	}
	if err != nil {
		return nil, err
	}
	b.engine.Compile(like, !b.NoTune, b.M...)
	return all, nil
}

// several are the ways to multiply many rows of X by the matrices of one kind.
type several struct {
	scratch int // bytes that the most demanding takes
	way     func() cuda.Way
	tune    func(o cuda.Operands, u *cuda.Unpacked) ([]cuda.WayTiming, error)
	matMul  func(i int, o cuda.Operands, way cuda.Way) error
}

// among fills in the multiplication in the way that is chosen among several, or tuned, and what writes X for it.
func (b *cudaBench) among(c *choice, all several, ring []product, o cuda.Operands, mem *memory) (way cuda.Way, err error) {
	w := ring[0].(cuda.Packed)
	u := b.unpacked(w, mem)
	if all.scratch > 0 {
		o.Scratch = mem.alloc(all.scratch)
	}
	if mem.err != nil {
		return way, mem.err
	}
	if b.NoTune {
		if way = all.way(); way.Unpacked() && u == nil {
			way = cuda.Way{}
		}
	} else {
		timings, err := all.tune(o, u)
		if err != nil {
			return way, err
		}
		way = timings[0].Way
	}
	if way.Unpacked() {
		b.unpack(c, u, ring, o)
		return way, nil
	}
	if _, k := w.Shape(); way.Form().Written(k) {
		columns, err := b.columns(o, k, mem)
		if err != nil {
			return way, err
		}
		x := o.X
		c.prepare = func(int) error { return b.engine.Prepare(b.stream, cuda.Columns, b.dtype, columns.X, x, o.M, k) }
		o = columns
	}
	c.multiply = func(i int) error { return all.matMul(i%len(ring), o, way) }
	return way, nil
}

// unpack fills in the multiplication by weights that are written as numbers first.
func (b *cudaBench) unpack(c *choice, u *cuda.Unpacked, ring []product, o cuda.Operands) {
	c.kernel = unpackedKernel
	c.multiply = func(i int) error { return u.MatMul(b.stream, ring[i%len(ring)].(cuda.Packed), o, b.dtype, false) }
}

// chooseTable is that of tables.
func (b *cudaBench) chooseTable(ring []product, o cuda.Operands, mem *memory) (c choice, err error) {
	all := ringOf[*cuda.Matrix](ring)
	w := all[0]
	c = choice{reference: tableReference, multiply: func(i int) error { return b.engine.MatMul(b.stream, all[i%len(all)], o) }}
	if o.M <= cuda.MaxRows || b.NoTune || slices.Contains(b.engine.Ways(w, o.M), cuda.Way{}) {
		config, err := b.config(all, o)
		if err != nil {
			return c, err
		}
		c.kernel = config.String()
	}
	if o.M > cuda.MaxRows {
		way, err := b.among(&c, several{
			scratch: b.engine.MostScratch(w, o.M),
			way:     func() cuda.Way { return b.engine.Way(w, o.M) },
			tune: func(o cuda.Operands, u *cuda.Unpacked) ([]cuda.WayTiming, error) {
				return b.engine.TuneMany(b.stream, all, o, u)
			},
			matMul: func(i int, o cuda.Operands, way cuda.Way) error { return b.engine.MatMulWay(b.stream, all[i], o, way) },
		}, ring, o, mem)
		if err != nil {
			return c, err
		}
		if way != (cuda.Way{}) && !way.Unpacked() {
			c.kernel = manyKernel + way.String()
		}
		if way.FP8() {
			c.reference = fp8Reference
		}
	}
	if c.waves, err = b.engine.WaveEfficiency(w, o.M); err != nil {
		return c, err
	}
	c.read, err = b.fastestRead(all, o)
	return c, err
}

// config returns the configuration that products run under, tuned unless that is not to be.
func (b *cudaBench) config(ring []*cuda.Matrix, o cuda.Operands) (cuda.Config, error) {
	if b.NoTune {
		return b.engine.Chosen(ring[0], o.M)
	}
	timings, err := b.engine.Tune(b.stream, ring, o)
	if err != nil {
		return nil, err
	}
	return timings[0].Config, nil
}

// chooseSparse is that of what is kept of every four columns.
func (b *cudaBench) chooseSparse(ring []product, o cuda.Operands, mem *memory) (c choice, err error) {
	all := ringOf[*cuda.SparseMatrix](ring)
	w := all[0]
	c = choice{
		kernel: sparseKernel, reference: keptReference,
		multiply: func(i int) error { return all[i%len(all)].MatMul(b.stream, o) },
		read:     func(i int) error { return all[i%len(all)].Read(b.stream, o) },
	}
	matMul := func(i int, o cuda.Operands, way cuda.Way) error {
		return b.engine.MatMulSparseWay(b.stream, all[i], o, way)
	}
	switch b.Kernel {
	case "":
		if o.M <= cuda.MaxRows {
			return c, nil
		}
		way, err := b.among(&c, several{
			scratch: w.MostScratch(o.M),
			way:     func() cuda.Way { return w.Way(o.M) },
			tune: func(o cuda.Operands, u *cuda.Unpacked) ([]cuda.WayTiming, error) {
				return b.engine.TuneSparse(b.stream, all, o, u)
			},
			matMul: matMul,
		}, ring, o, mem)
		if way.Kernel() != "" {
			c.kernel = way.Kernel()
		}
		return c, err
	case sparseKernel:
		return c, nil
	}
	way, err := w.KernelWay(b.Kernel)
	if err != nil {
		return c, err
	}
	o.Scratch = mem.alloc(way.ScratchBytes(o.M, w.K))
	c.kernel, c.multiply = b.Kernel, func(i int) error { return matMul(i%len(all), o, way) }
	return c, mem.err
}

// chooseBCQ is that of binary codes.
func (b *cudaBench) chooseBCQ(ring []product, o cuda.Operands, mem *memory) (c choice, err error) {
	type twin interface {
		Read(s *driver.Stream, o cuda.Operands) error
	}
	c = choice{
		kernel: cmp.Or(b.Kernel, planesKernel), reference: conform.NewRowReference,
		multiply: func(i int) error { return ring[i%len(ring)].MatMul(b.stream, o) },
		read:     func(i int) error { return ring[i%len(ring)].(twin).Read(b.stream, o) },
	}
	if w, ok := ring[0].(cuda.Packed); ok && b.Kernel == "" && w.Unpacks(o.M) && b.dense.blas != nil {
		b.unpack(&c, b.unpacked(w, mem), ring, o)
	}
	return c, mem.err
}

// fastestRead returns the call of the read-only twin, for as many rows or for one, under the
// configuration that it is fastest in. It reads the weights once, whatever M is.
func (b *cudaBench) fastestRead(ring []*cuda.Matrix, o cuda.Operands) (func(i int) error, error) {
	var candidates []*timing.Arm
	for _, m := range []int{min(o.M, cuda.MaxRows), 1} {
		of := o
		of.M = m
		for _, c := range b.engine.ReadConfigs(ring[0].Format, ring[0].N, ring[0].K, m) {
			candidates = append(candidates, &timing.Arm{Ring: len(ring), Call: func(i int) error {
				return b.engine.Read(b.stream, ring[i%len(ring)], of, c)
			}})
		}
	}
	const replays = 7
	if err := timing.Measure(b.dev, b.stream, candidates, replays); err != nil {
		return nil, err
	}
	best := slices.MinFunc(candidates, func(a, b *timing.Arm) int { return cmp.Compare(a.Median(), b.Median()) })
	return best.Call, nil
}

// newReference makes what results are held against.
type newReference = func(r *rand.Rand, w weight.Matrix, x, bias []uint16, m, share int, t driver.DType) *conform.Reference

// tableReference and fp8Reference are those of tables, which are rounded, as kernels hold them.
func tableReference(r *rand.Rand, w weight.Matrix, x, bias []uint16, m, share int, t driver.DType) *conform.Reference {
	return conform.NewReference(r, w.(*lut.Matrix), x, bias, m, share, t)
}

func fp8Reference(r *rand.Rand, w weight.Matrix, x, bias []uint16, m, share int, t driver.DType) *conform.Reference {
	return conform.NewFP8Reference(r, w.(*lut.Matrix), x, bias, m, share, t)
}

// keptReference is that of what is kept of every four columns.
func keptReference(r *rand.Rand, w weight.Matrix, x, bias []uint16, m, share int, t driver.DType) *conform.Reference {
	rounded := *w.(*lut24.Matrix)
	kept := *rounded.Kept
	kept.Codebook = conform.RoundedTable(kept.Codebook, t)
	rounded.Kept = &kept
	return conform.NewRowReference(r, &rounded, x, bias, m, share, t)
}
