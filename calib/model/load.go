package model

import (
	"fmt"
	"slices"

	"github.com/lutq/lutq/formats/arch"
	"github.com/lutq/lutq/formats/hf"
	"github.com/lutq/lutq/formats/num"
	"github.com/lutq/lutq/formats/weight"
	"github.com/lutq/lutq/formats/weight/lut"
)

// loader reads the parts of a model and remembers the first error.
type loader struct {
	src  Source
	take func(*arch.Stored) (rows, error) // reads a matrix or a stack
	ops  Ops
	own  *owned
	err  error

	headBits int // that the output head is quantized to; 0: it stays as it is

	// last is what was read last of each matrix or stack: the parts of one follow each other.
	last map[*arch.Stored]rows
}

// rows are those of which layers take theirs: of a packed matrix, which a stack of
// experts is one of, or of one matrix in dense data.
type rows struct {
	packed weight.Matrix
	layout lut.Layout // of the same, instead of packed

	dtype  hf.DType
	data   []byte // of all matrices
	expert int    // whose matrix this is:
	matrix []byte
}

func (l *loader) fail(err error) {
	if l.err == nil {
		l.err = err
	}
}

// model fills in the weights.
func (l *loader) model(m *Model) {
	d := m.desc
	l.last = make(map[*arch.Stored]rows)
	l.embeddings(m)
	m.tokens = l.tokenInputs(d)
	m.norm = l.lastNorm(d)
	shared := ropes(d)
	for _, r := range shared {
		m.ropes = append(m.ropes, r)
	}
	m.layers = make([]layer, len(d.Blocks))
	for i := range m.layers {
		l.layer(&m.layers[i], &d.Blocks[i], d.Hidden)
		if l.err != nil {
			return
		}
		m.layers[i].mixer.bind(shared)
	}
}

// layer reads a decoder block.
func (l *loader) layer(to *layer, b *arch.Block, hidden int) {
	l.frame(to, b, hidden)
	if l.err != nil {
		return
	}
	slots := to.linears()
	for i, from := range b.Linears() {
		*slots[i] = l.linear(from)
	}
}

// frame reads a decoder block but for its linear layers.
func (l *loader) frame(to *layer, b *arch.Block, hidden int) {
	l.last = make(map[*arch.Stored]rows)
	*to = layer{block: b, mixer: l.mixer(b.Mixer)}
	if !b.AttnNorm.None() {
		to.attnNorm = l.norm(&b.AttnNorm, hidden)
	}
	if !b.MLPNorm.None() {
		to.mlpNorm = l.norm(&b.MLPNorm, hidden)
	}
	if b.AttnOut != nil {
		to.attnOut = l.norm(b.AttnOut, hidden)
	}
	if b.MLPOut != nil {
		to.mlpOut = l.norm(b.MLPOut, hidden)
	}
	if b.Told != nil {
		to.told = &told{out: l.norm(&b.Told.Out, hidden)}
	}
	if b.Scale != "" {
		if v := l.floats(b.Scale, 1); l.err == nil {
			to.scale = &v[0]
		}
	}
	if b.MLP != nil {
		own := newMLP(b.MLP)
		to.mlp = &own
	}
	if b.MoE == nil {
		return
	}
	to.moe = &moe{desc: b.MoE, router: l.linear(b.MoE.Router)}
	for i := range b.MoE.Experts {
		to.moe.experts = append(to.moe.experts, newMLP(&b.MoE.Experts[i]))
	}
	if b.MoE.Routing.Correction != "" {
		to.moe.correction = l.floats(b.MoE.Routing.Correction, len(b.MoE.Experts))
	}
	if b.MoE.Shared != nil {
		own := newMLP(b.MoE.Shared)
		to.moe.shared = &own
	}
	if b.MoE.SharedGate != nil {
		to.moe.sharedGate = l.linear(b.MoE.SharedGate)
	}
	if b.MoE.Apart != nil {
		to.moe.apart = l.apart(b.MoE, hidden)
	}
}

// embeddings reads the token embedding and the output head.
func (l *loader) embeddings(m *Model) {
	s := l.embedding(m.desc)
	m.head = linear{name: s.Path, w: l.weight(s, 0, whole(s))}
	m.embed = m.head.w
	if !m.desc.Tied {
		s = m.desc.Head.Stored
	}
	if l.headBits > 0 {
		l.shrink(s, l.headBits)
	}
	some := m.division.head(m.desc.Vocab)
	switch {
	case !m.desc.Tied:
		own := *m.desc.Head
		own.N, own.Row = some.n, some.first
		m.head = l.linear(&own)
	case l.headBits > 0 || some.n < s.N:
		m.head.w = l.weight(s, 0, some)
	}
}

