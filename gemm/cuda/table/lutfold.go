package table

import (
	_ "embed"
	"fmt"
	"runtime"

	"golang.org/x/sync/errgroup"

	"github.com/lutq/lutq/gemm/cuda"
	"github.com/lutq/lutq/gemm/cuda/driver"
	"github.com/lutq/lutq/gemm/cuda/ptx"
	"github.com/lutq/lutq/gemm/fp8"
	"github.com/lutq/lutq/repack"
)

//go:embed lutfold.cu
var foldSource string

const foldName = "lutfold"

// lutfold is lutfold.cu as it is compiled: the kernel that writes whole tiles of a matrix folded, as package fp8 does.
type lutfold struct{ Format }

// Kernel implements [cuda.Kernel].
func (f lutfold) Kernel() driver.Kernel {
	return driver.Kernel{
		Name:    fmt.Sprintf("%s.%s.cu", foldName, f.name()),
		Source:  ptx.Instructions() + ptx.Numbers() + lutSource + foldSource,
		Options: driver.CompileOptions{Defines: f.DenseDefines()},
	}
}

// foldLaunch returns how the kernel is launched to write rows in terms of scales whose inverses are at an address.
func (t *Tiles) foldLaunch(at []driver.Ptr, r cuda.Rows, sms int) cuda.Launch {
	_, l, p := t.densePlan(at, r.To, r.First, r.Count, sms)
	p.x = uint64(r.Inverses) + 4*uint64(r.First)
	return cuda.Launch{Launch: l, Of: lutfold{t.format}, Function: foldName, Args: [][]byte{p.Bytes()}}
}

// Folds implements [cuda.Folder].
func (t *Tiles) Folds() bool { return t.fp8 && fp8.Folds(t.n, t.k) }

// RowScales implements [cuda.Folder].
func (t *Tiles) RowScales(part func(i int) ([]byte, error)) ([]float32, error) {
	raw, err := part(1)
	if err != nil {
		return nil, err
	}
	laid := make([]float32, len(raw)/t.format.Scale.Size())
	t.format.Scale.Decode(laid, raw)
	groups, per := 1, 1 // of a row, and of those that lie together
	if g := t.format.Group; g != 0 {
		groups, per = (t.k+g-1)/g, max(repack.AtomCols/g, 1)
	}
	tile := t.format.scaleBytes((t.k+repack.UnitCols-1)/repack.UnitCols) / t.format.Scale.Size()
	folder, scales := fp8.NewFolder(t.values), make([]float32, t.n)
	var all errgroup.Group
	all.SetLimit(runtime.GOMAXPROCS(0))
	for first := 0; first < t.n; first += repack.TileRows {
		all.Go(func() error {
			of := make([]float32, groups)
			for row := range min(repack.TileRows, t.n-first) {
				for g := range of {
					of[g] = laid[first/repack.TileRows*tile+((g/per*8+row%8)*per+g%per)*2+row/8]
				}
				scales[first+row] = folder.Scale(of)
			}
			return nil
		})
	}
	_ = all.Wait() // no row fails
	return scales, nil
}
