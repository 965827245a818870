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
	"github.com/lutq/lutq/quantize/rounding"
)

// Options are how layers are fitted to what they read.
type Options struct {
	// Damp is λ: so much of the mean of H's diagonal is added to the diagonal.
	Damp float64

	// Retarget is α, the part of the way that weights go towards making up for
	// the error of what they read. 0 is off, and needs no Drift.
	Retarget float64

	// Rescale has scales of tables chosen again where their group comes: what uses a state sets Group by it.
	Rescale bool

	// WeighScales has scales searched with columns weighted by the diagonal of H.
	WeighScales bool

	// Rows is how many rows of weights read what the state is of, 0 where that is not known. A device makes less of it where they are
	// few beside the columns, and takes the statistics for as long as the state then.
	Rows int

	// Group is the number of consecutive columns that share a scale which a [Rescaler] chooses again when they come: a power of
	// two from 16 to 128 that divides the columns, or 0 where scales stay as they were found beforehand. A device leaves them as they are.
	Group int

	// Chunk is the number of consecutive columns that come one after the other, of which a
	// [Pruner] makes some 0: a power of two up to 64 that divides the columns, or 0 for none.
	Chunk int

	// Block is the number of columns that a [Blocker] rounds together, with no errors carried among them: a power of two up to
	// 64, or 0 where each is rounded by itself. The last columns may be fewer.
	Block int
}

