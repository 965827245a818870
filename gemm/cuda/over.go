package cuda

import (
	"fmt"

	"github.com/lutq/lutq/gemm/cuda/driver"
	"github.com/lutq/lutq/repack"
)

// Sizes returns the bytes that the codes and the scales of an N×K matrix take in a GPU's memory.
func (f Format) Sizes(n, k int) (codes, scales int) {
	tiles, units := (n+repack.TileRows-1)/repack.TileRows, (k+repack.UnitCols-1)/repack.UnitCols
	return tiles * units * repack.UnitCols * repack.TileRows / 8 * f.Bits, tiles * f.scaleBytes(units)
}

// Over returns N×K matrices that lie one behind the other in memory of somebody else, of [Format.Sizes] each, at multiples of 16 bytes. It is
// to time products, which any codes do for; like is some of the scales.
func (e *Engine) Over(f Format, n, k, count int, codes, scales driver.Ptr, codebook []float32, like []byte) ([]*Matrix, error) {
	if _, err := e.tried(shapeOf(f, n, k, 1)); err != nil {
		return nil, err
	}
	if codes%16 != 0 || scales%16 != 0 {
		return nil, fmt.Errorf("codes at %#x and scales at %#x: want multiples of 16", uint64(codes), uint64(scales))
	}
	first := Matrix{N: n, K: k, Format: f, engine: e, lookup: chosen, part: true, exponent: f.scaleExponent(like, codebook)}
	var err error
	if first.codebook, err = f.table(codebook); err != nil {
		return nil, err
	}
	first.codebook8, first.factor8 = table8(codebook)
	first.integers = e.noCompiler == nil && f.areIntegers(first.codebook)
	ofCodes, ofScales := f.Sizes(n, k)
	first.bytes = int64(ofCodes) + int64(ofScales)
	all := make([]*Matrix, count)
	for i := range all {
		m := first
		m.codes, m.scales = codes+driver.Ptr(i*ofCodes), scales+driver.Ptr(i*ofScales)
		all[i] = &m
	}
	return all, nil
}
