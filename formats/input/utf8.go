package input

import (
	"errors"
	"fmt"
	"io"
	"unicode/utf8"
)

// NotUTF8Error means that a text holds bytes that are no characters.
type NotUTF8Error struct {
	Offset int64 // of the first such byte
}

func (e *NotUTF8Error) Error() string { return fmt.Sprintf("text is not UTF-8 at byte %d", e.Offset) }

// UTF8 returns a reader of r's bytes that fails with a [NotUTF8Error] as soon as
// they are no longer UTF-8.
func UTF8(r io.Reader) io.Reader { return &utf8Reader{r: r} }

type utf8Reader struct {
	r     io.Reader
	given int64             // bytes, without those of begun
	begun []byte            // a character whose end has not been read
	room  [utf8.UTFMax]byte // for begun
}

func (u *utf8Reader) Read(p []byte) (int, error) {
	n, err := u.r.Read(p)
	if checkErr := u.check(p[:n], errors.Is(err, io.EOF)); checkErr != nil {
		return 0, checkErr
	}
	return n, err
}

// check looks at the bytes that come next; end tells that they are the last.
func (u *utf8Reader) check(p []byte, end bool) error {
	for len(u.begun) > 0 && (len(p) > 0 || end) {
		if len(p) > 0 {
			u.begun, p = append(u.begun, p[0]), p[1:]
		}
		if !utf8.FullRune(u.begun) && !(end && len(p) == 0) {
			continue
		}
		if !utf8.Valid(u.begun) {
			return &NotUTF8Error{u.given}
		}
		u.given += int64(len(u.begun))
		u.begun = u.begun[:0]
	}
	if utf8.Valid(p) {
		u.given += int64(len(p))
		return nil
	}
	for len(p) > 0 {
		if !end && !utf8.FullRune(p) {
			u.begun = append(u.room[:0], p...)
			return nil
		}
		r, n := utf8.DecodeRune(p)
		if r == utf8.RuneError && n == 1 {
			return &NotUTF8Error{u.given}
		}
		u.given += int64(n)
		p = p[n:]
	}
	return nil
}
