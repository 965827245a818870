package gguf

import (
	"encoding/binary"

	"github.com/lutq/lutq/formats/foreign"
	"github.com/lutq/lutq/formats/foreign/codes"
	"github.com/lutq/lutq/formats/hf"
	"github.com/lutq/lutq/formats/num"
)

// matrix returns the view as codes of one table times a scale for every 32 columns, nil where it is
// stored in another way.
func (v *View) matrix() *codes.Matrix {
	t := v.Raw[0].Type
	for _, raw := range v.Raw {
		if raw.Type != t {
			return nil
		}
	}
	m := &codes.Matrix{N: v.n * len(v.pieces), K: v.k, Group: block, ScaleType: hf.F16}
	switch t {
	case Q4_0:
		m.Bits, m.Values = 4, foreign.Integers(4)
	case Q5_0:
		m.Bits, m.Values = 5, foreign.Integers(5)
	case Q8_0:
		m.Bits, m.Values = 8, foreign.Integers(8)
	case IQ4_NL:
		m.Bits, m.Values = 4, iq4Values()[:]
	case MXFP4:
		m.Bits, m.Values, m.ScaleType = 4, codes.E2M1(), hf.F8E8M0
	default:
		return nil
	}
	if v.of != nil || len(v.Shape) < 2 || !v.plain() && !v.wholeBlocks() {
		return nil
	}
	m.Codes = blockField(v, func(dst []uint8, b []byte) { blockCodes(t, dst, b) }, block)
	m.Scales = blockField(v, func(dst []float32, b []byte) { dst[0] = blockScale(t, b) }, 1)
	return m
}

// wholeBlocks reports whether columns stand in another order, but whole blocks of them together.
func (v *View) wholeBlocks() bool {
	for i, at := range v.places {
		if i%block != 0 && at != v.places[i-1]+1 || i%block == 0 && at%block != 0 {
			return false
		}
	}
	return v.places != nil
}

// blockScale returns what the levels of a block are multiplied by.
func blockScale(t Type, b []byte) float32 {
	if t == MXFP4 {
		return num.F8E8M0ToF32(b[0])
	}
	return half(b)
}

// blockCodes reads the 32 codes of a block.
func blockCodes(t Type, dst []uint8, b []byte) {
	_, size := t.Block()
	dst = dst[:block]
	if t == Q8_0 {
		for j := range dst {
			dst[j] = b[2+j] ^ 0x80 // from two's complement to the order of values
		}
		return
	}
	for j, q := range b[size-block/2 : size] {
		dst[j], dst[j+block/2] = q&15, q>>4
	}
	if t == Q5_0 {
		high := binary.LittleEndian.Uint32(b[2:])
		for j := range dst {
			dst[j] |= uint8(high >> j & 1 << 4)
		}
	}
}

// blockField reads what each block of rows has of something: per of them.
func blockField[T any](v *View, read func(dst []T, b []byte), per int) codes.Field[T] {
	_, size := v.Raw[0].Type.Block()
	rowBytes := int64(v.k / block * size)
	return func(dst []T, b codes.Block) error {
		first, last := b.Col/per, (b.Col+b.Cols-1)/per // blocks
		raw, all := make([]byte, (last-first+1)*size), make([]T, (last-first+1)*per)
		for r := range b.Rows {
			from, at := v.find(int64(b.Row + r))
			if err := v.readBlocks(raw, from.raw, at*rowBytes, first, size); err != nil {
				return err
			}
			for i := range last - first + 1 {
				read(all[i*per:(i+1)*per], raw[i*size:(i+1)*size])
			}
			copy(dst[r*b.Cols:(r+1)*b.Cols], all[b.Col-first*per:])
		}
		return nil
	}
}

// readBlocks reads blocks of size bytes from one on of a row that begins at off.
func (v *View) readBlocks(dst []byte, from *Raw, off int64, first, size int) error {
	if v.places == nil {
		_, err := from.ReadAt(dst, off+int64(first*size))
		return err
	}
	for i := range len(dst) / size {
		at := v.places[(first+i)*block] / block
		if _, err := from.ReadAt(dst[i*size:(i+1)*size], off+int64(at*size)); err != nil {
			return err
		}
	}
	return nil
}
