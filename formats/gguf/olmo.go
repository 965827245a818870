package gguf

import (
	"errors"

	"github.com/lutq/lutq/formats/arch"
)

// olmo is OLMo 2, and OLMo 3, some of whose layers slide.
func olmo(name string) family {
	f := family{
		name: name, arch: "olmo2", pattern: true, head: true, kind: name,
		refuse: func(d *arch.Decoder) error {
			a, r := attention(d), ropesOf(d)
			switch {
			case a.Heads*a.Dim != d.Hidden:
				return errors.New("heads are not as wide together as the model: llama.cpp wants that in models of the architecture olmo2")
			case r.local != nil && r.local != r.global && (r.local.Type != "default" || r.local.Theta != r.global.Theta):
				return errors.New("layers with a window turn by another base, or are stretched: llama.cpp has none of that in models of the architecture olmo2")
			}
			return nil
		},
		modelType: "olmo2", class: "Olmo2ForCausalLM",
	}
	if name == "olmo3" {
		f.modelType, f.class, f.config = "olmo3", "Olmo3ForCausalLM", func(c *configReader) { c.layerTypes(4) }
	}
	return f
}
