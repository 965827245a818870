package model

import "github.com/lutq/lutq/formats/hf"

// widths are the numbers of columns of a decoder's activations.
func widths(c *hf.Config) (hidden, q, kv, inter int64) {
	return int64(c.HiddenSize), int64(c.Heads * c.HeadDim), int64(c.KVHeads * c.HeadDim), int64(c.IntermediateSize)
}

// GradientBytes returns about how many bytes the arrays of [Model.Gradient] take
// on the CPU for windows of t tokens, weights left out. A teacher has
// activations and logits of its own.
func GradientBytes(c *hf.Config, t int, teacher bool) int64 {
	hidden, q, kv, inter := widths(c)
	models := int64(1)
	logits := int64(3) // with their gradient, and that packed for the head's product
	if teacher {
		models, logits = 2, 4
	}
	forward := int64(t)*(2*hidden+q+2*kv) + int64(min(t, mlpRows))*2*inter
	back := int64(t) * (4*hidden + 3*q + 2*kv + 4*inter + int64(c.Layers)*hidden + int64(c.Heads))
	rows := min(int64(t), max(lossBytes/4/int64(c.VocabSize), 1))
	return 4 * (models*forward + back + logits*rows*int64(c.VocabSize))
}

// LossWork returns the multiplications, each with an addition, that
// [Model.Loss] takes for a window of t tokens, and GradientWork those of
// [Model.Gradient]: forward again, and the two products of a layer's gradient.
func LossWork(c *hf.Config, t int, teacher bool) float64 {
	linear, attention := work(c, t)
	head := float64(t) * float64(c.VocabSize) * float64(c.HiddenSize)
	if teacher {
		return 2 * (linear + attention + head)
	}
	return linear + attention + head
}

// GradientWork is described at [LossWork].
func GradientWork(c *hf.Config, t int, teacher bool) float64 {
	linear, attention := work(c, t)
	head := float64(t) * float64(c.VocabSize) * float64(c.HiddenSize)
	return LossWork(c, t, teacher) + 3*linear + 3.5*attention + head
}

// work returns the multiplications of a forward pass through the layers.
func work(c *hf.Config, t int) (linear, attention float64) {
	hidden, q, kv, inter := widths(c)
	perToken := c.Layers * int(hidden*(2*q+2*kv+3*inter))
	// A token sees half of the window on average, for scores and for values.
	return float64(t) * float64(perToken), float64(c.Layers) * float64(q) * float64(t) * float64(t)
}
