// Package conform has the tests that every kernel must pass, wherever it runs: on a GPU, on the processors, or as a kernel that was
// compiled for the host. To conform, a kernel must compute what package ref does. The package also draws the random matrices by
// which kernels are tested and timed.
//
// [Draw] draws a matrix, of a shape that is awkward for kernels, and products by it. [Check] has them multiplied under every
// configuration, twice, on grids of many and of few blocks. Each product
//
//   - is as near to the float64 [Reference] as [Bound] says,
//   - is written as a whole, with nothing beside it,
//   - has the same bits each time, and under all configurations that split K into as many slices.
//
// A product by unit vectors must give the weights exactly.
package conform

import (
	"fmt"
	"math/rand/v2"
	"slices"

	"github.com/lutq/lutq/formats/weight"
	"github.com/lutq/lutq/formats/weight/lut"
	"github.com/lutq/lutq/formats/weight/lut24"
	"github.com/lutq/lutq/gemm/cuda/driver"
)

// Format is what kernels are compiled for, with the fields of cuda.Format.
type Format struct {
	Bits  int
	Group int              // 0 is one scale a row
	Scale weight.ScaleType // as the kernel holds them
	Type  driver.DType     // of X, Y, the bias and the table: F16 or BF16
}

// Size is how large a matrix is to the kernels. Within it N and K can be anything: no
// choice of a kernel depends on that.
type Size struct {
	Tiles int // of 16 rows of Ŵ
	Units int // of 256 columns
}

// The rows of a tile and the columns of a unit.
const (
	tileRows = 16
	unitCols = 256
)

// Sizes returns those that are drawn from: with one tile and with more than the warps of a block
// can hold the sums of, and less than a unit of columns to so many that all slices have some, and
// some have one more.
func Sizes() []Size {
	return []Size{{6, 5}, {2, 1}, {1, 4}, {30, 3}, {3, 9}, {2, 33}}
}

// SizeOf returns the size of case i. Where formats come in order of width, group size,
// scale type and type, each of these meets every size.
func SizeOf(i int) Size {
	all := Sizes()
	return all[(i+i/8)%len(all)]
}

// Case is a matrix and products by it. The numbers are there after [Case.Fill].
type Case struct {
	Format
	N, K     int
	Rows     []int // of X that the matrix is multiplied by
	Many     Many  // and by how many besides
	Matrix   *lut.Matrix
	Sparse   *lut24.Matrix // of [DrawSparse], what Matrix stands for as well
	Products []*Product

	seed, number uint64
	sparse       bool
}

// Many says by how many rows of X a matrix is multiplied in one of the ways for as many.
type Many struct {
	Rows  int
	Way   int  // of those that are worth trying, modulo their number
	Turns bool // whether turns of a kernel for few rows are one of them
}

// The fewest and the most rows of [Many].
const (
	fewestMany = 17
	mostMany   = 600
)

// Product is one to be multiplied. Operands are of the type of the format, row-major.
type Product struct {
	Rows int
	X    []uint16 // [Rows, K]
	Bias []uint16 // [N], or nil

	// check returns the relative error, or what is wrong.
	check func(y []uint16) (float64, error)
}

// Draw returns case i of a seed, of some format: N, K, and numbers of rows of X for both
// ends of each kind of kernel and for a launch after others. How many configurations it
// has does not depend on the seed.
func Draw(seed uint64, i int, f Format) *Case {
	r := rand.New(rand.NewPCG(seed, uint64(i)))
	from := func(least, most int) int { return least + r.IntN(most-least+1) }
	s := SizeOf(i)
	c := &Case{Format: f, seed: seed, number: uint64(i)}
	c.N = from((s.Tiles-1)*tileRows+1, s.Tiles*tileRows)
	// A row of one group would be another format.
	least := max((s.Units-1)*unitCols, f.Group) + 32
	c.K = from(least/32, max(least, s.Units*unitCols)/32) * 32
	c.Rows = []int{1, from(2, 4), from(5, 7), 8, from(9, 15), 16, from(17, 24), from(25, 32), from(33, 70)}
	r = rand.New(rand.NewPCG(seed, uint64(i)))
	c.Many = Many{Rows: fewestMany + r.IntN(100), Way: i / 3, Turns: true}
	if i%2 == 0 {
		c.Many.Rows = fewestMany + r.IntN(mostMany-fewestMany+1)
	}
	return c
}

