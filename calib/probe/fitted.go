package probe

import (
	"context"
	"fmt"
	"math"

	"github.com/lutq/lutq/calib/model"
	"github.com/lutq/lutq/formats/arch"
	"github.com/lutq/lutq/formats/source"
	"github.com/lutq/lutq/formats/weight"
	"github.com/lutq/lutq/quantize"
	"github.com/lutq/lutq/quantize/rounding"
)

// retargeted is what is left of the divergence, at the default share, where layers make up for the errors of those before them as
// well: about the median of eight shares, of two models at 2 to 4 bits on two texts, that are .72 to .90. Package gptq's NOTES.md has them.
const retargeted = 0.84

// fittedBlocks is of how many blocks fits are sampled, at most, where layers are wide: to factor the second moments of so many columns
// takes long on the processors of a host.
const (
	fittedBlocks = 4
	wideColumns  = 4096
)

// Fitted sets what share of each set's divergence is left where layers are fitted to a text, and not rounded to nearest: the share of
// the squared error of outputs that is left on the windows, by samples of rows, and what retargeting takes of that. Of blocks that
// are not looked at it is the mean of others' sets of the same place. The ends are taken to be rounded.
func Fitted(ctx context.Context, m *source.Model, ops model.StatsOps, sets []quantize.Set, s []Sensitivity, damp, retarget float64, o Options) error {
	src, err := model.NewCheckpoint(m)
	if err != nil {
		return err
	}
	plan, err := reference(m, sets, o)
	if err != nil {
		return err
	}
	if err := plan.Choose(ctx, o.Run); err != nil {
		return err
	}
	v := &fitVisitor{plan: plan, damp: damp, wanted: make(map[string]bool), fits: make(map[string]quantize.Fit)}
	d := src.Decoder()
	for _, i := range blocksToFit(d) {
		for _, l := range d.Blocks[i].Linears() {
			v.wanted[l.Stored.Path] = true
		}
	}
	if err := model.Walk(ctx, src, ops, v, model.WalkOptions{Windows: o.Windows, Progress: o.Progress}); err != nil {
		return err
	}
	share := 1.
	if retarget > 0 {
		share = math.Pow(retargeted, min(retarget/0.5, 1))
	}
	// Of sets of one place, such as all that come down.
	sums, counts := make(map[string]float64), make(map[string]float64)
	for i := range sets {
		var all quantize.Fit
		for _, layer := range sets[i].Layers {
			f := v.fits[layer]
			all.Loss, all.NearestLoss = all.Loss+f.Loss, all.NearestLoss+f.NearestLoss
		}
		s[i].Fitted = 1
		if all.NearestLoss > 0 {
			place := placeOf(&sets[i])
			s[i].Fitted = share * all.Loss / all.NearestLoss
			sums[place] += s[i].Fitted
			counts[place]++
		}
	}
	for i := range sets {
		if _, ok := v.fits[sets[i].Layers[0]]; !ok && !sets[i].End {
			if place := placeOf(&sets[i]); counts[place] > 0 {
				s[i].Fitted = sums[place] / counts[place]
			}
		}
	}
	return nil
}

// placeOf names the place of a set in its block.
func placeOf(s *quantize.Set) string { return blockNumber.ReplaceAllString(s.Layers[0], ".*.") }

// blocksToFit returns the blocks that fits are sampled of.
func blocksToFit(d *arch.Decoder) []int {
	widest := 0
	for l := range d.Linears() {
		widest = max(widest, l.K)
	}
	n := len(d.Blocks)
	if widest > wideColumns {
		n = min(n, fittedBlocks)
	}
	all := make([]int, n)
	for i := range all {
		all[i] = i * len(d.Blocks) / n
	}
	return all
}

// fitVisitor samples what fitting would make of layers, and leaves them as they are. It implements [model.Visitor].
type fitVisitor struct {
	plan   *quantize.Plan
	damp   float64
	wanted map[string]bool
	fits   map[string]quantize.Fit // by path
}

// Wants implements [model.Visitor].
func (v *fitVisitor) Wants(path string) bool { return v.wanted[path] }

// Quantize implements [model.Visitor].
func (v *fitVisitor) Quantize(ctx context.Context, all []rounding.Readers) error {
	for _, of := range all {
		for _, path := range of.Layers {
			f, err := v.plan.SampleFit(ctx, path, of.Stats, v.damp)
			if err != nil {
				return fmt.Errorf("fits: %w", err)
			}
			v.fits[path] = f
		}
	}
	return nil
}

// Weight implements [model.Visitor].
func (v *fitVisitor) Weight(string) (weight.Matrix, error) { return nil, nil }
