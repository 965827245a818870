package cuda

import (
	"strings"
	"testing"

	"github.com/lutq/lutq/formats/weight"
	"github.com/lutq/lutq/gemm/cuda/driver"
	"github.com/lutq/lutq/gemm/cuda/ptx"
)

// TestKept changes the source of every kernel that products choose among: what was chosen before holds no more. What few rows and
// many choose is kept apart.
func TestKept(t *testing.T) {
	e := &Engine{dev: &driver.Device{Info: driver.DeviceInfo{Major: 9}}, limits: limits{132, hopperShared}, cache: driver.NewCache(t.TempDir())}
	table := &Matrix{N: 4096, K: 4096, Format: Format{4, 128, weight.F16, driver.F16}, lookup: chosen}
	integers := *table
	integers.integers = true
	bytes := *table
	bytes.fp8 = true
	few := []string{ptx.Instructions(), lutSource, ptx.Slots(), gemmSource, wideSource}
	many := append([]string{ptx.WGMMA(), ptx.Fields(), ptx.Prepared(), columnsSource, manySource, denseSource, bytesSource, fp8Source}, few...)
	for _, test := range []struct {
		name    string
		what    string
		w       *Matrix
		rows    int
		sources []string
	}{
		{"few rows", ofConfig, table, 8, few},
		{"integers", ofConfig, &integers, 8, append([]string{symSource}, few...)},
		{"one launch", ofConfig, table, 32, few},
		{"many rows", ofWay, table, 32, many},
		{"many rows in E4M3", ofWay, &bytes, 1024, many},
	} {
		key := test.w.tuningKey(test.rows)
		e.keep(test.what, test.w, key, test.name)
		if got := e.kept(test.what, test.w, key); got != test.name {
			t.Errorf("%s: got %q", test.name, got)
		}
		before := e.cacheKey(test.what, key, test.w.choosable(key))
		for i, source := range test.sources {
			kernels := test.w.choosable(key)
			for j := range kernels {
				kernels[j].Source = strings.ReplaceAll(kernels[j].Source, source, source+"\n")
			}
			if e.cacheKey(test.what, key, kernels) == before {
				t.Errorf("%s: kernel %d has changed, and what was chosen is still kept", test.name, i)
			}
		}
	}
}
