package trellis

import (
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/lutq/lutq/formats/num"
)

// Window is the number of bits that a value hangs on.
const Window = 16

// The codebooks.
const (
	Pairs = "trellis" // pairs from a table, by a hash of the window
	Mul1  = "mul1"    // EXL3's, computed
	MCG   = "mcg"
	Inst3 = "3inst"
)

// Codebooks lists them.
func Codebooks() []string { return []string{Pairs, Mul1, MCG, Inst3} }

// Code turns windows into values.
type Code struct {
	Codebook string
	Rate     int      // bits of two weights
	Table    []uint32 // [Entries] pairs of float16, the first in the low half: of Pairs
}

// NewCode returns the code of a codebook and a rate, with the table that is built in.
func NewCode(codebook string, rate int) (*Code, error) {
	l, err := layoutOf(codebook, rate)
	if err != nil {
		return nil, err
	}
	c := &Code{Codebook: codebook, Rate: rate}
	if l.pair {
		c.Table = builtin(rate)
	}
	return c, nil
}

// Layout returns how the code's rings lie.
func (c *Code) Layout() Layout { return must(layoutOf(c.Codebook, c.Rate)) }

// Pair returns the float16 values of a window, the first in the low half. Codes that are computed have one, in the low half.
func (c *Code) Pair(x uint16) uint32 {
	switch c.Codebook {
	case Pairs:
		index, flip := Hash(x, c.Rate)
		return c.Table[index] ^ flip
	case Mul1:
		return uint32(mul1(uint32(x)))
	case MCG:
		return uint32(twoHalves(uint32(x) * mcgFactor))
	}
	return uint32(twoHalves(uint32(x)*inst3Factor + inst3Term))
}

// Values returns those of all windows, [1<<Window] of each weight of a step.
func (c *Code) Values() [][]float32 {
	all := make([][]float32, c.Layout().Together)
	for i := range all {
		all[i] = make([]float32, 1<<Window)
		for x := range all[i] {
			all[i][x] = num.F16ToF32(uint16(c.Pair(uint16(x)) >> (16 * i)))
		}
	}
	return all
}

// EncodeTable returns a table as it is stored.
func EncodeTable(table []uint32) []byte {
	data := make([]byte, 0, 4*len(table))
	for _, v := range table {
		data = binary.LittleEndian.AppendUint32(data, v)
	}
	return data
}

func decodeTable(data []byte) ([]uint32, error) {
	if len(data) != 4*Entries {
		return nil, fmt.Errorf("a table of %d bytes: want %d", len(data), 4*Entries)
	}
	table := make([]uint32, Entries)
	for i := range table {
		table[i] = binary.LittleEndian.Uint32(data[4*i:])
		for _, h := range []uint32{table[i], table[i] >> 16} {
			if h>>10&31 == 31 {
				return nil, fmt.Errorf("pair %d of the table is not finite", i)
			}
		}
	}
	return table, nil
}

// Layout is how the rings of a code lie.
type Layout struct {
	Rate       int
	Rows, Cols int // of weights in a ring
	Together   int // weights of a step, which are neighbours in a row
	Band       int // rows that are stored together: those that are mixed, or of a ring
	Pad        int // columns are padded to a multiple
	pair       bool
}

// Rows and columns of the rings of [Pairs].
const (
	RingRows = 8
	RingCols = 16
)

func layoutOf(codebook string, rate int) (Layout, error) {
	switch {
	case !slices.Contains(Codebooks(), codebook):
		return Layout{}, fmt.Errorf("unknown trellis codebook %q", codebook)
	case codebook == Pairs && !slices.Contains(Rates(), rate):
		return Layout{}, fmt.Errorf("%v bits a weight: codebook %s has 1 to 6", float64(rate)/2, codebook)
	case codebook == Pairs:
		return Layout{Rate: rate, Rows: RingRows, Cols: RingCols, Together: 2, Band: RingRows, Pad: RingCols, pair: true}, nil
	case rate < 2 || rate > 16 || rate%2 != 0 && (codebook != Mul1 || rate < 3 || rate > 7):
		return Layout{}, fmt.Errorf("%v bits a weight: codebook %s has none", float64(rate)/2, codebook)
	}
	return Layout{Rate: rate, Rows: 16, Cols: 16, Together: 1, Band: Block, Pad: Block}, nil
}

