package lutq

import (
	"bytes"
	"fmt"
	"maps"
	"slices"

	"github.com/lutq/lutq/formats/weight/trellis"
)

// Tables are the tables of pairs that are built in, by the bits of a weight in words, as P.pairs are stored. A container has
// those that its layers of the kind trellis may need, so that it says what it means by itself.
type Tables map[string][]byte

// tables returns those that the layers may need, nil for none.
func (c *Config) tables() (Tables, error) {
	tables := make(Tables)
	for _, name := range slices.Sorted(maps.Keys(c.Tensors)) {
		s := c.spec(c.Tensors[name].Spec)
		if s.Kind != trellis.Name || s.Codebook != trellis.Pairs || tables[s.Width()] != nil {
			continue
		}
		code, err := trellis.NewCode(s.Codebook, s.Rate())
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		tables[s.Width()] = trellis.EncodeTable(code.Table)
	}
	if len(tables) == 0 {
		return nil, nil
	}
	return tables, nil
}

// checkTables holds the tables against those that are built in.
func (c *Config) checkTables() error {
	want, err := c.tables()
	if err != nil {
		return err
	}
	for _, width := range slices.Sorted(maps.Keys(want)) {
		switch got, ok := c.Tables[width]; {
		case !ok:
			return fmt.Errorf("tables has none for %s bits", width)
		case !bytes.Equal(got, want[width]):
			return fmt.Errorf("the table for %s bits is not the one that this lutq has", width)
		}
	}
	return nil
}
