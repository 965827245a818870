package input_test

import (
	"errors"
	"io"
	"strings"
	"testing"
	"testing/iotest"
	"unicode/utf8"

	"pgregory.net/rapid"

	"github.com/lutq/lutq/formats/input"
)

// invalidAt returns the offset of the first byte of a text that is not UTF-8, or -1.
func invalidAt(s string) int64 {
	for i := 0; i < len(s); {
		r, n := utf8.DecodeRuneInString(s[i:])
		if r == utf8.RuneError && n == 1 {
			return int64(i)
		}
		i += n
	}
	return -1
}

func checkUTF8(t interface{ Fatalf(string, ...any) }, text string) {
	for name, r := range map[string]io.Reader{
		"whole": strings.NewReader(text), "byte by byte": iotest.OneByteReader(strings.NewReader(text)),
		"halves": iotest.HalfReader(strings.NewReader(text)), "data with the end": iotest.DataErrReader(strings.NewReader(text)),
	} {
		got, err := io.ReadAll(input.UTF8(r))
		at := invalidAt(text)
		var invalid *input.NotUTF8Error
		switch {
		case at < 0 && (err != nil || string(got) != text):
			t.Fatalf("%s: %q: got %q, %v", name, text, got, err)
		case at >= 0 && (!errors.As(err, &invalid) || invalid.Offset != at || !strings.HasPrefix(text, string(got))):
			t.Fatalf("%s: %q: error %v, want one at byte %d", name, text, err, at)
		}
	}
}

func TestUTF8(t *testing.T) {
	for _, text := range []string{"", "plain", "ä€😀", "a\xff", "\x80", "€\xe2\x82", "\xe2\x82a", "\xed\xa0\x80", "\xf4\x90\x80\x80", "\xc0\xaf", "x\ufffd", "😀\xf0\x9f\x98"} {
		checkUTF8(t, text)
	}
	rapid.Check(t, func(t *rapid.T) {
		parts := rapid.SliceOf(rapid.SampledFrom([]string{"a", "ä", "€", "😀", "\xf0", "\x9f", "\xe2\x82", "text", "\ufffd"})).Draw(t, "parts")
		checkUTF8(t, strings.Join(parts, ""))
	})
}

func FuzzUTF8(f *testing.F) {
	f.Add("a€\xff")
	f.Fuzz(func(t *testing.T, text string) { checkUTF8(t, text) })
}
