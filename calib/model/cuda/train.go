package cuda

import (
	"errors"
	"fmt"
	"math"

	"github.com/lutq/lutq/calib/model"
	"github.com/lutq/lutq/formats/weight"
	"github.com/lutq/lutq/formats/weight/lut"
	"github.com/lutq/lutq/gemm/cuda/driver"
)

var _ model.BackwardOps = (*Ops)(nil)

// trainable is a weight whose scales are learned. A product with it dequantizes it
// into memory that all trainable weights share.
type trainable struct {
	n, k, group   int
	codes         driver.Ptr // bytes [n, k]; 0 where the original takes the place of table values
	table, scales driver.Ptr // floats; of scales [n, groups]
	entries       int        // of the table
	scaleType     weight.ScaleType
	original      *matrix // acts [n, k], another weight; may be nil
	o             *Ops
}

// Shape returns [N, K].
func (t *trainable) Shape() (n, k int) { return t.n, t.k }

func (t *trainable) groups() int { return weight.GroupsIn(t.k, t.group) }

// maxTable is the most entries that the kernels take of a table.
const maxTable = 1 << lut.MaxBits

// checkTrainable returns the first reason why a weight cannot be learned here.
func checkTrainable(t model.Trainable) error {
	if err := t.Validate(); err != nil {
		return err
	}
	if t.N*t.K > math.MaxInt32 {
		return fmt.Errorf("shape %d×%d has more elements than the kernels count", t.N, t.K)
	}
	if w, ok := t.Original.(*matrix); t.Original != nil && (!ok || w.packed != nil) {
		return errors.New("the original is not a dense weight")
	}
	return nil
}

// Trainable uploads a weight whose scales are learned. Its original counts as rounded
// to the type of activations, as Dense has uploaded it.
func (o *Ops) Trainable(t model.Trainable) (model.Weight, error) {
	if err := checkTrainable(t); err != nil {
		return nil, fmt.Errorf("trainable weight: %w", err)
	}
	w := &trainable{n: t.N, k: t.K, group: t.Group, entries: len(t.Table), scaleType: t.ScaleType, o: o}
	if t.Original != nil {
		w.original = t.Original.(*matrix)
	}
	err := o.now(func() {
		if t.Table != nil {
			w.codes, w.table = o.scratch(len(t.Codes)), o.scratch(4*len(t.Table))
			o.upload(w.codes, t.Codes)
			o.upload(w.table, driver.Bytes(t.Table))
		}
		w.scales = o.scratch(4 * len(t.Scales))
		o.upload(w.scales, driver.Bytes(t.Scales))
		w.setScales(w.scales)
	})
	if err != nil {
		return nil, err
	}
	return w, nil
}

// free gives back all but the original.
func (t *trainable) free(o *Ops) error {
	for _, at := range []*driver.Ptr{&t.codes, &t.table, &t.scales} {
		o.release(*at)
		*at = 0
	}
	return nil
}

// base dequantizes the weight: the matrix holds until the next one's.
func (t *trainable) base() *matrix {
	o, n := t.o, t.n*t.k*t.o.acts.Size()
	if o.dequantized.n < n {
		o.release(o.dequantized.at)
		o.dequantized.at, o.dequantized.n = o.scratch(n), n
	}
	at := o.dequantized.at
	kernel := "dequantize_original"
	if t.codes != 0 {
		kernel = "dequantize_codes"
	}
	each := t.vector(16)
	grid, block := pieces(t.n * t.k / each)
	o.launch(fmt.Sprintf("%s_%d", kernel, each), grid, block, append([]any{at}, t.rows(0, t.n, t.codes == 0)...)...)
	return &matrix{n: t.n, k: t.k, dense: at}
}

// vector returns how many elements of a row the kernels take at a time: v, or 1 where
// they would not lie in one group.
func (t *trainable) vector(v int) int {
	if t.k%v != 0 || t.group%v != 0 && t.group < t.k {
		return 1
	}
	return v
}

// rows are the arguments for some rows, with the original's where that is read.
func (t *trainable) rows(from, to int, reads bool) []any {
	at := driver.Ptr(from * t.k)
	codes, original := t.codes, driver.Ptr(0)
	if codes != 0 {
		codes += at
	}
	if reads {
		original = t.o.numbers(t.original) + at*driver.Ptr(t.o.acts.Size())
	}
	scales := t.scales + driver.Ptr(4*from*t.groups())
	return []any{codes, t.table, scales, original, to - from, t.k, t.group, t.groups(), t.entries}
}

