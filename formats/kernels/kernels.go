// Package kernels lists the layouts of weights that other programs' kernels read. Each is written and read back byte
// for byte.
//
// Package formats/export writes formats that whole programs open, and may round. A layout here takes a layer exactly as
// it is, or refuses it.
package kernels

import (
	"fmt"
	"strings"

	"github.com/lutq/lutq/formats/foreign"
	"github.com/lutq/lutq/formats/hf"
	"github.com/lutq/lutq/formats/kbit"
	"github.com/lutq/lutq/formats/lutgemm"
	"github.com/lutq/lutq/formats/marlin"
	"github.com/lutq/lutq/formats/marlin24"
)

// Layout is one of them: how a model is written in it, and how it is read.
type Layout interface {
	foreign.Target
	hf.Scheme
	// Advice says how to make a model whose layers fit.
	Advice() string
}

// All lists the layouts. A new one is a package and a line here.
func All() []Layout {
	return []Layout{
		marlin.Layout{},
		marlin24.Layout{},
		kbit.Flat(),
		kbit.Tiled(),
		lutgemm.Layout{},
	}
}

// Names lists what the layouts are called.
func Names() []string {
	var names []string
	for _, l := range All() {
		names = append(names, l.Name())
	}
	return names
}

// For returns the layout of a name.
func For(name string) (Layout, error) {
	for _, l := range All() {
		if l.Name() == name {
			return l, nil
		}
	}
	return nil, fmt.Errorf("unknown layout %q: want %s", name, strings.Join(Names(), ", "))
}