// DrawSparse is [Draw] of a matrix of which every four columns keep two, of a format of what is kept: groups of the case have
// twice as many columns.
func DrawSparse(seed uint64, i int, kept Format) *Case {
	kept.Group *= 2
	c := Draw(seed, i, kept)
	c.sparse = true
	r := rand.New(rand.NewPCG(seed, uint64(i)))
	c.Many = Many{Rows: fewestMany + r.IntN(mostMany-fewestMany+1), Way: i}
	return c
}

// Weights returns the matrix as it is quantized.
func (c *Case) Weights() weight.Matrix {
	if c.Sparse != nil {
		return c.Sparse
	}
	return c.Matrix
}

func (c *Case) String() string { return fmt.Sprintf("%+v, %d×%d", c.Format, c.N, c.K) }

// mostUnitVectors is how many of them are multiplied at most.
const mostUnitVectors = 2080

// Fill draws the matrix, and for each number of rows a product of random numbers, every
// other with a bias, and one of unit vectors; for as many rows as take several launches, of all
// of them.
func (c *Case) Fill() {
	r := rand.New(rand.NewPCG(c.seed, ^c.number))
	group := c.Group
	if group == 0 {
		group = c.K
	}
	if c.sparse {
		c.Sparse, c.Matrix = randomSparse(r, c.N, c.K, c.Bits, group, c.Scale)
	} else {
		c.Matrix = RandomMatrix(r, c.N, c.K, c.Bits, group, c.Scale)
		switch {
		case c.number%3 == 2:
			Raw(c.Matrix)
		case c.number%3 == 1 && c.Bits == 4: // which kernels may have another way for
			c.Matrix.Codebook = integers()
		}
	}
	held := *c.Matrix
	held.Codebook = RoundedTable(c.Matrix.Codebook, c.Type)
	weights := held.Dequantize()
	for i, rows := range c.Rows {
		units := min(rows, c.K)
		if rows > maxLaunch {
			units = min(c.K, mostUnitVectors)
		}
		c.Products = append(c.Products,
			c.random(r, rows, (int(c.number)+i)%2 == 0), c.unitVectors(r, weights, units))
	}
}

// maxLaunch is the number of rows that one launch multiplies at most.
const maxLaunch = 32

// random returns the product of a random X.
func (c *Case) random(r *rand.Rand, rows int, withBias bool) *Product {
	p := &Product{Rows: rows, X: RandomHalves(r, rows*c.K, c.Type)}
	if withBias {
		p.Bias = RandomHalves(r, c.N, c.Type)
	}
	ref := NewReference(r, c.Matrix, p.X, p.Bias, rows, 1, c.Type)
	limit := ref.limit()
	p.check = func(y []uint16) (float64, error) {
		rel, _ := ref.Errors(y)
		if !(rel <= limit) {
			return 0, fmt.Errorf("relative error %.3g", rel)
		}
		return rel, nil
	}
	return p
}

// unitVectors returns the product that gives the weights of some columns, rounded once.
func (c *Case) unitVectors(r *rand.Rand, weights []float32, rows int) *Product {
	p := &Product{Rows: rows, X: make([]uint16, rows*c.K)}
	columns := r.Perm(c.K)[:rows]
	for i, k := range columns {
		p.X[i*c.K+k] = ToHalf(c.Type, 1)
	}
	p.check = func(y []uint16) (float64, error) {
		for i, k := range columns {
			for n := range c.N {
				got, want := FromHalf(c.Type, y[i*c.N+n]), FromHalf(c.Type, ToHalf(c.Type, weights[n*c.K+k]))
				if got != want {
					return 0, fmt.Errorf("identity: weight %d,%d is %g, want %g", n, k, got, want)
				}
			}
		}
		return 0, nil
	}
	return p
}

