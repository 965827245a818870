package gptq

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/lutq/lutq/formats/foreign"
	"github.com/lutq/lutq/formats/hf"
	"github.com/lutq/lutq/formats/num"
	"github.com/lutq/lutq/formats/weight"
	"github.com/lutq/lutq/formats/weight/lut"
)

// Target is the format of AutoGPTQ and GPTQModel, version 1, with symmetric integers: zero points of 2^(b-1). It implements
// [foreign.Target].
type Target struct{}

// Name implements [foreign.Target].
func (Target) Name() string { return "gptq" }

// Format implements [foreign.Target].
func (Target) Format(m *foreign.Model) (foreign.Format, error) { return &output{m}, nil }

type output struct{ model *foreign.Model }

// widths are those of the integers that there are, in bits.
func widths() []int { return []int{2, 3, 4, 8} }

// groups lists the numbers of columns that may share a scale, besides all of a row.
func groups() []int { return []int{16, 32, 64, 128, 256, 512, 1024} }

// words is what rows and columns are multiples of, since a stream fills words of so many bits.
const words = 32

// columns returns the columns that share a scale, or 0 where there is no way.
func columns(group, k int) int {
	if group >= k {
		return k
	}
	return foreign.FitGroup(group, k, groups()...)
}

// Fit implements [foreign.Format].
func (f *output) Fit(l *foreign.Layer, w *lut.Matrix) foreign.Fit {
	if why := unfit(l); why != "" || w == nil {
		return foreign.Fit{Why: why}
	}
	if columns(w.Group, w.K) == 0 {
		return foreign.Fit{Why: fmt.Sprintf("its groups of %d in %d columns are not of 16, 32 and so on to 1024", w.Group, w.K)}
	}
	return foreign.FitIntegers(w, weight.F16, widths()...)
}

// unfit says why there is no form for a layer, or "".
func unfit(l *foreign.Layer) string {
	if why := foreign.Linear(l); why != "" {
		return why
	}
	if l.N%words != 0 || l.K%words != 0 {
		return fmt.Sprintf("its %d rows and %d columns are not both multiples of %d", l.N, l.K, words)
	}
	return ""
}

// Anew implements [foreign.Format].
func (f *output) Anew(l *foreign.Layer) (lut.Format, error) {
	if why := unfit(l); why != "" {
		return lut.Format{}, errors.New(why)
	}
	return foreign.NewIntegers(l, cmp.Or(columns(l.Group, l.K), foreign.FitGroup(l.K, l.K, 32, 64, 128)), weight.F16, widths()...), nil
}

// form returns the bits and the columns to a scale that a layer is written with.
func form(l *foreign.Layer) (bits, group int) {
	_, bits, _ = foreign.MatchIntegers(l.Table, widths()...)
	return bits, columns(l.Group, l.K)
}

// Entries implements [foreign.Packer].
func (f *output) Entries(l *foreign.Layer) ([]hf.Entry, error) {
	bits, group := form(l)
	return []hf.Entry{
		{Name: l.Name + ".qweight", DType: "I32", Shape: []int{foreign.Words(l.K, bits), l.N}},
		{Name: l.Name + ".qzeros", DType: "I32", Shape: []int{l.K / group, foreign.Words(l.N, bits)}},
		{Name: l.Name + ".scales", DType: hf.F16, Shape: []int{l.K / group, l.N}},
		{Name: l.Name + ".g_idx", DType: "I32", Shape: []int{l.K}},
	}, nil
}

// Pack implements [foreign.Packer].
func (f *output) Pack(l *foreign.Layer, s foreign.Source) ([][]byte, error) {
	w, err := s.Matrix(l)
	if err != nil {
		return nil, err
	}
	m, bits, _ := foreign.MatchIntegers(w.Codebook, widths()...)
	_, group := form(l)
	return [][]byte{
		foreign.Transpose(m.Rows(w, bits), w.N, foreign.Words(w.K, bits), 4),
		zeros(w.N, w.K/group, bits),
		foreign.Transpose(m.Scales(w, weight.F16, group), w.N, w.K/group, 2),
		index(w.K, group),
	}, nil
}

// zeros returns the zero points of n columns and some groups.
func zeros(n, groups, bits int) []byte {
	codes := make([]uint8, n)
	for i := range codes {
		codes[i] = 1<<(bits-1) - 1
	}
	row := make([]byte, num.BitsBytes(n, bits))
	num.PackBits(row, codes, bits)
	var all []byte
	for range groups {
		all = append(all, row...)
	}
	return all
}

// index returns the group of each of k columns.
func index(k, group int) []byte {
	var all []byte
	for i := range k {
		all = binary.LittleEndian.AppendUint32(all, uint32(i/group))
	}
	return all
}

