package cuda

import (
	"errors"

	"github.com/lutq/lutq/calib/model"
	"github.com/lutq/lutq/calib/model/opstest"
	"github.com/lutq/lutq/formats/arch"
	"github.com/lutq/lutq/formats/hf"
)

// twin takes a gradient on the GPU and, of the same forward pass, in float64. What an operation of
// that pass writes on the GPU, the reference goes on with as it is; the way back is each
// one's own. So the two differentiate by the same numbers, and differ in how they do it.
type twin struct {
	*Ops
	ref opstest.Reference
}

type twinArray struct {
	gpu model.Array
	ref opstest.Array
}

func (a twinArray) Len() int { return len(a.ref) }

func (a twinArray) Slice(from, to int) model.Array {
	return twinArray{a.gpu.Slice(from, to), a.ref[from:to:to]}
}

type twinWeight struct{ gpu, ref model.Weight }

func (w twinWeight) Shape() (n, k int) { return w.gpu.Shape() }

// device and exact return the halves of an array, nil of none.
func device(a model.Array) model.Array {
	if a == nil {
		return nil
	}
	return a.(twinArray).gpu
}

func exact(a model.Array) model.Array {
	if a == nil {
		return nil
	}
	return a.(twinArray).ref
}

// follow gives the reference what the GPU has written.
func (t twin) follow(arrays ...model.Array) {
	for _, a := range arrays {
		if a == nil {
			continue
		}
		v := make([]float32, a.Len())
		t.Ops.Read(v, device(a))
		t.ref.Write(exact(a), v)
	}
}

func (t twin) Floats(n int) model.Array { return twinArray{t.Ops.Floats(n), make(opstest.Array, n)} }
func (t twin) Acts(n int) model.Array   { return twinArray{t.Ops.Acts(n), make(opstest.Array, n)} }

func (t twin) Free(arrays ...model.Array) {
	for _, a := range arrays {
		t.Ops.Free(device(a))
	}
}

func (t twin) Write(dst model.Array, src []float32) {
	t.Ops.Write(device(dst), src)
	t.follow(dst)
}

func (t twin) Read(dst []float32, src model.Array) { t.Ops.Read(dst, device(src)) }

// readExact reads the reference's numbers.
func (t twin) readExact(dst []float32, src model.Array) { t.ref.Read(dst, exact(src)) }

// Copy is part of both ways. On the way there it changes nothing.
func (t twin) Copy(dst, src model.Array) {
	t.Ops.Copy(device(dst), device(src))
	t.ref.Copy(exact(dst), exact(src))
}

// CopyHeads likewise.
func (t twin) CopyHeads(dst, src model.Array, s model.HeadsShape) {
	t.Ops.CopyHeads(device(dst), device(src), s)
	t.ref.CopyHeads(exact(dst), exact(src), s)
}

func (t twin) Zero(a model.Array) {
	t.Ops.Zero(device(a))
	t.ref.Zero(exact(a))
}

func (t twin) Dense(n, k int, d hf.DType, data []byte) (model.Weight, error) {
	gpu, err := t.Ops.Dense(n, k, d, data)
	ref, refErr := t.ref.Dense(n, k, d, data)
	return twinWeight{gpu, ref}, errors.Join(err, refErr)
}

func (t twin) Trainable(w model.Trainable) (model.Weight, error) {
	original := w.Original.(twinWeight)
	w.Original = original.gpu
	gpu, err := t.Ops.Trainable(w)
	w.Original = original.ref
	ref, refErr := t.ref.Trainable(w)
	return twinWeight{gpu, ref}, errors.Join(err, refErr)
}

func (t twin) FreeWeight(w model.Weight) { t.Ops.FreeWeight(w.(twinWeight).gpu) }

// ---- there ----

func (t twin) Embed(h model.Array, tokens []int, w model.Weight, scale float32) {
	t.Ops.Embed(device(h), tokens, w.(twinWeight).gpu, scale)
	t.follow(h)
}

func (t twin) RMSNorm(y, x, w model.Array, rows int, eps float64) {
	t.Ops.RMSNorm(device(y), device(x), device(w), rows, eps)
	t.follow(y)
}

func (t twin) Linear(x model.Array, rows int, to ...model.Product) {
	for _, p := range to {
		y := p.Y
		p.Y, p.W, p.Bias = device(y), p.W.(twinWeight).gpu, device(p.Bias)
		t.Ops.Linear(device(x), rows, p)
		t.follow(y)
	}
}

func (t twin) Attention(o, lse, q, k, v model.Array, s model.AttentionShape) {
	s.Sinks = device(s.Sinks)
	t.Ops.Attention(device(o), device(lse), device(q), device(k), device(v), s)
	t.follow(o, lse)
}

