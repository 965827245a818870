package input

import (
	"strconv"
	"strings"
	"unicode/utf8"
)

// The most characters of a name and of a message that are shown.
const (
	maxName    = 120
	maxMessage = 1000
)

// Name returns a name from a file as a message may show it: see [Printable]
// and [Cut].
func Name(s string) string { return show(s, maxName) }

// Message returns a message that may quote a file as one line that a terminal
// may show.
func Message(s string) string { return show(strings.ReplaceAll(s, "\n", "; "), maxMessage) }

func show(s string, n int) string {
	// No need to look at megabytes of which little is shown.
	if most := 8 * n; len(s) > most {
		s = strings.ToValidUTF8(s[:most/2], "") + "…" + strings.ToValidUTF8(s[len(s)-most/2:], "")
	}
	return Cut(Printable(s), n)
}

// Printable returns text in which everything that would not show as itself,
// such as escapes, line breaks, characters that turn the direction of writing
// and bytes that are not UTF-8, is spelled as in a Go string.
func Printable(s string) string {
	plain := true
	for _, r := range s {
		if !strconv.IsPrint(r) || r == utf8.RuneError {
			plain = false
			break
		}
	}
	if plain {
		return s
	}
	var b strings.Builder
	for len(s) > 0 {
		r, n := utf8.DecodeRuneInString(s)
		if strconv.IsPrint(r) && (r != utf8.RuneError || n > 1) {
			b.WriteString(s[:n])
		} else {
			q := strconv.Quote(s[:n])
			b.WriteString(q[1 : len(q)-1])
		}
		s = s[n:]
	}
	return b.String()
}

// Cut returns text of at most n characters: of a longer one the beginning and
// the end, with an ellipsis between them.
func Cut(s string, n int) string {
	if len(s) <= n || utf8.RuneCountInString(s) <= n {
		return s
	}
	r := []rune(s)
	head := (n - 1) / 2
	return string(r[:head]) + "…" + string(r[len(r)-(n-1-head):])
}
