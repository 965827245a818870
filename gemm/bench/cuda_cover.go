package bench

import (
	"strings"

	"github.com/lutq/lutq/gemm/conform"
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

// cover says which parts of tests are to be run.
func (t *cudaSelftest) cover(tests []*formatTest) {
	var all []variant
	some := make(map[variant]bool)
	var parts []*part
	for _, f := range tests {
		parts = append(parts, f.parts...)
	}
	for _, p := range parts {
		_, known := some[p.variant]
		switch {
		case p.variant == nil:
			p.run = t.fresh(p.purpose, p.kernels...)
		case t.coverage == CoverSources:
			some[p.variant] = t.fresh(p.purpose, p.kernels...) || some[p.variant]
		case !known:
			all, some[p.variant] = append(all, p.variant), t.coverage == CoverAll
		}
	}
	if t.coverage == CoverPairs {
		for _, v := range conform.Covering(all, func(v variant) []string { return conform.Pairs(v.traits()) }) {
			some[v] = true
		}
	}
	for _, p := range parts {
		p.run = p.run || some[p.variant]
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