// Warnings implements [foreign.Warner].
func (f *output) Warnings() []string {
	narrow := 0
	for _, l := range f.model.Layers {
		if l.As == foreign.Dense {
			continue
		}
		if bits, _ := form(l); bits != 4 && bits != 8 {
			narrow++
		}
	}
	var all []string
	if narrow > 0 {
		all = append(all, fmt.Sprintf("%d layers of 2 or 3 bits: vLLM takes GPTQ of 4 and 8 bits only", narrow))
	}
	other := 0
	for name := range f.config().Dynamic {
		if strings.HasPrefix(name, "+:") {
			other++
		}
	}
	if other > 0 {
		all = append(all, fmt.Sprintf("%d layers have other bits or groups than most: transformers takes one form for all, gptqmodel and vLLM each layer's", other))
	}
	if n := f.model.Experts(); n > 0 {
		all = append(all, fmt.Sprintf("%d layers are of experts: transformers 5 has these as stacks, and opens GPTQ with random ones; gptqmodel opens them", n))
	}
	return all
}

// Write implements [foreign.Format].
func (f *output) Write(ctx context.Context, dir string, s foreign.Source) error {
	c := f.config()
	q, err := foreign.Indented(c)
	if err != nil {
		return err
	}
	file, err := foreign.JSON(c)
	if err != nil {
		return err
	}
	return foreign.WriteFolder(ctx, dir, s, f, foreign.Folder{
		Edits: []foreign.Member{{Key: "quantization_config", Value: q}},
		Files: map[string][]byte{"quantize_config.json": file},
	})
}

// written is the quantization_config, and all of quantize_config.json.
type written struct {
	Method   string              `json:"quant_method"`
	Bits     int                 `json:"bits"`
	Group    int                 `json:"group_size"` // -1 is a row
	DescAct  bool                `json:"desc_act"`
	Sym      bool                `json:"sym"`
	Head     bool                `json:"lm_head"`
	Format   string              `json:"checkpoint_format"`
	PackType string              `json:"pack_dtype"`
	Dynamic  map[string]override `json:"dynamic,omitempty"`                      // by "+:" or "-:" and a regular expression of names
	Modules  [][]string          `json:"modules_in_block_to_quantize,omitempty"` // names, or ends of names, of the layers that are packed; nothing for all
	Meta     meta                `json:"meta"`
}

// override is what a layer has that others have not; nothing for one that is not quantized.
type override struct {
	Bits  int `json:"bits,omitempty"`
	Group int `json:"group_size,omitempty"`
}

type meta struct {
	Quantizer []string `json:"quantizer"`
}

// config returns the form of most layers, and by name that of the others.
func (f *output) config() written {
	counts := make(map[override]int)
	var most override
	each := func(use func(l *foreign.Layer, is override)) {
		for _, l := range f.model.Layers {
			if l.As == foreign.Dense {
				continue
			}
			bits, group := form(l)
			if foreign.Rowwise(l, groups()...) {
				group = weight.RowGroup
			}
			use(l, override{bits, group})
		}
	}
	each(func(l *foreign.Layer, is override) {
		if counts[is]++; counts[is] > counts[most] {
			most = is
		}
	})
	c := written{
		Method: "gptq", Bits: most.Bits, Group: most.Group, Sym: true, Format: "gptq", PackType: "int32",
		Dynamic: make(map[string]override), Meta: meta{[]string{"lutq:1"}},
	}
	each(func(l *foreign.Layer, is override) {
		if is != most {
			c.Dynamic[`+:^`+regexp.QuoteMeta(l.Name)+`$`] = is
		}
	})
	// The head is quantized on demand only.
	kept := slices.DeleteFunc(f.model.Unquantized(), func(name string) bool { return name == f.model.Head() })
	if len(kept) == 0 {
		return c
	}
	for _, name := range kept {
		c.Dynamic[`-:^`+regexp.QuoteMeta(name)+`$`] = override{}
	}
	// Transformers does not read dynamic.
	c.Modules = [][]string{f.packed(kept)}
	return c
}

// packed names the layers that are not kept: by their place in a block where no block keeps that one, else whole.
func (f *output) packed(kept []string) []string {
	block := regexp.MustCompile(`^.*?\.\d+\.`)
	has := make(map[string]bool)
	var names []string
	for _, l := range f.model.Layers {
		if l.As == foreign.Dense {
			continue
		}
		name := l.Name
		place := name[len(block.FindString(name)):]
		if !slices.ContainsFunc(kept, func(k string) bool { return strings.Contains(k, place) }) {
			name = place
		}
		if !has[name] {
			has[name] = true
			names = append(names, name)
		}
	}
	return names
}
