package hf

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	"github.com/nlpodyssey/safetensors"
)

// secondOpinionLimit is the length of the longest header that is read twice.
// The other parser is several times slower than ours, and headers of ordinary
// checkpoints, of a few hundred tensors, are far below the limit.
const secondOpinionLimit = 256 << 10

// secondOpinion has nlpodyssey/safetensors, the reader that the rest of the Go
// world uses, interpret the header too, and refuses a file that the two
// understand differently: whatever such a header is, others would not load
// from it what we did. Headers with element types that it does not know
// (8 bits and fewer) are left out.
func secondOpinion(text []byte, h *header) error {
	for i := range h.tensors {
		if _, err := safetensors.ParseDType(string(h.tensors[i].DType)); err != nil {
			return nil
		}
	}
	var m safetensors.Metadata
	if err := json.Unmarshal(text, &m); err != nil {
		return fmt.Errorf("header: %w", err)
	}
	theirs := m.Tensors()
	if len(theirs) != len(h.tensors) {
		return fmt.Errorf("header is ambiguous: read as %d or %d tensors", len(h.tensors), len(theirs))
	}
	for i := range h.tensors {
		t := &h.tensors[i]
		o, ok := theirs[t.Name]
		if !ok || o.DType.String() != string(t.DType) || !slices.Equal(asInts(o.Shape), t.Shape) ||
			o.DataOffsets != [2]uint64{uint64(t.offset), uint64(t.offset + t.size)} {
			return fmt.Errorf("header is ambiguous at tensor %q", t.Name)
		}
	}
	if !maps.Equal(m.Metadata(), h.metadata) {
		return fmt.Errorf("header is ambiguous at %s", metadataKey)
	}
	return nil
}

func asInts(shape []uint64) []int {
	n := make([]int, len(shape))
	for i, v := range shape {
		n[i] = int(v)
	}
	return n
}
