package model

import (
	"errors"
	"fmt"
	"slices"

	"github.com/lutq/lutq/formats/weight"
	"github.com/lutq/lutq/formats/weight/lut"
)

// Trainable is a linear layer ŵ[n,k] = v[n,k]·scale[n, k/Group], with v the table value of
// the code, or the original weight itself where Table is nil.
type Trainable struct {
	N, K, Group int
	Codes       []uint8   // [N·K], one each
	Table       []float32 // ascending
	Scales      []float32 // [N·⌈K/Group⌉]
	ScaleType   weight.ScaleType
	// Original is a dense weight of the same Ops, or nil where neither Recode nor lsq nor a nil Table needs it.
	Original Weight
}

// Validate returns the first reason why the weight cannot be learned on any device.
func (t *Trainable) Validate() error {
	switch {
	case t.N <= 0 || t.K <= 0 || t.Group <= 0:
		return fmt.Errorf("shape %d×%d in groups of %d", t.N, t.K, t.Group)
	case len(t.Scales) != t.N*weight.GroupsIn(t.K, t.Group):
		return fmt.Errorf("%d scales: want %d", len(t.Scales), t.N*weight.GroupsIn(t.K, t.Group))
	case t.ScaleType.Size() == 0:
		return errors.New("scales of an unknown type")
	case t.Table == nil && t.Original == nil:
		return errors.New("neither a table nor an original")
	}
	if t.Original != nil {
		if n, k := t.Original.Shape(); n != t.N || k != t.K {
			return fmt.Errorf("shape %d×%d of an original of %d×%d", t.N, t.K, n, k)
		}
	}
	if t.Table == nil {
		return nil
	}
	if most := 1 << lut.MaxBits; len(t.Table) < 2 || len(t.Table) > most {
		return fmt.Errorf("a table of %d values: want 2 to %d", len(t.Table), most)
	}
	if len(t.Codes) != t.N*t.K {
		return fmt.Errorf("%d codes: want %d", len(t.Codes), t.N*t.K)
	}
	if i := slices.IndexFunc(t.Codes, func(c uint8) bool { return int(c) >= len(t.Table) }); i >= 0 {
		return fmt.Errorf("code %d at row %d column %d of a table of %d values", t.Codes[i], i/t.K, i%t.K, len(t.Table))
	}
	return nil
}

// Adam is a step of Kingma and Ba's optimizer, without weight decay:
//
//	m = β1·m + (1−β1)·g    v = β2·v + (1−β2)·g²    (g times Scale first)
//	p −= LR · m/(1−β1^Step) / (√(v/(1−β2^Step)) + Eps)
type Adam struct {
	P, M, V, G      Array // floats of equal length
	LR, B1, B2, Eps float64
	Scale           float64 // of the gradient, where it is clipped; 0 is 1
	Step            int     // from 1
	// BF16 keeps P, M and V in bfloat16 and rounds wherever PyTorch stores a tensor where parameters are.
	BF16 bool
}
