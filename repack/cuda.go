package repack

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/bits"

	"github.com/lutq/lutq/quantize/lut"
)

// The sizes of the CUDA layout.
const (
	TileRows  = 16  // rows of a tile: the m of mma.m16n8k16
	AtomCols  = 128 // columns of an atom
	UnitCols  = 256 // columns of a unit, which K is padded to
	AtomPairs = 32  // pairs of weights of an atom that a lane holds
	halfPairs = AtomPairs / 2
	warp      = 32
)

// CUDATiles is a quantized matrix in the layout of the CUDA kernels, the same
// for every NVIDIA architecture. Each weight takes exactly Bits bits apart from
// padding, and each scale its own size.
//
// # Tiles and atoms
//
// Rows are taken 16 at a time, a tile; columns 128 at a time, an atom of 2048
// weights, and two atoms make a unit. With
//
//	tiles = ⌈N/16⌉      units = ⌈K/256⌉      atoms = 2·units
//
// Codes is [tiles][atoms][256·Bits bytes], so the codes of a tile are
// contiguous. An atom is the A operand of eight mma.m16n8k16 steps, cut so that
// a lane of the warp reads 2·Bits 32-bit words of it, little-endian, with
// 16-byte loads and, where Bits is odd, one 8-byte load. Word j of lane l lies at
// byte
//
//	512·⌊j/4⌋ + 16·l + 4·(j%4)     for words in a full four
//	512·⌊j/4⌋ +  8·l + 4·(j%4)     for the last two words where Bits is odd
//
// # Fragments
//
// With lane l = 4·g + t, step s of the atom (0 to 7) takes four registers from
// a lane, r = 0 to 3, each a pair of weights of consecutive columns of one row.
// The instruction fixes the row, g + 8·(r%2). It leaves the columns free as long
// as X follows, so they are permuted for X to be read 16 bytes at a time: for
// e = 0, 1 the columns of the pair are
//
//	128·atom + 32·⌊s/2⌋ + 8·t + 4·(s%2) + 2·⌊r/2⌋ + e
//
// so two steps use eight consecutive columns of X a lane, and 32 consecutive
// columns a warp: no scale of 32 or more columns changes inside them.
//
// # Codes of a lane
//
// Pair p = 4·s + r of an atom holds the codes c0 and c1. Steps 0 to 3 make up
// the first half of the atom and steps 4 to 7 the second, each encoded in Bits
// words alike. Let q = p%16, within a half:
//
//	2 bits: c0 + 4·c1 at bit 4·(q%8) of word q/8. A byte is two pairs.
//	4 bits: c0 + 16·c1 at bit 8·(q%4) of word q/4. A byte is a pair.
//	3 bits: a plane of the two low bits of the codes and one of the high bits,
//	        so that a shift and a select leave a pair in each byte. Low bits,
//	        as c0%4 + 4·(c1%4): at bit 8·(q%4) + 4·(s%2) of low word (s%4)/2. High
//	        bits, as c0/4 + 2·(c1/4): at bit 8·(q%4) + {4, 6, 2, 0}[s%4] of the
//	        high word.
//	5 bits: c0 + 32·c1, ten bits. Of the first fifteen pairs at bit
//	        (9 + 2·j + 10·f) % 32 of word j = q/3, f = q%3, around the end of the
//	        word. Bits 2j and 2j+1 of the last at bit 7+2j of word j.
//
// The words of a lane are those of the first half, then those of the second;
// at 3 bits the four low words of both come before the two high words.
//
// # Scales
//
// Scales lie apart in the number format of the matrix, in the order in which a
// lane needs them for its two rows g and g + 8:
//
//	Group 32, 64, 128: [tiles][atoms][8 (g)][128/Group][2]
//	Group 256:         [tiles][units][8][1][2]
//	Group K:           [tiles][8][2], one scale a row
//
// A matrix whose group is K counts as the last, whatever K is. Other groups
// have no layout.
//
// Rows beyond N, columns beyond K and groups beyond the last are padding, with
// code 0 and scale 0. Kernels read padded columns and multiply them by zeros.
type CUDATiles struct {
	N, K      int
	Bits      int
	Group     int
	ScaleType lut.ScaleType
	Codes     []byte
	Scales    []byte
	Codebook  []float32
}

// Tiles returns the number of 16-row tiles.
func (p *CUDATiles) Tiles() int { return (p.N + TileRows - 1) / TileRows }

// Units returns the number of 256-column units of a tile.
func (p *CUDATiles) Units() int { return (p.K + UnitCols - 1) / UnitCols }

// Atoms returns the number of 128-column atoms of a tile.
func (p *CUDATiles) Atoms() int { return p.Units() * (UnitCols / AtomCols) }

// AtomBytes returns the size of the codes of an atom.
func (p *CUDATiles) AtomBytes() int { return TileRows * AtomCols / 8 * p.Bits }

// TileBytes returns the size of the codes of a tile.
func (p *CUDATiles) TileBytes() int { return p.Atoms() * p.AtomBytes() }

// RowScale reports whether there is one scale a row.
func (p *CUDATiles) RowScale() bool { return p.Group == p.K }

