package chat

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/lutq/lutq/formats/source/modeltest"
)

// TestGolden compares with transformers; scripts/chat_templates.py makes the golden file.
func TestGolden(t *testing.T) {
	data, err := os.ReadFile("testdata/golden.json")
	if err != nil {
		t.Fatal(err)
	}
	var golden struct {
		Tokens map[string]string
		Now    time.Time
		Cases  []struct {
			Template            string
			Messages            []Message
			AddGenerationPrompt bool `json:"add_generation_prompt"`
			Want, Error         string
		}
	}
	if err := json.Unmarshal(data, &golden); err != nil {
		t.Fatal(err)
	}
	for i, c := range golden.Cases {
		t.Run(fmt.Sprintf("%s %d", c.Template, i), func(t *testing.T) {
			source, err := os.ReadFile(filepath.Join("testdata", c.Template))
			if err != nil {
				t.Fatal(err)
			}
			tpl, err := New(string(source), golden.Tokens)
			if err != nil {
				t.Fatal(err)
			}
			got, err := tpl.Render(context.Background(), c.Messages, Options{AddGenerationPrompt: c.AddGenerationPrompt, Now: golden.Now})
			if c.Error != "" {
				if err == nil || err.Error() != "the chat template says: "+c.Error {
					t.Errorf("error %v: want %q", err, c.Error)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if got != c.Want {
				t.Errorf("got  %q\nwant %q", got, c.Want)
			}
		})
	}
}

func TestLoad(t *testing.T) {
	const one = `{"bos_token": "<s>", "eos_token": {"content": "</s>", "special": true}, "pad_token": null, "chat_template": "{{ bos_token }}one{{ eos_token }}{{ pad_token }}"}`
	for _, test := range []struct {
		name  string
		files map[string]string
		want  string
	}{
		{"config", map[string]string{"tokenizer_config.json": one}, "<s>one</s>"},
		{"file", map[string]string{"tokenizer_config.json": one, "chat_template.jinja": "own{{ bos_token }}"}, "own<s>"},
		{"file alone", map[string]string{"chat_template.jinja": "own"}, "own"},
		{"several", map[string]string{"tokenizer_config.json": `{"chat_template": [{"name": "tool_use", "template": "a"}, {"name": "default", "template": "b"}]}`}, "b"},
		{"none", map[string]string{"tokenizer_config.json": `{}`}, "no chat template in chat_template.jinja or tokenizer_config.json"},
		{"nothing", nil, "no chat template in"},
		{"no default", map[string]string{"tokenizer_config.json": `{"chat_template": [{"name": "tool_use", "template": "a"}, {"name": "rag", "template": "b"}]}`}, "tokenizer_config.json: no chat template named default, only rag, tool_use"},
		{"by name", map[string]string{"tokenizer_config.json": `{"chat_template": {"tool_use": "a", "default": "b{{ messages }}"}}`}, "b[]"},
		{"by name, no default", map[string]string{"tokenizer_config.json": `{"chat_template": {"rag": "a"}}`}, "no chat template named default, only rag"},
		{"by name, no text", map[string]string{"tokenizer_config.json": `{"chat_template": {"default": 1}}`}, "that named default is no text"},
		{"null", map[string]string{"tokenizer_config.json": `{"chat_template": null}`}, "no chat template in"},
		{"empty", map[string]string{"tokenizer_config.json": `{"chat_template": ""}`}, ""},
		{"empty file", map[string]string{"tokenizer_config.json": one, "chat_template.jinja": ""}, ""},
		{"more", map[string]string{"chat_template.jinja": "own", "additional_chat_templates/rag.jinja": "more", "additional_chat_templates/x.txt": "none"}, "own"},
		{"more, a default among them", map[string]string{"chat_template.jinja": "own", "additional_chat_templates/default.jinja": "more"}, "more"},
		{"more, a broken default", map[string]string{"chat_template.jinja": "own", "additional_chat_templates/a.jinja": "x", "additional_chat_templates/default.jinja": "{%"}, "additional_chat_templates/default.jinja: chat template: line 1"},
		{"more, no default", map[string]string{"tokenizer_config.json": one, "additional_chat_templates/rag.jinja": "more"}, "rag.jinja: no chat template named default, only rag"},
		{"a processor's", map[string]string{"chat_template.json": `{"chat_template": "a"}`}, "chat_template.json is for the model's processor"},
		{"mark of byte order", map[string]string{"chat_template.jinja": "\ufeffown\r\n{% if true %}\r\nx{% endif %}\r\n"}, "\ufeffown\nx"}, // as transformers keeps it
		{"of another type", map[string]string{"tokenizer_config.json": `{"chat_template": 1}`}, "tokenizer_config.json: chat_template is neither"},
		{"of a list of others", map[string]string{"tokenizer_config.json": `{"chat_template": [{"name": "default"}]}`}, "one of a list has no name or no template"},
		{"tokens of their own", map[string]string{"chat_template.jinja": "{{ image_token }}{{ video_token }}{{ x }}{{ y_token }}", "tokenizer_config.json": `{"video_token": "<v>", "y_token": 1, "extra_special_tokens": {"image_token": "<i>", "x": {"content": "<x>"}}}`}, "<i><v><x>"},
		{"more tokens", map[string]string{"chat_template.jinja": "[{{ additional_special_tokens }}{{ extra_special_tokens }}]", "tokenizer_config.json": `{"additional_special_tokens": ["<a>"], "extra_special_tokens": ["<b>"]}`}, "[]"},
		{"tokens under an older name", map[string]string{"chat_template.jinja": "{{ image_token }}", "tokenizer_config.json": `{"additional_special_tokens": {"image_token": "<i>"}}`}, "<i>"},
		{"tokens under an older name beside null", map[string]string{"chat_template.jinja": "{{ image_token }}", "tokenizer_config.json": `{"additional_special_tokens": {"image_token": "<i>"}, "extra_special_tokens": null}`}, "<i>"},
		{"map", map[string]string{"chat_template.jinja": "{{ bos_token }}{{ eos_token }}{{ pad_token }}{{ unk_token }}", "tokenizer_config.json": `{"bos_token": null, "eos_token": "</t>", "pad_token": "p", "unk_token": "u"}`, "special_tokens_map.json": `{"bos_token": "<m>", "eos_token": {"content": "</m>"}, "pad_token": null}`}, "<m></m>u"},
		{"map beside a list of tokens", map[string]string{"chat_template.jinja": "{{ bos_token }}", "tokenizer_config.json": `{"bos_token": "<t>", "added_tokens_decoder": {}}`, "special_tokens_map.json": `{"bos_token": "<m>"}`}, "<t>"},
		// As transformers 5.24 has it.
		{"map beside a token of the same name", map[string]string{"chat_template.jinja": "{{ image_token }}", "tokenizer_config.json": `{"extra_special_tokens": {"image_token": "<i>"}}`, "special_tokens_map.json": `{"image_token": "<m>"}`}, "<i>"},
		{"map of null beside a token of its own", map[string]string{"chat_template.jinja": "{{ image_token }}", "tokenizer_config.json": `{"image_token": "<c>"}`, "special_tokens_map.json": `{"image_token": null}`}, "<c>"},
		{"map that names more", map[string]string{"chat_template.jinja": "{{ image_token }}", "tokenizer_config.json": `{"image_token": "<c>"}`, "special_tokens_map.json": `{"extra_special_tokens": {"image_token": "<x>"}}`}, "<x>"},
		{"token of another type in the map", map[string]string{"chat_template.jinja": "x", "special_tokens_map.json": `{"eos_token": []}`}, "special_tokens_map.json: eos_token is no token"},
		{"token of another type", map[string]string{"chat_template.jinja": "x", "tokenizer_config.json": `{"bos_token": 1}`}, "tokenizer_config.json: bos_token is no token"},
		{"order", map[string]string{"chat_template.jinja": "{{ [{'role': 'r', 'content': 'c'}] }}{{ messages|tojson }}"}, "[{'role': 'r', 'content': 'c'}][]"},
		{"no JSON", map[string]string{"tokenizer_config.json": `{`}, "tokenizer_config.json: not a JSON object"},
		{"broken", map[string]string{"chat_template.jinja": "{% if %}\n{% endfor %}"}, "chat_template.jinja: chat template: "},
	} {
		t.Run(test.name, func(t *testing.T) {
			dir := t.TempDir()
			for name, text := range test.files {
				if err := errors.Join(os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755), os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644)); err != nil {
					t.Fatal(err)
				}
			}
			got := ""
			tpl, err := Load(modeltest.Open(t, dir))
			if err == nil {
				got, err = tpl.Render(context.Background(), nil, Options{})
			}
			if err != nil {
				if got = err.Error(); strings.Contains(got, "\n") || !strings.Contains(got, test.want) {
					t.Errorf("error %q: want %q", got, test.want)
				}
				return
			}
			if got != test.want {
				t.Errorf("got %q, want %q", got, test.want)
			}
		})
	}
	if _, err := Load(modeltest.Open(t, t.TempDir())); !errors.Is(err, ErrNone) {
		t.Errorf("an empty folder: %v", err)
	}
}

