// Package transform changes the weights of a model so that it computes what it did and is easier to quantize.
//
// A linear layer reads a state. Where the state is divided by a factor in each component, and the layer's columns are
// multiplied by it, nothing changes but for rounding. Package formats/arch says which tensors can do the dividing: the
// norm before queries, keys and values, and before an MLP; the rows of the values for what reads their mixture; the rows
// of an MLP's other factor for its last layer. So [Factors] leave a model of the same tensors, of the same types, which
// any program runs as it did.
//
// Tensors are changed when they are read, a piece at a time, in float32. The results are rounded to the type that a
// tensor has. Norms and biases, which stay in the quantized model, cost nothing by that: [Factors.Settle] takes the
// factors to what their rounded elements really divide by.
package transform

import (
	"fmt"
	"math"
	"slices"

	"github.com/lutq/lutq/formats/arch"
	"github.com/lutq/lutq/formats/hf"
	"github.com/lutq/lutq/formats/num"
	"github.com/lutq/lutq/formats/source"
)

// Factors are what the components of states are divided by, by the names of the states. They are positive.
type Factors map[string][]float32

// Set is a state that can be divided, and all layers that read it.
type Set struct {
	*arch.State
	Layers []*arch.Linear // routers among them
}

// Sets returns the states of a model's blocks that can be divided, in order.
func Sets(d *arch.Decoder) []Set {
	var all []Set
	at := make(map[*arch.State]int)
	add := func(ls ...*arch.Linear) {
		for _, l := range ls {
			if len(l.Reads.Absorb) == 0 {
				continue
			}
			i, ok := at[l.Reads]
			if !ok {
				i = len(all)
				all, at[l.Reads] = append(all, Set{State: l.Reads}), i
			}
			all[i].Layers = append(all[i].Layers, l)
		}
	}
	for i := range d.Blocks {
		b := &d.Blocks[i]
		add(b.Linears()...)
		add(b.Gates()...)
	}
	return all
}

// Tie makes those factors of a set equal that one row of what divides is for, as their geometric mean: heads of queries
// that share one of values have it in common.
func (s Set) Tie(f []float32) {
	logs, counts := make(map[int]float64), make(map[int]float64)
	for i, v := range f {
		logs[s.Source(i)] += math.Log(float64(v))
		counts[s.Source(i)]++
	}
	for i := range f {
		f[i] = float32(math.Exp(logs[s.Source(i)] / counts[s.Source(i)]))
	}
}

// Settle takes factors to those that vectors which divide by them do divide by, once their elements are rounded to the
// type that they are stored in.
func (f Factors) Settle(m *source.Model) error {
	d, w, err := open(m)
	if err != nil {
		return err
	}
	for _, s := range Sets(d) {
		of, ok := f[s.Name]
		if !ok {
			continue
		}
		for _, name := range s.Absorb {
			t, ok := w.Tensor(name)
			if !ok || len(t.Shape) != 1 {
				continue
			}
			was := make([]float32, t.Elements())
			if err := t.ReadFloat32(was, 0); err != nil {
				return err
			}
			round := rounding(typeOf(t))
			for i := range of {
				v, by := float64(was[s.Source(i)])+float64(s.Offset), float64(of[i])
				now := float64(round(float32(v/by-float64(s.Offset)))) + float64(s.Offset)
				if v == 0 {
					continue // of which any part is 0
				}
				if of[i] = float32(v / now); !(v/now > 0) {
					of[i] = 1
				}
			}
			break // the others are rounded
		}
	}
	return nil
}

// Of returns the model whose states are divided. It is open as long as m is.
func (f Factors) Of(m *source.Model) (*source.Model, error) {
	d, w, err := open(m)
	if err != nil {
		return nil, err
	}
	c := changes{tensors: w, of: make(map[string]*change)}
	left := len(f)
	for _, s := range Sets(d) {
		of, ok := f[s.Name]
		if !ok {
			continue
		}
		left--
		if err := c.add(s, of); err != nil {
			return nil, fmt.Errorf("%s: %s: %w", m.Dir(), s.Name, err)
		}
	}
	if left > 0 {
		return nil, fmt.Errorf("%s: factors of %d states that the model has not, or cannot divide", m.Dir(), left)
	}
	changed, err := w.With(c.made())
	if err != nil {
		return nil, err
	}
	return m.With(changed), nil
}

// open returns what a model is made of.
func open(m *source.Model) (*arch.Decoder, *hf.Checkpoint, error) {
	d, err := m.Decoder()
	if err != nil {
		return nil, nil, fmt.Errorf("%s: it is not known what divides the states of the model: %w", m.Dir(), err)
	}
	w, err := m.Weights()
	return d, w, err
}

// changes are those to tensors, by name.
type changes struct {
	tensors *hf.Checkpoint
	order   []*change
	of      map[string]*change
}

