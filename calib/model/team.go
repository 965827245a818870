package model

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/lutq/lutq/formats/arch"
	"github.com/lutq/lutq/formats/hf"
	"github.com/lutq/lutq/formats/source"
	"github.com/lutq/lutq/formats/weight"
	"github.com/lutq/lutq/formats/weight/lut"
)

// Peer are operations of one of several devices that have a part of a model each. All ask for the same sums in the same order, each from a
// goroutine of its own, and the sums have the same bits on all.
type Peer interface {
	Ops
	// AddUp makes x, acts or floats, the sum of what it is on all devices.
	AddUp(x Array)
	// Collect writes rows of x, floats, of all devices beside each other, in the order of parts, to rows of y on each.
	Collect(y, x Array, rows int)
}

// team is the parts of a model, on the first of them.
type team struct {
	parts []*Model
	desc  *arch.Decoder // of the whole
}

// OpenDivided is [Open] of a model that several devices have a part of each, see [arch.Divide]. Its methods are those of the first part,
// in whose arrays results are, and do their part on all devices. Windows are neither scored nor learned from.
func OpenDivided(from *source.Model, on []Peer, o OpenOptions) (*Model, error) {
	var sources []Source
	var ends []func() error
	whole, err := from.Decoder()
	for rank := range on {
		if err != nil {
			break
		}
		var src Source
		var done func() error
		if src, done, err = sourceOf(from, nil); err == nil { // layouts are of whole matrices
			ends = append(ends, done)
			src, err = Divide(src, rank, len(on))
			sources = append(sources, src)
		}
	}
	var m *Model
	if err == nil {
		m, err = NewDivided(whole, sources, on, o.HeadBits)
	}
	for _, done := range ends {
		err = errors.Join(err, done())
	}
	if err != nil {
		if m != nil {
			m.Close()
		}
		return nil, err
	}
	return m, nil
}

// NewDivided makes a model, described as a whole, of the sources of its parts, each of which describes its part as [arch.Divide] does.
func NewDivided(whole *arch.Decoder, parts []Source, on []Peer, headBits int) (*Model, error) {
	t := &team{parts: make([]*Model, len(parts)), desc: whole}
	err := together(len(parts), func(rank int) (err error) {
		t.parts[rank], err = buildPart(parts[rank], on[rank], headBits, &division{on[rank], rank, len(parts)})
		return err
	})
	if err != nil {
		for _, m := range t.parts {
			if m != nil {
				m.Close()
			}
		}
		return nil, err
	}
	t.parts[0].team = t
	return t.parts[0], nil
}

// division is what a part knows of the others.
type division struct {
	Peer
	rank, of int
}

// head returns which rows of the output head a part has: all, where they are not as many for each.
func (d *division) head(vocab int) part {
	if d == nil || vocab%d.of != 0 {
		return part{vocab, 0, 1}
	}
	return part{vocab / d.of, d.rank * (vocab / d.of), 1}
}

// ErrPeer is in the error of operations that another device has failed.
var ErrPeer = errors.New("another device has failed")

// together runs f for each of n parts, beside each other, and returns the first error, of those that say why one has failed.
func together(n int, f func(i int) error) error {
	if n == 1 {
		return f(0)
	}
	errs := make([]error, n)
	var wait sync.WaitGroup
	for i := range n {
		wait.Go(func() { errs[i] = f(i) })
	}
	wait.Wait()
	for _, err := range errs {
		if err != nil && !errors.Is(err, ErrPeer) {
			return err
		}
	}
	return cmp.Or(errs...)
}

// all returns the parts of a model, which may be one.
func (m *Model) all() []*Model {
	if m.team == nil {
		return []*Model{m}
	}
	return m.team.parts
}

// all returns a cache's parts.
func (c *Cache) all() []*Cache {
	if c.parts == nil {
		return []*Cache{c}
	}
	return c.parts
}

// agreed returns what several parts may go by, which all have to end a step at the same place: a context that was not done when they
// began, and then is not.
func agreed(ctx context.Context, parts int) (context.Context, error) {
	if parts == 1 {
		return ctx, nil
	}
	return context.WithoutCancel(ctx), ctx.Err()
}

// sum adds up x over all parts of a divided model.
func (m *Model) sum(x Array) {
	if m.division != nil {
		m.division.AddUp(x)
	}
}

// headRoom allocates what a part of the output head makes of rows, nil where the head is whole.
func (m *Model) headRoom(rows int) Array {
	if p := m.division.head(m.desc.Vocab); p.n < m.desc.Vocab {
		return m.ops.Floats(rows * p.n)
	}
	return nil
}

