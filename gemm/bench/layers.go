package bench

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"runtime"

	"golang.org/x/sync/errgroup"

	"github.com/lutq/lutq/formats/weight"
	"github.com/lutq/lutq/formats/weight/bcq"
	"github.com/lutq/lutq/formats/weight/lut"
	"github.com/lutq/lutq/formats/weight/lut24"
	"github.com/lutq/lutq/gemm/conform"
)

// Reader reads the layers of a quantized model, from several goroutines at once.
type Reader interface {
	Linear(name string) (weight.Matrix, error)
	// Wait waits until all that was read is checked. Its error explains those of Linear.
	Wait() error
}

// Layouts are the layers of a quantized model as a device's kernels read them.
type Layouts interface {
	// Layer returns a layer, or nil where it is to be laid out anew.
	Layer(name string) (lut.Layout, error)
}

// ReadLayers reads layers by their names; those that are laid out, in laid unless it is nil,
// from there.
func ReadLayers(ctx context.Context, names []string, r Reader, laid Layouts) ([]Layer, error) {
	layers := make([]Layer, len(names))
	var group errgroup.Group
	group.SetLimit(runtime.GOMAXPROCS(0))
	for i, name := range names {
		group.Go(func() error {
			if err := ctx.Err(); err != nil {
				return err
			}
			l := Layer{Name: name}
			var err error
			if laid != nil {
				if l.Layout, err = laid.Layer(name); err != nil {
					return err
				}
			}
			if l.Layout == nil {
				l.Matrix, err = readLinear(r, name)
			} else if m, failed := l.Layout.Matrix(); failed == nil {
				l.Matrix = m
			} else {
				err = failed
			}
			layers[i] = l
			return err
		})
	}
	err := group.Wait()
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	// Damage also explains values that make no sense.
	if err := r.Wait(); err != nil {
		return nil, err
	}
	return layers, err
}

// Storage is how a random table's codes have their scales.
type Storage struct {
	Group int // columns, cut to K
	Scale weight.ScaleType
}

// String returns it as --formats of lutq bench has it, 32:e4m4.
func (s Storage) String() string {
	if s.Group == math.MaxInt32 {
		return "row:" + s.Scale.String()
	}
	return fmt.Sprintf("%d:%v", s.Group, s.Scale)
}

// RandomLayers returns random matrices of every shape, width and storage, in this order, each named after its storage.
func RandomLayers(shapes []Shape, bits []int, stored []Storage, seed uint64) []Layer {
	r := rand.New(rand.NewPCG(seed, 0))
	var all []Layer
	for _, s := range shapes {
		for _, b := range bits {
			for _, f := range stored {
				all = append(all, Layer{Name: f.String(), Matrix: conform.RandomMatrix(r, s.N, s.K, b, f.Group, f.Scale)})
			}
		}
	}
	return all
}

// readLinear reads a layer as it is stored, of a kind that products are timed by.
func readLinear(r Reader, name string) (weight.Matrix, error) {
	m, err := r.Linear(name)
	if err != nil {
		return nil, err
	}
	if _, err := formOf(m); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return m, nil
}

// form is what kernels are chosen by.
type form struct {
	kind              string
	n, k, bits, group int
	scale             weight.ScaleType
}

// formOf returns that of a matrix.
func formOf(m weight.Matrix) (form, error) {
	n, k := m.Shape()
	switch m := m.(type) {
	case *lut.Matrix:
		return form{lut.Name, n, k, m.Bits, m.Group, m.ScaleType}, nil
	case *bcq.Matrix:
		return form{bcq.Name, n, k, m.Bits, m.Group, m.ScaleType}, nil
	case *lut24.Matrix:
		return form{lut24.Name, n, k, m.Kept.Bits, m.Group(), m.Kept.ScaleType}, nil
	}
	return form{}, fmt.Errorf("there is no kernel to time for weights of kind %s", m.Kind())
}

// rowKind is the kind as rows have it: left out where it is that of tables.
func (f form) rowKind() string {
	if f.kind == lut.Name {
		return ""
	}
	return f.kind
}
