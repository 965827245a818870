package cuda

import (
	"errors"
	"fmt"
	"runtime"
	"slices"

	"golang.org/x/sync/errgroup"

	"github.com/lutq/lutq/calib/model"
	"github.com/lutq/lutq/formats/hf"
	"github.com/lutq/lutq/formats/weight"
	"github.com/lutq/lutq/formats/weight/lut"
	gemmcuda "github.com/lutq/lutq/gemm/cuda"
	"github.com/lutq/lutq/gemm/cuda/driver"
	"github.com/lutq/lutq/gemm/cuda/families"
)

// operand is a weight of any kind.
type operand interface {
	model.Weight
	base() *matrix
	// free gives the memory back. It is called on the device's goroutine.
	free(o *Ops) error
}

// matrix is an [n, k] weight: dense, of the type of activations, on the device or at
// home on the host, or packed. [Ops.numbers] tells where the dense one lies.
type matrix struct {
	n, k   int
	dense  driver.Ptr
	home   *driver.HostBuffer
	packed *gemmcuda.Matrix
}

// Shape returns [N, K].
func (m *matrix) Shape() (n, k int) { return m.n, m.k }

func (m *matrix) base() *matrix { return m }

func (m *matrix) free(o *Ops) error {
	if m.packed != nil {
		o.kept.forget(m.packed)
		err := m.packed.Close()
		m.packed = nil
		return err
	}
	return o.leave(m)
}

// FreeWeight gives a weight back.
func (o *Ops) FreeWeight(w model.Weight) {
	if w == nil {
		return
	}
	_ = o.dev.Do(func() error { // after a failure too
		err := o.stream.Sync()
		o.fail(errors.Join(err, w.(operand).free(o)))
		return nil
	})
}

// now runs f on the device's goroutine, and returns its error or the first of what
// was queued before.
func (o *Ops) now(f func()) error {
	return o.dev.Do(func() error {
		if o.err == nil {
			f()
		}
		return o.err
	})
}

// Dense uploads a matrix and converts it to the type of activations. One that the
// device has no room for stays on the host and is copied whenever it is used.
func (o *Ops) Dense(n, k int, t hf.DType, data []byte) (model.Weight, error) {
	from, ok := map[hf.DType]driver.DType{hf.F32: driver.F32, hf.F16: driver.F16, hf.BF16: driver.BF16}[t]
	if !ok {
		return nil, fmt.Errorf("weights of type %s: want F32, F16 or BF16", t)
	}
	if n <= 0 || k <= 0 || len(data) != n*k*from.Size() {
		return nil, fmt.Errorf("%d bytes for a matrix of shape [%d, %d], type %s", len(data), n, k, t)
	}
	m := &matrix{n: n, k: k}
	if err := o.now(func() { o.settle(m, data, from) }); err != nil {
		return nil, err
	}
	return m, nil
}

// conversionBytes is what is converted at a time.
const conversionBytes = 64 << 20

// uploadAs queues a copy of the host's numbers of a type as activations.
func (o *Ops) uploadAs(dst driver.Ptr, data []byte, from driver.DType) {
	if from == o.acts {
		o.upload(dst, data)
		return
	}
	buffer := o.scratch(min(len(data), conversionBytes))
	for len(data) > 0 && o.err == nil {
		part := data[:min(len(data), conversionBytes)]
		n := len(part) / from.Size()
		o.upload(buffer, part)
		o.convert(dst, o.acts, buffer, from, n)
		dst, data = dst+driver.Ptr(n*o.acts.Size()), data[len(part):]
	}
	o.release(buffer)
}

// Packed uploads a quantized matrix. It is multiplied by as [families.Pack] has it, in 16-bit activations; what
// that has no kernel for is kept dense.
func (o *Ops) Packed(m weight.Matrix) (model.Weight, error) {
	if err := m.Validate(); err != nil {
		return nil, err
	}
	n, k := m.Shape()
	tiles, parts, err := families.Pack(m, o.acts)
	if err != nil {
		return nil, err
	}
	if tiles != nil {
		w, err := o.uploaded(tiles, parts)
		if !errors.Is(err, gemmcuda.ErrNoKernel) {
			return w, err
		}
	}
	w := &matrix{n: n, k: k}
	data := o.dequantize(m)
	if err := o.now(func() { o.settle(w, data, o.acts) }); err != nil {
		return nil, err
	}
	return w, nil
}

// Multiplies implements [model.Ops].
func (o *Ops) Multiplies(kind string) bool { return slices.Contains(families.Kinds(), kind) }

// Layout uploads a matrix as [Ops.Packed] does, tiles that the fused kernels multiply by as
// they are.
func (o *Ops) Layout(l lut.Layout) (model.Weight, error) {
	tiles, parts, err := families.PackLayout(l, o.acts)
	if err != nil {
		return nil, err
	}
	if tiles != nil {
		return o.uploaded(tiles, parts)
	}
	m, err := l.Matrix()
	if err != nil {
		return nil, err
	}
	return o.Packed(m)
}

// uploaded returns a matrix that is packed.
func (o *Ops) uploaded(tiles gemmcuda.Tiles, parts [][]byte) (model.Weight, error) {
	n, k := tiles.Shape()
	w := &matrix{n: n, k: k}
	err := o.dev.Do(func() (err error) {
		w.packed, err = o.engine.Upload(tiles, parts)
		return err
	})
	if err != nil {
		return nil, err
	}
	return w, nil
}

