package quantize

import (
	"fmt"
	"slices"
	"strings"

	"github.com/lutq/lutq/formats/arch"
	"github.com/lutq/lutq/formats/hf"
	"github.com/lutq/lutq/formats/lutq"
	"github.com/lutq/lutq/formats/source"
)

// modelNames says what the tensors of a checkpoint are for: by the description of
// its family, or by the rule for others, which is [arch.ByName].
type modelNames struct {
	model  *arch.Decoder // nil: of no known family
	why    error         // then
	stored map[string]*arch.Stored
	fuse   map[string]string // of stored paths; see [arch.Linear]
	also   map[Reason]bool   // parts whose linear layers are quantized as well, by their names
}

// newNames takes the description of a model and its weights. A model that is not
// known, or whose description does not agree with its tensors, is no error.
func newNames(of *source.Model, src *hf.Checkpoint) *modelNames {
	m := &modelNames{}
	d, err := of.Decoder()
	if err != nil {
		m.why = err
		return m
	}
	if !d.Within(src.Has) {
		m.why = fmt.Errorf("%s: no tensor is named as in its family %s, such as %s", src.Dir(), d.Family, d.Head.Stored.Tensor)
		return m
	}
	m.stored, m.fuse = make(map[string]*arch.Stored), make(map[string]string)
	for l := range d.Linears() {
		m.stored[l.Stored.Tensor] = l.Stored
		if l.Whole() {
			m.fuse[l.Stored.Path] = l.Fuse
		}
	}
	m.model = d
	return m
}

// role says what a tensor is for.
func (m *modelNames) role(t *hf.Tensor) arch.Role {
	if m.model == nil {
		return arch.ByName(t.Name)
	}
	role := m.model.Role(t.Name)
	if s := m.stored[t.Name]; s != nil && !slices.Equal(t.Shape, s.Shape()) {
		role = arch.Other // no layer of this model
	}
	if role == arch.Other { // but what it is can still be said
		if role = arch.ByName(t.Name); role == arch.LinearWeight {
			role = arch.Other
		}
	}
	return role
}

// mismatch tells of a layer that the checkpoint has in another shape than the description; "" where there is none.
func (m *modelNames) mismatch(src *hf.Checkpoint) string {
	for _, t := range src.Tensors() {
		if s := m.stored[t.Name]; s != nil && !slices.Equal(t.Shape, s.Shape()) {
			return fmt.Sprintf("; by config.json the shape %v of %s should be %v", t.Shape, t.Name, s.Shape())
		}
	}
	return ""
}

// outside reports whether a tensor is of another part of a model of several modes than its language model.
func (m *modelNames) outside(tensor string) bool {
	if m.model == nil {
		return arch.OutsideByName(tensor)
	}
	return m.model.Outside(tensor)
}

// further reports whether a tensor is of layers that predict tokens behind the next one.
func (m *modelNames) further(tensor string) bool {
	if m.model == nil {
		return arch.FurtherByName(tensor)
	}
	return m.model.Further(tensor)
}

// layer says how the tensor of a quantized item is stored: as the description
// has it, or as a matrix [N, K].
func (m *modelNames) layer(t *hf.Tensor) arch.Stored {
	if s := m.stored[t.Name]; s != nil && slices.Equal(t.Shape, s.Shape()) {
		return *s
	}
	return arch.Stored{Path: strings.TrimSuffix(t.Name, lutq.WeightSuffix), Tensor: t.Name, N: t.Shape[0], K: t.Shape[1]}
}

// fused names the set of layers that runtimes fuse a layer with, or "".
func (m *modelNames) fused(layer string) string {
	if m.model == nil {
		return arch.FuseByName(layer)
	}
	return m.fuse[layer]
}

// Family names the family of a plan's model; "" is none that is known, for the
// reason given.
func (p *Plan) Family() (name string, why error) {
	if p.names.model == nil {
		return "", p.names.why
	}
	return p.names.model.Family, nil
}
