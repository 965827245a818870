package quantize

import (
	"regexp"
	"slices"

	"github.com/lutq/lutq/formats/arch"
	"github.com/lutq/lutq/formats/source"
)

// Ends are the tensors at the two ends of a language model, by name: its token embedding, and its output head where that is
// a matrix of its own. They stay as they are where no rule names them.
type Ends struct{ Embed, Head []string }

// All lists both.
func (e Ends) All() []string { return slices.Concat(e.Embed, e.Head) }

// Exactly returns the expression that matches one name.
func Exactly(name string) string { return "^" + regexp.QuoteMeta(name) + "$" }

// EndsOf finds the ends of a model: by the description of its family, or by names where that is not known.
func EndsOf(m *source.Model) (Ends, error) {
	src, err := m.Weights()
	if err != nil {
		return Ends{}, err
	}
	names := newNames(m, src)
	var e Ends
	for _, t := range src.Tensors() {
		switch role := names.role(t); {
		case names.outside(t.Name) || !names.quantizable(t):
		case role == arch.EmbeddingWeight:
			e.Embed = append(e.Embed, t.Name)
		case role == arch.HeadWeight:
			e.Head = append(e.Head, t.Name)
		}
	}
	return e, nil
}
