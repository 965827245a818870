package gguf

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/lutq/lutq/formats/added"
	"github.com/lutq/lutq/formats/arch"
	"github.com/lutq/lutq/formats/foreign"
	"github.com/lutq/lutq/formats/input"
	"github.com/lutq/lutq/formats/ranks"
)

// The types of tokens, as llama.cpp numbers them.
const (
	tokenNormal  int32 = 1
	tokenUnknown int32 = 2
	tokenControl int32 = 3
	tokenUser    int32 = 4
	tokenUnused  int32 = 5
	tokenByte    int32 = 6
)

// UnknownSplitError is the error of a tokenizer that cuts a text in a way that llama.cpp has no name for.
type UnknownSplitError struct {
	Steps []string // patterns, one after the other
}

func (e *UnknownSplitError) Error() string {
	return fmt.Sprintf("llama.cpp has no pre-tokenizer that splits by %s", strings.Join(e.Steps, ", then by "))
}

// describeTokenizer returns the pairs that describe the tokenizer of a model folder, whose tokens are filled up to the model's
// vocabulary. It reads tokenizer.json or a file of ranks, tokenizer_config.json, generation_config.json and chat_template.jinja, of which all
// but the first may be missing. It fails with an [UnknownSplitError], and on else that llama.cpp would do otherwise. What it has
// not, but few texts need, is kept in pairs of our own and listed.
func describeTokenizer(m *foreign.Model, d *arch.Decoder) (kvs []KV, lacks []lack, err error) {
	const settings, generation = "tokenizer_config.json", "generation_config.json"
	vocabulary, text, err := readVocabulary(m)
	if err != nil {
		return nil, nil, err
	}
	beside, err := added.Read(func(name string) ([]byte, error) { return m.ReadFile(name, input.Config) })
	if err != nil {
		return nil, nil, fmt.Errorf("%s: %w", m.Dir, err)
	}
	if vocabulary != tokenizerName {
		text, err = ranks.TokenizerJSON(vocabulary, text, beside)
	}
	var t *written
	if err == nil {
		t, err = newTokenizer(text, beside, d)
	}
	if err != nil {
		return nil, nil, fmt.Errorf("%s: %w", filepath.Join(m.Dir, vocabulary), err)
	}
	config, err := readOptional(m, generation, input.Config)
	if err == nil {
		t.ends, err = d.Ends(config)
	}
	if err != nil {
		return nil, nil, fmt.Errorf("%s: %w", m.Dir, err)
	}
	if config, err = readOptional(m, settings, input.Config); err != nil {
		return nil, nil, err
	}
	if err := t.special(config, d); err != nil {
		return nil, nil, fmt.Errorf("%s: %w", filepath.Join(m.Dir, settings), err)
	}
	template, err := readOptional(m, "chat_template.jinja", input.Text)
	if err != nil {
		return nil, nil, err
	}
	if len(template) > 0 {
		t.kvs = slices.DeleteFunc(t.kvs, func(kv KV) bool { return kv.Key == chatTemplate })
		t.kvs = append(t.kvs, KV{chatTemplate, string(template)})
	}
	return t.kvs, t.lacks, nil
}

const tokenizerName = "tokenizer.json"

// readVocabulary reads tokenizer.json, or the one of [ranks.Files] that the model has instead, and returns its name.
func readVocabulary(m *foreign.Model) (name string, text []byte, err error) {
	text, err = m.ReadFile(tokenizerName, input.Tokenizer)
	if !errors.Is(err, fs.ErrNotExist) {
		return tokenizerName, text, err
	}
	for _, name := range ranks.Files() {
		if text, other := m.ReadFile(name, input.Tokenizer); !errors.Is(other, fs.ErrNotExist) {
			return name, text, other
		}
	}
	return tokenizerName, nil, err
}

