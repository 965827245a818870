package torch

import (
	"errors"
	"math"
	"slices"
	"testing"

	"github.com/lutq/lutq/formats/weight"
	"github.com/lutq/lutq/gemm/cuda"
	"github.com/lutq/lutq/gemm/cuda/cudatest"
	"github.com/lutq/lutq/gemm/cuda/driver"
	"github.com/lutq/lutq/gemm/cuda/table"
	"github.com/lutq/lutq/repack"
)

// way is a way by its name alone.
type way string

func (w way) String() string                   { return string(w) }
func (way) Rows() int                          { return 0 }
func (way) Needs(int, int, int) (n cuda.Needs) { return n }

// TestChoose has the guess stay unless something is faster by more than chance, and what is wrong not be chosen however fast.
func TestChoose(t *testing.T) {
	const guess, other, third = way("guess"), way("other"), way("third")
	for _, test := range []struct {
		name  string
		right []cuda.Way
		us    map[string]float64
		want  cuda.Way
	}{
		{"a faster one", []cuda.Way{guess, other, third}, map[string]float64{"guess": 10, "other": 9, "third": 8}, third},
		{"as fast", []cuda.Way{guess, other}, map[string]float64{"guess": 10, "other": 9.9}, guess},
		{"slower", []cuda.Way{guess, other}, map[string]float64{"guess": 10, "other": 12}, guess},
		{"the guess is wrong", []cuda.Way{other, third}, map[string]float64{"guess": 0, "other": 9, "third": 9.5}, other},
		{"the fastest is wrong", []cuda.Way{guess, third}, map[string]float64{"guess": 10, "other": 0, "third": 9}, third},
	} {
		t.Run(test.name, func(t *testing.T) {
			if got := choose(guess, test.right, test.us); got != test.want {
				t.Errorf("chosen is %v, want %v", got, test.want)
			}
		})
	}
}

// TestNear tells results that differ by rounding from others.
func TestNear(t *testing.T) {
	nan := float32(math.NaN())
	for _, test := range []struct {
		name      string
		got, want []float32
		near      bool
	}{
		{"rounded", []float32{-8, 1.02, 0.1}, []float32{-8.03, 1, 0}, true},
		{"one is another", []float32{-8, 1, 2}, []float32{-8, 1, 0}, false},
		{"one is no number", []float32{-8, nan, 0}, []float32{-8, 1, 0}, false},
		{"nothing was written", []float32{0, 0, 0}, []float32{-8, 1, 0}, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			if near(test.got, test.want) != test.near {
				t.Errorf("near: %v, want %v", !test.near, test.near)
			}
		})
	}
}

// failing cannot measure.
type failing struct{ err error }

func (f failing) Times(table.Format, int, int, []int) ([]Timing, error) { return nil, f.err }

// TestMeasureFails has nothing be made where ways cannot be measured.
func TestMeasureFails(t *testing.T) {
	c, err := driver.Open(driver.Options{NoCompiler: true, NoCache: true})
	if err != nil {
		t.Skip(err)
	}
	want := errors.New("out of memory")
	layers := map[string]*repack.CUDATiles{"a": {N: 4096, K: 4096, Bits: 4, Group: 64, ScaleType: weight.F16}}
	if _, err := New(t.Context(), c, cuda.GPUs()[0], "", layers, failing{want}, driver.F16); !errors.Is(err, want) {
		t.Errorf("error %v, want %v", err, want)
	}
}

// TestGPUTimes times ways on a GPU: every way's result is right.
func TestGPUTimes(t *testing.T) {
	c, _ := cudatest.First(t, driver.Options{CacheDir: t.TempDir()})
	g := cudatest.Must(NewOnGPU(c, 0))(t)
	t.Cleanup(func() {
		if err := g.Close(); err != nil {
			t.Error(err)
		}
	})
	rows := []int{48, 128, 256}
	for _, f := range []table.Format{
		{Bits: 4, Group: 64, Scale: weight.F16, Type: driver.BF16}, {Bits: 3, Group: 128, Scale: weight.BF16, Type: driver.F16},
	} {
		all := cudatest.Must(g.Times(f, 4096, 4096, rows))(t)
		for i, of := range all {
			t.Logf("%v, %d rows: %v of %v", f.Bits, of.Rows, of.Way, of.Us)
			for name, us := range of.Us {
				if us == 0 {
					t.Errorf("%d bits, %d rows: %s is wrong", f.Bits, rows[i], name)
				}
			}
		}
		if len(all) != len(rows) || !slices.IsSortedFunc(all, func(a, b Timing) int { return a.Rows - b.Rows }) {
			t.Errorf("%d bits: %v", f.Bits, all)
		}
	}
}
