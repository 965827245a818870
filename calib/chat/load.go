package chat

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
)

const (
	templateFile = "chat_template.jinja"
	configFile   = "tokenizer_config.json"
)

// Files returns the names of the files in a model's folder that a template may come from.
func Files() []string { return []string{templateFile, configFile} }

// ErrNone is in the error for a folder without a chat template.
var ErrNone = errors.New("no chat template")

// Load reads the chat template of a model, whose files read returns: chat_template.jinja, or chat_template in
// tokenizer_config.json, of several there the one named default. The latter also spells the special
// tokens that templates name, such as bos_token. The error of a file that is not there wraps [fs.ErrNotExist].
func Load(model string, read func(name string) ([]byte, error)) (*Template, error) {
	config := filepath.Join(model, configFile)
	text, err := read(configFile)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	tokens, source := map[string]string{}, ""
	if err == nil {
		if tokens, source, err = parseConfig(text); err != nil {
			return nil, fmt.Errorf("%s: %w", config, err)
		}
	}
	own := filepath.Join(model, templateFile)
	switch text, err := read(templateFile); {
	case err == nil:
		config, source = own, string(text)
	case !errors.Is(err, fs.ErrNotExist):
		return nil, err
	}
	if source == "" {
		return nil, fmt.Errorf("%s: %w in %s or %s", model, ErrNone, templateFile, configFile)
	}
	t, err := New(source, tokens)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", config, err)
	}
	t.name = config
	return t, nil
}

// parseConfig returns the special tokens of a tokenizer_config.json by their names, and the template in it.
func parseConfig(text []byte) (tokens map[string]string, source string, err error) {
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(text, &fields); err != nil {
		return nil, "", errors.New("not a JSON object")
	}
	tokens = make(map[string]string)
	for _, name := range []string{"bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"} {
		var token string
		var added struct {
			Content string `json:"content"`
		}
		raw, ok := fields[name]
		switch {
		case !ok:
		case json.Unmarshal(raw, &token) == nil && token != "":
			tokens[name] = token
		case json.Unmarshal(raw, &added) == nil && added.Content != "":
			tokens[name] = added.Content
		}
	}
	raw, ok := fields["chat_template"]
	if !ok || json.Unmarshal(raw, &source) == nil {
		return tokens, source, nil
	}
	var several []struct{ Name, Template string }
	if json.Unmarshal(raw, &several) != nil {
		return nil, "", errors.New("chat_template is neither a text nor a list of such")
	}
	for _, t := range several {
		if t.Name == "default" {
			source = t.Template
		}
	}
	return tokens, source, nil
}
