package main

import (
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"
)

// TestEmbedBits: the flag stores the tiny model's embedding, which is its head as well, in tables up to 5 bits and in rings above
// and beside other rings; a rule of one's own goes before it, and the report says what stays in 16 bits.
func TestEmbedBits(t *testing.T) {
	for _, tc := range []struct {
		name, args string
		want       string // bits and kind of the embedding, nothing where it is kept
		line       bool   // of what is not quantized
	}{
		{"left", "--bits 3", "", true},
		{"tables", "--bits 3 --embed-bits 5", "5 lut", false},
		{"rings above them", "--bits 3 --embed-bits 6", "6 trellis", false},
		{"rings", "--bits 1 --codebook trellis --embed-bits 4", "4 trellis", false},
		{"beside binary codes", "--bits 3 --method bcq --bcq-rounds 0 --embed-bits 4", "4 lut", false},
		{"by hand", "--bits 3 --embed-bits 5 --tensor embed_tokens=4", "4 lut", false},
		{"kept", "--bits 3 --embed-bits 16", "", true},
		{"kept against a rule", "--bits 3 --embed-bits 16 --tensor embed_tokens=4", "4 lut", false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			args := append([]string{"quantize", "--preset", "fast", tiny, filepath.Join(t.TempDir(), "out"), "--dry-run"}, strings.Fields(tc.args)...)
			code, stdout, stderr := exec(append(args, "--json")...)
			if code != 0 {
				t.Fatal(stderr)
			}
			var plan struct {
				Layers []struct {
					Name, Kind string
					Bits       json.Number
				}
			}
			if err := json.Unmarshal([]byte(stdout), &plan); err != nil {
				t.Fatal(err)
			}
			found := false
			for _, l := range plan.Layers {
				if l.Name != "model.embed_tokens.weight" {
					continue
				}
				found = true
				if got := strings.TrimSpace(l.Bits.String() + " " + l.Kind); got != tc.want {
					t.Errorf("the embedding is stored as %q, want %q", got, tc.want)
				}
			}
			if !found {
				t.Error("the plan has no embedding")
			}
			if _, stdout, _ = exec(args...); strings.Contains(stdout, "--embed-bits") != tc.line {
				t.Errorf("the report has the line: %v, want %v\n%s", !tc.line, tc.line, stdout)
			}
		})
	}
}
