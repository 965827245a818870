package tokenizer

import (
	"cmp"
	"slices"
	"sort"
	"strings"
	"unicode"
)

// A runeSet is a set of characters: ranges in order, with gaps between them.
type runeSet []runeRange

// runeRange is the characters from lo to hi, both included.
type runeRange struct{ lo, hi rune }

func (s runeSet) contains(r rune) bool {
	i := sort.Search(len(s), func(i int) bool { return s[i].hi >= r })
	return i < len(s) && s[i].lo <= r
}

// canonical returns the set of ranges that may come in any order and overlap. It may reuse s.
func (s runeSet) canonical() runeSet {
	slices.SortFunc(s, func(a, b runeRange) int { return cmp.Compare(a.lo, b.lo) })
	out := s[:0]
	for _, r := range s {
		if n := len(out); n > 0 && r.lo <= out[n-1].hi+1 {
			out[n-1].hi = max(out[n-1].hi, r.hi)
		} else {
			out = append(out, r)
		}
	}
	return out
}

func (s runeSet) union(t runeSet) runeSet { return slices.Concat(s, t).canonical() }

// complement returns all other characters. Surrogates are none.
func (s runeSet) complement() runeSet {
	const surrogateMin, surrogateMax = 0xd800, 0xdfff
	var out runeSet
	next := rune(0)
	for _, r := range s.union(runeSet{{surrogateMin, surrogateMax}}) {
		if next < r.lo {
			out = append(out, runeRange{next, r.lo - 1})
		}
		next = r.hi + 1
	}
	if next <= unicode.MaxRune {
		out = append(out, runeRange{next, unicode.MaxRune})
	}
	return out
}

func (s runeSet) intersection(t runeSet) runeSet {
	return s.complement().union(t.complement()).complement()
}

// tableSet is the set of a table of the standard library.
func tableSet(t *unicode.RangeTable) runeSet {
	var s runeSet
	add := func(lo, hi, stride rune) {
		if stride == 1 {
			s = append(s, runeRange{lo, hi})
			return
		}
		for r := lo; r <= hi; r += stride {
			s = append(s, runeRange{r, r})
		}
	}
	for _, r := range t.R16 {
		add(rune(r.Lo), rune(r.Hi), rune(r.Stride))
	}
	for _, r := range t.R32 {
		add(rune(r.Lo), rune(r.Hi), rune(r.Stride))
	}
	return s.canonical()
}

// propertySet returns the set of a category or a script as the reference's regular expressions know it, by its short or long
// name in any case, or false.
func propertySet(name string) (runeSet, bool) {
	plain := func(s string) string {
		return strings.ToLower(strings.NewReplacer(" ", "", "-", "", "_", "").Replace(s))
	}
	name = plain(name)
	for alias, category := range unicode.CategoryAliases {
		if plain(alias) == name {
			return categorySet(category), true
		}
	}
	for category := range unicode.Categories {
		if plain(category) == name {
			return categorySet(category), true
		}
	}
	for script, table := range unicode.Scripts {
		if plain(script) == name {
			return tableSet(table).union(scripts16[script]), true
		}
	}
	return nil, false
}

// categorySet is a category of Unicode 16, by its short name.
func categorySet(name string) runeSet {
	switch name {
	case "C":
		var others runeSet
		for _, c := range []string{"L", "M", "N", "P", "S", "Z"} {
			others = others.union(categorySet(c))
		}
		return others.complement()
	case "Cn":
		var others runeSet
		for _, c := range []string{"L", "M", "N", "P", "S", "Z", "Cc", "Cf", "Co"} {
			others = others.union(categorySet(c))
		}
		return others.complement()
	case "LC":
		return categorySet("Lu").union(categorySet("Ll")).union(categorySet("Lt"))
	case "Mn":
		moved := runeSet{{movedMark, movedMark}}
		return tableSet(unicode.Mn).union(categories16["Mn"]).intersection(moved.complement())
	}
	return tableSet(unicode.Categories[name]).union(withPrefix(categories16, name))
}

// wordSet is \w of the reference's regular expressions, which is not quite [isWord].
func wordSet() runeSet {
	set := circled.union(runeSet{{0xb2, 0xb3}, {0xb9, 0xb9}, {0xbc, 0xbe}})
	for _, c := range []string{"L", "M", "Nd", "Nl", "Pc"} {
		set = set.union(categorySet(c))
	}
	return set
}
