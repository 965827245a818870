// Package corpus turns a text file into the token windows of a named
// perplexity protocol.
//
// A perplexity means something only beside the exact rule by which its text
// became windows of tokens, so each rule has a name here:
//
//   - raw: the file as it stands, tokenized once without special tokens, cut
//     into consecutive windows, every token after a window's first scored.
//   - gptq: the same after rebuilding the rows of the WikiText dataset from its
//     raw file and joining them with blank lines; BOS once at the very start
//     where the tokenizer adds it. This is what papers report.
//   - llama.cpp: the file as it stands in windows of 512 tokens, each window's
//     first token replaced by BOS where the tokenizer adds it, only the second
//     half of a window scored (llama-perplexity's rule).
package corpus

import (
	"errors"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/lutq/lutq/formats/input"
)

// Tokenizer is what a corpus needs to know about a tokenizer.
type Tokenizer interface {
	// Encode returns the ids of text; special asks for the special tokens that
	// the tokenizer puts around a text. A corpus always encodes without them
	// and places BOS itself, where its protocol says.
	Encode(text string, special bool) ([]int, error)
	// BOS returns the id that the tokenizer puts before a text, if it does.
	BOS() (id int, ok bool)
}

// Protocol names an evaluation protocol.
type Protocol string

// The protocols, as the package comment describes them.
const (
	Raw      Protocol = "raw"
	GPTQ     Protocol = "gptq"
	LlamaCPP Protocol = "llama.cpp"
)

// ParseProtocol checks the spelling of a protocol.
func ParseProtocol(s string) (Protocol, error) {
	switch p := Protocol(s); p {
	case Raw, GPTQ, LlamaCPP:
		return p, nil
	}
	return "", fmt.Errorf("unknown protocol %q: want raw, gptq or llama.cpp", s)
}

// DefaultContext returns the protocol's window length in tokens.
func (p Protocol) DefaultContext() int {
	if p == LlamaCPP {
		return 512
	}
	return 2048
}

// BOS says where the beginning-of-sequence token goes.
type BOS string

// The placements. With BOSWindow the llama.cpp protocol overwrites each
// window's first token; the others put BOS before ctx−1 tokens of text, so
// that no token of the text is lost.
const (
	BOSDefault BOS = ""       // as the protocol and the tokenizer say
	BOSNone    BOS = "none"   // nowhere
	BOSStart   BOS = "start"  // once, before the text
	BOSWindow  BOS = "window" // first in every window
)

// ParseBOS checks the spelling of a placement; "" is the protocol's own.
func ParseBOS(s string) (BOS, error) {
	switch b := BOS(s); b {
	case BOSDefault, BOSNone, BOSStart, BOSWindow:
		return b, nil
	}
	return "", fmt.Errorf("unknown BOS placement %q: want none, start or window", s)
}

// Window is one stretch of tokens that a model reads from position 0.
type Window struct {
	Tokens []int
	// ScoreFrom is the index of the first token that is scored as a target,
	// at least 1: the prediction made at ScoreFrom−1 is the first that counts.
	ScoreFrom int
}

// Targets returns the number of scored tokens.
func (w Window) Targets() int { return len(w.Tokens) - w.ScoreFrom }

// Set is a text cut into windows, and how that was done.
type Set struct {
	Protocol Protocol
	BOS      BOS // where BOS went: none, start or window
	Context  int // tokens of a window

	TextTokens int // tokens of the whole text, without BOS
	Dropped    int // tokens of the text after the last full window
	Available  int // full windows in the text, of which Windows may be the first few
	Windows    []Window
}

// Tokens returns the number of tokens in the windows, BOS included.
func (s *Set) Tokens() int {
	n := 0
	for _, w := range s.Windows {
		n += len(w.Tokens)
	}
	return n
}

// Targets returns the number of scored tokens in the windows.
func (s *Set) Targets() int {
	n := 0
	for _, w := range s.Windows {
		n += w.Targets()
	}
	return n
}

// Options says how to cut a text. The zero value is the raw protocol as it is
// defined, over the whole text.
type Options struct {
	Protocol   Protocol // "" is Raw
	BOS        BOS      // overrides the protocol's placement
	Context    int      // tokens of a window; 0 is the protocol's default
	MaxWindows int      // 0 is all

	// BOSToken is the id to use where BOS asks for one and the tokenizer adds
	// none by itself; a model's configuration often names it.
	BOSToken *int
}

// ReadFile returns the bytes of a text file, unchanged.
func ReadFile(path string) (string, error) {
	b, err := input.ReadFile(path, input.Text)
	if err != nil {
		return "", fmt.Errorf("read text: %w", err)
	}
	text := string(b)
	if err := check(text); err != nil {
		return "", fmt.Errorf("%s: %w", path, err)
	}
	return text, nil
}

