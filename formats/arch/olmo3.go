package arch

// olmo3 is OLMo 3: OLMo 2, of which three layers slide to one that sees all.
func olmo3() family {
	return family{
		name: "olmo3", architectures: []string{"Olmo3ForCausalLM"}, modelTypes: []string{"olmo3"},
		describe: func(b *builder) {
			b.olmo(5e5, func() []int {
				return b.windows(b.slidingOrNull(4096), func(layer int) bool { return (layer+1)%4 != 0 })
			})
		},
	}
}
