package marlin24

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/lutq/lutq/formats/arch"
	"github.com/lutq/lutq/formats/hf"
	"github.com/lutq/lutq/formats/target"
	"github.com/lutq/lutq/quantize/lut"
	"github.com/lutq/lutq/quantize/lut24"
	"github.com/lutq/lutq/quantize/weight"
)

// Name implements [target.Target].
func (Layout) Name() string { return "marlin24" }

// Advice says how to make a model whose layers fit.
func (Layout) Advice() string {
	return "--method sparsegpt --codebook q4 --group 128 --scale-type f16 has quantize make layers that fit, where their rows are a multiple of 256 and their columns of 128; repack --to lut24 makes them of zeros"
}

// Format implements [target.Target].
func (Layout) Format(m *target.Model) (target.Format, error) {
	// The kernel takes one size of groups for all layers.
	grouped := slices.ContainsFunc(m.Layers, func(l *target.Layer) bool { return l.Group < l.K })
	return &output{model: m, grouped: grouped}, nil
}

type output struct {
	model   *target.Model
	grouped bool // some layer has a scale for a part of a row
}

// columns returns the columns of a layer that share a scale, or 0 where there is no way.
func (f *output) columns(l *target.Layer) int {
	if !f.grouped {
		return l.K
	}
	return target.FitGroup(l.Group, l.K, groupSize)
}

// Fit implements [target.Format].
func (f *output) Fit(l *target.Layer, w *lut.Matrix) target.Fit {
	switch why := target.Single(l); {
	case why != "":
		return target.Fit{Why: why}
	case l.Stored.Kind != lut24.Name:
		return target.Fit{Why: "it is of kind " + l.Stored.Kind + ": want " + lut24.Name}
	case l.N%rowMultiple != 0 || l.K%colMultiple != 0:
		return target.Fit{Why: fmt.Sprintf("it has %d rows and %d columns: want multiples of %d and %d", l.N, l.K, rowMultiple, colMultiple)}
	case w == nil:
		return target.Fit{}
	case f.columns(l) == 0:
		return target.Fit{Why: fmt.Sprintf("it has groups of %d columns: want %d, a multiple of that, or all", l.Group, groupSize)}
	}
	m, ok := target.MatchTable(w.Codebook, target.Integers(4), true)
	if !ok {
		return target.Fit{Why: "its table is not one of integers of 4 bits, in equal steps from 0"}
	}
	return target.FitExactly(m, w, weight.F16)
}

// Anew implements [target.Format].
func (*output) Anew(*target.Layer) (lut.Options, error) {
	return lut.Options{}, errors.New("it takes layers only as they are")
}

// Entries implements [target.Packer].
func (f *output) Entries(l *target.Layer) ([]hf.Entry, error) {
	return []hf.Entry{
		{Name: l.Name + ".B_24", DType: "I32", Shape: []int{l.K / 2 / tileCols, 2 * l.N}},
		{Name: l.Name + ".B_meta", DType: "I16", Shape: []int{l.K / 2 / tileCols, 2 * l.N}},
		{Name: l.Name + ".s", DType: hf.F16, Shape: []int{l.K / f.columns(l), l.N}},
	}, nil
}

// Pack implements [target.Packer].
func (f *output) Pack(l *target.Layer, s target.Source) ([][]byte, error) {
	w, err := s.Weights(l)
	if err != nil {
		return nil, err
	}
	sparse, ok := w.(*lut24.Matrix)
	if !ok {
		return nil, errors.New("is of another kind than before")
	}
	kept := sparse.Kept
	m, ok := target.MatchTable(kept.Codebook, target.Integers(4), true)
	if !ok {
		return nil, errors.New("has another table than before")
	}
	group := f.columns(l)
	groups := l.K / group
	scales := target.Transpose(m.Scales(kept, weight.F16, group/2), l.N, groups, weight.F16.Size())
	return [][]byte{
		pack(l.N, kept.K, func(dst []uint8, n int) { m.RowCodes(dst, kept, n) }),
		packMeta(l.N, l.K, sparse.RowPattern),
		ordered(scales, groups),
	}, nil
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
}

// Write implements [target.Format].
func (f *output) Write(ctx context.Context, dir string, s target.Source) error {
	c := written{Method: "gptq", Bits: 4, Group: weight.RowGroup, Sym: true, Format: checkpointFormat}
	if f.grouped {
		c.Group = groupSize
	}
	c.Head = slices.ContainsFunc(f.model.Layers, func(l *target.Layer) bool { return l.Role == arch.HeadWeight })
	q, err := target.Indented(c)
	if err != nil {
		return err
	}
	file, err := target.JSON(c)
	if err != nil {
		return err
	}
	return target.WriteFolder(ctx, dir, s, f, target.Folder{
		Edits: []target.Member{{Key: "quantization_config", Value: q}},
		Files: map[string][]byte{"quantize_config.json": file},
	})
}