// embedding returns the token embedding. Where the output head is tied to it, the one matrix may
// lie under either name.
func (l *loader) embedding(d *arch.Decoder) *arch.Stored {
	s := &arch.Stored{Path: d.Embed, Tensor: d.Embed + ".weight", N: d.Vocab, K: d.Hidden}
	if d.Tied && !l.has(s) && l.has(d.Head.Stored) {
		return d.Head.Stored
	}
	return s
}

// part says which rows of a stored matrix a layer has: n from first, step apart.
type part struct{ n, first, step int }

func whole(s *arch.Stored) part { return part{s.N, 0, 1} }

// has reports whether a matrix is there, dense or quantized.
func (l *loader) has(s *arch.Stored) bool {
	if _, ok := l.src.Tensor(s.Tensor); ok {
		return true
	}
	q, err := l.src.Quantized(s.Path)
	if err != nil {
		l.fail(err)
	}
	return q != nil
}

func (l *loader) linear(from *arch.Linear) linear {
	s, p := from.Stored, part{from.N, from.Row, from.Step}
	lin := linear{name: from.Name, w: l.weight(s, from.Expert, p)}
	if s.Bias != "" {
		lin.bias = l.bias(s, from.Expert, p)
	}
	if from.Whole() { // of which no other layer takes a part
		delete(l.last, s)
	}
	return lin
}

// bias reads the elements of a bias that belong to some rows of a matrix.
func (l *loader) bias(s *arch.Stored, expert int, p part) Array {
	shape := []int{s.N}
	if s.Experts > 0 {
		shape = []int{s.Experts, s.N}
	}
	all := l.floats(s.Bias, shape...)
	if l.err != nil {
		return nil
	}
	v := make([]float32, p.n)
	for i := range v {
		v[i] = all[expert*s.N+p.first+i*p.step]
	}
	return l.upload(v)
}

// weight reads some rows of a matrix in the form in which they are stored.
func (l *loader) weight(s *arch.Stored, expert int, p part) Weight {
	r := l.rows(s, expert)
	if l.err != nil {
		return nil
	}
	var w Weight
	var err error
	if r.layout != nil && p.n != s.Matrices()*s.N { // single rows are those of the canonical form
		var m *lut.Matrix
		if m, err = r.layout.Matrix(); err == nil {
			r.packed, r.layout = m, nil
			l.last[s] = r
		}
	}
	switch {
	case err != nil:
	case r.layout != nil:
		w, err = l.ops.Layout(r.layout)
	case r.packed == nil:
		w, err = l.ops.Dense(p.n, s.K, r.dtype, p.of(r.matrix, s.N))
	case p.n == s.Matrices()*s.N:
		w, err = l.ops.Packed(r.packed)
	default:
		w, err = l.ops.Packed(r.packed.Rows(expert*s.N+p.first, p.step, p.n))
	}
	if err != nil {
		l.fail(fmt.Errorf("%s: %s: %w", l.src.Name(), s.Path, err))
		return nil
	}
	if r.packed != nil && !l.ops.Multiplies(r.packed.Kind()) && !slices.Contains(l.own.unpacked, r.packed.Kind()) {
		l.own.unpacked = append(l.own.unpacked, r.packed.Kind())
	}
	l.own.weights = append(l.own.weights, w)
	return w
}

// of returns a part of n rows of data.
func (p part) of(data []byte, n int) []byte {
	size := len(data) / n
	if p.step == 1 {
		return data[p.first*size : (p.first+p.n)*size : (p.first+p.n)*size]
	}
	out := make([]byte, 0, p.n*size)
	for i := range p.n {
		at := (p.first + i*p.step) * size
		out = append(out, data[at:at+size]...)
	}
	return out
}

// rows reads what is stored, and of a stack turns to one expert's matrix.
func (l *loader) rows(s *arch.Stored, expert int) rows {
	if l.err != nil {
		return rows{}
	}
	r, ok := l.last[s]
	if !ok {
		var err error
		if r, err = l.take(s); err != nil {
			l.fail(err)
			return rows{}
		}
	}
	if r.data != nil && (r.matrix == nil || r.expert != expert) {
		size := len(r.data) / s.Matrices()
		r.expert, r.matrix = expert, r.data[expert*size:(expert+1)*size:(expert+1)*size]
		if s.Transposed {
			r.matrix = transpose(r.matrix, s.K, s.N)
		}
	}
	l.last[s] = r
	return r
}

