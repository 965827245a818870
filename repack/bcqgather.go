package repack

import (
	"encoding/binary"
	"errors"

	"github.com/lutq/lutq/formats/num"
	"github.com/lutq/lutq/formats/weight"
	"github.com/lutq/lutq/formats/weight/bcq"
)

// BCQGather is a matrix of binary codes as the CUDA kernel reads it that looks bytes of planes up in tables of eight activations: in tiles
// of 32 rows, one for each lane of a warp, and chunks of 128 columns.
//
// With Half a byte whose top bit is set has its other bits turned: they are then the entry of a table of 128 sums, and the top bit says
// whether the sum's sign is turned. Rows and columns of the padding have factors and bits of zeros (before they are turned).
type BCQGather struct {
	N, K  int
	Bits  int
	Group int // 32, 64, 128, 256 or K
	Half  bool

	Planes  []byte // [Tiles, Chunks, Bits, 32 rows, 16 bytes], bit k%8 of byte k/8
	Factors []byte // [Tiles, Sets, Bits + 1, 32 rows] of F16: those of planes and the offset
}

// The rows of a tile, and the columns of a chunk.
const (
	gatherRows = 32
	gatherCols = 128
)

// Tiles returns the number of 32-row tiles.
func (p *BCQGather) Tiles() int { return (p.N + gatherRows - 1) / gatherRows }

// Chunks returns the number of 128-column chunks of a tile.
func (p *BCQGather) Chunks() int { return (p.K + gatherCols - 1) / gatherCols }

// Sets returns the number of sets of factors of a row, of whole chunks.
func (p *BCQGather) Sets() int {
	if p.Group == p.K {
		return 1
	}
	return max(p.Chunks()*gatherCols/p.Group, weight.GroupsIn(p.K, p.Group))
}

// GatherBCQ lays m out so. It fails where the group of m has no layout and where factors are not float16.
func GatherBCQ(m *bcq.Matrix, half bool) (*BCQGather, error) {
	if err := m.Validate(); err != nil {
		return nil, err
	}
	if err := checkCUDAGroup(m.Group, m.K); err != nil {
		return nil, err
	}
	if m.ScaleType != weight.F16 {
		return nil, errors.New("factors that are not float16 have no such layout")
	}
	p := &BCQGather{N: m.N, K: m.K, Bits: m.Bits, Group: m.Group, Half: half}
	p.Planes = make([]byte, p.Tiles()*p.Chunks()*p.Bits*gatherRows*gatherCols/8)
	p.Factors = make([]byte, p.Tiles()*p.Sets()*(p.Bits+1)*gatherRows*2)
	return p, overTiles(p.Tiles(), func(from, to int) error {
		for n := from * gatherRows; n < min(to*gatherRows, m.N); n++ {
			p.pack(n, m)
		}
		return nil
	})
}

func (p *BCQGather) pack(n int, m *bcq.Matrix) {
	width, groups := m.PlaneBytes(), m.Groups()
	for plane := range p.Bits {
		for i, b := range m.Planes[(n*p.Bits+plane)*width:][:width] {
			if rest := m.K - 8*i; rest < 8 {
				b &= 1<<rest - 1
			}
			p.Planes[p.byteAt(n, plane, i)] = p.turned(b)
		}
	}
	for g := range groups {
		for i := range p.Bits {
			copy(p.factor(n, g, i), m.Alphas[((n*groups+g)*p.Bits+i)*2:][:2])
		}
		if m.Offsets != nil {
			copy(p.factor(n, g, p.Bits), m.Offsets[(n*groups+g)*2:][:2])
		}
	}
}

// Row writes the weights of row n to dst, as [bcq.Matrix.Row] has them.
func (p *BCQGather) Row(dst []float32, n int) {
	for k := range dst {
		w := num.F16ToF32(binary.LittleEndian.Uint16(p.factor(n, k/p.Group, p.Bits)))
		for i := range p.Bits {
			a := num.F16ToF32(binary.LittleEndian.Uint16(p.factor(n, k/p.Group, i)))
			if p.turned(p.Planes[p.byteAt(n, i, k/8)])>>(k%8)&1 == 0 {
				a = -a
			}
			w += a
		}
		dst[k] = w
	}
}

// turned turns the lower bits of a byte whose top bit is set, and is its own inverse.
func (p *BCQGather) turned(b byte) byte {
	if p.Half && b >= 0x80 {
		return b ^ 0x7f
	}
	return b
}

// byteAt returns where the byte of eight columns of a row, those from 8·i on, lies in a plane.
func (p *BCQGather) byteAt(n, plane, i int) int {
	return (((n/gatherRows*p.Chunks()+i/16)*p.Bits+plane)*gatherRows+n%gatherRows)*16 + i%16
}

func (p *BCQGather) factor(n, group, i int) []byte {
	at := ((n/gatherRows*p.Sets()+group)*(p.Bits+1)+i)*gatherRows + n%gatherRows
	return p.Factors[at*2:][:2]
}