// ScaleSlots returns how many scales of a row a tile has room for: those of the
// padding included.
func (p *CUDATiles) ScaleSlots() int {
	switch {
	case p.RowScale():
		return 1
	case p.Group > AtomCols:
		return p.Units()
	}
	return p.Atoms() * (AtomCols / p.Group)
}

// TileScaleBytes returns the size of the scales of a tile.
func (p *CUDATiles) TileScaleBytes() int { return TileRows * p.ScaleSlots() * p.ScaleType.Size() }

// Bytes returns the memory that the matrix takes.
func (p *CUDATiles) Bytes() int64 {
	return int64(len(p.Codes)) + int64(len(p.Scales)) + 4*int64(len(p.Codebook))
}

// Validate reports the first disagreement between the fields. It does not
// look at the padding, as [CUDATiles.Matrix] does.
func (p *CUDATiles) Validate() error {
	switch {
	case p.N <= 0 || p.K <= 0 || p.N > math.MaxInt32 || p.K > math.MaxInt32:
		return fmt.Errorf("shape %d×%d is out of range", p.N, p.K)
	case p.Bits < lut.MinBits || p.Bits > lut.MaxBits:
		return fmt.Errorf("%d bits a code: want %d to %d", p.Bits, lut.MinBits, lut.MaxBits)
	case p.ScaleType.Size() == 0:
		return errors.New("unknown scale type")
	case len(p.Codebook) != 1<<p.Bits:
		return fmt.Errorf("codebook of %d values: want %d", len(p.Codebook), 1<<p.Bits)
	}
	if err := checkCUDAGroup(p.Group, p.K); err != nil {
		return err
	}
	switch {
	case !isProduct(len(p.Codes), p.Tiles(), p.TileBytes()):
		return fmt.Errorf("codes take %d bytes: want %d tiles of %d", len(p.Codes), p.Tiles(), p.TileBytes())
	case !isProduct(len(p.Scales), p.Tiles(), p.TileScaleBytes()):
		return fmt.Errorf("tile scales take %d bytes: want %d tiles of %d", len(p.Scales), p.Tiles(), p.TileScaleBytes())
	}
	return nil
}

func checkCUDAGroup(group, k int) error {
	switch group {
	case k, 32, 64, 128, 256:
		if group > k {
			return fmt.Errorf("group of %d columns in a row of %d", group, k)
		}
		return nil
	}
	return fmt.Errorf("no CUDA layout for groups of %d columns: want 32, 64, 128, 256 or the whole row of %d", group, k)
}

// CUDA lays m out in tiles. Equal matrices give equal bytes. It fails where
// the group of m has no layout.
func CUDA(m *lut.Matrix) (*CUDATiles, error) {
	if err := m.Validate(); err != nil {
		return nil, err
	}
	if err := checkCUDAGroup(m.Group, m.K); err != nil {
		return nil, err
	}
	p := &CUDATiles{N: m.N, K: m.K, Bits: m.Bits, Group: m.Group, ScaleType: m.ScaleType}
	p.Codes = make([]byte, p.Tiles()*p.TileBytes())
	p.Scales = make([]byte, p.Tiles()*p.TileScaleBytes())
	p.Codebook = append(p.Codebook, m.Codebook...)

	width := p.Atoms() * AtomCols
	codes := make([]uint8, TileRows*width)
	groups, size := m.Groups(), p.ScaleType.Size()
	for tile := range p.Tiles() {
		clear(codes)
		for row := range TileRows {
			n := tile*TileRows + row
			if n >= m.N {
				break
			}
			m.RowCodes(codes[row*width:][:m.K], n)
			for g := range groups {
				copy(p.scale(tile, row, g), m.Scales[(n*groups+g)*size:][:size])
			}
		}
		for atom := range p.Atoms() {
			dst := p.atom(tile, atom)
			for lane := range warp {
				var pairs [AtomPairs]uint16
				for i := range pairs {
					row, col := pairAt(lane, i)
					c := codes[row*width+atom*AtomCols+col:]
					pairs[i] = uint16(c[0]) | uint16(c[1])<<p.Bits
				}
				var words [2 * lut.MaxBits]uint32
				packPairs(&words, &pairs, p.Bits)
				for j, w := range words[:2*p.Bits] {
					binary.LittleEndian.PutUint32(dst[wordAt(p.Bits, lane, j):], w)
				}
			}
		}
	}
	return p, nil
}

