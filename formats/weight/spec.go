package weight

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Spec is how a layer is stored and how that was found. Where defaults stand
// behind it, a zero field means the default.
type Spec struct {
	Kind      string      `json:"kind,omitempty"` // [Kind.Name]
	Bits      int         `json:"bits,omitempty"`
	Half      bool        `json:"half,omitempty"`  // half a bit more, of kinds that have it
	Group     int         `json:"group,omitempty"` // columns that share a scale, or RowGroup
	Codebook  string      `json:"codebook,omitempty"`
	Method    string      `json:"method,omitempty"`
	Scale     ScaleMethod `json:"scale,omitempty"`
	ScaleType ScaleType   `json:"scale_type,omitempty"`
}

// RowGroup is the value of Spec.Group for one scale a row.
const RowGroup = -1

// Groups lists the numbers of columns that lutq lets share a scale, besides all
// of a row. What another program wrote may have others.
func Groups() []int { return []int{32, 64, 128, 256} }

// GroupNames lists what [ParseGroup] reads.
func GroupNames() []string {
	var names []string
	for _, g := range Groups() {
		names = append(names, strconv.Itoa(g))
	}
	return append(names, GroupName(RowGroup))
}

// ParseGroup reads a group size: one of [Groups] or "row".
func ParseGroup(s string) (int, error) {
	if s == GroupName(RowGroup) {
		return RowGroup, nil
	}
	g, err := strconv.Atoi(s)
	if err != nil || !slices.Contains(Groups(), g) {
		names := GroupNames()
		last := len(names) - 1
		return 0, fmt.Errorf("group %q: want %s or %s", s, strings.Join(names[:last], ", "), names[last])
	}
	return g, nil
}

// GroupName is the inverse of [ParseGroup].
func GroupName(g int) string {
	if g == RowGroup {
		return "row"
	}
	return strconv.Itoa(g)
}

// Rate returns the bits of two weights' codes.
func (s Spec) Rate() int {
	if s.Half {
		return 2*s.Bits + 1
	}
	return 2 * s.Bits
}

// Width returns the bits of a weight's code, in words.
func (s Spec) Width() string { return strconv.FormatFloat(float64(s.Rate())/2, 'g', -1, 64) }

// ParseWidth is the inverse of [Spec.Width].
func ParseWidth(s string) (bits int, half bool, err error) {
	whole, half := strings.CutSuffix(s, ".5")
	if bits, err = strconv.Atoi(whole); err != nil || bits < 1 {
		return 0, false, fmt.Errorf("bits %q: want a number", s)
	}
	return bits, half, nil
}

// Columns returns the number of columns that share a scale in rows of k.
func (s Spec) Columns(k int) int {
	if s.Group == RowGroup {
		return k
	}
	return min(s.Group, k)
}

// GroupsIn returns the number of groups of size group in k columns.
func GroupsIn(k, group int) int { return (k + group - 1) / group }

// Or returns s with its zero fields taken from defaults.
func (s Spec) Or(defaults Spec) Spec {
	or(&s.Kind, defaults.Kind)
	if s.Bits == 0 { // a width is a field of two
		s.Bits, s.Half = defaults.Bits, defaults.Half
	}
	or(&s.Group, defaults.Group)
	or(&s.Codebook, defaults.Codebook)
	or(&s.Method, defaults.Method)
	or(&s.Scale, defaults.Scale)
	or(&s.ScaleType, defaults.ScaleType)
	return s
}

func or[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

// Without returns s with the fields that equal those of defaults zeroed: the
// inverse of [Spec.Or].
func (s Spec) Without(defaults Spec) Spec {
	without(&s.Kind, defaults.Kind)
	if s.Rate() == defaults.Rate() {
		s.Bits, s.Half = 0, false
	}
	without(&s.Group, defaults.Group)
	without(&s.Codebook, defaults.Codebook)
	without(&s.Method, defaults.Method)
	without(&s.Scale, defaults.Scale)
	without(&s.ScaleType, defaults.ScaleType)
	return s
}

func without[T comparable](field *T, value T) {
	var zero T
	if *field == value {
		*field = zero
	}
}

// Fields returns the spec as rules spell it: bits, group, codebook, scale method, scale type,
// kind and method in this order, separated by colons.
func (s Spec) Fields() string {
	var f [7]string
	if s.Bits != 0 {
		f[0] = s.Width()
	}
	if s.Group != 0 {
		f[1] = GroupName(s.Group)
	}
	f[2] = s.Codebook
	if s.Scale != 0 {
		f[3] = s.Scale.String()
	}
	if s.ScaleType != 0 {
		f[4] = s.ScaleType.String()
	}
	f[5], f[6] = s.Kind, s.Method
	return strings.TrimRight(strings.Join(f[:], ":"), ":")
}

// Check reports the first field of a complete spec that no layer of a kind has.
func (s Spec) Check(of Kind) error {
	if least, most := of.Widths(); s.Bits < least || s.Bits > most {
		return fmt.Errorf("bits is %d: want %d to %d", s.Bits, least, most)
	}
	if s.Group != RowGroup && s.Group < 1 {
		return fmt.Errorf("group is %d: want a number of columns, or %d for one scale a row", s.Group, RowGroup)
	}
	if types := of.ScaleTypes(); !slices.Contains(types, s.ScaleType) {
		names := make([]string, len(types))
		for i, t := range types {
			names[i] = t.String()
		}
		what := "unknown scale type"
		if s.ScaleType.Size() > 0 {
			what = fmt.Sprintf("scale type is %v", s.ScaleType)
		}
		return fmt.Errorf("%s: want %s", what, strings.Join(names, ", "))
	}
	return nil
}
