package gptq

import (
	"errors"
	"math"
	"runtime"

	"golang.org/x/sync/errgroup"

	"github.com/lutq/lutq/formats/weight"
	"github.com/lutq/lutq/gemm/cpu"
	"github.com/lutq/lutq/quantize/rounding"
)

// A Blocker rounds [Options.Block] columns of several rows at once. What it rounds it makes of a layer's weights first, by a rotation of
// their columns, in whose terms the state's statistics are. That of package rings is one.
type Blocker interface {
	rounding.Quantizer
	// CheckParts reports parts that n rows of k columns have no place in.
	CheckParts(parts [][]byte, n, k int) error
	// Rotate writes to dst what is rounded of n rows of weights. It fails with a [rounding.NotFiniteError].
	Rotate(dst, w []float32, n int) error
	// Fit finds what n rotated rows are stored with besides their codes, and keeps it until the next call.
	Fit(rotated []float32, n int) error
	// Wants returns what [rounding.RowError] wants for one of those rows.
	Wants(row int) weight.ScaleType
	// Round chooses codes for the block of columns that begins with a first one, in all of those rows, whose values by now are
	// v [rows, columns], and writes the rotated weights that they stand for.
	Round(stored, v []float32, first int)
	// Stretch multiplies all that one of those rows stands for by about a factor, and returns by which.
	Stretch(row int, factor float64) float64
	// Store writes those rows, all of whose columns have been rounded, as rows to and after of parts.
	Store(parts [][]byte, to int)
}

// Adder is a [Blocker] whose rotation changes how much rows count beside each other. So it adds the errors of weights itself.
type Adder interface {
	// Add adds to the errors of the rows fitted those of their weights w, given what their rotated weights are stored as.
	Add(errs []rounding.RowError, w, stored []float32)
}

// blockQuantizer implements [rounding.Quantizer].
type blockQuantizer struct {
	products
	Blocker

	// Scratch for rowsAtOnce rows. All but rotated are in the order of columns.
	rotated       []float32
	goal          []float32 // what is aimed at
	value         []float32 // v, of columns that are done and that are not
	stored        []float32 // what codes stand for
	errors        []float32 // of a block of a product
	some, rounded []float32 // columns of a block, and what they became
	weighed       []float64 // rows times R
	aimed         []float64 // the goal times R
	losses        []loss
}

// Blocks returns a quantizer of a layer that reads the state, which was prepared with the blocker's columns in a block: b itself where
// weights are rounded to nearest after all.
func (s *State) Blocks(b Blocker) (rounding.Quantizer, error) {
	if s.report.Nearest != "" {
		return b, nil
	}
	if s.device != nil {
		ringed, ok := b.(Ringed)
		if !ok {
			return nil, errors.New("blocks that no device can round")
		}
		return &deviceRings{State: s, Ringed: ringed}, nil
	}
	p, err := s.products()
	if err != nil {
		return nil, err
	}
	return &blockQuantizer{products: p, Blocker: b}, nil
}

// Rows implements [rounding.Quantizer].
func (q *blockQuantizer) Rows(parts [][]byte, errs []rounding.RowError, w []float32) error {
	if err := q.CheckParts(parts, len(errs), q.k); err != nil {
		return err
	}
	return someRows(len(errs), func(from, to int) error { return q.rows(parts, from, errs[from:to], w[from*q.k:to*q.k]) })
}

// rows quantizes rows that are those from a first one on in parts.
func (q *blockQuantizer) rows(parts [][]byte, first int, errs []rounding.RowError, w []float32) error {
	n, k := len(errs), q.k
	rotated := grow(&q.rotated, n*k)
	if err := q.Rotate(rotated, w, n); err != nil {
		return err
	}
	target := q.retargeted(rotated, n)
	if err := q.Fit(target, n); err != nil {
		return err
	}
	q.arrange(grow(&q.goal, n*k), target)
	losses := grow(&q.losses, n)
	q.feed(losses)
	q.stretch(losses)
	adder, _ := q.Blocker.(Adder)
	for r, l := range losses {
		e := rounding.RowError{Loss: l.fed, NearestLoss: l.nearest, Output: l.all, Wants: q.Wants(r)}
		stored := q.stored[r*k : (r+1)*k]
		if adder == nil {
			for i, c := range q.order {
				e.Add(rotated[r*k+c], stored[i])
			}
		}
		q.undamp(&e, q.goal[r*k:(r+1)*k], func(i int) float32 { return stored[i] })
		errs[r] = e
	}
	if adder != nil {
		ordered := grow(&q.value, n*k) // which is done with
		for r := range n {
			for i, c := range q.order {
				ordered[r*k+c] = q.stored[r*k+i]
			}
		}
		adder.Add(errs, w, ordered)
	}
	q.Store(parts, first)
	return nil
}

// feed rounds one block of the goal after the other, feeding their errors into those after it. It notes what is lost, and what were
// if the same errors fell on the goal by chance: those of rounding to nearest do.
func (q *blockQuantizer) feed(losses []loss) {
	n, k := len(losses), q.k
	value, stored := grow(&q.value, n*k), grow(&q.stored, n*k)
	copy(value, q.goal)
	clear(losses)
	for b, after := range q.after {
		from, to := b*width, min(b*width+width, k)
		e := grow(&q.errors, n*(to-from))
		for c := from; c < to; c += q.block {
			end := min(c+q.block, to)
			m := end - c
			v, s := grow(&q.some, n*m), grow(&q.rounded, n*m)
			for r := range n {
				copy(v[r*m:(r+1)*m], value[r*k+c:])
			}
			q.Round(s, v, q.order[c])
			for r := range n {
				copy(stored[r*k+c:], s[r*m:(r+1)*m])
				q.lost(&losses[r], v[r*m:(r+1)*m], s[r*m:(r+1)*m], c)
				row := value[r*k : (r+1)*k]
				for i := c; i < end; i++ {
					e[r*(to-from)+i-from] = q.goal[r*k+i] - stored[r*k+i]
					q.carryOn(row[end:to], e[r*(to-from)+i-from], i, end-from)
				}
			}
		}
		if after != nil {
			q.add(value, to, e, n, after)
		}
	}
}

