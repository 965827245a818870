package bench

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"

	"github.com/lutq/lutq/gemm/conform"
	"github.com/lutq/lutq/gemm/cuda"
	"github.com/lutq/lutq/gemm/cuda/driver"
	"github.com/lutq/lutq/quantize/bcq"
	"github.com/lutq/lutq/quantize/lut"
	"github.com/lutq/lutq/quantize/lut24"
	"github.com/lutq/lutq/quantize/weight"
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
			name: lut24.Name, least: lut.MinBits, most: lut.MaxBits, kernels: []string{"mma.sp"},
			random: func(r *rand.Rand, s Shape, bits, group int) weight.Matrix {
				m := conform.RandomSparse(r, s.N, s.K, bits, group, weight.F16)
				m.Kept.Codebook = conform.RoundedTable(m.Kept.Codebook, driver.BF16) // which float16 can hold as well
				return m
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

// kind measures random matrices of a kind at every M.
func (b *cudaBench) kind(ctx context.Context, s Shape, bits int) (err error) {
	k, err := kindOf(b.Kind)
	if err != nil {
		return err
	}
	m := k.random(b.rand, s, bits, b.Group)
	kernel := b.Kernel
	if kernel == "" {
		kernel = k.kernels[0]
	}
	upload, err := k.pack(m, kernel, b.dtype)
	if err != nil {
		return err
	}
	var ring []product
	defer func() {
		for _, w := range ring {
			err = errors.Join(err, w.Close())
		}
	}()
	for !ringIsLong(len(ring), int(m.Bytes()), b.RingBytes) {
		w, err := upload(b.engine)
		if err != nil {
			return err
		}
		ring = append(ring, w)
	}
	if err := b.makeDense(m); err != nil {
		return err
	}
	for _, rows := range b.M {
		if err := ctx.Err(); err != nil {
			return err
		}
		row, err := b.kindRow(ctx, kernel, m, ring, bits, rows)
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

// kindRow measures a ring of copies of a matrix.
func (b *cudaBench) kindRow(ctx context.Context, kernel string, w weight.Matrix, ring []product, bits, m int) (_ Row, err error) {
	n, cols := w.Shape()
	x := conform.RandomHalves(b.rand, m*cols, b.dtype)
	mem := memory{dev: b.dev}
	defer func() { err = errors.Join(err, mem.free()) }()
	o := cuda.Operands{M: m, X: mem.upload(driver.Bytes(x)), Y: mem.alloc(2 * (m*n + conform.Guard))}
	denseY := mem.alloc(2 * m * n)
	if mem.err != nil {
		return Row{}, mem.err
	}
	row := Row{
		Device: "cuda", GPU: b.dev.Info.Name, Kind: b.Kind, N: n, K: cols, M: m, Bits: bits, Group: min(b.Group, cols),
		DType: b.DType, Kernel: kernel, Ring: len(ring), Bytes: ring[0].Bytes(),
	}
	multiply := func(i int) error { return ring[i%len(ring)].MatMul(b.stream, o) }
	read := func(i int) error { return ring[i%len(ring)].Read(b.stream, o) }
	packed, ok := ring[0].(cuda.Packed)
	if d := b.dense; ok && b.Kernel == "" && packed.Unpacks(m) && d.blas != nil {
		size := cuda.UnpackedScratch(packed)
		u := cuda.Unpacked{BLAS: d.blas, Scratch: mem.alloc(size), Bytes: size}
		if mem.err != nil {
			return Row{}, mem.err
		}
		row.Kernel = unpackedKernel
		multiply = func(i int) error { return u.MatMul(b.stream, ring[i%len(ring)].(cuda.Packed), o, b.dtype, false) }
	}

	b.doing("compiling and timing", n, cols, bits, m)
	var first []uint16
	reference := conform.NewRowReference(b.rand, w, x, nil, m, 1, b.dtype)
	for i := range len(ring) + 1 {
		if err := b.dev.Fill8(o.Y, conform.Poison, 2*(m*n+conform.Guard)); err != nil {
			return Row{}, err
		}
		if err := multiply(i); err != nil {
			return Row{}, err
		}
		y, err := b.readResult(o.Y, m*n, b.dtype)
		if err != nil {
			return Row{}, err
		}
		if first == nil {
			first = y
			row.RelErr, row.MaxErr = reference.Errors(y)
		}
		if !slices.Equal(y, first) {
			return Row{}, fmt.Errorf("other bits the second time: %w", ErrMismatch)
		}
	}

	if err := b.time(ctx, &row, o, denseY, first, multiply, read); err != nil {
		return Row{}, err
	}
	return row, nil
}
