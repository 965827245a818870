package bench

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"

	"github.com/lutq/lutq/formats/num"
	"github.com/lutq/lutq/formats/weight"
	"github.com/lutq/lutq/formats/weight/bcq"
	"github.com/lutq/lutq/formats/weight/lut"
	"github.com/lutq/lutq/gemm/conform"
	"github.com/lutq/lutq/gemm/cpu"
	"github.com/lutq/lutq/gemm/ref"
	"github.com/lutq/lutq/repack"
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
				if err := res.matrix(r, engines, m); err != nil {
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
			if err := res.planes(r, engines, conform.RandomBCQ(r, s.N, s.K, bits, group, weight.F16, true)); err != nil {
				return nil, err
			}
		}
	}
	return res, nil
}

// manyRows is a number of rows of X for which packed and dense weights have
// the same arithmetic.
const manyRows = 15

// matrix checks one matrix on all engines.
func (res *SelftestResult) matrix(r *rand.Rand, engines []*cpu.Engine, m *lut.Matrix) error {
	where := fmt.Sprintf("%d×%d, %d bits, group %d, scales %v", m.N, m.K, m.Bits, m.Group, m.ScaleType)
	panels, err := repack.CPU(m)
	if err != nil {
		return fmt.Errorf("%s: %w", where, err)
	}
	res.Checks++
	if back, err := panels.Matrix(); err != nil {
		res.fail("%s: panels: %v", where, err)
	} else if string(back.Codes) != string(m.Codes) || string(back.Scales) != string(m.Scales) {
		res.fail("%s: panels do not give the matrix back", where)
	}
	packed, err := cpu.NewLUT(panels)
	if err != nil {
		return fmt.Errorf("%s: %w", where, err)
	}
	data := make([]byte, 4*m.N*m.K)
	num.EncodeF32(data, m.Dequantize())
	dense, err := cpu.NewDense(m.N, m.K, "F32", data)
	if err != nil {
		return fmt.Errorf("%s: %w", where, err)
	}

	fixed, err := cpu.NewLUT(panels)
	if err != nil {
		return fmt.Errorf("%s: %w", where, err)
	}
	fixes := fixed.Fix()

	for _, batch := range []int{1, 8, manyRows} {
		x := make([]float32, batch*m.K)
		for i := range x {
			x[i] = float32(r.NormFloat64())
		}
		want := ref.LUT(x, m, batch)
		first := make(map[cpu.Weights][]float32)
		for _, e := range engines {
			for _, w := range []cpu.Weights{packed, dense, fixed} {
				most := maxRelErr
				if w == fixed {
					if !fixes {
						continue
					}
					most = cpu.FixedError
				}
				what := fmt.Sprintf("%s, m %d, %T on %s, %d threads", where, batch, w, e.ISA(), e.Threads())
				y := make([]float32, batch*m.N)
				for i := range y {
					y[i] = float32(math.NaN())
				}
				e.MatMul(y, x, batch, w)
				res.Checks++
				// A single output can be near 0 by chance.
				err := ref.RelErr(y, want)
				switch limit := most * max(1, 30/math.Sqrt(float64(len(y)))); {
				case !(err <= limit):
					res.fail("%s: relative error %.3g", what, err)
				case most == maxRelErr:
					res.WorstErr = max(res.WorstErr, err)
				}
				form := w
				if batch == manyRows && w != fixed {
					form = packed
				}
				if first[form] == nil {
					first[form] = y
				}
				for i, v := range y {
					if other := first[form][i]; math.Float32bits(v) != math.Float32bits(other) {
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