// RandomMatrix returns a matrix whose codes are all random and whose scales
// and table are those of weights, normal with mean 0. Groups are no longer than rows.
func RandomMatrix(r *rand.Rand, n, k, bits, group int, st weight.ScaleType) *lut.Matrix {
	m := &lut.Matrix{N: n, K: k, Bits: bits, Group: min(group, k), ScaleType: st}
	rb := m.RowBytes()
	m.Codes = make([]byte, m.N*rb)
	for i := range m.Codes {
		m.Codes[i] = byte(r.Uint32())
	}
	if rest := m.K * bits % 8; rest > 0 {
		for n := range m.N {
			m.Codes[(n+1)*rb-1] &= 1<<rest - 1
		}
	}
	scales := make([]float32, m.N*m.Groups())
	for i := range scales {
		scales[i] = float32(0.02 * (0.5 + r.Float64()))
	}
	m.Scales = make([]byte, len(scales)*st.Size())
	st.Encode(m.Scales, scales)
	for range 1 << bits {
		m.Codebook = append(m.Codebook, float32(r.NormFloat64()))
	}
	slices.Sort(m.Codebook)
	return m
}

// RandomSparse returns a matrix of which two in four columns are kept, all pairs of them as often, that is otherwise as
// [RandomMatrix] has it.
func RandomSparse(r *rand.Rand, n, k, bits, group int, st weight.ScaleType) *lut24.Matrix {
	pairs := []uint8{4, 8, 9, 12, 13, 14}
	group = min(group, k)
	m := &lut24.Matrix{
		Kept:    RandomMatrix(r, n, k/lut24.Chunk*lut24.Kept, bits, group/lut24.Chunk*lut24.Kept, st),
		Pattern: make([]byte, n*lut24.PatternBytes(k)),
	}
	for row := range n {
		for c := range k / lut24.Chunk {
			lut24.SetNibble(m.RowPattern(row), c, pairs[r.IntN(len(pairs))])
		}
	}
	return m
}

// randomSparse returns such a matrix, with a 0 in its table for there to be one of the kind lut that stands for the same.
func randomSparse(r *rand.Rand, n, k, bits, group int, st weight.ScaleType) (*lut24.Matrix, *lut.Matrix) {
	m := RandomSparse(r, n, k, bits, group, st)
	m.Kept.Codebook[r.IntN(len(m.Kept.Codebook))] = 0
	dense, err := m.LUT()
	if err != nil {
		panic(err) // which its 0 makes impossible
	}
	return m, dense
}

// Raw gives a matrix the numbers of a format of others: a table that reaches far beyond 1, -127 at 4
// bits, and scales so small that they are subnormal in float16.
func Raw(m *lut.Matrix) {
	name := fmt.Sprintf("q%d", m.Bits)
	if m.Bits == 4 {
		name = "iq4nl"
	}
	table, err := lut.NewCodebook(name, m.Bits, m.Group)
	if err != nil {
		panic(err) // which the name makes impossible
	}
	m.Codebook = table.Values
	scales := make([]float32, m.N*m.Groups())
	m.ScaleType.Decode(scales, m.Scales)
	for i := range scales {
		scales[i] /= 512
	}
	m.ScaleType.Encode(m.Scales, scales)
}

// integers returns the table of those of 4 bits.
func integers() []float32 {
	t, err := lut.NewCodebook("q4", 4, 1)
	if err != nil {
		panic(err) // which the name makes impossible
	}
	return t.Values
}

// RandomHalves returns n normally distributed numbers of a type.
func RandomHalves(r *rand.Rand, n int, t driver.DType) []uint16 {
	h := make([]uint16, n)
	for i := range h {
		h[i] = ToHalf(t, float32(r.NormFloat64()))
	}
	return h
}
