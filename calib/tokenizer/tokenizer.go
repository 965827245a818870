// Package tokenizer turns text into token ids and back, as a Hugging Face tokenizer.json says, or where there is none a
// tekken.json or tiktoken.model.
//
// It implements byte-pair encoding, which language models use today: byte-level BPE (GPT-2, Llama 3 and 4, Qwen,
// SmolLM2, Mistral's Tekken, gpt-oss, DeepSeek, Phi-4, Command R) and BPE as in SentencePiece, with byte fallback
// (Llama 2, Mistral, Mixtral, Phi-3, Gemma). The ids are meant to equal those of the Rust library that defined the file
// format (PyPI's tokenizers).
//
// A file may ask for a component, an option or a construct of a regular expression that this package does not know.
// [Load] then fails: wrong ids would go unnoticed, an error does not.
//
// Split patterns that many models share have a scanner written by hand. Others are translated from Oniguruma's syntax
// for regexp2. The work of a regular expression is bounded, so that a hostile file cannot make Encode run for ever:
// past the bound it fails.
//
// # Pipeline
//
// Encode takes these steps:
//
//	cuts the text at added tokens that match it as it stands
//	normalizes what lies between
//	cuts that at added tokens that match normalized text
//	splits the rest into words
//	runs BPE on each word
//	puts the post-processor's special tokens around the result
//
// The sections truncation and padding of the file concern batches of short texts. They are ignored, as transformers
// does.
//
// Some classes of transformers 5 (GPT2Tokenizer, LlamaTokenizer, Qwen2Tokenizer, …) take only the vocabulary from a
// file, and have steps of their own. This package takes the steps of the file, as the tokenizers library does and
// transformers 4 did: a model was trained by these.
package tokenizer

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/lutq/lutq/formats/added"
	"github.com/lutq/lutq/formats/input"
	"github.com/lutq/lutq/formats/ranks"
)

// A Tokenizer encodes and decodes text. Its methods may be called from several
// goroutines at once.
type Tokenizer struct {
	tokens []entry          // by id
	added  map[string]int32 // ids of added tokens that are not in the model's vocabulary

	raw        *matcher       // added tokens that match the text as it stands
	normalized *matcher       // added tokens that match normalized text
	spellings  map[int]string // what the latter match, by id
	special    map[int]bool   // added tokens that stand for no text

	normalizers []normalizer
	splitters   []splitter
	model       *bpe
	prefix      []int // what the post-processor puts before
	suffix      []int // and behind the text
	decoders    []decoder
	bare        bool // no decoder: Decode joins tokens with spaces

	cuts *cutter // of long texts; nil: none are known

	states sync.Pool // of *state
}

// entry is a place in the table of tokens. Ids may have gaps.
type entry struct {
	token string
	known bool
}

// Model is what a tokenizer is read from.
type Model interface {
	// Dir is what messages call the model: its folder, or its only file.
	Dir() string
	// TokenizerFiles returns the names of the files to read: tokenizer.json first, or one of [ranks.Files] in its place, and where
	// others say more of added tokens, those of [added.Files].
	TokenizerFiles() []string
	// File reads a file of the model. The error of one that is not there wraps [fs.ErrNotExist].
	File(name string, kind input.Kind) ([]byte, error)
}

// Read reads the tokenizer of a model: tokenizer.json, or one of [ranks.Files], and what tokenizer_config.json, special_tokens_map.json and
// added_tokens.json say of added tokens, as transformers takes them. Its errors are one line long and name the file.
func Read(m Model) (*Tokenizer, error) {
	files := m.TokenizerFiles()
	data, err := m.File(files[0], input.Tokenizer)
	if len(files) == 1 { // that of a model in one file, which its errors name
		if err != nil {
			return nil, err
		}
		return Parse(filepath.Join(m.Dir(), files[0]), data)
	}
	if err != nil {
		return nil, cmp.Or(otherFormat(m.Dir(), err), fmt.Errorf("reading tokenizer: %w", err))
	}
	beside, err := added.Read(func(name string) ([]byte, error) { return m.File(name, input.Config) })
	var of *added.Error
	if errors.As(err, &of) {
		return nil, fmt.Errorf("tokenizer %s: %w", filepath.Join(m.Dir(), of.File), of.Err)
	}
	if err != nil {
		return nil, fmt.Errorf("reading tokenizer: %w", err)
	}
	return parseNamed(filepath.Join(m.Dir(), files[0]), data, beside)
}

// Load reads the tokenizer in a folder as [Read] does, or a file that is all of one.
func Load(path string) (*Tokenizer, error) {
	if info, err := os.Stat(path); err == nil && info.IsDir() {
		return Read(folder(path))
	}
	data, err := input.ReadFile(path, input.Tokenizer)
	if err != nil {
		return nil, fmt.Errorf("reading tokenizer: %w", err)
	}
	return Parse(path, data)
}

// folder is a model in a folder.
type folder string

func (f folder) Dir() string { return string(f) }
func (f folder) TokenizerFiles() []string {
	return append([]string{cmp.Or(ranks.In(string(f)), fileName)}, added.Files()...)
}

func (f folder) File(name string, kind input.Kind) ([]byte, error) {
	return input.ReadFile(filepath.Join(string(f), name), kind)
}

// Parse reads a file that lies in memory, is all of a tokenizer, and which errors call by a name: one of [ranks.Files] where the name
// ends in that, and else a tokenizer.json.
func Parse(name string, data []byte) (*Tokenizer, error) { return parseNamed(name, data, nil) }

