package main

import (
	"fmt"
	"io"

	"github.com/spf13/pflag"

	"github.com/lutq/lutq/calib/fit"
	"github.com/lutq/lutq/formats/input"
	"github.com/lutq/lutq/formats/lutq"
	"github.com/lutq/lutq/formats/source"
	"github.com/lutq/lutq/formats/weight/trellis"
	"github.com/lutq/lutq/quantize"
	"github.com/lutq/lutq/quantize/transform"
)

// transformOptions are the flags of what is done to a model before it is quantized.
type transformOptions struct{ name string }

func (o *transformOptions) register(f *pflag.FlagSet) {
	f.Var(newWord(&o.name, "", fit.AWQ), "transform", "multiply columns first: awq (default none)")
}

// check refuses what is of no use together.
func (o *quantizeOptions) checkTransform(r quantize.Recipe) error {
	switch {
	case o.transform.name == "":
		return nil
	case r.Makes(trellis.Name):
		return usage("--transform %s: rings mix their columns, and need no factors", o.transform.name)
	case o.learn.control:
		return usage("--learn-control is a model that is not quantized: --transform has no part in it")
	}
	return o.calib.check(o.given)
}

// printTransform prints what was done to a model before it was quantized.
func printTransform(w io.Writer, t *lutq.Transform) {
	if t == nil {
		return
	}
	by := ""
	if t.Calib != nil {
		by = ", by " + windowsName(t.Calib)
	}
	fmt.Fprintf(w, "transformed\tby %s: %d states are divided%s\n", input.Name(t.Name), t.States, by)
}

// untransformed returns the model that a container's layers were made from, given the one that was quantized.
func untransformed(container *lutq.Model, beside, original *source.Model) (*source.Model, error) {
	if container.Config().Transform == nil {
		return original, nil
	}
	data, err := beside.File(lutq.FactorsName, input.Factors)
	if err != nil {
		return nil, err
	}
	f, err := transform.Parse(data)
	if err != nil {
		return nil, err
	}
	return f.Of(original)
}