func (t twin) GLU(y, g, u model.Array, act arch.Gating) {
	t.Ops.GLU(device(y), device(g), device(u), act)
	t.follow(y)
}

func (t twin) Scale(x model.Array, by float32) {
	t.Ops.Scale(device(x), by)
	t.follow(x)
}

func (t twin) SoftCap(x model.Array, c float64) {
	t.Ops.SoftCap(device(x), c)
	t.follow(x)
}

func (t twin) AddTo(h, x model.Array) {
	t.Ops.AddTo(device(h), device(x))
	t.follow(h)
}

func (t twin) Gather(dst, src model.Array, rows []int, weights []float32) {
	t.Ops.Gather(device(dst), device(src), rows, weights)
	t.follow(dst)
}

func (t twin) Scatter(h, src model.Array, rows []int, weights []float32) {
	t.Ops.Scatter(device(h), device(src), rows, weights)
	t.follow(h)
}

func (t twin) NotFinite(x model.Array, rows, cols int) int {
	return t.Ops.NotFinite(device(x), rows, cols)
}

// ---- back ----

func (t twin) Rope(x model.Array, s model.RopeShape, cos, sin model.Array, back bool) {
	t.Ops.Rope(device(x), s, device(cos), device(sin), back)
	if back {
		t.ref.Rope(exact(x), s, exact(cos), exact(sin), back)
	} else {
		t.follow(x)
	}
}

func (t twin) CrossEntropy(loss, dlogits, logits model.Array, targets []int, vocab int, scale float32) {
	t.Ops.CrossEntropy(device(loss), device(dlogits), device(logits), targets, vocab, scale)
	t.ref.CrossEntropy(exact(loss), exact(dlogits), exact(logits), targets, vocab, scale)
}

func (t twin) Divergence(loss, dlogits, logits, teacher model.Array, rows, vocab int, scale float32) {
	t.Ops.Divergence(device(loss), device(dlogits), device(logits), device(teacher), rows, vocab, scale)
	t.ref.Divergence(exact(loss), exact(dlogits), exact(logits), exact(teacher), rows, vocab, scale)
}

func (t twin) RMSNormBack(dx, dy, x, w model.Array, rows int, eps float64, add bool) {
	t.Ops.RMSNormBack(device(dx), device(dy), device(x), device(w), rows, eps, add)
	t.ref.RMSNormBack(exact(dx), exact(dy), exact(x), exact(w), rows, eps, add)
}

func (t twin) LinearBack(dx, dy model.Array, rows int, w model.Weight, add bool) {
	t.Ops.LinearBack(device(dx), device(dy), rows, w.(twinWeight).gpu, add)
	t.ref.LinearBack(exact(dx), exact(dy), rows, w.(twinWeight).ref, add)
}

func (t twin) AttentionBack(dq, dk, dv, do, o, lse, q, k, v model.Array, s model.AttentionShape) {
	own := s
	own.Sinks = device(s.Sinks)
	s.Sinks = exact(s.Sinks)
	t.Ops.AttentionBack(device(dq), device(dk), device(dv), device(do), device(o), device(lse), device(q), device(k), device(v), own)
	t.ref.AttentionBack(exact(dq), exact(dk), exact(dv), exact(do), exact(o), exact(lse), exact(q), exact(k), exact(v), s)
}

func (t twin) GLUBack(dg, du, dy, g, u model.Array, act arch.Gating) {
	t.Ops.GLUBack(device(dg), device(du), device(dy), device(g), device(u), act)
	t.ref.GLUBack(exact(dg), exact(du), exact(dy), exact(g), exact(u), act)
}

func (t twin) SoftCapBack(dx, y model.Array, c float64) {
	t.Ops.SoftCapBack(device(dx), device(y), c)
	t.ref.SoftCapBack(exact(dx), exact(y), c)
}

func (t twin) SumHeads(y, x model.Array, s model.HeadsShape) {
	t.Ops.SumHeads(device(y), device(x), s)
	t.ref.SumHeads(exact(y), exact(x), s)
}

func (t twin) RowDots(dst, a, b model.Array, rows int) {
	t.Ops.RowDots(device(dst), device(a), device(b), rows)
	t.ref.RowDots(exact(dst), exact(a), exact(b), rows)
}

func (t twin) ScaleGrad(ds, dtable, dy, x model.Array, rows int, w model.Weight, lsq bool) {
	t.Ops.ScaleGrad(device(ds), device(dtable), device(dy), device(x), rows, w.(twinWeight).gpu, lsq)
	t.ref.ScaleGrad(exact(ds), exact(dtable), exact(dy), exact(x), rows, w.(twinWeight).ref, lsq)
}
