package repack

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math"

	"github.com/lutq/lutq/quantize/lut"
)

// The sizes of the CPU layout.
const (
	Lanes = 16 // rows of a panel
	Half  = 32 // columns of a half-block
)

// CPUPanels is a quantized matrix in the CPU layout. The package
// documentation describes Panels and Scales; Codebook is that of the
// [lut.Matrix].
type CPUPanels struct {
	N, K      int
	Bits      int
	Group     int
	ScaleType lut.ScaleType
	Panels    []byte // [PanelCount][Halves][Bits][16] 32-bit words
	Scales    []byte // [PanelCount][Groups][16] of ScaleType
	Codebook  []float32
}

// PanelCount returns the number of 16-row panels.
func (p *CPUPanels) PanelCount() int { return (p.N + Lanes - 1) / Lanes }

// Halves returns the number of half-blocks in a panel.
func (p *CPUPanels) Halves() int { return (p.K + Half - 1) / Half }

// Groups returns the number of scales of a row.
func (p *CPUPanels) Groups() int { return lut.GroupsIn(p.K, p.Group) }

// HalfBytes returns the size of a half-block.
func (p *CPUPanels) HalfBytes() int { return 4 * Lanes * p.Bits }

// PanelBytes returns the size of the codes of a panel.
func (p *CPUPanels) PanelBytes() int { return p.Halves() * p.HalfBytes() }

// PanelScaleBytes returns the size of the scales of a panel.
func (p *CPUPanels) PanelScaleBytes() int { return p.Groups() * Lanes * p.ScaleType.Size() }

// Bytes returns the memory that the matrix takes.
func (p *CPUPanels) Bytes() int64 {
	return int64(len(p.Panels)) + int64(len(p.Scales)) + 4*int64(len(p.Codebook))
}

// Validate reports the first disagreement between the fields. It does not
// look at the padding, as [CPUPanels.Matrix] does.
func (p *CPUPanels) Validate() error {
	switch {
	case p.N <= 0 || p.K <= 0 || p.N > math.MaxInt32 || p.K > math.MaxInt32:
		return fmt.Errorf("shape %d×%d is out of range", p.N, p.K)
	case p.Bits < lut.MinBits || p.Bits > lut.MaxBits:
		return fmt.Errorf("%d bits a code: want %d to %d", p.Bits, lut.MinBits, lut.MaxBits)
	case p.Group <= 0 || p.Group > p.K:
		return fmt.Errorf("group of %d columns in a row of %d", p.Group, p.K)
	case p.ScaleType.Size() == 0:
		return errors.New("unknown scale type")
	case !isProduct(len(p.Panels), p.PanelCount(), p.PanelBytes()):
		return fmt.Errorf("panels take %d bytes: want %d panels of %d", len(p.Panels), p.PanelCount(), p.PanelBytes())
	case !isProduct(len(p.Scales), p.PanelCount(), p.PanelScaleBytes()):
		return fmt.Errorf("panel scales take %d bytes: want %d panels of %d", len(p.Scales), p.PanelCount(), p.PanelScaleBytes())
	case len(p.Codebook) != 1<<p.Bits:
		return fmt.Errorf("codebook of %d values: want %d", len(p.Codebook), 1<<p.Bits)
	}
	return nil
}

// isProduct reports whether n = a·b, for positive a and b whose product may
// overflow.
func isProduct(n, a, b int) bool { return n%a == 0 && n/a == b }

