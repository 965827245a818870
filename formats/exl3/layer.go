package exl3

import (
	"encoding/binary"
	"sync"

	"github.com/lutq/lutq/formats/hf"
	"github.com/lutq/lutq/formats/weight"
	"github.com/lutq/lutq/formats/weight/trellis"
)

// Layer is the weight of a linear layer: N rows and K columns, of more that are stored. It implements [hf.Codec].
type Layer struct {
	N, K       int
	rows, cols int // that are stored
	code       *trellis.Code
	tiles      *hf.Tensor // [cols/16, rows/16, words]

	// The factors of columns and of rows in float16, which are read once.
	inputs, outputs func() ([]byte, error)

	// Bands that are decoded. What reads a layer row by row finds the band of the row before.
	bands sync.Pool
}

// Spec returns how the layer is stored.
func (l *Layer) Spec() weight.Spec {
	m := trellis.Matrix{Code: l.code, ScaleType: weight.F16}
	return m.Spec()
}

// band is some rows that are mixed, as numbers.
type band struct {
	index  int
	values []float32 // [rows, K]
}

// ReadFloat32 implements [hf.Codec].
func (l *Layer) ReadFloat32(dst []float32, start int64) error {
	b, _ := l.bands.Get().(*band)
	if b == nil {
		b = &band{index: -1}
	}
	defer func() { l.bands.Put(b) }()
	for len(dst) > 0 {
		row := int(start / int64(l.K))
		if index := row / trellis.Block; index != b.index {
			if err := l.decode(b, index); err != nil {
				return err
			}
		}
		n := copy(dst, b.values[start-int64(b.index)*trellis.Block*int64(l.K):])
		dst, start = dst[n:], start+int64(n)
	}
	return nil
}

// decode reads a band.
func (l *Layer) decode(b *band, index int) error {
	b.index = -1
	first := index * trellis.Block
	m, err := l.Matrix(first, min(trellis.Block, l.N-first))
	if err != nil {
		return err
	}
	if b.values == nil {
		b.values = make([]float32, min(trellis.Block, l.N)*l.K)
	}
	b.values = b.values[:m.N*l.K]
	m.RowsTo(b.values, 0, m.N)
	b.index = index
	return nil
}

// Matrix returns n rows from a first one on, which begins a band, and which ends one or the layer.
func (l *Layer) Matrix(first, n int) (*trellis.Matrix, error) {
	inputs, err := l.inputs()
	if err != nil {
		return nil, err
	}
	outputs, err := l.outputs()
	if err != nil {
		return nil, err
	}
	last := first + padded(n)
	m := &trellis.Matrix{
		N: n, K: l.K, Code: l.code, ScaleType: weight.F16,
		Scales: outputs[2*first : 2*last], Factors: inputs[:2*padded(l.K)],
	}
	if m.Rings, err = l.rings(first/tile, (last-first)/tile); err != nil {
		return nil, err
	}
	return m, m.Validate()
}

// rings reads n rows of tiles of outputs from a first one on. They are stored as columns.
func (l *Layer) rings(first, n int) ([]byte, error) {
	size, down, across := l.code.Layout().Bytes(), l.rows/tile, padded(l.K)/tile
	all, column := make([]byte, n*across*size), make([]byte, n*size)
	for c := range across {
		if _, err := l.tiles.ReadAt(column, int64(c*down+first)*int64(size)); err != nil {
			return nil, err
		}
		for r := range n {
			copy(all[(r*across+c)*size:][:size], column[r*size:])
		}
	}
	return all, nil
}

// factors returns what reads factors.
func factors(t *hf.Tensor) func() ([]byte, error) {
	return sync.OnceValues(func() ([]byte, error) {
		data := make([]byte, t.Bytes())
		if _, err := t.ReadAt(data, 0); err != nil {
			return nil, err
		}
		if i := hf.F16.FirstNotFinite(data); i >= 0 {
			return nil, t.Errorf("element %d is not finite: want a factor", i)
		}
		return data, nil
	})
}

// signFactors returns what reads signs as factors.
func signFactors(t *hf.Tensor) func() ([]byte, error) {
	const plus, minus = 0x3C00, 0xBC00
	return sync.OnceValues(func() ([]byte, error) {
		words := make([]byte, t.Bytes())
		if _, err := t.ReadAt(words, 0); err != nil {
			return nil, err
		}
		var data []byte
		for i := range 8 * len(words) { // bit i%8 of byte i/8
			f := uint16(plus)
			if words[i/8]>>(i%8)&1 != 0 {
				f = minus
			}
			data = binary.LittleEndian.AppendUint16(data, f)
		}
		return data, nil
	})
}
