package arch

import (
	"cmp"
	"errors"
	"fmt"
)

// Part is what one of several GPUs computes of a decoder, as Megatron-LM divides it (arXiv 1909.08053): heads of attention and the features
// between the layers of an MLP are shared out, so that O and Down each make a part of what is added to the residual stream, and these are
// added up over all. The rest is the same on each.
type Part struct {
	// Decoder describes the part by itself, with matrices as large as its own.
	Decoder  *Decoder
	Rank, Of int
	// Shares are what it has of stored matrices, by module path, and of tensors, by name. It has all of others.
	Shares map[string]Share
}

// Share is the elements From to To, this one excluded, of axis 0, rows, or 1, columns.
type Share struct{ Axis, From, To int }

// Divide returns the part of a rank, of so many, or what is in the way.
func Divide(d *Decoder, rank, of int) (*Part, error) {
	p := &Part{Rank: rank, Of: of, Shares: make(map[string]Share)}
	own := *d
	own.Blocks = make([]Block, len(d.Blocks))
	p.Decoder = &own
	if of < 1 || rank < 0 || rank >= of {
		return nil, fmt.Errorf("part %d of %d", rank, of)
	}
	if d.Tokens != nil {
		return nil, errors.New("what its blocks are told of tokens is not divided among GPUs")
	}
	mixers := make(map[*Attention]*Attention)
	for i := range d.Blocks {
		var err error
		if own.Blocks[i], err = p.block(&d.Blocks[i], mixers); err != nil {
			return nil, fmt.Errorf("%s: %w", d.Blocks[i].Path, err)
		}
	}
	return p, nil
}

func (p *Part) block(from *Block, mixers map[*Attention]*Attention) (b Block, err error) {
	b = *from
	a := from.Attn()
	switch {
	case a == nil:
		return b, errors.New("only attention with keys and values of heads is divided among GPUs")
	case from.MoE != nil:
		return b, errors.New("mixtures of experts are not divided among GPUs")
	case from.Told != nil:
		return b, errors.New("what a block is told of tokens is not divided among GPUs")
	}
	if mixers[a], err = p.attention(a, mixers); err != nil {
		return b, err
	}
	b.Mixer = mixers[a]
	if from.MLP != nil {
		b.MLP, err = p.mlp(from.MLP)
	}
	return b, err
}

// even fails where n things are not as many for each.
func (p *Part) even(n int, what string) error {
	if n%p.Of != 0 {
		return fmt.Errorf("%d %s are not as many for each of %d GPUs", n, what, p.Of)
	}
	return nil
}

func (p *Part) attention(from *Attention, mixers map[*Attention]*Attention) (*Attention, error) {
	if err := cmp.Or(p.even(from.Heads, "heads"), p.even(from.KVHeads, "heads of keys and values")); err != nil {
		return nil, err
	}
	if from.NormWhole && from.QNorm != nil {
		return nil, errors.New("a norm of all heads at once is not divided among GPUs")
	}
	a := *from
	a.Heads, a.KVHeads = from.Heads/p.Of, from.KVHeads/p.Of
	if from.From != nil {
		a.From = mixers[from.From]
	}
	if from.Sinks != "" {
		p.Shares[from.Sinks] = Share{0, p.Rank * a.Heads, (p.Rank + 1) * a.Heads}
	}
	var errs [4]error
	a.Q, errs[0] = p.rows(from.Q)
	a.K, errs[1] = p.rows(from.K)
	a.V, errs[2] = p.rows(from.V)
	a.O, errs[3] = p.columns(from.O)
	return &a, cmp.Or(errs[:]...)
}

func (p *Part) mlp(from *MLP) (*MLP, error) {
	m := *from
	var errs [3]error
	m.Up, errs[0] = p.rows(from.Up)
	if m.Gate = m.Up; from.Gate != from.Up {
		m.Gate, errs[1] = p.rows(from.Gate)
	}
	m.Down, errs[2] = p.columns(from.Down)
	return &m, cmp.Or(errs[:]...)
}

// rows returns a layer's share of output features, nil of none.
func (p *Part) rows(from *Linear) (*Linear, error) {
	if from == nil {
		return nil, nil
	}
	if err := p.even(from.N, "rows of "+from.Name); err != nil {
		return nil, err
	}
	l := *from
	l.N = from.N / p.Of
	if !from.Whole() { // others have rows of the same
		l.Row += p.Rank * l.N * l.Step
		return &l, nil
	}
	s := *from.Stored
	s.N, l.Stored = l.N, &s
	share := Share{0, p.Rank * l.N, (p.Rank + 1) * l.N}
	p.Shares[s.Path], p.Shares[s.Tensor] = share, share
	if s.Bias != "" {
		p.Shares[s.Bias] = share
	}
	return &l, nil
}

// columns returns a layer's share of input features. The first has the bias, which is added once.
func (p *Part) columns(from *Linear) (*Linear, error) {
	if !from.Whole() {
		return nil, fmt.Errorf("%s, which is a part of a matrix, is not divided among GPUs", from.Name)
	}
	if err := p.even(from.K, "columns of "+from.Name); err != nil {
		return nil, err
	}
	l, s := *from, *from.Stored
	l.K = from.K / p.Of
	s.K, l.Stored = l.K, &s
	share := Share{1, p.Rank * l.K, (p.Rank + 1) * l.K}
	p.Shares[s.Path], p.Shares[s.Tensor] = share, share
	if p.Rank > 0 {
		s.Bias = ""
	}
	return &l, nil
}
