// Package chat puts messages into a model's chat template, as apply_chat_template of transformers does.
//
// Templates are written in Jinja. Package jinja renders them: it prints what transformers prints, or returns an error
// of one line that names the line of the template. A template comes from the folder of a model, which may be anybody's.
// So it can read no files, and rendering ends after [Limit], or when there is too much.
package chat

import (
	"context"
	"fmt"
	"maps"
	"time"

	"github.com/lutq/lutq/calib/chat/jinja"
)

// Message is one of a conversation.
type Message struct {
	Role    string // such as system, user or assistant
	Content string
}

// Options are what a template is told besides the messages.
type Options struct {
	AddGenerationPrompt bool      // end with what begins an answer
	Now                 time.Time // that strftime_now prints
}

// Limit is the longest that rendering takes.
const Limit = 10 * time.Second

// Template is a chat template. Its methods may be called from several goroutines at once.
type Template struct {
	name   string // its file, for messages; may be empty
	parsed *jinja.Template
	tokens map[string]string
}

// New returns a template. tokens are variables of it besides what Render gives, such as bos_token. The error of a template
// that cannot be rendered is a [*jinja.Error].
func New(source string, tokens map[string]string) (*Template, error) {
	parsed, err := jinja.Parse(source)
	if err != nil {
		return nil, err
	}
	return &Template{parsed: parsed, tokens: maps.Clone(tokens)}, nil
}

// Render returns the messages as the template has them. What the template raises is the error, a [*jinja.Error] like
// others that a template makes; that of a context that is done is the context's.
func (t *Template) Render(ctx context.Context, messages []Message, o Options) (string, error) {
	text, err := t.render(ctx, messages, o)
	if err != nil && t.name != "" {
		err = fmt.Errorf("%s: %w", t.name, err)
	}
	return text, err
}

func (t *Template) render(ctx context.Context, messages []Message, o Options) (string, error) {
	list := make([]any, len(messages))
	for i, m := range messages {
		d, err := jinja.NewDict("role", m.Role, "content", m.Content)
		if err != nil {
			return "", fmt.Errorf("message %d: %w", i+1, err)
		}
		list[i] = d
	}
	vars := make(map[string]any, len(t.tokens)+4)
	for name, token := range t.tokens {
		vars[name] = token
	}
	vars["messages"], vars["add_generation_prompt"], vars["tools"], vars["documents"] = list, o.AddGenerationPrompt, nil, nil
	return t.parsed.Render(ctx, vars, jinja.Options{Now: o.Now, Time: Limit})
}