// LogitsOf applies the output head to rows of the states that [Model.Hidden] or [Cache.Continue] has left last, from the first row on, and
// writes floats [rows, Vocab].
func (m *Model) LogitsOf(dst Array, first, rows int) error {
	hidden := m.desc.Hidden
	if first < 0 || rows < 0 || first+rows > m.scratch.tokens || dst.Len() < rows*m.desc.Vocab {
		return fmt.Errorf("%d rows of logits from row %d: got room for %d", rows, first, dst.Len()/m.desc.Vocab)
	}
	parts := m.all()
	return together(len(parts), func(i int) error {
		p, to := parts[i], dst
		h := p.scratch.n.Slice(first*hidden, (first+rows)*hidden)
		if i > 0 { // where nobody reads them
			to = room(p.ops, &p.unread, rows*p.desc.Vocab, p.ops.Floats)
		}
		if p.some == nil || p.some.Len() < rows*p.division.head(p.desc.Vocab).n {
			p.ops.Free(p.some)
			p.some = p.headRoom(rows)
		}
		p.logits(to.Slice(0, rows*p.desc.Vocab), p.some, h, rows)
		return p.ops.Err()
	})
}

// Divide returns the source of one of several parts of a model.
func Divide(src Source, rank, of int) (Source, error) {
	p, err := arch.Divide(src.Decoder(), rank, of)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", src.Name(), err)
	}
	return &partSource{Source: src, part: p, tensors: make(map[string]*hf.Tensor)}, nil
}

// partSource is a source of shares of matrices and tensors.
type partSource struct {
	Source
	part *arch.Part

	mu      sync.Mutex
	tensors map[string]*hf.Tensor // that have a share of another
}

// Decoder implements [Source].
func (p *partSource) Decoder() *arch.Decoder { return p.part.Decoder }

// Tensor implements [Source].
func (p *partSource) Tensor(name string) (*hf.Tensor, bool) {
	t, ok := p.Source.Tensor(name)
	share, some := p.part.Shares[name]
	if !ok || !some || share.Axis >= len(t.Shape) || share.To > t.Shape[share.Axis] {
		return t, ok // of another shape than the description's, which is told where it is read
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if own := p.tensors[name]; own != nil {
		return own, true
	}
	shape := append([]int(nil), t.Shape...)
	shape[share.Axis] = share.To - share.From
	own, err := hf.NewTensor(name, t.DType, shape...)
	if err != nil {
		return t, ok
	}
	own.Shard = t.Shard
	p.tensors[name] = own
	return own, true
}

// Read implements [Source].
func (p *partSource) Read(t *hf.Tensor) ([]byte, error) {
	p.mu.Lock()
	own := p.tensors[t.Name] == t
	p.mu.Unlock()
	if !own {
		return p.Source.Read(t)
	}
	whole, _ := p.Source.Tensor(t.Name)
	data, err := p.Source.Read(whole)
	if err != nil {
		return nil, err
	}
	share := p.part.Shares[t.Name]
	rows := 1
	if share.Axis == 1 {
		rows = whole.Shape[0]
	}
	row := len(data) / rows
	each := row / whole.Shape[share.Axis]
	out := make([]byte, 0, t.Bytes())
	for i := range rows {
		out = append(out, data[i*row+share.From*each:i*row+share.To*each]...)
	}
	return out, nil
}

// Quantized implements [Source].
func (p *partSource) Quantized(layer string) (weight.Matrix, error) {
	m, err := p.Source.Quantized(layer)
	share, some := p.part.Shares[layer]
	if m == nil || err != nil || !some {
		return m, err
	}
	n, k := m.Shape()
	if share.To > []int{n, k}[share.Axis] {
		return m, nil // likewise
	}
	if share.Axis == 0 {
		return m.Rows(share.From, 1, share.To-share.From), nil
	}
	if t, ok := m.(*lut.Matrix); ok {
		c, err := t.Columns(share.From, share.To)
		if err != nil {
			return nil, fmt.Errorf("%s: a part of %d: %w", layer, p.part.Of, err)
		}
		return c, nil
	}
	return &someColumns{m, share.From, share.To}, nil
}

// someColumns are those of a matrix of a kind that is not divided as it is packed: it is multiplied by as numbers.
type someColumns struct {
	weight.Matrix
	from, to int
}

// Kind implements [weight.Matrix].
func (c *someColumns) Kind() string { return c.Matrix.Kind() + " in part" }

// Shape implements [weight.Matrix].
func (c *someColumns) Shape() (n, k int) {
	n, _ = c.Matrix.Shape()
	return n, c.to - c.from
}

// Row implements [weight.Matrix].
func (c *someColumns) Row(dst []float32, n int) {
	_, k := c.Matrix.Shape()
	row := make([]float32, k)
	c.Matrix.Row(row, n)
	copy(dst, row[c.from:c.to])
}

// RowsTo implements [weight.Several].
func (c *someColumns) RowsTo(dst []float32, first, n int) {
	_, k := c.Matrix.Shape()
	rows, own := make([]float32, n*k), c.to-c.from
	weight.RowsTo(rows, c.Matrix, first, n)
	for i := range n {
		copy(dst[i*own:(i+1)*own], rows[i*k+c.from:])
	}
}

// Rows implements [weight.Matrix].
func (c *someColumns) Rows(first, step, n int) weight.Matrix {
	return &someColumns{c.Matrix.Rows(first, step, n), c.from, c.to}
}
