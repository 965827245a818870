package chat

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"unicode/utf8"
)

const (
	templateFile = "chat_template.jinja"
	configFile   = "tokenizer_config.json"
	mapFile      = "special_tokens_map.json"
	// processorFile holds the template of a model's processor, of images and the like, not of its tokenizer.
	processorFile = "chat_template.json"
	// templateDir holds more templates, by their names.
	templateDir = "additional_chat_templates"
)

// Files returns the names of the files in a model's folder that a template and its variables may come from.
func Files() []string { return []string{templateFile, configFile, mapFile} }

// ErrNone is in the error for a folder without a chat template.
var ErrNone = errors.New("no chat template")

// Load reads the chat template of a model as its tokenizer has it in transformers: chat_template.jinja and, in the folder
// additional_chat_templates, others by their names; where there is none of these, chat_template in tokenizer_config.json,
// which may be several by their names too. Of several that named default is taken. The special tokens that templates name,
// such as bos_token, are those of tokenizer_config.json and special_tokens_map.json. read returns the files of the model;
// its error for one that is not there wraps [fs.ErrNotExist].
func Load(model string, read func(name string) ([]byte, error)) (*Template, error) {
	config, err := fieldsOf(model, configFile, read)
	if err != nil {
		return nil, err
	}
	tokens, err := specialTokens(model, config, read)
	if err != nil {
		return nil, err
	}
	templates, name, err := templatesOf(model, config, read)
	if err != nil {
		return nil, err
	}
	source, ok := templates[defaultName]
	switch {
	case ok:
	case len(templates) > 0:
		var names []string
		for n := range templates {
			names = append(names, n)
		}
		slices.Sort(names)
		return nil, fmt.Errorf("%s: %w named default, only %s", name, ErrNone, strings.Join(names, ", "))
	default:
		err := fmt.Errorf("%s: %w in %s or %s", model, ErrNone, templateFile, configFile)
		if _, missing := read(processorFile); missing == nil {
			err = fmt.Errorf("%w; %s is for the model's processor, not its tokenizer", err, processorFile)
		}
		return nil, err
	}
	t, err := New(source, tokens)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	t.name = name
	return t, nil
}

// defaultName is the template that is taken of several.
const defaultName = "default"

// templatesOf returns the templates of a model by their names, and the file that they are in.
func templatesOf(model string, config map[string]json.RawMessage, read func(name string) ([]byte, error)) (map[string]string, string, error) {
	templates := map[string]string{}
	name := filepath.Join(model, templateFile)
	add := func(file, as string) error {
		data, err := read(file)
		if err != nil {
			return err
		}
		if !utf8.Valid(data) {
			return fmt.Errorf("%s: it is no valid UTF-8", filepath.Join(model, file))
		}
		templates[as] = string(data)
		return nil
	}
	if err := add(templateFile, defaultName); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, "", err
	}
	// A model that is a single file has no such folder.
	more, _ := os.ReadDir(filepath.Join(model, templateDir))
	for _, entry := range more {
		as, ok := strings.CutSuffix(entry.Name(), ".jinja")
		if !ok {
			continue
		}
		file := templateDir + "/" + entry.Name()
		if err := add(file, as); err != nil {
			return nil, "", err
		}
		if as == defaultName || len(templates) == 1 {
			name = filepath.Join(model, file)
		}
	}
	if len(templates) > 0 {
		return templates, name, nil
	}
	name = filepath.Join(model, configFile)
	raw, ok := config["chat_template"]
	if !ok || isNull(raw) {
		return nil, name, nil
	}
	templates, err := parseTemplates(raw)
	if err != nil {
		return nil, "", fmt.Errorf("%s: %w", name, err)
	}
	return templates, name, nil
}

func isNull(raw json.RawMessage) bool { return string(raw) == "null" }

