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

// windows makes windows of documents one behind the other.
func (b *bundledText) windows(size, most int, bos corpus.BOS) ([][]int, error) {
	docs, err := bundled.Documents(min(max(windowBytes*size, 256), 1<<20))
	if err != nil {
		return nil, err
	}
	template := b.template()
	var first *int
	if bos == corpus.BOSWindow {
		if first, err = b.first(); err != nil {
			return nil, err
		}
	}
	return corpus.Pack(func(yield func([]int, error) bool) {
		for i := range docs {
			if !yield(b.tokens(&docs[i], template)) {
				return
			}
		}
	}, size, most, first)
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
		for from := range min(2, len(d.Messages)) { // without the system's message, which not all templates take
			if from > 0 && d.Messages[0].Role != "system" {
				break
			}
			// The date that some templates write is one, so that the text is the same tomorrow.
			text, err := template.Render(context.Background(), d.Messages[from:], chat.Options{Now: time.Unix(templateTime, 0).UTC()})
			if err == nil {
				return b.tok.Encode(text, false)
			}
		}
	}
	return b.tok.Encode(d.Text, false)
}

// templateTime is the time that templates write, in seconds: 2025-01-01.
const templateTime = 1735689600