// setScales queues the rounding of new scales.
func (t *trainable) setScales(from driver.Ptr) {
	n := t.n * t.groups()
	grid, block := pieces(n)
	t.o.launch("set_scales", grid, block, t.scales, from, n, int(t.scaleType))
}

// SetScales gives a weight new scales.
func (o *Ops) SetScales(w model.Weight, scales model.Array) {
	t, s := w.(*trainable), floats(scales)
	check(s.n == t.n*t.groups(), "%d scales for %d×%d groups", s.n, t.n, t.groups())
	o.do(func() { t.setScales(s.ptr) })
}

// floats returns an array that must be of float32.
func floats(a model.Array) *array {
	f := a.(*array)
	check(f.dtype == driver.F32, "an array of %v where floats belong", f.dtype)
	return f
}

// SetTable gives a weight a new codebook.
func (o *Ops) SetTable(w model.Weight, table model.Array) {
	t, v := w.(*trainable), floats(table)
	check(v.n == t.entries, "%d values for a table of %d", v.n, t.entries)
	o.do(func() { o.convert(t.table, driver.F32, v.ptr, driver.F32, v.n) })
}

// Recode chooses a weight's codes anew.
func (o *Ops) Recode(w model.Weight, bf16 bool) {
	t := w.(*trainable)
	check(t.codes != 0 && t.original != nil, "choosing codes of a weight without a table or an original")
	most, each := maxTable, t.vector(16)
	if t.entries <= 16 {
		most = 16
	}
	grid, block := pieces(t.n * t.k / each)
	o.do(func() {
		o.launch(fmt.Sprintf("recode_%d_%d", most, each), grid, block, append([]any{t.codes, truth(bf16)}, t.rows(0, t.n, true)...)...)
	})
}

// Codes reads a weight's codes.
func (o *Ops) Codes(dst []uint8, w model.Weight) {
	t := w.(*trainable)
	check(t.codes != 0 && len(dst) == t.n*t.k, "reading %d codes of a weight of shape [%d, %d]", len(dst), t.n, t.k)
	o.do(func() { o.fail(o.dev.Read(dst, t.codes)) })
}

const (
	// gradBytes is how much of a weight's gradient exists at a time.
	gradBytes = 128 << 20
	// gradPieces is how many vectors of a group a thread takes at a time.
	gradPieces = 4
	// tableBlocks is how many partial sums a table's gradient is added up from.
	tableBlocks = 512
)

// ScaleGrad adds the gradient of a weight's scales to ds, and of its table to dtable.
// The weight's own gradient, float32, exists for some rows at a time.
func (o *Ops) ScaleGrad(ds, dtable, dy, x model.Array, rows int, w model.Weight, lsq bool) {
	o.scaleGrad(ds, dtable, dy, x, rows, w, lsq, gradBytes)
}

func (o *Ops) scaleGrad(ds, dtable, dy, x model.Array, rows int, w model.Weight, lsq bool, bytes int) {
	t, s, g, in := w.(*trainable), floats(ds), dy.(*array), x.(*array)
	check(s.n == t.n*t.groups(), "%d gradients of %d×%d scales", s.n, t.n, t.groups())
	check(g.dtype == o.acts && in.dtype == o.acts && g.n == rows*t.n && in.n == rows*t.k,
		"gradient of a weight of shape [%d, %d] from %d rows: %d and %d elements", t.n, t.k, rows, g.n, in.n)
	check(dtable == nil || t.codes != 0 && floats(dtable).n == t.entries, "gradient of a table of %d entries has another length", t.entries)
	check(!lsq || t.codes == 0 || t.original != nil, "the gradient of LSQ of a weight without its original")
	if rows == 0 {
		return
	}
	kernel := "scale_grad_held"
	switch {
	case t.codes == 0:
		kernel = "scale_grad_free"
	case lsq:
		kernel = "scale_grad_lsq"
	}
	if dtable != nil {
		kernel += "_table"
	}
	each := t.vector(4)
	kernel = fmt.Sprintf("%s_%d", kernel, each)
	team := 1 // threads of a group
	for team < 32 && team*each*gradPieces < min(t.group, t.k) {
		team *= 2
	}
	most := bytes / (4 * t.k)
	if most > 128 {
		most -= most % 128 // whole tiles of a product
	}
	most = min(max(most, 1), t.n)
	// Blocks go on to other groups, so that each fetches the table once. Only for the
	// table's sums does their number matter.
	blocks := uint32(8 * o.dev.Info.SMs)
	if dtable != nil {
		blocks = tableBlocks
	}
	o.do(func() {
		grad := o.scratch(4 * most * t.k)
		var sums driver.Ptr
		if dtable != nil {
			sums = o.scratch(4 * tableBlocks * maxTable)
		}
		for from := 0; from < t.n; from += most {
			to := min(from+most, t.n)
			o.gemm(driver.GEMM{
				M: to - from, N: t.k, K: rows, TransA: true,
				A: driver.Operand{Ptr: g.ptr + driver.Ptr(from*o.acts.Size()), Ld: t.n}, B: driver.Operand{Ptr: in.ptr}, C: driver.Operand{Ptr: grad},
				In: o.acts, Out: driver.F32, Alpha: 1,
			})
			grid, block := pieces((to - from) * t.groups() * team)
			grid.X = min(grid.X, blocks)
			at := s.ptr + driver.Ptr(4*from*t.groups())
			o.launch(kernel, grid, block, append([]any{at, sums, grad, team}, t.rows(from, to, lsq || t.codes == 0)...)...)
			if dtable != nil {
				o.launch("table_grad", driver.Dim{X: uint32(t.entries)}, driver.Dim{X: 32}, dtable, sums, int(grid.X))
			}
		}
		o.release(grad)
		o.release(sums)
	})
}

