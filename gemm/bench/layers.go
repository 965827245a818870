package bench

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"runtime"
	"strings"

	"golang.org/x/sync/errgroup"

	"github.com/lutq/lutq/formats/weight"
	"github.com/lutq/lutq/formats/weight/lut"
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

// KindNames lists the kinds of weights, other than tables, whose kernels are timed.
func KindNames() []string {
	var names []string
	for _, k := range conform.Kinds()[1:] {
		names = append(names, k.Name())
	}
	return names
}

// KindWidths returns the least and the most bits that matrices of one of [KindNames] have.
func KindWidths(name string) (least, most int, err error) {
	k, err := kindOf(name)
	if err != nil {
		return 0, 0, err
	}
	least, most = k.Widths()
	return least, most, nil
}

// kindOf returns that of a name, "" for that of tables.
func kindOf(name string) (conform.Kind, error) {
	for _, k := range conform.Kinds() {
		if k.Name() == cmp.Or(name, lut.Name) {
			return k, nil
		}
	}
	return conform.Kind{}, fmt.Errorf("kind %q: want %s", name, strings.Join(KindNames(), ", "))
}

// form is what kernels are chosen by.
type form struct {
	kind              string
	n, k, bits, group int
	scale             weight.ScaleType
}

// formOf returns that of a matrix.
func formOf(m weight.Matrix) (form, error) {
	stored, ok := m.(interface{ Spec() weight.Spec })
	if _, err := kindOf(m.Kind()); err != nil || !ok {
		return form{}, fmt.Errorf("there is no kernel to time for weights of kind %s", m.Kind())
	}
	n, k := m.Shape()
	s := stored.Spec()
	return form{s.Kind, n, k, s.Bits, s.Group, s.ScaleType}, nil
}

// spec is what was stored.
func (f form) spec() weight.Spec {
	return weight.Spec{Kind: f.kind, Bits: f.bits, Group: f.group, ScaleType: f.scale}
}

// rowKind is the kind as rows have it: left out where it is that of tables.
func (f form) rowKind() string {
	if f.kind == lut.Name {
		return ""
	}
	return f.kind
}
