package model

import (
	"fmt"
	"maps"
	"slices"
)

// linears returns the linear layers of a block whose scales can be learned, in the order of
// arch.Block's.
func (d *layer) linears() []*linear {
	ls := d.mixer.linears()
	latent := d.moe != nil && d.moe.desc.Into != nil
	if latent {
		ls = append(ls, &d.moe.into)
	}
	for _, m := range d.mlps() {
		if !m.single {
			ls = append(ls, &m.gate)
		}
		ls = append(ls, &m.up, &m.down)
	}
	if latent {
		ls = append(ls, &d.moe.back)
	}
	if d.told != nil {
		ls = append(ls, &d.told.gate, &d.told.proj)
	}
	return ls
}

// mlps returns the MLPs of a block in the order of arch.Block's.
func (d *layer) mlps() []*mlp {
	if d.mlp != nil {
		return []*mlp{d.mlp}
	}
	if d.moe == nil {
		return nil
	}
	var all []*mlp
	for i := range d.moe.experts {
		all = append(all, &d.moe.experts[i])
	}
	if d.moe.shared != nil {
		all = append(all, d.moe.shared)
	}
	return all
}

// clone returns a layer whose linear layers can be replaced.
func (d *layer) clone() layer {
	c := *d
	c.mixer = d.mixer.clone()
	if d.mlp != nil {
		own := *d.mlp
		c.mlp = &own
	}
	if d.told != nil {
		own := *d.told
		c.told = &own
	}
	if d.moe != nil {
		own := *d.moe
		own.experts = slices.Clone(d.moe.experts)
		if d.moe.shared != nil {
			shared := *d.moe.shared
			own.shared = &shared
		}
		c.moe = &own
	}
	return c
}

// linears returns the linear layers of the model in order: those of the blocks, and the
// output head where it is not the embedding.
func (m *Model) linears() []*linear {
	var all []*linear
	for i := range m.layers {
		all = append(all, m.layers[i].linears()...)
	}
	if !m.desc.Tied {
		all = append(all, &m.head)
	}
	return all
}

// Linears returns the names of the linear layers in order, as the model's description has them: those of
// the blocks, such as model.layers.0.self_attn.q_proj, and lm_head where it is not
// tied to the embedding.
func (m *Model) Linears() []string {
	var names []string
	for _, l := range m.linears() {
		names = append(names, l.name)
	}
	return names
}

// Weight returns the weight of a linear layer, nil where there is none of that
// name.
func (m *Model) Weight(name string) Weight {
	for _, l := range m.linears() {
		if l.name == name {
			return l.w
		}
	}
	return nil
}

// With returns a model with the weights of some linear layers replaced, by
// their names. It shares everything else with m, and ends when m is closed; the
// given weights stay the caller's. It has activations of its own, so that both can be run in turn.
func (m *Model) With(weights map[string]Weight) (*Model, error) {
	w := &Model{name: m.name, desc: m.desc, ops: m.ops, embed: m.embed, tokens: m.tokens, norm: m.norm, head: m.head, lossRows: m.lossRows}
	shared := ropes(m.desc)
	for _, r := range shared {
		w.ropes = append(w.ropes, r)
	}
	for i := range m.layers {
		l := m.layers[i].clone()
		l.mixer.bind(shared)
		w.layers = append(w.layers, l)
	}
	if err := known(m, weights); err != nil {
		return nil, err
	}
	for _, l := range w.linears() {
		to, ok := weights[l.name]
		if !ok {
			continue
		}
		n, k := l.w.Shape()
		if gotN, gotK := to.Shape(); gotN != n || gotK != k {
			return nil, fmt.Errorf("%s: a weight of shape [%d, %d] for %s: want [%d, %d]", m.name, gotN, gotK, l.name, n, k)
		}
		l.w = to
	}
	return w, nil
}

// known refuses names of no linear layer of m.
func known[V any](m *Model, names map[string]V) error {
	unknown := maps.Clone(names)
	for _, l := range m.linears() {
		delete(unknown, l.name)
	}
	for name := range unknown {
		return fmt.Errorf("%s: no linear layer %s", m.name, name)
	}
	return nil
}