// to returns the change to a tensor, which has to have one of some shapes.
func (c *changes) to(name string, shapes ...[]int) (*change, error) {
	if x := c.of[name]; x != nil {
		return x, nil
	}
	t, ok := c.tensors.Tensor(name)
	if !ok {
		return nil, fmt.Errorf("there is no tensor %s", name)
	}
	if !slices.ContainsFunc(shapes, func(s []int) bool { return slices.Equal(s, t.Shape) }) {
		return nil, fmt.Errorf("%s is %v: want %v", name, t.Shape, shapes[0])
	}
	if e := t.Encoding(); e != nil && e.Turned {
		return nil, fmt.Errorf("%s is stored as %s, with its rows where 16 bits have columns", name, e)
	}
	x := &change{Tensor: t, rowSize: 1, inner: 1}
	if n := len(t.Shape); n > 1 {
		x.rowSize = t.Shape[n-1]
	}
	c.of[name], c.order = x, append(c.order, x)
	return x, nil
}

// add has a set's state divided by factors.
func (c *changes) add(s Set, f []float32) error {
	if len(f) != s.Width {
		return fmt.Errorf("%d factors: want %d", len(f), s.Width)
	}
	by := make(map[int]float32)
	for i, v := range f {
		j := s.Source(i)
		if !(v > 0) || math.IsInf(float64(v), 0) {
			return fmt.Errorf("factor %d is %v", i, v)
		}
		if old, ok := by[j]; ok && old != v {
			return fmt.Errorf("factor %d is %v: another that the same row divides is %v", i, v, old)
		}
		by[j] = v
	}
	for _, name := range s.Absorb {
		if err := c.divide(name, s, by); err != nil {
			return err
		}
	}
	for _, l := range s.Layers {
		x, err := c.to(l.Stored.Tensor, l.Stored.Shape())
		if err != nil {
			return err
		}
		if l.Stored.Transposed {
			x.inner = l.Stored.N
		}
		if x.columns != nil && &x.columns[0] != &f[0] {
			return fmt.Errorf("%s reads two states", l.Stored.Tensor)
		}
		x.columns = f
	}
	return nil
}

// divide has the rows of a tensor divided.
func (c *changes) divide(name string, s Set, by map[int]float32) error {
	t, ok := c.tensors.Tensor(name)
	if !ok {
		return fmt.Errorf("there is no tensor %s", name)
	}
	if len(t.Shape) < 1 || len(t.Shape) > 2 {
		return fmt.Errorf("%s is %v: want a vector or a matrix", name, t.Shape)
	}
	x, err := c.to(name, t.Shape)
	if err != nil {
		return err
	}
	if x.rows == nil {
		x.rows, x.offset = slices.Repeat([]float32{1}, t.Shape[0]), s.Offset
	}
	for j, v := range by {
		if j >= len(x.rows) || x.rows[j] != 1 && v != 1 {
			return fmt.Errorf("row %d of %s does not divide it alone", j, name)
		}
		x.rows[j] = v
	}
	return nil
}

// made returns the changed tensors.
func (c *changes) made() []hf.MadeTensor {
	var all []hf.MadeTensor
	for _, x := range c.order {
		all = append(all, hf.MadeTensor{Name: x.Name, DType: typeOf(x.Tensor), Shape: x.Shape, Codec: x})
	}
	return all
}

// change is a tensor that is another when it is read. It implements [hf.Codec].
type change struct {
	*hf.Tensor
	rowSize int       // elements of a row as it is stored
	columns []float32 // that columns are multiplied by, nil for none
	inner   int       // elements beside each other that have one column
	rows    []float32 // that rows are divided by, nil for none
	offset  float32   // that elements of a vector are taken with
}

// ReadFloat32 implements [hf.Codec].
func (c *change) ReadFloat32(dst []float32, start int64) error {
	if err := c.Tensor.ReadFloat32(dst, start); err != nil {
		return err
	}
	round := rounding(typeOf(c.Tensor))
	for i, v := range dst {
		at := start + int64(i)
		v += c.offset
		if c.columns != nil {
			v *= c.columns[at/int64(c.inner)%int64(len(c.columns))]
		}
		if c.rows != nil {
			v /= c.rows[at/int64(c.rowSize)]
		}
		dst[i] = round(v - c.offset)
	}
	return nil
}

// typeOf returns the type that a changed tensor has.
func typeOf(t *hf.Tensor) hf.DType {
	if t.DType == hf.BF16 || t.DType == hf.F16 {
		return t.DType
	}
	return hf.F32
}

// rounding returns what rounds to a type.
func rounding(t hf.DType) func(v float32) float32 {
	switch t {
	case hf.BF16:
		return func(v float32) float32 { return num.BF16ToF32(num.F32ToBF16(v)) }
	case hf.F16:
		return func(v float32) float32 { return num.F16ToF32(num.F32ToF16(v)) }
	}
	return func(v float32) float32 { return v }
}
