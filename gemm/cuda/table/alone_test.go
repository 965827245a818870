package table

import (
	"bytes"
	"slices"
	"testing"

	"github.com/lutq/lutq/formats/weight"
	"github.com/lutq/lutq/gemm/cuda"
	"github.com/lutq/lutq/gemm/cuda/cudatest"
	"github.com/lutq/lutq/gemm/cuda/driver"
)

// TestWideAlone holds launches of pairs of blocks for who has no engine to the engine's own; package torch's test does so with all others.
func TestWideAlone(t *testing.T) {
	g := cuda.GPU{DeviceInfo: cuda.GPUs()[0]}
	g.Clusters = true
	f := Format{4, 64, weight.F16, driver.BF16}
	values := make([]float32, 16)
	for i := range values {
		values[i] = float32(i*i) / 256
	}
	w := cudatest.Must(New(f, 4096, 14336, values, nil))(t)
	for _, v := range f.pairVariants() {
		if v.Lookup == Integers {
			continue // which this table is not
		}
		got, ok := w.WideAlone(g, v, 200)
		want := cudatest.Must(w.Launch(g, []driver.Ptr{0, 0}, v, cuda.Operands{M: 200}))(t)[0]
		of := want.Of.Kernel()
		switch {
		case !ok || got.Launch != want.Launch || got.Cluster.X != 2 || got.Function != want.Function:
			t.Errorf("%v: %+v, want %+v", v, got.Alone, want.Launch)
		case !bytes.HasPrefix(want.Args[0], got.Fixed) || !bytes.Equal(got.Work, want.Args[1]):
			t.Errorf("%v: the arguments are others", v)
		case got.Kernel.Source != of.Source || !slices.Equal(got.Kernel.Options.Defines, of.Options.Defines):
			t.Errorf("%v: %s is another kernel", v, got.Name)
		case got.Sums != v.Needs(4096, 14336, 200).Sums || got.Prepared == 0:
			t.Errorf("%v: %d bytes for sums and %d for what is prepared", v, got.Sums, got.Prepared)
		}
	}
	for _, by := range []cuda.Way{cuda.InTurns, cuda.AsNumbers} {
		if _, ok := w.WideAlone(g, by, 200); ok {
			t.Errorf("%v prepares no rows", by)
		}
	}
}
