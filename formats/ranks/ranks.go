// Package ranks reads tokenizers that are files of byte strings by rank, as the library tiktoken takes them: tekken.json of
// Mistral's models, and tiktoken.model of Kimi's. It makes a tokenizer.json of one, for all who read such a file.
//
// Of the neighbours in a word, those whose bytes together are the token of the lowest rank become it, leftmost first. A
// tokenizer.json lists pairs instead, of which no two have one rank. It gets every pair of tokens that makes a token, in the order
// of what they make. That two of these make the same token does no harm: what a stretch of bytes has become just before it
// is one token does not depend on what stands around it, so one and the same pair makes it wherever it is made.
//
// The sources are mistral_common/tokens/tokenizers/tekken.py of mistral-common 1.13, tokenization_kimi.py of Kimi-K2, and
// CoreBPE of tiktoken 0.14.
package ranks

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/lutq/lutq/formats/added"
)

// The files of this kind.
const (
	TekkenFile   = "tekken.json"
	TiktokenFile = "tiktoken.model"
)

// Files returns the names of the files of this kind, the first to look for in front.
func Files() []string { return []string{TekkenFile, TiktokenFile} }

// In returns the name of the file of this kind that a folder has, "" where it has none. A tokenizer.json comes before all of them.
func In(folder string) string {
	if _, err := os.Lstat(filepath.Join(folder, "tokenizer.json")); err == nil {
		return ""
	}
	for _, name := range Files() {
		if _, err := os.Lstat(filepath.Join(folder, name)); err == nil {
			return name
		}
	}
	return ""
}

// TokenizerJSON makes a tokenizer.json of a file of this kind by its name, and of what other files of its folder say of
// added tokens, or nil. Its errors say where in the file something is wrong.
func TokenizerJSON(name string, data []byte, beside *added.Beside) ([]byte, error) {
	var l *list
	var err error
	switch name {
	case TekkenFile:
		l, err = readTekken(data)
	case TiktokenFile:
		l, err = readTiktoken(data, beside)
	default:
		err = fmt.Errorf("%s is no file of ranks", name)
	}
	if err != nil {
		return nil, err
	}
	return l.json()
}

// SpecialTokens returns the special tokens with a name, such as bos_token, that a file of this kind always has where no other file
// names any: a Tekken has its own, and in all of its versions the same.
func SpecialTokens(name string) map[string]string {
	if name != TekkenFile {
		return nil
	}
	return map[string]string{"bos_token": tekkenBOS, "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}
}

// list is a tokenizer of this kind.
type list struct {
	tokens  []string // bytes, by rank
	first   int      // the id of rank 0
	special []added.Token
	before  *added.Token // is put before a text
	pattern string       // that words match
}

// The most that a file may ask for. Published ones stay below a tenth of it.
const (
	maxTokens = 1 << 22 // ids
	maxSplits = 1 << 28 // squares of the lengths of tokens in bytes, in all: the work, and the size of what is made
)

// byteTokens are the tokens that a word starts as.
const byteTokens = 256

// add adds the token of the next rank.
func (l *list) add(token string) { l.tokens = append(l.tokens, token) }

type object = map[string]any

// json makes the tokenizer.json.
func (l *list) json() ([]byte, error) {
	vocab := make(map[string]int, len(l.tokens)+len(l.special))
	spelled := make([]string, len(l.tokens))
	ranks := make(map[string]int, len(l.tokens))
	work := 0
	for rank, token := range l.tokens {
		if token == "" {
			return nil, fmt.Errorf("the token of rank %d is empty", rank)
		}
		if other, ok := ranks[token]; ok {
			return nil, fmt.Errorf("the token %.40q has the ranks %d and %d", token, other, rank)
		}
		ranks[token], spelled[rank] = rank, spell(token)
		vocab[spelled[rank]] = l.first + rank
		if len(token) > maxSplits {
			return nil, fmt.Errorf("the token of rank %d has %d bytes", rank, len(token))
		}
		if work += len(token) * len(token); work > maxSplits {
			return nil, errors.New("the tokens are too long: more than can be merged")
		}
	}
	for b := range byteTokens {
		if _, ok := ranks[string([]byte{byte(b)})]; !ok {
			return nil, fmt.Errorf("no token of the byte 0x%02x: there are texts that have no tokens", b)
		}
	}
	for _, t := range l.special {
		if other, ok := vocab[t.Content]; ok {
			return nil, fmt.Errorf("the special token %.40q has the ids %d and %d", t.Content, other, t.ID)
		}
		vocab[t.Content] = t.ID
	}
	file := object{
		"version": "1.0", "added_tokens": l.special, "normalizer": nil,
		"pre_tokenizer": object{"type": "Sequence", "pretokenizers": []object{
			// What the pattern does not match has no tokens.
			{"type": "Split", "pattern": object{"Regex": l.pattern}, "behavior": "Removed", "invert": true},
			{"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false},
		}},
		"decoder": object{"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false},
		"model": object{
			"type": "BPE", "ignore_merges": true, "byte_fallback": false, "vocab": vocab, "merges": merges(l.tokens, spelled, ranks),
		},
	}
	if l.before != nil {
		type part = map[string]object
		text := part{"Sequence": object{"id": "A", "type_id": 0}}
		bos := part{"SpecialToken": object{"id": l.before.Content, "type_id": 0}}
		file["post_processor"] = object{
			"type": "TemplateProcessing", "single": []part{bos, text},
			"pair": []part{bos, text, bos, {"Sequence": object{"id": "B", "type_id": 1}}},
			"special_tokens": object{l.before.Content: object{
				"id": l.before.Content, "ids": []int{l.before.ID}, "tokens": []string{l.before.Content},
			}},
		}
	}
	return json.Marshal(file)
}

// merges lists the pairs of tokens that make a token, by its rank and then by theirs.
func merges(tokens, spelled []string, ranks map[string]int) [][2]string {
	all := make([][2]string, 0, 2*len(tokens))
	for _, token := range tokens {
		var pairs [][2]int
		for at := 1; at < len(token); at++ {
			left, ok := ranks[token[:at]]
			if !ok {
				continue
			}
			if right, ok := ranks[token[at:]]; ok {
				pairs = append(pairs, [2]int{left, right})
			}
		}
		slices.SortFunc(pairs, func(a, b [2]int) int { return slices.Compare(a[:], b[:]) })
		for _, p := range pairs {
			all = append(all, [2]string{spelled[p[0]], spelled[p[1]]})
		}
	}
	return all
}

// spell writes bytes in the alphabet of GPT-2, as a tokenizer.json does: printable ones of Latin-1 as they are, others as the characters
// from U+0100 on.
func spell(token string) string {
	var s strings.Builder
	for i := range len(token) {
		s.WriteRune(letters[token[i]])
	}
	return s.String()
}

var letters = func() (all [256]rune) {
	next := rune(0x100)
	for b := range all {
		switch {
		case '!' <= b && b <= '~', 0xa1 <= b && b <= 0xac, 0xae <= b:
			all[b] = rune(b)
		default:
			all[b] = next
			next++
		}
	}
	return all
}()