// parseTemplates reads what chat_template may be: a template, several as a mapping, or as a list of mappings.
func parseTemplates(raw json.RawMessage) (map[string]string, error) {
	var source string
	if json.Unmarshal(raw, &source) == nil {
		return map[string]string{defaultName: source}, nil
	}
	var byName map[string]json.RawMessage
	if json.Unmarshal(raw, &byName) == nil {
		templates := map[string]string{}
		for name, raw := range byName {
			var source string
			if isNull(raw) || json.Unmarshal(raw, &source) != nil {
				if name != defaultName {
					continue // which nothing asks for
				}
				return nil, fmt.Errorf("chat_template: that named %s is no text", name)
			}
			templates[name] = source
		}
		return templates, nil
	}
	var list []struct{ Name, Template *string }
	if json.Unmarshal(raw, &list) != nil {
		return nil, errors.New("chat_template is neither a text nor several by their names")
	}
	templates := map[string]string{}
	for _, t := range list {
		if t.Name == nil || t.Template == nil {
			return nil, errors.New("chat_template: one of a list has no name or no template")
		}
		templates[*t.Name] = *t.Template
	}
	return templates, nil
}

// fieldsOf reads a JSON object in a model's folder; without the file it is nil.
func fieldsOf(model, name string, read func(name string) ([]byte, error)) (map[string]json.RawMessage, error) {
	text, err := read(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(text, &fields); err != nil {
		return nil, fmt.Errorf("%s: not a JSON object", filepath.Join(model, name))
	}
	return fields, nil
}

// standard are the special tokens that every tokenizer may have.
var standard = []string{"bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"}

// specialTokens returns the special tokens that have names, as transformers gives them to templates: those that every
// tokenizer may have, others in tokenizer_config.json whose names end in _token, and those that extra_special_tokens
// names. special_tokens_map.json overrides them where tokenizer_config.json lists no added tokens.
func specialTokens(model string, config map[string]json.RawMessage, read func(name string) ([]byte, error)) (map[string]string, error) {
	tokens := map[string]string{}
	extra := func(file string, raw json.RawMessage) error {
		var named map[string]json.RawMessage
		if json.Unmarshal(raw, &named) != nil {
			return nil // a list, whose tokens have no names
		}
		for name, raw := range named {
			token, ok := parseToken(raw)
			if !ok {
				return fmt.Errorf("%s: extra_special_tokens: %s is no token", filepath.Join(model, file), name)
			}
			tokens[name] = token
		}
		return nil
	}
	for name, raw := range config {
		if !strings.HasSuffix(name, "_token") {
			continue
		}
		token, ok := parseToken(raw)
		switch {
		case ok:
			tokens[name] = token
		case slices.Contains(standard, name) && !isNull(raw):
			return nil, fmt.Errorf("%s: %s is no token", filepath.Join(model, configFile), name)
		}
	}
	if err := extra(configFile, extraOf(config)); err != nil {
		return nil, err
	}
	if _, ok := config["added_tokens_decoder"]; ok {
		return tokens, nil
	}
	special, err := fieldsOf(model, mapFile, read)
	if err != nil {
		return nil, err
	}
	for name, raw := range special {
		if !strings.HasSuffix(name, "_token") {
			continue
		}
		token, ok := parseToken(raw)
		switch {
		case ok:
			tokens[name] = token
		case isNull(raw):
			delete(tokens, name)
		case slices.Contains(standard, name):
			return nil, fmt.Errorf("%s: %s is no token", filepath.Join(model, mapFile), name)
		}
	}
	if raw, ok := special["extra_special_tokens"]; ok {
		return tokens, extra(mapFile, raw)
	}
	return tokens, nil
}

// extraOf returns extra_special_tokens, which had another name.
func extraOf(config map[string]json.RawMessage) json.RawMessage {
	raw, ok := config["extra_special_tokens"]
	if old, has := config["additional_special_tokens"]; has && (!ok || isNull(raw) || string(raw) == "[]" || string(raw) == "{}") {
		return old
	}
	return raw
}

// parseToken reads a token: a text, or a mapping that has it as content.
func parseToken(raw json.RawMessage) (string, bool) {
	if isNull(raw) {
		return "", false
	}
	var token string
	if json.Unmarshal(raw, &token) == nil {
		return token, true
	}
	var added struct{ Content *string }
	if json.Unmarshal(raw, &added) != nil || added.Content == nil {
		return "", false
	}
	return *added.Content, true
}
