package cuda

import (
	"slices"

	"github.com/lutq/lutq/calib/model"
	"github.com/lutq/lutq/formats/arch"
	gemmcuda "github.com/lutq/lutq/gemm/cuda"
	"github.com/lutq/lutq/gemm/cuda/driver"
)

// MLPRows returns 0: all tokens pass through an MLP at a time.
func (o *Ops) MLPRows() int { return 0 }

// Embed writes rows of a weight to h.
func (o *Ops) Embed(h model.Array, tokens []int, w model.Weight, scale float32) {
	n, k := w.Shape()
	check(h.Len() == len(tokens)*k, "%d elements for %d tokens of %d", h.Len(), len(tokens), k)
	for _, t := range tokens {
		check(0 <= t && t < n, "row %d of an embedding of %d", t, n)
	}
	if len(tokens) == 0 {
		return
	}
	o.do(func() {
		rows := o.uploadInts(tokens)
		o.embed(h, rows, len(tokens), w, scale)
		o.release(rows)
	})
}

// embed queues the writing of n rows, whose numbers are at rows. It is called inside do.
func (o *Ops) embed(h model.Array, rows driver.Ptr, n int, w model.Weight, scale float32) {
	m := w.(operand).base()
	switch {
	case o.err != nil:
	case m.packed != nil:
		o.fail(m.packed.Rows(o.stream, gemmcuda.Rows{To: ptr(h), Type: driver.F32, Index: rows, Count: n}))
		if scale != 1 {
			grid, block := elements(h.Len())
			o.launch("multiply", grid, block, h, scale, int64(h.Len()))
		}
	default:
		grid, block := perRow(n, m.k)
		o.launch("embed", grid, block, h, rows, o.numbers(m), m.k, scale)
	}
}

// RMSNorm normalizes rows.
func (o *Ops) RMSNorm(y, x, w model.Array, rows int, eps float64) {
	o.NormGroups(y, x, w, rows, 1, eps)
}

// NormGroups normalizes groups of rows.
func (o *Ops) NormGroups(y, x, w model.Array, rows, groups int, eps float64) {
	cols := w.Len() / groups
	n := rows * groups * cols
	check(y.Len() == n && x.Len() == n, "norm of %d rows of %d groups of %d: %d to %d elements", rows, groups, cols, x.Len(), y.Len())
	if rows == 0 {
		return
	}
	grid, block := perRow(rows, cols)
	grid.Y = uint32(groups)
	norm := func(y model.Array) {
		plain, prepared, turned := inputOf(y).at()
		o.launchEarly(o.of("rmsnorm", x), grid, block, plain, prepared, turned, x, w, cols, float32(eps))
	}
	o.do(func() {
		if groups > 1 && cols%preparedColumns != 0 {
			o.rowByRow(y, norm)
		} else {
			norm(y)
		}
	})
}

// Rope rotates heads.
func (o *Ops) Rope(x model.Array, s model.RopeShape, cos, sin model.Array, back bool) {
	if s.Rows == 0 || s.Half == 0 {
		return
	}
	n := s.Rows * s.Heads
	check(x.Len() > (n-1)*s.Dim+2*s.Half-1 && s.Dim >= 2*s.Half, "%d elements for %d rows of %d heads of %d pairs", x.Len(), s.Rows, s.Heads, s.Half)
	check(cos.Len() >= s.Rows*s.Half && sin.Len() >= s.Rows*s.Half, "%d and %d angles for %d rows of %d", cos.Len(), sin.Len(), s.Rows, s.Half)
	sign := float32(1)
	if back {
		sign = -1
	}
	kernel := "rope"
	grid, block := ofHeads(n, s.Half)
	if s.Adjacent {
		kernel = "rope_pairs"
		grid, block = overAll(n * s.Half)
	}
	o.do(func() { o.launch(kernel, grid, block, x, cos, sin, s.Heads, s.Half, s.Dim, sign, n) })
}

