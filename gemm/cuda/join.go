package cuda

import (
	"errors"
	"slices"

	"github.com/lutq/lutq/gemm/cuda/driver"
	"github.com/lutq/lutq/repack"
)

// CanJoin reports whether [Engine.Join] would make one matrix of several.
func CanJoin(parts ...*Matrix) bool {
	first := parts[0]
	for i, m := range parts {
		if m.codes == 0 || m.part || m.K != first.K || m.Format != first.Format || !slices.Equal(m.codebook, first.codebook) ||
			m.fp8 != first.fp8 || m.factor8 != first.factor8 || !slices.Equal(m.codebook8, first.codebook8) ||
			m.N%repack.TileRows != 0 && i < len(parts)-1 {
			return false
		}
	}
	return true
}

// Join makes one matrix of several that X is multiplied by together, the rows of one behind those of the other. They
// become parts of it: their own memory is given back, and closing them gives back none. It returns nil where the
// matrices differ in more than their rows, or one before the last does not end with a tile.
func (e *Engine) Join(parts ...*Matrix) (*Matrix, error) {
	first := parts[0]
	all := &Matrix{
		K: first.K, Format: first.Format, engine: e, codebook: first.codebook, lookup: chosen, integers: first.integers, exponent: first.exponent,
		fp8: first.fp8, codebook8: first.codebook8, factor8: first.factor8,
	}
	units := (first.K + repack.UnitCols - 1) / repack.UnitCols
	codes, scales := units*repack.UnitCols*repack.TileRows/8*first.Format.Bits, first.Format.scaleBytes(units) // of a tile
	if !CanJoin(parts...) {
		return nil, nil
	}
	tiles := 0
	for _, m := range parts {
		all.N += m.N
		all.bytes += m.bytes
		all.exponent = min(all.exponent, m.exponent)
		tiles += m.tiles()
	}
	var err error
	if all.codes, err = e.dev.Alloc(tiles * codes); err != nil {
		return nil, err
	}
	if all.scales, err = e.dev.Alloc(tiles * scales); err != nil {
		return nil, errors.Join(err, all.Close())
	}
	at := 0
	for _, m := range parts {
		toCodes, toScales := all.codes+driver.Ptr(at*codes), all.scales+driver.Ptr(at*scales)
		if err := errors.Join(e.dev.Copy(toCodes, m.codes, m.tiles()*codes), e.dev.Copy(toScales, m.scales, m.tiles()*scales)); err != nil {
			return nil, errors.Join(err, all.Close())
		}
		at += m.tiles()
	}
	at = 0
	for _, m := range parts {
		if err := m.Close(); err != nil {
			return nil, err
		}
		m.codes, m.scales, m.part = all.codes+driver.Ptr(at*codes), all.scales+driver.Ptr(at*scales), true
		at += m.tiles()
	}
	return all, nil
}

func (w *Matrix) tiles() int { return (w.N + repack.TileRows - 1) / repack.TileRows }
