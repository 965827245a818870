package bench

import (
	"fmt"
	"runtime"

	"golang.org/x/sync/errgroup"

	"github.com/lutq/lutq/quantize/lut"
	"github.com/lutq/lutq/quantize/weight"
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
func ReadLayers(names []string, r Reader, laid Layouts) ([]Layer, error) {
	layers := make([]Layer, len(names))
	var group errgroup.Group
	group.SetLimit(runtime.GOMAXPROCS(0))
	for i, name := range names {
		group.Go(func() error {
			l := Layer{Name: name}
			var err error
			if laid != nil {
				if l.Layout, err = laid.Layer(name); err != nil {
					return err
				}
			}
			if l.Layout != nil {
				l.Matrix, err = l.Layout.Matrix()
			} else {
				l.Matrix, err = readLinear(r, name)
			}
			layers[i] = l
			return err
		})
	}
	err := group.Wait()
	// Damage also explains values that make no sense.
	if err := r.Wait(); err != nil {
		return nil, err
	}
	return layers, err
}

// readLinear reads a layer as it is stored. Kernels are timed for the kind lut alone.
func readLinear(r Reader, name string) (*lut.Matrix, error) {
	m, err := r.Linear(name)
	if err != nil {
		return nil, err
	}
	l, ok := m.(*lut.Matrix)
	if !ok {
		return nil, fmt.Errorf("%s: there is no kernel to time for weights of kind %s", name, m.Kind())
	}
	return l, nil
}
