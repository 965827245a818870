package main

import (
	"errors"
	"fmt"

	"github.com/lutq/lutq/gemm/bench"
)

// coverage is the flag that says which kernels a self-test runs. It implements pflag.Value.
type coverage struct {
	name          string // or "" or coverNone for no self-test
	share, shares int    // of all, from 1 on
}

// What a self-test may be asked to run, but for shares.
const (
	coverNone    = "false" // as of other switches
	coverPairs   = "true"
	coverAll     = "all"
	coverSources = "sources"
)

func (c *coverage) on() bool { return c.name != "" && c.name != coverNone }

func (c *coverage) String() string { return c.name }

// Type implements pflag.Value: a switch, which may go without a value.
func (c *coverage) Type() string { return "bool" }

// Set implements pflag.Value.
func (c *coverage) Set(s string) error {
	of := coverage{name: s}
	switch s {
	case coverNone, coverPairs, coverAll, coverSources:
	default:
		var rest string
		if n, _ := fmt.Sscanf(s, "%d/%d%s", &of.share, &of.shares, &rest); n != 2 || of.share < 1 || of.share > of.shares {
			return errors.New("want all, sources or a share as 3/4")
		}
	}
	*c = of
	return nil
}

func (c *coverage) of() bench.Coverage {
	switch c.name {
	case coverPairs:
		return bench.CoverPairs
	case coverSources:
		return bench.CoverSources
	}
	return bench.CoverAll
}
