package marlin

import (
	"encoding/json"
	"fmt"

	"github.com/lutq/lutq/formats/foreign/codes"
	"github.com/lutq/lutq/formats/hf"
)

// What rows, columns and columns with a scale are multiples of.
const (
	RowMultiple = 256
	ColMultiple = 128
	GroupSize   = 128
)

// Layout is that of MARLIN. It implements [hf.Scheme] and [foreign.Target].
type Layout struct{}

// read is what config.json says about weights. Groups are told by the tensors.
type read struct {
	Bits   int    `json:"bits"`
	Format string `json:"checkpoint_format"`
	Marlin bool   `json:"is_marlin_format"`
}

// Decode implements [hf.Scheme].
func (Layout) Decode(s *hf.Stored) (found []hf.Encoded, ok bool, err error) {
	var c read
	if s.Method != "marlin" && s.Method != "gptq" {
		return nil, false, nil
	}
	wrong := json.Unmarshal(s.Quantization, &c) != nil
	switch {
	case s.Method == "gptq" && c.Format != "marlin" && (c.Format != "" || !c.Marlin):
		return nil, false, nil
	case wrong || c.Bits != 4 && (c.Bits != 0 || s.Method == "gptq"):
		return nil, false, fmt.Errorf("config.json: %s: MARLIN has bits as a number, 4", s.Key)
	}
	found, err = s.Layers(".B", layer)
	return found, err == nil, err
}

// layer returns the weight of a layer whose codes are t.
func layer(s *hf.Stored, name string, t *hf.Tensor) (hf.Encoded, error) {
	none := hf.Encoded{}
	scale := s.Tensor(name + ".s")
	switch {
	case len(t.Shape) != 2 || t.DType != "I32" || t.Shape[0] < 1 || t.Shape[1] < 1:
		return none, t.Errorf("is %s %v: want I32 [k/16, 2·n]", t.DType, t.Shape)
	case t.Shape[0]%(ColMultiple/TileCols) != 0 || t.Shape[1]%(2*RowMultiple) != 0:
		return none, t.Errorf("shape %v: want [k/16, 2·n] with n a multiple of %d and k of %d", t.Shape, RowMultiple, ColMultiple)
	case scale == nil:
		return none, t.Errorf("no scales: want a tensor %q", name+".s")
	}
	n, k := t.Shape[1]/2, t.Shape[0]*TileCols
	groups := 1
	if len(scale.Shape) == 2 && scale.Shape[0] != 1 {
		groups = k / GroupSize
	}
	if err := codes.Shape(scale, []int{groups, n}, hf.F16); err != nil {
		return none, err
	}
	scales, err := codes.Scales(scale, n)
	if err != nil {
		return none, err
	}
	m := &codes.Matrix{
		N: n, K: k, Bits: 4, Group: k / groups, Values: codes.Signed(4), ScaleType: hf.F16,
		Codes: codes.Tiled(t, codes.Tiles[uint8]{
			Rows: TileRows, Cols: TileCols, Bytes: 4 * TileWords, Unpack: func(dst []uint8, raw []byte) { Unpack(dst, raw, place) },
			At: func(row, col int) int64 { return 4 * (int64(col)*2*int64(n) + int64(row)*TileWords) },
		}),
		Scales: codes.Transposed(codes.Ordered(scales, scalePlaces(groups)...)),
	}
	parts := []*hf.Tensor{t, scale}
	if locks := s.Tensor(name + ".workspace"); locks != nil { // which the kernel counts in
		parts = append(parts, locks)
	}
	return m.Encoded(name+".weight", "MARLIN, 4 bits", parts...)
}
