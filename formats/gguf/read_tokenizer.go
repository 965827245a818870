package gguf

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/lutq/lutq/formats/added"
)

// HasTokenizer reports whether the file has a tokenizer.
func (f *File) HasTokenizer() bool {
	model, ok := f.Meta.Text("tokenizer.ggml.model")
	return ok && model != "none" && model != "no_vocab"
}

// object is a JSON object.
type object = map[string]any

// TokenizerJSON returns the file's tokenizer as a tokenizer.json. Tokenizers of kinds that
// llama.cpp runs but this package cannot describe, and pre-tokenizers that it does not know,
// are errors.
func (f *File) TokenizerJSON() ([]byte, error) {
	if !f.HasTokenizer() {
		return nil, errors.New("the file has no tokenizer")
	}
	v, err := f.vocabulary()
	if err != nil {
		return nil, err
	}
	var file object
	switch model, _ := f.Meta.Text("tokenizer.ggml.model"); model {
	case "gpt2":
		file, err = f.byteLevel(v)
	case "llama":
		file, err = f.sentencePiece(v)
	default:
		return nil, fmt.Errorf("tokenizer.ggml.model %.40q is not supported: want gpt2 or llama", model)
	}
	if err != nil {
		return nil, err
	}
	file["version"], file["truncation"], file["padding"] = "1.0", nil, nil
	own, err := f.added()
	if err != nil {
		return nil, err
	}
	file["added_tokens"] = v.added(own)
	return marshal(file)
}

// vocabulary reads the tokens and their types.
func (f *File) vocabulary() (*vocabulary, error) {
	tokens, err := f.Meta.strings("tokenizer.ggml.tokens")
	if err != nil {
		return nil, err
	}
	if len(tokens) == 0 {
		return nil, errors.New("no tokenizer.ggml.tokens")
	}
	v := &vocabulary{tokens: slices.Clone(tokens), types: make([]int32, len(tokens))}
	types, err := f.Meta.ints("tokenizer.ggml.token_type")
	if err != nil {
		return nil, err
	}
	if types != nil && len(types) != len(tokens) {
		return nil, fmt.Errorf("tokenizer.ggml.token_type: %d types of %d tokens", len(types), len(tokens))
	}
	for i, token := range tokens {
		v.types[i] = tokenNormal
		if types != nil {
			v.types[i] = int32(types[i])
		}
		if !utf8.ValidString(token) {
			return nil, fmt.Errorf("tokenizer.ggml.tokens: token %d is not valid UTF-8", i)
		}
	}
	return v, nil
}

// fills reports whether a token only fills up the vocabulary.
func (v *vocabulary) fills(id int) bool {
	return v.types[id] == tokenUnused && v.tokens[id] == fmt.Sprintf("[PAD%d]", id)
}

// ids returns the tokens that are in the vocabulary of a tokenizer.json.
func (v *vocabulary) ids() (map[string]int, error) {
	ids := make(map[string]int, len(v.tokens))
	for id, token := range v.tokens {
		if v.fills(id) || token == "" {
			continue
		}
		if other, ok := ids[token]; ok {
			return nil, fmt.Errorf("tokenizer.ggml.tokens: %d and %d are both %.40q", other, id, token)
		}
		ids[token] = id
	}
	return ids, nil
}

// added lists the tokens that are looked for in a text before anything else.
func (v *vocabulary) added(own map[int]added.Token) []object {
	list := []object{}
	for id, token := range v.tokens {
		switch v.types[id] {
		case tokenControl, tokenUnknown, tokenUser:
			if token != "" {
				list = append(list, object{
					"id": id, "content": token, "single_word": own[id].SingleWord, "lstrip": own[id].LStrip, "rstrip": own[id].RStrip,
					"normalized": false, "special": v.types[id] != tokenUser,
				})
			}
		}
	}
	return list
}

// bpe is the model of a tokenizer.json.
func bpe(ids map[string]int, merges [][2]string) object {
	return object{
		"type": "BPE", "dropout": nil, "unk_token": nil, "continuing_subword_prefix": nil, "end_of_word_suffix": nil,
		"fuse_unk": false, "byte_fallback": false, "ignore_merges": false, "vocab": ids, "merges": merges,
	}
}

