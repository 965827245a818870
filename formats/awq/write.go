package awq

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"regexp"

	"github.com/lutq/lutq/formats/foreign"
	"github.com/lutq/lutq/formats/hf"
	"github.com/lutq/lutq/formats/weight"
	"github.com/lutq/lutq/formats/weight/lut"
)

// Target is the format gemm of AutoAWQ. It implements [foreign.Target].
// All layers have groups of one size.
type Target struct{}

// Name implements [foreign.Target].
func (Target) Name() string { return "awq" }

// order returns which of eight columns lie in a word's fields of four bits, from the lowest on.
func order() [perWord]int { return [...]int{0, 2, 4, 6, 1, 3, 5, 7} }

const (
	bits    = 4
	zero    = 8
	perWord = 8 // codes
)

// Format implements [foreign.Target].
func (Target) Format(m *foreign.Model) (foreign.Format, error) {
	f := &output{model: m}
	// The most columns to a scale that all layers can have.
	for _, group := range []int{128, 64, 32} {
		all := true
		for _, l := range m.Layers {
			if unfit(l) == "" && foreign.FitGroup(l.Group, l.K, group) == 0 {
				all = false
			}
		}
		if f.group = group; all {
			break
		}
	}
	return f, nil
}

type output struct {
	model *foreign.Model
	group int
}

// Fit implements [foreign.Format].
func (f *output) Fit(l *foreign.Layer, w *lut.Matrix) foreign.Fit {
	if why := unfit(l); why != "" || w == nil {
		return foreign.Fit{Why: why}
	}
	if foreign.FitGroup(w.Group, w.K, f.group) == 0 {
		return foreign.Fit{Why: fmt.Sprintf("its groups of %d in %d columns are not of %d", w.Group, w.K, f.group)}
	}
	return foreign.FitIntegers(w, weight.F16, bits)
}

// unfit says why there is no form for a layer, or "".
func unfit(l *foreign.Layer) string {
	if why := foreign.Linear(l); why != "" {
		return why
	}
	if l.N%perWord != 0 || l.K%32 != 0 {
		return fmt.Sprintf("its %d rows and %d columns are no multiples of %d and 32", l.N, l.K, perWord)
	}
	return ""
}

// Anew implements [foreign.Format].
func (f *output) Anew(l *foreign.Layer) (lut.Format, error) {
	why := unfit(l)
	if why == "" && l.K%f.group != 0 {
		why = fmt.Sprintf("its %d columns are no multiple of %d", l.K, f.group)
	}
	if why != "" {
		return lut.Format{}, errors.New(why)
	}
	return foreign.NewIntegers(l, f.group, weight.F16, bits), nil
}

// Entries implements [foreign.Packer].
func (f *output) Entries(l *foreign.Layer) ([]hf.Entry, error) {
	return []hf.Entry{
		{Name: l.Name + ".qweight", DType: "I32", Shape: []int{l.K, l.N / perWord}},
		{Name: l.Name + ".qzeros", DType: "I32", Shape: []int{l.K / f.group, l.N / perWord}},
		{Name: l.Name + ".scales", DType: hf.F16, Shape: []int{l.K / f.group, l.N}},
	}, nil
}

// Pack implements [foreign.Packer].
func (f *output) Pack(l *foreign.Layer, s foreign.Source) ([][]byte, error) {
	w, err := s.Matrix(l)
	if err != nil {
		return nil, err
	}
	m, _, _ := foreign.MatchIntegers(w.Codebook, bits)
	groups := w.K / f.group
	zeros := make([]byte, groups*w.N/2)
	for i := range zeros {
		zeros[i] = zero<<bits | zero
	}
	return [][]byte{columns(m, w), zeros, foreign.Transpose(m.Scales(w, weight.F16, f.group), w.N, groups, 2)}, nil
}

// columns returns the codes of a matrix as [K, N/8] words.
func columns(m foreign.Match, w *lut.Matrix) []byte {
	const tile = 16 * perWord // rows that fill a line of the cache
	dst, codes := make([]byte, w.K*w.N/2), make([]uint8, tile*w.K)
	order := order()
	for n := 0; n < w.N; n += tile {
		rows := min(tile, w.N-n)
		for i := range rows {
			m.RowCodes(codes[i*w.K:(i+1)*w.K], w, n+i)
		}
		for k := range w.K {
			to := dst[(k*w.N+n)/2:]
			for i := 0; i < rows; i += perWord {
				var word uint32
				for field, row := range order {
					word |= uint32(codes[(i+row)*w.K+k]) << (bits * field)
				}
				binary.LittleEndian.PutUint32(to[i/2:], word)
			}
		}
	}
	return dst
}

// Warnings implements [foreign.Warner].
func (f *output) Warnings() []string {
	if n := f.model.Experts(); n > 0 {
		return []string{fmt.Sprintf("%d layers are of experts: transformers 5 has these as stacks, and opens AWQ with random ones; gptqmodel opens them", n)}
	}
	return nil
}

// Write implements [foreign.Format].
func (f *output) Write(ctx context.Context, dir string, s foreign.Source) error {
	kept := f.model.Unquantized()
	// Gptqmodel reads no modules_to_not_convert, and packs no head.
	dynamic := make(map[string]struct{})
	for _, name := range kept {
		if name != f.model.Head() {
			dynamic[`-:^`+regexp.QuoteMeta(name)+`$`] = struct{}{}
		}
	}
	q, err := foreign.Indented(struct {
		Method    string              `json:"quant_method"`
		Version   string              `json:"version"`
		Bits      int                 `json:"bits"`
		Group     int                 `json:"group_size"`
		ZeroPoint bool                `json:"zero_point"`
		Kept      []string            `json:"modules_to_not_convert"`
		Dynamic   map[string]struct{} `json:"dynamic,omitempty"`
	}{"awq", "gemm", bits, f.group, true, kept, dynamic})
	if err != nil {
		return err
	}
	return foreign.WriteFolder(ctx, dir, s, f, foreign.Folder{Edits: []foreign.Member{{Key: "quantization_config", Value: q}}})
}
