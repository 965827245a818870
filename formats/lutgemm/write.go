package lutgemm

import (
	"context"
	"errors"
	"fmt"

	"github.com/lutq/lutq/formats/foreign"
	"github.com/lutq/lutq/formats/hf"
	"github.com/lutq/lutq/formats/weight"
	"github.com/lutq/lutq/formats/weight/bcq"
	"github.com/lutq/lutq/formats/weight/lut"
)

// Name implements [foreign.Target].
func (Layout) Name() string { return "lutgemm" }

// Advice says how to make a model whose layers fit.
func (Layout) Advice() string {
	return "--method bcq --group 128 --scale-type f16 has quantize make layers that fit, where their rows are even and their columns a multiple of 128; repack --to bcq makes them of tables of equal steps"
}

// Format implements [foreign.Target].
func (Layout) Format(*foreign.Model) (foreign.Format, error) { return output{}, nil }

type output struct{}

// unfit says why no matrix of a shape, with groups of some columns, has a form, or "".
func unfit(n, k, group int) string {
	switch {
	case n%2 != 0 || k%word != 0:
		return fmt.Sprintf("it has %d rows and %d columns: want multiples of 2 and %d", n, k, word)
	case group%word != 0 || k%group != 0:
		return fmt.Sprintf("it has groups of %d in %d columns: want a multiple of %d that divides these", group, k, word)
	}
	return ""
}

// Fit implements [foreign.Format].
func (output) Fit(l *foreign.Layer, _ *lut.Matrix) foreign.Fit {
	why := foreign.Single(l)
	switch {
	case why != "":
	case l.Stored.Kind != bcq.Name:
		why = "it is of kind " + l.Stored.Kind + ": want " + bcq.Name
	case l.Stored.ScaleType != weight.F16:
		why = fmt.Sprintf("its factors are %v: want %v", l.Stored.ScaleType, weight.F16)
	default:
		why = unfit(l.N, l.K, l.Group)
	}
	return foreign.Fit{Why: why, Stored: why == ""}
}

// Anew implements [foreign.Format].
func (output) Anew(*foreign.Layer) (lut.Format, error) {
	return lut.Format{}, errors.New("it takes layers only as they are")
}

// Entries implements [foreign.Packer].
func (output) Entries(l *foreign.Layer) ([]hf.Entry, error) {
	groups := l.K / l.Group
	all := []hf.Entry{
		{Name: l.Name + ".bWeight", DType: "I32", Shape: []int{l.K / word, l.Bits, l.N}},
		{Name: l.Name + ".alpha", DType: hf.F16, Shape: []int{groups, l.Bits, l.N}},
	}
	if l.Offsets {
		all = append(all, hf.Entry{Name: l.Name + ".q_bias", DType: hf.F16, Shape: []int{groups, l.N}})
	}
	return all, nil
}

// Pack implements [foreign.Packer].
func (output) Pack(l *foreign.Layer, s foreign.Source) ([][]byte, error) {
	w, err := s.Weights(l)
	if err != nil {
		return nil, err
	}
	m, ok := w.(*bcq.Matrix)
	if !ok || l.Offsets != (m.Offsets != nil) {
		return nil, errors.New("is stored in another way than before")
	}
	size := weight.F16.Size()
	data := [][]byte{pack(m.Planes, m.N, m.Bits, m.K), foreign.Transpose(m.Alphas, m.N, m.Groups()*m.Bits, size)}
	if l.Offsets {
		data = append(data, foreign.Transpose(m.Offsets, m.N, m.Groups(), size))
	}
	return data, nil
}

// Write implements [foreign.Format].
func (f output) Write(ctx context.Context, dir string, s foreign.Source) error {
	q, err := foreign.Indented(map[string]string{"quant_method": method})
	if err != nil {
		return err
	}
	return foreign.WriteFolder(ctx, dir, s, f, foreign.Folder{Edits: []foreign.Member{{Key: "quantization_config", Value: q}}})
}
