package corpus

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strings"

	"github.com/lutq/lutq/formats/input"
)

// isDocuments reports whether a file is of many texts: its name ends as that of JSON lines does.
func isDocuments(path string) bool { return strings.EqualFold(filepath.Ext(path), ".jsonl") }

// maxDocument bounds the line of a document, in bytes.
const maxDocument = 64 << 20

// buildDocuments cuts each of many texts, the values of "text" in JSON lines, into windows. None has tokens of two texts:
// the last of each, which is the only one of a text shorter than a window, has as many tokens as are left, but two at
// least. Papers that calibrate on a data set's rows do so, MARLIN's among them.
func buildDocuments(text io.Reader, tok Tokenizer, o Options) (*Set, error) {
	s, bos, err := o.resolve(tok)
	if err != nil {
		return nil, err
	}
	room := s.Context
	if s.BOS != BOSNone {
		room--
	}
	lines := bufio.NewScanner(input.UTF8(text))
	lines.Buffer(nil, maxDocument)
	s.Whole = true
	for line := 1; lines.Scan(); line++ {
		if len(bytes.TrimSpace(lines.Bytes())) == 0 {
			continue
		}
		var row struct {
			Text *string `json:"text"`
		}
		if json.Unmarshal(lines.Bytes(), &row) != nil || row.Text == nil {
			return nil, fmt.Errorf(`line %d: want a JSON object with a string "text"`, line)
		}
		var ids []int
		for some, err := range tok.Stream(strings.NewReader(*row.Text)) {
			if err != nil {
				return nil, fmt.Errorf("line %d: tokenize text: %w", line, err)
			}
			ids = append(ids, some...)
		}
		s.TextTokens += len(ids)
		for len(ids) > 0 {
			w := ids[:min(room, len(ids))]
			ids = ids[len(w):]
			if s.BOS != BOSNone {
				w = append([]int{bos}, w...)
			}
			if len(w) < 2 { // of which nothing can be predicted
				s.Dropped++
				continue
			}
			s.Windows = append(s.Windows, Window{Tokens: w[:len(w):len(w)], ScoreFrom: 1})
		}
		if o.MaxWindows > 0 && len(s.Windows) >= o.MaxWindows {
			s.Whole = false
			break
		}
	}
	switch err := lines.Err(); {
	case errors.Is(err, bufio.ErrTooLong):
		return nil, fmt.Errorf("a line has more than %d bytes", maxDocument)
	case err != nil:
		return nil, err
	case len(s.Windows) == 0:
		return nil, errors.New("no text has two tokens")
	}
	s.Available = len(s.Windows)
	if o.MaxWindows > 0 {
		s.Windows = s.Windows[:min(o.MaxWindows, len(s.Windows))]
	}
	return s, nil
}
