package main

import (
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/rivo/uniseg"
	"golang.org/x/sys/unix"
)

// pseudoTerminal opens a terminal, and the end that sees what is written to it.
func pseudoTerminal(t *testing.T) (screen, terminal *os.File) {
	t.Helper()
	screen, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { screen.Close() })
	number, err := unix.IoctlGetInt(int(screen.Fd()), unix.TIOCGPTN)
	if err == nil {
		err = unix.IoctlSetPointerInt(int(screen.Fd()), unix.TIOCSPTLCK, 0)
	}
	if err == nil {
		terminal, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|unix.O_NOCTTY, 0)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { terminal.Close() })
	return screen, terminal
}

// drawn returns the lines that have been drawn on a terminal since the last time,
// one over another.
func drawn(t *testing.T, screen, terminal *os.File) []string {
	t.Helper()
	const end = "\a"
	if _, err := terminal.WriteString(end); err != nil {
		t.Fatal(err)
	}
	text, buf := "", make([]byte, 1<<12)
	for !strings.HasSuffix(text, end) {
		n, err := screen.Read(buf)
		if err != nil {
			t.Fatal(err)
		}
		text += string(buf[:n])
	}
	text = regexp.MustCompile("\x1b\\[[0-9]*[A-Z]").ReplaceAllString(strings.TrimSuffix(text, end), "")
	var lines []string
	for _, line := range strings.FieldsFunc(text, func(r rune) bool { return r == '\r' || r == '\n' }) {
		if strings.TrimSpace(line) != "" {
			lines = append(lines, line)
		}
	}
	return lines
}

// TestProgressFits draws the bar on terminals of 20 to 200 columns, which it must
// not reach the end of, and on one that becomes narrower.
func TestProgressFits(t *testing.T) {
	t.Setenv("TERM", "xterm")
	screen, terminal := pseudoTerminal(t)
	resize := func(columns int) {
		if err := unix.IoctlSetWinsize(int(terminal.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: 24, Col: uint16(columns)}); err != nil {
			t.Fatal(err)
		}
	}
	u := &ui{stderr: terminal}
	check := func(name string, columns int) {
		t.Helper()
		lines := drawn(t, screen, terminal)
		if len(lines) == 0 {
			t.Errorf("%s: nothing in %d columns", name, columns)
		}
		for _, line := range lines {
			if n := uniseg.StringWidth(line); n >= columns {
				t.Errorf("%s: %d of %d columns: %q", name, n, columns, line)
			}
			if !strings.Contains(line, "%") || !strings.Contains(line, "|") {
				t.Errorf("%s: no bar in %d columns: %q", name, columns, line)
			}
		}
	}
	for name, s := range statuses() {
		if s.done == s.total {
			continue // which clears the line
		}
		for columns := 20; columns <= 200; columns++ {
			resize(columns)
			p := u.startProgress(s.what, s.total, s.bytes)
			p.begin = time.Now().Add(-time.Hour)
			p.set(s.done, s.item)
			check(name, columns)
			p.finish()
			if lines := drawn(t, screen, terminal); len(lines) > 0 {
				t.Errorf("%s: %q is left on %d columns", name, lines, columns)
			}
		}
	}
	p := u.startProgress("quantizing", 100, false)
	for _, columns := range []int{120, 30, 20, 95} {
		resize(columns)
		p.last = time.Time{}
		p.set(int64(columns)/2, "model.layers.0.mlp.down_proj.weight")
		check("resized", columns)
	}
}
