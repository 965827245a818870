// Package cpu multiplies float32 activations by weights on the CPU.
//
// # Products
//
// [Engine.MatMul] computes Y = X·Wᵀ, row-major, for X of M×K and a weight
// matrix W of N×K held in one of three stored forms: [Dense] keeps the F32, F16
// or BF16 bytes of a checkpoint, [LUT] the packed codes of a quantized
// layer and [Planes] one of binary codes. None is ever expanded as a whole: a worker decodes 16 rows by 256
// columns at a time into a panel [k][16] of float32, and the register-tiled
// microkernel runs all M rows of X over that panel before the next is decoded.
//
// [Engine.MatMulBack] and [Engine.Outer] are the gradients of a product, by X
// and by W, and [Engine.Gram] is the latter of X with itself. They run the same microkernel, over panels of Wᵀ and of X.
//
// For M ≤ 8 the codes of a [LUT] go straight from memory through the table
// into sums in registers: the fused kernels. They need groups of a multiple of
// 32 columns, or of the row.
//
// One row and dense numbers of 16 bits that [Engine.Arrange] has put in panels have kernels likewise.
// With AVX2 alone the fused ones take longer than reading the codes does. [LUT.Fix] has products done in fixed point: of
// M ≤ 16 straight from the codes as well, of more from 16 rows by up to 512 columns of whole numbers at a time.
//
// # Numerics
//
// A result depends on the row of X and the row of W alone. It is
//
//	y = Σ_b ( fma(x[k], w[k], … fma(x[k₀], w[k₀], 0)) )    k₀ = 256·b
//
// in float32: one fused multiply-add per k, in order, from zero within each
// block of 256 columns, and the block sums added in order. A quantized weight
// enters as the float32 product of its table value and its group's scale,
// rounded once, so [LUT] gives the bits that [Dense] gives on the dequantized
// float32 matrix.
//
// The fused kernels scale once for a segment, which is a group or, of a longer
// one, 256 columns of it or the rest:
//
//	y = fma(scale, Σ c[k]·x[k], y)    segment by segment, y from zero
//
// where c[k] is the table value and the sum is one fused multiply-add per k,
// in order from zero. At 2 bits it is the sum, in order, of the pairs
// fma(c[k+1], x[k+1], c[k]·x[k]) of even k, rounded after the product, the
// multiply-add and the addition; K is filled up with zeros in x. The error is
// no larger than the other's, but the bits differ.
//
// In fixed point a table is whole numbers of 14 bits times a unit, the one of the largest 512 that fits the values
// best, and 32 columns of x are whole numbers of 15 bits times a scale, rounded to even. That is the largest of them, or
// a sixteenth of the sum of all if that is more, over 16383: no sum of products then leaves 32 bits.
//
//	y = fma(float32(Σ q·x) · scale of x, scale · unit, y)    32 columns by 32 columns, y from zero
//
// The sums are exact, each other operation rounds once to float32. What this adds to the error of a product is below
// [FixedError], and usually 7e-5: the rounding of x, which is more where one column dwarfs those around it, and of the
// table, which is none for even levels. A block of x of which the largest is below 2^-111 loses bits.
//
// Products of up to 6 rows by [Planes], binary codes, go through tables of the sums of four columns of x, of which every
// sign is there. 128 columns of x are whole numbers of 22 bits times a power of two, so that sums over a segment, the
// columns of a group among those, are exact. Segment by segment it is
//
//	y = fma(sum of x, offset, y)    32 columns by 32 columns, where there are offsets
//	y = fma(float32(Σ ±x) · unit of x, factor, y)    plane by plane
//
// with y from zero. More rows are multiplied by the float32 weights. So are all where a half-block of 32 columns has
// several groups. [Engine.FillTables] makes tables with entries of 8 or 16 bits, as package lookup defines them, for
// [Engine.MatMulTables].
//
// The number of threads and the instruction set change no bit, except that [Engine.Arrange] chooses fixed point by the
// instruction set; the number of rows M only as it has the fused kernels run. The portable Go
// code rounds its fused multiply-adds exactly as the hardware does.
//
// The vector functions (ExpSum, Dot and so on) sum in 16 lanes, lane j taking
// the elements i ≡ j mod 16, and likewise give the same bits on every
// instruction set. NaNs propagate, but with which payload is not specified.
//
// # Instruction sets
//
// Codes are decoded by permutations of the table, which sits in registers:
// one VPERMPS or VPERMI2PS a column at 512 bits; with AVX2 VPERMPS and blends,
// and VPERMILPS at 2 bits. Sums of columns are looked up by VPSHUFB a byte at a time, for 16 rows of two tables each, and
// added up in words. In fixed point the low and the high bytes of values are looked up by VPSHUFB, 32 codes at a
// time, interleaved to words and multiplied by VPMADDWD.
//
// The assembly in the _amd64.s files is written by the program in
// internal/asmgen; the build tag noasm leaves it out. Without it, and on other
// processors, the Go twins in generic.go run.
package cpu

//go:generate go run ./internal/asmgen -dir .
