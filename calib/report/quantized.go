package report

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"

	"github.com/lutq/lutq/quantize"
)

// Quantized is what lutq quantize --json told of a container, as far as a report has use for it.
type Quantized struct {
	SHA256  string             `json:"sha256"`
	Layers  []FittedLayer      `json:"layers"`
	Experts []quantize.Experts `json:"experts"`
}

// FittedLayer is what quantizing a layer came to.
type FittedLayer struct {
	Name        string  `json:"name"`
	OutputError float64 `json:"output_error"`
	Loss        float64 `json:"loss"`
	NearestLoss float64 `json:"nearest_loss"`
}

// ParseQuantized reads what lutq quantize --json printed.
func ParseQuantized(data []byte) (*Quantized, error) {
	var q Quantized
	if err := json.Unmarshal(data, &q); err != nil {
		return nil, err
	}
	if q.SHA256 == "" || len(q.Layers) == 0 {
		return nil, errors.New("not what lutq quantize --json prints: it has no sha256 or no layers")
	}
	for _, l := range q.Layers {
		for _, v := range []float64{l.OutputError, l.Loss, l.NearestLoss} {
			if v < 0 || math.IsNaN(v) || math.IsInf(v, 0) {
				return nil, fmt.Errorf("layer %q has a loss of %v", l.Name, v)
			}
		}
	}
	for _, x := range q.Experts {
		for _, n := range x.Tokens {
			if n < 0 {
				return nil, fmt.Errorf("block %q has an expert of %d tokens", x.Block, n)
			}
		}
	}
	return &q, nil
}

// Add notes what quantizing told of the model's layers.
func (m *Model) Add(q *Quantized) {
	at := make(map[string]FittedLayer)
	for _, l := range q.Layers {
		at[l.Name] = l
	}
	for i := range m.Layers {
		l := &m.Layers[i]
		if f, ok := at[l.Name]; ok {
			l.OutputError, l.Loss, l.NearestLoss = f.OutputError, f.Loss, f.NearestLoss
		}
	}
	m.Experts = q.Experts
}