// written is a tokenizer on its way into pairs.
type written struct {
	*vocabulary
	beside *added.Beside

	kvs   []KV
	lacks []lack
	ends  []int // that end a text

	before, behind *int // tokens that are put around a text
}

// readOptional reads a file that may be missing.
func readOptional(m *foreign.Model, name string, kind input.Kind) ([]byte, error) {
	data, err := m.ReadFile(name, kind)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return data, err
}

// tokenizerFile is what is read of a tokenizer.json.
type tokenizerFile struct {
	Added         []added.Token `json:"added_tokens"`
	Normalizer    *step         `json:"normalizer"`
	PreTokenizer  *step         `json:"pre_tokenizer"`
	PostProcessor *step         `json:"post_processor"`
	Model         struct {
		Type         string  `json:"type"`
		Unknown      string  `json:"unk_token"`
		ByteFallback bool    `json:"byte_fallback"`
		IgnoreMerges bool    `json:"ignore_merges"`
		Prefix       string  `json:"continuing_subword_prefix"`
		Suffix       string  `json:"end_of_word_suffix"`
		Vocab        words   `json:"vocab"`
		Merges       []merge `json:"merges"`
	} `json:"model"`
}

// words is the vocabulary of a model. It implements [added.Vocabulary].
type words map[string]int

func (w words) Len() int { return len(w) }

func (w words) ID(token string) (id int, ok bool) {
	id, ok = w[token]
	return id, ok
}

// step is a normalizer, pre-tokenizer or post-processor, or a sequence of such.
type step struct {
	Type          string `json:"type"`
	Normalizers   []step `json:"normalizers"`
	Pretokenizers []step `json:"pretokenizers"`
	Processors    []step `json:"processors"`

	Prepend     string // of Prepend
	Content     string // of Replace
	Pattern     pattern
	Behavior    string
	Invert      bool
	Digits      bool   `json:"individual_digits"`
	PrefixSpace bool   `json:"add_prefix_space"` // of ByteLevel
	UseRegex    *bool  `json:"use_regex"`        // true where it is missing
	Scheme      string `json:"prepend_scheme"`   // of Metaspace
	Single      []struct {
		SpecialToken *struct {
			ID string `json:"id"`
		}
		Sequence *struct{}
	}
	SpecialTokens map[string]struct {
		IDs []int `json:"ids"`
	} `json:"special_tokens"`
}

// pattern is what Split and Replace look for.
type pattern struct {
	Regex  string
	String string
}

// merge is a pair of tokens, spelled as one string in older files.
type merge [2]string

func (m *merge) UnmarshalJSON(data []byte) error {
	var line string
	if json.Unmarshal(data, &line) == nil {
		left, right, ok := strings.Cut(line, " ")
		if !ok {
			return fmt.Errorf("merge %.40q is no pair", line)
		}
		*m = merge{left, right}
		return nil
	}
	var pair []string
	if err := json.Unmarshal(data, &pair); err != nil || len(pair) != 2 {
		return errors.New("a merge is no pair")
	}
	*m = merge(pair)
	return nil
}

// flat returns a step, or those of a sequence.
func (s *step) flat() []step {
	if s == nil {
		return nil
	}
	if s.Type != "Sequence" {
		return []step{*s}
	}
	var all []step
	for _, inner := range slices.Concat(s.Normalizers, s.Pretokenizers, s.Processors) {
		all = append(all, inner.flat()...)
	}
	return all
}

