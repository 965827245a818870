package arch

import (
	"fmt"
	"slices"
)

// Ends returns the tokens that end a text: those of the description, and what the model's
// generation_config.json, unless it is empty, names besides, such as the end of a turn.
func (d *Decoder) Ends(generation []byte) ([]int, error) {
	ends := slices.Clone(d.EOS)
	if len(generation) == 0 {
		return ends, nil
	}
	f, err := readFields(generation)
	if err == nil {
		for _, id := range f.tokens("eos_token_id") {
			if !slices.Contains(ends, id) {
				ends = append(ends, id)
			}
		}
		err = f.err
	}
	if err != nil {
		return nil, fmt.Errorf("generation_config.json: %w", err)
	}
	return ends, nil
}

// tokens reads a token id, or a list of them; nil where there is none.
func (f *fields) tokens(key string) []int {
	switch {
	case !f.has(key):
		return nil
	case f.values[key][0] == '[':
		return f.naturals(key)
	}
	return []int{f.natural(key, 0)}
}
