package table

import (
	"testing"

	"github.com/lutq/lutq/formats/weight"
	"github.com/lutq/lutq/gemm/conform"
	"github.com/lutq/lutq/gemm/cuda/cudatest"
	"github.com/lutq/lutq/gemm/cuda/driver"
)

// TestHostLookups holds the other lookups to the suite and to the bits of the table with a copy for each lane.
func TestHostLookups(t *testing.T) {
	stamps := cudatest.Stamps(t)
	copies := []Lookup{Copies1, Copies16, Copies4, Copies2}
	for i, other := range copies {
		f := Format{2 + i, 64, weight.F16, driver.F16}
		t.Run(f.name(), func(t *testing.T) {
			t.Parallel()
			config := lutgemm{}.variants(f, rowsOfB)[0]
			var kernels []hostKernel
			for _, l := range []Lookup{Replicated, other, Shuffle} {
				kernels = append(kernels, hostKernel{config: config, lookup: l, arch: 900})
			}
			compileOnHost(t, stamps, f, kernels)
			c := conform.Draw(1, 3*i, conform.Format(f)) // a random table
			c.Rows = []int{1, 8}
			newHostMatrix(t, c, kernels).check(t)
		})
	}
}

// TestLookupNames holds names to lookups.
func TestLookupNames(t *testing.T) {
	for l := Replicated; l <= Shuffle; l++ {
		if got, err := ParseLookup(l.String()); got != l || err != nil {
			t.Errorf("%v becomes %v, %v", l, got, err)
		}
	}
	if _, err := ParseLookup("copies3"); err == nil {
		t.Error("copies3: no error")
	}
}