// newTokenizer describes a tokenizer.json with what files beside it add to it, or nil.
func newTokenizer(text []byte, beside *added.Beside, d *arch.Decoder) (*written, error) {
	if !utf8.Valid(text) {
		return nil, errors.New("not valid UTF-8")
	}
	var f tokenizerFile
	if err := json.Unmarshal(text, &f); err != nil {
		return nil, err
	}
	m := &f.Model
	switch {
	case m.Type != "BPE":
		return nil, fmt.Errorf("a tokenizer of type %.40q: want BPE", m.Type)
	case len(m.Vocab) == 0:
		return nil, errors.New("the vocabulary is empty")
	case m.Prefix != "" || m.Suffix != "":
		return nil, errors.New("prefixes or suffixes of words are not supported")
	}
	v, err := f.vocabulary(beside, d.Vocab)
	if err != nil {
		return nil, err
	}
	t := &written{vocabulary: v, beside: beside}
	if m.ByteFallback {
		t.kvs, err = f.sentencePiece(v)
	} else if t.kvs, err = f.byteLevel(v); err == nil {
		t.marks()
		err = t.normalizer(text, f.Normalizer)
	}
	if err != nil {
		return nil, err
	}
	if t.before, t.behind, err = f.around(); err != nil {
		return nil, err
	}
	t.kvs = append(t.kvs, KV{"tokenizer.ggml.add_bos_token", t.before != nil}, KV{"tokenizer.ggml.add_eos_token", t.behind != nil})
	return t, t.added(added.Tokens(f.Model.Vocab, f.Added, beside))
}

// normalizer keeps the normalizer of a tokenizer of bytes, of which llama.cpp has none.
func (t *written) normalizer(text []byte, s *step) error {
	steps := s.flat()
	if len(steps) == 0 {
		return nil
	}
	var file struct{ Normalizer json.RawMessage }
	if err := json.Unmarshal(text, &file); err != nil {
		return err
	}
	t.kvs = append(t.kvs, KV{ownNormalizer, string(file.Normalizer)})
	t.lacks = append(t.lacks, lack{"no normalizer " + steps[0].Type, "it cuts text in another form otherwise"})
	return nil
}

// added keeps what added tokens have beside their text, for which llama.cpp has no place.
func (t *written) added(tokens []added.Token) error {
	var odd []added.Token
	for _, a := range tokens {
		if a.ID < len(t.tokens) && (a.SingleWord || a.LStrip || a.RStrip) {
			odd = append(odd, a)
		}
	}
	if len(odd) == 0 {
		return nil
	}
	text, err := json.Marshal(odd)
	t.kvs = append(t.kvs, KV{ownAdded, string(text)})
	t.lacks = append(t.lacks, lack{
		fmt.Sprintf("no place for lstrip, rstrip and single_word of %d added tokens", len(odd)),
		"unless it knows the model by name, it keeps the spaces around them",
	})
	return err
}

// vocabulary is the tokens by id.
type vocabulary struct {
	tokens []string
	types  []int32
}

// vocabulary lists the tokens, filled up to size with unused ones.
func (f *tokenizerFile) vocabulary(beside *added.Beside, size int) (*vocabulary, error) {
	// Ids above the model's would be rows that the embedding has not.
	v := &vocabulary{make([]string, size), make([]int32, size)}
	set := func(id int, token string, kind int32) error {
		switch {
		case id < 0 || id >= size:
			return fmt.Errorf("token %.40q has id %d: the model has %d", token, id, size)
		case v.types[id] != 0 && v.tokens[id] != token:
			return fmt.Errorf("id %d belongs to both %.40q and %.40q", id, v.tokens[id], token)
		}
		v.tokens[id], v.types[id] = token, kind
		return nil
	}
	for _, token := range slices.Sorted(maps.Keys(f.Model.Vocab)) {
		kind := tokenNormal
		switch {
		case token == f.Model.Unknown && token != "":
			kind = tokenUnknown
		case f.Model.ByteFallback && isByte(token):
			kind = tokenByte
		}
		if err := set(f.Model.Vocab[token], token, kind); err != nil {
			return nil, err
		}
	}
	for _, a := range added.Tokens(f.Model.Vocab, f.Added, beside) {
		if a.ID >= size && !slices.ContainsFunc(f.Added, func(t added.Token) bool { return t.Content == a.Content }) {
			continue // named beside the file alone, as a token to fill up with often is: the model cannot read it
		}
		kind := tokenUser
		if a.Special {
			kind = tokenControl
		}
		if id, ok := f.Model.Vocab[a.Content]; ok && v.types[id] == tokenUnknown {
			kind = tokenUnknown
		}
		if err := set(a.ID, a.Content, kind); err != nil {
			return nil, err
		}
	}
	seen := make(map[string]bool, size)
	for id, token := range v.tokens {
		if v.types[id] == 0 {
			token = fmt.Sprintf("[PAD%d]", id)
			v.tokens[id], v.types[id] = token, tokenUnused
		}
		if seen[token] {
			return nil, fmt.Errorf("two ids have the token %.40q", token)
		}
		seen[token] = true
	}
	return v, nil
}

