// Package corpus turns a text file into windows of tokens, by the rules of a named perplexity protocol.
//
// A perplexity means something only beside the exact rule by which its text became windows. So each rule has a name:
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
	"io"
	"io/fs"
	"iter"
	"os"
	"path/filepath"
	"strings"

	"github.com/lutq/lutq/formats/input"
)

// Tokenizer is what a corpus needs to know about a tokenizer.
type Tokenizer interface {
	// Stream yields the ids of a text, a part of it at a time, and reads no more
	// of it than is asked for. They do not include the special tokens that the
	// tokenizer puts around a text: a corpus places BOS itself, where its
	// protocol says.
	Stream(text io.Reader) iter.Seq2[[]int, error]
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
	BOSHalf    BOS = "half"   // first in every second window of each text, of those to fit on
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

	Windows []Window

	// Whole tells that all of the text was read, and not only as much as
	// MaxWindows need. The counts are then of all of it, else of what was read.
	Whole      bool
	TextTokens int // tokens of the text, without BOS
	Dropped    int // tokens of the text after the last full window
	Available  int // full windows in the text, of which Windows may be the first few
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

// Place is where a token stands in a set.
type Place struct {
	Window, Token int
}

// Differs returns the first place where another set, cut in the same way, has another token, or has none, or one that this set
// has not.
func (s *Set) Differs(o *Set) (at Place, differs bool) {
	for w := range min(len(s.Windows), len(o.Windows)) {
		a, b := s.Windows[w].Tokens, o.Windows[w].Tokens
		for i := range min(len(a), len(b)) {
			if a[i] != b[i] {
				return Place{w, i}, true
			}
		}
	}
	return Place{min(len(s.Windows), len(o.Windows)), 0}, len(s.Windows) != len(o.Windows)
}

// Options says how to cut a text. The zero value is the raw protocol as it is
// defined, over the whole text.
type Options struct {
	Protocol Protocol // "" is Raw
	BOS      BOS      // overrides the protocol's placement
	Context  int      // tokens of a window; 0 is the protocol's default
	// MaxWindows is the number of windows to take from the beginning; 0 is all.
	// A long text is read only as far as they need.
	MaxWindows int

	// BOSToken is the id to use where BOS asks for one and the tokenizer adds
	// none by itself; a model's configuration often names it.
	BOSToken *int
}

// countedBytes is how much of a text is read in any case: to count the windows of
// an ordinary one takes a second.
const countedBytes = 4 << 20

// BuildFile cuts the text in a file into windows. Its errors name the file.
// Without MaxWindows the file must be within the limit of [input.Text].
func BuildFile(path string, tok Tokenizer, o Options) (*Set, error) {
	f, err := Open(path, o.MaxWindows)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	s, err := Build(f, tok, o)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return s, nil
}

// Open opens a text of which so many windows are needed; 0 is all.
func Open(path string, maxWindows int) (*os.File, error) {
	f, err := input.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, &NotFoundError{Path: path, err: err}
	}
	if err != nil {
		return nil, fmt.Errorf("read text: %w", err)
	}
	if maxWindows == 0 {
		err = input.CheckSize(f, input.Text)
	}
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("read text: %w", err)
	}
	return f, nil
}

// NotFoundError means that there is no file of a text.
type NotFoundError struct {
	Path string
	err  error
}

func (e *NotFoundError) Error() string { return "read text: " + e.err.Error() }

func (e *NotFoundError) Unwrap() error { return e.err }

// Hint says what is wanted, and of the data set that models are mostly compared on where to find it.
func (e *NotFoundError) Hint() string {
	const want = "a text is a file in UTF-8"
	if strings.ContainsAny(e.Path, `/\`) && !strings.Contains(strings.ToLower(e.Path), "wikitext") || filepath.Ext(e.Path) != "" {
		return want
	}
	return want + ", not the name of a data set: that of WikiText-2 is wiki.test.raw, or wiki.train.raw to calibrate with, which is what the rows of " +
		"Salesforce/wikitext on huggingface.co, configuration wikitext-2-raw-v1, hold one after another"
}

// Build tokenizes a text and cuts it into windows.
func Build(text io.Reader, tok Tokenizer, o Options) (*Set, error) {
	s, bos, err := o.resolve(tok)
	if err != nil {
		return nil, err
	}
	read := &counter{r: input.UTF8(text)}
	text = read
	if s.Protocol == GPTQ {
		text = JoinRows(read)
	}
	var ids []int
	if s.shifted() {
		ids = append(ids, bos)
	}
	enough := o.MaxWindows * s.step()
	s.Whole = true
	for some, err := range tok.Stream(text) {
		if err != nil {
			var invalid *input.NotUTF8Error
			if errors.As(err, &invalid) {
				return nil, err
			}
			return nil, fmt.Errorf("tokenize text: %w", err)
		}
		ids = append(ids, some...)
		if enough > 0 && len(ids) >= enough && read.n > countedBytes {
			s.Whole = false
			break
		}
	}
	if read.n == 0 {
		return nil, errors.New("text is empty")
	}
	s.cut(ids, bos, o.MaxWindows)
	if len(s.Windows) == 0 {
		return nil, fmt.Errorf("text has %d tokens: fewer than one window of %d", s.TextTokens, s.Context)
	}
	return s, nil
}

// counter counts the bytes that are read.
type counter struct {
	r io.Reader
	n int64
}

func (c *counter) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	c.n += int64(n)
	return n, err
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

// shifted tells whether BOS stands before the text's first token. llama.cpp
// tokenizes with BOS in front and then overwrites the first token of each window:
// the text stays shifted by one throughout.
func (s *Set) shifted() bool {
	return s.BOS == BOSStart || s.BOS == BOSWindow && s.Protocol == LlamaCPP
}

// step is how many tokens lie between the beginnings of two windows.
func (s *Set) step() int {
	if s.BOS == BOSWindow && !s.shifted() {
		return s.Context - 1
	}
	return s.Context
}

// cut fills the windows from the ids of the text, with BOS in front where they
// are shifted.
func (s *Set) cut(ids []int, bos, limit int) {
	step := s.step()
	scoreFrom := 1
	if s.Protocol == LlamaCPP {
		scoreFrom = s.Context/2 + 1
	}

	s.TextTokens = len(ids)
	if s.shifted() {
		s.TextTokens--
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
		case s.BOS == BOSWindow && s.shifted():
			tokens[0] = bos
		case s.BOS == BOSWindow:
			tokens = append([]int{bos}, tokens...)
		}
		s.Windows[i] = Window{Tokens: tokens, ScoreFrom: scoreFrom}
	}
}
