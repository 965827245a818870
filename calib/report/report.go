// Package report gathers what there is to see of quantized models and writes it as one page: what they store, where the
// error of their weights lies, and how far they are from their original, token by token. A page is HTML that needs
// nothing else, or Markdown with pictures beside it.
//
// Everything that comes from a model or a text, such as names and tokens, is anyone's: it is escaped wherever it goes.
package report

import (
	"cmp"
	"regexp"
	"slices"
	"strconv"

	"github.com/lutq/lutq/calib/eval"
	"github.com/lutq/lutq/quantize"
)

// Report is what a page shows. Its JSON keys are stable.
type Report struct {
	Title   string  `json:"title"`
	Against string  `json:"against,omitempty"` // the original; "": none
	Command string  `json:"command"`           // that makes this report again
	Models  []Model `json:"models"`
	Texts   []Text  `json:"texts"` // that models were evaluated on
}

// Model is a model of a report.
type Model struct {
	Name          string  `json:"name"`
	Format        string  `json:"format"` // such as lutq or gguf
	Recipe        []Fact  `json:"recipe"`
	Bytes         int64   `json:"bytes"`
	Parameters    int64   `json:"parameters"`
	BitsPerWeight float64 `json:"bits_per_weight"`
	SHA256        string  `json:"sha256,omitempty"`
	Command       string  `json:"command,omitempty"` // that made it
	Parts         []Part  `json:"parts"`             // in the order of bytes, the most first
	Layers        []Layer `json:"layers"`            // in the order of the model
	Sampled       int     `json:"sampled_rows,omitempty"`
	// Experts tells which tokens experts were fitted to; nil where nobody told.
	Experts []quantize.Experts `json:"experts,omitempty"`
}

// Fact is something that is known of a model.
type Fact struct {
	What string `json:"what"`
	Is   string `json:"is"`
}

// Part is some tensors of a model.
type Part struct {
	Name      string   `json:"name"`
	Stored    []string `json:"stored"` // how: all ways that there are
	Quantized bool     `json:"quantized"`
	Tensors   int      `json:"tensors"`
	Bytes     int64    `json:"bytes"`
	Weights   int64    `json:"weights"` // numbers
}

// Layer is a quantized layer. What is not known is 0.
type Layer struct {
	Name   string  `json:"name"`
	Shape  [2]int  `json:"shape"`
	Stored string  `json:"stored"`
	Bytes  int64   `json:"bytes"`
	Error  float64 `json:"error"` // ‖W-Ŵ‖/‖W‖
	// OutputError is that of what the layer puts out on the text that it was fitted to.
	OutputError float64 `json:"output_error,omitempty"`
	// Loss is what a fitted layer loses there, and NearestLoss what it would lose with weights rounded to nearest.
	Loss        float64 `json:"loss,omitempty"`
	NearestLoss float64 `json:"nearest_loss,omitempty"`
	// Outlier is the largest mean square of a column of the original, in medians of those of all columns, and Column which it is.
	Outlier float64 `json:"outlier,omitempty"`
	Column  int     `json:"column,omitempty"`
}

// Text is one that all models of a report were evaluated on.
type Text struct {
	Name    string        `json:"name"`
	Results []eval.Result `json:"results"` // by model
	Pairs   []Pair        `json:"pairs,omitempty"`
	Tokens  []*Tokens     `json:"tokens"` // by model
}

// Pair holds two models against each other.
type Pair struct {
	A string `json:"a"`
	B string `json:"b"`
	eval.Difference
}

var blockName = regexp.MustCompile(`\.(\d+)\.(.+)$`)

var expertName = regexp.MustCompile(`\bexperts\.\d+\.`)

// Place tells the block of a layer and which of its layers it is, the same for all experts; block is -1 for what
// lies in none.
func Place(layer string) (block int, kind string) {
	m := blockName.FindStringSubmatchIndex(layer)
	if m == nil {
		return -1, layer
	}
	block, err := strconv.Atoi(layer[m[2]:m[3]])
	if err != nil || block > maxBlocks {
		return -1, layer
	}
	return block, expertName.ReplaceAllString(layer[m[4]:m[5]], "experts.")
}

// maxBlocks bounds the numbers of blocks that names may tell: a picture has a column for each.
const maxBlocks = 2000

// AddPart adds a tensor, or a layer, to the parts of a model.
func (m *Model) AddPart(name, stored string, quantized bool, bytes, weights int64) {
	_, kind := Place(name)
	at := slices.IndexFunc(m.Parts, func(p Part) bool { return p.Name == kind && p.Quantized == quantized })
	if at < 0 {
		at = len(m.Parts)
		m.Parts = append(m.Parts, Part{Name: kind, Quantized: quantized})
	}
	p := &m.Parts[at]
	if !slices.Contains(p.Stored, stored) {
		p.Stored = append(p.Stored, stored)
	}
	p.Tensors, p.Bytes, p.Weights = p.Tensors+1, p.Bytes+bytes, p.Weights+weights
	m.Bytes, m.Parameters = m.Bytes+bytes, m.Parameters+weights
}

// Sum completes a model whose parts have been added.
func (m *Model) Sum() {
	slices.SortStableFunc(m.Parts, func(a, b Part) int { return cmp.Compare(b.Bytes, a.Bytes) })
	m.BitsPerWeight = 8 * float64(m.Bytes) / float64(max(m.Parameters, 1))
}
