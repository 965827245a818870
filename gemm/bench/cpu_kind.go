package bench

import (
	"fmt"
	"math"
	"math/rand/v2"

	"github.com/lutq/lutq/formats/weight"
	"github.com/lutq/lutq/formats/weight/bcq"
	"github.com/lutq/lutq/gemm/cpu"
	"github.com/lutq/lutq/gemm/lookup"
	"github.com/lutq/lutq/gemm/ref"
	"github.com/lutq/lutq/repack"
)

// subject is a matrix that [CPU] measures.
type subject struct {
	weight.Matrix
	form
	kernel string // begins its name
}

// tabledKernel begins the name of a kernel for tables of activations in 8 bits.
const tabledKernel = "int8-"

// tabledShared is how many of those tables share a scale, and tabledError what the relative error of a product
// through them stays below.
const (
	tabledShared = 16
	tabledError  = .02
)

// tabled returns the product of x by binary codes through tables in 8 bits, which are there.
func (b *bench) tabled(y, x []float32, batch, k int, w []cpu.Weights) func(i int) {
	by := through(b.engine, y, x, batch, k)
	return func(i int) { by(w[i%len(w)]) }
}

// through makes the tables of x in 8 bits and returns the product through them by weights.
func through(e *cpu.Engine, y, x []float32, batch, k int) func(w cpu.Weights) {
	var tables cpu.PlaneTables
	tables.Reset(lookup.Precision{Shared: tabledShared}, batch, k)
	for r := range batch {
		e.FillTables(&tables, 0, r, x[r*k:(r+1)*k])
	}
	return func(w cpu.Weights) { e.MatMulTables(&tables, 0, batch, cpu.Op{Y: y, W: w}) }
}

// planes checks random binary codes on all engines: against the reference, by unit vectors, and bit for bit
// with each other.
func (res *SelftestResult) planes(r *rand.Rand, engines []*cpu.Engine, m *bcq.Matrix) error {
	where := fmt.Sprintf("%d×%d, %d planes, group %d, factors %v", m.N, m.K, m.Bits, m.Group, m.ScaleType)
	panels, err := repack.Planes(m)
	if err != nil {
		return fmt.Errorf("%s: %w", where, err)
	}
	res.Checks++
	if back, err := panels.Matrix(); err != nil {
		res.fail("%s: panels: %v", where, err)
	} else if !bcq.Equal(back, m) {
		res.fail("%s: panels do not give the matrix back", where)
	}
	w, err := cpu.NewPlanes(panels)
	if err != nil {
		return fmt.Errorf("%s: %w", where, err)
	}
	weights := weight.Dequantize(m)
	for _, batch := range []int{1, 8, manyRows} {
		x := make([]float32, batch*m.K)
		for i := range x {
			x[i] = float32(r.NormFloat64())
		}
		x = append(x, make([]float32, m.K)...)
		unit := r.IntN(m.K)
		x[batch*m.K+unit] = 1
		want := ref.MatMul(x, weights, batch, m.N, m.K)
		var first []float32
		for _, e := range engines {
			what := fmt.Sprintf("%s, m %d on %s, %d threads", where, batch, e.ISA(), e.Threads())
			y := make([]float32, (batch+1)*m.N)
			poison(y)
			e.MatMul(y, x, batch, w)
			e.MatMul(y[batch*m.N:], x[batch*m.K:], 1, w)
			if w.Tabled() {
				rounded := make([]float32, batch*m.N)
				poison(rounded)
				through(e, rounded, x[:batch*m.K], batch, m.K)(w)
				res.Checks++
				if err := ref.RelErr(rounded, want); !(err <= tabledError*max(1, 30/math.Sqrt(float64(batch*m.N)))) {
					res.fail("%s, tables in 8 bits: relative error %.3g", what, err)
				}
				y = append(y, rounded...)
			}
			res.Checks++
			err := ref.RelErr(y[:batch*m.N], want)
			if limit := maxRelErr * max(1, 30/math.Sqrt(float64(batch*m.N))); !(err <= limit) {
				res.fail("%s: relative error %.3g", what, err)
			} else {
				res.WorstErr = max(res.WorstErr, err)
			}
			for n, v := range y[batch*m.N : (batch+1)*m.N] {
				if v != weights[n*m.K+unit] {
					res.fail("%s: weight [%d, %d] is %g, want %g", what, n, unit, v, weights[n*m.K+unit])
					break
				}
			}
			if first == nil {
				first = y
			}
			for i, v := range y {
				if math.Float32bits(v) != math.Float32bits(first[i]) {
					res.fail("%s: element %d is %g, elsewhere %g", what, i, v, first[i])
					break
				}
			}
		}
	}
	return nil
}
