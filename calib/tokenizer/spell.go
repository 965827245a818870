package tokenizer

import (
	"slices"
	"strings"
)

// Speller turns ids into text as they come. What does not add up to UTF-8 yet is held back, so that
// its pieces, put together, are what [Tokenizer.Decode] makes of all ids. Special tokens have no text, nor have
// ids without a token, which those of a padded vocabulary are.
type Speller struct {
	t    *Tokenizer
	ids  []int // the last whose text is out, as context, and all behind them
	done int   // of ids, whose text is out
}

// spellContext is how many ids before a text are decoded with it: one tells whether it begins with a blank.
const spellContext = 8

// Spell returns the speller of what follows some ids.
func (t *Tokenizer) Spell(after []int) *Speller {
	s := &Speller{t: t}
	for _, id := range after {
		if !t.silent(id) {
			s.ids = append(s.ids, id)
		}
	}
	// Nor may the context begin within a character.
	from := max(len(s.ids)-spellContext, 0)
	for ; from > 0; from-- {
		if text, err := t.Decode(s.ids[from:]); err == nil && !strings.HasPrefix(text, "\ufffd") {
			break
		}
	}
	s.ids = slices.Clone(s.ids[from:])
	s.done = len(s.ids)
	return s
}

// silent reports whether an id stands for no text.
func (t *Tokenizer) silent(id int) bool {
	_, ok := t.Token(id)
	return !ok || t.special[id]
}

// Next takes one more id and returns the text that is settled with it, often none.
func (s *Speller) Next(id int) (string, error) {
	if s.t.silent(id) {
		return "", nil
	}
	s.ids = append(s.ids, id)
	return s.text(false)
}

// Rest returns what is held back: U+FFFD for bytes that did not become a character.
func (s *Speller) Rest() (string, error) { return s.text(true) }

// text returns what the ids behind those that are done add to them.
func (s *Speller) text(all bool) (string, error) {
	before, err := s.t.Decode(s.ids[:s.done])
	if err != nil {
		return "", err
	}
	with, err := s.t.Decode(s.ids)
	if err != nil || !all && strings.HasSuffix(with, "\ufffd") {
		return "", err
	}
	added, ok := strings.CutPrefix(with, before)
	if !ok { // a byte that spoils what stood before it, which is out
		if added, err = s.t.Decode(s.ids[s.done:]); err != nil {
			return "", err
		}
	}
	if added == "" && !all {
		return "", nil
	}
	s.ids = slices.Delete(s.ids, 0, s.done)
	s.done = len(s.ids)
	return added, nil
}
