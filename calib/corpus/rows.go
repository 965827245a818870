package corpus

import (
	"bufio"
	"fmt"
	"io"
	"unicode"
	"unicode/utf8"
)

// JoinRows rebuilds from WikiText's raw file the string that the Hugging Face
// dataset gives when its rows are joined with "\n\n": every line is a row, with
// its newline if there is something on it and empty otherwise. Line ends are
// those of Python's text mode. The text must be UTF-8.
func JoinRows(text io.Reader) io.Reader {
	return &rows{in: bufio.NewReaderSize(text, 64<<10), first: true}
}

// maxBlank bounds the white space that a line begins with, which is held until
// there is something on the line.
const maxBlank = 16 << 20

// rows is the reader that [JoinRows] returns.
type rows struct {
	in   *bufio.Reader
	out  []byte // to be given
	done int    // of out
	err  error  // comes behind out

	first  bool   // no line has begun yet
	within bool   // a line has begun
	filled bool   // and has something on it
	blank  []byte // else what it begins with
}

func (r *rows) Read(p []byte) (int, error) {
	for r.done == len(r.out) {
		if r.err != nil {
			return 0, r.err
		}
		r.out, r.done = r.out[:0], 0
		for r.err == nil && len(r.out) < len(p) {
			r.err = r.next()
		}
	}
	n := copy(p, r.out[r.done:])
	r.done += n
	return n, nil
}

// next takes one character of the text.
func (r *rows) next() error {
	c, _, err := r.in.ReadRune()
	if err != nil {
		return err
	}
	if c == '\r' {
		c = '\n'
		if next, err := r.in.Peek(1); err == nil && next[0] == '\n' {
			_, _ = r.in.Discard(1)
		}
	}
	if !r.within {
		if !r.first {
			r.out = append(r.out, "\n\n"...)
		}
		r.first, r.within, r.filled, r.blank = false, true, false, r.blank[:0]
	}
	switch {
	case r.filled:
		r.out = utf8.AppendRune(r.out, c)
	case isSpace(c):
		r.blank = utf8.AppendRune(r.blank, c)
		if len(r.blank) > maxBlank {
			return fmt.Errorf("a line begins with more than %d bytes of white space", maxBlank)
		}
	default:
		r.filled = true
		r.out = utf8.AppendRune(append(r.out, r.blank...), c)
	}
	r.within = c != '\n'
	return nil
}

// isSpace is Python's str.isspace, which counts the four information
// separators as well.
func isSpace(r rune) bool { return unicode.IsSpace(r) || r >= 0x1c && r <= 0x1f }
