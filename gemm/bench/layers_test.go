package bench

import (
	"errors"
	"math/rand/v2"
	"testing"

	"github.com/lutq/lutq/formats/weight"
	"github.com/lutq/lutq/formats/weight/lut"
	"github.com/lutq/lutq/gemm/conform"
	"github.com/lutq/lutq/repack"
)

// fakeModel has layers in memory. Where damage is set its layers cannot be read, and Wait says why.
type fakeModel struct {
	layers map[string]weight.Matrix
	damage error
}

func (f fakeModel) Linear(name string) (weight.Matrix, error) {
	if f.damage != nil {
		return nil, errors.New("a scale that makes no sense")
	}
	return f.layers[name], nil
}

func (f fakeModel) Wait() error { return f.damage }

type fakeLayouts map[string]lut.Layout

func (f fakeLayouts) Layer(name string) (lut.Layout, error) { return f[name], nil }

// otherKind is a matrix of a kind that there are no kernels for.
type otherKind struct{ weight.Matrix }

func (otherKind) Kind() string { return "other" }

func TestReadLayers(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	read, laid := conform.RandomMatrix(r, 5, 64, 4, 32, weight.F16), conform.RandomMatrix(r, 7, 64, 3, 32, weight.F16)
	codes := conform.RandomBCQ(r, 5, 64, 4, 32, weight.F16, true)
	layout, err := repack.CPU(laid)
	if err != nil {
		t.Fatal(err)
	}
	model := fakeModel{layers: map[string]weight.Matrix{"read": read, "codes": codes, "other": otherKind{read}}}
	layers, err := ReadLayers(t.Context(), []string{"read", "laid"}, model, fakeLayouts{"laid": layout})
	if err != nil {
		t.Fatal(err)
	}
	if l := layers[0]; l.Name != "read" || l.Matrix != read || l.Layout != nil {
		t.Errorf("a layer that is not laid out came as %+v", l)
	}
	if l := layers[1]; l.Name != "laid" || l.Layout != layout || l.Matrix.(*lut.Matrix).N != laid.N {
		t.Errorf("a layer that is laid out came as %+v", l)
	}
	if layers, err := ReadLayers(t.Context(), []string{"read"}, model, nil); err != nil || layers[0].Matrix != read {
		t.Errorf("without layouts: %+v, %v", layers, err)
	}
	if layers, err := ReadLayers(t.Context(), []string{"codes"}, model, nil); err != nil || layers[0].Matrix != codes {
		t.Errorf("binary codes: %+v, %v", layers, err)
	}
	if _, err := ReadLayers(t.Context(), []string{"other"}, model, nil); err == nil || err.Error() != "other: there is no kernel to time for weights of kind other" {
		t.Errorf("a kind without kernels: got error %v", err)
	}
	model.damage = errors.New("damage")
	if _, err := ReadLayers(t.Context(), []string{"read"}, model, nil); !errors.Is(err, model.damage) {
		t.Errorf("got error %v, want what explains it", err)
	}
}
