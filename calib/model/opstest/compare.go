package opstest

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/lutq/lutq/calib/model"
)

// guard is the number of elements before and behind an array that no operation
// may touch: a multiple of what kernels like arrays to be aligned to.
const guard = 64

// check compares one call of one operation.
type check struct {
	testing.TB
	ops     Ops
	o       Options
	r       *rand.Rand
	tensors []*tensor
}

// tensor is an array of the operations under test beside that of the reference.
type tensor struct {
	name   string
	whole  model.Array // guards included
	dev    model.Array
	ref    Array
	before []float32 // of whole; nil for outputs
	floor  float64
}

func (o Options) check(t testing.TB, ops Ops, seed uint64) *check {
	return &check{TB: t, ops: ops, o: o, r: rand.New(rand.NewPCG(seed, 1))}
}

// uniform returns n numbers within ±top.
func (c *check) uniform(n int, top float64) []float32 {
	v := make([]float32, n)
	for i := range v {
		v[i] = float32(top * (2*c.r.Float64() - 1))
	}
	return v
}

// normal returns n normally distributed numbers.
func (c *check) normal(n int, sigma float64) []float32 {
	v := make([]float32, n)
	for i := range v {
		v[i] = float32(c.r.NormFloat64() * sigma)
	}
	return v
}

// poison returns n NaNs, which an operation that reads its output, or leaves a part of
// it out, does not get rid of.
func poison(n int) []float32 {
	v := make([]float32, n)
	for i := range v {
		v[i] = float32(math.NaN())
	}
	return v
}

// array makes a tensor that holds v, as far as its type can.
func (c *check) array(name string, alloc func(n int) model.Array, v []float32) *tensor {
	whole := alloc(len(v) + 2*guard)
	data := slices.Concat(poison(guard), v, poison(guard))
	c.ops.Write(whole, data)
	c.ops.Read(data, whole)
	x := &tensor{
		name: name, whole: whole, before: data,
		dev: whole.Slice(guard, guard+len(v)),
		ref: widen(data[guard : guard+len(v)]),
	}
	c.tensors = append(c.tensors, x)
	return x
}

// acts and floats make inputs.
func (c *check) acts(name string, v []float32) *tensor   { return c.array(name, c.ops.Acts, v) }
func (c *check) floats(name string, v []float32) *tensor { return c.array(name, c.ops.Floats, v) }

// out lets operations write a tensor, which is compared. Values below floor
// count as nought: what should cancel does so but for rounding.
func (t *tensor) out(floor float64) *tensor {
	t.before, t.floor = nil, floor
	return t
}

// actsOut and floatsOut make outputs that hold no numbers.
func (c *check) actsOut(name string, n int) *tensor   { return c.acts(name, poison(n)).out(0) }
func (c *check) floatsOut(name string, n int) *tensor { return c.floats(name, poison(n)).out(0) }

// weights is a matrix of the operations under test beside that of the reference.
type weights struct {
	dev model.Weight
	ref *matrix
}

// weight uploads to both.
func (c *check) weight(upload func(ops Ops) (model.Weight, error)) weights {
	c.Helper()
	dev, err := upload(c.ops)
	if err != nil {
		c.Fatalf("upload a weight: %v", err)
	}
	ref, err := upload(Reference{})
	if err != nil {
		c.Fatalf("the reference: upload a weight: %v", err)
	}
	w := weights{dev, ref.(*matrix)}
	gn, gk := dev.Shape()
	if n, k := ref.Shape(); gn != n || gk != k {
		c.Fatalf("weight has shape [%d, %d]: want [%d, %d]", gn, gk, n, k)
	}
	return w
}

// side is one of the two that are compared.
type side struct {
	Ops
	reference bool
}

// a is the side's memory of a tensor, nil of none.
func (s side) a(t *tensor) model.Array {
	switch {
	case t == nil:
		return nil
	case s.reference:
		return t.ref
	}
	return t.dev
}

// w is the side's matrix.
func (s side) w(w weights) model.Weight {
	if s.reference {
		return w.ref
	}
	return w.dev
}

// both runs f on both sides.
func (c *check) both(f func(s side)) {
	f(side{c.ops, false})
	f(side{Reference{}, true})
}

// compare fails where outputs are further from the reference than tol, and
// where operations wrote to inputs or beside their outputs. Outputs then hold
// the reference's numbers, as far as their type can, for what comes next.
func (c *check) compare(tol float64) {
	c.Helper()
	if err := c.ops.Err(); err != nil {
		c.Fatalf("operations failed: %v", err)
	}
	for _, x := range c.tensors {
		data := make([]float32, x.whole.Len())
		c.ops.Read(data, x.whole)
		got := data[guard : len(data)-guard]
		if !poisoned(data[:guard]) || !poisoned(data[len(data)-guard:]) {
			c.Errorf("%s: elements beside it were overwritten", x.name)
		}
		if x.before != nil {
			if i := differs(data, x.before); i >= 0 {
				c.Errorf("%s: input element %d was changed from %v to %v", x.name, i-guard, x.before[i], data[i])
			}
			continue
		}
		if c.o.Output != nil {
			c.o.Output(fmt.Sprintf("%s %s", c.Name(), x.name), slices.Clone(got))
		}
		if message := distance(got, x.ref, x.floor, tol); message != "" {
			c.Errorf("%s: %s", x.name, message)
		}
	}
}

func poisoned(v []float32) bool {
	return !slices.ContainsFunc(v, func(x float32) bool { return x == x })
}

// differs returns the first place where the bits of two slices differ, NaNs
// being equal, or −1.
func differs(a, b []float32) int {
	for i, v := range a {
		if math.Float32bits(v) != math.Float32bits(b[i]) && (v == v || b[i] == b[i]) {
			return i
		}
	}
	return -1
}

// distance compares by ‖got − want‖ ≤ tol·max(‖want‖, floor·√n) and returns
// what is wrong. Numbers must be finite in the same places.
func distance(got []float32, want []float64, floor, tol float64) string {
	var diff, norm, worst float64
	at := 0
	for i, w := range want {
		g := float64(got[i])
		if finite(g) != finite(w) {
			return fmt.Sprintf("element %d is %v: want %v", i, g, w)
		}
		if !finite(w) {
			continue
		}
		if d := math.Abs(g - w); d > worst {
			worst, at = d, i
		}
		diff += (g - w) * (g - w)
		norm += w * w
	}
	norm = max(norm, floor*floor*float64(len(want)))
	if diff <= tol*tol*norm {
		return ""
	}
	return fmt.Sprintf("relative distance %.2g: want ≤ %.2g (element %d of %d is %v: want %v)",
		math.Sqrt(diff/norm), tol, at, len(want), got[at], want[at])
}

func finite(v float64) bool { return !math.IsNaN(v) && !math.IsInf(v, 0) }

// done frees what c made.
func (c *check) done(w ...weights) {
	for _, x := range c.tensors {
		c.ops.Free(x.whole)
	}
	for _, w := range w {
		c.ops.FreeWeight(w.dev)
	}
}
