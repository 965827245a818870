package model

import (
	"fmt"
	"slices"

	"github.com/lutq/lutq/formats/arch"
)

// mixer is what a layer mixes the states of tokens by. A kind of its own is a file of its own, and a line in [loader.mixer].
type mixer interface {
	// linears returns the linear layers in the order of arch.Mixer's stages, the last of which adds to the residual stream.
	linears() []*linear
	// clone returns a mixer whose linear layers can be replaced.
	clone() mixer
	// bind takes rotary embeddings from those of a model.
	bind(ropes map[*arch.Rope]*rope)
	// in returns the weights that read the mixer's input.
	in() []Weight

	// reads returns what the layers of a stage read, see [arch.Mixer], of a window whose states are x after their norm: x for
	// the first stage. What the last one reads is at a.q, or where [Model.input] has it instead.
	reads(m *Model, a activations, x Array, stage int) Array
	// recall is reads of the last stage for rows x of a step, which follow texts that are kept in k.
	recall(m *Model, a activations, x Array, k kept, at Step, p places) Array

	// keep allocates what so many texts of so many tokens are kept as.
	keep(ops Ops, slots, positions int) kept
	// keeps is how many numbers of the device's type of activations that takes.
	keeps(slots, positions int) int64
}

// kept is what a layer keeps of texts.
type kept struct {
	slots, positions int
	arrays           []Array
	rows             *floats // room for where rows of a step stand, of attention to parts of texts
	chosen           *lazily // floats [rows, top], of what is chosen for rows of a step; nil: all is seen
	lent             bool    // whether it is another layer's
}

// lazily is an array that is made when it is needed, as long as it is needed.
type lazily struct{ array Array }

func (l *lazily) room(ops Ops, n int) Array { return room(ops, &l.array, n, ops.Floats) }

// out is the linear layer of a mixer that adds to the residual stream.
func (d *layer) out() *linear {
	all := d.mixer.linears()
	return all[len(all)-1]
}

// last is the stage of it.
func (d *layer) last() int { return len(d.block.Mixer.Stages()) - 1 }

// mixes and feeds report whether a layer has a mixer, and whether it has an MLP or a mixture.
func (d *layer) mixes() bool { return d.last() >= 0 }
func (d *layer) feeds() bool { return d.mlp != nil || d.moe != nil }

// nothing implements [mixer] of layers that have none: what reads and recalls is not asked for.
type nothing struct{}

func (nothing) linears() []*linear                                          { return nil }
func (nothing) clone() mixer                                                { return nothing{} }
func (nothing) bind(map[*arch.Rope]*rope)                                   {}
func (nothing) in() []Weight                                                { return nil }
func (nothing) reads(*Model, activations, Array, int) Array                 { return nil }
func (nothing) recall(*Model, activations, Array, kept, Step, places) Array { return nil }
func (nothing) keep(Ops, int, int) kept                                     { return kept{} }
func (nothing) keeps(int, int) int64                                        { return 0 }

// mixer reads a mixer but for its linear layers.
func (l *loader) mixer(from arch.Mixer) mixer {
	switch from := from.(type) {
	case *arch.Attention:
		return l.attention(from)
	case *arch.DeltaNet:
		return l.delta(from)
	case *arch.Latent:
		return l.latent(from)
	case *arch.ShortConv:
		return l.shortConv(from)
	case *arch.Mamba2:
		return l.mamba2(from)
	case arch.Nothing:
		return nothing{}
	}
	l.fail(fmt.Errorf("%s: no way to run a %T", l.src.Name(), from))
	return nil
}

// tokenRoom is what a mixer has room for on the way, for each token: activations, and floats.
type tokenRoom struct{ acts, floats int }

// roomOf returns the most that the mixers of a model take.
func roomOf(d *arch.Decoder) (most tokenRoom) {
	for i := range d.Blocks {
		var r tokenRoom
		switch from := d.Blocks[i].Mixer.(type) {
		case *arch.Attention:
			r = attentionRoom(from)
		case *arch.DeltaNet:
			r = deltaRoom(from)
		case *arch.Latent:
			r = latentRoom(from)
		case *arch.ShortConv:
			r = shortConvRoom(from)
		case *arch.Mamba2:
			r = mamba2Room(from)
		}
		most = tokenRoom{max(most.acts, r.acts), max(most.floats, r.floats)}
	}
	if d.Tokens != nil {
		most = tokenRoom{max(most.acts, 2*d.Tokens.Width), max(most.floats, besideWidth(d))}
	}
	return most
}

// taker hands out an array in parts.
type taker struct{ left Array }

func (t *taker) take(n int) Array {
	a := t.left.Slice(0, n)
	t.left = t.left.Slice(n, t.left.Len())
	return a
}

// trainRoom is how many activations of a token the mixers of a model have room for on the way back.
func trainRoom(d *arch.Decoder) (most int) {
	for i := range d.Blocks {
		if from, ok := d.Blocks[i].Mixer.(*arch.Latent); ok {
			most = max(most, latentTrainRoom(from))
		}
	}
	return most
}

// Learnable fails on models that have no gradients of their scales from windows of so many tokens.
func Learnable(d *arch.Decoder, tokens int) error {
	if top := topOf(d); top > 0 && tokens > top {
		return fmt.Errorf("scales cannot be learned from windows of %d tokens: attention sees %d of them, and which it chooses has no gradient", tokens, top)
	}
	for i := range d.Blocks {
		b := &d.Blocks[i]
		learns := false
		switch a := b.Mixer.(type) {
		case *arch.Attention:
			learns = !a.Gated && (a.V != nil || a.ValueEps > 0)
		case *arch.Latent:
			learns = true
		}
		if !learns {
			return fmt.Errorf("%s: scales cannot be learned: its way to mix tokens has no gradients", b.Path)
		}
		if len(b.MLPs()) == 0 || slices.ContainsFunc(b.MLPs(), func(m *arch.MLP) bool { return m.Gate == m.Up }) {
			return fmt.Errorf("%s: scales cannot be learned: its MLP has no gradients", b.Path)
		}
		if b.MoE != nil && b.MoE.Into != nil {
			return fmt.Errorf("%s: scales cannot be learned: what it adds has no gradients", b.Path)
		}
	}
	return nil
}
