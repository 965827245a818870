package quantize

import (
	"errors"
	"fmt"
	"slices"

	"github.com/lutq/lutq/formats/arch"
	"github.com/lutq/lutq/formats/lutq"
	"github.com/lutq/lutq/formats/weight/trellis"
	"github.com/lutq/lutq/quantize/awq"
	"github.com/lutq/lutq/quantize/rounding"
)

// A Transform is what was done to the weights of a model before they are quantized, see package quantize/transform.
type Transform interface {
	// Flags are the flags of the command line that ask for it again.
	Flags() []string
	// Key names all that it has done.
	Key() string
	// Record is what the container says of it.
	Record() *lutq.Transform
	// File returns the file of the container that says what was done.
	File() ([]byte, error)
}

// trialRows is how many rows of a layer factors are found by, at most.
const trialRows = 256

// errTurned means that columns of a kind of weights are mixed.
var errTurned = errors.New("weights of kind " + trellis.Name + " mix their columns: factors of these are of no use")

// Quantizes reports whether a layer is quantized.
func (p *Plan) Quantizes(l *arch.Linear) bool { return p.itemOf(l) != nil }

func (p *Plan) itemOf(l *arch.Linear) *Item {
	i := slices.IndexFunc(p.Items, func(it Item) bool { return it.Quantized() && it.Tensor.Name == l.Stored.Tensor })
	if i < 0 {
		return nil
	}
	return &p.Items[i]
}

// Trial returns rows of a layer that is quantized for [awq.Search], and the ways in which the plan may round them: by the kind's
// own method that needs no text.
func (p *Plan) Trial(l *arch.Linear) (trial awq.Layer, err error) {
	it := p.itemOf(l)
	if it.Format.Kind == trellis.Name {
		return trial, errTurned
	}
	rows := evenly(l.N, trialRows)
	trial.Share = float64(l.N) / float64(len(rows))
	for i, r := range rows {
		rows[i] = l.Expert*l.Stored.N + l.Row + r*l.Step
	}
	if trial.Weights, err = it.sample(l.Expert, rows); err != nil {
		return trial, err
	}
	tables := []string{it.Format.Codebook}
	if it.undecided() {
		tables = autoTables()
	}
	for _, table := range tables {
		as := *it
		if it.undecided() {
			if err := as.use(table); err != nil {
				return trial, err
			}
		}
		trial.Round = append(trial.Round, as.roundInPlace)
	}
	return trial, nil
}

// roundInPlace puts what would be stored of rows of weights in their place.
func (it *Item) roundInPlace(w []float32) error {
	kind, err := lutq.KindOf(it.Format.Kind)
	if err != nil {
		return err
	}
	n := len(w) / it.K
	parts, err := emptyParts(kind, it.Format, n, it.K)
	if err != nil {
		return err
	}
	as := *it
	as.Codebook = it.scaledTo(largest(0, w))
	q, err := as.plain.Quantizer(as.layer(as.Codebook))
	if err != nil {
		return err
	}
	if err := q.Rows(parts, make([]rounding.RowError, n), w); err != nil {
		return fmt.Errorf("%s: %w", it.Tensor.Name, err)
	}
	q.Shared(parts)
	m, err := kind.Open(it.Format, n, it.K, parts)
	if err != nil {
		return err
	}
	for i := range n {
		m.Row(w[i*it.K:][:it.K], i)
	}
	return nil
}
