// Package probe measures how much a model loses by each set of its layers. It rounds one set at a time to a width of reference, runs
// a text through the model, and takes the divergence of its predictions from the original's. What other widths lose follows from
// their errors.
package probe

import (
	"cmp"
	"context"
	"fmt"

	"github.com/lutq/lutq/calib/model"
	"github.com/lutq/lutq/formats/source"
	"github.com/lutq/lutq/formats/weight"
	"github.com/lutq/lutq/quantize"
)

// Options say how sets are probed.
type Options struct {
	Windows [][]int // of a text's tokens
	// Format is what layers are rounded to, of the kind lut, and EndBits the width of the ends; DefaultBits and DefaultEndBits where
	// nothing is said.
	Format  weight.Spec
	EndBits int
	Run     quantize.RunOptions // of rounding: threads and memory
	Most    int                 // windows at a time, see [model.ProbeOptions]
	// Progress is told of the work done, of all that there is; may be nil.
	Progress func(done, all int)
}

// The widths of reference: errors of 3 bits are large enough to be told from the noise of a device's arithmetic, and small enough for
// the divergence to grow with their squares.
const (
	DefaultBits    = 3
	DefaultEndBits = 4
)

// A Sensitivity is what a set costs.
type Sensitivity struct {
	KL    float64 // in nats a token, where the set alone is rounded to the reference
	Error float64 // the share of its weights' squares that this loses
	// Fitted is the share of the divergence that is left where the layers are fitted to a text: 1 where they are not.
	Fitted float64
}

// Measure returns the sensitivities of sets.
func Measure(ctx context.Context, m *source.Model, ops model.Ops, sets []quantize.Set, o Options) ([]Sensitivity, error) {
	src, err := model.NewCheckpoint(m)
	if err != nil {
		return nil, err
	}
	plan, err := reference(m, sets, o)
	if err != nil {
		return nil, err
	}
	if err := plan.Choose(ctx, o.Run); err != nil {
		return nil, err
	}
	var paths [][]string
	for _, s := range sets {
		paths = append(paths, s.Layers)
	}
	kl, err := model.Probe(ctx, src, ops, model.ProbeOptions{
		Windows: o.Windows, Sets: paths, Most: o.Most, Progress: o.Progress,
		Replace: func(ctx context.Context, path string) (weight.Matrix, error) { return plan.Nearest(ctx, path, o.Run) },
	})
	if err != nil {
		return nil, err
	}
	all := make([]Sensitivity, len(sets))
	for i := range sets {
		e, err := setError(ctx, plan, &sets[i])
		if err != nil {
			return nil, err
		}
		all[i] = Sensitivity{KL: kl[i], Error: e, Fitted: 1}
	}
	return all, nil
}

// reference returns the plan that rounds sets to the reference.
func reference(m *source.Model, sets []quantize.Set, o Options) (*quantize.Plan, error) {
	r := quantize.Recipe{Default: o.Format.Or(weight.Spec{Bits: DefaultBits})}
	for _, s := range sets {
		if !s.End {
			continue
		}
		for _, t := range s.Tensors {
			rule, err := quantize.ParseRule(fmt.Sprintf("%s=%d", quantize.Exactly(t), cmp.Or(o.EndBits, DefaultEndBits)))
			if err != nil {
				return nil, err
			}
			r.Rules = append(r.Rules, rule)
		}
	}
	return quantize.NewPlan(m, r)
}

// setError returns the share of a set's squares that a plan's rounding loses: each layer's, weighted by its size.
func setError(ctx context.Context, p *quantize.Plan, s *quantize.Set) (float64, error) {
	var sum float64
	const most = 16 // of the experts of a block
	step := max(1, (len(s.Tensors)+most-1)/most)
	n := 0
	for i := 0; i < len(s.Tensors); i += step {
		e, err := p.SampleError(ctx, s.Tensors[i])
		if err != nil {
			return 0, err
		}
		sum += e
		n++
	}
	return sum / float64(n), nil
}
