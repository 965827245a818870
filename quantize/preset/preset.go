// Package preset has the recipes that a word stands for: what is chosen for a width where nothing else is said.
//
// What they rest on is in NOTES.md.
package preset

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/lutq/lutq/formats/weight"
	"github.com/lutq/lutq/formats/weight/trellis"
	"github.com/lutq/lutq/quantize"
)

// The presets by name.
const (
	Fast = "fast"
	Good = "good"
	Best = "best"
)

// Names returns the presets, the quickest first.
func Names() []string { return []string{Fast, Good, Best} }

// A Recipe is what a preset makes of a width.
type Recipe struct {
	Preset   string  `json:"name"`
	Most     float64 `json:"-"`        // bits of the widest code that it is for
	Codebook string  `json:"codebook"` // table, or codes on rings
	Method   string  `json:"method"`
	Self     bool    `json:"self"`  // half of the text is what the model writes itself, where no text is named
	Learn    bool    `json:"learn"` // scales are refined on the text after that
	Mix      bool    `json:"mix"`   // layers differ in bits, at the bytes of layers that do not
}

// Recipes returns all of them, by preset and then by width. Widths that no table has go to rings.
func Recipes() []Recipe {
	table, ring := quantize.AutoCodebook, trellis.Pairs
	return []Recipe{
		{Preset: Fast, Most: 1.5, Codebook: ring, Method: "rtn"},
		{Preset: Fast, Most: 5, Codebook: table, Method: "rtn"},
		{Preset: Fast, Most: 6, Codebook: ring, Method: "rtn"},

		{Preset: Good, Most: 1.5, Codebook: ring, Method: "gptq"},
		{Preset: Good, Most: 5, Codebook: table, Method: "gptq"},
		{Preset: Good, Most: 6, Codebook: ring, Method: "gptq"},

		{Preset: Best, Most: 3.5, Codebook: ring, Method: "gptq", Self: true, Learn: true, Mix: true},
		{Preset: Best, Most: 6, Codebook: ring, Method: "gptq", Self: true, Mix: true},
	}
}

// Of returns what a preset makes of codes of so many bits, which may be a mean.
func Of(name string, bits float64) (Recipe, error) {
	for _, r := range Recipes() {
		if r.Preset == name && bits <= r.Most {
			return r, nil
		}
	}
	if !slices.Contains(Names(), name) {
		return Recipe{}, fmt.Errorf("preset %q: want %s", name, strings.Join(Names(), ", "))
	}
	return Recipe{}, fmt.Errorf("preset %s has no codes of %g bits", name, bits)
}

// Most returns the bits of the widest codes of a preset.
func Most(name string) (bits float64) {
	for _, r := range Recipes() {
		if r.Preset == name {
			bits = max(bits, r.Most)
		}
	}
	return bits
}

// Fill gives a format what the preset says of fields that are open. Learn and Mix are not a format's.
func (r Recipe) Fill(s weight.Spec) weight.Spec {
	s.Method = cmp.Or(s.Method, r.Method)
	s.Codebook = cmp.Or(s.Codebook, r.Codebook)
	return s
}

// String says in words what the preset does.
func (r Recipe) String() string {
	words := []string{"tables js or nf", "rounded to nearest"}
	if r.Codebook == trellis.Pairs {
		words[0] = "trellis codes"
	}
	if r.Method == "gptq" {
		words[1] = "fitted to a text"
	}
	if r.Learn {
		words = append(words, "scales learned")
	}
	if r.Mix {
		words = append(words, "bits mixed")
	}
	return strings.Join(words, ", ")
}
