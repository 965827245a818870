package ct

import (
	"context"
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/lutq/lutq/formats/arch"
	"github.com/lutq/lutq/formats/hf"
	"github.com/lutq/lutq/formats/num"
	"github.com/lutq/lutq/formats/target"
	"github.com/lutq/lutq/quantize/lut"
	"github.com/lutq/lutq/quantize/weight"
)

// The suffixes of the tensors of a layer.
const (
	packedSuffix = ".weight_packed"
	scaleSuffix  = ".weight_scale"
	shapeSuffix  = ".weight_shape"
)

// maxBits is the width of the widest integers.
const maxBits = 8

// Target is the format pack-quantized with symmetric integers. It implements [target.Target].
type Target struct{}

// Name implements [target.Target].
func (Target) Name() string { return "ct" }

// Format implements [target.Target].
func (Target) Format(m *target.Model) (target.Format, error) { return &format{m}, nil }

type format struct{ model *target.Model }

// integers finds the narrowest integers that a table is a multiple of.
func integers(table []float32) (m target.Match, bits int, ok bool) {
	for bits = bitsOf(table); bits <= maxBits; bits++ {
		if m, ok = target.MatchTable(table, target.Integers(bits), true); ok {
			return m, bits, true
		}
	}
	return m, 0, false
}

// bitsOf returns the width of a table's codes.
func bitsOf(table []float32) int { return lut.Codebook{Values: table}.Bits() }

// columns returns the columns that share a scale, K for a row, or 0 where there is no way. Kernels
// have 32, 64 and 128; what else divides K is at least opened.
func columns(group, k int) int {
	if group >= k {
		return k
	}
	if g := target.FitGroup(group, k, 32, 64, 128); g > 0 {
		return g
	}
	if k%group == 0 {
		return group
	}
	return 0
}

// Fit implements [target.Format].
func (f *format) Fit(l *target.Layer, w *lut.Matrix) target.Fit {
	if why := unfit(l); why != "" {
		return target.Fit{Why: why}
	}
	if columns(w.Group, w.K) == 0 {
		return target.Fit{Why: fmt.Sprintf("its %d columns are no multiple of its groups of %d", w.K, w.Group)}
	}
	m, _, ok := integers(w.Codebook)
	if !ok {
		return target.Fit{Why: "its table has no equal steps from a zero"}
	}
	return target.FitScales(m, w, f.model.DType)
}

// unfit says why there is no form for a layer, or "".
func unfit(l *target.Layer) string {
	if l.Role == arch.HeadWeight {
		return "" // as any other linear layer
	}
	return target.Linear(l)
}

// Anew implements [target.Format].
func (f *format) Anew(l *target.Layer) (lut.Options, error) {
	if why := unfit(l); why != "" {
		return lut.Options{}, fmt.Errorf("%s", why)
	}
	g := columns(l.Group, l.K)
	if g == 0 {
		g = target.FitGroup(l.K, l.K, 32, 64, 128)
	}
	if g == 0 {
		g = l.K
	}
	return lut.Options{
		Codebook: lut.Codebook{Name: "q", Values: target.Integers(min(l.Bits, lut.MaxBits))},
		Group:    g, Scale: weight.MSE, ScaleType: f.model.DType,
	}, nil
}

// Entries implements [target.Packer].
func (f *format) Entries(l *target.Layer) ([]hf.Entry, error) {
	_, bits, _ := integers(l.Table)
	return []hf.Entry{
		{Name: l.Name + packedSuffix, DType: "I32", Shape: []int{l.N, words(l.K, bits)}},
		{Name: l.Name + scaleSuffix, DType: hf.DType(f.model.DType.DType()), Shape: []int{l.N, l.K / columns(l.Group, l.K)}},
		{Name: l.Name + shapeSuffix, DType: "I64", Shape: []int{2}},
	}, nil
}

// words returns the 32-bit words that a row of codes takes.
func words(k, bits int) int { return (k*bits + 31) / 32 }

// Pack implements [target.Packer].
func (f *format) Pack(l *target.Layer, s target.Source) ([][]byte, error) {
	w, err := s.Matrix(l)
	if err != nil {
		return nil, err
	}
	m, bits, _ := integers(w.Codebook)
	shape := binary.LittleEndian.AppendUint64(nil, uint64(w.N))
	shape = binary.LittleEndian.AppendUint64(shape, uint64(w.K))
	return [][]byte{
		packRows(w, m, bits),
		m.Scales(w, f.model.DType, columns(w.Group, w.K)),
		shape,
	}, nil
}

// packRows returns the codes of a matrix, each row filled up to whole words. These are those that the
// container has, where codes and words are the same.
func packRows(w *lut.Matrix, m target.Match, bits int) []byte {
	rowBytes := 4 * words(w.K, bits)
	if m.Straight() && bits == w.Bits && rowBytes == w.RowBytes() {
		return w.Codes
	}
	dst, codes := make([]byte, w.N*rowBytes), make([]uint8, w.K)
	for n := range w.N {
		m.RowCodes(codes, w, n)
		num.PackBits(dst[n*rowBytes:(n+1)*rowBytes], codes, bits)
	}
	return dst
}

// Warnings implements [target.Warner].
func (f *format) Warnings() []string {
	var all []string
	odd, sets := 0, make(map[string][2]int)
	for _, l := range f.model.Layers {
		if l.As == target.Dense {
			continue
		}
		_, bits, _ := integers(l.Table)
		if 32%bits != 0 {
			odd++
		}
		if form, ok := sets[l.Fuse]; l.Fuse != "" && ok && form != [2]int{bits, l.Group} && len(all) == 0 {
			all = append(all, fmt.Sprintf("%s and what it is fused with differ in bits or group: transformers opens them, vLLM does not", l.Name))
		}
		sets[l.Fuse] = [2]int{bits, l.Group}
	}
	if odd > 0 {
		all = append(all, fmt.Sprintf("%d layers of 3, 5, 6 or 7 bits: compressed-tensors opens them from 0.18 on", odd))
	}
	return all
}

// Write implements [target.Format].
func (f *format) Write(ctx context.Context, dir string, s target.Source) error {
	q, err := target.Indented(f.config())
	if err != nil {
		return err
	}
	return target.WriteFolder(ctx, dir, s, f, target.Folder{Edits: []target.Member{{Key: "quantization_config", Value: q}}})
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

// config returns the quantization_config. One that names the class of layers is for all but those
// that it ignores; where layers differ each is named.
func (f *format) config() quantization {
	type key struct{ bits, group int } // group 0: a row
	byKey, head := make(map[key][]string), false
	var order []key
	for _, l := range f.model.Layers {
		if l.As == target.Dense {
			continue
		}
		_, bits, _ := integers(l.Table)
		k := key{bits, columns(l.Group, l.K)}
		if k.group == l.K {
			k.group = 0
		}
		if byKey[k] == nil {
			order = append(order, k)
		}
		byKey[k] = append(byKey[k], l.Name)
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
