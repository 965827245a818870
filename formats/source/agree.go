package source

import (
	"encoding/json"
	"fmt"
	"iter"
	"path/filepath"
	"strings"

	"github.com/lutq/lutq/formats/arch"
	"github.com/lutq/lutq/formats/foreign"
	"github.com/lutq/lutq/formats/hf"
	"github.com/lutq/lutq/formats/lutq"
)

const biasSuffix = ".bias"

// Tensors are those of a model, by name.
type Tensors interface {
	// Tensor returns a tensor.
	Tensor(name string) (*hf.Tensor, bool)
	// Has reports whether there is a tensor of that name, be it stored as something else.
	Has(name string) bool
}

// Agree decides what a config.json and the tensors of a model, which messages call name, are together where one may
// contradict the other, and returns the config.json that says so. As transformers 5.24 does, it takes an output head
// that is stored for the model's own, whatever config.json says, unless it equals the embedding. It fails where config.json
// promises one and none is stored, and where tensors are stored that change what a model computes if it has a place for
// them, and it has none: some programs ignore them, others do not. Biases of zeros change nothing. Of a model of no
// known family nothing is decided.
func Agree(name string, config []byte, tensors Tensors) ([]byte, error) {
	d, err := arch.Describe(config, tensors.Has)
	if err != nil {
		return config, nil // what needs a description says why there is none
	}
	if !d.Within(tensors.Has) {
		return config, nil // nor is anything known of names that no version of the family has
	}
	embed, head := d.Embed+".weight", d.Head.Stored.Tensor
	switch {
	case !d.Tied && !tensors.Has(head):
		return nil, fmt.Errorf("%s: %s says that the output head is not the embedding (tie_word_embeddings), and there is no tensor %s",
			filepath.Join(name, configName), configName, head)
	case d.Tied && tensors.Has(embed) && tensors.Has(head):
		same, err := equal(tensors, embed, head)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		if !same {
			if config, err = untied(config); err != nil {
				return nil, fmt.Errorf("%s: %w", filepath.Join(name, configName), err)
			}
		}
	}
	for tensor := range unnamed(d) {
		t, ok := tensors.Tensor(tensor)
		if !ok {
			continue
		}
		zero := false
		if strings.HasSuffix(tensor, biasSuffix) { // which AutoGPTQ adds to every layer, as zeros
			if zero, err = isZero(t); err != nil {
				return nil, fmt.Errorf("%s: %w", name, err)
			}
		}
		if !zero {
			return nil, &UnnamedError{Model: name, Tensor: t.Name, Shard: t.Shard}
		}
	}
	return config, nil
}

// originalTensors are those that a container was made from, as far as they are there or names go.
type originalTensors struct{ *lutq.Model }

func (c originalTensors) Tensor(name string) (*hf.Tensor, bool) { return c.Checkpoint().Tensor(name) }

// UnnamedError means that a model has a tensor that changes what it computes if it is used, and a config.json by which
// it is not.
type UnnamedError struct{ Model, Tensor, Shard string }

func (e *UnnamedError) Error() string {
	return fmt.Sprintf("%s: %s in %s has no place in a model of this %s", e.Model, e.Tensor, e.Shard, configName)
}

// Hint says what to do about it.
func (e *UnnamedError) Hint() string {
	return "transformers leaves it out, other programs may not: remove the tensor, or say in " + configName + " that the model has it, as attention_bias does in some families"
}

// unnamed returns the tensors that models like this one may have, and this one has not.
func unnamed(d *arch.Decoder) iter.Seq[string] {
	return func(yield func(string) bool) {
		for s := range d.AllStored() {
			if s.Bias == "" && !yield(s.Path+biasSuffix) {
				return
			}
		}
		for i := range d.Blocks {
			b := &d.Blocks[i]
			if a := b.Attn(); a != nil && a.QNorm == nil && !(yield(b.Path+".self_attn.q_norm.weight") && yield(b.Path+".self_attn.k_norm.weight")) {
				return
			}
		}
	}
}

// equal reports whether two tensors hold the same numbers. One that is stored as something else than weights is its own.
func equal(tensors Tensors, a, b string) (bool, error) {
	x, okX := tensors.Tensor(a)
	y, okY := tensors.Tensor(b)
	if !okX || !okY || x.Elements() != y.Elements() {
		return false, nil
	}
	left, right := make([]float32, piece), make([]float32, piece)
	for at := int64(0); at < x.Elements(); at += piece {
		n := min(piece, x.Elements()-at)
		if err := x.ReadFloat32(left[:n], at); err != nil {
			return false, err
		}
		if err := y.ReadFloat32(right[:n], at); err != nil {
			return false, err
		}
		for i, v := range left[:n] {
			if v != right[i] {
				return false, nil
			}
		}
	}
	return true, nil
}

// piece is how many numbers are read at a time.
const piece = 1 << 18

// isZero reports whether all numbers of a tensor are.
func isZero(t *hf.Tensor) (bool, error) {
	v := make([]float32, min(piece, t.Elements()))
	for at := int64(0); at < t.Elements(); at += piece {
		n := min(piece, t.Elements()-at)
		if err := t.ReadFloat32(v[:n], at); err != nil {
			return false, err
		}
		for _, x := range v[:n] {
			if x != 0 {
				return false, nil
			}
		}
	}
	return true, nil
}

// untied returns a config.json that says that the output head is no embedding, in all places where it may.
func untied(config []byte) ([]byte, error) {
	var parts map[string]json.RawMessage
	if err := json.Unmarshal(config, &parts); err != nil {
		return nil, err
	}
	edits := []foreign.Member{{Key: "tie_word_embeddings", Value: json.RawMessage("false")}}
	for _, key := range arch.TextKeys() {
		if part := parts[key]; len(part) > 0 && part[0] == '{' {
			text, err := untied(part)
			if err != nil {
				return nil, err
			}
			edits = append(edits, foreign.Member{Key: key, Value: text})
		}
	}
	return foreign.Edit(config, edits...)
}