func parseNamed(name string, data []byte, beside *added.Beside) (*Tokenizer, error) {
	var t *Tokenizer
	var err error
	if base := filepath.Base(name); slices.Contains(ranks.Files(), base) {
		data, err = ranks.TokenizerJSON(base, data, beside)
	}
	if err == nil {
		t, err = parse(data, beside)
	}
	if err != nil {
		return nil, fmt.Errorf("tokenizer %s: %w", name, err)
	}
	return t, nil
}

// VocabSize is the number of ids, added tokens included: every id lies below it.
func (t *Tokenizer) VocabSize() int { return len(t.tokens) }

// Token returns the token with this id as the file spells it: in a byte-level
// vocabulary " the" is spelled "Ġthe".
func (t *Tokenizer) Token(id int) (string, bool) {
	if id < 0 || id >= len(t.tokens) {
		return "", false
	}
	return t.tokens[id].token, t.tokens[id].known
}

// ID is the inverse of [Tokenizer.Token].
func (t *Tokenizer) ID(token string) (int, bool) {
	id, ok := t.added[token]
	if !ok {
		id, ok = t.model.vocab[token]
	}
	return int(id), ok
}

// BOS returns the token that the post-processor puts before every text. Files
// whose post-processor adds nothing in front have none.
func (t *Tokenizer) BOS() (id int, ok bool) {
	if len(t.prefix) == 0 {
		return 0, false
	}
	return t.prefix[0], true
}

// Encode returns the ids of text. With special set the post-processor adds its tokens,
// usually BOS. Text that spells an added token, special or not, becomes that token in
// either case.
//
// Invalid UTF-8 is read as U+FFFD, one for each maximal subpart of an ill-formed
// sequence; this is what the Unicode standard recommends and what decoding such bytes in Rust or
// Python gives. Characters that the vocabulary cannot express are dropped where the file
// names no unknown token. Encode fails where the file names one that its vocabulary lacks, on texts of
// half a gigabyte, and where a regular expression of the file takes too much time or memory.
func (t *Tokenizer) Encode(text string, special bool) ([]int, error) {
	ids, err := t.encode(text, false)
	if err == nil && special {
		ids = slices.Concat(t.prefix, ids, t.suffix)
	}
	return ids, err
}

// Special returns the tokens that the post-processor puts before and behind a text.
func (t *Tokenizer) Special() (before, behind []int) {
	return slices.Clone(t.prefix), slices.Clone(t.suffix)
}

// encode returns the ids of text, which may begin at a cut in a longer one.
func (t *Tokenizer) encode(text string, cut bool) ([]int, error) {
	if len(text) > math.MaxInt32/4 {
		return nil, fmt.Errorf("text of %d bytes is too long to tokenize at once", len(text))
	}
	if !utf8.ValidString(text) {
		text = validUTF8(text)
	}
	s := t.states.Get().(*state)
	defer t.states.Put(s)
	s.reset(len(text))
	s.deadline = deadlineFor(len(text))
	var failed error
	t.raw.cut(text, func(start, end int, id int32) {
		switch {
		case failed != nil:
		case id >= 0:
			s.out = append(s.out, int(id))
		default:
			normalizers := t.normalizers
			if cut && start == 0 {
				normalizers = t.cuts.normalizers
			}
			failed = t.encodePiece(s, text[start:end], normalizers, start == 0 && !cut)
		}
	})
	ids := s.out
	s.out = nil
	if failed != nil {
		return nil, failed
	}
	if s.unknown {
		return nil, errors.New("the text needs the unknown token, which the vocabulary lacks")
	}
	return ids, nil
}

func normalize(text string, normalizers []normalizer, deadline time.Time) (string, error) {
	for _, n := range normalizers {
		var err error
		if text, err = n.normalize(text, deadline); err != nil {
			return "", err
		}
	}
	return text, nil
}

// encodePiece encodes text between two added tokens; first tells that it begins
// the whole text.
func (t *Tokenizer) encodePiece(s *state, text string, normalizers []normalizer, first bool) error {
	text, err := normalize(text, normalizers, s.deadline)
	if err != nil {
		return err
	}
	t.normalized.cut(text, func(start, end int, id int32) {
		switch {
		case err != nil:
		case id >= 0:
			s.out = append(s.out, int(id))
		default:
			err = t.split(piece{text[start:end], first && start == 0}, 0, s)
		}
	})
	return err
}

// split runs the splitters from the i-th on and hands what comes out of the last to the model.
func (t *Tokenizer) split(p piece, i int, s *state) error {
	if i == len(t.splitters) {
		t.model.encode(p.text, s)
		return nil
	}
	var failed error
	err := t.splitters[i].split(p, s.deadline, func(q piece) {
		if q.text != "" && failed == nil {
			failed = t.split(q, i+1, s)
		}
	})
	return cmp.Or(failed, err)
}

// Decode returns the text of ids, special tokens included. Bytes that do not add
// up to UTF-8, as at a cut through a character, become U+FFFD. An id without a token, such as one that
// only fills up the vocabulary of a model, has no text, as in transformers.
func (t *Tokenizer) Decode(ids []int) (string, error) {
	tokens := make([]string, 0, len(ids))
	for _, id := range ids {
		token, ok := t.Token(id)
		if !ok {
			continue
		}
		if spelling, ok := t.spellings[id]; ok {
			token = spelling // as the decoders expect it
		}
		tokens = append(tokens, token)
	}
	return t.join(tokens)
}
