package chat

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"unicode/utf8"
)

const (
	templateFile = "chat_template.jinja"
	configFile   = "tokenizer_config.json"
	// processorFile holds the template of a model's processor, of images and the like, not of its tokenizer.
	processorFile = "chat_template.json"
	// templateDir holds more templates, by their names.
	templateDir = "additional_chat_templates"
)

// Files returns the names of the files in a model's folder that a template may come from.
func Files() []string { return []string{templateFile, configFile} }

// ErrNone is in the error for a folder without a chat template.
var ErrNone = errors.New("no chat template")

// Model is what a chat template is read from.
type Model interface {
	// Path is what messages call the model.
	Path() string
	// Text reads a file of the model. The error of one that is not there wraps [fs.ErrNotExist].
	Text(name string) ([]byte, error)
	// List returns the names of the files in a folder of the model, none where there is no such folder.
	List(folder string) []string
	// SpecialTokens returns the special tokens that have names, as [New] takes them.
	SpecialTokens() (map[string]string, error)
}

// Load reads the chat template of a model as its tokenizer has it in transformers: chat_template.jinja and, in the folder
// additional_chat_templates, others by their names; where there is none of these, chat_template in tokenizer_config.json,
// which may be several by their names too. Of several that named default is taken.
func Load(m Model) (*Template, error) {
	tokens, err := m.SpecialTokens()
	if err != nil {
		return nil, err
	}
	config, err := fieldsOf(m, configFile)
	if err != nil {
		return nil, err
	}
	templates, name, err := templatesOf(m, config)
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
		err := fmt.Errorf("%s: %w in %s or %s", m.Path(), ErrNone, templateFile, configFile)
		if _, missing := m.Text(processorFile); missing == nil {
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
func templatesOf(m Model, config map[string]json.RawMessage) (map[string]string, string, error) {
	templates := map[string]string{}
	name := filepath.Join(m.Path(), templateFile)
	add := func(file, as string) error {
		data, err := m.Text(file)
		if err != nil {
			return err
		}
		if !utf8.Valid(data) {
			return fmt.Errorf("%s: it is no valid UTF-8", filepath.Join(m.Path(), file))
		}
		templates[as] = string(data)
		return nil
	}
	if err := add(templateFile, defaultName); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, "", err
	}
	for _, more := range m.List(templateDir) {
		as, ok := strings.CutSuffix(more, ".jinja")
		if !ok {
			continue
		}
		file := templateDir + "/" + more
		if err := add(file, as); err != nil {
			return nil, "", err
		}
		if as == defaultName || len(templates) == 1 {
			name = filepath.Join(m.Path(), file)
		}
	}
	if len(templates) > 0 {
		return templates, name, nil
	}
	name = filepath.Join(m.Path(), configFile)
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
func fieldsOf(m Model, name string) (map[string]json.RawMessage, error) {
	text, err := m.Text(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(text, &fields); err != nil {
		return nil, fmt.Errorf("%s: not a JSON object", filepath.Join(m.Path(), name))
	}
	return fields, nil
}
