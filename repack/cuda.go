package repack

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/bits"
	"slices"

	"github.com/lutq/lutq/formats/weight"
	"github.com/lutq/lutq/formats/weight/lut"
)

// The sizes of the CUDA layout.
const (
	TileRows = 16  // rows of a tile: the m of mma.m16n8k16
	AtomCols = 128 // columns of an atom
	UnitCols = 256 // columns of a unit, which K is padded to
	warp     = 32
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
	ScaleType weight.ScaleType
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
	switch {
	case group != k && !slices.Contains(weight.Groups(), group):
		return fmt.Errorf("no CUDA layout for groups of %d columns: want one of %v or the whole row of %d", group, weight.Groups(), k)
	case group > k:
		return fmt.Errorf("group of %d columns in a row of %d", group, k)
	}
	return nil
}

// CUDA lays m out in tiles, on all processors. Equal matrices give equal bytes. It fails where
// the group of m has no layout.
func CUDA(m *lut.Matrix) (*CUDATiles, error) {
	if err := m.Validate(); err != nil {
		return nil, err
	}
	if err := checkCUDAGroup(m.Group, m.K); err != nil {
		return nil, err
	}
	return tilesOf(m, false)
}

// tilesOf lays a matrix out, with columns in the order of [CUDATiles] or in their own.
func tilesOf(m *lut.Matrix, own bool) (*CUDATiles, error) {
	p := &CUDATiles{N: m.N, K: m.K, Bits: m.Bits, Group: m.Group, ScaleType: m.ScaleType}
	p.Codes = make([]byte, p.Tiles()*p.TileBytes())
	p.Scales = make([]byte, p.Tiles()*p.TileScaleBytes())
	p.Codebook = append(p.Codebook, m.Codebook...)

	return p, overTiles(p.Tiles(), func(from, to int) error {
		rows := make([]byte, TileRows*p.rowBytes()+slack)
		for tile := from; tile < to; tile++ {
			p.pack(tile, rows, m, own)
		}
		return nil
	})
}

// rowBytes returns the size of a row of canonical codes with its padding.
func (p *CUDATiles) rowBytes() int { return p.Atoms() * AtomCols / 8 * p.Bits }

// pack writes a tile, with columns in their own order or not. rows is scratch for its rows of canonical codes.
func (p *CUDATiles) pack(tile int, rows []byte, m *lut.Matrix, own bool) {
	width, groups, size := p.rowBytes(), m.Groups(), p.ScaleType.Size()
	for row := range TileRows {
		n := tile*TileRows + row
		copyRow(rows[row*width:][:width], m, n)
		if own {
			turnPairs(rows[row*width:][:width], p.Bits)
		}
		if n >= m.N {
			continue
		}
		for g := range groups {
			copy(p.scale(tile, row, g), m.Scales[(n*groups+g)*size:][:size])
		}
	}
	for atom := range p.Atoms() {
		dst := p.atom(tile, atom)
		for lane := range warp {
			var upper, lower [4]uint64
			for i := range upper {
				at := eight(lane, i, width, p.Bits) + atom*AtomCols/8*p.Bits
				upper[i], lower[i] = load(rows[at:], p.Bits), load(rows[at+TileRows/2*width:], p.Bits)
			}
			var words [2 * lut.MaxBits]uint32
			packLane(&words, &upper, &lower, p.Bits)
			for j, w := range words[:2*p.Bits] {
				binary.LittleEndian.PutUint32(dst[wordAt(p.Bits, lane, j):], w)
			}
		}
	}
}

// Matrix returns the canonical form. It fails where the padding is not 0,
// which [CUDA] never leaves.
func (p *CUDATiles) Matrix() (*lut.Matrix, error) {
	if err := p.Validate(); err != nil {
		return nil, err
	}
	return p.matrix(false)
}

