package quantize

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/lutq/lutq/formats/arch"
	"github.com/lutq/lutq/formats/hf"
	"github.com/lutq/lutq/formats/lutq"
)

// A Reason says why a tensor is copied as it is.
type Reason string

// The reasons, as reports spell them.
const (
	KeptByRule    Reason = "keep rule"
	KeptEmbedding Reason = "embedding"
	KeptHead      Reason = "output head"
	KeptNorm      Reason = "norm"
	KeptRouter    Reason = "router"
	KeptVector    Reason = "bias or vector"
	KeptRank      Reason = "stack of matrices" // such as the experts of a layer in one tensor
	KeptType      Reason = "type"              // no type of floating point weights
	KeptEmpty     Reason = "empty"
	KeptOther     Reason = "no linear layer"
	KeptOutside   Reason = "outside the decoder's blocks"
	KeptTower     Reason = "outside the language model" // of a model of several modes: what sees, hears or joins
	KeptFurther   Reason = "layers that predict further tokens"
)

// PackedError means that a tensor looks like weights that another program has
// packed, which a copy would leave as they are in silence.
type PackedError struct{ Type hf.DType }

func (e *PackedError) Error() string {
	return fmt.Sprintf("weights of type %s in no format that is known: want 16 or 32 bits", e.Type)
}

// Hint says how to insist.
func (e *PackedError) Hint() string { return "--tensor 'NAME=keep' copies what is no weight as it is" }

// number matches the index of a layer or an expert in a name.
var number = regexp.MustCompile(`\b\d+\b`)

// kept returns why a tensor is copied where no rule names it, "" for those that
// are quantized: the linear layers of the decoder's blocks.
func (m *modelNames) kept(t *hf.Tensor) Reason {
	role, part := m.role(t), m.part(t.Name)
	switch {
	case t.Elements() == 0:
		return KeptEmpty
	case part != "" && m.also[part] && linearByName(t):
		return ""
	case part != "":
		return part
	case role == arch.NormWeight:
		return KeptNorm
	case !slices.Contains([]hf.DType{hf.F64, hf.F32, hf.F16, hf.BF16}, t.DType):
		return KeptType
	case len(t.Shape) < 2 || role == arch.BiasVector:
		return KeptVector
	case len(t.Shape) > 2 && m.stored[t.Name] == nil:
		return KeptRank
	}
	switch role {
	case arch.RouterWeight:
		return KeptRouter
	case arch.LinearWeight:
		return ""
	case arch.HeadWeight:
		return KeptHead
	case arch.EmbeddingWeight:
		return KeptEmbedding
	}
	if strings.HasSuffix(t.Name, lutq.WeightSuffix) {
		return KeptOutside
	}
	return KeptOther
}

// quantizable reports whether a rule may have a tensor quantized: a matrix of
// floating point weights of the language model that is neither a norm nor the router of a mixture.
func (m *modelNames) quantizable(t *hf.Tensor) bool {
	switch m.kept(t) {
	case "", KeptEmbedding, KeptHead, KeptOutside:
		return true
	case KeptFurther:
		return linearByName(t)
	}
	return false
}

// part returns the reason to keep a tensor of a part of the model that takes no part in text, "" for others.
func (m *modelNames) part(tensor string) Reason {
	switch {
	case m.further(tensor):
		return KeptFurther
	case m.outside(tensor):
		return KeptTower
	}
	return ""
}

// linearByName reports whether a tensor of such a part looks like a linear layer.
func linearByName(t *hf.Tensor) bool {
	return len(t.Shape) == 2 && slices.Contains([]hf.DType{hf.F64, hf.F32, hf.F16, hf.BF16}, t.DType) && arch.LinearByName(t.Name)
}

// Kept are the tensors that a plan copies for one reason.
type Kept struct {
	Reason  Reason   `json:"reason"`
	Tensors int      `json:"tensors"`
	Bytes   int64    `json:"bytes"` // in the output
	Names   []string `json:"names"` // once for all layers, with * for their numbers
}

// Kept groups what the plan copies by reason, in the order of the source.
func (p *Plan) Kept() []Kept {
	all := []Kept{}
	for i := range p.Items {
		it := &p.Items[i]
		if it.Quantized() {
			continue
		}
		at := slices.IndexFunc(all, func(k Kept) bool { return k.Reason == it.Kept })
		if at < 0 {
			at = len(all)
			all = append(all, Kept{Reason: it.Kept})
		}
		k := &all[at]
		k.Tensors++
		k.Bytes += it.BytesOut
		name := number.ReplaceAllString(it.Tensor.Name, "*")
		switch it.Kept { // of which nobody wants to know each module
		case KeptTower:
			name = towerName(it.Tensor.Name)
		case KeptFurther:
			name = furtherName(it.Tensor.Name)
		}
		if !slices.Contains(k.Names, name) {
			k.Names = append(k.Names, name)
		}
	}
	return all
}

// towerName names the part of a model that a tensor outside its language model is in.
func towerName(tensor string) string {
	part, rest, _ := strings.Cut(tensor, ".")
	if part == "model" || part == "thinker" {
		var inner string
		if inner, rest, _ = strings.Cut(rest, "."); inner != "" {
			part += "." + inner
		}
	}
	if rest == "" {
		return part
	}
	return part + ".*"
}

// Decoded are the tensors that the source stores in one encoding.
type Decoded struct {
	Encoding string `json:"encoding"` // as [hf.Encoding] names it
	Tensors  int    `json:"tensors"`
	Kept     int    `json:"kept"`    // not quantized, and so written decoded
	KeptAs   string `json:"kept_as"` // the type that they are written in
}

// Decoded groups what the source stores in an encoding by which one that is.
func (p *Plan) Decoded() []Decoded {
	all := []Decoded{}
	for i := range p.Items {
		it := &p.Items[i]
		if it.Tensor.Encoding() == nil {
			continue
		}
		how := it.Tensor.StoredAs()
		at := slices.IndexFunc(all, func(d Decoded) bool { return d.Encoding == how })
		if at < 0 {
			at = len(all)
			all = append(all, Decoded{Encoding: how, KeptAs: string(it.Tensor.DType)})
		}
		all[at].Tensors++
		if !it.Quantized() {
			all[at].Kept++
		}
	}
	return all
}

// keptInShort counts what the plan copies, by reason.
func (p *Plan) keptInShort() string {
	var parts []string
	for _, k := range p.Kept() {
		parts = append(parts, fmt.Sprintf("%s (%d)", k.Reason, k.Tensors))
	}
	return strings.Join(parts, ", ")
}

// furtherName names the layers that a tensor of those that predict further tokens is in.
func furtherName(tensor string) string {
	if part := layered.FindString(tensor); part != "" && !arch.FurtherByName(part) {
		return part + "*"
	}
	part, _, _ := strings.Cut(tensor, ".")
	return part + ".*"
}

// layered matches the beginning of a name up to the number of a layer.
var layered = regexp.MustCompile(`^.*?\blayers\.\d+\.`)
