package repack

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"

	"github.com/lutq/lutq/formats/weight"
	"github.com/lutq/lutq/formats/weight/lut"
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
	ScaleType weight.ScaleType
	Panels    []byte // [PanelCount][Halves][Bits][16] 32-bit words
	Scales    []byte // [PanelCount][Groups][16] of ScaleType
	Codebook  []float32

	// ByBytes says that the words hold their codes by bytes.
	ByBytes bool
}

// PanelCount returns the number of 16-row panels.
func (p *CPUPanels) PanelCount() int { return (p.N + Lanes - 1) / Lanes }

// Halves returns the number of half-blocks in a panel.
func (p *CPUPanels) Halves() int { return (p.K + Half - 1) / Half }

// Groups returns the number of scales of a row.
func (p *CPUPanels) Groups() int { return weight.GroupsIn(p.K, p.Group) }

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

// CPU lays m out in panels, on all processors. Equal matrices give equal bytes.
func CPU(m *lut.Matrix) (*CPUPanels, error) {
	if err := m.Validate(); err != nil {
		return nil, err
	}
	p := &CPUPanels{N: m.N, K: m.K, Bits: m.Bits, Group: m.Group, ScaleType: m.ScaleType}
	p.Panels = make([]byte, p.PanelCount()*p.PanelBytes())
	p.Scales = make([]byte, p.PanelCount()*p.PanelScaleBytes())
	p.Codebook = append(p.Codebook, m.Codebook...)

	return p, overTiles(p.PanelCount(), func(from, to int) error {
		rows := make([]byte, Lanes*p.rowBytes()+slack)
		for panel := from; panel < to; panel++ {
			p.pack(panel, rows, m)
		}
		return nil
	})
}

// rowBytes returns the size of a row of canonical codes with its padding.
func (p *CPUPanels) rowBytes() int { return p.Halves() * Half / 8 * p.Bits }

// pack writes a panel. rows is scratch for its rows of canonical codes.
func (p *CPUPanels) pack(panel int, rows []byte, m *lut.Matrix) {
	width, groups, size := p.rowBytes(), p.Groups(), p.ScaleType.Size()
	scales := p.Scales[panel*p.PanelScaleBytes():]
	for lane := range Lanes {
		n := panel*Lanes + lane
		copyRow(rows[lane*width:][:width], m, n)
		if n >= m.N {
			continue
		}
		for g := range groups {
			copy(scales[(g*Lanes+lane)*size:][:size], m.Scales[(n*groups+g)*size:])
		}
	}
	for h := range p.Halves() {
		words := p.half(panel, h)
		for lane := range Lanes {
			p.packHalf(words, rows[lane*width+h*Half/8*p.Bits:], lane)
		}
	}
}

