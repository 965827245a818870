package marlin

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/lutq/lutq/formats/arch"
	"github.com/lutq/lutq/formats/foreign"
	"github.com/lutq/lutq/formats/hf"
	"github.com/lutq/lutq/formats/weight"
	"github.com/lutq/lutq/formats/weight/lut"
)

// Name implements [foreign.Target].
func (Layout) Name() string { return "marlin" }

// Advice says how to make a model whose layers fit.
func (Layout) Advice() string {
	return "--codebook q4 --group 128 --scale-type f16 has quantize make layers that fit, where their rows are a multiple of 256 and their columns of 128"
}

// Format implements [foreign.Target].
func (Layout) Format(m *foreign.Model) (foreign.Format, error) { return &output{OutputOf(m)}, nil }

// Output is what to write in MARLIN's layout and in Sparse-MARLIN's has in common: integers of 4 bits, with one size of
// groups for all layers.
type Output struct {
	model   *foreign.Model
	grouped bool // some layer has a scale for a part of a row
}

// OutputOf returns that for a model.
func OutputOf(m *foreign.Model) Output {
	return Output{m, slices.ContainsFunc(m.Layers, func(l *foreign.Layer) bool { return l.Group < l.K })}
}

// Columns returns the columns of a layer that share a scale, or 0 where there is no way.
func (o Output) Columns(l *foreign.Layer) int {
	if !o.grouped {
		return l.K
	}
	return foreign.FitGroup(l.Group, l.K, GroupSize)
}

// Fit implements [foreign.Format].
func (o Output) Fit(l *foreign.Layer, w *lut.Matrix) foreign.Fit {
	switch why := foreign.Single(l); {
	case why != "":
		return foreign.Fit{Why: why}
	case l.N%RowMultiple != 0 || l.K%ColMultiple != 0:
		return foreign.Fit{Why: fmt.Sprintf("it has %d rows and %d columns: want multiples of %d and %d", l.N, l.K, RowMultiple, ColMultiple)}
	case w == nil:
		return foreign.Fit{}
	case o.Columns(l) == 0:
		return foreign.Fit{Why: fmt.Sprintf("it has groups of %d columns: want %d, a multiple of that, or all", l.Group, GroupSize)}
	}
	m, ok := foreign.MatchTable(w.Codebook, foreign.Integers(4), true)
	if !ok {
		return foreign.Fit{Why: "its table is not one of integers of 4 bits, in equal steps from 0"}
	}
	return foreign.FitExactly(m, w, weight.F16)
}

// Anew implements [foreign.Format].
func (Output) Anew(*foreign.Layer) (lut.Format, error) {
	return lut.Format{}, errors.New("it takes layers only as they are")
}

// written is the quantization_config.
type written struct {
	Method  string `json:"quant_method"`
	Bits    int    `json:"bits"`
	Group   int    `json:"group_size"` // -1 is a row
	DescAct bool   `json:"desc_act"`
	Sym     bool   `json:"sym"`
	Head    bool   `json:"lm_head"`
	Format  string `json:"checkpoint_format"`
	Marlin  bool   `json:"is_marlin_format,omitempty"`
}

// WriteFolder writes the folder of a checkpoint that config.json calls of some format, and of MARLIN's own if it is.
func (o Output) WriteFolder(ctx context.Context, dir string, s foreign.Source, p foreign.Packer, format string, marlin bool) error {
	c := written{Method: "gptq", Bits: 4, Group: weight.RowGroup, Sym: true, Format: format, Marlin: marlin}
	if o.grouped {
		c.Group = GroupSize
	}
	c.Head = slices.ContainsFunc(o.model.Layers, func(l *foreign.Layer) bool { return l.Role == arch.HeadWeight })
	q, err := foreign.Indented(c)
	if err != nil {
		return err
	}
	file, err := foreign.JSON(c)
	if err != nil {
		return err
	}
	return foreign.WriteFolder(ctx, dir, s, p, foreign.Folder{
		Edits: []foreign.Member{{Key: "quantization_config", Value: q}},
		Files: map[string][]byte{"quantize_config.json": file},
	})
}

type output struct{ Output }

// Entries implements [foreign.Packer].
func (f *output) Entries(l *foreign.Layer) ([]hf.Entry, error) {
	return []hf.Entry{
		{Name: l.Name + ".B", DType: "I32", Shape: []int{l.K / TileCols, 2 * l.N}},
		{Name: l.Name + ".s", DType: hf.F16, Shape: []int{l.K / f.Columns(l), l.N}},
	}, nil
}

// Pack implements [foreign.Packer].
func (f *output) Pack(l *foreign.Layer, s foreign.Source) ([][]byte, error) {
	w, err := s.Matrix(l)
	if err != nil {
		return nil, err
	}
	m, ok := foreign.MatchTable(w.Codebook, foreign.Integers(4), true)
	if !ok {
		return nil, errors.New("has another table than before")
	}
	group := f.Columns(l)
	groups := w.K / group
	scales := foreign.Transpose(m.Scales(w, weight.F16, group), w.N, groups, weight.F16.Size())
	return [][]byte{
		Pack(w.N, w.K, place, func(dst []uint8, n int) { m.RowCodes(dst, w, n) }),
		Ordered(scales, scalePlaces(groups)),
	}, nil
}

// Write implements [foreign.Format].
func (f *output) Write(ctx context.Context, dir string, s foreign.Source) error {
	return f.WriteFolder(ctx, dir, s, f, "marlin", true)
}