// GLU writes act(g)∘u.
func (o *Ops) GLU(y, g, u model.Array, act arch.Gating) {
	check(y.Len() == g.Len() && y.Len() == u.Len(), "glu of %d and %d to %d elements", g.Len(), u.Len(), y.Len())
	if y.Len() == 0 {
		return
	}
	rows := 1
	if in, ok := y.(*input); ok {
		rows = in.n / in.k
	}
	o.do(func() { o.glu(y, ptr(g), ptr(u), rows, y.Len()/rows, act) })
}

// glu queues the same of gates and other factors whose rows are pitch elements apart. It is called inside do.
func (o *Ops) glu(y model.Array, g, u driver.Ptr, rows, pitch int, act arch.Gating) {
	cols := y.Len() / rows
	grid, block := elements(rows * ceil(cols, elementEach) * elementEach)
	plain, prepared, turned := inputOf(y).at()
	o.launchEarly("glu_"+string(act.Act), grid, block, plain, prepared, turned, g, u, float32(act.Alpha), float32(act.Limit), int64(pitch), int64(cols), rows)
}

// SoftCap writes c·tanh(x/c).
func (o *Ops) SoftCap(x model.Array, limit float64) {
	o.elementwise("soft_cap", floats(x).n, x, float32(limit))
}

// Scale multiplies x.
func (o *Ops) Scale(x model.Array, by float32) {
	o.elementwise("multiply", floats(x).n, x, by)
}

// AddTo adds x to h.
func (o *Ops) AddTo(h, x model.Array) {
	check(floats(h).n == x.Len(), "adding %d elements to %d", x.Len(), h.Len())
	o.elementwise(o.of("add", x), h.Len(), h, x)
}

// Gather copies rows.
func (o *Ops) Gather(dst, src model.Array, rows []int, weights []float32) {
	o.someRows(o.of("gather", src), dst, src, dst.Len(), rows, weights)
}

// Scatter adds to rows.
func (o *Ops) Scatter(h, src model.Array, rows []int, weights []float32) {
	o.someRows(o.of("scatter", src), floats(h), src, src.Len(), rows, weights)
}

// someRows queues a kernel for rows of dst or src, of which the other has just these, in n elements.
func (o *Ops) someRows(kernel string, dst, src model.Array, n int, rows []int, weights []float32) {
	if len(rows) == 0 {
		return
	}
	cols := n / len(rows)
	check(n == len(rows)*cols && (weights == nil || len(weights) == len(rows)), "%d rows of %d elements with %d weights", len(rows), n, len(weights))
	for _, r := range rows {
		check(0 <= r && (r+1)*cols <= max(dst.Len(), src.Len()), "row %d of %d elements", r, max(dst.Len(), src.Len()))
	}
	grid, block := perRow(len(rows), cols)
	o.do(func() {
		at := o.uploadInts(rows)
		var w driver.Ptr
		if weights != nil {
			w = o.scratch(4 * len(weights))
			o.upload(w, driver.Bytes(weights))
		}
		o.launch(kernel, grid, block, dst, src, at, w, cols)
		o.release(at)
		o.release(w)
	})
}

// elementwise queues a kernel over n elements of some arrays.
func (o *Ops) elementwise(kernel string, n int, arrays ...any) {
	if n == 0 {
		return
	}
	grid, block := elements(n)
	o.do(func() { o.launch(kernel, grid, block, append(arrays, int64(n))...) })
}

// CrossEntropy writes each row's loss and its gradient.
func (o *Ops) CrossEntropy(loss, dlogits, logits model.Array, targets []int, vocab int, scale float32) {
	rows := len(targets)
	checkLoss(loss, dlogits, logits, rows, vocab)
	for _, t := range targets {
		check(0 <= t && t < vocab, "target %d of %d", t, vocab)
	}
	if rows == 0 {
		return
	}
	grid, block := perRow(rows, vocab)
	o.do(func() {
		at := o.uploadInts(targets)
		o.launch("cross_entropy", grid, block, loss, dlogits, logits, at, vocab, scale)
		o.release(at)
	})
}

