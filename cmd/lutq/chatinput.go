package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"strings"

	"golang.org/x/term"

	"github.com/lutq/lutq/formats/input"
)

// errCtrlC is the error of a prompt that was answered by Ctrl-C.
var errCtrlC = errors.New("interrupted at the prompt")

// turnReader tells what a user says next.
type turnReader interface {
	// next returns what is said, of one line or more. It fails with io.EOF where nothing more is, with errCtrlC, and with
	// the cause of a context that ends.
	next(ctx context.Context) (string, error)
}

// patient is a reader that can be given up: what comes later is there for the next one who asks.
type patient struct {
	r      io.Reader
	ctx    context.Context // of the reading at hand
	coming chan arrived
	data   []byte
	err    error
}

type arrived struct {
	data []byte
	err  error
}

func (p *patient) Read(b []byte) (int, error) {
	for len(p.data) == 0 {
		if p.err != nil {
			return 0, p.err
		}
		if p.coming == nil {
			coming := make(chan arrived, 1)
			p.coming = coming
			go func() {
				data := make([]byte, 1<<12)
				n, err := p.r.Read(data)
				coming <- arrived{data[:n], err}
			}()
		}
		select {
		case a := <-p.coming:
			p.coming, p.data, p.err = nil, a.data, a.err
		case <-p.ctx.Done():
			return 0, context.Cause(p.ctx)
		}
	}
	n := copy(b, p.data)
	p.data = p.data[n:]
	return n, nil
}

// pipedTurns are lines of what is no terminal, or of one whose answers go elsewhere.
type pipedTurns struct {
	from   *patient
	lines  *bufio.Reader
	prompt func()
}

func newPipedTurns(stdin io.Reader, prompt func()) *pipedTurns {
	from := &patient{r: stdin}
	return &pipedTurns{from, bufio.NewReader(input.UTF8(input.Limited(from, input.Text))), prompt}
}

func (p *pipedTurns) next(ctx context.Context) (string, error) {
	p.from.ctx = ctx
	p.prompt()
	line, err := p.lines.ReadString('\n')
	if errors.Is(err, io.EOF) && line != "" {
		err = nil // the last line has no end
	}
	return strings.TrimRight(line, "\r\n"), err
}

// typedTurns are what is typed on a terminal, in a line that can be edited and called back. What is pasted is one turn,
// however many lines it has.
type typedTurns struct {
	from           *patient
	stdin          *os.File
	stdout         io.Writer
	columns        func() int
	prompt         string
	line           *term.Terminal
	withoutPasting bool // of a terminal that does not know of it
}

// interruptedBy ends reading at Ctrl-C, which a terminal that is being edited on sends like any key.
type interruptedBy struct{ *patient }

func (r interruptedBy) Read(b []byte) (int, error) {
	n, err := r.patient.Read(b)
	if i := bytes.IndexByte(b[:n], 3); i >= 0 {
		r.data = append(bytes.Clone(b[i+1:n]), r.data...)
		return i, errCtrlC
	}
	return n, err
}

func (t *typedTurns) next(ctx context.Context) (string, error) {
	t.from.ctx = ctx
	was, err := term.MakeRaw(int(t.stdin.Fd()))
	if err != nil {
		return "", err
	}
	defer func() { _ = term.Restore(int(t.stdin.Fd()), was) }()
	if t.line == nil {
		t.line = term.NewTerminal(struct {
			io.Reader
			io.Writer
		}{interruptedBy{t.from}, t.stdout}, t.prompt)
	}
	if n := t.columns(); n > 0 {
		_ = t.line.SetSize(n, 1) // which fails where nothing can be drawn
	}
	if !t.withoutPasting {
		t.line.SetBracketedPasteMode(true)
		defer t.line.SetBracketedPasteMode(false)
	}
	var said []string
	for {
		line, err := t.line.ReadLine()
		if err != nil && !errors.Is(err, term.ErrPasteIndicator) {
			// What was begun is forgotten, but not the lines before.
			history := t.line.History
			_, _ = io.WriteString(t.stdout, "\r\n")
			defer func() {
				t.line = term.NewTerminal(struct {
					io.Reader
					io.Writer
				}{interruptedBy{t.from}, t.stdout}, t.prompt)
				t.line.History = history
			}()
			return "", err
		}
		said = append(said, line)
		if err == nil {
			return strings.TrimRight(strings.Join(said, "\n"), "\n"), nil
		}
	}
}
