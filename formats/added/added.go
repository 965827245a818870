// Package added lists the added tokens of a Hugging Face tokenizer: texts such as <|end|> that are cut out before the
// tokenizer splits the rest. tokenizer.json names them; files beside it may name more, or change those.
//
// The rules are those of transformers 5.24 (PreTrainedTokenizerBase._from_pretrained and TokenizersBackend.__init__)
// and of tokenizers 0.23 (AddedVocabulary::add_tokens). By these, ids follow from the order of the tokens. What a file
// says of ids is not looked at.
package added

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
)

// Token is an added token, with the names that tokenizer.json has for what it says of one.
type Token struct {
	ID         int    `json:"id"`
	Content    string `json:"content"`
	SingleWord bool   `json:"single_word"` // only between characters that are not word characters
	LStrip     bool   `json:"lstrip"`      // swallows white space before it
	RStrip     bool   `json:"rstrip"`      // swallows white space behind it
	Normalized bool   `json:"normalized"`  // matches normalized text
	Special    bool   `json:"special"`     // stands for no text

	follows bool // a file does not say whether it is Normalized: a special token is not
}

// makeSpecial makes a special token of one.
func (t *Token) makeSpecial() {
	t.Special = true
	t.Normalized = t.Normalized && !t.follows
}

// Vocabulary is that of a model, without added tokens.
type Vocabulary interface {
	// Len is the number of its tokens.
	Len() int
	// ID returns the id of a token.
	ID(token string) (id int, ok bool)
}

// Names of the files beside tokenizer.json that tell of added tokens.
const (
	ConfigFile = "tokenizer_config.json"
	MapFile    = "special_tokens_map.json"
	AddedFile  = "added_tokens.json"
)

// Files returns the names of the files beside tokenizer.json that tell of added tokens.
func Files() []string { return []string{ConfigFile, MapFile, AddedFile} }

// Beside is what the files beside a tokenizer.json say of added tokens.
type Beside struct {
	decoder  []Token   // of added_tokens_decoder, or else of added_tokens.json
	explicit bool      // there is an added_tokens_decoder: the tokens of tokenizer.json are not added once more
	named    []special // the special tokens with a name
	names    []string  // of them
	extra    []special // special tokens without
	class    string    // of the tokenizer
	bad      *Error    // names a special token that every tokenizer may have, and whose value is none
}

// Read reads the files beside a tokenizer.json with a function whose error for one that is missing wraps
// [fs.ErrNotExist]. Errors name the file.
func Read(read func(name string) ([]byte, error)) (*Beside, error) {
	files := make(map[string][]byte)
	for _, name := range Files() {
		data, err := read(name)
		switch {
		case err == nil:
			files[name] = data
		case !errors.Is(err, fs.ErrNotExist):
			return nil, err
		}
	}
	return parse(files[ConfigFile], files[MapFile], files[AddedFile])
}

// Class returns the class that tokenizer_config.json names as the tokenizer's, "" for none.
func (b *Beside) Class() string { return b.class }

// Listed returns the tokens that the files list with ids of their own, as they stand there.
func (b *Beside) Listed() []Token { return slices.Clone(b.decoder) }

// Token returns the special token of a name, such as bos_token.
func (b *Beside) Token(name string) (string, bool) {
	for i, n := range b.names {
		if n == name {
			return b.named[i].Content, true
		}
	}
	return "", false
}

// Named returns the special tokens that have names, such as bos_token, by these. It fails with an [Error] where a name that
// every tokenizer may have is of something else than a token.
func (b *Beside) Named() (map[string]string, error) {
	if b.bad != nil {
		return nil, b.bad
	}
	tokens := make(map[string]string, len(b.names))
	for i, name := range b.names {
		tokens[name] = b.named[i].Content
	}
	return tokens, nil
}

// Tokens returns the added tokens by id: those that tokenizer.json lists, and what b, which may be nil, adds to them
// or changes of them. Tokens that a model's vocabulary lacks get the ids behind it.
func Tokens(v Vocabulary, listed []Token, b *Beside) []Token {
	s := set{vocab: v, ids: make(map[string]int), tokens: make(map[int]Token), special: make(map[string]bool)}
	s.add(listed)
	if b != nil {
		s.add(b.more(listed, s.ids))
	}
	all := make([]Token, 0, len(s.tokens))
	for _, id := range slices.Sorted(maps.Keys(s.tokens)) {
		t := s.tokens[id]
		t.Special = s.special[t.Content]
		all = append(all, t)
	}
	return all
}

// more returns the tokens to add to those that are listed, which have ids.
func (b *Beside) more(listed []Token, ids map[string]int) []Token {
	tokens := b.decoder
	if !b.explicit {
		tokens = slices.Concat(tokens, listed)
	}
	byID, byContent := make(map[int]Token), make(map[string]Token)
	for _, t := range tokens {
		byID[t.ID], byContent[t.Content] = t, t
	}
	more := slices.SortedFunc(maps.Values(byID), func(a, b Token) int { return cmp.Compare(a.ID, b.ID) })
	known := make(map[string]bool, len(ids)+len(more))
	for content := range ids {
		known[content] = true
	}
	names := make(map[string]bool)
	for _, t := range b.named {
		names[t.Content] = true
	}
	for i, t := range more {
		known[t.Content] = true
		if names[t.Content] {
			more[i].makeSpecial()
		}
	}
	done := make(map[special]bool) // what is the same comes once
	add := func(t special, isSpecial bool) {
		if known[t.Content] || done[t] {
			return
		}
		done[t] = true
		if isSpecial {
			t.makeSpecial()
		}
		more = append(more, t.Token)
	}
	for i, t := range b.named {
		// One that has lost its id to another token is still what was said of it.
		if of, ok := byContent[t.Content]; ok && slices.Contains(standard(), b.names[i]) {
			t = special{Token: of}
		}
		add(t, true)
	}
	for _, t := range b.extra {
		add(t, names[t.Content])
	}
	return more
}

// set is added tokens on their way.
type set struct {
	vocab   Vocabulary
	ids     map[string]int
	tokens  map[int]Token // by id
	special map[string]bool
}

// add adds tokens, of which the last of a text says what it is. One that was special stays so.
func (s *set) add(tokens []Token) {
	next := s.vocab.Len()
	for id := range s.tokens {
		next = max(next, id+1)
	}
	for _, t := range tokens {
		if t.Content == "" {
			continue
		}
		id, ok := s.ids[t.Content]
		if !ok {
			if id, ok = s.vocab.ID(t.Content); !ok {
				id = next
				next++
			}
		}
		t.ID, t.follows = id, false
		s.ids[t.Content] = id
		s.tokens[id] = t
		if t.Special {
			s.special[t.Content] = true
		}
	}
}

// Error is an error of one of the files beside tokenizer.json.
type Error struct {
	File string // its name
	Err  error
}

func (e *Error) Error() string { return fmt.Sprintf("%s: %v", e.File, e.Err) }

// Unwrap returns what is wrong with it.
func (e *Error) Unwrap() error { return e.Err }
