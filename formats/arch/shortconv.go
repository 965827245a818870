package arch

import "fmt"

// ShortConv is a causal convolution of each channel over Width tokens between two gates, as LFM2 has it. Of the b, c and x, each as wide as
// a state, that In makes
//
//	Out · (c ∘ conv(b ∘ x))
type ShortConv struct {
	Channels, Width int
	In, Out         *Linear
	Conv            string // tensor [Channels, 1, Width]
	ConvBias        string // [Channels], or ""
}

// Stages implements [Mixer].
func (c *ShortConv) Stages() [][]*Linear { return [][]*Linear{{c.In}, {c.Out}} }

// Gates implements [Mixer]: it has none.
func (c *ShortConv) Gates() []*Linear { return nil }

// Ropes implements [Mixer]: it has none.
func (c *ShortConv) Ropes() []*Rope { return nil }

// Vectors implements [Mixer].
func (c *ShortConv) Vectors() []Vector {
	all := []Vector{{Tensor: c.Conv, Shape: []int{c.Channels, 1, c.Width}}}
	if c.ConvBias != "" {
		all = append(all, Vector{Tensor: c.ConvBias, Shape: []int{c.Channels}})
	}
	return all
}

// Kept implements [Mixer]: the last inputs of the convolution.
func (c *ShortConv) Kept(int) int { return c.Width * c.Channels }

// Forgets implements [Mixer].
func (c *ShortConv) Forgets() bool { return true }

// shortConv describes the short convolution of a block.
func (b *builder) shortConv(blk *Block, width int, bias bool) {
	p, h := blk.Path+".conv.", b.d.Hidden
	c := &ShortConv{
		Channels: h, Width: width, Conv: p + "conv.weight",
		In:  b.whole(b.matrix(p+"in_proj", 3*h, h, bias, LinearWeight), b.normed(p+"in", &blk.AttnNorm), SplitRows, ""),
		Out: b.whole(b.matrix(p+"out_proj", h, h, bias, LinearWeight), &State{Name: p + "out", Width: h}, SplitColumns, ""),
	}
	if bias {
		c.ConvBias = p + "conv.bias"
		b.d.roles[c.ConvBias] = BiasVector
	}
	blk.Mixer = c
}

// convolutionWidth reads how many tokens a convolution sees.
func (b *builder) convolutionWidth(key string, missing int) int {
	width := b.size(key, missing)
	if width > maxConvolution {
		b.fail(key, fmt.Errorf("%d: want at most %d", width, maxConvolution))
		return 1
	}
	return width
}
