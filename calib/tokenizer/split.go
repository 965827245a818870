package tokenizer

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// A piece is a stretch of normalized text on its way to the model.
type piece struct {
	text  string
	first bool // nothing of the original text lies before it
}

// A splitter is a pre-tokenizer: it cuts a piece and may rewrite it. Empty pieces that it emits are dropped. It
// fails after the deadline.
type splitter interface {
	split(p piece, deadline time.Time, emit func(piece)) error
}

type (
	// patternSplit cuts a text into the words of a pattern.
	patternSplit struct{ scan scanner }
	// matchSplit cuts at what the pattern finds.
	matchSplit struct {
		pattern  finder
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

func (w patternSplit) split(p piece, _ time.Time, emit func(piece)) error {
	for s, first := p.text, p.first; s != ""; first = false {
		n := w.scan(s)
		emit(piece{s[:n], first})
		s = s[n:]
	}
	return nil
}

// span is a part of a text that is a match or lies between two.
type span struct {
	start, end int
	match      bool
}

func (m matchSplit) split(p piece, deadline time.Time, emit func(piece)) error {
	var spans []span
	done := 0
	err := m.pattern.find(p.text, deadline, func(start, end int) {
		if done < start {
			spans = append(spans, span{done, start, m.invert})
		}
		spans = append(spans, span{start, end, !m.invert})
		done = end
	})
	if err != nil {
		return err
	}
	if done < len(p.text) {
		spans = append(spans, span{done, len(p.text), m.invert})
	}
	for _, s := range joinSpans(spans, m.behavior) {
		emit(piece{p.text[s.start:s.end], p.first && s.start == 0})
	}
	return nil
}

// checkBehavior refuses what joinSpans does not know.
func checkBehavior(kind, behavior string) error {
	switch behavior {
	case "Isolated", "Removed", "Contiguous", "MergedWithPrevious", "MergedWithNext":
		return nil
	}
	return fmt.Errorf("behavior %s of %s is not supported", quote(behavior), kind)
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

func (m metaspace) split(p piece, _ time.Time, emit func(piece)) error {
	p.text = strings.ReplaceAll(p.text, " ", m.replacement)
	if (m.scheme == "always" || m.scheme == "first" && p.first) && !strings.HasPrefix(p.text, m.replacement) {
		p.text = m.replacement + p.text
	}
	if !m.cut {
		emit(p)
		return nil
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
	return nil
}

func (b byteLevel) split(p piece, deadline time.Time, emit func(piece)) error {
	if b.addPrefixSpace && !strings.HasPrefix(p.text, " ") {
		p.text = " " + p.text
	}
	if !b.gpt2 {
		emit(p)
		return nil
	}
	return patternSplit{scanGPT2}.split(p, deadline, emit)
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
		return one(matchSplit{pattern: oneOf(isDigit), behavior: behavior}, err)
	case "Punctuation":
		c := struct {
			component
			Behavior string `json:"behavior"`
		}{Behavior: "Isolated"}
		if err := fields(raw, &c); err != nil {
			return nil, err
		}
		return one(matchSplit{pattern: oneOf(isPunctuation), behavior: c.Behavior}, checkBehavior(kind, c.Behavior))
	case "Whitespace":
		return one(matchSplit{runs(wordClass), true, "Removed"}, fields(raw, &component{}))
	case "WhitespaceSplit":
		return one(matchSplit{pattern: oneOf(unicode.IsSpace), behavior: "Removed"}, fields(raw, &component{}))
	case "BertPreTokenizer":
		return []splitter{
			matchSplit{pattern: oneOf(unicode.IsSpace), behavior: "Removed"},
			matchSplit{pattern: oneOf(isPunctuation), behavior: "Isolated"},
		}, fields(raw, &component{})
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
	if err := checkBehavior("Split", c.Behavior); err != nil {
		return nil, err
	}
	// The patterns that have a scanner leave nothing between two matches, so keeping the matches apart and
	// removing what is no match come to the same.
	if r := c.Pattern.Regex; r != nil && (c.Behavior == "Isolated" || c.Behavior == "Removed" && c.Invert) {
		if scan := scannerFor(*r); scan != nil {
			return patternSplit{scan}, nil
		}
	}
	find, err := c.Pattern.finder()
	if err != nil {
		return nil, fmt.Errorf("pattern of Split: %w", err)
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
