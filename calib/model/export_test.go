package model

import "github.com/lutq/lutq/formats/hf"

// Files returns the checkpoint behind a source.
func (c *Checkpoint) Files() *hf.Checkpoint { return c.ckpt }

// SetLossRows sets the number of positions whose logits exist at a time.
func (m *Model) SetLossRows(n int) { m.lossRows = n }

// Routers returns the weights of the routers, by the paths of their blocks.
func (m *Model) Routers() map[string]Weight {
	all := make(map[string]Weight)
	for i := range m.layers {
		if d := m.layers[i].moe; d != nil {
			all[m.desc.Blocks[i].Path] = d.router.w
		}
	}
	return all
}

// Gated returns what the last layer of an MLP reads, given what its first ones do.
func (m *Model) Gated(block, mlp int, states []float32) []float32 {
	rows := len(states) / m.desc.Hidden
	if rows == 0 {
		return nil
	}
	x := m.ops.Acts(len(states))
	m.ops.Write(x, states)
	mid := m.gated(x, m.newActivations(rows), m.layers[block].mlps()[mlp], rows)
	v := make([]float32, mid.Len())
	m.ops.Read(v, mid)
	return v
}

// Route returns the tokens of each expert of a block, by what its router reads, and those that it would have besides if twice as
// many were chosen; and probabilities or scores [t, experts].
func (m *Model) Route(block int, states []float32) (tokens, next [][]int, probs []float64) {
	x := m.ops.Acts(len(states))
	defer m.ops.Free(x)
	m.ops.Write(x, states)
	r := m.route(x, len(states)/m.desc.Hidden, m.layers[block].moe)
	return r.tokens, r.next, r.probs
}
