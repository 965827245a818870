package tasks

import (
	"errors"
	"fmt"
	"strings"

	"github.com/lutq/lutq/calib/tokenizer"
)

// Encoder turns requests into tokens, as lm-evaluation-harness does for causal models of transformers.
type Encoder struct {
	Tokenizer *tokenizer.Tokenizer
	Begin     int // the token that stands for an empty context: BOS, or EOS where there is none
	Context   int // the most tokens that the model reads; what comes before is cut off
}

// Read is what a model is to read, and how many of the tokens behind its first are scored: the last.
type Read struct {
	Tokens []int // the continuation's last token among them, which is only scored
	Scored int
}

// Encode returns the tokens of a request. White space at the end of the context is part of the continuation. The
// continuation's tokens are those that the whole text has behind as many as the context by itself.
func (e *Encoder) Encode(r Request) (Read, error) {
	context, continuation, err := e.pair(r)
	if err != nil {
		return Read{}, err
	}
	switch {
	case len(context) == 0:
		return Read{}, errors.New("its context has no tokens")
	case len(continuation) == 0:
		return Read{}, fmt.Errorf("the continuation %s has no tokens of its own", quote(r.Continuation))
	case len(continuation) > e.Context:
		return Read{}, fmt.Errorf("a continuation of %d tokens is longer than the %d that the model reads", len(continuation), e.Context)
	}
	all := append(context, continuation...)
	return Read{Tokens: all[max(len(all)-e.Context-1, 0):], Scored: len(continuation)}, nil
}

// EncodeAll returns the tokens of all requests of a task, item by item.
func (e *Encoder) EncodeAll(t *Task) ([][]Read, error) {
	all := make([][]Read, len(t.Items))
	for i, item := range t.Items {
		for _, r := range item.Requests {
			read, err := e.Encode(r)
			if err != nil {
				return nil, fmt.Errorf("task %s: item %d: %w", t.Name, i+1, err)
			}
			all[i] = append(all[i], read)
		}
	}
	return all, nil
}

func (e *Encoder) pair(r Request) (context, continuation []int, err error) {
	if r.Context == "" {
		if continuation, err = e.Tokenizer.Encode(r.Continuation, false); err != nil || len(continuation) == 0 {
			return nil, continuation, err
		}
		if continuation[0] == e.Begin {
			return continuation[:1:1], continuation[1:], nil
		}
		return []int{e.Begin}, continuation, nil
	}
	text := strings.TrimRightFunc(r.Context, isSpace)
	if context, err = e.encode(text); err != nil {
		return nil, nil, err
	}
	whole, err := e.encode(r.Context + r.Continuation)
	if err != nil {
		return nil, nil, err
	}
	return context[:len(context):len(context)], whole[min(len(context), len(whole)):], nil
}

// encode encodes a text, with the tokens that the tokenizer puts around one unless it begins with BOS itself.
func (e *Encoder) encode(text string) ([]int, error) {
	begin, err := e.Tokenizer.Decode([]int{e.Begin})
	if err != nil {
		return nil, err
	}
	return e.Tokenizer.Encode(text, !strings.HasPrefix(text, begin))
}
