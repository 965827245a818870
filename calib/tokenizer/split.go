package tokenizer

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"
)

// A piece is a stretch of normalized text on its way to the model.
type piece struct {
	text  string
	first bool // nothing of the original text lies before it
}

// A splitter is a pre-tokenizer: it cuts a piece and may rewrite it. Empty pieces that it emits are dropped.
type splitter interface {
	split(p piece, emit func(piece))
}

type (
	// patternSplit cuts a text into the words of a pattern.
	patternSplit struct{ scan scanner }
	// matchSplit cuts at what find finds.
	matchSplit struct {
		find     func(s string) (start, end int) // the next match; start < 0: none
		invert   bool
		behavior string
	}
	// metaspace spells spaces visibly, and may put one in front and cut before each.
	metaspace struct {
		replacement string
		scheme      string // always, first or never
		cut         bool
	}
	// byteLevel is the part of ByteLevel that splits, by GPT-2's pattern or not at all. Spelling bytes as characters is the model's business here.
	byteLevel struct{ addPrefixSpace, gpt2 bool }
)

func (w patternSplit) split(p piece, emit func(piece)) {
	for s, first := p.text, p.first; s != ""; first = false {
		n := w.scan(s)
		emit(piece{s[:n], first})
		s = s[n:]
	}
}

// span is a part of a text that is a match or lies between two.
type span struct {
	start, end int
	match      bool
}

func (m matchSplit) split(p piece, emit func(piece)) {
	var spans []span
	for at := 0; at < len(p.text); {
		start, end := m.find(p.text[at:])
		if start < 0 {
			start, end = len(p.text)-at, len(p.text)-at
		}
		if start > 0 {
			spans = append(spans, span{at, at + start, m.invert})
		}
		if end > start {
			spans = append(spans, span{at + start, at + end, !m.invert})
		}
		at += end
	}
	for _, s := range joinSpans(spans, m.behavior) {
		emit(piece{p.text[s.start:s.end], p.first && s.start == 0})
	}
}

// joinSpans applies a split behaviour: what becomes of the matches. It may reuse spans.
func joinSpans(spans []span, behavior string) []span {
	join := func(mayJoin func(left, right span) bool) []span {
		out := spans[:0]
		for i, s := range spans {
			if i > 0 && mayJoin(spans[i-1], s) {
				out[len(out)-1].end = s.end
			} else {
				out = append(out, s)
			}
		}
		return out
	}
	switch behavior {
	case "Removed":
		return slices.DeleteFunc(spans, func(s span) bool { return s.match })
	case "Contiguous":
		return join(func(l, r span) bool { return l.match == r.match })
	case "MergedWithPrevious": // only the first of several matches in a row
		return join(func(l, r span) bool { return !l.match && r.match })
	case "MergedWithNext": // only the last
		return join(func(l, r span) bool { return l.match && !r.match })
	}
	return spans // Isolated
}

func (m metaspace) split(p piece, emit func(piece)) {
	p.text = strings.ReplaceAll(p.text, " ", m.replacement)
	if (m.scheme == "always" || m.scheme == "first" && p.first) && !strings.HasPrefix(p.text, m.replacement) {
		p.text = m.replacement + p.text
	}
	if !m.cut {
		emit(p)
		return
	}
	for p.text != "" {
		_, n := utf8.DecodeRuneInString(p.text)
		word := len(p.text)
		if i := strings.Index(p.text[n:], m.replacement); i >= 0 {
			word = n + i
		}
		emit(piece{p.text[:word], p.first})
		p = piece{p.text[word:], false}
	}
}

func (b byteLevel) split(p piece, emit func(piece)) {
	if b.addPrefixSpace && !strings.HasPrefix(p.text, " ") {
		p.text = " " + p.text
	}
	if !b.gpt2 {
		emit(p)
		return
	}
	patternSplit{scanGPT2}.split(p, emit)
}

// findNumber finds the next character of \p{N}.
func findNumber(s string) (start, end int) {
	start = strings.IndexFunc(s, isNumber)
	if start < 0 {
		return -1, 0
	}
	_, n := utf8.DecodeRuneInString(s[start:])
	return start, start + n
}