// template is the post_processor that puts special tokens around a text, nil for none.
func (f *File) template(v *vocabulary, before, behind bool) any {
	sequence := func(id string, kind int) object { return object{"Sequence": object{"id": id, "type_id": kind}} }
	var single, pair []object
	special := make(object)
	token := func(name string, kind int) {
		if id, ok := f.tokenID(name); ok {
			t := v.tokens[id]
			special[t] = object{"id": t, "ids": []int{id}, "tokens": []string{t}}
			part := object{"SpecialToken": object{"id": t, "type_id": kind}}
			if kind == 0 {
				single = append(single, part)
			}
			pair = append(pair, part)
		}
	}
	for kind, id := range []string{"A", "B"} {
		if before {
			token("bos", kind)
		}
		if kind == 0 {
			single = append(single, sequence(id, kind))
		}
		pair = append(pair, sequence(id, kind))
		if behind {
			token("eos", kind)
		}
	}
	if len(special) == 0 {
		return nil
	}
	return object{"type": "TemplateProcessing", "single": single, "pair": pair, "special_tokens": special}
}

// around reports whether tokens are put before and behind a text. BOS is a default of some.
func (f *File) around(bos bool) (before, behind bool) {
	if add, ok := f.Meta.Bool("tokenizer.ggml.add_bos_token"); ok {
		bos = add
	}
	eos, _ := f.Meta.Bool("tokenizer.ggml.add_eos_token")
	return bos, eos
}

// readSplit finds a pre-tokenizer by a name. Beside those of [splits] there are other
// names for some, and one that is none: what llama.cpp does where a file names none.
func readSplit(name string) (split, error) {
	also := map[string][]string{
		"llama-bpe": {"llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2"},
		"dbrx":      {"smaug-bpe"},
		"qwen2":     {"stablelm2", "deepseek-r1-qwen", "megrez"},
		"gpt-2":     {"phi-2", "mpt", "olmo", "jais"},
		"smollm":    {"starcoder", "refact", "command-r", "codeshell"},
		"gpt-4o":    {"llama4"},
	}
	var known []string
	for _, s := range splits() {
		if s.name == name || slices.Contains(also[s.name], name) {
			return s, nil
		}
		known = append(known, s.name)
	}
	if name == "" || name == "default" {
		const words = `'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)`
		return split{name: "default", steps: []string{`[\p{P}\$\+<=>\^~\|]+`, words, `\p{N}+`, `[0-9][0-9][0-9]`}}, nil
	}
	return split{}, fmt.Errorf("%s %.40q is not one that is known: want one of %s", preKey, name, strings.Join(known, ", "))
}

// preTokenizer is the pre_tokenizer of a tokenizer of bytes.
func (s split) preTokenizer(prefix bool) object {
	level := object{"type": "ByteLevel", "add_prefix_space": prefix, "trim_offsets": true, "use_regex": false}
	var steps []object
	for i, pattern := range s.steps {
		switch {
		case pattern == digits:
			steps = append(steps, object{"type": "Digits", "individual_digits": true})
		case pattern == gpt2Pattern && i == len(s.steps)-1:
			level["use_regex"] = true
		default:
			steps = append(steps, object{"type": "Split", "pattern": object{"Regex": pattern}, "behavior": "Isolated", "invert": false})
		}
	}
	if steps = append(steps, level); len(steps) == 1 {
		return level
	}
	return object{"type": "Sequence", "pretokenizers": steps}
}

