package gptq

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"runtime"
	"slices"

	"golang.org/x/sync/errgroup"
	"gonum.org/v1/gonum/blas"
	"gonum.org/v1/gonum/blas/blas64"
	"gonum.org/v1/gonum/lapack/lapack64"

	"github.com/lutq/lutq/gemm/cpu"
	"github.com/lutq/lutq/quantize/weight"
)

// Options are how layers are fitted to what they read.
type Options struct {
	// Damp is λ: so much of the mean of H's diagonal is added to the diagonal.
	Damp float64

	// Retarget is α, the part of the way that weights go towards making up for
	// the error of what they read. 0 is off, and needs no Drift.
	Retarget float64

	// RetargetDamp is Damp for that.
	RetargetDamp float64

	// WeighScales has scales searched with columns weighted by the diagonal of H.
	WeighScales bool
}

// Check reports the first option that makes no sense.
func (o Options) Check() error {
	for _, v := range []struct {
		name  string
		value float64
	}{{"damping", o.Damp}, {"retargeting", o.Retarget}, {"damping of retargeting", o.RetargetDamp}} {
		if !(v.value >= 0) || math.IsInf(v.value, 0) {
			return fmt.Errorf("%s of %v: want a number of at least 0", v.name, v.value)
		}
	}
	return nil
}

const (
	// width is the number of columns of a block. Within one, errors are carried
	// on from column to column; to the blocks after it, by one product.
	width = 128

	// maxDamp ends the search for a damping that H can be factored with: rounding
	// in float32 makes up no negative eigenvalue beyond it.
	maxDamp = 100
)

// A State is what the layers that read the same inputs share. It does not change, and
// goroutines share it.
type State struct {
	k      int
	report Report

	order   []int        // the column that comes i-th
	squares []float64    // R[i,i]² over the number of tokens
	carry   []float32    // [K, width]: A[i, …] to the columns of i's block, 0 up to i
	blocks  []*cpu.Plain // A[block, block and after]ᵀ, with its ones
	after   []*cpu.Plain // A[block, after]ᵀ; nil for the last
	shift   *cpu.Plain   // α·(D·(H + λI)⁻¹)ᵀ, or nil
	weights []float32    // of columns where scales are searched, or nil
}

// Report says how a state was prepared.
type Report struct {
	Damp    float64 // the damping that H was factored with
	Raised  int     // the times that it took ten times the damping before
	Dead    int     // inputs that are always zero
	Nearest string  // why weights are rounded to nearest after all, or empty
}

// Report returns how the state was prepared.
func (s *State) Report() Report { return s.report }

// Weights returns what columns count where scales are searched, or nil where they
// count alike.
func (s *State) Weights() []float32 { return s.weights }

// NewState prepares what quantizers of layers need. Where the inputs say too
// little, or are not finite, the layers will be rounded to nearest, and the
// report says why.
func NewState(stats weight.Stats, o Options) (*State, error) {
	if err := o.Check(); err != nil {
		return nil, err
	}
	s := &State{k: stats.K()}
	if tokens := stats.Tokens(); tokens < s.k {
		s.report.Nearest = fmt.Sprintf("%d tokens for %d inputs", tokens, s.k)
		return s, nil
	}
	h, err := stats.Hessian()
	if err != nil {
		return nil, err
	}
	var d []float32
	if o.Retarget > 0 {
		if d, err = stats.Drift(); err != nil {
			return nil, err
		}
		if d == nil {
			return nil, errors.New("retargeting needs the original model's inputs")
		}
	}
	for _, v := range h {
		if v-v != 0 {
			s.report.Nearest = "the Hessian is not finite"
			return s, nil
		}
	}
	for i := range s.k {
		if h[i*s.k+i] == 0 {
			s.report.Dead++
		}
	}
	if s.report.Dead == s.k {
		s.report.Nearest = "all inputs are zero"
		return s, nil
	}
	s.order = make([]int, s.k)
	for i := range s.order {
		s.order[i] = i
	}
	slices.SortStableFunc(s.order, func(a, b int) int { return cmp.Compare(h[b*s.k+b], h[a*s.k+a]) })
	if d != nil {
		if err := s.retarget(h, d, o); err != nil {
			return nil, err
		}
	}
	if o.WeighScales {
		s.weights = make([]float32, s.k)
		for i := range s.weights {
			s.weights[i] = float32(float64(h[i*s.k+i])/meanDiagonal(h, s.k) + leastWeight)
		}
	}
	if err := s.factor(h, stats.Tokens(), o.Damp); err != nil {
		return nil, err
	}
	return s, nil
}

