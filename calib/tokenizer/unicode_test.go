package tokenizer

import (
	"testing"

	"golang.org/x/text/unicode/norm"
)

// TestUnicodeVersions has characters about which the versions of Unicode differ that the parts of the reference know. All answers are
// the reference's.
func TestUnicodeVersions(t *testing.T) {
	form := func(f norm.Form) func(string) string { return unicodeForm{f}.normalize }
	tests := []struct {
		name      string
		normalize func(string) string
		text      string
		want      string
	}{
		{"a mark of Unicode 8 is sorted", form(norm.NFC), "a\u0301\u0323", "\u1ea1\u0301"},
		{"a mark of Unicode 14 is not", form(norm.NFD), "a\u0301\u0898\u0323", "a\u0301\u0898\u0323"},
		{"and parts what would compose", form(norm.NFC), "e\u0323\u0898\u0302", "\u1eb9\u0898\u0302"},
		{"around it all is normalized", form(norm.NFC), "e\u0301\u1df6e\u0301", "\u00e9\u1df6\u00e9"},
		{"a vowel of Unicode 13 stays whole", form(norm.NFD), "\U00011938", "\U00011938"},
		{"and apart", form(norm.NFC), "\U00011935\U00011930e\u0301", "\U00011935\U00011930\u00e9"},
		{"an era of Unicode 12", form(norm.NFKC), "\u32ff\ufb01", "\u32fffi"},
		{"the same in a canonical form", form(norm.NFC), "\u32ffe\u0301", "\u32ff\u00e9"},
		{"capitals of Unicode 16 and 17", lower, "\u1c89\ua7cb\ua7cc\ua7ce\ua7dc\U00010d65\U00016ea0A\u0130", "\u1c8a\u0264\ua7cd\ua7cf\u019b\U00010d85\U00016ebbai\u0307"},
		{"between capitals", lower, "\ua7cd\ua7d3", "\ua7cd\ua7d3"},
		{"marks of Unicode 9", stripAccents, "e\u0301\u093e\u1cf2", "e"},
		{"marks since", stripAccents, "e\u0898\u1cf7", "e\u0898\u1cf7"},
		{"invisible characters", nmt, "a\u0001\u000b\u007f\u0080\u200b\u2028\t\r\n\u2581\x00", "a\u0080      \x00"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			if got := test.normalize(test.text); got != test.want {
				t.Errorf("%+q: got %+q, want %+q", test.text, got, test.want)
			}
		})
	}
	for _, test := range []struct {
		name    string
		is      func(rune) bool
		members string
		others  string
	}{
		{"letter", isLetter, "a\u1c89\U00013460", "1\u24b6\u0897"},
		{"number", isNumber, "1½\U00010d40", "a\U00011de0"},
		{"digit", isDigit, "1½\U00010d40\U00011de0\U00016ff6", "a"},
		{"word", isWord, "a1_\u200d\u24b6\u0897\U00010d40\u2160", "²½- \U00011de0"},
		{"punctuation", isPunctuation, "!$+^`~\u00a1\u166d\U000111c9", "a1 \x7f\u20ac\u2e43\u061d"},
	} {
		t.Run(test.name, func(t *testing.T) {
			for _, r := range test.members {
				if !test.is(r) {
					t.Errorf("%+q is none", r)
				}
			}
			for _, r := range test.others {
				if test.is(r) {
					t.Errorf("%+q is one", r)
				}
			}
		})
	}
}

// TestRuneSets checks the operations on sets against their definitions.
func TestRuneSets(t *testing.T) {
	a := runeSet{{5, 9}, {2, 3}, {4, 4}, {0xd000, 0xe001}}.canonical()
	b := runeSet{{0, 2}, {8, 12}}
	for r := rune(0); r < 0xe010; r++ {
		inA, inB := a.contains(r), b.contains(r)
		surrogate := 0xd800 <= r && r < 0xe000
		if want := 2 <= r && r <= 9 || 0xd000 <= r && r <= 0xe001; inA != want {
			t.Fatalf("%#x in the set: got %t, want %t", r, inA, want)
		}
		if got := a.union(b).contains(r); got != (inA || inB) {
			t.Fatalf("%#x in the union: got %t", r, got)
		}
		if got := a.intersection(b).contains(r); got != (inA && inB) {
			t.Fatalf("%#x in the intersection: got %t", r, got)
		}
		if got := a.complement().contains(r); got != (!inA && !surrogate) {
			t.Fatalf("%#x in the complement: got %t", r, got)
		}
	}
}
