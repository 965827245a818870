package cuda

import (
	"testing"

	"github.com/lutq/lutq/formats/weight"
	"github.com/lutq/lutq/gemm/cuda/driver"
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
	few := []*string{&ptxSource, &lutSource, &slotsSource, &gemmSource, &wideSource}
	many := append([]*string{&wgmmaSource, &fieldsSource, &quadSource, &columnsSource, &manySource, &denseSource, &bytesSource, &fp8Source}, few...)
	for _, test := range []struct {
		name    string
		what    string
		w       *Matrix
		rows    int
		sources []*string
	}{
		{"few rows", ofConfig, table, 8, few},
		{"integers", ofConfig, &integers, 8, append([]*string{&symSource}, few...)},
		{"one launch", ofConfig, table, 32, few},
		{"many rows", ofWay, table, 32, many},
		{"many rows in E4M3", ofWay, &bytes, 1024, many},
	} {
		key := test.w.tuningKey(test.rows)
		e.keep(test.what, test.w, key, test.name)
		for i, source := range test.sources {
			before := *source
			*source += "\n"
			if got := e.kept(test.what, test.w, key); got != "" {
				t.Errorf("%s: kernel %d has changed, and %q is still kept", test.name, i, got)
			}
			*source = before
		}
		if got := e.kept(test.what, test.w, key); got != test.name {
			t.Errorf("%s: got %q", test.name, got)
		}
	}
}