// isByte reports whether a token is the spelling of a byte, such as <0x0A>.
func isByte(token string) bool {
	if len(token) != 6 || token[:3] != "<0x" || token[5] != '>' {
		return false
	}
	_, err := strconv.ParseUint(token[3:5], 16, 8)
	return err == nil
}

// merges spells the pairs of tokens that merge, by rank; nil where one has a space in it.
func (f *tokenizerFile) merges() []string {
	lines := make([]string, len(f.Model.Merges))
	for i, m := range f.Model.Merges {
		if strings.Contains(m[0], " ") || strings.Contains(m[1], " ") {
			return nil
		}
		lines[i] = m[0] + " " + m[1]
	}
	return lines
}

// byteLevel describes a tokenizer of bytes, in the alphabet of GPT-2.
func (f *tokenizerFile) byteLevel(v *vocabulary) ([]KV, error) {
	for _, n := range f.Normalizer.flat() {
		if n.Type != "NFC" { // in whose form most text is already
			return nil, fmt.Errorf("normalizer %s is not one that llama.cpp has", n.Type)
		}
	}
	pre, err := f.pre()
	if err != nil {
		return nil, err
	}
	lines := f.merges()
	if lines == nil && len(f.Model.Merges) > 0 {
		return nil, errors.New("a merge has a space in it")
	}
	return []KV{
		{"tokenizer.ggml.model", "gpt2"},
		{preKey, pre},
		{"tokenizer.ggml.tokens", v.tokens},
		{"tokenizer.ggml.token_type", v.types},
		{"tokenizer.ggml.merges", lines},
	}, nil
}

// sentencePiece describes a tokenizer of characters with a fallback to bytes. llama.cpp merges the pair whose token has
// the highest score: the rank of its merge, negated.
func (f *tokenizerFile) sentencePiece(v *vocabulary) ([]KV, error) {
	prefix, err := f.spacePrefix()
	if err != nil {
		return nil, err
	}
	if n := len(slices.DeleteFunc(slices.Clone(v.types), func(kind int32) bool { return kind != tokenByte })); n != 256 {
		return nil, fmt.Errorf("a fallback to bytes, of which %d have a token: llama.cpp stops at a character without", n)
	}
	scores := make([]float32, len(v.tokens))
	for i, kind := range v.types {
		switch kind {
		case tokenNormal, tokenUser:
			scores[i] = -1e6 // of no merge
		case tokenUnused:
			scores[i] = -1e7
		}
	}
	for rank := len(f.Model.Merges) - 1; rank >= 0; rank-- { // so that the first of several stays
		m := f.Model.Merges[rank]
		if id, ok := f.Model.Vocab[m[0]+m[1]]; ok {
			scores[id] = -float32(rank)
		}
	}
	for i, kind := range v.types {
		if kind == tokenUser {
			// These are looked for in the text as it is.
			v.tokens[i] = strings.ReplaceAll(v.tokens[i], "▁", " ")
		}
	}
	kvs := []KV{
		{"tokenizer.ggml.model", "llama"},
		{preKey, "default"},
		{"tokenizer.ggml.tokens", v.tokens},
		{"tokenizer.ggml.scores", scores},
		{"tokenizer.ggml.token_type", v.types},
		{"tokenizer.ggml.add_space_prefix", prefix},
	}
	if lines := f.merges(); len(lines) > 0 { // which transformers takes rather than scores
		kvs = append(kvs, KV{"tokenizer.ggml.merges", lines})
	}
	return kvs, nil
}

