package bench

import (
	"bytes"
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"

	"github.com/lutq/lutq/formats/num"
	"github.com/lutq/lutq/formats/weight"
	"github.com/lutq/lutq/formats/weight/bcq"
	"github.com/lutq/lutq/formats/weight/lut"
	"github.com/lutq/lutq/gemm/conform"
	"github.com/lutq/lutq/gemm/cpu"
	"github.com/lutq/lutq/gemm/ref"
)

// SelftestResult is the outcome of [Selftest].
type SelftestResult struct {
	ISAs     []string // those of this machine
	Checks   int
	WorstErr float64  // relative, of the results in float32 that are not wrong altogether
	Failures []string // a line each
}

// Selftest multiplies random matrices of every width, several groups and scale
// types and awkward shapes on every instruction set of this machine, with one
// thread and with several, and compares the results with the float64
// reference, the packed weights with the matrix they were made of, and the
// results of all instruction sets and thread counts, and for many rows those
// of packed and dense weights, with each other bit for bit. Packed weights are
// multiplied by in float32 and in fixed point. Then come binary codes. Failures are reported in the result; the error is for a
// test that could not be run.
func Selftest(ctx context.Context, seed uint64) (*SelftestResult, error) {
	res := &SelftestResult{ISAs: cpu.ISAs()}
	var engines []*cpu.Engine
	for _, isa := range res.ISAs {
		for _, threads := range []int{1, 3} {
			e, err := cpu.New(cpu.Options{ISA: isa, Threads: threads})
			if err != nil {
				return nil, err
			}
			defer e.Close()
			engines = append(engines, e)
		}
	}
	types := []weight.ScaleType{weight.F16, weight.BF16, weight.F32, weight.E4M4, weight.S1E4M3, weight.E8M0}
	shapes := []Shape{{1, 1}, {16, 32}, {17, 33}, {40, 172}, {64, 256}, {95, 257}, {33, 576}}
	r := rand.New(rand.NewPCG(seed, 1))
	for bits := lut.MinBits; bits <= lut.MaxBits; bits++ {
		for i, group := range []int{32, 64, 128, 256, 50, math.MaxInt32} {
			for j, s := range shapes {
				if err := ctx.Err(); err != nil {
					return nil, err
				}
				m := conform.RandomMatrix(r, s.N, s.K, bits, group, types[(i+j)%len(types)])
				if j%3 == 1 {
					conform.Raw(m)
				}
				where := fmt.Sprintf("%d×%d, %d bits, group %d, scales %v", m.N, m.K, m.Bits, m.Group, m.ScaleType)
				if err := res.matrix(r, engines, m, where, false); err != nil {
					return nil, err
				}
			}
		}
	}
	for bits := bcq.MinBits; bits <= bcq.MaxBits; bits++ {
		for i, s := range shapes {
			if err := ctx.Err(); err != nil {
				return nil, err
			}
			group := []int{32, 64, 50, math.MaxInt32}[(i+bits)%4]
			m := conform.RandomBCQ(r, s.N, s.K, bits, group, weight.F16, true)
			where := fmt.Sprintf("%d×%d, %d planes, group %d, factors %v", m.N, m.K, m.Bits, m.Group, m.ScaleType)
			if err := res.matrix(r, engines, m, where, true); err != nil {
				return nil, err
			}
		}
	}
	return res, nil
}

// manyRows is a number of rows of X for which packed and dense weights have
// the same arithmetic.
const manyRows = 15

// multiplier is one of the ways to multiply by a matrix.
type multiplier struct {
	name   string
	same   string  // multipliers of one name here give the same bits
	most   float64 // relative error
	exact  bool    // whether a unit vector gives the weights
	matMul func(e *cpu.Engine, y, x []float32, rows int)
}

// matrix checks one matrix on all engines: against the reference, bit for bit with each other, and by unit vectors or beside dense
// weights.
func (res *SelftestResult) matrix(r *rand.Rand, engines []*cpu.Engine, m weight.Matrix, where string, units bool) error {
	n, k := m.Shape()
	packed, err := cpu.Pack(m)
	if err != nil {
		return fmt.Errorf("%s: %w", where, err)
	}
	res.Checks++
	if back, err := packed.Matrix(); err != nil {
		res.fail("%s: panels: %v", where, err)
	} else if !slices.EqualFunc(back.Parts(), m.Parts(), bytes.Equal) {
		res.fail("%s: panels do not give the matrix back", where)
	}
	weights := weight.Dequantize(m)
	by := func(w cpu.Weights) func(e *cpu.Engine, y, x []float32, rows int) {
		return func(e *cpu.Engine, y, x []float32, rows int) { e.MatMul(y, x, rows, w) }
	}
	all := []multiplier{{packed.Kernel(), "float32", maxRelErr, units, by(packed)}}
	if !units {
		data := make([]byte, 4*n*k)
		num.EncodeF32(data, weights)
		dense, err := cpu.NewDense(n, k, "F32", data)
		if err != nil {
			return fmt.Errorf("%s: %w", where, err)
		}
		all = append(all, multiplier{"dense", "dense", maxRelErr, false, by(dense)})
	}
	if how := packed.Rounded(); how != nil {
		all = append(all, multiplier{how.Kernel, how.Kernel, how.Error, false, func(e *cpu.Engine, y, x []float32, rows int) {
			how.By(e, x, rows)(y, how.Weights)
		}})
	}
	for _, batch := range []int{1, 8, manyRows} {
		x := make([]float32, batch*k)
		for i := range x {
			x[i] = float32(r.NormFloat64())
		}
		unit, ones := 0, make([]float32, k)
		if units {
			unit = r.IntN(k)
			ones[unit] = 1
		}
		want := ref.MatMul(x, weights, batch, n, k)
		first := make(map[string][]float32)
		for _, e := range engines {
			for _, w := range all {
				what := fmt.Sprintf("%s, m %d, %s on %s, %d threads", where, batch, w.name, e.ISA(), e.Threads())
				y := make([]float32, batch*n)
				poison(y)
				w.matMul(e, y, x, batch)
				res.Checks++
				// A single output can be near 0 by chance.
				err := ref.RelErr(y, want)
				switch limit := w.most * max(1, 30/math.Sqrt(float64(len(y)))); {
				case !(err <= limit):
					res.fail("%s: relative error %.3g", what, err)
				case w.most == maxRelErr:
					res.WorstErr = max(res.WorstErr, err)
				}
				if w.exact {
					column := make([]float32, n)
					poison(column)
					w.matMul(e, column, ones, 1)
					for i, v := range column {
						if v != weights[i*k+unit] {
							res.fail("%s: weight [%d, %d] is %g, want %g", what, i, unit, v, weights[i*k+unit])
							break
						}
					}
				}
				same := w.same
				if batch == manyRows && same == "dense" {
					same = "float32"
				}
				if first[same] == nil {
					first[same] = y
				}
				for i, v := range y {
					if other := first[same][i]; math.Float32bits(v) != math.Float32bits(other) {
						res.fail("%s: element %d is %g, elsewhere %g", what, i, v, other)
						break
					}
				}
			}
		}
	}
	return nil
}

func (res *SelftestResult) fail(format string, a ...any) {
	res.Failures = append(res.Failures, fmt.Sprintf(format, a...))
}
