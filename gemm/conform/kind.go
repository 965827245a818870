package conform

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"

	"github.com/lutq/lutq/formats/weight"
	"github.com/lutq/lutq/formats/weight/bcq"
	"github.com/lutq/lutq/formats/weight/lut"
	"github.com/lutq/lutq/formats/weight/lut24"
	"github.com/lutq/lutq/formats/weight/trellis"
)

// Kind is a kind of weights of which there are random matrices.
type Kind struct {
	weight.Kind
	// Random returns an N×K matrix with weights of a layer. Groups are no longer than rows.
	Random func(r *rand.Rand, n, k, bits, group int, st weight.ScaleType) weight.Matrix
	// Case returns a case of the suite for a format of kernels, or is nil where kernels of the kind may add up weights.
	Case func(seed uint64, i int, f Format) *Case
	// Cases returns what draws matrices of some shapes [N, K] that kernels of processors must multiply by: of groups and scales of
	// all sorts. It is nil where there are no such kernels.
	Cases func(bits int, shapes [][2]int) []func(r *rand.Rand) weight.Matrix
}

// Bare returns a matrix without the parts that are optional in its kind, which stands for other weights then.
func (k Kind) Bare(m weight.Matrix) (weight.Matrix, error) {
	stored, ok := m.(interface{ Spec() weight.Spec })
	if !ok {
		return nil, fmt.Errorf("a matrix of kind %s does not tell how it is stored", m.Kind())
	}
	rows, columns := m.Shape()
	parts, err := k.Parts(stored.Spec(), rows, columns)
	if err != nil {
		return nil, err
	}
	data := m.Parts()
	for i, p := range parts {
		if p.Optional {
			data[i] = nil
		}
	}
	return k.Open(stored.Spec(), rows, columns, data)
}

// KindOf returns that of a name, or nil.
func KindOf(name string) *Kind {
	for _, k := range Kinds() {
		if k.Name() == name {
			return &k
		}
	}
	return nil
}

// Kinds lists them, that of tables first.
func Kinds() []Kind {
	return []Kind{
		{lut.Kind{}, func(r *rand.Rand, n, k, bits, group int, st weight.ScaleType) weight.Matrix {
			return RandomMatrix(r, n, k, bits, group, st)
		}, Draw, tableCases},
		{bcq.Kind{}, func(r *rand.Rand, n, k, bits, group int, st weight.ScaleType) weight.Matrix {
			return RandomBCQ(r, n, k, bits, group, st, true)
		}, nil, bcqCases},
		{lut24.Kind{}, func(r *rand.Rand, n, k, bits, group int, st weight.ScaleType) weight.Matrix {
			return RandomSparse(r, n, k, bits, group, st)
		}, DrawSparse, nil},
		{trellis.Kind{}, func(r *rand.Rand, n, k, bits, _ int, st weight.ScaleType) weight.Matrix {
			return randomTrellis(r, n, k, 2*bits, st)
		}, nil, trellisCases},
	}
}

// tableCases are of every group size in every shape, and of a type of scales each. Every third shape has the numbers of [Raw].
func tableCases(bits int, shapes [][2]int) (all []func(r *rand.Rand) weight.Matrix) {
	types := lut.Kind{}.ScaleTypes()
	for i, group := range []int{32, 64, 128, 256, 50, math.MaxInt32} {
		for j, s := range shapes {
			all = append(all, func(r *rand.Rand) weight.Matrix {
				m := RandomMatrix(r, s[0], s[1], bits, group, types[(i+j)%len(types)])
				if j%3 == 1 {
					Raw(m)
				}
				return m
			})
		}
	}
	return all
}

// bcqCases are of one group size for each shape.
func bcqCases(bits int, shapes [][2]int) (all []func(r *rand.Rand) weight.Matrix) {
	for i, s := range shapes {
		group := []int{32, 64, 50, math.MaxInt32}[(i+bits)%4]
		all = append(all, func(r *rand.Rand) weight.Matrix { return RandomBCQ(r, s[0], s[1], bits, group, weight.F16, true) })
	}
	return all
}

// trellisCases are of a type of scales for each shape, with half a bit more for every other, as far as there are such matrices.
func trellisCases(bits int, shapes [][2]int) (all []func(r *rand.Rand) weight.Matrix) {
	types, rates := trellis.Kind{}.ScaleTypes(), trellis.Rates()
	for i, s := range shapes {
		if rate := 2*bits + i%2; slices.Contains(rates, rate) {
			all = append(all, func(r *rand.Rand) weight.Matrix {
				return randomTrellis(r, s[0], s[1], rate, types[(i+bits)%len(types)])
			})
		}
	}
	return all
}
