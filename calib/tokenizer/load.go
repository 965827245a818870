package tokenizer

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"unicode/utf8"

	"github.com/lutq/lutq/formats/added"
)

// maxID bounds ids so that a damaged file cannot ask for a table of gigabytes. The largest
// vocabularies today have a quarter of a million tokens.
const maxID = 1 << 22

// file is a tokenizer.json.
type file struct {
	Version       string            `json:"version"`
	AddedTokens   []json.RawMessage `json:"added_tokens"`
	Normalizer    json.RawMessage   `json:"normalizer"`
	PreTokenizer  json.RawMessage   `json:"pre_tokenizer"`
	PostProcessor json.RawMessage   `json:"post_processor"`
	Decoder       json.RawMessage   `json:"decoder"`
	Model         json.RawMessage   `json:"model"`
}

// parse builds a tokenizer from the contents of a tokenizer.json, and of what files beside it say, or nil.
func parse(data []byte, beside *added.Beside) (*Tokenizer, error) {
	if !utf8.Valid(data) {
		return nil, errors.New("not valid UTF-8")
	}
	var f file
	if err := json.Unmarshal(data, &f); err != nil {
		return nil, plainError(err)
	}
	if f.Version != "" && f.Version != "1.0" {
		return nil, fmt.Errorf("version %s is not supported", quote(f.Version))
	}
	t := &Tokenizer{added: make(map[string]int32), spellings: make(map[int]string), special: make(map[int]bool), raw: newMatcher(), normalized: newMatcher()}
	t.states.New = func() any { return &state{cache: make(map[string][]int32)} }
	var err error
	if t.normalizers, err = parseNormalizers(f.Normalizer); err != nil {
		return nil, fmt.Errorf("normalizer: %w", err)
	}
	if t.splitters, err = parseSplitters(f.PreTokenizer); err != nil {
		return nil, fmt.Errorf("pre_tokenizer: %w", err)
	}
	if err := checkSteps(t.normalizers, t.splitters); err != nil {
		return nil, fmt.Errorf("pre_tokenizer: %w", err)
	}
	if err := t.parseModel(f.Model); err != nil {
		return nil, fmt.Errorf("model: %w", err)
	}
	t.cuts = t.newCutter(f.Normalizer, f.PreTokenizer)
	if err := t.parseAddedTokens(f.AddedTokens, beside); err != nil {
		return nil, fmt.Errorf("added_tokens: %w", err)
	}
	if t.prefix, t.suffix, err = t.parsePostProcessor(f.PostProcessor); err != nil {
		return nil, fmt.Errorf("post_processor: %w", err)
	}
	if t.decoders, err = parseDecoders(f.Decoder); err != nil {
		return nil, fmt.Errorf("decoder: %w", err)
	}
	t.bare = absent(f.Decoder)
	return t, nil
}

// checkSteps refuses the orders of steps in which a shortcut of this package would show.
func checkSteps(normalizers []normalizer, splitters []splitter) error {
	for i, s := range splitters {
		switch s := s.(type) {
		case byteLevel:
			// In the reference a step behind ByteLevel sees the bytes spelled out.
			if i != len(splitters)-1 {
				return errors.New("ByteLevel is not the last step")
			}
		case metaspace:
			// The reference asks where the first character was before normalization.
			if s.scheme == "first" && slices.ContainsFunc(normalizers, func(n normalizer) bool { return n.movesStart }) {
				return errors.New("prepend_scheme first of Metaspace is not supported behind a normalizer that may take away the first character")
			}
		}
	}
	return nil
}