// spacePrefix reports whether a text gets a space before it, and refuses what else is done to a text.
func (f *tokenizerFile) spacePrefix() (bool, error) {
	prefix, replaces := false, false
	for _, s := range slices.Concat(f.Normalizer.flat(), f.PreTokenizer.flat()) {
		switch {
		case s.Type == "Prepend" && s.Prepend == "▁":
			prefix = true
		case s.Type == "Replace" && s.Pattern.String == " " && s.Content == "▁":
			replaces = true
		case s.Type == "Metaspace":
			prefix, replaces = s.Scheme != "never", true
		case s.Type == "Split" && s.Pattern.String == " " && replaces: // where there are no spaces left
		default:
			return false, fmt.Errorf("step %s is not one that llama.cpp has beside a fallback to bytes", s.Type)
		}
	}
	if !replaces {
		return false, errors.New("a fallback to bytes, but spaces are not replaced")
	}
	return prefix, nil
}

// split is a pre-tokenizer of llama.cpp: its name, and what a tokenizer.json has for it. Where words that are tokens are
// taken whole, ignore is set.
type split struct {
	name   string
	ignore bool
	steps  []string
}

// gpt2 is the pattern that ByteLevel has of its own, and digits that of Digits.
const (
	gpt2Pattern = `'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`
	digits      = `\p{N}`
)

// splits lists the pre-tokenizers that are known by their patterns, as the comments in llama-vocab.cpp have them.
func splits() []split {
	const (
		contractions = `(?i:'s|'t|'re|'ve|'m|'ll|'d)`
		word         = `|[^\r\n\p{L}\p{N}]?\p{L}+`
		rest         = `| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`
		slashes      = `| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+`
		lower        = `[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+`
		upper        = `|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*`

		llama3 = contractions + word + `|\p{N}{1,3}` + rest
		qwen2  = contractions + word + `|\p{N}` + rest
		qwen35 = contractions + `|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`
		tekken = lower + upper + `|\p{N}` + slashes
		gpt4o  = lower + contractions + `?` + upper + contractions + `?|\p{N}{1,3}` + slashes

		kana     = "[一-龥\u3040-ゟ゠-ヿ]+"
		deepseek = `[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_` + "`" + `{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`
	)
	return []split{
		{"llama-bpe", true, []string{llama3}},
		{"dbrx", false, []string{llama3}},
		{"qwen2", false, []string{qwen2}},
		{"qwen35", false, []string{qwen35}},
		{"tekken", true, []string{tekken}},
		{"gpt-4o", false, []string{gpt4o}},
		{"kimi-k2", false, []string{ranks.KimiPattern}},
		{"deepseek-v3", false, []string{`\p{N}{1,3}`, kana, deepseek}},
		{"gpt-2", false, []string{gpt2Pattern}},
		{"smollm", false, []string{digits, gpt2Pattern}},
	}
}

