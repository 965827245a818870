package ref

import (
	"math"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/lutq/lutq/formats/weight"
	"github.com/lutq/lutq/formats/weight/lut"
)

func TestMatMul(t *testing.T) {
	x := []float32{1, 2, 3, -1, 0, 1}                                     // 2×3
	w := []float64{1, 0, 0, 0, 1, 0, 0, 0, 1, 0.5, 0.25, -0.125}          // 4×3
	want := []float64{1, 2, 3, 0.5 + 0.5 - 0.375, -1, 0, 1, -0.5 - 0.125} // 2×4
	if diff := cmp.Diff(want, MatMul(x, w, 2, 4, 3)); diff != "" {
		t.Errorf("product (-want +got):\n%s", diff)
	}
}

func TestLUT(t *testing.T) {
	m := &lut.Matrix{
		N: 2, K: 3, Bits: 2, Group: 2,
		Codes:     []byte{0 | 1<<2 | 2<<4, 3 | 0<<2 | 3<<4},
		Scales:    make([]byte, 16),
		ScaleType: weight.F32,
		Codebook:  []float32{-2, -1, 1, 2},
	}
	weight.F32.Encode(m.Scales, []float32{1, 10, 0.5, 3})
	if err := m.Validate(); err != nil {
		t.Fatal(err)
	}
	x := []float32{1, 2, 3}
	want := []float64{1*-2 + 2*-1 + 3*10, 1*1 + 2*-1 + 3*6}
	if diff := cmp.Diff(want, LUT(x, m, 1)); diff != "" {
		t.Errorf("product (-want +got):\n%s", diff)
	}
}

func TestRelErr(t *testing.T) {
	for _, test := range []struct {
		name      string
		got, want []float64
		err       float64
	}{
		{"equal", []float64{3, 4}, []float64{3, 4}, 0},
		{"relative", []float64{3, 5}, []float64{3, 4}, 0.2},
		{"zero", []float64{3, 4}, []float64{0, 0}, 5},
	} {
		if got := RelErr(test.got, test.want); math.Abs(got-test.err) > 1e-15 {
			t.Errorf("%s: got %g, want %g", test.name, got, test.err)
		}
	}
	if got := RelErr([]float64{math.NaN()}, []float64{1}); !math.IsNaN(got) {
		t.Errorf("NaN: got %g", got)
	}
}
