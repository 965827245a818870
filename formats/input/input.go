// Package input opens the files that a user names, safely, and shows text from outside safely.
//
// Any file may be hostile: a pipe in place of a file, terabytes long, with control characters in its name. So all of
// the program opens files through this package. It reads no more of one than the file's [Kind] allows. Text from
// outside goes through [Name] or [Message] on its way to a terminal.
package input

import (
	"fmt"
	"io"
	"io/fs"
	"os"
	"syscall"
)

// Kind is a kind of file. Its value is what messages and help texts call it.
type Kind string

// The kinds of files that are read. Data of tensors and side files that are
// only copied have no limit, since no more than a buffer of them is in memory.
const (
	Config    Kind = "config.json"
	Index     Kind = "shard index"
	Header    Kind = "safetensors header"
	Tokenizer Kind = "tokenizer.json"
	GGUF      Kind = "GGUF header"
	Text      Kind = "text"
	Recipe    Kind = "recipe"
	Codebook  Kind = "codebook file"
	Factors   Kind = "file of factors"
	Journal   Kind = "journal"
	Mark      Kind = "mark of a folder"
	State     Kind = "header of the learning state"
	Kernel    Kind = "cached kernel"
	Written   Kind = "cached text"
	Listing   Kind = "list of a repository's files"
	Table     Kind = "Parquet file"
	System    Kind = "system file" // of /proc and /sys, which say that they are empty
)

// Limit returns the most bytes that a file of the kind may have. Those of
// published models stay below a tenth of it.
func (k Kind) Limit() int64 {
	switch k {
	case Config: // a container's names each of its tensors
		return 64e6
	case Index, Header: // the format's own limit for a header
		return 100e6
	case Factors: // six bytes for each component of a state
		return 256e6
	case Tokenizer, GGUF: // whose largest part is a tokenizer
		return 256e6
	case Text, Written, Table:
		return 500e6
	case Recipe, Mark:
		return 16e6
	case Codebook, System:
		return 1e6
	case Journal, State, Listing:
		return 64e6
	case Kernel:
		return 64e6
	}
	return 0
}

// TooLargeError is the error of a file above its kind's limit.
type TooLargeError struct {
	Kind Kind
	Size int64 // 0 where only reading on would tell
}

func (e *TooLargeError) Error() string {
	if e.Size == 0 {
		return fmt.Sprintf("more than the %d bytes that a %s may have", e.Kind.Limit(), e.Kind)
	}
	return fmt.Sprintf("%d bytes: a %s may have at most %d", e.Size, e.Kind, e.Kind.Limit())
}

// Open opens a file for reading. It never blocks: what is not a regular file,
// links followed, is an error.
func Open(path string) (*os.File, error) { return OpenFile(path, os.O_RDONLY, 0) }

// OpenFile is [os.OpenFile] for regular files, with [Open]'s promise.
func OpenFile(path string, flag int, perm fs.FileMode) (*os.File, error) {
	// Opening is an act of its own for some devices, so that one is not even tried.
	if info, err := os.Stat(path); err == nil {
		if err := regular(path, info); err != nil {
			return nil, err
		}
	}
	// It may have become another file since: opening a pipe then must not wait
	// for its other end.
	f, err := os.OpenFile(path, flag|syscall.O_NONBLOCK, perm)
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err == nil {
		err = regular(path, info)
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// regular returns the error for what is not a regular file.
func regular(path string, info fs.FileInfo) error {
	what := "not a regular file"
	switch mode := info.Mode(); {
	case mode.IsRegular():
		return nil
	case mode.IsDir():
		what = "is a folder: want a file"
	case mode&fs.ModeNamedPipe != 0:
		what = "is a pipe: want a regular file"
	case mode&fs.ModeSocket != 0:
		what = "is a socket: want a regular file"
	case mode&fs.ModeDevice != 0:
		what = "is a device: want a regular file"
	}
	return fmt.Errorf("%s %s", path, what)
}

// ReadFile reads a file of a kind.
func ReadFile(path string, kind Kind) ([]byte, error) {
	f, err := Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return ReadOpen(f, kind)
}

// CheckSize returns an error if a file is larger than its kind may be.
func CheckSize(f *os.File, kind Kind) error {
	info, err := f.Stat()
	if err != nil {
		return err
	}
	if size := info.Size(); size > kind.Limit() {
		return fmt.Errorf("%s: %w", f.Name(), &TooLargeError{kind, size})
	}
	return nil
}

// ReadOpen reads what is left of an open file, of which all must be within the
// kind's limit.
func ReadOpen(f *os.File, kind Kind) ([]byte, error) {
	if err := CheckSize(f, kind); err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	data, err := ReadAll(f, kind, info.Size())
	if err != nil {
		return nil, fmt.Errorf("%s: %w", f.Name(), err)
	}
	// A text may be of anything.
	if err := Placeholder(f.Name(), data, kind != Text); err != nil {
		return nil, err
	}
	return data, nil
}

// Limited returns a reader of r, which is something of a kind, that fails beyond
// the kind's limit.
func Limited(r io.Reader, kind Kind) io.Reader { return &limited{r, kind, kind.Limit()} }

type limited struct {
	r    io.Reader
	kind Kind
	left int64
}

func (l *limited) Read(p []byte) (int, error) {
	n, err := l.r.Read(p)
	if l.left -= int64(n); l.left < 0 {
		return 0, &TooLargeError{Kind: l.kind}
	}
	return n, err
}

// ReadAll reads all of r, which is something of a kind and has about size bytes.
func ReadAll(r io.Reader, kind Kind, size int64) ([]byte, error) {
	r = Limited(r, kind)
	data := make([]byte, 0, min(max(size, 0), kind.Limit())+512)
	for {
		n, err := r.Read(data[len(data):cap(data)])
		data = data[:len(data)+n]
		if err == io.EOF {
			return data, nil
		}
		if err != nil {
			return nil, err
		}
		if len(data) == cap(data) {
			data = append(data, 0)[:len(data)]
		}
	}
}