// parseSplitters reads the file's pre_tokenizer as a list of steps.
func parseSplitters(raw json.RawMessage) ([]splitter, error) {
	kind, err := typeOf(raw)
	if err != nil || kind == "" {
		return nil, err
	}
	one := func(s splitter, err error) ([]splitter, error) { return []splitter{s}, err }
	switch kind {
	case "Sequence":
		var c struct {
			component
			Pretokenizers []json.RawMessage `json:"pretokenizers"`
		}
		if err := fields(raw, &c, "pretokenizers"); err != nil {
			return nil, err
		}
		return flatten(c.Pretokenizers, parseSplitters)
	case "Split":
		return one(parseSplit(raw))
	case "Metaspace":
		m, err := parseMetaspace(raw)
		return one(m, err)
	case "Digits":
		var c struct {
			component
			Individual bool `json:"individual_digits"`
		}
		err := fields(raw, &c, "individual_digits")
		behavior := "Contiguous"
		if c.Individual {
			behavior = "Isolated"
		}
		return one(matchSplit{find: findNumber, behavior: behavior}, err)
	case "ByteLevel":
		c := byteLevelFields{UseRegex: true}
		if err := fields(raw, &c, "add_prefix_space", "trim_offsets"); err != nil {
			return nil, err
		}
		return one(byteLevel{c.AddPrefixSpace, c.UseRegex}, nil)
	}
	return nil, fmt.Errorf("type %s is not supported", quote(kind))
}

// byteLevelFields are those of ByteLevel in all its three roles. Offsets are none of this package's business.
type byteLevelFields struct {
	component
	AddPrefixSpace bool `json:"add_prefix_space"`
	TrimOffsets    bool `json:"trim_offsets"`
	UseRegex       bool `json:"use_regex"`
}

func parseSplit(raw json.RawMessage) (splitter, error) {
	var c struct {
		component
		Pattern  pattern `json:"pattern"`
		Behavior string  `json:"behavior"`
		Invert   bool    `json:"invert"`
	}
	if err := fields(raw, &c, "pattern", "behavior", "invert"); err != nil {
		return nil, err
	}
	switch c.Behavior {
	case "Isolated", "Removed", "Contiguous", "MergedWithPrevious", "MergedWithNext":
	default:
		return nil, fmt.Errorf("behavior %s of Split is not supported", quote(c.Behavior))
	}
	if c.Pattern.Regex != nil {
		scan := scannerFor(*c.Pattern.Regex)
		if scan == nil {
			return nil, fmt.Errorf("the regular expression %s of Split is not supported", quote(*c.Pattern.Regex))
		}
		// The known patterns leave nothing between two matches, so keeping the matches apart and
		// removing what is no match come to the same.
		if c.Behavior == "Isolated" || c.Behavior == "Removed" && c.Invert {
			return patternSplit{scan}, nil
		}
		return nil, fmt.Errorf("behavior %s (invert %t) of Split is not supported with a regular expression", c.Behavior, c.Invert)
	}
	if c.Pattern.String == nil || *c.Pattern.String == "" {
		return nil, errors.New("pattern of Split is neither a string nor a regular expression, or empty")
	}
	find := func(s string) (start, end int) {
		start = strings.Index(s, *c.Pattern.String)
		return start, start + len(*c.Pattern.String)
	}
	return matchSplit{find, c.Invert, c.Behavior}, nil
}

func parseMetaspace(raw json.RawMessage) (m metaspace, err error) {
	c := struct {
		component
		Replacement    string  `json:"replacement"`
		StrRep         *string `json:"str_rep"` // an old file's copy of replacement
		AddPrefixSpace *bool   `json:"add_prefix_space"`
		Scheme         string  `json:"prepend_scheme"`
		Split          bool    `json:"split"`
	}{Scheme: "always", Split: true}
	if err := fields(raw, &c, "replacement"); err != nil {
		return m, err
	}
	if utf8.RuneCountInString(c.Replacement) != 1 {
		return m, fmt.Errorf("replacement %s of Metaspace is not one character", quote(c.Replacement))
	}
	switch c.Scheme {
	case "always", "first", "never":
	default:
		return m, fmt.Errorf("prepend_scheme %s of Metaspace is not supported", quote(c.Scheme))
	}
	if c.AddPrefixSpace != nil && !*c.AddPrefixSpace && c.Scheme != "never" {
		return m, fmt.Errorf("add_prefix_space of Metaspace contradicts its prepend_scheme %s", c.Scheme)
	}
	return metaspace{c.Replacement, c.Scheme, c.Split}, nil
}
