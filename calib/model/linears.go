package model

import (
	"fmt"
	"maps"
	"slices"
)

// Module paths below a decoder block that name linear layers.
const (
	qProj    = "self_attn.q_proj"
	kProj    = "self_attn.k_proj"
	vProj    = "self_attn.v_proj"
	oProj    = "self_attn.o_proj"
	gateProj = "mlp.gate_proj"
	upProj   = "mlp.up_proj"
	downProj = "mlp.down_proj"
)

// Module paths of the matrices outside of the blocks.
const (
	embedTokens = "model.embed_tokens"
	lmHead      = "lm_head"
)

// linears returns the linear layers of a block in order.
func (d *layer) linears() []*linear {
	return []*linear{&d.q, &d.k, &d.v, &d.o, &d.gate, &d.up, &d.down}
}

// linears returns the linear layers of the model in order: those of the blocks, and the
// output head where it is not the embedding.
func (m *Model) linears() []*linear {
	var all []*linear
	for i := range m.layers {
		all = append(all, m.layers[i].linears()...)
	}
	if !m.config.TieEmbeddings {
		all = append(all, &m.head)
	}
	return all
}

// Linears returns the module paths of the linear layers in order: those of the
// blocks, such as model.layers.0.self_attn.q_proj, and lm_head where it is not
// tied to the embedding.
func (m *Model) Linears() []string {
	var paths []string
	for _, l := range m.linears() {
		paths = append(paths, l.path)
	}
	return paths
}

// Weight returns the weight of a linear layer, nil where there is none of that
// path.
func (m *Model) Weight(path string) Weight {
	for _, l := range m.linears() {
		if l.path == path {
			return l.w
		}
	}
	return nil
}

// With returns a model with the weights of some linear layers replaced, by
// their module paths. It shares everything else with m, and ends when m is closed; the
// given weights stay the caller's. It has activations of its own, so that both can be run in turn.
func (m *Model) With(weights map[string]Weight) (*Model, error) {
	w := &Model{
		name: m.name, config: m.config, ops: m.ops,
		embed: m.embed, layers: slices.Clone(m.layers), norm: m.norm, head: m.head,
		rope: newRope(m.config), lossRows: m.lossRows,
	}
	if err := known(m, weights); err != nil {
		return nil, err
	}
	for _, l := range w.linears() {
		to, ok := weights[l.path]
		if !ok {
			continue
		}
		n, k := l.w.Shape()
		if gotN, gotK := to.Shape(); gotN != n || gotK != k {
			return nil, fmt.Errorf("%s: a weight of shape [%d, %d] for %s: want [%d, %d]", m.name, gotN, gotK, l.path, n, k)
		}
		l.w = to
	}
	return w, nil
}

// known refuses paths that name no linear layer of m.
func known[V any](m *Model, paths map[string]V) error {
	unknown := maps.Clone(paths)
	for _, l := range m.linears() {
		delete(unknown, l.path)
	}
	for path := range unknown {
		return fmt.Errorf("%s: no linear layer %s", m.name, path)
	}
	return nil
}