// transpose returns the rows of the columns of a matrix of n rows of k elements.
func transpose(data []byte, n, k int) []byte {
	out := make([]byte, len(data))
	size := len(data) / (n * k)
	for i := range n {
		for j := range k {
			copy(out[(j*n+i)*size:(j*n+i+1)*size], data[(i*k+j)*size:])
		}
	}
	return out
}

// norm reads the factors of a norm.
func (l *loader) norm(n *arch.Norm, width int) Array { return l.vector(n.Tensor, n.Offset, width) }

// lastNorm reads the factors of the norm before the output head, which take the scale of logits as well.
func (l *loader) lastNorm(d *arch.Decoder) Array {
	v := l.floats(d.Norm.Tensor, d.Hidden)
	if l.err != nil {
		return nil
	}
	for i := range v {
		v[i] = (v[i] + d.Norm.Offset) * float32(d.LogitScale)
	}
	return l.upload(v)
}

// vector reads n numbers as floats and adds an offset to each.
func (l *loader) vector(name string, offset float32, n int) Array {
	v := l.floats(name, n)
	if l.err != nil {
		return nil
	}
	for i := range v {
		v[i] += offset
	}
	return l.upload(v)
}

func (l *loader) upload(v []float32) Array {
	a := l.ops.Floats(len(v))
	l.ops.Write(a, v)
	l.own.arrays = append(l.own.arrays, a)
	return a
}

// floats reads a tensor's elements.
func (l *loader) floats(name string, shape ...int) []float32 {
	if l.err != nil {
		return nil
	}
	dtype, data, err := numbers(l.src, name, shape...)
	if err != nil {
		l.fail(err)
		return nil
	}
	v := make([]float32, len(data)*8/dtype.Bits())
	decode(dtype, v, data)
	return v
}

// layoutSource is a source that has some layers as the device's kernels read them.
type layoutSource interface {
	Layout(layer string) (lut.Layout, error)
}

// stored reads all that is stored as s.
func stored(src Source, s *arch.Stored) (r rows, err error) {
	if ls, ok := src.(layoutSource); ok {
		switch l, err := ls.Layout(s.Path); {
		case err != nil:
			return r, err
		case l != nil:
			n, k := l.Shape()
			return rows{layout: l}, wantShape(src, s, n, k)
		}
	}
	q, err := src.Quantized(s.Path)
	switch {
	case err != nil:
		return r, fmt.Errorf("%s: %w", src.Name(), err)
	case q == nil:
		dtype, data, err := numbers(src, s.Tensor, s.Shape()...)
		return rows{dtype: dtype, data: data}, err
	}
	n, k := q.Shape()
	return rows{packed: q}, wantShape(src, s, n, k)
}

// wantShape fails where a quantized matrix is not that of the description.
func wantShape(src Source, s *arch.Stored, n, k int) error {
	if want := s.Matrices() * s.N; n != want || k != s.K {
		return fmt.Errorf("%s: quantized %s has shape [%d, %d]: want [%d, %d]", src.Name(), s.Path, n, k, want, s.K)
	}
	return nil
}

// numbers finds a tensor of the given shape and reads its numbers, all of them finite, in the type that they are
// multiplied in: that of the tensor, or F32 for F64.
func numbers(src Source, name string, shape ...int) (hf.DType, []byte, error) {
	t, ok := src.Tensor(name)
	if !ok {
		return "", nil, fmt.Errorf("%s: no tensor %s", src.Name(), name)
	}
	fail := func(err error) (hf.DType, []byte, error) {
		return "", nil, fmt.Errorf("%s: %s in %s: %w", src.Name(), t.Name, t.Shard, err)
	}
	switch t.DType {
	case hf.F64, hf.F32, hf.F16, hf.BF16:
	default:
		return fail(fmt.Errorf("type %s: want F64, F32, F16 or BF16", t.DType))
	}
	if !slices.Equal(t.Shape, shape) {
		return fail(fmt.Errorf("shape %v: want %v", t.Shape, shape))
	}
	data, err := src.Read(t)
	if err != nil {
		return fail(err)
	}
	dtype := t.DType
	if dtype == hf.F64 {
		v := make([]float32, t.Elements())
		num.DecodeF64(v, data)
		dtype, data = hf.F32, make([]byte, 4*len(v)) // what was read is still being checked
		num.EncodeF32(data, v)
	}
	if i := dtype.FirstNotFinite(data); i >= 0 {
		return fail(fmt.Errorf("element %d is NaN or infinite", i))
	}
	return dtype, data, nil
}