// parseModel sets the vocabulary and the model.
func (t *Tokenizer) parseModel(raw json.RawMessage) error {
	kind, err := typeOf(raw)
	if err != nil {
		return err
	}
	if kind != "BPE" {
		return fmt.Errorf("type %s is not supported", quote(kind))
	}
	var c struct {
		component
		Dropout      float64 `json:"dropout"`
		Unknown      *string `json:"unk_token"`
		Prefix       string  `json:"continuing_subword_prefix"`
		Suffix       string  `json:"end_of_word_suffix"`
		FuseUnknown  bool    `json:"fuse_unk"`
		ByteFallback bool    `json:"byte_fallback"`
		IgnoreMerges bool    `json:"ignore_merges"`
		Vocab        vocab   `json:"vocab"`
		Merges       merges  `json:"merges"`
	}
	if err := strict(raw, &c); err != nil {
		return err
	}
	switch {
	case c.Vocab == nil:
		return errors.New("field vocab is missing")
	case c.Merges == nil:
		return errors.New("field merges is missing")
	case c.Dropout != 0:
		return errors.New("dropout is not supported")
	case c.Prefix != "":
		return errors.New("continuing_subword_prefix is not supported")
	case c.Suffix != "":
		return errors.New("end_of_word_suffix is not supported")
	}
	ids := make(map[string]int32, len(c.Vocab))
	for _, e := range c.Vocab {
		if _, ok := ids[e.token]; ok {
			return fmt.Errorf("vocab has the token %s twice", quote(e.token))
		}
		if err := t.enter(e.token, e.id); err != nil {
			return fmt.Errorf("vocab: %w", err)
		}
		ids[e.token] = int32(e.id)
	}
	o := bpeOptions{fuseUnknown: c.FuseUnknown, byteFallback: c.ByteFallback, ignoreMerges: c.IgnoreMerges, unknown: c.Unknown}
	if n := len(t.splitters); n > 0 {
		var last byteLevel
		last, o.byteLevel = t.splitters[n-1].(byteLevel)
		if o.byteLevel && last == (byteLevel{}) {
			t.splitters = t.splitters[:n-1] // it does nothing more
		}
	}
	t.model, err = newBPE(ids, c.Merges, o)
	return err
}

// enter puts a token into the table of tokens by id.
func (t *Tokenizer) enter(token string, id int) error {
	if id < 0 || id >= maxID {
		return fmt.Errorf("id %d of token %s is out of range", id, quote(token))
	}
	if id >= len(t.tokens) {
		t.tokens = append(t.tokens, make([]entry, id+1-len(t.tokens))...)
	}
	if other := t.tokens[id]; other.known {
		return fmt.Errorf("id %d belongs to both %s and %s", id, quote(other.token), quote(token))
	}
	t.tokens[id] = entry{token, true}
	return nil
}

// parseAddedTokens fills the matchers. It needs the vocabulary and the normalizers.
func (t *Tokenizer) parseAddedTokens(raws []json.RawMessage, beside *added.Beside) error {
	listed := make([]added.Token, len(raws))
	for i, raw := range raws {
		if err := fields(raw, &listed[i], "id", "content", "single_word", "lstrip", "rstrip", "normalized", "special"); err != nil {
			return fmt.Errorf("entry %d: %w", i, err)
		}
		if listed[i].ID < 0 {
			return fmt.Errorf("id %d of token %s is out of range", listed[i].ID, quote(listed[i].Content))
		}
	}
	tokens := added.Tokens(t.model, listed, beside)
	deadline := deadlineFor(len(tokens))
	for i := range tokens {
		token := &tokens[i]
		if _, ok := t.model.ID(token.Content); !ok {
			if token.ID < len(t.tokens) {
				t.tokens[token.ID] = entry{} // a vocabulary with holes, whose own token there cannot be told from this one
			}
			if err := t.enter(token.Content, token.ID); err != nil {
				return err
			}
			t.added[token.Content] = int32(token.ID)
		}
		if token.Special {
			t.special[token.ID] = true
		}
		if !token.Normalized {
			t.raw.add(token.Content, token)
			t.cuts.addToken(token, token.Content)
			continue
		}
		spelling, err := normalize(token.Content, t.normalizers, deadline)
		if err != nil {
			return fmt.Errorf("normalizing token %s: %w", quote(token.Content), err)
		}
		if spelling == "" {
			return fmt.Errorf("nothing of token %s is left after normalization", quote(token.Content))
		}
		t.normalized.add(spelling, token)
		t.cuts.addToken(token, spelling)
		t.spellings[token.ID] = spelling
	}
	return nil
}

