package export

import (
	"fmt"
	"strings"

	"github.com/lutq/lutq/formats/awq"
	"github.com/lutq/lutq/formats/bnb"
	"github.com/lutq/lutq/formats/ct"
	"github.com/lutq/lutq/formats/dense"
	"github.com/lutq/lutq/formats/exl3"
	"github.com/lutq/lutq/formats/foreign"
	"github.com/lutq/lutq/formats/gguf"
	"github.com/lutq/lutq/formats/gptq"
	"github.com/lutq/lutq/formats/mlx"
)

// Targets lists the formats of other programs that there are. A new one is a package and a
// line here.
func Targets() []foreign.Target {
	return []foreign.Target{
		ct.Target{},
		bnb.Target{},
		gptq.Target{},
		awq.Target{},
		mlx.Target{},
		ct.NVFP4{},
		ct.MXFP4{},
		exl3.Target{},
		dense.Target{},
		gguf.Target{},
	}
}

// Names lists what the targets are called.
func Names() []string {
	var names []string
	for _, t := range Targets() {
		names = append(names, t.Name())
	}
	return names
}

// For returns the target of a name.
func For(name string) (foreign.Target, error) {
	for _, t := range Targets() {
		if t.Name() == name {
			return t, nil
		}
	}
	return nil, fmt.Errorf("unknown target %q: want %s", name, strings.Join(Names(), ", "))
}
