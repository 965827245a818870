package fit

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"runtime"
	"slices"

	"github.com/lutq/lutq/formats/arch"
	"github.com/lutq/lutq/formats/lutq"
	"github.com/lutq/lutq/formats/source"
	"github.com/lutq/lutq/formats/weight"
	"github.com/lutq/lutq/quantize"
	"github.com/lutq/lutq/quantize/awq"
	"github.com/lutq/lutq/quantize/rounding"
	"github.com/lutq/lutq/quantize/transform"
)

// AWQ is the name of the transform that [Transform] does.
const AWQ = "awq"

// Transform divides the states of a model by factors that package awq finds on a text, for layers as a recipe has them rounded. It
// returns the model to quantize, and completes the recipe. The options keep the text for [To]. States that nothing can divide
// stay as they are, and so do those that several MLPs read: experts have statistics of their own tokens each.
func Transform(ctx context.Context, m *source.Model, r *quantize.Recipe, o *Options) (*source.Model, error) {
	text, err := o.mixture(ctx, m)
	if err != nil {
		return nil, err
	}
	calibrated := r.Calibrated()
	c, err := newCalibrator(m, text, *o, false)
	if err != nil {
		return nil, err
	}
	c.o.GPTQ.Retarget = 0 // the original model alone is run
	of := *r
	if calibrated {
		of.Calibrate = c // which is never asked
	}
	of.Refine = unused{}
	plan, err := quantize.NewPlan(m, of)
	if err != nil {
		return nil, err
	}
	s, err := newSearch(m, plan, o)
	if err != nil {
		return nil, err
	}
	if err := c.walkWith(ctx, "finding factors", s); err != nil {
		return nil, err
	}
	if err := s.factors.Settle(m); err != nil {
		return nil, err
	}
	t := &transformed{factors: s.factors, record: &lutq.Transform{Name: AWQ, States: len(s.factors), Calib: c.Record()}}
	t.flags = []string{"--transform", AWQ}
	if !calibrated && o.Learn == nil { // what else asks for the text says which
		t.flags = slices.Concat(t.flags, o.textFlags(text), o.whereFlags())
	}
	r.Transform = t
	return s.factors.Of(m)
}

// unused stands for a refiner in a plan that is not carried out.
type unused struct{ quantize.Refiner }

// transformed implements [quantize.Transform].
type transformed struct {
	factors transform.Factors
	record  *lutq.Transform
	flags   []string
}

func (t *transformed) Flags() []string         { return t.flags }
func (t *transformed) Record() *lutq.Transform { return t.record }
func (t *transformed) File() ([]byte, error)   { return t.factors.Encode() }

func (t *transformed) Key() string {
	data, err := t.factors.Encode()
	if err != nil {
		return err.Error()
	}
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}

// search finds factors as a walk comes by.
type search struct {
	o       *Options
	plan    *quantize.Plan
	sets    map[string]transform.Set // by the paths of the layers that are quantized
	factors transform.Factors
}

func newSearch(m *source.Model, plan *quantize.Plan, o *Options) (*search, error) {
	d, err := m.Decoder()
	if err != nil {
		return nil, err
	}
	s := &search{o: o, plan: plan, sets: make(map[string]transform.Set), factors: make(transform.Factors)}
	for _, set := range transform.Sets(d) {
		if slices.ContainsFunc(set.Layers, func(l *arch.Linear) bool { return l.Stored.Role == arch.RouterWeight }) {
			continue
		}
		for _, l := range set.Layers {
			if plan.Quantizes(l) {
				s.sets[l.Stored.Path] = set
			}
		}
	}
	if len(s.sets) == 0 {
		return nil, errors.New("no layer that is quantized reads a state that can be divided")
	}
	return s, nil
}

// Wants implements the visitor of a walk.
func (s *search) Wants(path string) bool {
	set, ok := s.sets[path]
	return ok && s.factors[set.Name] == nil
}

// Weight implements the visitor: the original model goes on.
func (s *search) Weight(string) (weight.Matrix, error) { return nil, nil }

// Quantize implements the visitor, and quantizes nothing.
func (s *search) Quantize(ctx context.Context, all []rounding.Readers) error {
	for _, of := range all {
		if err := s.search(ctx, of.Layers, of.Stats); err != nil {
			return err
		}
	}
	return nil
}

// search finds the factors of a state.
func (s *search) search(ctx context.Context, paths []string, stats []rounding.Stats) error {
	set := s.sets[paths[0]]
	if len(stats) != 1 {
		return fmt.Errorf("%s: %d statistics of one state", set.Name, len(stats))
	}
	var layers []awq.Layer
	for _, l := range set.Layers {
		if !s.plan.Quantizes(l) {
			continue
		}
		trial, err := s.plan.Trial(l)
		if err != nil {
			return err
		}
		layers = append(layers, trial)
	}
	if stats[0].Tokens() == 0 {
		delete(s.sets, paths[0]) // an expert that no token was for
		return nil
	}
	h, err := stats[0].Hessian()
	if err != nil {
		return err
	}
	found, err := awq.Search(ctx, layers, h, stats[0].Tokens(), cmp.Or(s.o.Threads, runtime.GOMAXPROCS(0)), set.Tie)
	if err != nil {
		return fmt.Errorf("%s: %w", set.Name, err)
	}
	s.factors[set.Name] = found.Factors
	return nil
}
