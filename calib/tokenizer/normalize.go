package tokenizer

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"unicode"

	"golang.org/x/text/unicode/norm"
)

// A normalizer rewrites text before it is split.
type normalizer interface {
	normalize(text string) string
}

type (
	prepender    struct{ text string }
	replacer     struct{ old, new string }
	lowercaser   struct{}
	spaceTrimmer struct{ left, right bool }
)

func (p prepender) normalize(text string) string {
	if text == "" {
		return ""
	}
	return p.text + text
}

func (r replacer) normalize(text string) string { return strings.ReplaceAll(text, r.old, r.new) }

// normalize lowers character by character, without regard to the neighbours, by
// the full mapping: that differs from the simple one, which unicode.ToLower has,
// in one character only. (Known difference: the reference also lowers the capitals of Unicode 16 and 17.)
func (lowercaser) normalize(text string) string {
	return strings.Map(unicode.ToLower, strings.ReplaceAll(text, "\u0130", "i\u0307"))
}

func (t spaceTrimmer) normalize(text string) string {
	if t.left {
		text = strings.TrimLeftFunc(text, unicode.IsSpace)
	}
	if t.right {
		text = strings.TrimRightFunc(text, unicode.IsSpace)
	}
	return text
}

// parseNormalizers reads the file's normalizer as a list of steps.
func parseNormalizers(raw json.RawMessage) ([]normalizer, error) {
	kind, err := typeOf(raw)
	if err != nil || kind == "" {
		return nil, err
	}
	one := func(n normalizer, err error) ([]normalizer, error) { return []normalizer{n}, err }
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
		return one(unicodeForm{norm.NFC}, fields(raw, &component{}))
	case "NFD":
		return one(unicodeForm{norm.NFD}, fields(raw, &component{}))
	case "NFKC":
		return one(unicodeForm{norm.NFKC}, fields(raw, &component{}))
	case "NFKD":
		return one(unicodeForm{norm.NFKD}, fields(raw, &component{}))
	case "Lowercase":
		return one(lowercaser{}, fields(raw, &component{}))
	case "Prepend":
		var c struct {
			component
			Prepend string `json:"prepend"`
		}
		err := fields(raw, &c, "prepend")
		return one(prepender{c.Prepend}, err)
	case "Strip":
		var c struct {
			component
			Left  bool `json:"strip_left"`
			Right bool `json:"strip_right"`
		}
		err := fields(raw, &c, "strip_left", "strip_right")
		return one(spaceTrimmer{c.Left, c.Right}, err)
	case "Replace":
		r, err := parseReplace(raw)
		return one(r, err)
	}
	return nil, fmt.Errorf("type %s is not supported", quote(kind))
}

// pattern is what Replace and Split look for: one of the two is set.
type pattern struct {
	String *string `json:"String"`
	Regex  *string `json:"Regex"`
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
	if c.Pattern.Regex != nil {
		return r, fmt.Errorf("the regular expression %s of Replace is not supported", quote(*c.Pattern.Regex))
	}
	if c.Pattern.String == nil || *c.Pattern.String == "" {
		return r, errors.New("pattern of Replace is neither a string nor a regular expression, or empty")
	}
	return replacer{*c.Pattern.String, c.Content}, nil
}
