package bench

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"

	"github.com/lutq/lutq/formats/weight"
	"github.com/lutq/lutq/formats/weight/bcq"
	"github.com/lutq/lutq/formats/weight/lut"
	"github.com/lutq/lutq/formats/weight/lut24"
	"github.com/lutq/lutq/gemm/conform"
	"github.com/lutq/lutq/gemm/cuda"
	"github.com/lutq/lutq/gemm/cuda/driver"
	"github.com/lutq/lutq/repack"
)

// kind is one of weights, other than tables, whose kernels [CUDA] times.
type kind struct {
	name        string
	least, most int      // bits
	kernels     []string // that can be asked for, first the one that models are multiplied by
	// random returns a matrix with weights of a layer.
	random func(r *rand.Rand, s Shape, bits, group int) weight.Matrix
	// pack lays a matrix out for a kernel and activations of a type, and returns what uploads it.
	pack func(m weight.Matrix, kernel string, t driver.DType) (upload func(*cuda.Engine) (product, error), err error)
}

// product is a matrix on the GPU in the layout of one of a kind's kernels.
type product interface {
	MatMul(s *driver.Stream, o cuda.Operands) error
	// Read is the read-only twin.
	Read(s *driver.Stream, o cuda.Operands) error
	Bytes() int64
	Close() error
}

// The kernels of binary codes; the second's name goes on with the size of its tables.
const (
	planesKernel = "planes"
	gatherKernel = "gather"
)

// sparseKernel is that by what is kept of every four columns for up to 16 rows of X; others are for more.
const sparseKernel = "mma.sp"

// kinds lists them. A new one is a line here.
func kinds() []kind {
	return []kind{
		{
			name: bcq.Name, least: bcq.MinBits, most: bcq.MaxBits, kernels: []string{planesKernel, gatherKernel + ":full", gatherKernel + ":half"},
			random: func(r *rand.Rand, s Shape, bits, group int) weight.Matrix {
				return conform.RandomBCQ(r, s.N, s.K, bits, group, weight.F16, true)
			},
			pack: packBCQ,
		},
		{
			name: lut24.Name, least: lut.MinBits, most: lut.MaxBits, kernels: append([]string{sparseKernel}, cuda.SparseKernels()...),
			random: func(r *rand.Rand, s Shape, bits, group int) weight.Matrix {
				return conform.RandomSparse(r, s.N, s.K, bits, group, weight.F16)
			},
			pack: packSparse,
		},
	}
}

func packSparse(w weight.Matrix, _ string, t driver.DType) (func(*cuda.Engine) (product, error), error) {
	tiles, err := repack.SparseCUDA(w.(*lut24.Matrix))
	return func(e *cuda.Engine) (product, error) { return e.UploadSparse(tiles, t) }, err
}

func packBCQ(w weight.Matrix, kernel string, t driver.DType) (func(*cuda.Engine) (product, error), error) {
	m := w.(*bcq.Matrix)
	if kernel == planesKernel {
		tiles, err := repack.BCQ(m)
		return func(e *cuda.Engine) (product, error) { return e.UploadBCQ(tiles, t) }, err
	}
	laid, err := repack.GatherBCQ(m, kernel == gatherKernel+":half")
	return func(e *cuda.Engine) (product, error) { return e.UploadBCQGather(laid, t) }, err
}

// KindNames lists the kinds of weights, other than tables, whose kernels [CUDA] times.
func KindNames() []string {
	var names []string
	for _, k := range kinds() {
		names = append(names, k.name)
	}
	return names
}

// KindWidths returns the least and the most bits that matrices of one of [KindNames] have.
func KindWidths(name string) (least, most int, err error) {
	k, err := kindOf(name)
	return k.least, k.most, err
}

func kindOf(name string) (kind, error) {
	for _, k := range kinds() {
		if k.name == name {
			return k, nil
		}
	}
	return kind{}, fmt.Errorf("kind %q: want %s", name, strings.Join(KindNames(), ", "))
}

func (k kind) check(widths []int, kernel string) error {
	for _, b := range widths {
		if b < k.least || b > k.most {
			return fmt.Errorf("%d bits of kind %s: want %d to %d", b, k.name, k.least, k.most)
		}
	}
	if kernel != "" && !slices.Contains(k.kernels, kernel) {
		return fmt.Errorf("kernel %q of kind %s: want %s", kernel, k.name, strings.Join(k.kernels, ", "))
	}
	return nil
}

// kind measures the layers of one set, of a kind other than lut, at every M.
func (b *cudaBench) kind(ctx context.Context, set []Layer) (err error) {
	first := set[0].Matrix
	k, err := kindOf(first.Kind())
	if err != nil {
		return err
	}
	if len(b.Lookups) > 0 || b.FP8 {
		return fmt.Errorf("weights of kind %s: lookups and products in fp8 are of kind %s", k.name, lut.Name)
	}
	kernel := cmp.Or(b.Kernel, k.kernels[0])
	// A copy of each layer, then of each again, until the ring is long enough.
	var uploads []func(*cuda.Engine) (product, error)
	var ring []product
	defer func() {
		for _, w := range ring {
			err = errors.Join(err, w.Close())
		}
	}()
	for i := 0; i < len(set) || !ringIsLong(i, int(first.Bytes()), b.RingBytes); i++ {
		if err := ctx.Err(); err != nil {
			return err
		}
		if i < len(set) {
			upload, err := k.pack(set[i].Matrix, kernel, b.dtype)
			if err != nil {
				return err
			}
			uploads = append(uploads, upload)
		}
		w, err := uploads[i%len(set)](b.engine)
		if err != nil {
			return err
		}
		ring = append(ring, w)
	}
	if err := b.makeDense(first); err != nil {
		return err
	}
	for _, rows := range b.M {
		if err := ctx.Err(); err != nil {
			return err
		}
		row, err := b.kindRow(ctx, kernel, set, ring, rows)
		if err != nil {
			return fmt.Errorf("m %d: %w", rows, err)
		}
		b.rows = append(b.rows, row)
		if b.Done != nil {
			b.Done(row, b.total)
		}
	}
	return nil
}