// carryOn adds the error of a column to those of its block of a product from a position on.
func (q *blockQuantizer) carryOn(row []float32, e float32, column, at int) {
	for j, a := range q.carry[column*width+at:][:len(row)] {
		row[j] += float32(e * a)
	}
}

// lost adds what a row loses in the columns of a block.
func (q *blockQuantizer) lost(l *loss, v, stored []float32, first int) {
	var off [64]float64
	for i := range v {
		off[i] = float64(v[i]) - float64(stored[i])
		l.nearest += q.damped[first+i] * off[i] * off[i]
	}
	for j := range v {
		var sum float64
		for i := range j + 1 {
			sum += off[i] * q.corners[(first+i)*q.block+j]
		}
		l.fed += sum * sum
	}
}

// weigh writes n rows times R, over the root of the number of tokens, given in the order of columns.
func (q *blockQuantizer) weigh(dst []float64, rows []float32, n int) {
	k := q.k
	value := grow(&q.value, n*k)
	clear(value) // becomes rows·A
	for b, block := range q.blocks {
		from, to := b*width, min(b*width+width, k)
		e := grow(&q.errors, n*(to-from))
		for r := range n {
			copy(e[r*(to-from):(r+1)*(to-from)], rows[r*k+from:r*k+to])
		}
		q.add(value, from, e, n, block)
	}
	for r := range n {
		row := value[r*k : (r+1)*k]
		for first := 0; first < k; first += q.block {
			for j := first; j < min(first+q.block, k); j++ {
				var sum float64
				for i := first; i <= j; i++ {
					sum += float64(row[i]) * q.corners[i*q.block+j-first]
				}
				dst[r*k+j] = sum
			}
		}
	}
}

// stretch gives each row the scale with which its codes lose least, of those that can be stored, and notes what were lost if all were 0.
func (q *blockQuantizer) stretch(losses []loss) {
	n, k := len(losses), q.k
	aimed, weighed := grow(&q.aimed, n*k), grow(&q.weighed, n*k)
	q.weigh(aimed, q.goal, n)
	q.weigh(weighed, q.stored, n)
	for r := range losses {
		var all, both, own float64
		for i, v := range weighed[r*k : (r+1)*k] {
			a := aimed[r*k+i]
			all += a * a
			both += a * v
			own += v * v
		}
		l := &losses[r]
		l.all = all
		if !(both > 0) {
			continue
		}
		by := q.Stretch(r, both/own)
		if by == 1 {
			continue
		}
		l.fed = max(all-2*by*both+by*by*own, 0)
		for i := range k {
			q.stored[r*k+i] *= float32(by)
		}
	}
}

// unfoldBlocks sets what is derived from R, given its factor reversed in both axes. Within a block A is the identity.
func (s *State) unfoldBlocks(l []float64, tokens int) {
	k := s.k
	r := func(i, j int) float64 { return l[(k-1-i)*k+k-1-j] }
	root := 1 / math.Sqrt(float64(tokens))
	s.corners, s.damped, s.carry = make([]float64, k*s.block), make([]float64, k), make([]float32, k*width)
	held := make([][]float32, 0, k/width+1)
	for from := 0; from < k; from += width {
		held = append(held, make([]float32, (k-from)*(min(from+width, k)-from)))
	}
	// set notes A[i, j].
	set := func(i, j int, a float32) {
		from, to := i/width*width, min(i/width*width+width, k)
		held[i/width][(j-from)*(to-from)+i-from] = a
		if j < to {
			s.carry[i*width+j-from] = a
		}
	}
	var g errgroup.Group
	g.SetLimit(runtime.GOMAXPROCS(0))
	for first := 0; first < k; first += s.block {
		g.Go(func() error {
			end := min(first+s.block, k)
			a := make([]float64, end-first)
			for i := range first {
				for j := range a { // a·R[block, block] = R[i, block]
					sum := r(i, first+j)
					for p := range j {
						sum -= a[p] * r(first+p, first+j)
					}
					a[j] = sum / r(first+j, first+j)
					set(i, first+j, float32(a[j]))
				}
			}
			for j := first; j < end; j++ {
				set(j, j, 1)
				for i := first; i <= j; i++ {
					s.corners[i*s.block+j-first] = root * r(i, j)
				}
			}
			return nil
		})
	}
	_ = g.Wait() // none fails
	// H is R·Rᵀ, whose diagonal are sums over rows.
	for i := range k {
		for j := i; j < k; j++ {
			s.damped[i] += r(i, j) * r(i, j)
		}
		s.damped[i] /= float64(tokens)
	}
	for b, block := range held {
		from, to := b*width, min(b*width+width, k)
		s.blocks = append(s.blocks, cpu.NewPlain(k-from, to-from, block))
		var after *cpu.Plain
		if to < k {
			after = cpu.NewPlain(k-to, to-from, block[(to-from)*(to-from):])
		}
		s.after = append(s.after, after)
	}
}
