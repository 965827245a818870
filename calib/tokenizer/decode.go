package tokenizer

import (
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"
)

// A decoder rewrites a list of tokens on its way to text.
type decoder interface {
	decode(tokens []string) ([]string, error)
}

type (
	byteLevelDecoder map[rune]byte
	fallbackDecoder  struct{}
	fuser            struct{}
	charTrimmer      struct {
		char        string
		start, stop int // at most so many
	}
	metaspaceDecoder struct {
		replacement string
		prefixed    bool // a space was put in front
	}
)

// decode reads tokens as spelled bytes. A token with another character in it, as
// added tokens may have, stands for itself.
func (d byteLevelDecoder) decode(tokens []string) ([]string, error) {
	var text []byte
	for _, token := range tokens {
		n := len(text)
		for _, r := range token {
			b, ok := d[r]
			if !ok {
				text = append(text[:n], token...)
				break
			}
			text = append(text, b)
		}
	}
	return []string{validUTF8(string(text))}, nil
}

// decode joins runs of byte tokens. A run that is not UTF-8 becomes one U+FFFD for each byte.
func (fallbackDecoder) decode(tokens []string) ([]string, error) {
	var out []string
	var run []byte
	flush := func() {
		switch {
		case len(run) == 0:
			return
		case utf8.Valid(run):
			out = append(out, string(run))
		default:
			out = append(out, strings.Repeat("\ufffd", len(run)))
		}
		run = run[:0]
	}
	for _, token := range tokens {
		if b, ok := byteToken(token); ok {
			run = append(run, b)
			continue
		}
		flush()
		out = append(out, token)
	}
	flush()
	return out, nil
}

// byteToken reads tokens of the form <0x0A>.
func byteToken(token string) (byte, bool) {
	if len(token) != 6 || token[:3] != "<0x" || token[5] != '>' {
		return 0, false
	}
	b, err := strconv.ParseUint(token[3:5], 16, 8)
	return byte(b), err == nil
}

func (fuser) decode(tokens []string) ([]string, error) {
	return []string{strings.Join(tokens, "")}, nil
}

func (t charTrimmer) decode(tokens []string) ([]string, error) {
	for i := range tokens {
		for range t.start {
			rest, found := strings.CutPrefix(tokens[i], t.char)
			if !found {
				break
			}
			tokens[i] = rest
		}
		for range t.stop {
			rest, found := strings.CutSuffix(tokens[i], t.char)
			if !found {
				break
			}
			tokens[i] = rest
		}
	}
	return tokens, nil
}

func (r replacer) decode(tokens []string) ([]string, error) {
	deadline := deadlineFor(len(tokens))
	for i := range tokens {
		var err error
		if tokens[i], err = r.replace(tokens[i], deadline); err != nil {
			return nil, err
		}
	}
	return tokens, nil
}

func (d metaspaceDecoder) decode(tokens []string) ([]string, error) {
	for i := range tokens {
		space := " "
		if i == 0 && d.prefixed {
			space = ""
		}
		tokens[i] = strings.ReplaceAll(tokens[i], d.replacement, space)
	}
	return tokens, nil
}

// join turns tokens into text. It may change the slice.
func (t *Tokenizer) join(tokens []string) (string, error) {
	if t.bare {
		return strings.Join(tokens, " "), nil
	}
	for _, d := range t.decoders {
		var err error
		if tokens, err = d.decode(tokens); err != nil {
			return "", err
		}
	}
	return strings.Join(tokens, ""), nil
}

// parseDecoders reads the file's decoder as a list of steps.
func parseDecoders(raw json.RawMessage) ([]decoder, error) {
	kind, err := typeOf(raw)
	if err != nil || kind == "" {
		return nil, err
	}
	one := func(d decoder, err error) ([]decoder, error) { return []decoder{d}, err }
	switch kind {
	case "Sequence":
		var c struct {
			component
			Decoders []json.RawMessage `json:"decoders"`
		}
		if err := fields(raw, &c, "decoders"); err != nil {
			return nil, err
		}
		return flatten(c.Decoders, parseDecoders)
	case "ByteLevel":
		d := make(byteLevelDecoder)
		for b, r := range byteRunes() {
			d[r] = byte(b)
		}
		return one(d, fields(raw, &byteLevelFields{}, "add_prefix_space", "trim_offsets"))
	case "ByteFallback":
		return one(fallbackDecoder{}, fields(raw, &component{}))
	case "Fuse":
		return one(fuser{}, fields(raw, &component{}))
	case "Replace":
		r, err := parseReplace(raw)
		return one(r, err)
	case "Strip":
		var c struct {
			component
			Content string `json:"content"`
			Start   int    `json:"start"`
			Stop    int    `json:"stop"`
		}
		if err := fields(raw, &c, "content", "start", "stop"); err != nil {
			return nil, err
		}
		if utf8.RuneCountInString(c.Content) != 1 {
			return nil, fmt.Errorf("content %s of Strip is not one character", quote(c.Content))
		}
		if c.Start < 0 || c.Stop < 0 {
			return nil, errors.New("start or stop of Strip is negative")
		}
		return one(charTrimmer{c.Content, c.Start, c.Stop}, nil)
	case "Metaspace":
		m, err := parseMetaspace(raw)
		return one(metaspaceDecoder{m.replacement, m.scheme != "never"}, err)
	}
	return nil, fmt.Errorf("type %s is not supported", quote(kind))
}
