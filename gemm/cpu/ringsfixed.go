package cpu

import (
	"math"

	"github.com/lutq/lutq/formats/num"
	"github.com/lutq/lutq/formats/weight/trellis"
	"github.com/lutq/lutq/repack"
)

const (
	// ringsWhole is the largest value of a table in fixed point, a power of two, and ringsWholeX the largest column of x in a block: 8 times that
	// is the sum of all, but for rounding. So the sum of 16 products stays below 2^31.
	ringsWhole  = 1 << 14
	ringsWholeX = 1<<14 - 4
)

// ringX is a block of 16 columns of a row of x in fixed point, as large as a line of a cache.
type ringX struct {
	pairs [8][2]int16 // of columns that are 8 apart
	scale float32
	_     [28]byte
}

// newWholeTable returns a table whose float16 stand for whole numbers of units when they are rounded: by a power of two, so that bits are turned
// over as in the table that it is made of.
func newWholeTable(c *trellis.Code) *ringTable {
	least := uint32(1) // the largest exponent, as float16 have it
	for _, pair := range c.Table {
		least = max(least, pair>>10&31, pair>>26&31)
	}
	// Values below 2^(least-14) become some below 2^14, whatever mantissa they have.
	shift := 28 - int(least)
	t := ringTableOf(c.Rate, scaledPairs(c.Table, shift), 1)
	t.unit = float32(math.Exp2(float64(-shift)))
	return t
}

// fixesRings reports whether [Engine.Arrange] has products by rings done in fixed point: where AVX-512 has float16, which
// float32 is twice the work of, unless Options.Exact forbids it.
func (e *Engine) fixesRings() bool { return e.rings.native && !e.exact }

// roundRings rounds rotated rows of x, ldx elements apart, for products in fixed point.
func (e *Engine) roundRings(x []float32, m, ldx int) {
	blocks := ldx / trellis.RingCols
	if cap(e.rings.fixed) < m*blocks {
		e.rings.fixed = make([]ringX, m*blocks)
	}
	to := e.rings.fixed[:m*blocks]
	e.rings.fixed = to
	e.parallel(m, func(_, r int) {
		e.isa.roundRings(to[r*blocks:(r+1)*blocks], x[r*ldx:])
	})
}

// roundRingsGeneric rounds blocks of x.
func roundRingsGeneric(dst []ringX, x []float32) {
	for i := range dst {
		dst[i].round((*[trellis.RingCols]float32)(x[i*trellis.RingCols:]))
	}
}

// round sets a block: whole numbers of 15 bits, rounded to even, times the largest column, or an eighth of the sum of all if
// that is more.
func (b *ringX) round(x *[trellis.RingCols]float32) {
	// As whole numbers, absolute values are in order, and no NaN is lost.
	most := math.Float32bits(fixedTiny)
	abs := func(i int) float32 { return math.Float32frombits(math.Float32bits(x[i]) &^ (1 << 31)) }
	var sums [8]float32
	for i := range sums {
		sums[i] = abs(i) + abs(8+i)
		most = max(most, math.Float32bits(abs(i)), math.Float32bits(abs(8+i)))
	}
	for n := 4; n > 0; n /= 2 {
		for i := range n {
			sums[i] += sums[n+i]
		}
	}
	most = max(most, math.Float32bits(sums[0]*(1./8)))
	inverse := ringsWholeX / math.Float32frombits(most)
	b.scale = math.Float32frombits(most) * (1 / float32(ringsWholeX))
	for j, v := range x {
		q := math.RoundToEven(float64(float32(v * inverse)))
		if !(q >= -ringsWholeX && q <= ringsWholeX) {
			q = math.MinInt16 // of NaN and infinity
		}
		b.pairs[j%8][j/8] = int16(q)
	}
}

// ringsFixedCall is ringsCall in fixed point. ldx is in blocks.
type ringsFixedCall struct {
	m, ldx  int
	x       []ringX
	words   []byte
	blocks  int
	table   *ringTable
	scratch *[ringsScratchBytes]byte
	native  bool // the instruction set has a kernel
}

// ringsFixedGeneric is the definition of the product in fixed point: y[m][8][16], see ringsGeneric, is
//
//	y = fma(float32(Σ q·value), scale of x, y)
//
// block by block, from zero, with values rounded to whole numbers.
func ringsFixedGeneric(y []float32, c *ringsFixedCall) {
	clear(y)
	var pairs [64]uint32
	for b := range c.blocks {
		words := c.words[b*repack.Lanes*8*c.table.rate:]
		for lane := range repack.Lanes {
			var sums [ringsFew][trellis.RingRows]int32
			c.table.ring(&pairs, words[4*lane:])
			for step, pair := range pairs {
				row, col := ringAt(step)
				for v := range 2 {
					w := int32(math.RoundToEven(float64(num.F16ToF32(uint16(pair >> (16 * v))))))
					k := col + v
					for r := range c.m {
						sums[r][row] += w * int32(c.x[r*c.ldx+b].pairs[k%8][k/8])
					}
				}
			}
			for r := range c.m {
				for row, sum := range sums[r][:] {
					out := &y[(8*r+row)*16+lane]
					*out = fma32(float32(sum), c.x[r*c.ldx+b].scale, *out)
				}
			}
		}
	}
}