// Adam takes one step of the optimizer.
func (o *Ops) Adam(a model.Adam) {
	p, m, v, g := floats(a.P), floats(a.M), floats(a.V), floats(a.G)
	check(p.n == m.n && p.n == v.n && p.n == g.n, "parameters, moments and gradient of %d, %d, %d and %d elements", p.n, m.n, v.n, g.n)
	check(a.Step >= 1, "step %d of the optimizer", a.Step)
	if p.n == 0 {
		return
	}
	scale := a.Scale
	if scale == 0 {
		scale = 1
	}
	kernel := "adam"
	if a.BF16 {
		kernel = "adam_bf16"
	}
	each := vector(4, []int{p.n}, p, m, v, g)
	grid, block := pieces(p.n / each)
	rest1, rest2 := 1-math.Pow(a.B1, float64(a.Step)), 1-math.Pow(a.B2, float64(a.Step))
	o.do(func() {
		o.launch(fmt.Sprintf("%s_%d", kernel, each), grid, block, p, m, v, g, int64(p.n),
			float32(scale), float32(a.B1), float32(a.B2), float32(1-a.B1), float32(1-a.B2),
			float32(a.LR/rest1), float32(math.Sqrt(rest2)), float32(1/rest2), float32(a.Eps))
	})
}

// ExpScale writes base·exp(theta).
func (o *Ops) ExpScale(s, base, theta model.Array) {
	n := floats(s).n
	check(floats(base).n == n && floats(theta).n == n, "%d scales of %d bases and %d logarithms", n, base.Len(), theta.Len())
	o.over("exp_scale", n, s, base, theta)
}

// ExpScaleBack multiplies a gradient by s.
func (o *Ops) ExpScaleBack(g, s model.Array) {
	n := floats(g).n
	check(floats(s).n == n, "%d gradients of %d scales", n, s.Len())
	o.over("exp_scale_back", n, g, s)
}

// over queues a kernel with a thread for each of n elements.
func (o *Ops) over(kernel string, n int, arrays ...any) {
	if n == 0 {
		return
	}
	grid, block := pieces(n)
	o.do(func() { o.launch(kernel, grid, block, append(arrays, int64(n))...) })
}

// The elements that a block of SumSquares adds up, where its blocks, up to the
// number that an array may have, allow it.
const (
	squaresEach   = 16 * gradThreads
	squaresBlocks = 1024
)

// SumSquares returns Σ x² over arrays. Blocks' sums are float64, and added up in order.
func (o *Ops) SumSquares(arrays ...model.Array) float64 {
	blocks, total := make([]int, len(arrays)), 0
	for i, a := range arrays {
		blocks[i] = min(ceil(floats(a).n, squaresEach), squaresBlocks)
		total += blocks[i]
	}
	if total == 0 {
		return 0
	}
	sums := make([]float64, total)
	o.do(func() {
		start := o.scratch(8 * total)
		at := start
		for i, a := range arrays {
			if blocks[i] > 0 {
				o.launch("sum_squares", driver.Dim{X: uint32(blocks[i])}, driver.Dim{X: gradThreads}, at, a, int64(a.Len()))
				at += driver.Ptr(8 * blocks[i])
			}
		}
		if o.err == nil {
			o.fail(o.dev.Read(driver.Bytes(sums), start))
		}
		o.release(start)
	})
	var sum float64
	for _, s := range sums {
		sum += s
	}
	return sum
}
