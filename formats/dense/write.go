package dense

import (
	"context"
	"errors"

	"github.com/lutq/lutq/formats/arch"
	"github.com/lutq/lutq/formats/foreign"
	"github.com/lutq/lutq/formats/hf"
	"github.com/lutq/lutq/formats/weight"
	"github.com/lutq/lutq/formats/weight/lut"
)

// Target is a folder of plain weights. It implements [foreign.Target].
type Target struct {
	// DType, if not 0, is the type of all weights. Otherwise those that were quantized get the type
	// that the model computes with, and the others stay as they are.
	DType weight.ScaleType
}

// Name implements [foreign.Target].
func (Target) Name() string { return "dense" }

// Universal implements [foreign.Universal].
func (Target) Universal() {}

// Format implements [foreign.Target].
func (t Target) Format(m *foreign.Model) (foreign.Format, error) {
	if t.DType != 0 {
		m.DType = t.DType
	}
	return &output{m, t.DType != 0}, nil
}

type output struct {
	model *foreign.Model
	all   bool // tensors become of the model's type
}

// Fit implements [foreign.Format]: every layer can be written as what it stands for, rounded
// to nearest.
func (f *output) Fit(*foreign.Layer, *lut.Matrix) foreign.Fit {
	fit := foreign.Fit{Dense: true}
	switch f.model.DType {
	case weight.F16:
		fit.Change = 0x1p-11
	case weight.BF16:
		fit.Change = 0x1p-9
	}
	return fit
}

// Anew implements [foreign.Format].
func (f *output) Anew(*foreign.Layer) (lut.Format, error) {
	return lut.Format{}, errors.New("nothing is quantized")
}

// Write implements [foreign.Format].
func (f *output) Write(ctx context.Context, dir string, s foreign.Source) error {
	turned := byRows(f.model)
	for _, l := range f.model.Layers {
		if turned[l.Tensor] {
			l.Transposed, l.Shape = true, []int{l.Experts, l.K, l.N / l.Experts}
		}
	}
	o := foreign.Folder{Turn: func(t *hf.Tensor) bool { return turned[t.Name] }}
	if f.all {
		o.Kept = func(t *hf.Tensor) hf.DType {
			if _, err := foreign.ScaleType(t.DType); err != nil && t.DType != hf.F64 {
				return t.DType // no weights
			}
			return hf.DType(f.model.DType.DType())
		}
		var err error
		if o.Edits, err = foreign.SetDType(f.model.Config, f.model.DType); err != nil {
			return err
		}
	}
	return foreign.WriteFolder(ctx, dir, s, nil, o)
}

// byRows returns the stacks of experts that a model has by rows where a folder of plain weights has them by columns: those of
// MXFP4 and of GGUF files.
func byRows(m *foreign.Model) map[string]bool {
	turned := make(map[string]bool)
	if m.Decoder == nil {
		return turned
	}
	names := make(map[string]bool)
	for _, l := range m.Layers {
		names[l.Tensor] = true
	}
	for _, t := range m.Kept {
		names[t.Name] = true
	}
	plain, err := arch.Describe(m.Config, func(tensor string) bool { return names[tensor] })
	if err != nil { // it has been described before
		return turned
	}
	rows := make(map[string]bool)
	for _, s := range m.Decoder.Stored() {
		rows[s.Tensor] = !s.Transposed
	}
	for _, s := range plain.Stored() {
		if s.Transposed && rows[s.Tensor] {
			turned[s.Tensor] = true
		}
	}
	return turned
}
