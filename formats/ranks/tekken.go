package ranks

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/lutq/lutq/formats/added"
)

// tekkenBOS is the token before every text.
const tekkenBOS = "<s>"

// tekkenSpecial returns the special tokens of files that list none, by id.
func tekkenSpecial() []string {
	return []string{
		"<unk>", tekkenBOS, "</s>", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]", "[TOOL_RESULTS]", "[/TOOL_RESULTS]",
		"[TOOL_CALLS]", "[IMG]", "<pad>", "[IMG_BREAK]", "[IMG_END]", "[PREFIX]", "[MIDDLE]", "[SUFFIX]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]",
		"[TOOL_CONTENT]",
	}
}

// readTekken reads a tekken.json. The first ids are the special tokens', which are filled up to their number. The vocabulary may list
// more tokens than the model has.
func readTekken(data []byte) (*list, error) {
	var f struct {
		Config struct {
			Pattern string `json:"pattern"`
			Size    *int   `json:"default_vocab_size"`
			Special *int   `json:"default_num_special_tokens"`
		} `json:"config"`
		Vocab []struct {
			Rank  *int    `json:"rank"`
			Bytes *string `json:"token_bytes"`
		} `json:"vocab"`
		Special *[]struct {
			Rank    *int    `json:"rank"`
			Text    *string `json:"token_str"`
			Control *bool   `json:"is_control"`
		} `json:"special_tokens"`
	}
	if err := json.Unmarshal(data, &f); err != nil {
		return nil, plain(data, err)
	}
	c := &f.Config
	switch {
	case c.Pattern == "":
		return nil, errors.New("config has no pattern")
	case c.Size == nil || c.Special == nil:
		return nil, errors.New("config lacks default_vocab_size or default_num_special_tokens")
	case *c.Special < 0 || *c.Size < *c.Special || *c.Size > maxTokens:
		return nil, fmt.Errorf("config: a default_vocab_size of %d, of which %d are special", *c.Size, *c.Special)
	case *c.Size-*c.Special > len(f.Vocab):
		return nil, fmt.Errorf("vocab has %d tokens: config wants %d", len(f.Vocab), *c.Size-*c.Special)
	}
	l := &list{pattern: c.Pattern, first: *c.Special}
	for i, t := range f.Vocab[:*c.Size-*c.Special] {
		if t.Rank == nil || *t.Rank != i || t.Bytes == nil {
			return nil, fmt.Errorf("vocab: entry %d is not the token of rank %d", i, i)
		}
		token, err := base64.StdEncoding.DecodeString(*t.Bytes)
		if err != nil {
			return nil, fmt.Errorf("vocab: entry %d: token_bytes is no base64", i)
		}
		l.add(string(token))
	}
	l.special = make([]added.Token, *c.Special)
	for i := range l.special {
		l.special[i] = added.Token{ID: i, Content: fmt.Sprintf("<SPECIAL_%d>", i), Special: true}
	}
	set := func(i, id int, text string, control bool) error {
		if id != i {
			return fmt.Errorf("special_tokens: entry %d has rank %d", i, id)
		}
		if id >= len(l.special) {
			return fmt.Errorf("special_tokens: entry %d: config has room for %d", i, len(l.special))
		}
		l.special[id].Content, l.special[id].Special = text, control
		return nil
	}
	if f.Special == nil {
		for i, text := range tekkenSpecial() {
			if err := set(i, i, text, true); err != nil {
				return nil, err
			}
		}
	} else {
		for i, t := range *f.Special {
			if t.Rank == nil || t.Text == nil || *t.Text == "" {
				return nil, fmt.Errorf("special_tokens: entry %d lacks a rank or a text", i)
			}
			if err := set(i, *t.Rank, *t.Text, t.Control == nil || *t.Control); err != nil {
				return nil, err
			}
		}
	}
	for i := range l.special {
		if l.special[i].Content == tekkenBOS {
			l.before = &l.special[i]
		}
	}
	return l, nil
}

// plain rewords an error of encoding/json, with the line that it is about.
func plain(data []byte, err error) error {
	line := func(at int64) int { return bytes.Count(data[:min(max(at, 0), int64(len(data)))], []byte("\n")) + 1 }
	if syntax, ok := errors.AsType[*json.SyntaxError](err); ok {
		return fmt.Errorf("line %d: not valid JSON: %w", line(syntax.Offset), err)
	}
	if kind, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
		return fmt.Errorf("line %d: %s must not be a JSON %s", line(kind.Offset), kind.Field, kind.Value)
	}
	return err
}
