// Package chat puts messages into a model's chat template, as apply_chat_template of transformers does.
//
// Templates are Jinja's, with what transformers adds: raise_exception, strftime_now, a tojson that
// escapes nothing but what JSON must, break and continue, and blocks of generation, which are their contents. They come from
// the folder of a model, which may be anybody's: they read no files, and rendering ends after [Limit].
//
// Some things differ from Python: mappings are printed in the order of their names; a
// list that a template changes stays changed; what a template refers to and is not there prints as nothing also
// where Jinja would fail.
package chat

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/nikolalohinski/gonja/v2/builtins"
	"github.com/nikolalohinski/gonja/v2/config"
	"github.com/nikolalohinski/gonja/v2/exec"
	"github.com/nikolalohinski/gonja/v2/loaders"
	"github.com/nikolalohinski/gonja/v2/nodes"
	"github.com/nikolalohinski/gonja/v2/parser"
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

// Limit is the longest that rendering takes, and maxOutput the most bytes that it may write.
const (
	Limit     = 10 * time.Second
	maxOutput = 64 << 20
)

// Template is a chat template. Its methods may be called from several goroutines at once.
type Template struct {
	name   string // its file, for messages; may be empty
	source string
	tokens map[string]string
}

// New returns a template. tokens are variables of it besides what Render gives, such as bos_token.
func New(source string, tokens map[string]string) (*Template, error) {
	t := &Template{source: source, tokens: tokens}
	_, err := t.parse(time.Time{})
	return t, err
}

// templateName is what the one template is called where it is parsed.
const templateName = "/template"

// parsed is a template made ready to be rendered once: what gonja keeps of one is not made to be shared.
type parsed struct {
	*exec.Template
	raised string // what the template says by raise_exception
}

// parse makes gonja's template.
func (t *Template) parse(now time.Time) (p *parsed, err error) {
	defer recovered(&err)
	c := config.New()
	c.TrimBlocks, c.LeftStripBlocks = true, true
	statements := exec.NewControlStructureSet(map[string]parser.ControlStructureParser{}).Update(builtins.ControlStructures)
	if err := statements.Register("generation", parseGeneration); err != nil {
		return nil, err
	}
	filters := exec.NewFilterSet(map[string]exec.FilterFunction{}).Update(builtins.Filters)
	if err := filters.Replace("tojson", toJSON); err != nil {
		return nil, err
	}
	p = new(parsed)
	globals := exec.EmptyContext().Update(builtins.GlobalFunctions).Update(builtins.GlobalVariables)
	env := &exec.Environment{Context: globals, Filters: filters, Tests: builtins.Tests, ControlStructures: statements, Methods: builtins.Methods}
	template := func(source string) (*exec.Template, error) {
		loader, err := loaders.NewMemoryLoader(map[string]string{templateName: source})
		if err != nil {
			return nil, err
		}
		return exec.NewTemplate(templateName, c, loader, env)
	}
	w := &rewriter{parse: template}
	globals.Set(chooser, w.choose)
	globals.Set("raise_exception", func(message string) (string, error) {
		p.raised = message
		return "", errors.New(message)
	})
	globals.Set("strftime_now", func(format string) string { return strftime(now, format) })
	source, err := w.template(t.source)
	if err == nil {
		p.Template, err = template(source)
	}
	if err != nil {
		return nil, fmt.Errorf("chat template: %s", lastLine(err))
	}
	return p, nil
}

// Render returns the messages as the template has them. What the template raises is the error.
func (t *Template) Render(ctx context.Context, messages []Message, o Options) (string, error) {
	text, err := t.render(ctx, messages, o)
	if err != nil && t.name != "" {
		err = fmt.Errorf("%s: %w", t.name, err)
	}
	return text, err
}

