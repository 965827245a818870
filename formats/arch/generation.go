package arch

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"

	"github.com/lutq/lutq/formats/input"
)

// Ends returns the tokens that end a text: those of the description, and what the folder's
// generation_config.json names besides, such as the end of a turn.
func (d *Decoder) Ends(dir string) ([]int, error) {
	ends := slices.Clone(d.EOS)
	path := filepath.Join(dir, "generation_config.json")
	text, err := input.ReadFile(path, input.Config)
	if errors.Is(err, fs.ErrNotExist) {
		return ends, nil
	}
	if err != nil {
		return nil, err
	}
	f, err := readFields(text)
	if err == nil {
		for _, id := range f.tokens("eos_token_id") {
			if !slices.Contains(ends, id) {
				ends = append(ends, id)
			}
		}
		err = f.err
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
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