// pre finds the pre-tokenizer by the patterns that it splits by, one after the other.
func (f *tokenizerFile) pre() (string, error) {
	var steps []string
	bytes := false
	for _, s := range f.PreTokenizer.flat() {
		switch s.Type {
		case "Split":
			if s.Behavior != "Isolated" && s.Behavior != "Removed" || s.Behavior == "Removed" != s.Invert || s.Pattern.Regex == "" {
				return "", fmt.Errorf("pre_tokenizer Split with behavior %.20q is not supported", s.Behavior)
			}
			steps = append(steps, escaped.Replace(s.Pattern.Regex))
		case "Digits":
			if !s.Digits {
				return "", &UnknownSplitError{append(steps, "numbers")}
			}
			steps = append(steps, digits)
		case "ByteLevel":
			bytes = true
			if s.PrefixSpace {
				return "", errors.New("ByteLevel adds a space: llama.cpp adds none")
			}
			if s.UseRegex == nil || *s.UseRegex {
				steps = append(steps, gpt2Pattern)
			}
		default:
			return "", fmt.Errorf("pre_tokenizer %s is not one that llama.cpp has", s.Type)
		}
	}
	if !bytes {
		return "", errors.New("pre_tokenizer has no ByteLevel, and the model no fallback to bytes")
	}
	for _, whole := range []bool{f.Model.IgnoreMerges, false} {
		for _, s := range splits() {
			if s.ignore == whole && slices.Equal(s.steps, steps) && (whole == f.Model.IgnoreMerges || f.mergesWhole()) {
				return s.name, nil
			}
		}
	}
	if f.Model.IgnoreMerges {
		steps = append(steps, "words that are tokens")
	}
	return "", &UnknownSplitError{steps}
}

// escaped writes ends of lines in a pattern as escapes. Some files have the characters themselves.
var escaped = strings.NewReplacer("\r", `\r`, "\n", `\n`)

// maxMerging bounds the squares of the lengths of tokens, in all. Published vocabularies stay below a tenth of it.
const maxMerging = 1 << 28

// mergesWhole reports whether merging makes every token of its letters. Then it does not matter whether words that are tokens are
// merged or taken whole.
func (f *tokenizerFile) mergesWhole() bool {
	ranks := make(map[merge]int, len(f.Model.Merges))
	for rank, m := range f.Model.Merges {
		ranks[m] = rank
	}
	special := make(map[string]bool)
	for _, a := range f.Added {
		special[a.Content] = true // is found before words are
	}
	work := 0
	for token := range f.Model.Vocab {
		parts := strings.Split(token, "")
		if work += len(parts) * len(parts); work > maxMerging {
			return false
		}
		for len(parts) > 1 && !special[token] {
			at, best := -1, len(f.Model.Merges)
			for i := 1; i < len(parts); i++ {
				if rank, ok := ranks[merge{parts[i-1], parts[i]}]; ok && rank < best {
					at, best = i, rank
				}
			}
			if at < 0 {
				return false
			}
			parts = slices.Replace(parts, at-1, at+1, parts[at-1]+parts[at])
		}
	}
	return true
}

// marks tells of combining marks, which llama.cpp's splitters of these names take for no part of a word, though their patterns do.
func (t *written) marks() {
	for _, kv := range t.kvs {
		if kv.Key == preKey && slices.Contains([]any{"tekken", "gpt-4o", "kimi-k2"}, kv.Value) {
			t.lacks = append(t.lacks, lack{fmt.Sprintf("no combining marks in the words of its pre-tokenizer %s", kv.Value), "it cuts Hindi, Thai and accents that stand by themselves otherwise"})
		}
	}
}

// id returns the id of a token.
func (f *tokenizerFile) id(token string) (int, bool) {
	for _, a := range f.Added {
		if a.Content == token {
			return a.ID, true
		}
	}
	return f.Model.Vocab.ID(token)
}

// around returns the token that is put before a text, and the one behind it; nil for none.
func (f *tokenizerFile) around() (before, behind *int, err error) {
	for _, s := range f.PostProcessor.flat() {
		switch s.Type {
		case "ByteLevel": // concerns offsets only
		case "TemplateProcessing":
			at := &before
			for _, part := range s.Single {
				if part.Sequence != nil {
					at = &behind
				} else if part.SpecialToken != nil {
					ids := s.SpecialTokens[part.SpecialToken.ID].IDs
					if id, ok := f.id(part.SpecialToken.ID); ids == nil && ok {
						ids = []int{id}
					}
					if *at != nil || len(ids) != 1 {
						return nil, nil, fmt.Errorf("post_processor puts %.40q before or behind a text: llama.cpp puts one token there", part.SpecialToken.ID)
					}
					*at = &ids[0]
				}
			}
		default:
			return nil, nil, fmt.Errorf("post_processor %s is not one that llama.cpp has", s.Type)
		}
	}
	return before, behind, nil
}

