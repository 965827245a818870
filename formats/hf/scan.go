package hf

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"
)

// scanner walks over a JSON text. Unlike encoding/json it sees every key of an
// object, so that its callers can refuse those that appear twice, and it takes
// a header of half a million tensors in a fraction of a second.
//
// The text must have passed [newScanner], which leaves only questions of type
// ("a number where a string is wanted") to the methods.
type scanner struct {
	data []byte
	pos  int
}

// newScanner checks that data is one valid JSON text in valid UTF-8.
func newScanner(data []byte) (*scanner, error) {
	if !utf8.Valid(data) {
		return nil, errors.New("invalid UTF-8")
	}
	if bytes.HasPrefix(data, []byte("\ufeff")) {
		return nil, errors.New("invalid JSON: begins with a byte order mark")
	}
	var raw json.RawMessage
	if err := json.Unmarshal(data, &raw); err != nil {
		if syntax, ok := errors.AsType[*json.SyntaxError](err); ok {
			return nil, fmt.Errorf("invalid JSON at byte %d: %w", syntax.Offset, err)
		}
		return nil, fmt.Errorf("invalid JSON: %w", err)
	}
	return &scanner{data: data}, nil
}

// next skips white space and returns the byte that begins the next token, 0
// at the end of the text.
func (s *scanner) next() byte {
	for s.pos < len(s.data) {
		switch c := s.data[s.pos]; c {
		case ' ', '\t', '\n', '\r':
			s.pos++
		default:
			return c
		}
	}
	return 0
}

// object calls field for every key of an object, with the scanner at the value,
// which field must consume. The key may alias the text.
func (s *scanner) object(field func(key []byte) error) error {
	if s.next() != '{' {
		return errors.New("want a JSON object")
	}
	s.pos++
	for s.next() != '}' {
		key, err := s.str()
		if err != nil {
			return err
		}
		s.next()
		s.pos++ // the colon
		if err := field(key); err != nil {
			return err
		}
		if s.next() == ',' {
			s.pos++
		}
	}
	s.pos++
	return nil
}

// array calls element for every element of an array, with the scanner at the
// element, which element must consume.
func (s *scanner) array(element func() error) error {
	if s.next() != '[' {
		return errors.New("want a list")
	}
	s.pos++
	for s.next() != ']' {
		if err := element(); err != nil {
			return err
		}
		if s.next() == ',' {
			s.pos++
		}
	}
	s.pos++
	return nil
}

// str returns a string without its quotes. It may alias the text.
func (s *scanner) str() ([]byte, error) {
	if s.next() != '"' {
		return nil, errors.New("want a string")
	}
	raw := s.value()
	text := raw[1 : len(raw)-1]
	escaped := false
	for _, c := range text {
		escaped = escaped || c == '\\'
	}
	if !escaped {
		return text, nil
	}
	var unescaped string
	if err := json.Unmarshal(raw, &unescaped); err != nil {
		return nil, fmt.Errorf("invalid string %.40s: %w", raw, err)
	}
	// encoding/json turns half of a surrogate pair, which is no character, into
	// U+FFFD. Such a rune is in order only where the text has it.
	const replacement = string(utf8.RuneError)
	given := strings.Count(string(raw), replacement) + strings.Count(strings.ToLower(string(raw)), `\ufffd`)
	if strings.Count(unescaped, replacement) > given {
		return nil, fmt.Errorf("invalid escape in string %.40s", raw)
	}
	return []byte(unescaped), nil
}

// natural returns an integer in [0, 2^63).
func (s *scanner) natural() (int64, error) {
	s.next()
	raw := s.value()
	n := int64(0)
	for _, c := range raw {
		if c < '0' || c > '9' {
			return 0, fmt.Errorf("want a natural number, found %.40q", raw)
		}
		d := int64(c - '0')
		if n > (1<<63-1-d)/10 {
			return 0, fmt.Errorf("number %.40q is too large", raw)
		}
		n = 10*n + d
	}
	return n, nil
}

// value consumes one value of any type and returns its text.
func (s *scanner) value() []byte {
	s.next()
	start, depth := s.pos, 0
	for s.pos < len(s.data) {
		switch s.data[s.pos] {
		case '"':
			for s.pos++; s.data[s.pos] != '"'; s.pos++ {
				if s.data[s.pos] == '\\' {
					s.pos++
				}
			}
			s.pos++
		case '{', '[':
			depth++
			s.pos++
		case '}', ']':
			depth--
			s.pos++
		case ',', ':', ' ', '\t', '\n', '\r':
			s.pos++ // within an object or a list
		default:
			for s.pos < len(s.data) && !isDelimiter(s.data[s.pos]) {
				s.pos++
			}
		}
		if depth == 0 {
			break
		}
	}
	return s.data[start:s.pos]
}

// isDelimiter reports whether c ends a number or a literal.
func isDelimiter(c byte) bool {
	switch c {
	case ',', ':', ']', '}', ' ', '\t', '\n', '\r':
		return true
	}
	return false
}
