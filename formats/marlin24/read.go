package marlin24

import (
	"encoding/json"
	"fmt"

	"github.com/lutq/lutq/formats/foreign/codes"
	"github.com/lutq/lutq/formats/hf"
	"github.com/lutq/lutq/formats/marlin"
)

// zero is the code of 0.
const zero = 8

// Layout is that of Sparse-MARLIN. It implements [hf.Scheme] and [foreign.Target].
type Layout struct{}

// read is what config.json says about weights. Groups are told by the tensors.
type read struct {
	Bits   int    `json:"bits"`
	Format string `json:"checkpoint_format"`
}

// checkpointFormat is the layout's name in config.json.
const checkpointFormat = "marlin_24"

// Decode implements [hf.Scheme].
func (Layout) Decode(s *hf.Stored) (found []hf.Encoded, ok bool, err error) {
	var c read
	wrong := json.Unmarshal(s.Quantization, &c) != nil
	switch {
	case s.Method != "gptq" && s.Method != "gptq_marlin_24" || c.Format != checkpointFormat:
		return nil, false, nil
	case wrong || c.Bits != 4:
		return nil, false, fmt.Errorf("config.json: %s: Sparse-MARLIN has bits as a number, 4", s.Key)
	}
	found, err = s.Layers(".B_24", layer)
	return found, err == nil, err
}

// layer returns the weight of a layer whose codes are t.
func layer(s *hf.Stored, name string, t *hf.Tensor) (hf.Encoded, error) {
	none := hf.Encoded{}
	meta, scale := s.Tensor(name+".B_meta"), s.Tensor(name+".s")
	switch {
	case len(t.Shape) != 2 || t.DType != "I32" || t.Shape[0] < 1 || t.Shape[1] < 1:
		return none, t.Errorf("is %s %v: want I32 [k/32, 2·n]", t.DType, t.Shape)
	case t.Shape[0]%(marlin.ColMultiple/2/marlin.TileCols) != 0 || t.Shape[1]%(2*marlin.RowMultiple) != 0:
		return none, t.Errorf("shape %v: want [k/32, 2·n] with n a multiple of %d and k of %d", t.Shape, marlin.RowMultiple, marlin.ColMultiple)
	case meta == nil:
		return none, t.Errorf("no pattern: want a tensor %q", name+".B_meta")
	case scale == nil:
		return none, t.Errorf("no scales: want a tensor %q", name+".s")
	}
	n, k := t.Shape[1]/2, t.Shape[0]*2*marlin.TileCols
	groups := 1
	if len(scale.Shape) == 2 && scale.Shape[0] != 1 {
		groups = k / marlin.GroupSize
	}
	if err := codes.Shape(meta, t.Shape, "I16"); err != nil {
		return none, err
	}
	if err := codes.Shape(scale, []int{groups, n}, hf.F16); err != nil {
		return none, err
	}
	scales, err := codes.Scales(scale, n)
	if err != nil {
		return none, err
	}
	kept := codes.Tiled(t, codes.Tiles[uint8]{
		Rows: marlin.TileRows, Cols: marlin.TileCols, Bytes: 4 * marlin.TileWords, Unpack: func(dst []uint8, raw []byte) { marlin.Unpack(dst, raw, place) },
		At: func(row, col int) int64 { return 4 * (int64(col)*2*int64(n) + int64(row)*marlin.TileWords) },
	})
	m := &codes.Matrix{
		N: n, K: k, Bits: 4, Group: k / groups, Values: codes.Signed(4), ScaleType: hf.F16,
		Codes:  dense(kept, meta, n),
		Scales: codes.Transposed(codes.Ordered(scales, scalePlaces(groups)...)),
	}
	return m.Encoded(name+".weight", "Sparse-MARLIN, 4 bits", t, meta, scale)
}

// dense reads the codes of all columns, by those that are kept and the words that say which.
func dense(kept codes.Field[uint8], meta *hf.Tensor, n int) codes.Field[uint8] {
	return func(dst []uint8, b codes.Block) error {
		first, last := b.Col/metaCols, (b.Col+b.Cols+metaCols-1)/metaCols
		half := codes.Block{Row: b.Row, Rows: b.Rows, Col: first * metaCols / 2, Cols: (last - first) * metaCols / 2}
		of := make([]uint8, half.Rows*half.Cols)
		if err := kept(of, half); err != nil {
			return err
		}
		// The words of 64 rows for 32 columns lie together.
		const rows = 64
		words, all := make([]byte, 2*2*rows), make([]uint8, metaCols)
		for tile := b.Row / rows; tile*rows < b.Row+b.Rows; tile++ {
			for p := first; p < last; p++ {
				if _, err := meta.ReadAt(words, 2*(int64(p/2)*2*int64(n)+int64(tile)*2*rows)); err != nil {
					return err
				}
				from, to := max(b.Col, p*metaCols), min(b.Col+b.Cols, (p+1)*metaCols)
				for r := max(tile*rows, b.Row); r < min((tile+1)*rows, b.Row+b.Rows); r++ {
					at := metaPlace(rows, r-tile*rows, p%2)
					if !spread(all, of[(r-b.Row)*half.Cols+(p-first)*metaCols/2:], words[2*at:], zero) {
						return meta.Errorf("row %d keeps no two of four columns near %d", r, p*metaCols)
					}
					copy(dst[(r-b.Row)*b.Cols+from-b.Col:][:to-from], all[from-p*metaCols:])
				}
			}
		}
		return nil
	}
}