// leastWeight is what a column counts at least where scales are searched, against a
// mean of 1.
const leastWeight = 0.01

func meanDiagonal(h []float32, k int) (mean float64) {
	for i := range k {
		mean += float64(h[i*k+i]) / float64(k)
	}
	return mean
}

// factor sets what is derived from R. Reversed in both axes, R is the lower
// factor of the reversed H.
func (s *State) factor(h []float32, tokens int, damp float64) error {
	k := s.k
	reversed := slices.Clone(s.order)
	slices.Reverse(reversed)
	l, damp, raised, err := cholesky(h, reversed, damp)
	if err != nil {
		return err
	}
	s.report.Damp, s.report.Raised = damp, raised
	r := func(i, j int) float64 { return l[(k-1-i)*k+k-1-j] }
	s.squares = make([]float64, k)
	s.carry = make([]float32, k*width)
	for i := range k {
		s.squares[i] = r(i, i) * r(i, i) / float64(tokens)
	}
	for from := 0; from < k; from += width {
		to := min(from+width, k)
		block := make([]float32, (k-from)*(to-from))
		for j := from; j < k; j++ {
			for i := from; i < min(j, to); i++ {
				a := float32(r(i, j) / r(j, j))
				block[(j-from)*(to-from)+i-from] = a
				if j < to {
					s.carry[i*width+j-from] = a
				}
			}
			if j < to {
				block[(j-from)*(to-from)+j-from] = 1
			}
		}
		s.blocks = append(s.blocks, cpu.NewPlain(k-from, to-from, block))
		var after *cpu.Plain
		if to < k {
			after = cpu.NewPlain(k-to, to-from, block[(to-from)*(to-from):])
		}
		s.after = append(s.after, after)
	}
	return nil
}

// retarget sets s.shift.
func (s *State) retarget(h, d []float32, o Options) error {
	k := s.k
	l, _, _, err := cholesky(h, nil, o.RetargetDamp)
	if err != nil {
		return err
	}
	shift := make([]float32, k*k)
	const columns = 64 // that a goroutine solves at a time
	var g errgroup.Group
	g.SetLimit(runtime.GOMAXPROCS(0))
	for from := 0; from < k; from += columns {
		g.Go(func() error {
			n := min(columns, k-from)
			rhs := blas64.General{Rows: k, Cols: n, Stride: n, Data: make([]float64, k*n)}
			for i := range k {
				for j := range n {
					rhs.Data[i*n+j] = float64(d[(from+j)*k+i]) // Dᵀ
				}
			}
			lapack64.Potrs(blas64.Triangular{Uplo: blas.Lower, Diag: blas.NonUnit, N: k, Data: l, Stride: k}, rhs)
			for i := range k {
				for j := range n {
					shift[i*k+from+j] = float32(o.Retarget * rhs.Data[i*n+j])
				}
			}
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		return err
	}
	s.shift = cpu.NewPlain(k, k, shift)
	return nil
}

// cholesky returns the lower factor of h with its axes in an order, nil being
// theirs, and damp times the mean of its diagonal on the diagonal. Where that is
// not positive definite, it takes ten times the damping until it is, and counts.
func cholesky(h []float32, order []int, damp float64) (l []float64, used float64, raised int, err error) {
	k := int(math.Sqrt(float64(len(h))))
	mean := meanDiagonal(h, k)
	l = make([]float64, k*k)
	for {
		for i := range k {
			row := i
			if order != nil {
				row = order[i]
			}
			for j := range i + 1 {
				col := j
				if order != nil {
					col = order[j]
				}
				l[i*k+j] = float64(h[row*k+col])
			}
			l[i*k+i] += damp * mean
		}
		if _, ok := lapack64.Potrf(blas64.Symmetric{Uplo: blas.Lower, N: k, Data: l, Stride: k}); ok {
			return l, damp, raised, nil
		}
		if damp >= maxDamp {
			return nil, 0, 0, fmt.Errorf("the Hessian is not positive definite, even with %v of its mean diagonal on the diagonal", damp)
		}
		damp = max(10*damp, 1e-4)
		raised++
	}
}
