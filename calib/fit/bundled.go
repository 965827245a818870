package fit

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/lutq/lutq/calib/chat"
	"github.com/lutq/lutq/calib/corpus"
	"github.com/lutq/lutq/calib/corpus/bundled"
	"github.com/lutq/lutq/calib/tokenizer"
	"github.com/lutq/lutq/formats/source"
)

// Texts that are no files.
const (
	Bundled = "bundled" // that of package bundled
	Self    = "self"    // what the model writes itself
)

// bundledText makes windows of the bundled text for a model.
type bundledText struct {
	m    *source.Model
	tok  *tokenizer.Tokenizer
	bos  *int // of the model's configuration
	warn func(string)
}

// windowBytes is how many bytes of a document fill a token of a window: documents are cut where they fill about one.
const windowBytes = 4

// windows makes windows of documents one behind the other. It returns the digest of the bundled text.
func (b *bundledText) windows(size, most int, bos corpus.BOS) (windows [][]int, digest string, err error) {
	docs, err := bundled.Documents(min(max(windowBytes*size, 256), 1<<20))
	if err != nil {
		return nil, "", err
	}
	if digest, err = bundled.Digest(); err != nil {
		return nil, "", err
	}
	template := b.template()
	var first *int
	if bos == corpus.BOSWindow {
		if first, err = b.first(); err != nil {
			return nil, "", err
		}
	}
	windows, err = corpus.Pack(func(yield func([]int, error) bool) {
		for i := range docs {
			if !yield(b.tokens(&docs[i], template)) {
				return
			}
		}
	}, size, most, first)
	return windows, digest, err
}

// template returns the model's chat template, nil where there is none that can be read.
func (b *bundledText) template() *chat.Template {
	t, err := chat.Load(b.m)
	if err != nil {
		if !errors.Is(err, chat.ErrNone) && b.warn != nil {
			b.warn(fmt.Sprintf("chats are without the chat template: %v", err))
		}
		return nil
	}
	return t
}

// first returns BOS.
func (b *bundledText) first() (*int, error) {
	if id, added := b.tok.BOS(); added {
		return &id, nil
	}
	if b.bos == nil {
		return nil, errors.New("neither tokenizer nor configuration names a BOS token")
	}
	return b.bos, nil
}

// tokens are those of a document: of a chat as the template has it, if there is one that takes it.
func (b *bundledText) tokens(d *bundled.Document, template *chat.Template) ([]int, error) {
	if template != nil && d.Messages != nil {
		if ids, ok, err := b.render(template, d.Messages, false); ok || err != nil {
			return ids, err
		}
	}
	return b.tok.Encode(d.Text, false)
}

// render returns messages as a template has them, without the system's, which not all take, if need be. It returns false
// where the template takes neither.
func (b *bundledText) render(template *chat.Template, messages []chat.Message, ask bool) (ids []int, ok bool, err error) {
	// The date that some templates write is one, so that the text is the same tomorrow.
	o := chat.Options{AddGenerationPrompt: ask, Now: time.Unix(templateTime, 0).UTC()}
	text, err := template.Render(context.Background(), messages, o)
	if err != nil && messages[0].Role == "system" {
		text, err = template.Render(context.Background(), messages[1:], o)
	}
	if err != nil {
		return nil, false, nil
	}
	ids, err = b.tok.Encode(text, false)
	return ids, true, err
}

// templateTime is the time that templates write, in seconds: 2025-01-01.
const templateTime = 1735689600
