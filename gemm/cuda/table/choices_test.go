package table

import (
	"bytes"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/lutq/lutq/formats/weight"
	"github.com/lutq/lutq/formats/weight/lut"
	"github.com/lutq/lutq/gemm/cuda"
	"github.com/lutq/lutq/gemm/cuda/cudatest"
	"github.com/lutq/lutq/gemm/cuda/driver"
)

// TestChoices holds what is tried for a product, the guess first, and into how many slices its K
// is split, to a file that -update writes: for the layers of usual models and shapes beside the
// bounds, on an H200 and on a GPU of less shared memory. Whoever changes a choice on purpose sees
// there what else it changes, and that these bits do.
func TestChoices(t *testing.T) {
	var got strings.Builder
	for _, l := range []Limits{{132, 227 << 10}, {108, 163 << 10}, {84, 99 << 10}} {
		g := cuda.GPU{DeviceInfo: driver.DeviceInfo{SMs: l.SMs, SharedPerBlock: l.Shared}}
		for i, s := range [][2]int{
			{1024, 4096},
			{2112, 2048},
			{2113, 2080},
			{4096, 4096},
			{4224, 6176},
			{4225, 3104},
			{8192, 2048},
			{5120, 13824},
			{8192, 3072},
			{8449, 8192},
			{14336, 4096},
			{14785, 4096},
			{28672, 4096},
			{32769, 4096},
			{44353, 4096},
			{61440, 8192},
		} {
			for j, m := range []int{1, 4, 5, 8, 9, 16, 17, 25} {
				f := Format{
					Bits: lut.MinBits + (i+j)%4, Group: []int{64, 128, 32, 256, 0}[(i+2*j)%5],
					Scale: []weight.ScaleType{weight.F16, weight.BF16, weight.F16, weight.F32}[(i/2+j)%4],
					Type:  []driver.DType{driver.F16, driver.BF16}[(i+j/2)%2],
				}
				for _, f := range []Format{f, {4, 128, weight.F16, driver.F16}} {
					w := Like(f, s[0], s[1])
					configs, _ := w.Configs(g, w.AtOnce(g, m))
					fmt.Fprintf(&got, "%d %d %s %d×%d %d: %d slices, %v\n", l.SMs, l.Shared>>10, f.name(), s[0], s[1], m, shapeOf(f, s[0], s[1], m).slices, configs)
				}
			}
		}
	}
	const path = "testdata/choices.txt"
	if *cudatest.Update {
		if err := os.WriteFile(path, []byte(got.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if bytes.Equal(want, []byte(got.String())) {
		return
	}
	lines := strings.Split(string(want), "\n")
	for i, line := range strings.Split(got.String(), "\n") {
		if i >= len(lines) || line != lines[i] {
			t.Fatalf("line %d: %s, want %s", i+1, line, lines[min(i, len(lines)-1)])
		}
	}
	t.Fatalf("%d lines are missing", len(lines)-strings.Count(got.String(), "\n")-1)
}

// TestChoiceRows holds the table to rows that are each the first for some product, and to guesses
// that have a variant for the slices of their row.
func TestChoiceRows(t *testing.T) {
	unused := map[int]bool{}
	for i := range choices() {
		unused[i] = true
	}
	for _, f := range Formats() {
		for n := range 60 {
			for units := 1; units <= 26; units++ {
				for _, m := range []int{1, 5, 16, 24, 32} {
					if m > cuda.MaxRows && !(lutwide{}).has(f, m) {
						continue
					}
					s := shapeOf(f, 1000*n+16, 256*units, m)
					for i, c := range choices() {
						if c.isFor(s) {
							delete(unused, i)
							break
						}
					}
					first := s.order()[0]
					if all, err := first.tried(s, Limits{132, 227 << 10}); len(all) == 0 {
						t.Fatalf("%s, %d×%d, %d rows: %s is the guess and has nothing for %d slices: %v", f.name(), s.n, s.k, m, first.name(), s.slices, err)
					}
				}
			}
		}
	}
	for i := range unused {
		t.Errorf("row %d of the table is for no product", i)
	}
}
