// Package families lists the families of kernels: all that ask for one go through it.
package families

import (
	"slices"

	"github.com/lutq/lutq/formats/weight"
	"github.com/lutq/lutq/formats/weight/lut"
	"github.com/lutq/lutq/gemm/cuda"
	"github.com/lutq/lutq/gemm/cuda/bcq"
	"github.com/lutq/lutq/gemm/cuda/driver"
	"github.com/lutq/lutq/gemm/cuda/gather"
	"github.com/lutq/lutq/gemm/cuda/sparse"
	"github.com/lutq/lutq/gemm/cuda/table"
	"github.com/lutq/lutq/gemm/cuda/trellis"
)

// All returns every family, of one kind that first which models are multiplied by. A new one is a line here.
func All() []cuda.Family {
	return []cuda.Family{
		table.Family{},
		bcq.Family{},
		sparse.Family{},
		gather.Family{},
		gather.Family{Half: true},
		trellis.Family{},
	}
}

// Kinds returns the kinds of weights that there are kernels for.
func Kinds() []string {
	var all []string
	for _, f := range All() {
		if !slices.Contains(all, f.Kind()) {
			all = append(all, f.Kind())
		}
	}
	return all
}

// Of returns the family that models of a kind are multiplied by, or nil.
func Of(kind string) cuda.Family {
	for _, f := range All() {
		if f.Kind() == kind {
			return f
		}
	}
	return nil
}

// Pack is [cuda.Family]'s of the family that models are multiplied by. It returns nil where there is none.
func Pack(m weight.Matrix, t driver.DType) (cuda.Tiles, [][]byte, error) {
	f := Of(m.Kind())
	if f == nil {
		return nil, nil, nil
	}
	return f.Pack(m, t)
}

// PackLayout is Pack of a matrix that is laid out already, as a file of tiles has it. It returns nil where no family has that layout.
func PackLayout(l lut.Layout, t driver.DType) (cuda.Tiles, [][]byte, error) {
	for _, f := range All() {
		p, ok := f.(interface {
			PackLayout(l lut.Layout, t driver.DType) (cuda.Tiles, [][]byte, error)
		})
		if !ok {
			continue
		}
		if tiles, parts, err := p.PackLayout(l, t); tiles != nil || err != nil {
			return tiles, parts, err
		}
	}
	return nil, nil, nil
}