// matrix is Matrix of tiles with columns in the order of [CUDATiles] or in their own.
func (p *CUDATiles) matrix(own bool) (*lut.Matrix, error) {
	m := &lut.Matrix{N: p.N, K: p.K, Bits: p.Bits, Group: p.Group, ScaleType: p.ScaleType}
	m.Codes = make([]byte, m.N*m.RowBytes())
	m.Scales = make([]byte, m.N*m.Groups()*p.ScaleType.Size())
	m.Codebook = append(m.Codebook, p.Codebook...)
	err := overTiles(p.Tiles(), func(from, to int) error {
		rows := make([]byte, TileRows*p.rowBytes()+slack)
		for tile := from; tile < to; tile++ {
			if err := p.unpack(tile, rows, m, own); err != nil {
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

// unpack reads a tile, with columns in their own order or not. rows is scratch for its rows of canonical codes.
func (p *CUDATiles) unpack(tile int, rows []byte, m *lut.Matrix, own bool) error {
	width, groups, size := p.rowBytes(), m.Groups(), p.ScaleType.Size()
	for atom := range p.Atoms() {
		src := p.atom(tile, atom)
		for lane := range warp {
			var words [2 * lut.MaxBits]uint32
			for j := range words[:2*p.Bits] {
				words[j] = binary.LittleEndian.Uint32(src[wordAt(p.Bits, lane, j):])
			}
			var upper, lower [4]uint64
			unpackLane(&upper, &lower, &words, p.Bits)
			for i := range upper {
				at := eight(lane, i, width, p.Bits) + atom*AtomCols/8*p.Bits
				store(rows[at:], upper[i], p.Bits)
				store(rows[at+TileRows/2*width:], lower[i], p.Bits)
			}
		}
	}
	for row := range TileRows {
		n := tile*TileRows + row
		if own {
			turnPairs(rows[row*width:][:width], p.Bits)
		}
		if !takeRow(m, n, rows[row*width:][:width]) {
			return fmt.Errorf("codes in the padding of row %d", n)
		}
		used := groups
		if n >= m.N {
			used = 0
		}
		for g := range p.ScaleSlots() {
			s := p.scale(tile, row, g)
			if g < used {
				copy(m.Scales[(n*groups+g)*size:], s)
			} else if !zeros(s) {
				return fmt.Errorf("scale in the padding of row %d", n)
			}
		}
	}
	return nil
}

// eight returns where, in rows of canonical codes of a width in bytes, eight columns of an
// atom lie that a lane has of row g, for i = 0 to 3: 32·i + 8·t and those after it. It has
// the same of row g + 8.
func eight(lane, i, width, bits int) int { return lane/4*width + (4*i+lane%4)*bits }

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

// wordAt returns the byte of word j of a lane in an atom.
func wordAt(bits, lane, j int) int {
	four := j / 4
	per := min(4, 2*bits-4*four)
	return four*4*4*warp + lane*4*per + j%4*4
}

// packLane writes the words of a lane: of four times eight columns of each of its two
// rows, as they lie in canonical codes. Pairs of the upper row are even ones.
func packLane(words *[2 * lut.MaxBits]uint32, upper, lower *[4]uint64, width int) {
	switch width {
	case 2:
		for i := range upper {
			words[i] = uint32(spreadNibbles(upper[i]) | spreadNibbles(lower[i])<<4)
		}
	case 3:
		for i := range upper {
			low, high := planes(upper[i] | lower[i]<<32)
			words[i] = weave((low | low>>12) & 0x0000ffff_0000ffff)
			if i%2 == 0 {
				high = (high | high>>14) << 4
			} else {
				high = high<<2 | high>>16
			}
			words[4+i/2] |= weave(high & 0x0000ffff_0000ffff)
		}
	case 4:
		for i := range upper {
			w := spreadBytes(upper[i]) | spreadBytes(lower[i])<<8
			words[2*i], words[2*i+1] = uint32(w), uint32(w>>32)
		}
	case 5:
		for half := range 2 {
			a, b := upper[2*half:], lower[2*half:]
			first := spreadTens(a[0]) | spreadTens(b[0])<<10
			last := spreadTens(b[1]) | spreadTens(a[1]>>10)<<10
			for j, v := range [5]uint64{first, first >> 30, a[0]>>30 | b[0]>>30<<10 | a[1]<<20, last, last >> 30} {
				v = v<<2 | b[1]>>30>>(2*j)&3
				words[5*half+j] = bits.RotateLeft32(uint32(v), 7+2*j)
			}
		}
	}
}

// unpackLane is the inverse of packLane.
func unpackLane(upper, lower *[4]uint64, words *[2 * lut.MaxBits]uint32, width int) {
	switch width {
	case 2:
		for i := range upper {
			w := uint64(words[i])
			upper[i], lower[i] = gatherNibbles(w), gatherNibbles(w>>4)
		}
	case 3:
		for i := range upper {
			low, high := unweave(words[i]), unweave(words[4+i/2])
			low = low&0x00000f0f_00000f0f | low<<12&0x0f0f0000_0f0f0000
			if i%2 == 0 {
				high = high>>4&0x00000303_00000303 | high<<10&0x03030000_03030000
			} else {
				high = high>>2&0x00000303_00000303 | high<<16&0x03030000_03030000
			}
			both := unite(low, high)
			upper[i], lower[i] = both&(1<<24-1), both>>32
		}
	case 4:
		for i := range upper {
			w := uint64(words[2*i]) | uint64(words[2*i+1])<<32
			upper[i], lower[i] = gatherBytes(w), gatherBytes(w>>8)
		}
	case 5:
		for half := range 2 {
			var v [5]uint64 // three pairs each
			var end uint64  // the last pair
			for j := range v {
				w := uint64(bits.RotateLeft32(words[5*half+j], -7-2*j))
				v[j] = w >> 2
				end |= w & 3 << (2 * j)
			}
			first, last := v[0]|v[1]<<30, v[3]|v[4]<<30
			a, b := upper[2*half:], lower[2*half:]
			a[0] = gatherTens(first) | v[2]&0x3ff<<30
			b[0] = gatherTens(first>>10) | v[2]>>10&0x3ff<<30
			a[1] = v[2]>>20 | gatherTens(last>>10)<<10
			b[1] = gatherTens(last) | end<<30
		}
	}
}

// spreadNibbles moves four nibbles to the even ones of eight.
func spreadNibbles(v uint64) uint64 {
	v = (v | v<<8) & 0x00ff00ff
	return (v | v<<4) & 0x0f0f0f0f
}

// gatherNibbles is the inverse of spreadNibbles, whatever the odd nibbles are.
func gatherNibbles(v uint64) uint64 {
	v &= 0x0f0f0f0f
	v = (v | v>>4) & 0x00ff00ff
	return (v | v>>8) & 0xffff
}

// spreadBytes moves four bytes to the even ones of eight.
func spreadBytes(v uint64) uint64 {
	v = (v | v<<16) & 0x0000ffff_0000ffff
	return (v | v<<8) & 0x00ff00ff_00ff00ff
}

// gatherBytes is the inverse of spreadBytes, whatever the odd bytes are.
func gatherBytes(v uint64) uint64 {
	v &= 0x00ff00ff_00ff00ff
	v = (v | v>>8) & 0x0000ffff_0000ffff
	return (v | v>>16) & 0xffffffff
}

// spreadTens moves the first three fields of ten bits to the even ones of six.
func spreadTens(v uint64) uint64 { return v&0x3ff | v>>10&0x3ff<<20 | v>>20&0x3ff<<40 }

// gatherTens is the inverse of spreadTens, whatever the odd fields are.
func gatherTens(v uint64) uint64 { return v&0x3ff | v>>20&0x3ff<<10 | v>>40&0x3ff<<20 }

// planes parts codes of 3 bits, eight in each half of v: a byte has the low bits of a
// pair, or its high bits.
func planes(v uint64) (low, high uint64) {
	v = v&0x00000fff_00000fff | v<<4&0x0fff0000_0fff0000
	v = v&0x003f003f_003f003f | v<<2&0x3f003f00_3f003f00
	low = v&0x03030303_03030303 | v>>1&0x0c0c0c0c_0c0c0c0c
	high = v>>2&0x01010101_01010101 | v>>4&0x02020202_02020202
	return low, high
}

// unite is the inverse of planes.
func unite(low, high uint64) uint64 {
	v := low&0x03030303_03030303 | high&0x01010101_01010101<<2 | low&0x0c0c0c0c_0c0c0c0c<<1 | high&0x02020202_02020202<<4
	v = v&0x003f003f_003f003f | v>>2&0x0fc00fc0_0fc00fc0
	return v&0x00000fff_00000fff | v>>4&0x00fff000_00fff000
}

// weave takes two bytes of each half of v in turn.
func weave(v uint64) uint32 {
	v = (v | v<<8) & 0x00ff00ff_00ff00ff
	return uint32(v | v>>24)
}

// unweave is the inverse of weave.
func unweave(w uint32) uint64 {
	v := (uint64(w) | uint64(w)<<24) & 0x00ff00ff_00ff00ff
	return (v | v>>8) & 0x0000ffff_0000ffff
}
