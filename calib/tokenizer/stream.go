package tokenizer

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/text/unicode/norm"

	"github.com/lutq/lutq/formats/added"
	"github.com/lutq/lutq/formats/input"
	"github.com/lutq/lutq/formats/ranks"
)

// A text is encoded in parts of about partBytes. Where there is no place to cut
// one, parts grow up to maxStretch: merging one word takes some thirty times its
// bytes.
const (
	partBytes  = 256 << 10
	maxStretch = 8 << 20
)

// Stream encodes the text that r holds as [Tokenizer.Encode] does without
// special tokens. It yields the ids a part of the text at a time, reads no more
// than it is asked for, and holds only a part of the text.
//
// Texts are cut where a blank stands between two ASCII letters, or a single
// newline before a letter or number, which ends a word for the split patterns
// known here, and without one joins no two symbols. A text that has no such place
// within 8 MiB is an error, as is one of half a gigabyte under a tokenizer for
// which nothing is known about cutting.
func (t *Tokenizer) Stream(r io.Reader) iter.Seq2[[]int, error] {
	return t.stream(r, partBytes, maxStretch)
}

// stream is Stream with parts of other sizes.
func (t *Tokenizer) stream(r io.Reader, part, most int) iter.Seq2[[]int, error] {
	if t.cuts == nil {
		most = int(input.Text.Limit())
	}
	return func(yield func([]int, error) bool) {
		var text []byte
		for begun, end := false, false; !end; begun = true {
			at := 0
			for want := part; at == 0 && !end; want *= 2 {
				if len(text) > most {
					yield(nil, fmt.Errorf("the text goes on for %d bytes without a place where it can be cut", most))
					return
				}
				var err error
				if text, end, err = fill(r, text, min(want, most+1)); err != nil {
					yield(nil, err)
					return
				}
				if at = len(text); !end {
					at = t.cuts.find(text)
				}
			}
			ids, err := t.encode(string(text[:at]), begun)
			if !yield(ids, err) || err != nil {
				return
			}
			text = append(text[:0], text[at:]...)
		}
	}
}

// fill reads until text has n bytes or r has ended.
func fill(r io.Reader, text []byte, n int) (all []byte, end bool, err error) {
	if len(text) >= n {
		return text, false, nil
	}
	have := len(text)
	text = slices.Grow(text, n-have)[:n]
	got, err := io.ReadFull(r, text[have:])
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		end, err = true, nil
	}
	return text[:have+got], end, err
}

// cutter knows where a text may be cut so that its parts have the ids of the
// whole. A nil one knows no place.
type cutter struct {
	normalizers []normalizer // of what does not begin a stretch between added tokens
	newlines    bool         // a newline before a letter will do
	words       bool         // the pre-tokenizer ends a word at every cut
	sought      string       // characters that it looks for elsewhere
	blank       string       // what it makes of a blank
	split       bool         // and cuts before it
	model       *bpe

	// What added tokens hold: pairs of neighbouring characters, the first ones of
	// those that care for what stands before them, and the last ones: behind a
	// token a stretch begins, and a cut would hide that.
	pairs       map[[2]rune]bool
	first, last map[rune]bool
}

// Split patterns of further published tokenizers, for which the finder of regular
// expressions does.
const (
	o200kPattern    = `[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+`
	tekkenPattern   = `[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+`
	qwen35Pattern   = `(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`
	cl100kPattern   = `'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]|\s+(?!\S)|\s`
	deepseekPattern = `[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_` + "`" + `{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`
	// DeepSeek's steps before that one.
	threeDigits   = `\p{N}{1,3}`
	deepseekKanji = `[一-龥぀-ゟ゠-ヿ]+`
)

// escaped writes ends of lines in a pattern as escapes. DeepSeek's files have the characters themselves.
var escaped = strings.NewReplacer("\r", `\r`, "\n", `\n`)

// endsWords reports whether a split pattern ends a word at every cut.
func endsWords(pattern string) bool {
	switch escaped.Replace(pattern) {
	case gpt2Pattern, llama3Pattern, qwen2Pattern, o200kPattern, tekkenPattern, qwen35Pattern, cl100kPattern, ranks.KimiPattern, deepseekPattern:
		return true
	}
	return false
}

// newCutter returns the cutter for a file's steps, which have been parsed
// already, or nil where one of them is not known to leave cuts alone.
func (t *Tokenizer) newCutter(normalizers, splitters json.RawMessage) *cutter {
	c := &cutter{
		newlines: true, blank: " ", model: t.model,
		pairs: make(map[[2]rune]bool), first: make(map[rune]bool), last: make(map[rune]bool),
	}
	for _, raw := range leaves(normalizers) {
		if !c.addNormalizer(raw) {
			return nil
		}
	}
	for _, raw := range leaves(splitters) {
		if !c.addSplitter(raw) {
			return nil
		}
	}
	// A word that goes on over a cut must be one that the model can cut.
	if !c.words && !c.split && (t.model.joints == nil || t.model.ignoreMerges) {
		return nil
	}
	return c
}

// leaves returns the members of a Sequence and of those in it, or the one
// component that raw is.
func leaves(raw json.RawMessage) []json.RawMessage {
	kind, err := typeOf(raw)
	if err != nil || kind == "" {
		return nil
	}
	if kind != "Sequence" {
		return []json.RawMessage{raw}
	}
	var c struct {
		Normalizers   []json.RawMessage `json:"normalizers"`
		Pretokenizers []json.RawMessage `json:"pretokenizers"`
	}
	if json.Unmarshal(raw, &c) != nil {
		return nil
	}
	var all []json.RawMessage
	for _, raw := range append(c.Normalizers, c.Pretokenizers...) {
		all = append(all, leaves(raw)...)
	}
	return all
}

