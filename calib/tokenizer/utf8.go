package tokenizer

import (
	"strings"
	"unicode/utf8"
)

// validUTF8 replaces each maximal ill-formed subsequence of s by U+FFFD, as
// chapter 3.9 of the Unicode standard recommends. (The standard library offers
// one replacement per byte or one per run.)
func validUTF8(s string) string {
	var b strings.Builder
	b.Grow(len(s))
	for len(s) > 0 {
		r, n := utf8.DecodeRuneInString(s)
		if r == utf8.RuneError && n == 1 {
			n = illFormed(s)
			b.WriteRune(utf8.RuneError)
		} else {
			b.WriteString(s[:n])
		}
		s = s[n:]
	}
	return b.String()
}

// illFormed is the length of the maximal subpart at the start of s, where no
// character begins: the longest start of a character, or one byte.
func illFormed(s string) int {
	for n := min(3, len(s)); n > 1; n-- {
		if startsCharacter(s[:n]) {
			return n
		}
	}
	return 1
}

// startsCharacter tells whether s, of two or three bytes, can be continued to a character of one byte more or two more.
func startsCharacter(s string) bool {
	// Every lead byte admits a contiguous range of second bytes, and 0x80 or 0xBF lies
	// in it; bytes after the second are free in 0x80-0xBF.
	return utf8.ValidString(s+"\x80") || utf8.ValidString(s+"\xbf") ||
		utf8.ValidString(s+"\x80\x80") || utf8.ValidString(s+"\xbf\xbf")
}
