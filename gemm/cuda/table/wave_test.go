package table

import (
	"fmt"
	"math"
	"os"
	"slices"
	"testing"

	"github.com/lutq/lutq/formats/weight"
	"github.com/lutq/lutq/gemm/cuda"
	"github.com/lutq/lutq/gemm/cuda/cudatest"
	"github.com/lutq/lutq/gemm/cuda/driver"
	"github.com/lutq/lutq/repack"
)

// striped returns the wave efficiency of MARLIN's stripes: pieces of a product in one line, of which each multiprocessor
// has as many, rounded up, over the ends of tiles. They are units of tiles, or atoms of fields of a variant.
func striped(n, k, m, sms int, v Many) float64 {
	pieces := (n + repack.TileRows - 1) / repack.TileRows * ((k + repack.UnitCols - 1) / repack.UnitCols)
	if v != (Many{}) {
		w := v.divide(n, k, m, Workers)
		pieces = int(w.fields) * int(w.atoms)
	}
	return float64(pieces) / float64((pieces+sms-1)/sms*sms)
}

// waves are the wave efficiencies of a shape with m rows of X.
type waves struct {
	shape          [2]int
	today, striped float64
}

// layerWaves returns the wave efficiencies of models' layers with m rows of X on an H200, where nothing was tuned.
func layerWaves(t *testing.T, m int) []waves {
	gpu := cuda.GPUs()[0]
	e := cuda.Planner(cuda.GPU{DeviceInfo: gpu}, driver.NewCache(t.TempDir()))
	var all []waves
	for _, s := range cudatest.ModelShapes(t) {
		w := Like(Format{4, 128, weight.F16, driver.F16}, s[0], s[1])
		got := waves{shape: s}
		way := e.Way(w, m)
		if m > mostRows { // cuBLAS has no stripes of ours: the best kernel that there is
			way = slices.DeleteFunc(e.Ways(w, m), func(way cuda.Way) bool { _, ok := way.(Many); return !ok })[0]
			e.Prefer(w, m, way)
		}
		var err error
		if got.today, err = e.WaveEfficiency(w, m); err != nil {
			t.Fatalf("%v: %v", s, err)
		}
		v, _ := way.(Many)
		got.striped = striped(s[0], s[1], m, gpu.SMs, v)
		all = append(all, got)
	}
	return all
}

// TestWaveEfficiency holds the table of NOTES.md: of how many layers each multiprocessor has .97 of the fullest's work,
// the median, and the least, as products are divided and in stripes.
func TestWaveEfficiency(t *testing.T) {
	got := make(map[string]string)
	for _, m := range []int{1, 16, 64, 256} {
		for name, least := range map[string]int{"all": 0, "16 M weights and more": 16 << 20} {
			var today, stripes []float64
			for _, w := range layerWaves(t, m) {
				if w.today > 1 || w.striped > 1 || w.today <= 0 {
					t.Fatalf("%d rows by %v: %+v", m, w.shape, w)
				}
				if w.shape[0]*w.shape[1] >= least {
					today, stripes = append(today, w.today), append(stripes, w.striped)
				}
			}
			got[fmt.Sprintf("%d, %s", m, name)] = fmt.Sprintf("of %d: %s; striped %s", len(today), summary(today), summary(stripes))
		}
	}
	if _, err := os.Stat("../../../../shared/configs/shapes.tsv"); err != nil {
		t.Skip("the layers of known models are not at hand")
	}
	for name, want := range map[string]string{
		"1, all":                     "of 113: 45, 0.89, 0.06; striped 93, 0.98, 0.24",
		"1, 16 M weights and more":   "of 61: 34, 0.97, 0.48; striped 61, 1.00, 0.97",
		"16, all":                    "of 113: 45, 0.89, 0.06; striped 93, 0.98, 0.24",
		"16, 16 M weights and more":  "of 61: 34, 0.97, 0.48; striped 61, 1.00, 0.97",
		"64, all":                    "of 113: 36, 0.89, 0.01; striped 53, 0.96, 0.04",
		"64, 16 M weights and more":  "of 61: 35, 0.97, 0.73; striped 48, 0.98, 0.88",
		"256, all":                   "of 113: 55, 0.95, 0.02; striped 73, 0.97, 0.11",
		"256, 16 M weights and more": "of 61: 45, 0.97, 0.79; striped 57, 0.99, 0.93",
	} {
		if got[name] != want {
			t.Errorf("%s: %s, want %s", name, got[name], want)
		}
	}
}

// summary says how many of some wave efficiencies are .97 and more, their median and the least.
func summary(all []float64) string {
	slices.Sort(all)
	good := 0
	for _, v := range all {
		if v >= .97-1e-3 { // 32 units for each of 131 multiprocessors
			good++
		}
	}
	return fmt.Sprintf("%d, %.2f, %.2f", good, all[len(all)/2], all[0])
}

// TestWork counts what workers and tiles of blocks have against a plain sum.
func TestWork(t *testing.T) {
	for _, test := range []struct {
		v       Many
		n, k, m int
		sms     int
		want    float64
	}{
		{Many{64, 4, Replicated}, 8192, 8192, 64, 132, 0},
		{Many{256, 2, Replicated}, 28672, 4096, 1024, 132, 0},
		{Many{256, 2, Replicated}, 28672, 4096, 1024, 77, 0},
		{Many{128, 3, Replicated}, 1024, 8192, 300, 132, 0},
		{Many{256, 2, Replicated}, 16896, 128, 256, 132, 1}, // a field of one atom each
	} {
		w := test.v.divide(test.n, test.k, test.m, Workers)
		blocks := min(int(w.workers), test.sms)
		load := make([]int, blocks)
		blockOf := make([]int, w.workers)
		for b := range blocks {
			for worker := int(w.workers) * b / blocks; worker < int(w.workers)*(b+1)/blocks; worker++ {
				blockOf[worker] = b
			}
		}
		for worker := range int(w.workers) {
			all := uint64(w.shared) * uint64(w.atoms)
			load[blockOf[worker]] += int(all*uint64(worker+1)/uint64(w.workers) - all*uint64(worker)/uint64(w.workers))
		}
		for f := int(w.shared); f < int(w.fields); f++ {
			load[blockOf[(f-int(w.shared))%int(w.workers)]] += int(w.atoms)
		}
		sum := 0
		for _, l := range load {
			sum += l
		}
		if sum != int(w.fields)*int(w.atoms) {
			t.Fatalf("%+v: %d atoms are done, want %d", test, sum, int(w.fields)*int(w.atoms))
		}
		want := float64(sum) / float64(slices.Max(load)*test.sms)
		if got := w.efficiency(test.sms); math.Abs(got-want) > 1e-12 || test.want != 0 && got != test.want {
			t.Errorf("%+v: wave efficiency %g, want %g", test, got, want)
		}
	}
	p := Params{tilesEach: 3, tilesOver: 1}
	if got := p.efficiency(driver.Launch{Grid: driver.Dim{X: 5}}, 5); got != .8 {
		t.Errorf("16 tiles for 5 blocks: wave efficiency %g, want .8", got)
	}
}
