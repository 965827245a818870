package gptq

import (
	"fmt"
	"slices"
	"testing"

	"github.com/lutq/lutq/formats/arch"
	"github.com/lutq/lutq/formats/foreign"
)

// layerOf returns a layer of integers.
func layerOf(name string, bits, group int) *foreign.Layer {
	l := &foreign.Layer{Name: name, N: 64, K: 256, Tensor: name + ".weight", Role: arch.LinearWeight, Bits: bits, Group: group}
	for i := range 1 << bits {
		l.Table = append(l.Table, float32(i-1<<(bits-1)))
	}
	return l
}

// kept returns a layer that is written in 16 or 32 bits.
func kept(name string) *foreign.Layer {
	l := layerOf(name, 4, 64)
	l.As = foreign.Dense
	return l
}

// TestNames: gptqmodel and vLLM look for a layer in dynamic, transformers among the packed layers or ends of their names.
func TestNames(t *testing.T) {
	for _, c := range []struct {
		name    string
		layers  []*foreign.Layer
		dynamic map[string]override
		packed  []string
		warns   int
	}{
		{
			"all alike",
			[]*foreign.Layer{layerOf("m.layers.0.a", 4, 64), layerOf("m.layers.1.a", 4, 64)},
			nil, nil, 0,
		},
		{
			"mixed", // of which transformers has no form, and nothing is to be named
			[]*foreign.Layer{layerOf("m.layers.0.a", 4, 64), layerOf("m.layers.1.a", 4, 64), layerOf("m.layers.1.b", 4, 256), layerOf("m.layers.1.c", 2, 64)},
			map[string]override{`+:^m\.layers\.1\.b$`: {4, 256}, `+:^m\.layers\.1\.c$`: {2, 64}},
			nil, 2,
		},
		{
			"a place is kept in each block",
			[]*foreign.Layer{layerOf("m.layers.0.x.a", 4, 64), kept("m.layers.0.x.b"), layerOf("m.layers.1.x.a", 4, 64), kept("m.layers.1.x.b")},
			map[string]override{`-:^m\.layers\.0\.x\.b$`: {}, `-:^m\.layers\.1\.x\.b$`: {}},
			[]string{"x.a"},
			0,
		},
		{
			"a place is kept in one block",
			[]*foreign.Layer{layerOf("m.layers.0.x.a", 4, 64), kept("m.layers.0.x.b"), layerOf("m.layers.1.x.a", 4, 64), layerOf("m.layers.1.x.b", 4, 64)},
			map[string]override{`-:^m\.layers\.0\.x\.b$`: {}},
			[]string{"x.a", "m.layers.1.x.b"},
			0,
		},
		{
			"the name of a kept layer has another's in it",
			[]*foreign.Layer{layerOf("m.layers.0.a", 4, 64), kept("m.layers.0.shared.a"), layerOf("m.layers.0.e.1.a", 4, 64)},
			map[string]override{`-:^m\.layers\.0\.shared\.a$`: {}},
			[]string{"m.layers.0.a", "e.1.a"},
			0,
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := &output{&foreign.Model{Layers: c.layers}}
			is := f.config()
			if fmt.Sprint(is.Dynamic) != fmt.Sprint(c.dynamic) {
				t.Errorf("dynamic %v: want %v", is.Dynamic, c.dynamic)
			}
			if !slices.Equal(slices.Concat(is.Modules...), c.packed) {
				t.Errorf("packed %v: want %v", is.Modules, c.packed)
			}
			if w := f.Warnings(); len(w) != c.warns {
				t.Errorf("warns of %q: want %d", w, c.warns)
			}
		})
	}
}
