package mlx

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"

	"github.com/lutq/lutq/formats/foreign"
	"github.com/lutq/lutq/formats/hf"
	"github.com/lutq/lutq/formats/weight"
	"github.com/lutq/lutq/formats/weight/lut"
)

// Target is MLX's mode affine, as mlx-lm writes it. It implements [foreign.Target].
type Target struct{}

// Name implements [foreign.Target].
func (Target) Name() string { return "mlx" }

// Format implements [foreign.Target].
func (Target) Format(m *foreign.Model) (foreign.Format, error) { return &output{m}, nil }

type output struct{ model *foreign.Model }

// widths are those of the integers that there are, in bits.
func widths() []int { return []int{2, 3, 4, 5, 6, 8} }

// groups lists the numbers of columns that may share a scale.
func groups() []int { return []int{32, 64, 128} }

// Fit implements [foreign.Format].
func (f *output) Fit(l *foreign.Layer, w *lut.Matrix) foreign.Fit {
	if why := unfit(l); why != "" || w == nil {
		return foreign.Fit{Why: why}
	}
	if foreign.FitGroup(w.Group, w.K, groups()...) == 0 {
		return foreign.Fit{Why: fmt.Sprintf("its groups of %d in %d columns are not of 32, 64 or 128", w.Group, w.K)}
	}
	fit := foreign.FitIntegers(w, f.model.DType, widths()...)
	if fit.Why != "" {
		return fit
	}
	m, bits, _ := foreign.MatchIntegers(w.Codebook, widths()...)
	if scale, ok := biased(m, w, f.model.DType, bits); !ok {
		fit.Why = fmt.Sprintf("%v holds no bias of %d times the scale %v", f.model.DType, 1<<(bits-1), scale)
	}
	return fit
}

// biased reports whether a type holds the bias to every scale, or else one that it does not.
func biased(m foreign.Match, w *lut.Matrix, t weight.ScaleType, bits int) (scale float32, ok bool) {
	top := float64(math.MaxFloat32)
	if t == weight.F16 {
		top = 65504
	}
	row := make([]float32, w.Groups())
	for n := range w.N {
		w.RowScales(row, n)
		for _, s := range row {
			// A power of two times as large it has the same digits.
			if math.Ldexp(math.Abs(float64(s)*m.Factor), bits-1) > top {
				return s, false
			}
		}
	}
	return 0, true
}

// unfit says why there is no form for a layer, or "".
func unfit(l *foreign.Layer) string {
	if l.Experts > 0 {
		return foreign.Linear(l)
	}
	if l.K%groups()[0] != 0 {
		return fmt.Sprintf("its %d columns are no multiple of %d", l.K, groups()[0])
	}
	return ""
}

// Anew implements [foreign.Format].
func (f *output) Anew(l *foreign.Layer) (lut.Format, error) {
	if why := unfit(l); why != "" {
		return lut.Format{}, errors.New(why)
	}
	group := cmp.Or(foreign.FitGroup(l.Group, l.K, groups()...), foreign.FitGroup(l.K, l.K, 32, 64))
	return foreign.NewIntegers(l, group, f.model.DType, widths()...), nil
}

// Entries implements [foreign.Packer].
func (f *output) Entries(l *foreign.Layer) ([]hf.Entry, error) {
	bits, group := f.form(l)
	scales := []int{l.N, l.K / group}
	return []hf.Entry{
		{Name: l.Name + ".weight", DType: "U32", Shape: []int{l.N, foreign.Words(l.K, bits)}},
		{Name: l.Name + ".scales", DType: hf.DType(f.model.DType.DType()), Shape: scales},
		{Name: l.Name + ".biases", DType: hf.DType(f.model.DType.DType()), Shape: scales},
	}, nil
}

// form returns the bits and the columns to a scale that a layer is written with.
func (f *output) form(l *foreign.Layer) (bits, group int) {
	_, bits, _ = foreign.MatchIntegers(l.Table, widths()...)
	return bits, foreign.FitGroup(l.Group, l.K, groups()...)
}

// Pack implements [foreign.Packer].
func (f *output) Pack(l *foreign.Layer, s foreign.Source) ([][]byte, error) {
	w, err := s.Matrix(l)
	if err != nil {
		return nil, err
	}
	m, bits, _ := foreign.MatchIntegers(w.Codebook, widths()...)
	_, group := f.form(l)
	t := f.model.DType
	scales := m.Scales(w, t, group)
	biases, row := make([]byte, len(scales)), make([]float32, l.K/group)
	for at := 0; at < len(scales); at += len(row) * t.Size() {
		t.Decode(row, scales[at:])
		for i := range row {
			row[i] = -float32(math.Ldexp(float64(row[i]), bits-1))
		}
		t.Encode(biases[at:], row)
	}
	return [][]byte{m.Rows(w, bits), scales, biases}, nil
}

// Write implements [foreign.Format].
func (f *output) Write(ctx context.Context, dir string, s foreign.Source) error {
	q, err := f.config()
	if err != nil {
		return err
	}
	return foreign.WriteFolder(ctx, dir, s, f, foreign.Folder{
		Edits:    []foreign.Member{{Key: "quantization", Value: q}, {Key: "quantization_config", Value: q}},
		Metadata: map[string]string{"format": "mlx"},
	})
}

// config returns what config.json says under two keys: the form of most layers, and by name that of
// the others.
func (f *output) config() (json.RawMessage, error) {
	type form struct {
		Group int `json:"group_size"`
		Bits  int `json:"bits"`
	}
	counts := make(map[form]int)
	var most form
	each := func(use func(l *foreign.Layer, is form)) {
		for _, l := range f.model.Layers {
			if l.As != foreign.Dense {
				bits, group := f.form(l)
				use(l, form{group, bits})
			}
		}
	}
	each(func(l *foreign.Layer, is form) {
		if counts[is]++; counts[is] > counts[most] {
			most = is
		}
	})
	all := map[string]any{"group_size": most.Group, "bits": most.Bits, "mode": "affine"}
	each(func(l *foreign.Layer, is form) {
		if is != most {
			all[l.Name] = is
		}
	})
	return foreign.Indented(all)
}
