package arch

import (
	"fmt"
	"math"
	"slices"
)

// Ends returns the tokens that end a text: those that the model's generation_config.json names, or where that is not there,
// and empty, those of the description. As in transformers the file counts alone, even if it names none.
func (d *Decoder) Ends(generation []byte) ([]int, error) {
	if len(generation) == 0 {
		return slices.Clone(d.EOS), nil
	}
	f, err := readFields(generation)
	var ends []int
	if err == nil {
		ends, err = f.tokens("eos_token_id"), f.err
	}
	if err != nil {
		return nil, fmt.Errorf("generation_config.json: %w", err)
	}
	return ends, nil
}

// tokens reads a token id, or a list of them; nil where there is none. Ids below 0, as some configurations have them, are of no token.
func (f *fields) tokens(key string) []int {
	var ids []int
	switch {
	case !f.has(key):
		return nil
	case f.values[key][0] == '[':
		ids = f.naturals(key)
	default:
		ids = []int{f.integer(key, math.MinInt32)}
	}
	return slices.DeleteFunc(ids, func(id int) bool { return id < 0 })
}
