package tokenizer

import (
	"crypto/sha256"
	"fmt"
	"io"
	"testing"
	"unicode/utf8"

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

// TestEveryCharacter: what tokenizers 0.23.3 makes of every character below the private ones, by itself and between a letter
// and marks, as digests of a line each.
func TestEveryCharacter(t *testing.T) {
	form := func(f norm.Form) func(string) string { return unicodeForm{f}.normalize }
	punctuation := func(text string) string { // the character and the letter, parted
		r, n := utf8.DecodeRuneInString(text)
		if !isPunctuation(r) {
			return text[:2*n+1]
		}
		return text[:n] + "|a|" + text[:n]
	}
	for _, test := range []struct {
		name string
		of   func(string) string
		want string
	}{
		{"NFC", form(norm.NFC), "b81cb8eefcaa2e4bd3783d305639fa1169f5eaf6ec1c3a3b79906b15fed8b86c"},
		{"NFD", form(norm.NFD), "2a6dbaa6fd0db471e943207fe9248592738651cf9d7ce1a8171f19ccada6926b"},
		{"NFKC", form(norm.NFKC), "88e900078dffa3f4cd39bc05f85006e4fe193be83f0cbfbf0a93c09357f5b7e9"},
		{"NFKD", form(norm.NFKD), "00dc974931ba9213b3719fea28d407319d86c788e60bcc8b1e25676f69c4b414"},
		{"StripAccents", stripAccents, "f84bbd530ca4aa52acbe4e4bfcaa8c54262ab01ac7469ee4cedc95ec0154e0fb"},
		{"Punctuation", punctuation, "60e8e55f23747fec0d08646d45c90fef63935a18d0125ceec18336aa4bcab2a8"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			sum := sha256.New()
			for r := range rune(0x30000) {
				if r > 0 && utf8.ValidRune(r) {
					io.WriteString(sum, test.of(string(r)+"a"+string(r)+"\u0323\u0301")+"\n")
				}
			}
			if got := fmt.Sprintf("%x", sum.Sum(nil)); got != test.want {
				t.Errorf("got %s, want %s", got, test.want)
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