// TestHostile: templates end, read no files and change none of each other's.
func TestHostile(t *testing.T) {
	secret := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(secret, []byte("secret"), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, source := range []string{
		"{% include '" + secret + "' %}", "{% extends '" + secret + "' %}", "{% from '" + secret + "' import x %}",
		"{% include '../../../../../../../../../..'~'" + secret + "' %}", "{% macro m() %}{{ m() }}{% endmacro %}",
		"{{ 1 // 0 }}", "{{ messages[9].content.x }}", "{{ nothing() }}", "{{ 'x' * -1 }}",
	} {
		tpl, err := New(source, nil)
		if err != nil {
			continue
		}
		if got, _ := tpl.Render(context.Background(), []Message{{"user", "hi"}}, Options{}); strings.Contains(got, "secret") {
			t.Errorf("%s: %q", source, got)
		}
	}
	endless, err := New("{% for i in range(100000) %}{% for j in range(100000) %}{{ i }}{% endfor %}{% endfor %}", nil)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	begin := time.Now()
	if _, err := endless.Render(ctx, nil, Options{}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("error %v", err)
	}
	if took := time.Since(begin); took > 5*time.Second {
		t.Errorf("it took %v", took)
	}
}

func FuzzRender(f *testing.F) {
	files, err := filepath.Glob("testdata/*.jinja")
	if err != nil || len(files) == 0 {
		f.Fatal(err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(string(text))
	}
	f.Fuzz(func(t *testing.T, source string) {
		if strings.Contains(source, "range") || strings.Contains(source, "macro") || len(source) > 1<<12 {
			return // which may take until the limit
		}
		tpl, err := New(source, map[string]string{"bos_token": "<s>"})
		if err == nil {
			_, err = tpl.Render(context.Background(), []Message{{"user", "hi"}, {"assistant", "ho"}}, Options{AddGenerationPrompt: true})
		}
		if err != nil && strings.Contains(err.Error(), "\n") {
			t.Errorf("an error of several lines: %q", err)
		}
	})
}