// dequantize returns the weights as activations.
func (o *Ops) dequantize(m weight.Matrix) []byte {
	size := o.acts.Size()
	n, k := m.Shape()
	data := make([]byte, n*k*size)
	var group errgroup.Group
	group.SetLimit(runtime.GOMAXPROCS(0))
	for from := 0; from < n; from += weight.Together {
		group.Go(func() error {
			rows := make([]float32, min(weight.Together, n-from)*k)
			weight.RowsTo(rows, m, from, len(rows)/k)
			encodeAs(o.acts, data[from*k*size:], rows)
			return nil
		})
	}
	_ = group.Wait() // no row fails
	return data
}

// Linear multiplies x by several weights.
func (o *Ops) Linear(x model.Array, rows int, to ...model.Product) {
	in := inputOf(x)
	k := in.n / max(rows, 1)
	for _, p := range to {
		n, wide := p.W.Shape()
		check((in.rows == nil || in.rows.dtype == o.acts) && in.n == rows*wide, "%d elements for %d rows of a weight with K = %d", in.n, rows, wide)
		check(p.Y.Len() == rows*n, "%d results for %d rows of a weight with N = %d", p.Y.Len(), rows, n)
		check(p.Bias == nil || p.Bias.Len() == n, "a bias for a weight with N = %d has another length", n)
		check(!p.Add || p.Y.(*array).dtype == driver.F32, "results for a weight with N = %d are added to what is not float32", n)
	}
	if rows == 0 {
		return
	}
	o.do(func() {
		x := reading{o: o, in: in, rows: rows, k: k}
		defer x.release()
		for _, p := range to {
			y, w := p.Y.(*array), p.W.(operand).base()
			switch {
			case w.packed != nil && o.engine.Folds(w.packed.Tiles, rows):
				o.folded(y, &x, w, p.Add)
			case w.packed != nil && (o.kept.asNumbers(rows) || o.engine.Unpacks(w.packed.Tiles, rows)):
				o.unpacked(y, x.rowByRow(), rows, w, p.Add)
			case w.packed != nil:
				o.fused(y, &x, w, p.Add)
			default:
				o.product(gemmcuda.Follower{})
				o.gemm(driver.GEMM{
					M: rows, N: w.n, K: w.k, A: driver.Operand{Ptr: x.rowByRow()}, B: driver.Operand{Ptr: o.numbers(w)}, C: driver.Operand{Ptr: y.ptr},
					TransB: true, In: o.acts, Out: y.dtype, Alpha: 1, Beta: float32(truth(p.Add)),
				})
			}
			if p.Bias != nil {
				grid, block := elements(y.n)
				o.launch(o.of("bias", y), grid, block, y, p.Bias, w.n, int64(y.n))
			}
		}
	})
}

// unpacked queues a product of many rows by a packed weight, as dense ones are multiplied.
func (o *Ops) unpacked(y *array, x driver.Ptr, rows int, w *matrix, add bool) {
	o.product(gemmcuda.Follower{})
	u := gemmcuda.Unpacked{BLAS: o.blas}
	if !o.kept.asNumbers(rows) || !o.keeps(w.packed, o.acts) {
		u.Bytes = gemmcuda.UnpackedScratch(w.packed.Tiles)
		u.Scratch = o.scratch(u.Bytes)
		defer o.release(u.Scratch)
	}
	if o.err == nil {
		o.fail(u.MatMul(o.stream, w.packed, gemmcuda.Operands{Y: y.ptr, X: x, M: rows}, y.dtype, add))
	}
}

// folded queues a product of many rows by a packed weight in E4M3.
func (o *Ops) folded(y *array, x *reading, w *matrix, add bool) {
	o.product(gemmcuda.Follower{})
	f := gemmcuda.Folded{BLAS: o.fp8}
	if !o.keeps(w.packed, driver.E4M3) {
		f.Bytes = gemmcuda.FoldedScratch(w.packed)
		f.Scratch = o.scratch(f.Bytes)
		defer o.release(f.Scratch)
	}
	from := x.as(gemmcuda.InE4M3)
	if o.err == nil {
		o.fail(f.MatMul(o.stream, w.packed, gemmcuda.Operands{Y: y.ptr, X: from, M: x.rows, Form: gemmcuda.InE4M3}, y.dtype, add))
	}
}

// fused queues a product by a packed weight. The kernel writes activations.
func (o *Ops) fused(y *array, x *reading, w *matrix, add bool) {
	needs, to := o.engine.Needs(w.packed.Tiles, x.rows), y.ptr
	from := x.as(needs.Form) // so that the scratch memory that is wanted is what sums take
	if y.dtype != o.acts {
		to = o.scratch(y.n * o.acts.Size())
		defer o.release(to)
	}
	var scratch driver.Ptr
	if needs.Sums > 0 {
		scratch = o.scratch(needs.Sums)
		defer o.release(scratch)
	}
	if o.err != nil {
		return
	}
	step := o.product(gemmcuda.Follower{W: w.packed, M: x.rows})
	o.fail(o.engine.MatMul(o.stream, w.packed, gemmcuda.Operands{Y: to, X: from, M: x.rows, Scratch: scratch, Form: needs.Form, Step: step}))
	switch {
	case y.dtype == o.acts:
	case add:
		grid, block := elements(y.n)
		o.launch("add_a", grid, block, y, to, int64(y.n))
	default:
		o.convert(y.ptr, y.dtype, to, o.acts, y.n)
	}
}

// denseOf returns the numbers of a weight, in the type of activations, and whether
// they lie in scratch memory, to be released. It is called inside do.
func (o *Ops) denseOf(w *matrix) (at driver.Ptr, scratch bool) {
	if w.packed == nil {
		return o.numbers(w), false
	}
	at = o.scratch(w.n * w.k * o.acts.Size())
	if o.err == nil {
		o.fail(w.packed.Rows(o.stream, gemmcuda.Rows{To: at, Type: o.acts, Count: w.n}))
	}
	return at, true
}