// CPU lays m out in panels. Equal matrices give equal bytes.
func CPU(m *lut.Matrix) (*CPUPanels, error) {
	if err := m.Validate(); err != nil {
		return nil, err
	}
	p := &CPUPanels{N: m.N, K: m.K, Bits: m.Bits, Group: m.Group, ScaleType: m.ScaleType}
	p.Panels = make([]byte, p.PanelCount()*p.PanelBytes())
	p.Scales = make([]byte, p.PanelCount()*p.PanelScaleBytes())
	p.Codebook = append(p.Codebook, m.Codebook...)

	codes := make([]uint8, p.Halves()*Half) // stays 0 beyond K
	groups, size := p.Groups(), p.ScaleType.Size()
	for n := range m.N {
		panel, lane := n/Lanes, n%Lanes
		m.RowCodes(codes[:m.K], n)
		for h := range p.Halves() {
			p.packHalf(p.half(panel, h), codes[h*Half:], lane)
		}
		scales := p.Scales[panel*p.PanelScaleBytes():]
		for g := range groups {
			copy(scales[(g*Lanes+lane)*size:][:size], m.Scales[(n*groups+g)*size:])
		}
	}
	return p, nil
}

// Matrix returns the canonical form. It fails where the padding is not 0,
// which [CPU] never leaves.
func (p *CPUPanels) Matrix() (*lut.Matrix, error) {
	if err := p.Validate(); err != nil {
		return nil, err
	}
	m := &lut.Matrix{N: p.N, K: p.K, Bits: p.Bits, Group: p.Group, ScaleType: p.ScaleType}
	groups, size := p.Groups(), p.ScaleType.Size()
	m.Codes = make([]byte, m.N*m.RowBytes())
	m.Scales = make([]byte, m.N*groups*size)
	m.Codebook = append(m.Codebook, p.Codebook...)

	codes := make([]uint8, p.Halves()*Half)
	for n := range p.PanelCount() * Lanes {
		panel, lane := n/Lanes, n%Lanes
		for h := range p.Halves() {
			p.unpackHalf(codes[h*Half:], p.half(panel, h), lane)
		}
		pad := codes[m.K:]
		if n >= m.N {
			pad = codes
		}
		if len(bytes.Trim(pad, "\x00")) > 0 {
			return nil, fmt.Errorf("codes in the padding of row %d", n)
		}
		scales := p.Scales[panel*p.PanelScaleBytes():]
		for g := range groups {
			s := scales[(g*Lanes+lane)*size:][:size]
			if n < m.N {
				copy(m.Scales[(n*groups+g)*size:], s)
			} else if len(bytes.Trim(s, "\x00")) > 0 {
				return nil, fmt.Errorf("scale in the padding of row %d", n)
			}
		}
		if n < m.N {
			lut.PackCodes(m.Codes[n*m.RowBytes():(n+1)*m.RowBytes()], codes[:m.K], m.Bits)
		}
	}
	return m, nil
}

// half returns the words of a half-block.
func (p *CPUPanels) half(panel, h int) []byte {
	hb := p.HalfBytes()
	return p.Panels[panel*p.PanelBytes()+h*hb:][:hb]
}

// packHalf writes 32 codes to a lane of the words of a half-block.
func (p *CPUPanels) packHalf(words []byte, codes []uint8, lane int) {
	bits := p.Bits
	per := 32 / bits
	spare := uint32(codes[30]) | uint32(codes[31])<<bits
	for j := range bits {
		var w uint32
		for i, c := range codes[j*per : (j+1)*per] {
			w |= uint32(c) << (i * bits)
		}
		if per*bits < 32 {
			w |= spare >> (2 * j) << 30
		}
		binary.LittleEndian.PutUint32(words[4*(j*Lanes+lane):], w)
	}
}

// unpackHalf is the inverse of packHalf.
func (p *CPUPanels) unpackHalf(codes []uint8, words []byte, lane int) {
	bits := p.Bits
	per := 32 / bits
	mask := uint32(1)<<bits - 1
	var spare uint32
	for j := range bits {
		w := binary.LittleEndian.Uint32(words[4*(j*Lanes+lane):])
		spare |= w >> 30 << (2 * j)
		for i := range per {
			codes[j*per+i] = uint8(w >> (i * bits) & mask)
		}
	}
	if per*bits < 32 {
		codes[30] = uint8(spare & mask)
		codes[31] = uint8(spare >> bits & mask)
	}
}