func (t *Template) render(ctx context.Context, messages []Message, o Options) (string, error) {
	tpl, err := t.parse(o.Now)
	if err != nil {
		return "", err
	}
	list := make([]any, len(messages))
	for i, m := range messages {
		list[i] = map[string]any{"role": m.Role, "content": m.Content}
	}
	data := exec.NewContext(map[string]any{
		"messages": list, "add_generation_prompt": o.AddGenerationPrompt, "tools": nil, "documents": nil,
	})
	for name, token := range t.tokens {
		data.Set(name, token)
	}
	type result struct {
		text string
		err  error
	}
	done := make(chan result, 1)
	go func() {
		out := &bounded{ctx: ctx}
		err := tpl.execute(out, data)
		done <- result{out.String(), err}
	}()
	limit := time.NewTimer(Limit)
	defer limit.Stop()
	select {
	case r := <-done:
		return r.text, r.err
	case <-ctx.Done():
		return "", ctx.Err()
	case <-limit.C:
		return "", fmt.Errorf("chat template: it takes longer than %v", Limit)
	}
}

func (p *parsed) execute(out *bounded, data *exec.Context) (err error) {
	defer recovered(&err)
	err = p.Execute(out, data)
	switch {
	case err == nil:
		return nil
	case out.err != nil:
		return out.err
	case p.raised != "":
		return errors.New("the chat template says: " + p.raised)
	}
	return fmt.Errorf("chat template: %s", lastLine(err))
}

// recovered makes a panic of the library, which some templates cause, an error.
func recovered(err *error) {
	if r := recover(); r != nil {
		*err = fmt.Errorf("chat template: %v", r)
	}
}

// lastLine is the end of an error of gonja, which begins with the template or where in it the error is.
func lastLine(err error) string {
	text := strings.TrimSpace(err.Error())
	return text[strings.LastIndexByte(text, '\n')+1:]
}

// bounded takes what a template writes, until that is too much or nobody waits for it.
type bounded struct {
	strings.Builder
	ctx context.Context
	err error
}

func (b *bounded) Write(p []byte) (int, error) {
	if b.err == nil {
		b.err = b.ctx.Err()
	}
	if b.err == nil && b.Len()+len(p) > maxOutput {
		b.err = fmt.Errorf("chat template: it writes more than %d bytes", maxOutput)
	}
	if b.err != nil {
		return 0, b.err
	}
	return b.Builder.Write(p)
}

// generation is the block of that name, which marks what a model is to learn.
type generation struct{ *nodes.Wrapper }

func parseGeneration(p, args *parser.Parser) (nodes.ControlStructure, error) {
	body, _, err := p.WrapUntil("endgeneration")
	if err != nil {
		return nil, err
	}
	if !args.End() {
		return nil, errors.New("generation takes no arguments")
	}
	return &generation{body}, nil
}

// Execute implements exec.ControlStructure.
func (g *generation) Execute(r *exec.Renderer, _ *nodes.ControlStructureBlock) error {
	return r.ExecuteWrapper(g.Wrapper)
}

// strftime prints a time as C's function does, in its default locale.
func strftime(t time.Time, format string) string {
	layouts := map[byte]string{
		'a': "Mon", 'A': "Monday", 'b': "Jan", 'B': "January", 'c': "Mon Jan _2 15:04:05 2006", 'd': "02", 'D': "01/02/06", 'e': "_2",
		'F': "2006-01-02", 'H': "15", 'I': "03", 'j': "002", 'm': "01", 'M': "04", 'p': "PM", 'S': "05", 'T': "15:04:05", 'x': "01/02/06",
		'X': "15:04:05", 'y': "06", 'Y': "2006", 'z': "-0700", 'Z': "MST",
	}
	var b strings.Builder
	for i := 0; i < len(format); i++ {
		if format[i] != '%' || i+1 == len(format) {
			b.WriteByte(format[i])
			continue
		}
		i++
		switch layout, ok := layouts[format[i]]; {
		case ok:
			b.WriteString(t.Format(layout))
		case format[i] == '%':
			b.WriteByte('%')
		default:
			b.WriteString(format[i-1 : i+1])
		}
	}
	return b.String()
}