// kindReference is the reference of a kind other than lut. A table, if there is one, is rounded, as kernels hold it.
func kindReference(r *rand.Rand, w weight.Matrix, x, bias []uint16, m, share int, t driver.DType) *conform.Reference {
	if s, ok := w.(*lut24.Matrix); ok {
		kept, rounded := *s.Kept, *s
		kept.Codebook = conform.RoundedTable(kept.Codebook, t)
		rounded.Kept = &kept
		w = &rounded
	}
	return conform.NewRowReference(r, w, x, bias, m, share, t)
}

// kindRow measures a ring of the layers of a set, which stand in it in turn.
func (b *cudaBench) kindRow(ctx context.Context, kernel string, set []Layer, ring []product, m int) (_ Row, err error) {
	f, err := formOf(set[0].Matrix)
	if err != nil {
		return Row{}, err
	}
	x := conform.RandomHalves(b.rand, m*f.k, b.dtype)
	mem := memory{dev: b.dev}
	defer func() { err = errors.Join(err, mem.free()) }()
	o := cuda.Operands{M: m, X: mem.upload(driver.Bytes(x)), Y: mem.alloc(2 * (m*f.n + conform.Guard))}
	denseY := mem.alloc(2 * m * f.n)
	if mem.err != nil {
		return Row{}, mem.err
	}
	row := Row{
		Name: set[0].Name, Layers: names(set), Device: "cuda", GPU: b.dev.Info.Name, Kind: f.kind, N: f.n, K: f.k, M: m, Bits: f.bits, Group: f.group,
		DType: b.DType, Kernel: kernel, Ring: len(ring), Bytes: ring[0].Bytes(),
	}
	multiply := func(i int) error { return ring[i%len(ring)].MatMul(b.stream, o) }
	read := func(i int) error { return ring[i%len(ring)].Read(b.stream, o) }
	b.doing("compiling and timing", f.n, f.k, f.bits, m)
	packed, ok := ring[0].(cuda.Packed)
	if kept, sparse := ring[0].(*cuda.SparseMatrix); sparse && (m > cuda.MaxRows || kernel != sparseKernel) {
		if row.Kernel, multiply, err = b.sparseWay(kept, ring, o, &mem); err != nil {
			return Row{}, err
		}
	} else if ok && b.Kernel == "" && packed.Unpacks(m) && b.dense.blas != nil {
		u := b.unpacked(packed, &mem)
		if mem.err != nil {
			return Row{}, mem.err
		}
		row.Kernel = unpackedKernel
		multiply = func(i int) error { return u.MatMul(b.stream, ring[i%len(ring)].(cuda.Packed), o, b.dtype, false) }
	}
	last, err := b.check(&row, set, len(ring), x, o.Y, kindReference, multiply)
	if err != nil {
		return Row{}, err
	}
	if err := b.time(ctx, &row, o, denseY, last, multiply, read); err != nil {
		return Row{}, err
	}
	return row, nil
}

// sparseWay returns the fastest way to multiply more than 16 rows of X by matrices of which every four columns keep two, or the
// one that is asked for, and its name.
func (b *cudaBench) sparseWay(w *cuda.SparseMatrix, ring []product, o cuda.Operands, mem *memory) (kernel string, multiply func(i int) error, err error) {
	all := make([]*cuda.SparseMatrix, len(ring))
	for i, w := range ring {
		all[i] = w.(*cuda.SparseMatrix)
	}
	u := b.unpacked(w, mem)
	var way cuda.Way
	switch {
	case b.Kernel == sparseKernel:
	case b.Kernel == "" && b.NoTune:
		if way = w.Way(o.M); way.Unpacked() && u == nil {
			way = cuda.Way{}
		}
		o.Scratch = mem.alloc(max(way.ScratchBytes(o.M, w.K), 16))
	case b.Kernel == "":
		o.Scratch = mem.alloc(max(w.MostScratch(o.M), 16))
		if mem.err != nil {
			return "", nil, mem.err
		}
		timings, err := b.engine.TuneSparse(b.stream, all, o, u)
		if err != nil {
			return "", nil, err
		}
		way = timings[0].Way
	default:
		if way, err = w.KernelWay(b.Kernel); err != nil {
			return "", nil, err
		}
		o.Scratch = mem.alloc(way.ScratchBytes(o.M, w.K))
	}
	if mem.err != nil {
		return "", nil, mem.err
	}
	if way.Unpacked() {
		return unpackedKernel, func(i int) error { return u.MatMul(b.stream, all[i%len(all)], o, b.dtype, false) }, nil
	}
	name := way.Kernel()
	if name == "" {
		name = sparseKernel
	}
	return name, func(i int) error { return b.engine.MatMulSparseWay(b.stream, all[i%len(all)], o, way) }, nil
}
