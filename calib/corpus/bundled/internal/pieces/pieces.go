// Package pieces reads the bundled calibration text from its files, and packs and unpacks it.
package pieces

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"strings"
	"unicode/utf8"
)

// Piece is a file of the text. Its path is KIND/LANGUAGE/NAME.
type Piece struct {
	Path string `json:"path"`
	// Text is what the file holds, if it is no chat.
	Text string `json:"text,omitempty"`
	// Chats is what a file of the kind chat holds: conversations, each of messages.
	Chats [][]Message `json:"chats,omitempty"`
}

// Message is one of a conversation.
type Message struct {
	Role    string `json:"role"`
	Content string `json:"content"`
}

// Kind returns the first part of the path, and Language the second.
func (p Piece) Kind() string { return strings.Split(p.Path, "/")[0] }

// Language is that of prose, or the programming language of code.
func (p Piece) Language() string { return strings.Split(p.Path, "/")[1] }

// Read reads the pieces of a folder, in the order of their paths.
func Read(dir fs.FS) ([]Piece, error) {
	var all []Piece
	err := fs.WalkDir(dir, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		if strings.Count(name, "/") != 2 {
			return fmt.Errorf("%s: want KIND/LANGUAGE/NAME", name)
		}
		data, err := fs.ReadFile(dir, name)
		if err != nil {
			return err
		}
		if !utf8.Valid(data) {
			return fmt.Errorf("%s: not UTF-8", name)
		}
		p := Piece{Path: name}
		if p.Kind() != "chat" {
			p.Text = string(data)
		} else if err := json.Unmarshal(data, &p.Chats); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		if p.Kind() == "chat" && path.Ext(name) != ".json" {
			return fmt.Errorf("%s: want chats in JSON", name)
		}
		all = append(all, p)
		return nil
	})
	return all, err
}

// Lines writes pieces as JSON lines, which is what is packed.
func Lines(all []Piece) ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	for _, p := range all {
		if err := e.Encode(p); err != nil {
			return nil, err
		}
	}
	return b.Bytes(), nil
}

// Pack compresses lines.
func Pack(lines []byte) ([]byte, error) {
	var b bytes.Buffer
	w, err := gzip.NewWriterLevel(&b, gzip.BestCompression)
	if err != nil {
		return nil, err
	}
	if _, err := w.Write(lines); err != nil {
		return nil, err
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	return b.Bytes(), nil
}

// Unpack returns the lines of what Pack made.
func Unpack(packed []byte) ([]byte, error) {
	r, err := gzip.NewReader(bytes.NewReader(packed))
	if err != nil {
		return nil, err
	}
	return io.ReadAll(r)
}

// Parse reads the pieces that lines hold.
func Parse(lines []byte) ([]Piece, error) {
	var all []Piece
	d := json.NewDecoder(bytes.NewReader(lines))
	for {
		var p Piece
		switch err := d.Decode(&p); {
		case errors.Is(err, io.EOF):
			return all, nil
		case err != nil:
			return nil, err
		}
		all = append(all, p)
	}
}
