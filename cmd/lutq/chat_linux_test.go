package main

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// dialogue is chat on a terminal.
type dialogue struct {
	t      *testing.T
	screen *os.File
	seen   string // that was not waited for
}

// until reads what the terminal shows up to a text, and returns it.
func (d *dialogue) until(text string) string {
	d.t.Helper()
	buf := make([]byte, 64) // little, so that an answer waits for who reads it
	for {
		if before, after, ok := strings.Cut(d.seen, text); ok {
			d.seen = after
			return before
		}
		n, err := d.screen.Read(buf)
		if err != nil {
			d.t.Fatalf("waiting for %q: %v; the terminal shows\n%q", text, err, d.seen)
		}
		d.seen += string(buf[:n])
	}
}

func (d *dialogue) send(keys string) {
	d.t.Helper()
	if _, err := d.screen.WriteString(keys); err != nil {
		d.t.Fatal(err)
	}
}

// TestChatTerminal talks to a model on a terminal: Ctrl-C ends a turn, a second one at the prompt the session.
func TestChatTerminal(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "story")
	if err := os.CopyFS(dir, os.DirFS(tiny)); err != nil {
		t.Fatal(err)
	}
	const template = "{{ bos_token }}{% for m in messages %}{{ m.content }}\n{% endfor %}"
	if err := os.WriteFile(filepath.Join(dir, "chat_template.jinja"), []byte(template), 0o644); err != nil {
		t.Fatal(err)
	}
	screen, terminal := pseudoTerminal(t)
	if err := unix.IoctlSetWinsize(int(terminal.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: 24, Col: 80}); err != nil {
		t.Fatal(err)
	}
	c := program(t, "chat", dir, "--device", "cpu", "--threads", "1")
	c.Stdin, c.Stdout, c.Stderr = terminal, terminal, terminal
	c.Env = append(os.Environ(), "TERM=xterm")
	c.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	d := &dialogue{t: t, screen: screen}

	// The answer is longer than what a terminal takes unread, so that it is under way when it is interrupted.
	d.until("> ")
	d.send("Once upon a time\r")
	d.until("Once upon a time")
	d.until("\n")
	d.until("e")
	d.send("\x03")
	d.until("lutq: the answer was interrupted; Ctrl-C again ends the session")
	d.until("> ")

	// The session goes on, and has the turn.
	d.send("/history\r")
	d.until("you: Once upon a time\r\n")
	d.until("> ")

	// A line that was begun is forgotten by Ctrl-C. Called back, the line before comes again, and what was pasted is one turn.
	d.send("begun\x03")
	d.until("lutq: Ctrl-C again ends the session")
	d.until("> ")
	d.send("\x1b[A\r")
	d.until("you: Once upon a time\r\n")
	d.until("> ")
	d.send("/reset\r")
	d.until("lutq: the conversation begins anew")
	d.until("> ")
	d.send("\x1b[200~one\rtwo\x1b[201~\r")
	d.until("two")
	d.until("\n")
	d.until("e")
	d.send("\x03")
	d.until("interrupted; ")
	d.until("> ")
	d.send("/history\r")
	d.until("you: one\r\ntwo\r\n")
	d.until("> ")

	d.send("\x03")
	d.until("lutq: Ctrl-C again ends the session")
	d.until("> ")
	d.send("\x03")
	if err := c.Wait(); err != nil {
		t.Errorf("the session ended with %v", err)
	}
}

// TestColumnsOfTerminal: a terminal has the width that it says, or that COLUMNS does.
func TestColumnsOfTerminal(t *testing.T) {
	_, terminal := pseudoTerminal(t)
	if err := unix.IoctlSetWinsize(int(terminal.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: 24, Col: 80}); err != nil {
		t.Fatal(err)
	}
	for given, want := range map[string]int{"": 80, "60": 60, "0": 80, "-3": 80, "wide": 80} {
		t.Setenv("COLUMNS", given)
		if got := terminalColumns(terminal); got != want {
			t.Errorf("with COLUMNS of %q a terminal of 80 columns has %d, want %d", given, got, want)
		}
	}
}
