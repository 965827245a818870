package bnb

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/lutq/lutq/formats/foreign"
	"github.com/lutq/lutq/formats/hf"
	"github.com/lutq/lutq/formats/num"
	scales "github.com/lutq/lutq/formats/weight"
	"github.com/lutq/lutq/formats/weight/lut"
)

// Target is the format NF4 of bitsandbytes, whose scales are not quantized. It implements
// [foreign.Target].
// Clients take its table for granted, whatever quant_map says.
type Target struct{}

// Name implements [foreign.Target].
func (Target) Name() string { return "bnb" }

// Format implements [foreign.Target].
func (Target) Format(m *foreign.Model) (foreign.Format, error) { return &output{m}, nil }

type output struct{ model *foreign.Model }

// blocks lists the numbers of weights that may share a scale. Versions before 0.45 had none below 64.
func blocks() []int { return []int{32, 64, 128, 256, 512, 1024, 2048, 4096} }

// normalFloat is the table of NF4.
func normalFloat() []float32 {
	cb, err := lut.NewCodebook("nf", 4, 64)
	if err != nil {
		panic(err) // it is a built-in one
	}
	return cb.Values
}

// match finds NF4, or a part of it, in a table.
func match(table []float32) (foreign.Match, bool) {
	return foreign.MatchTable(table, normalFloat(), true)
}

// Fit implements [foreign.Format].
func (f *output) Fit(l *foreign.Layer, w *lut.Matrix) foreign.Fit {
	if why := unfit(l); why != "" || w == nil {
		return foreign.Fit{Why: why}
	}
	if foreign.FitGroup(w.Group, w.K, blocks()...) == 0 {
		return foreign.Fit{Why: fmt.Sprintf("its groups of %d in %d columns are no blocks of 32, 64 and so on", w.Group, w.K)}
	}
	m, ok := match(w.Codebook)
	if !ok {
		return foreign.Fit{Why: "its table is not NF4"}
	}
	return foreign.FitScales(m, w, scales.F32)
}

// unfit says why there is no form for a layer, or "".
func unfit(l *foreign.Layer) string {
	if why := foreign.Linear(l); why != "" {
		return why
	}
	if l.K%blocks()[0] != 0 {
		return fmt.Sprintf("its %d columns are no multiple of %d", l.K, blocks()[0])
	}
	return ""
}

// Anew implements [foreign.Format].
func (f *output) Anew(l *foreign.Layer) (lut.Format, error) {
	if why := unfit(l); why != "" {
		return lut.Format{}, errors.New(why)
	}
	return lut.Format{
		Codebook: lut.Codebook{Name: "nf", Values: normalFloat()}, Scale: scales.MSE, ScaleType: scales.F32,
		Group: cmp.Or(foreign.FitGroup(l.Group, l.K, blocks()...), foreign.FitGroup(l.K, l.K, 32, 64)),
	}, nil
}

// quantState is what bitsandbytes calls the quant_state.
type quantState struct {
	Type  string `json:"quant_type"`
	Block int    `json:"blocksize"`
	DType string `json:"dtype"` // that weights are rounded to
	Shape [2]int `json:"shape"`
}

// state returns the quant_state of a layer.
func (f *output) state(l *foreign.Layer) ([]byte, error) {
	return json.Marshal(quantState{"nf4", foreign.FitGroup(l.Group, l.K, blocks()...), foreign.TorchName(f.model.DType), [2]int{l.N, l.K}})
}

// Entries implements [foreign.Packer].
func (f *output) Entries(l *foreign.Layer) ([]hf.Entry, error) {
	text, err := f.state(l)
	p := l.Name + ".weight"
	return []hf.Entry{
		{Name: p, DType: hf.U8, Shape: []int{l.N * l.K / 2, 1}},
		{Name: p + ".absmax", DType: hf.F32, Shape: []int{l.N * (l.K / foreign.FitGroup(l.Group, l.K, blocks()...))}},
		{Name: p + ".quant_map", DType: hf.F32, Shape: []int{16}},
		{Name: p + ".quant_state.bitsandbytes__nf4", DType: hf.U8, Shape: []int{len(text)}},
	}, err
}

// Pack implements [foreign.Packer].
func (f *output) Pack(l *foreign.Layer, s foreign.Source) ([][]byte, error) {
	w, err := s.Matrix(l)
	if err != nil {
		return nil, err
	}
	text, err := f.state(l)
	if err != nil {
		return nil, err
	}
	m, _ := match(w.Codebook)
	table := make([]byte, 4*16)
	num.EncodeF32(table, normalFloat())
	return [][]byte{
		m.Nibbles(w, true),
		m.Scales(w, scales.F32, foreign.FitGroup(w.Group, w.K, blocks()...)),
		table,
		text,
	}, nil
}

// Write implements [foreign.Format].
func (f *output) Write(ctx context.Context, dir string, s foreign.Source) error {
	q, err := foreign.Indented(config{
		Method: "bitsandbytes", In4: true, StoredIn4: true, Type: "nf4", Compute: foreign.TorchName(f.model.DType), Storage: "uint8",
		Skip: f.model.Unquantized(), Threshold: json.RawMessage("6.0"), // which is to be no integer
	})
	if err != nil {
		return err
	}
	return foreign.WriteFolder(ctx, dir, s, f, foreign.Folder{Edits: []foreign.Member{{Key: "quantization_config", Value: q}}})
}

// config is the quantization_config.
type config struct {
	Method      string          `json:"quant_method"`
	In4         bool            `json:"load_in_4bit"`
	StoredIn4   bool            `json:"_load_in_4bit"`
	In8         bool            `json:"load_in_8bit"`
	StoredIn8   bool            `json:"_load_in_8bit"`
	Type        string          `json:"bnb_4bit_quant_type"`
	DoubleQuant bool            `json:"bnb_4bit_use_double_quant"`
	Compute     string          `json:"bnb_4bit_compute_dtype"`
	Storage     string          `json:"bnb_4bit_quant_storage"`
	Offload     bool            `json:"llm_int8_enable_fp32_cpu_offload"`
	FP16        bool            `json:"llm_int8_has_fp16_weight"`
	Skip        []string        `json:"llm_int8_skip_modules"`
	Threshold   json.RawMessage `json:"llm_int8_threshold"`
}

// Warnings implements [foreign.Warner].
func (f *output) Warnings() []string {
	if n := f.model.Experts(); n > 0 {
		return []string{fmt.Sprintf("%d layers are of experts: transformers 5 has these as stacks, and does not open them from bitsandbytes", n)}
	}
	return nil
}
