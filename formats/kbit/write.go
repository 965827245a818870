package kbit

import (
	"context"
	"errors"
	"fmt"

	"github.com/lutq/lutq/formats/foreign"
	"github.com/lutq/lutq/formats/hf"
	"github.com/lutq/lutq/formats/num"
	"github.com/lutq/lutq/formats/weight"
	"github.com/lutq/lutq/formats/weight/lut"
)

// Advice says how to make a model whose layers fit.
func (y Layout) Advice() string {
	advice := "--codebook kbit --group 32 --scale-type e4m4 has quantize make layers that fit, where their columns are a multiple of 32"
	if y.tiled {
		advice = "--codebook kbit --group 32 --scale-type e4m4 has quantize make layers that fit, where their rows are a multiple of 128 and their columns of 64"
	}
	return advice
}

// Format implements [foreign.Target].
func (y Layout) Format(m *foreign.Model) (foreign.Format, error) { return &output{y, m}, nil }

type output struct {
	layout Layout
	model  *foreign.Model
}

// unfit says why no matrix of a shape has a form, or "".
func (y Layout) unfit(n, k int) string {
	switch {
	case y.tiled && (n%tileRows != 0 || k%tileCols != 0):
		return fmt.Sprintf("it has %d rows and %d columns: want multiples of %d and %d", n, k, tileRows, tileCols)
	case k%block != 0:
		return fmt.Sprintf("it has %d columns: want a multiple of %d, for else blocks would lie in two rows", k, block)
	}
	return ""
}

// Fit implements [foreign.Format]. Any table will do, with scales of any type.
func (f *output) Fit(l *foreign.Layer, w *lut.Matrix) foreign.Fit {
	if why := foreign.Single(l); why != "" {
		return foreign.Fit{Why: why}
	}
	if why := f.layout.unfit(l.N, l.K); why != "" {
		return foreign.Fit{Why: why}
	}
	if w != nil && foreign.FitGroup(w.Group, w.K, block) == 0 {
		return foreign.Fit{Why: fmt.Sprintf("it has groups of %d columns: want %d or a multiple of that", w.Group, block)}
	}
	return foreign.Fit{}
}

// Anew implements [foreign.Format].
func (*output) Anew(*foreign.Layer) (lut.Format, error) {
	return lut.Format{}, errors.New("it takes layers only as they are")
}

// scaleType returns the type of a layer's scales.
func scaleType(l *foreign.Layer) weight.ScaleType {
	if l.Stored.ScaleType == weight.E4M4 {
		return weight.E4M4
	}
	return weight.F32
}

// Entries implements [foreign.Packer].
func (f *output) Entries(l *foreign.Layer) ([]hf.Entry, error) {
	return []hf.Entry{
		{Name: l.Name + ".kbit_packed", DType: "I32", Shape: []int{f.layout.words(l.N, l.K, l.Bits)}},
		{Name: l.Name + ".kbit_absmax", DType: hf.DType(scaleType(l).DType()), Shape: []int{l.N * (l.K / block)}},
		{Name: l.Name + ".kbit_codebook", DType: hf.F32, Shape: []int{1 << l.Bits}},
	}, nil
}

// Pack implements [foreign.Packer].
func (f *output) Pack(l *foreign.Layer, s foreign.Source) ([][]byte, error) {
	w, err := s.Matrix(l)
	if err != nil {
		return nil, err
	}
	st, table := scaleType(l), make([]byte, 4*len(w.Codebook))
	num.EncodeF32(table, w.Codebook)
	scales := foreign.Match{Factor: 1}.Scales(w, st, block)
	return [][]byte{f.layout.pack(w.N, w.K, w.Bits, w.RowCodes), f.layout.scales(w.N, w.K, st.Size(), scales), table}, nil
}

// Write implements [foreign.Format].
func (f *output) Write(ctx context.Context, dir string, s foreign.Source) error {
	c := config{Method: method, Layout: f.layout.Name(), Block: block, Shapes: make(map[string][]int)}
	for _, l := range f.model.Layers {
		c.Shapes[l.Name] = []int{l.N, l.K}
	}
	q, err := foreign.Indented(c)
	if err != nil {
		return err
	}
	return foreign.WriteFolder(ctx, dir, s, f, foreign.Folder{Edits: []foreign.Member{{Key: "quantization_config", Value: q}}})
}