func check(text string) error {
	if text == "" {
		return errors.New("text is empty")
	}
	for i := 0; i < len(text); {
		r, n := utf8.DecodeRuneInString(text[i:])
		if r == utf8.RuneError && n == 1 {
			return fmt.Errorf("text is not UTF-8 at byte %d", i)
		}
		i += n
	}
	return nil
}

// Build tokenizes text and cuts it into windows.
func Build(text string, tok Tokenizer, o Options) (*Set, error) {
	s, bos, err := o.resolve(tok)
	if err != nil {
		return nil, err
	}
	if err := check(text); err != nil {
		return nil, err
	}
	if s.Protocol == GPTQ {
		text = JoinRows(text)
	}
	ids, err := tok.Encode(text, false)
	if err != nil {
		return nil, fmt.Errorf("tokenize text: %w", err)
	}
	s.TextTokens = len(ids)
	s.cut(ids, bos, o.MaxWindows)
	if len(s.Windows) == 0 {
		return nil, fmt.Errorf("text has %d tokens: fewer than one window of %d", s.TextTokens, s.Context)
	}
	return s, nil
}

// resolve checks the options and fills in what they leave to the protocol and
// the tokenizer: the set's description, and the id of BOS where it is used.
func (o Options) resolve(tok Tokenizer) (*Set, int, error) {
	s := &Set{Protocol: o.Protocol, Context: o.Context}
	if s.Protocol == "" {
		s.Protocol = Raw
	}
	if _, err := ParseProtocol(string(s.Protocol)); err != nil {
		return nil, 0, err
	}
	if s.Context == 0 {
		s.Context = s.Protocol.DefaultContext()
	}
	// The second half of three tokens is the shortest that has a target.
	if s.Context < 3 {
		return nil, 0, fmt.Errorf("window of %d tokens: want at least 3", s.Context)
	}
	if o.MaxWindows < 0 {
		return nil, 0, fmt.Errorf("limit of %d windows: want 0 (all) or more", o.MaxWindows)
	}

	bos, added := tok.BOS()
	switch o.BOS {
	case BOSDefault:
		s.BOS = BOSNone
		if added {
			switch s.Protocol {
			case GPTQ:
				s.BOS = BOSStart
			case LlamaCPP:
				s.BOS = BOSWindow
			}
		}
	case BOSNone:
		s.BOS = BOSNone
	case BOSStart, BOSWindow:
		s.BOS = o.BOS
		if !added {
			if o.BOSToken == nil {
				return nil, 0, fmt.Errorf("BOS placement %q: neither tokenizer nor configuration names a BOS token", o.BOS)
			}
			bos = *o.BOSToken
		}
	default:
		_, err := ParseBOS(string(o.BOS))
		return nil, 0, err
	}
	return s, bos, nil
}

// cut fills the windows from the ids of the text.
func (s *Set) cut(ids []int, bos, limit int) {
	// llama.cpp tokenizes with BOS in front and then overwrites the first
	// token of each window: the text stays shifted by one throughout.
	shifted := s.BOS == BOSStart || s.BOS == BOSWindow && s.Protocol == LlamaCPP
	if shifted {
		ids = append([]int{bos}, ids...)
	}
	step := s.Context
	if s.BOS == BOSWindow && !shifted {
		step--
	}
	scoreFrom := 1
	if s.Protocol == LlamaCPP {
		scoreFrom = s.Context/2 + 1
	}

	s.Available = len(ids) / step
	s.Dropped = len(ids) - s.Available*step
	n := s.Available
	if limit > 0 {
		n = min(n, limit)
	}
	s.Windows = make([]Window, n)
	for i := range s.Windows {
		tokens := ids[i*step : (i+1)*step : (i+1)*step]
		switch {
		case s.BOS == BOSWindow && shifted:
			tokens[0] = bos
		case s.BOS == BOSWindow:
			tokens = append([]int{bos}, tokens...)
		}
		s.Windows[i] = Window{Tokens: tokens, ScoreFrom: scoreFrom}
	}
}

// JoinRows rebuilds from WikiText's raw file the string that the Hugging Face
// dataset gives when its rows are joined with "\n\n": every line is a row, with
// its newline if there is something on it and empty otherwise. Line ends are
// those of Python's text mode.
func JoinRows(text string) string {
	text = strings.NewReplacer("\r\n", "\n", "\r", "\n").Replace(text)
	var b strings.Builder
	b.Grow(len(text) + len(text)/8)
	first := true
	for line := range strings.Lines(text) {
		if !first {
			b.WriteString("\n\n")
		}
		first = false
		if strings.TrimFunc(line, isSpace) != "" {
			b.WriteString(line)
		}
	}
	return b.String()
}

// isSpace is Python's str.isspace, which counts the four information
// separators as well.
func isSpace(r rune) bool { return unicode.IsSpace(r) || r >= 0x1c && r <= 0x1f }
