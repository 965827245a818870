package jinja

import (
	"slices"
	"strings"
	"unicode"

	"golang.org/x/text/cases"
	"golang.org/x/text/language"
)

// isSpace reports whether Python takes a character for white space.
func isSpace(r rune) bool { return unicode.IsSpace(r) || r >= 0x1c && r <= 0x1f }

func isDecimal(r rune) bool { return unicode.Is(unicode.Nd, r) }

// ascii reports whether a text has no other characters.
func ascii(text string) bool {
	for i := range len(text) {
		if text[i] >= 0x80 {
			return false
		}
	}
	return true
}

func upper(text string) string {
	if ascii(text) {
		return strings.ToUpper(text)
	}
	return cases.Upper(language.Und).String(text)
}

func lower(text string) string {
	if ascii(text) {
		return strings.ToLower(text)
	}
	return cases.Lower(language.Und).String(text)
}

// titleRune is the letter that a word begins with.
func titleRune(r rune) string {
	if r < 0x80 {
		return strings.ToUpper(string(r))
	}
	return cases.Title(language.Und, cases.NoLower).String(string(r))
}

// lowered calls a function for each character of a text with its small letters, as the whole text has them: a sigma has two.
func lowered(text string, f func(r rune, small string)) {
	all := lower(text)
	for _, r := range text {
		n := len(lower(string(r)))
		f(r, all[:n])
		all = all[n:]
	}
}

// capitalized begins with a capital and goes on in small letters.
func capitalized(text string) string {
	var b strings.Builder
	lowered(text, func(r rune, small string) {
		if b.Len() == 0 {
			small = titleRune(r)
		}
		b.WriteString(small)
	})
	return b.String()
}

func swapped(text string) string {
	var b strings.Builder
	lowered(text, func(r rune, small string) {
		switch {
		case isUpperRune(r):
			b.WriteString(small)
		case isLowerRune(r):
			b.WriteString(upper(string(r)))
		default:
			b.WriteRune(r)
		}
	})
	return b.String()
}

// titled is str.title: each letter behind what is no letter is a capital.
func titled(text string) string {
	var b strings.Builder
	inWord := false
	lowered(text, func(r rune, small string) {
		if !inWord {
			small = titleRune(r)
		}
		b.WriteString(small)
		inWord = isCased(r)
	})
	return b.String()
}

// isCased reports whether a character is upper, lower or title case.
func isCased(r rune) bool {
	return unicode.IsUpper(r) || unicode.IsLower(r) || unicode.IsTitle(r) || unicode.Is(unicode.Other_Lowercase, r) || unicode.Is(unicode.Other_Uppercase, r)
}

func isLowerRune(r rune) bool { return unicode.IsLower(r) || unicode.Is(unicode.Other_Lowercase, r) }

func isUpperRune(r rune) bool { return unicode.IsUpper(r) || unicode.Is(unicode.Other_Uppercase, r) }

// lines is str.splitlines.
func lines(text string, keep bool) []string {
	var out []string
	for text != "" {
		end, next := len(text), len(text)
		for i, r := range text {
			if r == '\n' || r == '\r' || r == '\v' || r == '\f' || r >= 0x1c && r <= 0x1e || r == 0x85 || r == 0x2028 || r == 0x2029 {
				end, next = i, i+len(string(r))
				if strings.HasPrefix(text[i:], "\r\n") {
					next = i + 2
				}
				break
			}
		}
		if keep {
			end = next
		}
		out = append(out, text[:end])
		text = text[next:]
	}
	return out
}

// words is str.split without a separator; at most so many splits, or all where most is negative.
func words(text string, most int) []string {
	var out []string
	for {
		text = strings.TrimLeftFunc(text, isSpace)
		if text == "" {
			return out
		}
		end := strings.IndexFunc(text, isSpace)
		if end < 0 || most >= 0 && len(out) >= most {
			return append(out, text)
		}
		out = append(out, text[:end])
		text = text[end:]
	}
}

// wordsFromEnd is str.rsplit without a separator.
func wordsFromEnd(text string, most int) []string {
	if most < 0 {
		return words(text, -1)
	}
	var out []string
	for {
		text = strings.TrimRightFunc(text, isSpace)
		if text == "" {
			break
		}
		begin := strings.LastIndexFunc(text, isSpace)
		if begin < 0 || len(out) >= most {
			out = append(out, text)
			break
		}
		n := len(string([]rune(text[begin:])[:1]))
		out = append(out, text[begin+n:])
		text = text[:begin]
	}
	slices.Reverse(out)
	return out
}

// split is str.split with a separator.
func split(text, separator string, most int) []string {
	if most < 0 {
		return strings.Split(text, separator)
	}
	return strings.SplitN(text, separator, most+1)
}

// splitFromEnd is str.rsplit with a separator.
func splitFromEnd(text, separator string, most int) []string {
	var out []string
	for most < 0 || len(out) < most {
		i := strings.LastIndex(text, separator)
		if i < 0 {
			break
		}
		out = append(out, text[i+len(separator):])
		text = text[:i]
	}
	out = append(out, text)
	slices.Reverse(out)
	return out
}

// folded is str.casefold. Its library folds Cherokee letters the other way.
func (s *state) folded(text string) string {
	if strings.ContainsFunc(text, func(r rune) bool { return unicode.Is(unicode.Cherokee, r) }) {
		s.unsupported("casefold of Cherokee")
	}
	return cases.Fold().String(text)
}