const (
	chatTemplate = "tokenizer.chat_template"
	preKey       = "tokenizer.ggml.pre"
)

// templates are chat templates: one, or several with names.
type templates []struct{ Name, Template string }

func (t *templates) UnmarshalJSON(data []byte) error {
	var one string
	if json.Unmarshal(data, &one) == nil {
		*t = templates{{"default", one}}
		return nil
	}
	return json.Unmarshal(data, (*[]struct{ Name, Template string })(t))
}

// special describes the special tokens that files beside tokenizer.json name, and the chat templates of a
// tokenizer_config.json, which may be empty.
func (t *written) special(config []byte, d *arch.Decoder) error {
	var c struct {
		Templates templates `json:"chat_template"`
	}
	if len(config) > 0 {
		if err := json.Unmarshal(config, &c); err != nil {
			return err
		}
	}
	ids := make(map[string]int)
	for id, token := range t.tokens {
		ids[token] = id
	}
	// A token is the one that has the name, or else another that is known.
	add := func(name, as string, other *int) *int {
		id := other
		if token, ok := t.beside.Token(as); ok {
			if named, ok := ids[token]; ok {
				id = &named
			}
		}
		if id == nil || *id >= d.Vocab {
			return nil
		}
		t.kvs = append(t.kvs, KV{idKey(name), uint32(*id)})
		return id
	}
	bos, eos := d.BOS, (*int)(nil)
	if t.before != nil {
		bos = t.before
	}
	switch {
	case t.behind != nil:
		eos = t.behind
	case len(t.ends) > 0:
		eos = &t.ends[0]
	}
	bos, eos = add("bos", "bos_token", bos), add("eos", "eos_token", eos)
	for _, around := range []struct {
		where   string
		is, put *int
	}{{"before", bos, t.before}, {"behind", eos, t.behind}} {
		if around.put != nil && (around.is == nil || *around.is != *around.put) {
			return fmt.Errorf("tokenizer.json puts token %d %s a text, and it is not the one named here: llama.cpp puts that", *around.put, around.where)
		}
	}
	add("unknown", "unk_token", nil)
	add("padding", "pad_token", nil)
	t.addEnds(eos)
	var names []string
	for _, x := range c.Templates {
		if x.Name == "default" {
			t.kvs = append(t.kvs, KV{chatTemplate, x.Template})
			continue
		}
		names = append(names, x.Name)
		t.kvs = append(t.kvs, KV{chatTemplate + "." + x.Name, x.Template})
	}
	if len(names) > 0 {
		t.kvs = append(t.kvs, KV{"tokenizer.chat_templates", names})
	}
	return nil
}

// addEnds adds the tokens that end a text, of which eos has a pair already.
func (t *written) addEnds(eos *int) {
	kvs, lost, more := endKVs(t.tokens, eos, t.ends)
	t.kvs = append(t.kvs, kvs...)
	if len(t.ends) == 0 && eos == nil {
		t.lacks = append(t.lacks, lack{"no model without an end of texts", "it takes a token of its own choice for it"})
	}
	spell := func(ids []int) string {
		var all []string
		for _, id := range ids {
			all = append(all, input.Name(t.tokens[id]))
		}
		return strings.Join(all, ", ")
	}
	if len(lost) > 0 {
		t.lacks = append(t.lacks, lack{fmt.Sprintf("no place for the ends of texts %s", spell(lost)), "it does not end a text there"})
	}
	if len(more) > 0 {
		t.lacks = append(t.lacks, lack{fmt.Sprintf("other ends of texts, %s", spell(more)), "it ends a text there as well"})
	}
}
