package tokenizer

import (
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/dlclark/regexp2/v2"
)

// A hostile regular expression may take time exponential in the length of the text. The reference gives up
// after ten million steps of a match; here a match has the patience, and all of a text that and some for each
// byte. Real tokenizers take a thousandth of it.
const (
	patience        = 10 * time.Second
	patiencePerByte = 10 * time.Microsecond
	maxBacktracking = 1 << 22 // places that a match may come back to, each of eight bytes
)

var errPatience = errors.New("a regular expression of the tokenizer takes too much time or memory on this text")

// deadlineFor is when work on a text of n bytes that begins now ends.
func deadlineFor(n int) time.Time {
	return time.Now().Add(patience + time.Duration(n)*patiencePerByte)
}

// A finder finds what a step looks for. find calls emit with the start and end of each match, from left to right, and
// fails after the deadline.
type finder interface {
	find(text string, deadline time.Time, emit func(start, end int)) error
}

type (
	// literal finds a string that is not empty.
	literal string
	// oneOf finds single characters.
	oneOf func(rune) bool
	// runs finds the longest runs of characters of one class that is not 0.
	runs func(rune) int
	// regex finds what a regular expression matches.
	regex struct{ re *regexp2.Regexp }
)

func (l literal) find(text string, _ time.Time, emit func(start, end int)) error {
	for at := 0; ; {
		i := strings.Index(text[at:], string(l))
		if i < 0 {
			return nil
		}
		emit(at+i, at+i+len(l))
		at += i + len(l)
	}
}

func (is oneOf) find(text string, _ time.Time, emit func(start, end int)) error {
	for i, r := range text {
		if is(r) {
			emit(i, i+utf8.RuneLen(r))
		}
	}
	return nil
}

func (class runs) find(text string, _ time.Time, emit func(start, end int)) error {
	start, current := 0, 0
	for i, r := range text {
		if c := class(r); c != current {
			if current != 0 {
				emit(start, i)
			}
			start, current = i, c
		}
	}
	if current != 0 {
		emit(start, len(text))
	}
	return nil
}

// wordClass tells the characters of words, white space (0) and others apart.
func wordClass(r rune) int {
	switch {
	case isWord(r):
		return 1
	case unicode.IsSpace(r):
		return 0
	}
	return 2
}

// newRegex compiles a regular expression that has the reference's syntax.
func newRegex(pattern string) (regex, error) {
	translated, err := translate(pattern)
	if err != nil {
		return regex{}, fmt.Errorf("regular expression %s: %w", quote(pattern), err)
	}
	re, err := regexp2.Compile(translated, regexp2.OptionMaxBacktrackingStackSize(maxBacktracking))
	if err != nil { // translate knows what it writes
		return regex{}, fmt.Errorf("regular expression %s is not supported", quote(pattern))
	}
	re.MatchTimeout = patience
	return regex{re}, nil
}

func (r regex) find(text string, deadline time.Time, emit func(start, end int)) error {
	at, offset := 0, 0 // a place in the text, in characters and in bytes
	last := -1         // where the match before ends
	late := false
	err := r.re.FindRunesMatches([]rune(text), -1, func(m regexp2.MatchView) bool {
		index, length, _ := m.GroupRange(0)
		for ; at < index; at++ {
			_, n := utf8.DecodeRuneInString(text[offset:])
			offset += n
		}
		start := offset
		for ; at < index+length; at++ {
			_, n := utf8.DecodeRuneInString(text[offset:])
			offset += n
		}
		// As in the reference a match that is empty is none right behind another.
		if offset > start || start != last {
			emit(start, offset)
		}
		last = offset
		late = time.Now().After(deadline)
		return !late
	})
	if err != nil || late {
		return errPatience
	}
	return nil
}
