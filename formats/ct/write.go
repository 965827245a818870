package ct

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/lutq/lutq/formats/arch"
	"github.com/lutq/lutq/formats/foreign"
	"github.com/lutq/lutq/formats/hf"
	"github.com/lutq/lutq/formats/weight/lut"
)

// The suffixes of the tensors of a layer.
const (
	packedSuffix = ".weight_packed"
	scaleSuffix  = ".weight_scale"
	shapeSuffix  = ".weight_shape"
)

// Target is the format pack-quantized with symmetric integers. It implements [foreign.Target].
type Target struct{}

// Name implements [foreign.Target].
func (Target) Name() string { return "ct" }

// Format implements [foreign.Target].
func (Target) Format(m *foreign.Model) (foreign.Format, error) { return &output{m}, nil }

type output struct{ model *foreign.Model }

// integers finds the narrowest integers that a table is a multiple of.
func integers(table []float32) (m foreign.Match, bits int, ok bool) {
	return foreign.MatchIntegers(table, widths()...)
}

// widths are those of the integers that there are.
func widths() []int { return []int{2, 3, 4, 5, 6, 7, 8} }

// groups lists the numbers of columns that may share a scale in kernels. What else divides K is at least
// opened.
func groups() []int { return []int{32, 64, 128} }

// columns returns the columns that share a scale, K for a row, or 0 where there is no way.
func columns(group, k int) int {
	if group >= k {
		return k
	}
	if g := foreign.FitGroup(group, k, groups()...); g > 0 {
		return g
	}
	if k%group == 0 {
		return group
	}
	return 0
}

// Fit implements [foreign.Format].
func (f *output) Fit(l *foreign.Layer, w *lut.Matrix) foreign.Fit {
	if why := unfit(l); why != "" || w == nil {
		return foreign.Fit{Why: why}
	}
	if columns(w.Group, w.K) == 0 {
		return foreign.Fit{Why: fmt.Sprintf("its %d columns are no multiple of its groups of %d", w.K, w.Group)}
	}
	return foreign.FitIntegers(w, f.model.DType, widths()...)
}

// unfit says why there is no form for a layer, or "".
func unfit(l *foreign.Layer) string {
	if l.Role == arch.HeadWeight {
		return "" // as any other linear layer
	}
	return foreign.Linear(l)
}

// Anew implements [foreign.Format].
func (f *output) Anew(l *foreign.Layer) (lut.Format, error) {
	if why := unfit(l); why != "" {
		return lut.Format{}, errors.New(why)
	}
	return foreign.NewIntegers(l, cmp.Or(columns(l.Group, l.K), columns(l.K, l.K)), f.model.DType, widths()...), nil
}

// Entries implements [foreign.Packer].
func (f *output) Entries(l *foreign.Layer) ([]hf.Entry, error) {
	_, bits, _ := integers(l.Table)
	return []hf.Entry{
		{Name: l.Name + packedSuffix, DType: "I32", Shape: []int{l.N, foreign.Words(l.K, bits)}},
		{Name: l.Name + scaleSuffix, DType: hf.DType(f.model.DType.DType()), Shape: []int{l.N, l.K / columns(l.Group, l.K)}},
		{Name: l.Name + shapeSuffix, DType: "I64", Shape: []int{2}},
	}, nil
}

// Pack implements [foreign.Packer].
func (f *output) Pack(l *foreign.Layer, s foreign.Source) ([][]byte, error) {
	w, err := s.Matrix(l)
	if err != nil {
		return nil, err
	}
	m, bits, _ := integers(w.Codebook)
	shape := binary.LittleEndian.AppendUint64(nil, uint64(w.N))
	shape = binary.LittleEndian.AppendUint64(shape, uint64(w.K))
	return [][]byte{
		m.Rows(w, bits),
		m.Scales(w, f.model.DType, columns(w.Group, w.K)),
		shape,
	}, nil
}