// byteLevel makes a tokenizer of bytes, in the alphabet of GPT-2.
func (f *File) byteLevel(v *vocabulary) (object, error) {
	ids, err := v.ids()
	if err != nil {
		return nil, err
	}
	pre, _ := f.Meta.Text(preKey)
	s, err := readSplit(pre)
	if err != nil {
		return nil, err
	}
	merges, err := f.merges(ids)
	if err != nil {
		return nil, err
	}
	if merges == nil {
		return nil, errors.New("no tokenizer.ggml.merges")
	}
	model := bpe(ids, merges)
	model["ignore_merges"] = s.ignore
	normalizer, err := f.normalizer()
	if err != nil {
		return nil, err
	}
	prefix, _ := f.Meta.Bool("tokenizer.ggml.add_space_prefix")
	before, behind := f.around(s.name == "llama-bpe" || s.name == "tekken")
	return object{
		"normalizer": normalizer, "pre_tokenizer": s.preTokenizer(prefix), "model": model,
		"post_processor": f.template(v, before, behind),
		"decoder":        object{"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true},
	}, nil
}

// merges reads the pairs that become one, nil where the file has none. A token has no space.
func (f *File) merges(ids map[string]int) ([][2]string, error) {
	lines, err := f.Meta.strings("tokenizer.ggml.merges")
	if err != nil || lines == nil {
		return nil, err
	}
	merges := make([][2]string, len(lines))
	for i, line := range lines {
		// A space may be the beginning of the first.
		at := strings.IndexByte(line[min(1, len(line)):], ' ') + 1
		if at < 1 {
			return nil, fmt.Errorf("tokenizer.ggml.merges: %d is %.40q: want two tokens", i, line)
		}
		merges[i] = [2]string{line[:at], line[at+1:]}
		for _, token := range []string{line[:at], line[at+1:], line[:at] + line[at+1:]} {
			if _, ok := ids[token]; !ok {
				return nil, fmt.Errorf("tokenizer.ggml.merges: %d is %.40q, but %.40q is no token", i, line, token)
			}
		}
	}
	return merges, nil
}

// maxToken is the most bytes of a token that is merged from others. The longest of published
// files have an eighth of it.
const maxToken = 1024

// sentencePiece makes a tokenizer of characters, with bytes for those that are no tokens.
func (f *File) sentencePiece(v *vocabulary) (object, error) {
	for i, token := range v.tokens {
		// llama.cpp writes the tokens of spaces out.
		if strings.Trim(token, " ") == "" {
			v.tokens[i] = strings.Repeat("▁", len(token))
		}
	}
	ids, err := v.ids()
	if err != nil {
		return nil, err
	}
	merges, err := f.merges(ids)
	if err != nil {
		return nil, err
	}
	if merges == nil {
		if merges, err = f.scoredMerges(v, ids); err != nil {
			return nil, err
		}
	}
	prefix := true
	if add, ok := f.Meta.Bool("tokenizer.ggml.add_space_prefix"); ok {
		prefix = add
	}
	spaces := object{"type": "Replace", "pattern": object{"String": " "}, "content": "▁"}
	normalizer := spaces
	decoders := []object{
		{"type": "Replace", "pattern": object{"String": "▁"}, "content": " "},
		{"type": "ByteFallback"},
		{"type": "Fuse"},
	}
	if prefix {
		normalizer = object{"type": "Sequence", "normalizers": []object{{"type": "Prepend", "prepend": "▁"}, spaces}}
		decoders = append(decoders, object{"type": "Strip", "content": " ", "start": 1, "stop": 0})
	}
	model := bpe(ids, merges)
	model["byte_fallback"] = slices.Contains(v.types, tokenByte)
	model["fuse_unk"] = true
	if i := slices.Index(v.types, tokenUnknown); i >= 0 {
		model["unk_token"] = v.tokens[i]
	} else if id, ok := f.tokenID("unknown"); ok {
		model["unk_token"] = v.tokens[id]
	}
	before, behind := f.around(true)
	return object{
		"normalizer": normalizer, "pre_tokenizer": nil, "model": model,
		"post_processor": f.template(v, before, behind),
		"decoder":        object{"type": "Sequence", "decoders": decoders},
	}, nil
}

// scoredMerges makes the pairs that become one of the scores of what they become: SentencePiece
// merges the pair of the highest score. It is how transformers makes them: all pairs of tokens that
// make a token, those of a higher score first, then those of longer tokens, the first before the second.
func (f *File) scoredMerges(v *vocabulary, ids map[string]int) ([][2]string, error) {
	scores, ok := f.Meta["tokenizer.ggml.scores"].([]float32)
	if !ok || len(scores) != len(v.tokens) {
		return nil, fmt.Errorf("tokenizer.ggml.scores: want a float32 of each of the %d tokens", len(v.tokens))
	}
	type pair struct {
		left, right int // ids
		score       float32
		first, rest int // characters of the two
	}
	var pairs []pair
	mergeable := func(id int) bool {
		switch v.types[id] {
		case tokenNormal, tokenUnused:
			return true
		case tokenUser: // found whole before any merge, but for runs of spaces, which are ▁ only later
			return strings.Trim(v.tokens[id], "▁") == ""
		}
		return false
	}
	for id, token := range v.tokens {
		if !mergeable(id) || v.fills(id) {
			continue
		}
		if len(token) > maxToken {
			return nil, fmt.Errorf("tokenizer.ggml.tokens: token %d has %d bytes: want at most %d", id, len(token), maxToken)
		}
		if scores[id] != scores[id] {
			return nil, fmt.Errorf("tokenizer.ggml.scores: that of token %d is NaN", id)
		}
		score := scores[id]
		if v.types[id] == tokenUser {
			score = float32(math.Inf(1))
		}
		first, length := 0, utf8.RuneCountInString(token)
		for i := range token {
			if i > 0 {
				left, ok := ids[token[:i]]
				right, also := ids[token[i:]]
				if ok && also && mergeable(left) && mergeable(right) {
					pairs = append(pairs, pair{left, right, score, first, length - first})
				}
			}
			first++
		}
	}
	slices.SortStableFunc(pairs, func(a, b pair) int {
		return cmp.Or(cmp.Compare(b.score, a.score), cmp.Compare(b.first, a.first), cmp.Compare(b.rest, a.rest))
	})
	merges := make([][2]string, len(pairs))
	for i, p := range pairs {
		merges[i] = [2]string{v.tokens[p.left], v.tokens[p.right]}
	}
	return merges, nil
}

// TokenizerConfigJSON returns the tokenizer_config.json that the pairs make.
func (f *File) TokenizerConfigJSON() ([]byte, error) {
	v, err := f.vocabulary()
	if err != nil {
		return nil, err
	}
	c := object{"clean_up_tokenization_spaces": false, "tokenizer_class": "PreTrainedTokenizerFast"}
	for key, name := range map[string]string{"bos": "bos_token", "eos": "eos_token", "unknown": "unk_token", "padding": "pad_token"} {
		if id, ok := f.tokenID(key); ok {
			c[name] = v.tokens[id]
		}
	}
	name, _ := f.Meta.Text("general.architecture")
	if n, ok := f.Meta.Int(name + ".context_length"); ok {
		c["model_max_length"] = n
	}
	for _, key := range []string{"add_bos_token", "add_eos_token"} {
		if add, ok := f.Meta.Bool("tokenizer.ggml." + key); ok {
			c[key] = add
		}
	}
	if t, ok := f.Meta.Text(chatTemplate); ok {
		c["chat_template"] = t
	}
	if names, _ := f.Meta.strings("tokenizer.chat_templates"); len(names) > 0 {
		var list []object
		for _, name := range append([]string{""}, names...) {
			key, shown := chatTemplate, "default"
			if name != "" {
				key, shown = chatTemplate+"."+name, name
			}
			if t, ok := f.Meta.Text(key); ok {
				list = append(list, object{"name": shown, "template": t})
			}
		}
		c["chat_template"] = list
	}
	return marshal(c)
}

// GenerationConfigJSON returns the generation_config.json that the pairs make: every token
// that ends a turn is one that generation stops at.
func (f *File) GenerationConfigJSON() ([]byte, error) {
	c := make(object)
	switch ends := f.ends(); len(ends) {
	case 0:
	case 1:
		c["eos_token_id"] = ends[0]
	default:
		c["eos_token_id"] = ends
	}
	for key, name := range map[string]string{"bos": "bos_token_id", "padding": "pad_token_id"} {
		if id, ok := f.tokenID(key); ok {
			c[name] = id
		}
	}
	return marshal(c)
}

// marshal writes a file that people read.
func marshal(v any) ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	err := e.Encode(v)
	return b.Bytes(), err
}
