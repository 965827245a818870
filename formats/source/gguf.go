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

	"github.com/lutq/lutq/formats/gguf"
	"github.com/lutq/lutq/formats/hf"
	"github.com/lutq/lutq/formats/input"
)

const suffixGGUF = ".gguf"

// GGUF returns the GGUF file that a model is in: the path itself, or the only one in a
// folder without safetensors, be it in parts. "" is for a model in another format. A path that
// does not exist, and a folder of the Hugging Face cache, whose models are in folders of their own, are
// errors with a hint.
func GGUF(model string) (string, error) {
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

// Notes returns what is odd about a GGUF file, a line each; of a model in another format nothing.
func Notes(model string) ([]string, error) {
	path, err := GGUF(model)
	if path == "" || err != nil {
		return nil, err
	}
	f, err := gguf.Open(path)
	if err != nil {
		return nil, err
	}
	return f.Notes(), f.Close()
}

// File reads a file of a model beside its weights, such as tokenizer.json. Where the model is a
// GGUF file it is made of what that has.
func File(model, name string, kind input.Kind) ([]byte, error) {
	path, err := GGUF(model)
	if err != nil {
		return nil, err
	}
	if path == "" {
		return input.ReadFile(filepath.Join(model, name), kind)
	}
	f, err := gguf.Open(path)
	if err != nil {
		return nil, err
	}
	make, ok := f.SideFiles()[name]
	if !ok {
		return nil, errors.Join(fmt.Errorf("%s: %s: %w", path, name, fs.ErrNotExist), f.Close())
	}
	data, err := make()
	if err != nil {
		err = fmt.Errorf("%s: %s: %w", path, name, err)
	}
	return data, errors.Join(err, f.Close())
}
