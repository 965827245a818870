package kbit

import (
	"encoding/json"
	"fmt"
	"math"
	"math/bits"
	"strings"

	"github.com/lutq/lutq/formats/foreign/codes"
	"github.com/lutq/lutq/formats/hf"
	"github.com/lutq/lutq/formats/num"
	"github.com/lutq/lutq/formats/weight/lut"
)

// method is the quant_method of both layouts.
const method = "kbit"

// config is what config.json says about weights.
type config struct {
	Method string           `json:"quant_method"`
	Layout string           `json:"layout"`
	Block  int              `json:"block_size"`
	Shapes map[string][]int `json:"shapes"` // of layers
}

// Decode implements [hf.Scheme].
func (y Layout) Decode(s *hf.Stored) (found []hf.Encoded, ok bool, err error) {
	if s.Method != method {
		return nil, false, nil
	}
	var c config
	switch err := json.Unmarshal(s.Quantization, &c); {
	case err != nil || c.Block != block:
		return nil, false, fmt.Errorf("config.json: %s: want layout, block_size %d, and shapes", s.Key, block)
	case c.Layout != Flat().Name() && c.Layout != Tiled().Name():
		return nil, false, fmt.Errorf("config.json: %s: layout %.40q: want %s or %s", s.Key, c.Layout, Flat().Name(), Tiled().Name())
	case c.Layout != y.Name():
		return nil, false, nil
	}
	for _, t := range s.Tensors {
		name, is := strings.CutSuffix(t.Name, ".kbit_packed")
		if !is {
			continue
		}
		e, err := y.layer(s, name, t, c.Shapes[name])
		if err != nil {
			return nil, false, err
		}
		found = append(found, e)
	}
	return found, true, nil
}

// layer returns the weight of a layer whose codes are t.
func (y Layout) layer(s *hf.Stored, name string, t *hf.Tensor, shape []int) (hf.Encoded, error) {
	none := hf.Encoded{}
	scale, table := s.Tensor(name+".kbit_absmax"), s.Tensor(name+".kbit_codebook")
	switch {
	case len(shape) != 2 || shape[0] < 1 || shape[1] < 1 || shape[0] > math.MaxInt32 || shape[1] > math.MaxInt32:
		return none, t.Errorf("config.json has shape %v for it: want [n, k]", shape)
	case scale == nil || table == nil:
		return none, t.Errorf("want tensors %q and %q beside it", name+".kbit_absmax", name+".kbit_codebook")
	}
	n, k := shape[0], shape[1]
	if why := y.unfit(n, k); why != "" {
		return none, t.Errorf("%s", why)
	}
	values, err := tableOf(table)
	if err != nil {
		return none, err
	}
	b := bits.Len(uint(len(values))) - 1
	if err := codes.Shape(t, []int{y.words(n, k, b)}, "I32"); err != nil {
		return none, err
	}
	if err := codes.Shape(scale, []int{n * (k / block)}, hf.U8, hf.F32); err != nil {
		return none, err
	}
	m := &codes.Matrix{N: n, K: k, Bits: b, Group: block, Values: values, ScaleType: scale.DType, Codes: y.codes(t, n, k, b)}
	width, decode := 4, num.DecodeF32
	if scale.DType == hf.U8 {
		width, decode = 1, num.DecodeE4M4
	}
	if m.Scales = codes.Numbers(scale, k/block, width, decode); y.tiled {
		const size = tileRows * tileCols / block
		m.Scales = codes.Finite(scale, codes.Tiled(scale, codes.Tiles[float32]{
			Rows: tileRows, Cols: tileCols / block, Bytes: size * width, Unpack: decode,
			At: func(row, col int) int64 { return int64(col*(n/tileRows)+row) * size * int64(width) },
		}), k/block)
	}
	return m.Encoded(name+".weight", fmt.Sprintf("k-bit, %d bits", b), t, scale, table)
}

// tableOf reads a codebook.
func tableOf(t *hf.Tensor) ([]float32, error) {
	n := 0
	if len(t.Shape) == 1 {
		n = t.Shape[0]
	}
	if t.DType != hf.F32 || n < 1<<lut.MinBits || n > 1<<lut.MaxBits || n&(n-1) != 0 {
		return nil, t.Errorf("is %s %v: want F32 with 4, 8, 16 or 32 values", t.DType, t.Shape)
	}
	values := make([]float32, n)
	if err := t.ReadFloat32(values, 0); err != nil {
		return nil, err
	}
	for i, v := range values {
		if v-v != 0 {
			return nil, t.Errorf("element %d is %v: want a number", i, v)
		}
	}
	return values, nil
}

// codes reads the codes of a matrix.
func (y Layout) codes(t *hf.Tensor, n, k, b int) codes.Field[uint8] {
	if y.tiled {
		const size = tileRows * tileCols / block * 4
		return codes.Tiled(t, codes.Tiles[uint8]{
			Rows: tileRows, Cols: tileCols, Bytes: size * b,
			At:     func(row, col int) int64 { return int64(col*(n/tileRows)+row) * size * int64(b) },
			Unpack: func(dst []uint8, raw []byte) { unpack(dst, raw, b) },
		})
	}
	return func(dst []uint8, at codes.Block) error {
		from, to := at.Col/block, (at.Col+at.Cols+block-1)/block
		raw, all := make([]byte, (to-from)*4*b), make([]uint8, (to-from)*block)
		for r := range at.Rows {
			if _, err := t.ReadAt(raw, int64(y.place(n, k, at.Row+r, from))*int64(4*b)); err != nil {
				return err
			}
			unpack(all, raw, b)
			copy(dst[r*at.Cols:(r+1)*at.Cols], all[at.Col-from*block:])
		}
		return nil
	}
}