// parsePostProcessor returns the ids that the file's post_processor puts before and behind a text.
func (t *Tokenizer) parsePostProcessor(raw json.RawMessage) (prefix, suffix []int, err error) {
	kind, err := typeOf(raw)
	if err != nil || kind == "" {
		return nil, nil, err
	}
	switch kind {
	case "Sequence":
		var c struct {
			component
			Processors []json.RawMessage `json:"processors"`
		}
		if err := fields(raw, &c, "processors"); err != nil {
			return nil, nil, err
		}
		for _, r := range c.Processors { // each wraps what the one before made
			p, s, err := t.parsePostProcessor(r)
			if err != nil {
				return nil, nil, err
			}
			prefix, suffix = append(p, prefix...), append(suffix, s...)
		}
		return prefix, suffix, nil
	case "ByteLevel": // concerns offsets only
		return nil, nil, fields(raw, &byteLevelFields{}, "add_prefix_space", "trim_offsets")
	case "TemplateProcessing":
		return t.parseTemplate(raw)
	case "RobertaProcessing", "BertProcessing":
		return t.parseAround(raw)
	}
	return nil, nil, fmt.Errorf("type %s is not supported", quote(kind))
}

// parseTemplate reads the template for a single text.
func (t *Tokenizer) parseTemplate(raw json.RawMessage) (prefix, suffix []int, err error) {
	type part struct {
		ID     string `json:"id"`
		TypeID int    `json:"type_id"`
	}
	var c struct {
		component
		Single []struct {
			SpecialToken *part `json:"SpecialToken"`
			Sequence     *part `json:"Sequence"`
		} `json:"single"`
		Pair          json.RawMessage `json:"pair"`
		SpecialTokens map[string]struct {
			ID     string   `json:"id"`
			IDs    []int    `json:"ids"`
			Tokens []string `json:"tokens"`
		} `json:"special_tokens"`
	}
	if err := fields(raw, &c, "single", "special_tokens"); err != nil {
		return nil, nil, err
	}
	seen := false // the text itself
	for i, p := range c.Single {
		switch {
		case p.Sequence != nil && p.SpecialToken == nil && p.Sequence.ID == "A" && !seen:
			seen = true
		case p.SpecialToken != nil && p.Sequence == nil:
			token, ok := c.SpecialTokens[p.SpecialToken.ID]
			if !ok {
				return nil, nil, fmt.Errorf("TemplateProcessing: special_tokens lacks %s", quote(p.SpecialToken.ID))
			}
			for _, id := range token.IDs {
				if _, ok := t.Token(id); !ok {
					return nil, nil, fmt.Errorf("TemplateProcessing: id %d of %s is not in the vocabulary", id, quote(p.SpecialToken.ID))
				}
			}
			if seen {
				suffix = append(suffix, token.IDs...)
			} else {
				prefix = append(prefix, token.IDs...)
			}
		default:
			return nil, nil, fmt.Errorf("TemplateProcessing: part %d of the template for single texts is not supported", i)
		}
	}
	if !seen {
		return nil, nil, errors.New("TemplateProcessing: the template for single texts lacks the text")
	}
	return prefix, suffix, nil
}

// parseAround reads RobertaProcessing or BertProcessing, which put one token before and one behind.
func (t *Tokenizer) parseAround(raw json.RawMessage) (prefix, suffix []int, err error) {
	var c struct {
		component
		Before         around `json:"cls"`
		Behind         around `json:"sep"`
		TrimOffsets    bool   `json:"trim_offsets"`
		AddPrefixSpace bool   `json:"add_prefix_space"`
	}
	if err := fields(raw, &c, "cls", "sep"); err != nil {
		return nil, nil, err
	}
	for _, a := range []around{c.Before, c.Behind} {
		if _, ok := t.Token(a.id); !ok {
			return nil, nil, fmt.Errorf("%s: id %d of %s is not in the vocabulary", c.Type, a.id, quote(a.token))
		}
	}
	return []int{c.Before.id}, []int{c.Behind.id}, nil
}
