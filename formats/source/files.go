package source

import (
	"cmp"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/lutq/lutq/formats/added"
	"github.com/lutq/lutq/formats/input"
	"github.com/lutq/lutq/formats/lutq"
	"github.com/lutq/lutq/formats/ranks"
)

// The files beside weights that a model is asked for by name.
const (
	configName = "config.json"
	// TokenizerFile holds a tokenizer, but for what files beside it say of added tokens.
	TokenizerFile = "tokenizer.json"
	// EndsFile names the tokens that end a text.
	EndsFile = "generation_config.json"
)

// File reads a file of the model beside its weights, such as tokenizer.json. Those of a GGUF file are made of what that has.
// The error of one that is not there wraps [fs.ErrNotExist].
func (m *Model) File(name string, kind input.Kind) ([]byte, error) {
	if m.file == "" {
		return input.ReadFile(filepath.Join(m.path, name), kind)
	}
	f, err := m.pairs()
	if err != nil {
		return nil, err
	}
	make, ok := f.SideFiles()[name]
	if !ok {
		return nil, fmt.Errorf("%s: %s: %w", m.file, name, fs.ErrNotExist)
	}
	data, err := make()
	if err != nil {
		return nil, fmt.Errorf("%s: %s: %w", m.file, name, err)
	}
	return data, nil
}

// Text reads a file of the model that is a configuration, or a small text.
func (m *Model) Text(name string) ([]byte, error) { return m.File(name, input.Config) }

// List returns the names of the files in a folder of the model, sorted: none where there is no such folder.
func (m *Model) List(folder string) []string {
	entries, err := os.ReadDir(filepath.Join(m.path, folder))
	if err != nil || m.file != "" {
		return nil
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

// Check holds files beside a container's weights against its digests. Of any other model there is nothing to hold them against.
func (m *Model) Check(names ...string) error {
	if m.file != "" || m.o.Unchecked {
		return nil
	}
	config, err := m.config()
	if err != nil {
		return err
	}
	return lutq.CheckFiles(m.path, config, names...)
}

// TokenizerFiles returns the names of the files that the model's tokenizer is read from, [TokenizerFile] first, or the one of
// [ranks.Files] that the model has instead. That of a GGUF file has all.
func (m *Model) TokenizerFiles() []string {
	if m.file != "" {
		return []string{TokenizerFile}
	}
	return append([]string{cmp.Or(ranks.In(m.path), TokenizerFile)}, added.Files()...)
}

// TokenizerSum tells tokenizers apart: two models of the same sum read a text alike. The error of a model without a tokenizer
// wraps [fs.ErrNotExist].
func (m *Model) TokenizerSum() (string, error) {
	d, err := m.Decoder()
	if err != nil {
		return "", err
	}
	h := sha256.New()
	for i, name := range m.TokenizerFiles() {
		data, err := m.File(name, input.Tokenizer)
		if err != nil && (i == 0 || !errors.Is(err, fs.ErrNotExist)) {
			return "", err
		}
		fmt.Fprintf(h, "%s %d %t\n", name, len(data), err == nil)
		h.Write(data)
	}
	if d.BOS != nil {
		fmt.Fprintf(h, "bos %d\n", *d.BOS)
	}
	return string(h.Sum(nil)), nil
}

// SpecialTokens returns the special tokens that have names, such as bos_token, as transformers gives them to chat templates.
func (m *Model) SpecialTokens() (map[string]string, error) {
	var tokens map[string]string
	beside, err := added.Read(m.Text)
	if err == nil {
		tokens, err = beside.Named()
	}
	if of, ok := errors.AsType[*added.Error](err); ok {
		return nil, fmt.Errorf("%s: %w", filepath.Join(m.path, of.File), of.Err)
	}
	if err == nil && m.file == "" && len(tokens) == 0 {
		return ranks.SpecialTokens(ranks.In(m.path)), nil
	}
	return tokens, err
}

// Ends returns the tokens that end a text, as [arch.Decoder.Ends] finds them.
func (m *Model) Ends() ([]int, error) {
	d, err := m.Decoder()
	if err != nil {
		return nil, err
	}
	generation, err := m.Text(EndsFile)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	ends, err := d.Ends(generation)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", m.path, err)
	}
	return ends, nil
}
