package input

import (
	"bytes"
	"fmt"
	"path/filepath"
)

// HeadSize is how much of a file's beginning [Placeholder] looks at.
const HeadSize = 512

// PlaceholderError means that a file is none of what it is named, but what a failed download left in its
// place.
type PlaceholderError struct {
	Path string
	Page bool // of HTML; otherwise a pointer of git-lfs
}

func (e *PlaceholderError) Error() string {
	if e.Page {
		return fmt.Sprintf("%s is a web page, not the file: download it again, logged in where the model asks for it", e.Path)
	}
	return fmt.Sprintf("%s is a git-lfs pointer, not the file: run git lfs pull in %s", e.Path, filepath.Dir(e.Path))
}

// Placeholder returns a [PlaceholderError] for a file that begins with head as a pointer of git-lfs does, or, unless it
// may be one, as a web page.
func Placeholder(path string, head []byte, page bool) error {
	if bytes.HasPrefix(head, []byte("version https://git-lfs.github.com/spec/")) {
		return &PlaceholderError{Path: path}
	}
	text := bytes.ToLower(bytes.TrimLeft(head[:min(len(head), HeadSize)], " \t\r\n\ufeff"))
	if page && (bytes.HasPrefix(text, []byte("<!doctype html")) || bytes.HasPrefix(text, []byte("<html"))) {
		return &PlaceholderError{Path: path, Page: true}
	}
	return nil
}
