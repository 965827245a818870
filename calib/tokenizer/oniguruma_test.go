package tokenizer

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// matches returns what a regular expression finds.
func matches(t testing.TB, pattern, text string) []string {
	t.Helper()
	r, err := newRegex(pattern)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	if err := r.find(text, deadlineFor(0), func(start, end int) { got = append(got, text[start:end]) }); err != nil {
		t.Fatal(err)
	}
	return got
}

// TestTranslateRefuses lists what has another meaning or none in the reference's syntax, or that is not known to be equal.
func TestTranslateRefuses(t *testing.T) {
	tests := []struct{ name, pattern, want string }{
		{"parenthesis open", `(a`, "at byte 2: a closing parenthesis is missing"},
		{"parenthesis closed", `a)b`, "at byte 1: a closing parenthesis without an opening one"},
		{"class open", `[a`, "ends too early"},
		{"class empty", `[]`, "an empty class"},
		{"class in a class open", `[a[b]`, "ends too early"},
		{"range backwards", `[b-a]`, "a range of characters"},
		{"range to a class", `[a-\d]`, "a range of characters"},
		{"range to a bracket", `[+-[b]]`, "a range of characters"},
		{"POSIX bracket", `[[:alpha:]]`, "POSIX bracket"},
		{"nothing to repeat", `a|*`, "nothing to repeat before *"},
		{"repeated assertion", `(?=a)*`, "repeated assertion"},
		{"repeated line start", `^+`, "repeated assertion"},
		{"twice repeated", `a+*`, "a quantifier behind a quantifier"},
		{"twice repeated interval", `a{2}{3}`, "a quantifier behind a quantifier"},
		{"interval backwards", `a{3,2}`, "ends before it begins"},
		{"interval of what may be empty", `(?:a?|b*){2}`, "an interval behind what may match nothing"},
		{"interval of an empty alternative", `(?:ab|){2}`, "an interval behind what may match nothing"},
		{"repeated possessive", `(?:a(?:b++|c))?`, "a group with a possessive quantifier"},
		{"repeated atomic group", `(?>a+)*`, "a group with a possessive quantifier"},
		{"interval too long", `a{1,100001}`, "more than 100000 repetitions"},
		{"back reference", `(a)\1`, `\1 is not supported`},
		{"call", `(?<x>a)\g<x>`, `\g is not supported`},
		{"keep", `a\Kb`, `\K is not supported`},
		{"grapheme", `\X`, `\X is not supported`},
		{"absence", `(?~a)`, "this kind of group"},
		{"condition", `(?(1)a|b)`, "this kind of group"},
		{"option inside", `a(?i)b`, "this kind of group"},
		{"other option", `(?x:a b)`, "this kind of group"},
		{"comment", `(?#a)`, "this kind of group"},
		{"name open", `(?<a`, "this kind of group"},
		{"property", `\p{Klingon}`, `property "Klingon" is not supported`},
		{"property without braces", `\pL`, "without a property in braces"},
		{"byte", `\xe9`, `\x without the number`},
		{"surrogate", `\ud800`, `\u without the number`},
		{"beyond Unicode", `\x{110000}`, `\x without the number`},
		{"backslash at the end", `a\`, "ends too early"},
		{"ligature", `(?i:off)`, "ligature"},
		{"ligature with capital", `(?i)Straße`, "ligature"},
		{"folded letter", `(?i:é)`, "letters beyond ASCII"},
		{"folded class", `(?i:[a-é])`, "letters beyond ASCII"},
		{"folded property", `(?i:\p{Lu})`, "letters beyond ASCII"},
		{"character 0", "a\x00", "the character 0"},
		{"nested deep", strings.Repeat("(", 100) + strings.Repeat(")", 100), "more than 50 groups"},
		{"nested deep in a class", strings.Repeat("[a", 100) + strings.Repeat("]", 100), "more than 50 groups"},
		{"long", strings.Repeat("a", 20000), "longer than"},
		{"long when translated", strings.Repeat(`\w`, 5000), "too many classes"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			_, err := newRegex(test.pattern)
			if err == nil || !strings.Contains(err.Error(), test.want) || strings.Contains(err.Error(), "\n") {
				t.Errorf("%q: got error %v, want one line with %q", test.pattern, err, test.want)
			}
		})
	}
}

// TestFind has the places where regexp2 by itself would find something else than the reference; the vectors have many more.
func TestFind(t *testing.T) {
	tests := []struct {
		name, pattern, text string
		want                []string
	}{
		{"empty behind a match", `x*`, "xxaxx", []string{"xx", "xx"}},
		{"empty at the start", `x*`, "ax", []string{"", "x"}},
		{"line start", `^.`, "a\nb\n", []string{"a", "b"}},
		{"line end", `.$`, "a\nb\n", []string{"a", "b"}},
		{"not possessive", `a{2}+`, "aaaaa", []string{"aaaa"}},
		{"optional, not lazy", `a{2}?`, "aaa", []string{"aa", ""}},
		{"long s", `(?i:'s)`, "'S'ſ'K", []string{"'S", "'ſ"}},
		{"no long s", `'s`, "'S'ſ's", []string{"'s"}},
		{"letter of Unicode 16", `\p{Lu}\p{Ll}`, "\u1c89\u1c8a", []string{"\u1c89\u1c8a"}},
		{"mark of Unicode 16", `\P{Mn}|\P{Mc}`, "\u0897\U0001171e", []string{"\u0897", "\U0001171e"}},
		{"superscript is a word", `\w+`, "a²ⅳ⁴", []string{"a²ⅳ"}},
		{"beyond the basic plane", `[^\p{L}]`, "𝒜😀", []string{"😀"}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			if got := matches(t, test.pattern, test.text); !slices.Equal(got, test.want) {
				t.Errorf("%q in %q: got %q, want %q", test.pattern, test.text, got, test.want)
			}
		})
	}
}

// TestScannersAgree checks the scanners against their patterns.
func TestScannersAgree(t *testing.T) {
	for _, pattern := range []string{gpt2Pattern, llama3Pattern, qwen2Pattern} {
		scan := scannerFor(pattern)
		r, err := newRegex(pattern)
		if err != nil {
			t.Fatal(err)
		}
		rapid.Check(t, func(t *rapid.T) {
			chars := rapid.SampledFrom([]rune("'sStTrReEvVmMlLdDaéſ12½_. \t\r\n\u0085\u3000\u0301\u1c89\U00016130"))
			text := rapid.StringOf(rapid.OneOf(chars, chars, chars, rapid.Rune())).Draw(t, "text")
			var got, want []int
			for i := 0; i < len(text); {
				i += scan(text[i:])
				got = append(got, i)
			}
			if err := r.find(text, deadlineFor(0), func(_, end int) { want = append(want, end) }); err != nil {
				t.Fatal(err)
			}
			if !slices.Equal(got, want) {
				t.Fatalf("%q in %+q: words end at %v, want %v", pattern, text, got, want)
			}
		})
	}
}

// TestHostilePattern checks that what would take for ever ends in an error.
func TestHostilePattern(t *testing.T) {
	text := strings.Repeat("a", 60) + "c" + strings.Repeat("a", 60) + "b"
	for _, pattern := range []string{`(?:a|aa)+$\n`, `(?:a|aa)+(?<!a)`} {
		r, err := newRegex(pattern)
		if err != nil {
			t.Fatal(err)
		}
		r.re.MatchTimeout = time.Millisecond
		if err := r.find(text, deadlineFor(0), func(_, _ int) {}); !errors.Is(err, errPatience) {
			t.Errorf("%q: got error %v, want %v", pattern, err, errPatience)
		}
	}
	r, err := newRegex("a")
	if err != nil {
		t.Fatal(err)
	}
	if err := r.find(text, time.Now().Add(-time.Hour), func(_, _ int) {}); !errors.Is(err, errPatience) {
		t.Errorf("past the deadline: got error %v, want %v", err, errPatience)
	}
}

// TestDeadlineReaches checks that the error of a regular expression comes out of every step that may have one.
func TestDeadlineReaches(t *testing.T) {
	for _, file := range []string{
		`{"normalizer":{"type":"Replace","pattern":{"Regex":"a"},"content":"b"},"model":` + model("") + `}`,
		`{"pre_tokenizer":{"type":"Split","pattern":{"Regex":"a"},"behavior":"Isolated","invert":false},"model":` + model("") + `}`,
		`{"pre_tokenizer":{"type":"Sequence","pretokenizers":[{"type":"WhitespaceSplit"},{"type":"Split","pattern":{"Regex":"a"},"behavior":"Isolated","invert":false}]},"model":` + model("") + `}`,
	} {
		tok, err := parse([]byte(file), nil)
		if err != nil {
			t.Fatal(err)
		}
		s := tok.states.New().(*state)
		s.reset(0)
		s.deadline = time.Now().Add(-time.Hour)
		if err := tok.encodePiece(s, "ab ba", tok.normalizers, true); !errors.Is(err, errPatience) {
			t.Errorf("%s: got error %v, want %v", file, err, errPatience)
		}
	}
}

// FuzzTranslate checks that what translate writes is what regexp2 reads, and that it takes at most the patience.
func FuzzTranslate(f *testing.F) {
	for _, s := range []string{gpt2Pattern, llama3Pattern, `a{2}+|b{,3}?`, `[^\p{L}&&[^a-z\-]]`, `(?<=\d)(?!\S)^$\b\R`, `(?<n>\x41|\u00e9)++`, `{|}|]`, `(?=?!)`, `(?i)(?:ab|(?-i:c))`} {
		f.Add(s, "aé 1")
	}
	f.Fuzz(func(t *testing.T, pattern, text string) {
		if len(text) > 20 || len(pattern) > 40 {
			return
		}
		translated, err := translate(pattern)
		if err != nil {
			if strings.Contains(err.Error(), "\n") {
				t.Errorf("error of several lines: %q", err)
			}
			return
		}
		r, err := newRegex(pattern)
		if err != nil {
			t.Fatalf("%q became %q: %v", pattern, translated, err)
		}
		r.re.MatchTimeout = 10 * time.Millisecond
		last := 0
		_ = r.find(text, deadlineFor(0), func(start, end int) {
			if start < last || end < start || end > len(text) {
				t.Errorf("%q in %q: match from %d to %d behind %d", pattern, text, start, end, last)
			}
			last = end
		})
	})
}