// Warnings implements [foreign.Warner].
func (f *output) Warnings() []string {
	var all []string
	odd, other, sets := 0, 0, make(map[string][2]int)
	for _, l := range f.model.Layers {
		if l.As == foreign.Dense {
			continue
		}
		_, bits, _ := integers(l.Table)
		if 32%bits != 0 {
			odd++
		}
		if bits != 4 && bits != 8 {
			other++
		}
		if form, ok := sets[l.Fuse]; l.Fuse != "" && ok && form != [2]int{bits, l.Group} && len(all) == 0 {
			all = append(all, fmt.Sprintf("%s and what it is fused with differ in bits or group: transformers opens them, vLLM does not", l.Name))
		}
		sets[l.Fuse] = [2]int{bits, l.Group}
	}
	if other > 0 {
		all = append(all, fmt.Sprintf("%d layers of 2, 3, 5, 6 or 7 bits: transformers opens them, vLLM takes compressed-tensors of 4 and 8 bits only", other))
	}
	if odd > 0 {
		all = append(all, fmt.Sprintf("%d layers of 3, 5, 6 or 7 bits: compressed-tensors opens them from 0.18 on", odd))
	}
	return all
}

// Write implements [foreign.Format].
func (f *output) Write(ctx context.Context, dir string, s foreign.Source) error {
	q, err := foreign.Indented(f.config())
	if err != nil {
		return err
	}
	return foreign.WriteFolder(ctx, dir, s, f, foreign.Folder{Edits: []foreign.Member{{Key: "quantization_config", Value: q}}})
}

// quantization is the quantization_config.
type quantization struct {
	Method  string            `json:"quant_method"`
	Format  string            `json:"format"`
	Status  string            `json:"quantization_status"`
	Ratio   *float64          `json:"global_compression_ratio"`
	KVCache *struct{}         `json:"kv_cache_scheme"`
	Ignore  []string          `json:"ignore"`
	Groups  map[string]scheme `json:"config_groups"`
}

// scheme is one of the config's groups: layers that are stored alike.
type scheme struct {
	Targets []string  `json:"targets"`
	Input   *struct{} `json:"input_activations"`
	Output  *struct{} `json:"output_activations"`
	Weights args      `json:"weights"`
}

// args says how they are stored.
type args struct {
	Bits           int       `json:"num_bits"`
	Type           string    `json:"type"`
	Symmetric      bool      `json:"symmetric"`
	Strategy       string    `json:"strategy"`
	Group          *int      `json:"group_size"`
	Dynamic        bool      `json:"dynamic"`
	ActOrder       *struct{} `json:"actorder"`
	BlockStructure *struct{} `json:"block_structure"`
	Observer       string    `json:"observer"`
	ObserverKwargs struct{}  `json:"observer_kwargs"`
	ScaleType      *string   `json:"scale_dtype,omitempty"`
	ZeroType       *string   `json:"zp_dtype,omitempty"`
}

// target is what a group says of a layer: its name, or of Nemotron-H, whose modules transformers and NVIDIA's code call otherwise, a pattern.
func target(layer string) string {
	if rest, ok := strings.CutPrefix(layer, "backbone."); ok {
		return "re:(backbone|model)[.]" + regexp.QuoteMeta(rest) + "$"
	}
	return layer
}

// config returns the quantization_config. One that names the class of layers is for all but those
// that it ignores; where layers differ each is named.
func (f *output) config() quantization {
	type key struct{ bits, group int } // group 0: a row
	byKey, head := make(map[key][]string), false
	var order []key
	for _, l := range f.model.Layers {
		if l.As == foreign.Dense {
			continue
		}
		_, bits, _ := integers(l.Table)
		k := key{bits, columns(l.Group, l.K)}
		if foreign.Rowwise(l, groups()...) {
			k.group = 0
		}
		if byKey[k] == nil {
			order = append(order, k)
		}
		byKey[k] = append(byKey[k], target(l.Name))
		head = head || l.Role == arch.HeadWeight
	}
	c := quantization{Method: "compressed-tensors", Format: packed, Status: "compressed", Ignore: f.model.Unquantized(), Groups: make(map[string]scheme)}
	for i, k := range order {
		w := args{Bits: k.bits, Type: "int", Symmetric: true, Strategy: "channel", Observer: "minmax"}
		if k.group > 0 {
			w.Strategy, w.Group = "group", &k.group
		}
		e := scheme{Targets: slices.Sorted(slices.Values(byKey[k])), Weights: w}
		// vLLM's output head is of another class.
		if len(order) == 1 && !head {
			e.Targets = []string{"Linear"}
		}
		c.Groups[fmt.Sprintf("group_%d", i)] = e
	}
	return c
}
