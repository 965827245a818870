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
	"github.com/lutq/lutq/formats/weight/lut"
	"github.com/lutq/lutq/formats/weight/trellis"
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

// Selftest multiplies by random matrices of every kind and width, of several groups and scale types and of awkward shapes. It does so on
// every instruction set of this machine, with one thread and with several. It compares the results with the float64 reference, the
// packed weights with the matrix that they were made of, and the results of all instruction sets and numbers of threads with each
// other, bit for bit; tables also with dense weights, of which many rows of X have the same bits. Products that round more are
// checked as well. Failures are reported in the result; the error is for a test that could not be run.
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
	shapes := [][2]int{{1, 1}, {16, 32}, {17, 33}, {40, 172}, {64, 256}, {95, 257}, {33, 576}}
	r := rand.New(rand.NewPCG(seed, 1))
	for _, kind := range conform.Kinds() {
		if kind.Cases == nil {
			continue
		}
		least, most := kind.Widths()
		for bits := least; bits <= most; bits++ {
			for _, draw := range kind.Cases(bits, shapes) {
				if err := ctx.Err(); err != nil {
					return nil, err
				}
				if err := res.matrix(r, engines, draw(r)); err != nil {
					return nil, err
				}
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

// matrix checks one matrix on all engines: against the reference, bit for bit with each other, and by unit vectors, or tables beside
// dense weights.
func (res *SelftestResult) matrix(r *rand.Rand, engines []*cpu.Engine, m weight.Matrix) error {
	f, err := formOf(m)
	if err != nil {
		return err
	}
	n, k, tables := f.n, f.k, f.kind == lut.Name
	units := !tables && f.kind != trellis.Name // whose rotated x is not 0 elsewhere
	where := fmt.Sprintf("%s of %d×%d, %d bits, group %d, scales %v", f.kind, n, k, f.bits, f.group, f.scale)
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
	if tables {
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