// Matrix returns the canonical form. It fails where the padding is not 0,
// which [CPU] never leaves.
func (p *CPUPanels) Matrix() (*lut.Matrix, error) {
	if err := p.Validate(); err != nil {
		return nil, err
	}
	m := &lut.Matrix{N: p.N, K: p.K, Bits: p.Bits, Group: p.Group, ScaleType: p.ScaleType}
	m.Codes = make([]byte, m.N*m.RowBytes())
	m.Scales = make([]byte, m.N*p.Groups()*p.ScaleType.Size())
	m.Codebook = append(m.Codebook, p.Codebook...)

	err := overTiles(p.PanelCount(), func(from, to int) error {
		rows := make([]byte, Lanes*p.rowBytes()+slack)
		for panel := from; panel < to; panel++ {
			if err := p.unpack(panel, rows, m); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return m, nil
}

// unpack reads a panel. rows is scratch for its rows of canonical codes.
func (p *CPUPanels) unpack(panel int, rows []byte, m *lut.Matrix) error {
	width, groups, size := p.rowBytes(), p.Groups(), p.ScaleType.Size()
	for h := range p.Halves() {
		words := p.half(panel, h)
		for lane := range Lanes {
			p.unpackHalf(rows[lane*width+h*Half/8*p.Bits:], words, lane)
		}
	}
	scales := p.Scales[panel*p.PanelScaleBytes():]
	for lane := range Lanes {
		n := panel*Lanes + lane
		if !takeRow(m, n, rows[lane*width:][:width]) {
			return fmt.Errorf("codes in the padding of row %d", n)
		}
		for g := range groups {
			s := scales[(g*Lanes+lane)*size:][:size]
			if n < m.N {
				copy(m.Scales[(n*groups+g)*size:], s)
			} else if !zeros(s) {
				return fmt.Errorf("scale in the padding of row %d", n)
			}
		}
	}
	return nil
}

// half returns the words of a half-block.
func (p *CPUPanels) half(panel, h int) []byte {
	hb := p.HalfBytes()
	return p.Panels[panel*p.PanelBytes()+h*hb:][:hb]
}

// Rearranged returns the matrix with its codes by bytes, or not, in words of their own. All else is shared.
func (p *CPUPanels) Rearranged(byBytes bool) (*CPUPanels, error) {
	if err := p.Validate(); err != nil {
		return nil, err
	}
	to := *p
	to.ByBytes, to.Panels = byBytes, make([]byte, len(p.Panels))
	return &to, overTiles(p.PanelCount(), func(from, until int) error {
		var codes [4*lut.MaxBits + slack]byte
		for panel := from; panel < until; panel++ {
			for h := range p.Halves() {
				for lane := range Lanes {
					p.unpackHalf(codes[:], p.half(panel, h), lane)
					to.packHalf(to.half(panel, h), codes[:], lane)
				}
			}
		}
		return nil
	})
}

// packHalf writes 32 canonical codes to a lane of the words of a half-block.
func (p *CPUPanels) packHalf(words, codes []byte, lane int) {
	if p.ByBytes {
		p.packBytes(words, codes, lane)
		return
	}
	used := 32 / p.Bits * p.Bits // bits of a word that are whole codes
	spare := field(codes, p.Bits*used, p.Bits*(32-used))
	for j := range p.Bits {
		w := field(codes, j*used, used) | spare>>(2*j)<<30
		binary.LittleEndian.PutUint32(words[4*(j*Lanes+lane):], uint32(w))
	}
}

// unpackHalf is the inverse of packHalf.
func (p *CPUPanels) unpackHalf(codes, words []byte, lane int) {
	if p.ByBytes {
		p.unpackBytes(codes, words, lane)
		return
	}
	used := 32 / p.Bits * p.Bits
	clear(codes[:4*p.Bits])
	var spare uint64
	for j := range p.Bits {
		w := uint64(binary.LittleEndian.Uint32(words[4*(j*Lanes+lane):]))
		setField(codes, j*used, w&(1<<used-1))
		spare |= w >> used << (j * (32 - used))
	}
	if used < 32 {
		setField(codes, p.Bits*used, spare)
	}
}

// packBytes is packHalf by bytes. Of four codes, one to a byte, it makes one step.
func (p *CPUPanels) packBytes(words, codes []byte, lane int) {
	var w [lut.MaxBits]uint32
	for l := range 8 {
		v := uint32(field(codes, 4*l*p.Bits, 4*p.Bits))
		v = spread(v, p.Bits)
		switch {
		case p.Bits == 2:
			w[l/4] |= v << (2 * (l % 4))
		case p.Bits == 3 && l < 6:
			w[l/2] |= v << (4 * (l % 2))
		case p.Bits == 3:
			for j := range 3 {
				w[j] |= v >> j & 0x01010101 << (3 + 4*(l-6))
			}
		default:
			w[l/2] |= v & 0x0f0f0f0f << (4 * (l % 2))
			if p.Bits == 5 {
				w[4] |= v >> 4 & 0x01010101 << (7 - l)
			}
		}
	}
	for j := range p.Bits {
		binary.LittleEndian.PutUint32(words[4*(j*Lanes+lane):], w[j])
	}
}

// unpackBytes is the inverse of packBytes.
func (p *CPUPanels) unpackBytes(codes, words []byte, lane int) {
	var w [lut.MaxBits]uint32
	for j := range p.Bits {
		w[j] = binary.LittleEndian.Uint32(words[4*(j*Lanes+lane):])
	}
	clear(codes[:4*p.Bits])
	for l := range 8 {
		var v uint32
		switch {
		case p.Bits == 2:
			v = w[l/4] >> (2 * (l % 4)) & 0x03030303
		case p.Bits == 3 && l < 6:
			v = w[l/2] >> (4 * (l % 2)) & 0x07070707
		case p.Bits == 3:
			for j := range 3 {
				v |= w[j] >> (3 + 4*(l-6)) & 0x01010101 << j
			}
		default:
			v = w[l/2] >> (4 * (l % 2)) & 0x0f0f0f0f
			if p.Bits == 5 {
				v |= w[4] >> (7 - l) & 0x01010101 << 4
			}
		}
		setField(codes, 4*l*p.Bits, uint64(gather(v, p.Bits)))
	}
}

// spread moves four codes that follow each other to a byte each.
func spread(v uint32, bits int) uint32 {
	mask := uint32(1)<<bits - 1
	return v&mask | v>>bits&mask<<8 | v>>(2*bits)&mask<<16 | v>>(3*bits)&mask<<24
}

// gather is the inverse of spread.
func gather(v uint32, bits int) uint32 {
	return v&0xff | v>>8&0xff<<bits | v>>16&0xff<<(2*bits) | v>>24<<(3*bits)
}
