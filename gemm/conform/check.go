package conform

import (
	"context"
	"fmt"
	"math"
	"slices"

	"github.com/lutq/lutq/gemm/cuda/driver"
)

// Kernels multiply by the matrix of a case, under configurations of type C.
type Kernels[C fmt.Stringer] interface {
	// Configs returns the configurations for a number of rows of X.
	Configs(rows int) []C

	// Slices returns into how many slices a configuration splits K, the first ones of X where
	// there are several launches. Configurations of as many give the same bits.
	Slices(c C, rows int) int

	// MatMul multiplies, with a grid of at most so many blocks, or several. Y begins as y and
	// is then copied there: that of the product, and [Guard] elements behind it.
	MatMul(c C, p *Product, blocks int, y []uint16) error
}

// Result is what has come of [Check].
type Result struct {
	Checks   int      // of a product
	WorstErr float64  // relative, of the products that are near enough
	Failures []string // a line each
}

// grids returns numbers of blocks at most: one for each tile, so few that they have more, and not
// all the same number, and one for all tiles.
func (c *Case) grids() []int { return []int{(c.N + tileRows - 1) / tileRows, 4, 1} }

// Check multiplies the products of a case under every configuration, twice and on different
// grids. What kernels compute wrong is reported in the result; the error is theirs, or the
// context's.
func Check[C fmt.Stringer](ctx context.Context, c *Case, k Kernels[C]) (*Result, error) {
	res := new(Result)
	for i, p := range c.Products {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		first := make(map[int][]uint16) // by slices of K
		for _, config := range k.Configs(p.Rows) {
			in := k.Slices(config, p.Rows)
			for again := range 2 {
				blocks := c.grids()[(i+again)%len(c.grids())]
				y := Poisoned(p.Rows * c.N)
				if err := k.MatMul(config, p, blocks, y); err != nil {
					return nil, fmt.Errorf("%v, %d rows, %v: %w", c, p.Rows, config, err)
				}
				res.Checks++
				err := res.compare(p, y, first, in, c.Type)
				if err != nil {
					res.Failures = append(res.Failures, fmt.Sprintf("%v, %d rows, %v, %d slices, up to %d blocks: %v", c, p.Rows, config, in, blocks, err))
				}
			}
		}
	}
	return res, nil
}

// compare returns what is wrong with a result in a number of slices.
func (res *Result) compare(p *Product, y []uint16, first map[int][]uint16, in int, t driver.DType) error {
	if err := CheckWritten(y, t); err != nil {
		return err
	}
	if of, ok := first[in]; ok {
		if !slices.Equal(y, of) {
			return fmt.Errorf("not the bits of the first time")
		}
		return nil
	}
	first[in] = y
	rel, err := p.check(y)
	res.WorstErr = max(res.WorstErr, rel)
	return err
}

// Poison fills what is to be overwritten: as bytes it makes every element a NaN of either type.
const Poison = 0xff

// Guard is the number of elements behind a result that no kernel may touch.
const Guard = 64

const poisoned = Poison<<8 | Poison

// Poisoned returns memory for a result of n elements, with those behind it.
func Poisoned(n int) []uint16 { return slices.Repeat([]uint16{poisoned}, n+Guard) }

// CheckWritten fails if an element of a result is still poisoned, or not finite, or one of those
// behind it, which y has as well, is not as it was.
func CheckWritten(y []uint16, t driver.DType) error {
	y, guard := y[:len(y)-Guard], y[len(y)-Guard:]
	for i, v := range guard {
		if v != poisoned {
			return fmt.Errorf("element %d behind the result was written", i)
		}
	}
	for i, v := range y {
		if v == poisoned {
			return fmt.Errorf("element %d was not written", i)
		}
		if f := float64(FromHalf(t, v)); math.IsNaN(f) || math.IsInf(f, 0) {
			return fmt.Errorf("element %d is %g", i, f)
		}
	}
	return nil
}
