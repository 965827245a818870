package marlin24

import (
	"context"
	"errors"

	"github.com/lutq/lutq/formats/foreign"
	"github.com/lutq/lutq/formats/hf"
	"github.com/lutq/lutq/formats/marlin"
	"github.com/lutq/lutq/formats/weight"
	"github.com/lutq/lutq/formats/weight/lut"
	"github.com/lutq/lutq/formats/weight/lut24"
)

// Name implements [foreign.Target].
func (Layout) Name() string { return "marlin24" }

// Advice says how to make a model whose layers fit.
func (Layout) Advice() string {
	return "--method sparsegpt --codebook q4 --group 128 --scale-type f16 has quantize make layers that fit, where their rows are a multiple of 256 and their columns of 128; repack --to lut24 makes them of zeros"
}

// Format implements [foreign.Target].
func (Layout) Format(m *foreign.Model) (foreign.Format, error) {
	return &output{marlin.OutputOf(m)}, nil
}

type output struct{ marlin.Output }

// Fit implements [foreign.Format].
func (f *output) Fit(l *foreign.Layer, w *lut.Matrix) foreign.Fit {
	if foreign.Single(l) == "" && l.Stored.Kind != lut24.Name {
		return foreign.Fit{Why: "it is of kind " + l.Stored.Kind + ": want " + lut24.Name}
	}
	return f.Output.Fit(l, w)
}

// Entries implements [foreign.Packer].
func (f *output) Entries(l *foreign.Layer) ([]hf.Entry, error) {
	return []hf.Entry{
		{Name: l.Name + ".B_24", DType: "I32", Shape: []int{l.K / 2 / marlin.TileCols, 2 * l.N}},
		{Name: l.Name + ".B_meta", DType: "I16", Shape: []int{l.K / 2 / marlin.TileCols, 2 * l.N}},
		{Name: l.Name + ".s", DType: hf.F16, Shape: []int{l.K / f.Columns(l), l.N}},
	}, nil
}

// Pack implements [foreign.Packer].
func (f *output) Pack(l *foreign.Layer, s foreign.Source) ([][]byte, error) {
	w, err := s.Weights(l)
	if err != nil {
		return nil, err
	}
	sparse, ok := w.(*lut24.Matrix)
	if !ok {
		return nil, errors.New("is of another kind than before")
	}
	kept := sparse.Kept
	m, ok := foreign.MatchTable(kept.Codebook, foreign.Integers(4), true)
	if !ok {
		return nil, errors.New("has another table than before")
	}
	group := f.Columns(l)
	groups := l.K / group
	scales := foreign.Transpose(m.Scales(kept, weight.F16, group/2), l.N, groups, weight.F16.Size())
	return [][]byte{
		marlin.Pack(l.N, kept.K, place, func(dst []uint8, n int) { m.RowCodes(dst, kept, n) }),
		packMeta(l.N, l.K, sparse.RowPattern),
		marlin.Ordered(scales, scalePlaces(groups)),
	}, nil
}

// Write implements [foreign.Format].
func (f *output) Write(ctx context.Context, dir string, s foreign.Source) error {
	return f.WriteFolder(ctx, dir, s, f, checkpointFormat, false)
}
