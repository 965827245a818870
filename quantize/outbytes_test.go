package quantize

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/lutq/lutq/formats/source/modeltest"
	"github.com/lutq/lutq/formats/weight"
)

// TestOutBytes: what an output is said to take bounds the sizes of its files, with and without an index, and by little.
func TestOutBytes(t *testing.T) {
	m := modeltest.Open(t, "../calib/testdata/lutq-tiny")
	for name, o := range map[string]RunOptions{"one file": {}, "many": {MaxShardSize: 50_000}} {
		t.Run(name, func(t *testing.T) {
			plan, err := NewPlan(m, Recipe{Default: weight.Spec{Bits: 3}})
			if err != nil {
				t.Fatal(err)
			}
			said, err := plan.OutBytes(o)
			if err != nil {
				t.Fatal(err)
			}
			out := filepath.Join(t.TempDir(), "out")
			if _, err := plan.Run(t.Context(), out, o); err != nil {
				t.Fatal(err)
			}
			files, err := os.ReadDir(out)
			if err != nil {
				t.Fatal(err)
			}
			var sum int64
			for _, f := range files {
				info, err := f.Info()
				if err != nil {
					t.Fatal(err)
				}
				sum += info.Size()
			}
			if said < sum || said > sum+24<<10 {
				t.Errorf("%d bytes are said, %d written", said, sum)
			}
		})
	}
}