// addNormalizer takes those that look at one character at a time, or at none
// beyond the boundaries of Unicode's forms, which lie at every cut.
func (c *cutter) addNormalizer(raw json.RawMessage) bool {
	kind, _ := typeOf(raw)
	switch kind {
	case "Prepend": // once, where a stretch begins
		return true
	case "Replace":
		var r struct {
			Pattern pattern `json:"pattern"`
		}
		if json.Unmarshal(raw, &r) != nil || r.Pattern.String == nil || utf8.RuneCountInString(*r.Pattern.String) != 1 {
			return false
		}
	case "NFC", "NFD", "NFKC", "NFKD", "Lowercase":
	default:
		return false
	}
	n, err := parseNormalizers(raw)
	c.normalizers = append(c.normalizers, n...)
	return err == nil
}

// addSplitter takes the split patterns of language models and what leaves a cut
// alone.
func (c *cutter) addSplitter(raw json.RawMessage) bool {
	kind, _ := typeOf(raw)
	var s struct {
		Pattern        pattern `json:"pattern"`
		Behavior       string  `json:"behavior"`
		Invert         bool    `json:"invert"`
		UseRegex       *bool   `json:"use_regex"`
		AddPrefixSpace *bool   `json:"add_prefix_space"`
		Replacement    string  `json:"replacement"`
		Scheme         string  `json:"prepend_scheme"`
		Split          *bool   `json:"split"`
	}
	if json.Unmarshal(raw, &s) != nil {
		return false
	}
	// What gets a blank in front must begin with one already, as text behind a cut
	// before a blank does.
	prefixed := s.AddPrefixSpace == nil || *s.AddPrefixSpace
	switch kind {
	case "Digits":
		return true
	case "Split":
		if s.Pattern.String != nil {
			c.sought += *s.Pattern.String
			return true
		}
		if s.Pattern.Regex == nil || s.Behavior != "Isolated" && !(s.Behavior == "Removed" && s.Invert) {
			return false
		}
		ends := endsWords(*s.Pattern.Regex)
		c.words = c.words || ends
		return ends || *s.Pattern.Regex == threeDigits || *s.Pattern.Regex == deepseekKanji
	case "ByteLevel":
		c.words = c.words || s.UseRegex == nil || *s.UseRegex
		c.newlines = c.newlines && !prefixed
		return true
	case "Metaspace":
		c.blank, c.split = s.Replacement, s.Split == nil || *s.Split
		c.newlines = c.newlines && (s.Scheme == "never" || s.Scheme == "first")
		return true
	}
	return false
}

// addToken notes what an added token, which matches text as spelled, holds.
func (c *cutter) addToken(token *added.Token, spelling string) {
	if c == nil {
		return
	}
	runes := []rune(spelling)
	for i := 1; i < len(runes); i++ {
		c.pairs[[2]rune{runes[i-1], runes[i]}] = true
	}
	if token.SingleWord || token.LStrip {
		c.first[runes[0]] = true
	}
	c.last[runes[len(runes)-1]] = true
}

// find returns the last place where text, which goes on, may be cut, or 0.
func (c *cutter) find(text []byte) int {
	if c == nil {
		return 0
	}
	// A character behind the cut must be whole.
	for i := len(text) - utf8.UTFMax; i > 1; i-- {
		switch {
		case text[i] == ' ' && isASCIILetter(text[i-1]) && isASCIILetter(text[i+1]):
		case text[i-1] == '\n' && c.newlines && newlineAlone(text, i):
		default:
			continue
		}
		before := rune(text[i-1])
		behind, _ := utf8.DecodeRune(text[i:])
		if c.allows(before, behind) {
			return i
		}
	}
	return 0
}

func isASCIILetter(b byte) bool { return 'a' <= b|0x20 && b|0x20 <= 'z' }

// newlineAlone tells whether text[i] begins a letter or number and the newline
// before it is the only white space there.
func newlineAlone(text []byte, i int) bool {
	if r, _ := utf8.DecodeLastRune(text[:i-1]); unicode.IsSpace(r) {
		return false
	}
	r, n := utf8.DecodeRune(text[i:])
	return (isLetter(r) || isNumber(r)) && norm.NFKC.Properties(text[i:i+n]).BoundaryBefore()
}

// allows reports whether text may be cut between two characters as far as added
// tokens and, where words go on there, the model are concerned.
func (c *cutter) allows(before, behind rune) bool {
	if !c.apart(before, behind) {
		return false
	}
	deadline := deadlineFor(utf8.UTFMax)
	a, errA := normalize(string(before), c.normalizers, deadline)
	b, errB := normalize(string(behind), c.normalizers, deadline)
	if errA != nil || errB != nil || a == "" || b == "" || strings.ContainsAny(c.sought, a+b) {
		return false
	}
	left, _ := utf8.DecodeLastRuneInString(a)
	right, _ := utf8.DecodeRuneInString(b)
	if !c.apart(left, right) {
		return false
	}
	if b == " " {
		b = c.blank
		right, _ = utf8.DecodeRuneInString(b)
	}
	if c.words || c.split && b == c.blank {
		return true
	}
	// Words that go on are cut where no token spans the two symbols; only a whole
	// word that needs no merging could.
	l, r := c.model.id(string(left)), c.model.id(string(right))
	if c.model.joints == nil || c.model.ignoreMerges || l < 0 || r < 0 {
		return false
	}
	_, joined := c.model.joints[pairOf(l, r)]
	return !joined
}

// apart reports whether no added token has the two characters as neighbours,
// ends there, or begins there and looks at what is before it.
func (c *cutter) apart(left, right rune) bool {
	return !c.pairs[[2]rune{left, right}] && !c.last[left] && !c.first[right]
}
