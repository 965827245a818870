package tokenizer

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// fileName is the file that this package reads.
const fileName = "tokenizer.json"

// OtherFormatError is the error of a folder whose tokenizer is there, but not as a tokenizer.json.
type OtherFormatError struct {
	Folder string
	Files  []string // that hold it
}

func (e *OtherFormatError) Error() string {
	return fmt.Sprintf("%s: no %s, and its tokenizer in %s is not read", e.Folder, fileName, strings.Join(e.Files, " and "))
}

// Unwrap says that the file is missing.
func (e *OtherFormatError) Unwrap() error { return fs.ErrNotExist }

// Hint says what to do about it.
func (e *OtherFormatError) Hint() string {
	return fmt.Sprintf(`transformers makes one of it: python -c "import sys, transformers; d = sys.argv[1]; transformers.AutoTokenizer.from_pretrained(d).save_pretrained(d)" '%s'`, e.Folder)
}

// otherFormat returns an [OtherFormatError] where the folder has a tokenizer in another format, or nil.
func otherFormat(folder string, err error) error {
	if !errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	for _, files := range [][]string{{"tokenizer.model"}, {"vocab.json", "merges.txt"}, {"spiece.model"}} {
		there := true
		for _, name := range files {
			_, err := os.Stat(filepath.Join(folder, name))
			there = there && err == nil
		}
		if there {
			return &OtherFormatError{folder, files}
		}
	}
	return nil
}
