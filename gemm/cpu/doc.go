// Package cpu multiplies float32 activations by weights on the CPU.
//
// # Products
//
// [Engine.MatMul] computes Y = X·Wᵀ, row-major, for X of M×K and a weight matrix W of N×K. W is stored in one of four
// forms: [Dense] keeps the F32, F16 or BF16 bytes of a checkpoint, [LUT] the packed codes of a quantized layer,
// [Planes] binary codes, and [Rings] pairs by windows on rings of bits. None is ever expanded as a whole. A worker decodes 16 rows by 256 columns at a time into a
// panel [k][16] of float32. The register-tiled microkernel runs all M rows of X over that panel before the next is
// decoded.
//
// [Engine.MatMulBack] is the gradient of a product by X, and [Engine.Outer] that by W. [Engine.Gram] is the latter of X
// with itself. They run the same microkernel over panels of Wᵀ and of X.
//
// For few rows there are kernels without panels:
//
//   - Fused kernels, for M ≤ 8 and a [LUT]. The codes go straight from memory through the table into sums in registers. Groups
//     must be a multiple of 32 columns, or the row.
//
//   - Kernels for one row and dense numbers of 16 bits that [Engine.Arrange] has put in panels.
//
//   - Kernels in fixed point, after [LUT.Fix], where the fused kernels take longer than reading the codes does: with AVX2 alone, with
//     NEON, and with AVX-512 that has dot products of words (VNNI). For M ≤ 16 they take codes straight from memory. For more rows they decode 16 rows by up to 512 columns of whole
//     numbers at a time.
//
//   - Kernels for M ≤ 4 and [Rings], in float32 or, after [Engine.Arrange], in fixed point where AVX-512 has float16.
//
// What rings hold is rotated, so that x is rotated for products by it: once for all products of [Engine.MatMulMany] by
// matrices whose columns have the same factors.
//
// # Numerics
//
// A result depends on the row of X and the row of W alone. It is, in float32,
//
//	y = Σ_b ( fma(x[k], w[k], … fma(x[k₀], w[k₀], 0)) )    k₀ = 256·b
//
// There is one fused multiply-add per k, in order, from zero within each block of 256 columns. The sums of blocks are
// added in order. A quantized weight is the float32 product of its table value and its group's scale, rounded once. So
// [LUT] gives the bits that [Dense] gives on the dequantized float32 matrix.
//
// The fused kernels scale once for a segment. A segment is a group, or 256 columns of a longer group, or what is left
// of it.
//
//	y = fma(scale, Σ c[k]·x[k], y)    segment by segment, y from zero
//
// Here c[k] is the table value, and the sum is one fused multiply-add per k, in order, from zero. At 2 bits it is the
// sum, in order, of the pairs fma(c[k+1], x[k+1], c[k]·x[k]) of even k, rounded after the product, the multiply-add and
// the addition; K is filled up with zeros in x. The error is no larger than that of the first formula, but the bits
// differ.
//
// In fixed point a table is whole numbers of 14 bits times a unit. Of the 512 units that give the largest value nearly
// all its bits, it is the one that fits the values best. 32 columns of x are whole numbers of 15 bits times a scale,
// rounded to even. The scale is the largest of them, or a sixteenth of the sum of all if that is more, over 16383. So
// no sum of products leaves 32 bits.
//
//	y = fma(float32(Σ q·x) · scale of x, scale · unit, y)    32 columns by 32 columns, y from zero
//
// The sums are exact; each other operation rounds once to float32. This adds less than [FixedError] to the error of a
// product, and usually 7e-5. It comes from rounding x, which costs more where one column is far larger than those
// around it, and from rounding the table, which costs nothing for equal steps. A block of x whose largest number is
// below 2^-111 loses bits.
//
// Products of up to 6 rows by [Planes] go through tables. A table has the sums of four columns of x with all choices of
// signs. 128 columns of x are whole numbers of 22 bits times a power of two. So sums over a segment, which here is the
// columns of a group among those 128, are exact. Segment by segment, with y from zero:
//
//	y = fma(sum of x, offset, y)    32 columns by 32 columns, where there are offsets
//	y = fma(float32(Σ ±x) · unit of x, factor, y)    plane by plane
//
// More rows are multiplied by the float32 weights. So are all rows where 32 columns belong to several groups.
// [Engine.FillTables] makes tables with entries of 8 or 16 bits, as package lookup defines them, for
// [Engine.MatMulTables].
//
// With x' the rotated x, sums of products by [Rings] are those of the first formula, with x' and what rings hold in place of x and w,
// and a row's scale times the sum is y. For up to 4 rows of X the order within 16 columns is 0, 1, 8, 9, 2, 3, 10, 11 and so on.
// Gradients take the weights themselves, which have the bits that define them. In fixed point x' is whole numbers of 15 bits times a
// scale for 16 columns, the largest of them, or an eighth of the sum of all if that is more, over 16380. Values of the table are whole
// numbers of 15 bits times a power of two.
//
//	y = fma(float32(Σ q·x), scale of x, y)    16 columns by 16 columns, from zero in each 256
//
// This adds 5e-5 to 1e-4, less than [FixedError]. Where x or values that codes name are far from 1, sums of float32 may differ
// from the formula: values are held times 2^-112, and x times 2^56.
//
// The number of threads changes no bit. Neither does the instruction set, except that [Engine.Arrange] chooses fixed
// point by it. The number of rows M matters only because few rows run the kernels above. The portable Go code rounds
// its fused multiply-adds exactly as the hardware does.
//
// The vector functions (ExpSum, Dot and so on) sum in 16 lanes. Lane j takes the elements i ≡ j mod 16. They also give
// the same bits on every instruction set. NaNs propagate, but with which payload is not specified.
//
// # Instruction sets
//
// Codes are decoded by permutations of the table, which sits in registers: one VPERMPS or VPERMI2PS a column at 512
// bits; VPERMPS and blends with AVX2, and VPERMILPS at 2 bits. Sums of columns are looked up by VPSHUFB a byte at a
// time, for 16 rows of two tables each, and added up in words. In fixed point VPSHUFB looks up the low and the high
// bytes of values, 32 codes at a time. They are interleaved to words and multiplied by VPMADDWD, or with AVX-VNNI multiplied
// and added by VPDPWSSD. With AVX-512 VPERMW looks up 32 values at once, two columns of 16 rows, and VPDPWSSD multiplies and adds them.
// Where a table's steps are all equal, kernels of one row at 256 bits look nothing up: the codes themselves are multiplied by x, in two bytes a column, by
// VPMADDUBSW or VPDPBUSD, and sums of x added. In whole numbers that is the same.
//
// Pairs of [Rings] are looked up 64 at a time in four planes of 256 bytes, by four VPERMB each, or 8 at a time by
// VPGATHERDD where there is no AVX512-VBMI. Their bits go into float32 as they are, or become whole numbers by VCVTPH2W.
//
// With NEON, on arm64, the codes of four rows become the bytes that TBL looks up, of a float32 each. In fixed point TBL looks up low and
// high bytes of 16 values. Where the processor has dot products of bytes, columns of x are bytes as well, both with signs: four SDOT
// make 16 products of two bytes each. Elsewhere bytes are interleaved to words for SMLAL. Binary codes have no kernels there.
//
// The program in internal/asmgen writes the assembly in the _amd64.s and _arm64.s files. The build tag noasm leaves it out. Without
// it, and on other processors, the Go twins in generic.go run.
package cpu

//go:generate go run ./internal/asmgen -dir .