// Matrix returns the canonical form. It fails where the padding is not 0,
// which [CUDA] never leaves.
func (p *CUDATiles) Matrix() (*lut.Matrix, error) {
	if err := p.Validate(); err != nil {
		return nil, err
	}
	m := &lut.Matrix{N: p.N, K: p.K, Bits: p.Bits, Group: p.Group, ScaleType: p.ScaleType}
	groups, size := m.Groups(), p.ScaleType.Size()
	m.Codes = make([]byte, m.N*m.RowBytes())
	m.Scales = make([]byte, m.N*groups*size)
	m.Codebook = append(m.Codebook, p.Codebook...)

	width := p.Atoms() * AtomCols
	codes := make([]uint8, TileRows*width)
	mask := uint16(1)<<p.Bits - 1
	for tile := range p.Tiles() {
		for atom := range p.Atoms() {
			src := p.atom(tile, atom)
			for lane := range warp {
				var words [2 * lut.MaxBits]uint32
				for j := range words[:2*p.Bits] {
					words[j] = binary.LittleEndian.Uint32(src[wordAt(p.Bits, lane, j):])
				}
				var pairs [AtomPairs]uint16
				unpackPairs(&pairs, &words, p.Bits)
				for i, pair := range pairs {
					row, col := pairAt(lane, i)
					c := codes[row*width+atom*AtomCols+col:]
					c[0], c[1] = uint8(pair&mask), uint8(pair>>p.Bits)
				}
			}
		}
		for row := range TileRows {
			n := tile*TileRows + row
			c := codes[row*width:][:width]
			pad, used := c[m.K:], groups
			if n >= m.N {
				pad, used = c, 0
			}
			if len(bytes.Trim(pad, "\x00")) > 0 {
				return nil, fmt.Errorf("codes in the padding of row %d", n)
			}
			for g := range p.ScaleSlots() {
				s := p.scale(tile, row, g)
				if g < used {
					copy(m.Scales[(n*groups+g)*size:], s)
				} else if len(bytes.Trim(s, "\x00")) > 0 {
					return nil, fmt.Errorf("scale in the padding of row %d", n)
				}
			}
			if n < m.N {
				lut.PackCodes(m.Codes[n*m.RowBytes():(n+1)*m.RowBytes()], c[:m.K], m.Bits)
			}
		}
	}
	return m, nil
}

// atom returns the codes of an atom.
func (p *CUDATiles) atom(tile, atom int) []byte {
	return p.Codes[tile*p.TileBytes()+atom*p.AtomBytes():][:p.AtomBytes()]
}

// scale returns the scale of a group of a row of a tile.
func (p *CUDATiles) scale(tile, row, group int) []byte {
	per := 1 // scales of a row that lie together
	if !p.RowScale() && p.Group <= AtomCols {
		per = AtomCols / p.Group
	}
	size := p.ScaleType.Size()
	i := ((group/per*8+row%8)*per+group%per)*2 + row/8
	return p.Scales[tile*p.TileScaleBytes()+i*size:][:size]
}

// pairAt returns the row and the first column, within an atom, of pair p of a
// lane.
func pairAt(lane, p int) (row, col int) {
	g, t := lane/4, lane%4
	s, r := p/4, p%4
	return g + r%2*8, s/2*32 + t*8 + s%2*4 + r/2*2
}

// wordAt returns the byte of word j of a lane in an atom.
func wordAt(bits, lane, j int) int {
	four := j / 4
	per := min(4, 2*bits-4*four)
	return four*4*4*warp + lane*4*per + j%4*4
}

// highBit returns where in a byte the high bits of the pairs of a step lie, at
// 3 bits.
func highBit(step int) int { return [4]int{4, 6, 2, 0}[step%4] }

// packPairs writes the words of a lane.
func packPairs(words *[2 * lut.MaxBits]uint32, pairs *[AtomPairs]uint16, width int) {
	for p, pair := range pairs {
		h, q, s, r := p/halfPairs, p%halfPairs, p/4%4, p%4
		v := uint32(pair)
		switch width {
		case 2:
			words[2*h+q/8] |= v << (q % 8 * 4)
		case 3:
			words[2*h+s/2] |= (v&3 | v>>1&0xc) << (8*r + 4*(s%2))
			words[4+h] |= (v>>2&1 | v>>4&2) << (8*r + highBit(s))
		case 4:
			words[4*h+q/4] |= v << (8 * r)
		case 5:
			if q == halfPairs-1 {
				for j := range 5 {
					words[5*h+j] |= bits.RotateLeft32(v>>(2*j)&3, 7+2*j)
				}
				break
			}
			words[5*h+q/3] |= bits.RotateLeft32(v, 9+2*(q/3)+10*(q%3))
		}
	}
}

// unpackPairs is the inverse of packPairs.
func unpackPairs(pairs *[AtomPairs]uint16, words *[2 * lut.MaxBits]uint32, width int) {
	for p := range pairs {
		h, q, s, r := p/halfPairs, p%halfPairs, p/4%4, p%4
		var v uint32
		switch width {
		case 2:
			v = words[2*h+q/8] >> (q % 8 * 4) & 0xf
		case 3:
			low := words[2*h+s/2] >> (8*r + 4*(s%2))
			high := words[4+h] >> (8*r + highBit(s))
			v = low&3 | high&1<<2 | low&0xc<<1 | high&2<<4
		case 4:
			v = words[4*h+q/4] >> (8 * r) & 0xff
		case 5:
			if q == halfPairs-1 {
				for j := range 5 {
					v |= bits.RotateLeft32(words[5*h+j], -7-2*j) & 3 << (2 * j)
				}
				break
			}
			v = bits.RotateLeft32(words[5*h+q/3], -9-2*(q/3)-10*(q%3)) & 0x3ff
		}
		pairs[p] = uint16(v)
	}
}
