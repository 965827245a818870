package quantize

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math"
	"os"
	"slices"

	"github.com/lutq/lutq/formats/input"
)

// tablesName is the file beside an output being built that says which tables were chosen so far.
const tablesName = "tables"

// streamTables chooses tables as the files of a source come. The blocks before are those that came before, as most models have
// them; what of these comes later is read all the same, which the source asks the server for.
type streamTables struct {
	*chooser
	blocks map[int]int
	path   string // of what an interrupted run goes on with
}

// chosenTables is how far tables are chosen. It is a JSON object.
type chosenTables struct {
	Next   int               `json:"next"`  // block
	Sizes  []float64         `json:"sizes"` // of the residual stream before it
	Tables map[string]string `json:"tables"`
}

// parseTables reads it.
func parseTables(data []byte, hidden, blocks int) (*chosenTables, error) {
	var t chosenTables
	if err := json.Unmarshal(data, &t); err != nil {
		return nil, err
	}
	if t.Next < 0 || t.Next > blocks+1 || len(t.Sizes) != hidden {
		return nil, fmt.Errorf("%d blocks and %d sizes, of a model with %d and %d", t.Next, len(t.Sizes), blocks, hidden)
	}
	return &t, nil
}

// streamTables goes on with what an interrupted run has chosen.
func (r *run) streamTables(path string) (*streamTables, error) {
	s := &streamTables{blocks: r.plan.blocks(), path: path}
	d := r.plan.names.model
	data, err := input.ReadFile(path, input.Journal)
	if d != nil && err == nil {
		if t, err := parseTables(data, d.Hidden, len(d.Blocks)); err == nil { // else it is chosen anew
			for i := range r.plan.Items {
				it := &r.plan.Items[i]
				if table, ok := t.Tables[it.Tensor.Name]; ok && it.undecided() && slices.Contains(autoTables(), table) {
					if err := it.use(table); err != nil {
						return nil, err
					}
				}
			}
			s.chooser = r.newChooser(func(*Item) bool { return true })
			s.z, s.next = &sizes{run: r, src: r.plan.Source, d: d, h: t.Sizes}, t.Next
			return s, nil
		}
	} else if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	s.chooser = r.newChooser(func(*Item) bool { return true })
	return s, nil
}

// choose chooses for items that can be done when a file has come.
func (s *streamTables) choose(ctx context.Context, shard string, items []int) error {
	if len(s.open) > 0 {
		// Rows of the embedding, which lie far from each other, are read while it is here.
		if t, ok := s.run.plan.Source.Tensor(s.run.plan.names.model.Embed + ".weight"); ok && t.Shard == shard {
			if err := s.begin(ctx); err != nil {
				return err
			}
		}
	}
	last := -1
	here := make(map[int]bool)
	var rest []*Item
	for _, i := range items {
		it := &s.run.plan.Items[i]
		b, ok := s.blocks[i]
		here[b] = here[b] || ok
		switch {
		case !it.undecided():
		case slices.Contains(s.rest, it):
			rest = append(rest, it)
		case ok:
			last = max(last, b)
		}
	}
	for b := s.next; here[b]; b++ { // where tables are named, later ones depend on it all the same
		last = max(last, b)
	}
	if last >= s.next && len(s.open) > 0 {
		if err := s.through(ctx, last); err != nil {
			return err
		}
		if err := s.keep(); err != nil {
			return err
		}
	}
	if len(rest) == 0 {
		return nil
	}
	sets := make(map[string]bool)
	for _, it := range rest {
		sets[s.run.plan.set(it)] = true
	}
	return s.others(ctx, slices.DeleteFunc(slices.Clone(s.rest), func(it *Item) bool { return !it.undecided() || !sets[s.run.plan.set(it)] }))
}

// keep writes how far tables are chosen. The file appears whole.
func (s *streamTables) keep() error {
	if slices.ContainsFunc(s.z.h, func(v float64) bool { return math.IsNaN(v) || math.IsInf(v, 0) }) {
		return nil // as the weights have it, which is found out when they are quantized
	}
	t := chosenTables{Next: s.next, Sizes: s.z.h, Tables: make(map[string]string)}
	for i := range s.run.plan.Items {
		if it := &s.run.plan.Items[i]; it.auto && !it.undecided() {
			t.Tables[it.Tensor.Name] = it.Format.Codebook
		}
	}
	data, err := json.Marshal(t)
	if err != nil {
		return err
	}
	if err := os.WriteFile(s.path+".new", data, 0o666); err != nil {
		return err
	}
	return os.Rename(s.path+".new", s.path)
}

// blockEnds returns the place of the last file that layers of a block lie in, of which a table is chosen by them, and that of the
// last block for the head. It is none where other layers that come between take more than the block, so that few blocks are kept at
// a time whatever the order of files.
func (p *Plan) blockEnds(place map[string]int) map[int]int {
	d := p.names.model
	if d == nil {
		return nil
	}
	bytes := make([]int64, len(place)) // of the tensors in a file
	for _, t := range p.Source.Tensors() {
		for _, part := range t.Parts() {
			bytes[place[part.Shard]] += part.Bytes()
		}
	}
	ends := make(map[int]int)
	for b := range d.Blocks {
		of := make(map[int]bool)
		var own, between int64
		for _, l := range d.Blocks[b].Linears() {
			if t, ok := p.Source.Tensor(l.Stored.Tensor); ok {
				own += t.StoredBytes()
				for _, part := range t.Parts() {
					of[place[part.Shard]] = true
				}
			}
		}
		files := slices.Sorted(maps.Keys(of))
		if len(files) == 0 {
			continue
		}
		last := files[len(files)-1]
		for at := files[0]; at < last; at++ {
			if !of[at] {
				between += bytes[at]
			}
		}
		if between <= own {
			ends[b] = last
		}
		ends[len(d.Blocks)] = max(ends[len(d.Blocks)], last)
	}
	return ends
}
