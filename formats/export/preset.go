package export

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/lutq/lutq/formats/weight"
	"github.com/lutq/lutq/formats/weight/lut"
	"github.com/lutq/lutq/formats/weight/trellis"
)

// Preset is what layers are quantized with so that a target holds them as they are.
type Preset struct {
	Target string
	Tables map[int]string     // codebooks, by their bits
	Groups []int              // the first is the one that is meant where none is named
	Scales []weight.ScaleType // likewise; none is the type that the model computes with
	Rings  []string           // in the place of tables, codebooks of rings, likewise
}

// Presets lists those that there are.
func Presets() []Preset {
	integers := func(most int) map[int]string {
		t := make(map[int]string)
		for bits := 2; bits <= most; bits++ {
			t[bits] = "q" + strconv.Itoa(bits)
		}
		return t
	}
	four := func(name string) map[int]string { return map[int]string{4: name} }
	return []Preset{
		{"gguf", map[int]string{4: "iq4nl", 5: "q5"}, []int{32}, []weight.ScaleType{weight.F16}, nil},
		{"ct", integers(5), []int{128, 64, 32, weight.RowGroup}, nil, nil},
		{"bnb", four("nf"), []int{64, 32, 128, 256}, []weight.ScaleType{weight.F32, weight.F16, weight.BF16}, nil},
		{"gptq", integers(4), []int{128, 64, 32, 256, weight.RowGroup}, []weight.ScaleType{weight.F16}, nil},
		{"awq", four("q4"), []int{128, 64, 32}, []weight.ScaleType{weight.F16}, nil},
		{"mlx", integers(5), []int{64, 32, 128}, nil, nil},
		{"nvfp4", four("e2m1"), []int{32}, []weight.ScaleType{weight.S1E4M3}, nil},
		{"mxfp4", four("e2m1"), []int{32}, []weight.ScaleType{weight.E8M0}, nil},
		{"exl3", nil, []int{weight.RowGroup}, []weight.ScaleType{weight.F16}, []string{trellis.Mul1, trellis.MCG, trellis.Inst3}},
	}
}

// PresetNames lists the targets of the presets.
func PresetNames() []string {
	var names []string
	for _, p := range Presets() {
		names = append(names, p.Target)
	}
	return names
}

// PresetFor returns the preset for a target, of a name in [PresetNames].
func PresetFor(name string) Preset {
	presets := Presets()
	return presets[slices.IndexFunc(presets, func(p Preset) bool { return p.Target == name })]
}

// Fill sets the empty fields of a spec, which is to become complete: scales, where the preset names no
// type, to that of the model. It fails where another field is one that the target does not hold.
func (p Preset) Fill(s *weight.Spec, model weight.ScaleType) error {
	s.Bits = cmp.Or(s.Bits, lut.OnlyBits(s.Codebook), 4)
	s.Group = cmp.Or(s.Group, p.Groups[0])
	if p.Rings != nil {
		s.Kind, s.Codebook, s.ScaleType = trellis.Name, cmp.Or(s.Codebook, p.Rings[0]), cmp.Or(s.ScaleType, p.Scales[0])
		return p.Check(*s, model)
	}
	s.Codebook = cmp.Or(s.Codebook, p.Tables[s.Bits])
	s.ScaleType = cmp.Or(s.ScaleType, p.scales(model)[0])
	s.Scale = cmp.Or(s.Scale, weight.MSE)
	return p.Check(*s, model)
}

// FillRule sets the codebook of an exception, where it has other bits than the rest.
func (p Preset) FillRule(s *weight.Spec, model weight.ScaleType) error {
	if s.Bits != 0 && p.Rings == nil {
		s.Codebook = cmp.Or(s.Codebook, p.Tables[s.Bits])
	}
	return p.Check(*s, model)
}

// Check refuses a spec with a field, of those that are set, that the target does not hold.
func (p Preset) Check(s weight.Spec, model weight.ScaleType) error {
	widths := slices.Sorted(maps.Keys(p.Tables))
	switch rings := p.Rings != nil; {
	case rings && s.Kind != "" && s.Kind != trellis.Name:
		return p.refuse("kind", s.Kind, []string{trellis.Name})
	case rings && s.Codebook != "" && !slices.Contains(p.Rings, s.Codebook):
		return p.refuse("codebook", s.Codebook, p.Rings)
	case rings: // of any width
	case s.Kind != "" && s.Kind != lut.Name:
		return p.refuse("kind", s.Kind, []string{lut.Name})
	case s.Bits != 0 && p.Tables[s.Bits] == "":
		return p.refuse("bits", strconv.Itoa(s.Bits), texts(widths, strconv.Itoa))
	case s.Codebook != "" && s.Bits != 0 && s.Codebook != p.Tables[s.Bits]:
		return p.refuse("codebook", s.Codebook, []string{p.Tables[s.Bits]})
	case s.Codebook != "" && !slices.Contains(slices.Collect(maps.Values(p.Tables)), s.Codebook):
		return p.refuse("codebook", s.Codebook, texts(widths, func(bits int) string { return p.Tables[bits] }))
	}
	switch {
	case s.Group != 0 && !slices.Contains(p.Groups, s.Group):
		return p.refuse("group", weight.GroupName(s.Group), texts(p.Groups, weight.GroupName))
	case s.ScaleType != 0 && !slices.Contains(p.scales(model), s.ScaleType):
		return p.refuse("scale-type", s.ScaleType.String(), texts(p.scales(model), weight.ScaleType.String))
	}
	return nil
}

// scales returns the types that scales may have.
func (p Preset) scales(model weight.ScaleType) []weight.ScaleType {
	if p.Scales == nil {
		return []weight.ScaleType{model}
	}
	return p.Scales
}

func (Preset) refuse(field, value string, want []string) error {
	return fmt.Errorf("%s %s: want %s", field, value, strings.Join(want, ", "))
}

// texts spells values.
func texts[T any](values []T, spell func(T) string) []string {
	var all []string
	for _, v := range values {
		all = append(all, spell(v))
	}
	return all
}

// String says what the preset sets, for a help text.
func (p Preset) String() string {
	widths := slices.Sorted(maps.Keys(p.Tables))
	if p.Rings != nil {
		return fmt.Sprintf("rings of codebook %s, scales %s", p.Rings[0], p.Scales[0])
	}
	types := "the model's type"
	if p.Scales != nil {
		types = p.Scales[0].String()
	}
	return fmt.Sprintf("%s, groups of %s, scales %s", strings.Join(texts(widths, func(bits int) string { return p.Tables[bits] }), ", "),
		weight.GroupName(p.Groups[0]), types)
}
