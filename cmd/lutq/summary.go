package main

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/lutq/lutq/formats/input"
)

// kindJSON sums up the tensors of one kind: those whose names differ in numbers alone, as a projection of all blocks, or of all
// their experts.
type kindJSON struct {
	Kind          string   `json:"kind"`
	Tensors       int      `json:"tensors"`
	Parameters    int64    `json:"parameters"`
	Bytes         int64    `json:"bytes"`
	BitsPerWeight float64  `json:"bits_per_weight"`
	StoredAs      []string `json:"stored_as"`       // in how many ways, that of the most bytes first
	Error         float64  `json:"error,omitempty"` // mean of the quantized ones, each by its parameters

	quantized int64 // parameters
	ways      map[string]int64
}

// The kinds that hold no matrix, and those that are too many to be told apart.
const (
	vectorKind = "vectors"
	otherKind  = "others"
)

// mostKinds is how many lines a summary has at most, without that of the sum.
const mostKinds = 9

// tensorKind returns what kind of tensor a name is of: its block and expert are left out. Tensors of one dimension, norms and
// biases, which weigh next to nothing, are one kind.
func tensorKind(name string, shape []int) string {
	if len(shape) < 2 {
		return vectorKind
	}
	parts := strings.Split(strings.TrimSuffix(name, ".weight"), ".")
	for i, p := range parts {
		if _, err := strconv.Atoi(p); err == nil {
			parts[i] = "*"
		}
	}
	return strings.Join(parts, ".")
}

// kinds sums up an inspection by kinds, the one of the most bytes first, and in the end what they sum to. Beyond so many kinds
// the smallest are summed up as others; most of 0 sums up none.
func (in *inspection) kinds(most int) (all []*kindJSON, sum *kindJSON) {
	byName := make(map[string]*kindJSON)
	sum = &kindJSON{Kind: "all", ways: make(map[string]int64)}
	for _, l := range in.Layers {
		name := tensorKind(l.Name, l.Shape)
		k := byName[name]
		if k == nil {
			k = &kindJSON{Kind: name, ways: make(map[string]int64)}
			byName[name] = k
			all = append(all, k)
		}
		one := &kindJSON{Tensors: 1, Parameters: 1, Bytes: l.BytesOut, ways: map[string]int64{l.storedAs(): l.BytesOut}}
		for _, n := range l.Shape {
			one.Parameters *= int64(n)
		}
		if l.DType == "" {
			one.quantized, one.Error = one.Parameters, l.Error
		}
		k.add(one)
		sum.add(one)
	}
	slices.SortStableFunc(all, func(a, b *kindJSON) int { return cmp.Compare(b.Bytes, a.Bytes) })
	if most > 0 && len(all) > most {
		others := &kindJSON{Kind: otherKind, ways: make(map[string]int64)}
		for _, k := range all[most-1:] {
			others.add(k)
		}
		all = append(all[:most-1], others)
	}
	for _, k := range append(slices.Clone(all), sum) {
		k.BitsPerWeight = 8 * float64(k.Bytes) / float64(max(k.Parameters, 1))
		for way := range k.ways {
			k.StoredAs = append(k.StoredAs, way)
		}
		slices.SortFunc(k.StoredAs, func(a, b string) int { return cmp.Or(cmp.Compare(k.ways[b], k.ways[a]), cmp.Compare(a, b)) })
	}
	return all, sum
}

// add adds what another sums up.
func (k *kindJSON) add(o *kindJSON) {
	if all := k.quantized + o.quantized; all > 0 {
		k.Error = (k.Error*float64(k.quantized) + o.Error*float64(o.quantized)) / float64(all)
		k.quantized = all
	}
	k.Tensors, k.Parameters, k.Bytes = k.Tensors+o.Tensors, k.Parameters+o.Parameters, k.Bytes+o.Bytes
	for way, n := range o.ways {
		k.ways[way] += n
	}
}

// storedAs says how a layer is stored: the type of one that is not quantized, with what it is read as, else its format.
func (l *layerJSON) storedAs() string {
	how := l.DType
	if e := l.encodingJSON; e != nil {
		if e.ScaleBlock[0] > 0 {
			how += ", a scale per " + shapeName(e.ScaleBlock[:])
		}
		how += ", read as " + string(e.ReadAs)
	}
	if how == "" {
		how = formatName(l.Spec)
	}
	return how
}

// summaryShape: what a kind takes matters more than of how many tensors and weights.
func summaryShape() tableShape {
	return tableShape{names: []string{"kind"}, drop: []string{"tensors", "weights", "error", "share"}}
}

// printSummary prints bytes and bits by kinds of tensors, in ten lines at most.
func (u *ui) printSummary(in *inspection) error {
	all, sum := in.kinds(mostKinds)
	prefix := blocksPrefix(all)
	var cells [][]string
	for _, k := range append(all, sum) {
		how, e := input.Name(k.StoredAs[0]), ""
		if more := len(k.StoredAs) - 1; more > 0 {
			how += fmt.Sprintf(" +%d", more)
		}
		if k.quantized > 0 {
			e = fmt.Sprintf("%.3f %%", 100*k.Error)
		}
		cells = append(cells, []string{
			input.Name(strings.TrimPrefix(k.Kind, prefix)), strconv.Itoa(k.Tensors), formatCount(k.Parameters), how, formatBytes(k.Bytes),
			fmt.Sprintf("%.1f %%", 100*float64(k.Bytes)/float64(max(sum.Bytes, 1))), fmt.Sprintf("%.3f", k.BitsPerWeight), e,
		})
	}
	return u.printCells("table", summaryShape(), []string{"kind", "tensors", "weights", "stored as", "bytes", "share", "bits", "error"}, cells)
}

// blocksPrefix returns what the names of the blocks begin with, as model.layers.*., which goes without saying: of several towers
// that of the largest kind.
func blocksPrefix(all []*kindJSON) string {
	for _, k := range all {
		if i := strings.Index(k.Kind, ".*."); i >= 0 {
			return k.Kind[:i+len(".*.")]
		}
	}
	return ""
}

// formatCount prints a number of weights with three digits, as 8.03 G.
func formatCount(n int64) string { return strings.TrimSuffix(formatBytes(n), "B") }
