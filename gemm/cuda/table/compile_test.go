package table

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/lutq/lutq/formats/weight"
	"github.com/lutq/lutq/gemm/cuda"
	"github.com/lutq/lutq/gemm/cuda/driver"
	"github.com/lutq/lutq/gemm/cuda/ptx"
)

// TestKept changes the source of every kernel that products choose among: what was chosen before holds no more.
func TestKept(t *testing.T) {
	g := cuda.GPU{DeviceInfo: driver.DeviceInfo{Major: 9, SMs: 132, SharedPerBlock: HopperShared}}
	table := Like(Format{4, 128, weight.F16, driver.F16}, 4096, 4096)
	integers := *table
	integers.integers = true
	bytes := *table
	bytes.fp8 = true
	few := []string{ptx.Instructions(), lutSource, ptx.Slots(), gemmSource, wideSource}
	many := append([]string{ptx.WGMMA(), ptx.Fields(), ptx.Prepared(), columnsSource, weightsSource, manySource, ptx.Cluster(), pairSource, ptx.Left(), spreadSource, denseSource, bytesSource, fp8Source}, few...)
	for _, test := range []struct {
		name    string
		w       *Tiles
		rows    int
		sources []string
	}{
		{"few rows", table, 8, few},
		{"integers", &integers, 8, append([]string{symSource}, few...)},
		{"one launch", table, 32, few},
		{"many rows", table, 32, many},
		{"many rows in E4M3", &bytes, 1024, many},
	} {
		for i, source := range test.sources {
			if !slices.ContainsFunc(test.w.Choosable(g, test.rows), func(k driver.Kernel) bool { return strings.Contains(k.Source, source) }) {
				t.Errorf("%s: choices do not hang on source %d", test.name, i)
			}
		}
	}
	// What is kept for what stays so: digests are parts of the names of files.
	for rows, want := range map[int]string{
		8:    "{format:{Bits:4 Group:128 Scale:1 Type:2} n:4096 k:4096 rows:8 lookup:0 fp8:false sparse:false}",
		1024: "{format:{Bits:4 Group:128 Scale:1 Type:2} n:4096 k:4096 rows:1024 lookup:0 fp8:true sparse:false}",
	} {
		if got := fmt.Sprintf("%+v", bytes.Key(g, rows)); got != want {
			t.Errorf("choices are kept for %s, want %s", got, want)
		}
	}
}