// Score writes what CrossEntropy, ArgMax and Divergence find, to scores [3, rows], in one pass over the logits. teacher may be nil.
func (o *Ops) Score(scores, logits, teacher model.Array, targets []int, vocab int) {
	rows := len(targets)
	check(floats(scores).n == 3*rows && floats(logits).n == rows*vocab, "scores of %d rows of %d logits: %d of %d elements", rows, vocab, scores.Len(), logits.Len())
	check(teacher == nil || floats(teacher).n == rows*vocab, "%d rows of %d logits with a teacher's of another length", rows, vocab)
	for _, t := range targets {
		check(0 <= t && t < vocab, "target %d of %d", t, vocab)
	}
	if rows == 0 {
		return
	}
	name := "score_alone"
	if teacher != nil {
		name = "score_taught"
	}
	grid, block := perRow(rows, vocab)
	o.do(func() {
		at := o.uploadInts(targets)
		o.launch(name, grid, block, scores, logits, teacher, at, vocab)
		o.release(at)
	})
}

// Divergence is the same against a teacher.
func (o *Ops) Divergence(loss, dlogits, logits, teacher model.Array, rows, vocab int, scale float32) {
	checkLoss(loss, dlogits, logits, rows, vocab)
	check(teacher.Len() == rows*vocab, "%d elements for %d rows of %d logits", teacher.Len(), rows, vocab)
	if rows == 0 {
		return
	}
	grid, block := perRow(rows, vocab)
	o.do(func() { o.launch("divergence", grid, block, loss, dlogits, logits, teacher, vocab, scale) })
}

func checkLoss(loss, dlogits, logits model.Array, rows, vocab int) {
	check(loss.Len() == rows, "%d losses for %d rows", loss.Len(), rows)
	check(logits.Len() == rows*vocab, "%d elements for %d rows of %d logits", logits.Len(), rows, vocab)
	check(dlogits == nil || dlogits.Len() == rows*vocab, "gradient and logits differ in length")
}

// ArgMax writes the index of the largest of each row.
func (o *Ops) ArgMax(dst, x model.Array, rows, cols int) {
	check(dst.Len() == rows && x.Len() == rows*cols, "%d indices of %d rows of %d: %d elements", dst.Len(), rows, cols, x.Len())
	if rows == 0 {
		return
	}
	o.do(func() {
		parts, count := o.bestParts(x, rows, cols)
		o.launchEarly("argmax_best", driver.Dim{X: uint32(rows)}, driver.Dim{X: 32}, dst, parts, count)
		o.release(parts)
	})
}

// bestParts queues the search for the largest of each part of a row: a value and its index each, in scratch memory. It is
// called inside do.
func (o *Ops) bestParts(x model.Array, rows, cols int) (parts driver.Ptr, count int) {
	const (
		least = 2048 // elements of a block
		most  = 512  // blocks, where rows have several, all of which GPUs have room for at once
	)
	grid, block := perRow(rows, min(cols, least))
	count = min(ceil(cols, least), ceil(most, rows))
	grid.Y = uint32(count)
	parts = o.scratch(8 * rows * count)
	o.launchEarly(o.of("argmax", x), grid, block, parts, x, cols)
	return parts, count
}

// NotFinite returns the first row that is not finite, or −1.
func (o *Ops) NotFinite(x model.Array, rows, cols int) int {
	check(x.Len() == rows*cols, "%d elements for %d rows of %d", x.Len(), rows, cols)
	if rows == 0 {
		return -1
	}
	grid, block := perRow(rows, cols)
	bad := make([]float32, rows)
	o.do(func() {
		at := o.scratch(4 * rows)
		o.launch(o.of("not_finite", x), grid, block, at, x, cols)
		if o.err == nil {
			o.fail(o.dev.Read(driver.Bytes(bad), at))
		}
		o.release(at)
	})
	return slices.Index(bad, 1)
}
