package tokenizer

import (
	"slices"
	"strings"
	"unicode/utf8"

	"golang.org/x/text/unicode/norm"
)

// unicodeForm is one of the four normalization forms.
type unicodeForm struct{ form norm.Form }

func (f unicodeForm) normalize(text string) string {
	if f.form.IsNormalString(text) {
		return text
	}
	// The reference knows the forms of Unicode 9: a newer character stands for itself, and parts what lies around it.
	var b strings.Builder
	for {
		i := strings.IndexFunc(text, f.isNew)
		if i < 0 {
			break
		}
		_, n := utf8.DecodeRuneInString(text[i:])
		b.WriteString(f.normalizeOld(text[:i]))
		b.WriteString(text[i : i+n])
		text = text[i+n:]
	}
	if b.Len() == 0 {
		return f.normalizeOld(text)
	}
	b.WriteString(f.normalizeOld(text))
	return b.String()
}

// isNew tells whether a character came after Unicode 9 and the form would change it or its neighbours.
func (f unicodeForm) isNew(r rune) bool {
	compatibility := f.form == norm.NFKC || f.form == norm.NFKD
	return newForms.contains(r) || compatibility && newCompatibility.contains(r)
}

// normalizeOld normalizes text without characters that came after Unicode 9.
func (f unicodeForm) normalizeOld(text string) string {
	// x/text normalizes "stream-safe": into long rows of marks it puts U+034F.
	if hasLongMarks(text) {
		return f.normalizeExactly(text)
	}
	return f.form.String(text)
}

// hasLongMarks tells whether so many characters that may join what is before them follow each
// other that they may decompose to more than the 30 marks that x/text buffers. A character begins
// with at most two marks and ends with at most three.
func hasLongMarks(text string) bool {
	const safe = 12
	row := 0
	for i := 0; i < len(text); {
		if text[i] < utf8.RuneSelf {
			row = 0
			i++
			continue
		}
		p := norm.NFD.PropertiesString(text[i:])
		if p.BoundaryBefore() {
			row = 0
		} else if row++; row > safe {
			return true
		}
		i += max(1, p.Size())
	}
	return false
}

// normalizeExactly is the algorithm of UAX 15 at any length, by the letter and slow.
func (f unicodeForm) normalizeExactly(text string) string {
	decomposed := norm.NFD
	if f.form == norm.NFKC || f.form == norm.NFKD {
		decomposed = norm.NFKD
	}
	var marks []mark
	for _, r := range text {
		for _, d := range decomposed.String(string(r)) {
			marks = append(marks, mark{d, norm.NFD.PropertiesString(string(d)).CCC()})
		}
	}
	for start := 0; start < len(marks); {
		end := start + 1
		for end < len(marks) && marks[end].class != 0 {
			end++
		}
		row := marks[start:end]
		if row[0].class == 0 {
			row = row[1:]
		}
		slices.SortStableFunc(row, func(a, b mark) int { return int(a.class) - int(b.class) })
		start = end
	}
	if f.form == norm.NFC || f.form == norm.NFKC {
		marks = compose(marks)
	}
	runes := make([]rune, len(marks))
	for i, m := range marks {
		runes[i] = m.char
	}
	return string(runes)
}

// mark is a character and its canonical combining class.
type mark struct {
	char  rune
	class uint8
}

// compose joins characters with the last starter before them, in place, unless one
// between has a class as high.
func compose(marks []mark) []mark {
	out := marks[:0]
	starter := -1
	for _, m := range marks {
		if starter >= 0 && (starter == len(out)-1 || out[len(out)-1].class < m.class) {
			pair := norm.NFC.String(string(out[starter].char) + string(m.char))
			if r, n := utf8.DecodeRuneInString(pair); n == len(pair) {
				out[starter].char = r
				continue
			}
		}
		if m.class == 0 {
			starter = len(out)
		}
		out = append(out, m)
	}
	return out
}
