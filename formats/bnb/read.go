package bnb

import (
	"encoding/json"
	"math"
	"strings"

	"github.com/lutq/lutq/formats/foreign/codes"
	"github.com/lutq/lutq/formats/hf"
)

// Scheme is that of bitsandbytes in 4 bits.
type Scheme struct{}

// state is the JSON beside a weight.
type state struct {
	Type        string   `json:"quant_type"`
	Block       int      `json:"blocksize"`
	Shape       []int    `json:"shape"`
	NestedBlock int      `json:"nested_blocksize"`
	Offset      *float32 `json:"nested_offset"`
}

// maxState bounds the JSON.
const maxState = 1 << 16

// Decode implements [hf.Scheme].
func (Scheme) Decode(s *hf.Stored) (found []hf.Encoded, ok bool, err error) {
	var c struct {
		In4 bool `json:"load_in_4bit"`
	}
	_ = json.Unmarshal(s.Quantization, &c) // of what is no object nothing is known
	if s.Method != "bitsandbytes" && s.Method != "" || !c.In4 {
		return nil, false, nil
	}
	for _, t := range s.Tensors {
		name, _, is := strings.Cut(t.Name, ".quant_state.bitsandbytes__")
		if !is {
			continue
		}
		e, err := weight(s, name, t)
		if err != nil {
			return nil, false, err
		}
		found = append(found, e)
	}
	return found, true, nil
}

// weight returns a weight, whose state is t.
func weight(s *hf.Stored, name string, t *hf.Tensor) (hf.Encoded, error) {
	none := hf.Encoded{}
	if t.DType != hf.U8 || t.Bytes() > maxState {
		return none, t.Errorf("is %s %v: want up to %d bytes of JSON", t.DType, t.Shape, maxState)
	}
	raw := make([]byte, t.Bytes())
	if _, err := t.ReadAt(raw, 0); err != nil {
		return none, err
	}
	var q state
	switch {
	case json.Unmarshal(raw, &q) != nil || len(q.Shape) != 2 || q.Block < 1 || q.Block > math.MaxInt32:
		return none, t.Errorf("want JSON with the blocksize and the shape of a matrix")
	case min(q.Shape[0], q.Shape[1]) < 1 || max(q.Shape[0], q.Shape[1]) > math.MaxInt32:
		return none, t.Errorf("shape %v: want that of a matrix", q.Shape)
	}
	part := func(suffix string) *hf.Tensor { return s.Tensor(name + suffix) }
	packed, absmax, table := part(""), part(".absmax"), part(".quant_map")
	for suffix, p := range map[string]*hf.Tensor{"": packed, ".absmax": absmax, ".quant_map": table} {
		if p == nil {
			return none, t.Errorf("no tensor %q beside it", name+suffix)
		}
	}
	n, k := q.Shape[0], q.Shape[1]
	if packed.Bytes() != (int64(n)*int64(k)+1)/2 {
		return none, packed.Errorf("%d bytes: want half as many as weights of %v", packed.Bytes(), q.Shape)
	}
	values, err := numbers(table, 16)
	if err != nil {
		return none, err
	}
	blocks := (n*k-1)/q.Block + 1
	// All rows are one, unless blocks end where rows do.
	m := &codes.Matrix{N: 1, K: n * k, Bits: 4, Group: min(q.Block, n*k), Values: values, ScaleType: hf.F32}
	if k%q.Block == 0 && k%2 == 0 {
		m.N, m.K = n, k
	}
	m.Codes = codes.Ordered(codes.Rows(packed, m.N, 4), 1, 0)
	parts := []*hf.Tensor{packed, absmax, table, t}
	if q.NestedBlock == 0 {
		if err := codes.Shape(absmax, []int{blocks}, hf.F32); err != nil {
			return none, err
		}
		if m.Scales, err = codes.Scales(absmax, m.GroupsInRow()); err != nil {
			return none, err
		}
	} else {
		outer, inner := part(".nested_absmax"), part(".nested_quant_map")
		if outer == nil || inner == nil {
			return none, t.Errorf("no tensors %q and %q beside it", name+".nested_absmax", name+".nested_quant_map")
		}
		parts = append(parts, outer, inner)
		if m.Scales, err = nested(&q, m, absmax, outer, inner, blocks); err != nil {
			return none, err
		}
	}
	kind := strings.ToUpper(q.Type)
	if kind != "NF4" && kind != "FP4" {
		return none, t.Errorf("quant_type %.20q: want nf4 or fp4", q.Type)
	}
	e, err := m.Encoded(name, "bitsandbytes "+kind, parts...)
	if err == nil {
		e.Shape, e.N, e.K = []int{n, k}, n, k
	}
	return e, err
}

// nested reads scales that are quantized themselves.
func nested(q *state, m *codes.Matrix, absmax, outer, inner *hf.Tensor, blocks int) (codes.Field[float32], error) {
	if q.NestedBlock < 1 || q.Offset == nil {
		return nil, absmax.Errorf("want nested_blocksize and nested_offset in the JSON beside it")
	}
	if err := codes.Shape(absmax, []int{blocks}, hf.U8); err != nil {
		return nil, err
	}
	values, err := numbers(inner, 256)
	if err != nil {
		return nil, err
	}
	scales, err := numbers(outer, (blocks-1)/q.NestedBlock+1)
	if err != nil {
		return nil, err
	}
	columns, block, offset := m.GroupsInRow(), q.NestedBlock, *q.Offset
	bytes := codes.Rows(absmax, m.N, 8)
	return func(dst []float32, b codes.Block) error {
		raw := make([]uint8, len(dst))
		if err := bytes(raw, b); err != nil {
			return err
		}
		for i, c := range raw {
			at := (b.Row+i/b.Cols)*columns + b.Col + i%b.Cols
			dst[i] = float32(values[c]*scales[at/block]) + offset // not fused
		}
		return nil
	}, nil
}

// numbers reads a tensor of n finite numbers in F32.
func numbers(t *hf.Tensor, n int) ([]float32, error) {
	if err := codes.Shape(t, []int{n}, hf.F32); err != nil {
		return nil, err
	}
	read, err := codes.Scales(t, n)
	if err != nil {
		return nil, err
	}
	v := make([]float32, n)
	return v, read(v, codes.Block{Rows: 1, Cols: n})
}
