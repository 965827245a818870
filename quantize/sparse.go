package quantize

import (
	"slices"

	"github.com/lutq/lutq/formats/weight/lut24"
	"github.com/lutq/lutq/quantize/gptq"
	"github.com/lutq/lutq/quantize/prune"
	"github.com/lutq/lutq/quantize/rounding"
)

// The methods of the kind lut24, by what chooses the weights that are kept.
const (
	methodMagnitude = "magnitude"
	methodWanda     = "wanda"
	methodSparseGPT = "sparsegpt"
)

// pruned returns a quantizer of the kind lut24. columns are how much each counts where weights are chosen;
// nil is all alike.
func (l Layer) pruned(columns []float32) (*prune.Quantizer, error) {
	return prune.NewQuantizer(prune.Options{Format: l.table(), Columns: columns})
}

// magnitude keeps the largest weights. It needs nothing, and is its own state.
type magnitude struct{}

func (magnitude) Name() string                                            { return methodMagnitude }
func (magnitude) Kinds() []string                                         { return []string{lut24.Name} }
func (magnitude) Needs() Needs                                            { return Nothing }
func (magnitude) Prepare(rounding.Stats, string, int, int) (State, error) { return &pruning{}, nil }

// wanda keeps the weights that are largest as the layer's inputs weigh them.
type wanda struct{}

func (wanda) Name() string    { return methodWanda }
func (wanda) Kinds() []string { return []string{lut24.Name} }
func (wanda) Needs() Needs    { return Diagonal }

func (wanda) Prepare(stats rounding.Stats, _ string, _, _ int) (State, error) {
	columns, err := inputSquares(stats)
	if err != nil {
		return nil, err
	}
	s := &pruning{columns: columns}
	if columns == nil {
		s.remark = Remark{What: "what it reads is not finite: weights are dropped by magnitude", Nearest: true}
	}
	return s, nil
}

// inputSquares returns how much each column counts, nil where that is not known.
func inputSquares(stats rounding.Stats) ([]float32, error) {
	diagonal, err := stats.Diagonal()
	if err != nil || slices.ContainsFunc(diagonal, func(v float32) bool { return v-v != 0 || v < 0 }) {
		return nil, err
	}
	return slices.Clone(diagonal), nil
}

// pruning is what magnitude and wanda know of a state.
type pruning struct {
	columns []float32
	remark  Remark
}

func (p *pruning) Remark() Remark                                { return p.remark }
func (p *pruning) Close()                                        {}
func (p *pruning) Quantizer(l Layer) (rounding.Quantizer, error) { return l.pruned(p.columns) }

// sparseGPT chooses weights and rounds them in the columns' order of package gptq.
type sparseGPT struct{ gptq.Options }

func (sparseGPT) Name() string    { return methodSparseGPT }
func (sparseGPT) Kinds() []string { return []string{lut24.Name} }
func (sparseGPT) Needs() Needs    { return Hessian }

func (m sparseGPT) Prepare(stats rounding.Stats, _ string, _, _ int) (State, error) {
	columns, err := inputSquares(stats)
	if err != nil {
		return nil, err
	}
	o := m.Options
	o.Chunk = lut24.Chunk
	s, err := gptq.NewState(stats, o)
	if err != nil {
		return nil, err
	}
	return &prunedState{feedbackState{State: s}, columns}, nil
}

// prunedState rounds by a state's Hessian what is chosen by its diagonal to begin with.
type prunedState struct {
	feedbackState
	columns []float32
}

func (s *prunedState) Quantizer(l Layer) (rounding.Quantizer, error) {
	q, err := l.pruned(s.columns)
	if err != nil {
		return nil, err
	}
	return s.State.Quantizer(q)
}
