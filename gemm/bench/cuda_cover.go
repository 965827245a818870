package bench

import (
	"fmt"
	"slices"
	"strings"

	"github.com/lutq/lutq/gemm/conform"
	"github.com/lutq/lutq/gemm/cuda"
	"github.com/lutq/lutq/gemm/cuda/driver"
)

// Coverage says which kernels of the formats that are asked for a self-test runs. One of each format for many rows of X, and those
// that unpack it, are run in any case but the last.
type Coverage int

const (
	// CoverPairs runs those that together have every pair of a width, a group size, a scale type, a type of activations and a
	// configuration.
	CoverPairs Coverage = iota
	// CoverAll runs all.
	CoverAll
	// CoverSources runs each source in one format, for every kind of number of rows of X.
	CoverSources
)

// variant is a kernel of a format of tables.
type variant struct {
	cuda.Format
	cuda.Config
}

func (v variant) traits() []string { return conform.Pairs(v.Format.Traits(v.Config)) }

// cover leaves those kernels of tests that are to be run.
func (t *cudaSelftest) cover(tests []*formatTest) {
	switch t.coverage {
	case CoverPairs:
		var all []variant
		for _, f := range tests {
			for _, c := range f.configs {
				all = append(all, variant{f.format, c})
			}
		}
		some := make(map[variant]bool)
		for _, v := range conform.Covering(all, variant.traits) {
			some[v] = true
		}
		for _, f := range tests {
			f.configs = slices.DeleteFunc(f.configs, func(c cuda.Config) bool { return !some[variant{f.format, c}] })
		}
	case CoverSources:
		for _, f := range tests {
			var some []cuda.Config
			for i, m := range f.Rows {
				for _, c := range f.configsFor(m) {
					if t.fresh(fmt.Sprintf(" for rows %d", i), f.format.Kernel(c)) && !slices.Contains(some, c) {
						some = append(some, c)
					}
				}
			}
			f.configs = some
		}
	}
}

// fresh reports whether the source of any of some kernels has not been run yet for some purpose, if each is to be run once.
func (t *cudaSelftest) fresh(purpose string, kernels ...driver.Kernel) bool {
	fresh := t.coverage != CoverSources
	for _, k := range kernels {
		name, _, _ := strings.Cut(k.Name, ".")
		fresh = fresh || !t.sources[name+purpose]
		t.sources[name+purpose] = true
	}
	return fresh
}

// codes returns the tests of binary codes that are to be run, to be prepared.
func (t *cudaSelftest) codes(c *driver.CUDA, o *CUDASelftestOptions) []*bcqTest {
	if t.dev.CanCompile() != nil {
		return nil // as their kernels are not built ahead of time
	}
	all := o.bcqFormats()
	some := all
	if t.coverage == CoverPairs {
		some = conform.Covering(all, func(f cuda.BCQFormat) []string { return conform.Pairs(f.Traits()) })
	}
	var tests []*bcqTest
	for i, f := range all {
		kernels := t.bcqKernels(f)
		for _, k := range kernels {
			t.of[t.key(k)] = true
		}
		if o.mine(i) && slices.Contains(some, f) && t.fresh("", kernels...) {
			tests = append(tests, t.bcqTest(c, i, f, o.Seed))
		}
	}
	return tests
}