// Check reports the first option that makes no sense.
func (o Options) Check() error {
	for _, v := range []struct {
		name  string
		value float64
	}{{"damping", o.Damp}, {"retargeting", o.Retarget}} {
		if !(v.value >= 0) || math.IsInf(v.value, 0) {
			return fmt.Errorf("%s of %v: want a number of at least 0", v.name, v.value)
		}
	}
	if o.Chunk < 0 || o.Chunk > 64 || o.Chunk&(o.Chunk-1) != 0 {
		return fmt.Errorf("chunks of %d columns", o.Chunk)
	}
	if o.Group != 0 && (o.Group < 16 || o.Group > width) || o.Group&(o.Group-1) != 0 || o.Group > 0 && (o.Chunk > 1 || o.Block > 0) {
		return fmt.Errorf("groups of %d columns", o.Group)
	}
	if o.Block < 0 || o.Block > 64 || o.Block&(o.Block-1) != 0 || o.Block > 0 && o.Chunk > 1 {
		return fmt.Errorf("blocks of %d columns", o.Block)
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
	chunk  int     // columns that stay together, 1 where each is by itself
	block  int     // columns that are rounded together, 0 where each is rounded by itself
	group  int     // columns that share a scale which is chosen again, 0 where scales stay
	mean   float64 // of H's diagonal
	added  float64 // to it, over the number of tokens
	report Report
	device rounding.Feedback // that does the rest, or nil

	order   []int        // the column that comes i-th
	squares []float64    // R[i,i]² over the number of tokens
	carry   []float32    // [K, width]: A[i, …] to the columns of i's block, 0 up to i
	blocks  []*cpu.Plain // A[block, block and after]ᵀ, with its ones
	after   []*cpu.Plain // A[block, after]ᵀ; nil for the last
	corners []float64    // [K, block] of a state with blocks: R[block, block], over the root of the number of tokens
	damped  []float64    // of a state with blocks: H's diagonal as it was factored, in the order of columns, over the number of tokens
	shift   *cpu.Plain   // α·(D·H⁻¹)ᵀ, or nil
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
func NewState(stats rounding.Stats, o Options) (*State, error) {
	if err := o.Check(); err != nil {
		return nil, err
	}
	s := &State{k: stats.K(), chunk: max(o.Chunk, 1), block: o.Block}
	device, onDevice := stats.(rounding.Device)
	if !onDevice {
		s.group = o.Group
	}
	if s.group > 0 && s.k%s.group != 0 {
		return nil, fmt.Errorf("%d columns in groups of %d", s.k, s.group)
	}
	if s.k%s.chunk != 0 {
		return nil, fmt.Errorf("%d columns in chunks of %d", s.k, s.chunk)
	}
	if tokens := stats.Tokens(); tokens < s.k {
		s.report.Nearest = fmt.Sprintf("%d tokens for %d inputs", tokens, s.k)
		return s, nil
	}
	diagonal, err := stats.Diagonal()
	if err != nil {
		return nil, err
	}
	for _, v := range diagonal {
		if v-v != 0 {
			s.report.Nearest = notFinite
			return s, nil
		}
		s.mean += float64(v) / float64(s.k)
		if v == 0 {
			s.report.Dead++
		}
	}
	if s.report.Dead == s.k {
		s.report.Nearest = "all inputs are zero"
		return s, nil
	}
	s.order = falling(diagonal, max(s.chunk, s.block, s.group))
	if s.group > 0 { // and within groups as well
		for from := 0; from < s.k; from += s.group {
			slices.SortStableFunc(s.order[from:from+s.group], func(a, b int) int { return cmp.Compare(diagonal[b], diagonal[a]) })
		}
	}
	if o.WeighScales {
		s.weights = make([]float32, s.k)
		for i, v := range diagonal {
			s.weights[i] = float32(float64(v)/s.mean + leastWeight)
		}
	}
	if onDevice && s.chunk == 1 { // which prunes nothing
		return s, s.onDevice(device, o)
	}
	return s, s.onHost(stats, o)
}

// falling returns columns in chunks in the order of the falling sums of their diagonals. Those that make no chunk come last.
func falling(diagonal []float32, chunk int) []int {
	chunks, sums := make([]int, len(diagonal)/chunk), make([]float64, len(diagonal)/chunk)
	for i, v := range diagonal[:len(chunks)*chunk] {
		chunks[i/chunk] = i / chunk
		sums[i/chunk] += float64(v)
	}
	slices.SortStableFunc(chunks, func(a, b int) int { return cmp.Compare(sums[b], sums[a]) })
	order := make([]int, 0, len(diagonal))
	for _, c := range chunks {
		for i := range chunk {
			order = append(order, c*chunk+i)
		}
	}
	for i := len(order); i < len(diagonal); i++ {
		order = append(order, i)
	}
	return order
}

// finite reports whether all of v are numbers.
func finite(v []float32) bool {
	return !slices.ContainsFunc(v, func(x float32) bool { return x-x != 0 })
}

const notFinite = "the Hessian is not finite"

// onDevice prepares what columns are rounded with on a device.
func (s *State) onDevice(stats rounding.Device, o Options) error {
	err := s.raise(o.Damp, stats.Tokens(), func(damp float64) (ok bool, err error) {
		s.device, err = stats.Feedback(rounding.FeedbackOptions{
			Order: s.order, Tokens: stats.Tokens(), Add: float32(damp * s.mean), Retarget: float32(o.Retarget), Block: o.Block, Readers: o.Rows,
		})
		return s.device != nil, err
	})
	if err != nil || s.report.Nearest == "" {
		return err
	}
	h, err := stats.Hessian()
	if err == nil && !finite(h) {
		s.report.Nearest, s.report.Raised = notFinite, 0
	}
	return err
}

// onHost prepares what columns are rounded with.
func (s *State) onHost(stats rounding.Stats, o Options) error {
	h, err := stats.Hessian()
	if err != nil {
		return err
	}
	if !finite(h) {
		s.report.Nearest = notFinite
		return nil
	}
	// Reversed in both axes, R is the lower factor of the reversed H.
	reversed, l := slices.Clone(s.order), make([]float64, s.k*s.k)
	slices.Reverse(reversed)
	err = s.raise(o.Damp, stats.Tokens(), func(damp float64) (bool, error) { return cholesky(l, h, reversed, damp*s.mean), nil })
	if err != nil || s.report.Nearest != "" {
		return err
	}
	if o.Retarget > 0 {
		d, err := stats.Drift()
		if err != nil {
			return err
		}
		if d == nil {
			return errors.New("retargeting needs the original model's inputs")
		}
		if err := s.retarget(d, l, reversed, o.Retarget); err != nil {
			return err
		}
	}
	if s.block > 0 {
		s.unfoldBlocks(l, stats.Tokens())
		return nil
	}
	s.unfold(l, stats.Tokens())
	return nil
}

// raise calls f with a damping, and ten times that until it says that the Hessian could be
// factored, and reports on it.
func (s *State) raise(damp float64, tokens int, f func(damp float64) (ok bool, err error)) error {
	for {
		ok, err := f(damp)
		if err != nil {
			return err
		}
		if ok {
			s.report.Damp, s.added = damp, damp*s.mean/float64(tokens)
			return nil
		}
		if damp >= maxDamp {
			s.report.Nearest = fmt.Sprintf("the Hessian is not positive definite, even with %v of its mean diagonal on the diagonal", damp)
			return nil
		}
		damp = max(10*damp, 1e-4)
		s.report.Raised++
	}
}

// arrange writes rows of weights to dst in the order of columns.
func (s *State) arrange(dst, rows []float32) {
	for from := 0; from < len(rows); from += s.k {
		for i, c := range s.order {
			dst[from+i] = rows[from+c]
		}
	}
}

// Close gives back what the state holds, also on a device. Quantizers of the state are no use then.
func (s *State) Close() {
	if s.device != nil {
		s.device.Close()
	}
	*s = State{k: s.k, report: s.report} // who still has a quantizer keeps no matrices by it
}

// leastWeight is what a column counts at least where scales are searched, against a
// mean of 1.
const leastWeight = 0.01

// unfold sets what is derived from R, given its factor reversed in both axes.
func (s *State) unfold(l []float64, tokens int) {
	k := s.k
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
}

// retarget sets s.shift, by the factor l of H with its axes in an order.
func (s *State) retarget(d []float32, l []float64, order []int, share float64) error {
	k := s.k
	shift := make([]float32, k*k)
	const columns = 64 // that a goroutine solves at a time
	var g errgroup.Group
	g.SetLimit(runtime.GOMAXPROCS(0))
	for from := 0; from < k; from += columns {
		g.Go(func() error {
			n := min(columns, k-from)
			rhs := blas64.General{Rows: k, Cols: n, Stride: n, Data: make([]float64, k*n)}
			for i, c := range order {
				for j := range n {
					rhs.Data[i*n+j] = float64(d[(from+j)*k+c]) // Dᵀ
				}
			}
			lapack64.Potrs(blas64.Triangular{Uplo: blas.Lower, Diag: blas.NonUnit, N: k, Data: l, Stride: k}, rhs)
			for i, c := range order {
				for j := range n {
					shift[c*k+from+j] = float32(share * rhs.Data[i*n+j])
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

// cholesky writes the lower factor of h, with its axes in an order and more on its diagonal, and
// reports whether there is one.
func cholesky(l []float64, h []float32, order []int, more float64) bool {
	k := len(order)
	for i, row := range order {
		for j, col := range order[:i+1] {
			l[i*k+j] = float64(h[row*k+col])
		}
		l[i*k+i] += more
	}
	_, ok := lapack64.Potrf(blas64.Symmetric{Uplo: blas.Lower, N: k, Data: l, Stride: k})
	return ok
}