// Steps are those of a ring.
func (l Layout) Steps() int { return l.Rows * l.Cols / l.Together }

// Bytes are those of a ring.
func (l Layout) Bytes() int { return l.Rows * l.Cols * l.Rate / 16 }

// Bits returns how many bits a step adds.
func (l Layout) Bits(step int) int {
	if l.pair {
		return l.Rate
	}
	return (l.Rate + step&1) / 2
}

// At returns the row and the column in a ring of the first weight of a step. Steps of [Pairs] come as a lane of a GPU multiplies by
// them: four steps are its share of a product of 16 × 16 weights, and four of those are four times 16 rows. EXL3's come so
// for two products of 16 × 8.
func (l Layout) At(step int) (row, col int) {
	if l.pair {
		return step>>2&3<<1 | step&1, step>>4<<2 | step&2
	}
	lane, j := step>>3, step&7
	return lane>>2 + j>>2<<3, lane&3<<1 | j&1 | j>>1&1<<3
}

// Window returns that of a step of a ring. Rings of [Pairs] are little-endian strings of bits, and the window of step i is the 16
// bits from i·Rate on. EXL3's are strings whose first bit is the highest of a little-endian word of 32, and the window
// is the 16 bits in front of the end of the step's.
func (l Layout) Window(ring []byte, step int) uint16 {
	if l.pair {
		return window(ring, step*l.Rate)
	}
	bits := 8 * len(ring)
	end := (step+2)/2*(l.Rate/2) + (step+1)/2*(l.Rate-l.Rate/2) // even steps and odd ones
	at := (end - Window + bits) % bits
	word := binary.LittleEndian.Uint32(ring[at/32*4:])
	next := binary.LittleEndian.Uint32(ring[(at/32*4+4)%len(ring):])
	return uint16((uint64(word)<<32 | uint64(next)) >> (48 - at%32))
}

// windows writes those of all steps of a ring, as [Layout.Window] has them, to dst.
func (l Layout) windows(dst []uint16, ring []byte) {
	var room [260]byte // the longest ring, and what it is joined to
	if l.pair {
		copy(room[copy(room[:], ring):], ring[:2])
		at := 0
		for step := range dst {
			dst[step] = uint16(binary.LittleEndian.Uint32(room[at/8:]) >> (at % 8))
			at += l.Rate
		}
		return
	}
	// The string from its last 16 bits on, with the first bit in the highest of a byte.
	for i := 0; i < len(ring); i += 4 {
		binary.BigEndian.PutUint32(room[2+i:], binary.LittleEndian.Uint32(ring[i:]))
	}
	copy(room[:2], room[len(ring):])
	end := 0 // where the 16 bits begin that end with a step's last: the string is 16 bits later in room
	for step := range dst {
		end += l.Bits(step)
		dst[step] = uint16(binary.BigEndian.Uint32(room[end/8:]) >> (16 - end%8))
	}
}

func window(ring []byte, at int) uint16 {
	var x uint32
	for i := range 3 {
		x |= uint32(ring[(at/8+i)%len(ring)]) << (8 * i)
	}
	return uint16(x >> (at % 8))
}

// Pack writes a ring of the bits that its steps add: the low ones of each number.
func (l Layout) Pack(ring []byte, symbols []uint16) {
	clear(ring)
	at := 0
	for step, s := range symbols {
		n := l.Bits(step)
		for b := range n {
			if l.pair {
				ring[(at+b)/8] |= byte(s>>b&1) << ((at + b) % 8)
				continue
			}
			bit := at + b // the n-1-b-th of the number
			ring[bit/32*4+3-bit%32/8] |= byte(s>>(n-1-b)&1) << (7 - bit%8)
		}
		at += n
	}
}

// Symbols is the inverse of [Layout.Pack].
func (l Layout) Symbols(symbols []uint16, ring []byte) {
	for step := range symbols {
		symbols[step] = l.Window(ring, step) & (1<<l.Bits(step) - 1)
	}
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}
