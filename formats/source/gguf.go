package source

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/lutq/lutq/formats/hf"
)

const suffixGGUF = ".gguf"

// ggufIn returns the GGUF file that a model is in: the path itself, or the only one in a
// folder without safetensors, be it in parts. "" is for a model in another format. A path that
// does not exist, and a folder of the Hugging Face cache, whose models are in folders of their own, are
// errors with a hint.
func ggufIn(model string) (string, error) {
	info, err := os.Stat(model)
	if errors.Is(err, fs.ErrNotExist) {
		return "", &hf.NotFoundError{Model: model}
	}
	if err != nil {
		return "", nil // opening it says more
	}
	if !info.IsDir() {
		if strings.EqualFold(filepath.Ext(model), suffixGGUF) {
			return model, nil
		}
		return "", nil
	}
	entries, err := os.ReadDir(model)
	if err != nil {
		return "", nil
	}
	// Of parts the first stands for all.
	later := regexp.MustCompile(`-\d{5}-of-\d{5}\.gguf$`)
	var found []string
	for _, e := range entries {
		name := e.Name()
		switch {
		case strings.HasPrefix(name, "."):
		case strings.HasSuffix(name, ".safetensors"):
			return "", nil
		case strings.EqualFold(filepath.Ext(name), suffixGGUF) && (!later.MatchString(name) || strings.Contains(name, "-00001-of-")):
			found = append(found, name)
		}
	}
	switch len(found) {
	case 0:
		return "", hf.CheckSnapshots(model)
	case 1:
		return filepath.Join(model, found[0]), nil
	}
	slices.Sort(found)
	return "", &SeveralError{Dir: model, Files: found}
}

// SeveralError means that a folder has several GGUF files.
type SeveralError struct {
	Dir   string
	Files []string
}

func (e *SeveralError) Error() string {
	return fmt.Sprintf("%s: holds %d GGUF files, such as %s and %s", e.Dir, len(e.Files), e.Files[0], e.Files[1])
}

// Hint says what to do about it.
func (e *SeveralError) Hint() string {
	return "name the file, as in " + filepath.Join(e.Dir, e.Files[0])
}
