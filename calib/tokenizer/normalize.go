package tokenizer

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode"

	"golang.org/x/text/unicode/norm"
)

// A normalizer rewrites text before it is split. It fails after the deadline.
type normalizer struct {
	normalize  func(text string, deadline time.Time) (string, error)
	movesStart bool // may make text begin at another than its first character
}

// pure is a normalizer that takes time in proportion to the text.
func pure(normalize func(text string) string) normalizer {
	return normalizer{normalize: func(text string, _ time.Time) (string, error) { return normalize(text), nil }}
}

// deleting is a pure normalizer that takes away characters.
func deleting(normalize func(text string) string) normalizer {
	n := pure(normalize)
	n.movesStart = true
	return n
}

// replacer puts another text in the place of what it finds.
type replacer struct {
	old finder
	new string
}

func (r replacer) replace(text string, deadline time.Time) (string, error) {
	if old, ok := r.old.(literal); ok {
		return strings.ReplaceAll(text, string(old), r.new), nil
	}
	var b strings.Builder
	done := 0
	err := r.old.find(text, deadline, func(start, end int) {
		b.WriteString(text[done:start])
		b.WriteString(r.new)
		done = end
	})
	b.WriteString(text[done:])
	return b.String(), err
}

// lower lowers character by character, without regard to the neighbours, by the full mapping: that differs from
// the simple one in one character only.
func lower(text string) string {
	return strings.Map(toLower, strings.ReplaceAll(text, "\u0130", "i\u0307"))
}

// stripAccents takes away marks. It does not decompose what they are part of.
func stripAccents(text string) string {
	return strings.Map(func(r rune) rune {
		if isAccent(r) {
			return -1
		}
		return r
	}, text)
}

// nmt takes away control characters and makes other invisible ones spaces, as for neural machine translation.
func nmt(text string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r == '\t', r == '\n', r == '\f', r == '\r', r == 0x1680, 0x200b <= r && r <= 0x200f,
			r == 0x2028, r == 0x2029, r == 0x2581, r == 0xfeff, r == 0xfffd:
			return ' '
		case 0 < r && r < ' ', r == 0x7f, r == 0x8f, r == 0x9f:
			return -1
		}
		return r
	}, text)
}

// parseNormalizers reads the file's normalizer as a list of steps.
func parseNormalizers(raw json.RawMessage) ([]normalizer, error) {
	kind, err := typeOf(raw)
	if err != nil || kind == "" {
		return nil, err
	}
	one := func(n normalizer, err error) ([]normalizer, error) { return []normalizer{n}, err }
	plain := func(normalize func(string) string) ([]normalizer, error) {
		return one(pure(normalize), fields(raw, &component{}))
	}
	switch kind {
	case "Sequence":
		var c struct {
			component
			Normalizers []json.RawMessage `json:"normalizers"`
		}
		if err := fields(raw, &c, "normalizers"); err != nil {
			return nil, err
		}
		return flatten(c.Normalizers, parseNormalizers)
	case "NFC":
		return plain(unicodeForm{norm.NFC}.normalize)
	case "NFD":
		return plain(unicodeForm{norm.NFD}.normalize)
	case "NFKC":
		return plain(unicodeForm{norm.NFKC}.normalize)
	case "NFKD":
		return plain(unicodeForm{norm.NFKD}.normalize)
	case "Lowercase":
		return plain(lower)
	case "StripAccents":
		return one(deleting(stripAccents), fields(raw, &component{}))
	case "Nmt":
		return one(deleting(nmt), fields(raw, &component{}))
	case "Prepend":
		var c struct {
			component
			Prepend string `json:"prepend"`
		}
		err := fields(raw, &c, "prepend")
		return one(pure(func(text string) string {
			if text == "" {
				return ""
			}
			return c.Prepend + text
		}), err)
	case "Strip":
		var c struct {
			component
			Left  bool `json:"strip_left"`
			Right bool `json:"strip_right"`
		}
		err := fields(raw, &c, "strip_left", "strip_right")
		n := pure(func(text string) string {
			if c.Left {
				text = strings.TrimLeftFunc(text, unicode.IsSpace)
			}
			if c.Right {
				text = strings.TrimRightFunc(text, unicode.IsSpace)
			}
			return text
		})
		n.movesStart = c.Left
		return one(n, err)
	case "Replace":
		r, err := parseReplace(raw)
		old, _ := r.old.(literal)
		return one(normalizer{r.replace, len(old) != 1 || r.new == ""}, err)
	}
	return nil, fmt.Errorf("type %s is not supported", quote(kind))
}

// pattern is what Replace and Split look for: one of the two is set.
type pattern struct {
	String *string `json:"String"`
	Regex  *string `json:"Regex"`
}

func (p pattern) finder() (finder, error) {
	switch {
	case p.Regex != nil:
		return newRegex(*p.Regex)
	case p.String != nil && *p.String != "":
		return literal(*p.String), nil
	}
	return nil, errors.New("neither a string nor a regular expression, or empty")
}

// parseReplace reads the Replace component, which is both a normalizer and a decoder.
func parseReplace(raw json.RawMessage) (r replacer, err error) {
	var c struct {
		component
		Pattern pattern `json:"pattern"`
		Content string  `json:"content"`
	}
	if err := fields(raw, &c, "pattern", "content"); err != nil {
		return r, err
	}
	if r.old, err = c.Pattern.finder(); err != nil {
		return r, fmt.Errorf("pattern of Replace: %w", err)
	}
	r.new = c.Content
	return r, nil
}
