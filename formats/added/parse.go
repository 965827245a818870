package added

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// standard are the names of special tokens that every tokenizer knows, in the order in which they are added.
func standard() []string {
	return []string{"bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"}
}

// field is one of a JSON object.
type field struct {
	name string
	raw  json.RawMessage
}

// object is a JSON object in the order of the file. Of a name that comes twice the last value stands, at the first place.
type object []field

// get returns a field, nil where it is missing or null.
func (o object) get(name string) json.RawMessage {
	for _, f := range o {
		if f.name == name && string(f.raw) != "null" {
			return f.raw
		}
	}
	return nil
}

func (o *object) UnmarshalJSON(data []byte) error {
	d := json.NewDecoder(bytes.NewReader(data))
	if t, err := d.Token(); err != nil || t != json.Delim('{') {
		return errors.New("not a JSON object")
	}
	var all []field
	at := make(map[string]int)
	for d.More() {
		t, err := d.Token()
		if err != nil {
			return err
		}
		var raw json.RawMessage
		if err := d.Decode(&raw); err != nil {
			return err
		}
		name := t.(string)
		if i, ok := at[name]; ok {
			all[i].raw = raw
			continue
		}
		at[name] = len(all)
		all = append(all, field{name, raw})
	}
	*o = all
	return nil
}

// parseObject reads a file.
func parseObject(name string, data []byte) (object, error) {
	if data == nil {
		return nil, nil
	}
	var o object
	if err := json.Unmarshal(data, &o); err != nil {
		return nil, &Error{name, errors.New("not a JSON object")}
	}
	return o, nil
}

// flags is what an object says of a token. What it leaves out depends on whether the token is special.
type flags struct {
	Content    *string `json:"content"`
	SingleWord bool    `json:"single_word"`
	LStrip     bool    `json:"lstrip"`
	RStrip     bool    `json:"rstrip"`
	Normalized *bool   `json:"normalized"`
	Special    bool    `json:"special"`
}

// token makes a token of what a file says of it.
func (f flags) token() Token {
	t := Token{Content: *f.Content, SingleWord: f.SingleWord, LStrip: f.LStrip, RStrip: f.RStrip, Normalized: true, follows: f.Normalized == nil}
	if f.Normalized != nil {
		t.Normalized = *f.Normalized
	}
	if f.Special {
		t.makeSpecial()
	}
	return t
}

// special is a token of which a file says that it is special, and whether it is a text there and no object.
type special struct {
	Token
	text bool
}

// parseToken reads a token, which is its text, and then special, or an object with that; isSpecial says that the object is of one.
// It returns false for what is neither.
func parseToken(raw json.RawMessage, isSpecial bool) (special, bool) {
	var text string
	if raw[0] == '"' && json.Unmarshal(raw, &text) == nil {
		return special{Token{Content: text, Special: true}, true}, true
	}
	var f flags
	if raw[0] != '{' || json.Unmarshal(raw, &f) != nil || f.Content == nil {
		return special{}, false
	}
	f.Special = f.Special || isSpecial
	return special{Token: f.token()}, true
}

// parse reads the files, nil for those that are missing.
func parse(configData, mapData, addedData []byte) (*Beside, error) {
	config, err := parseObject(ConfigFile, configData)
	if err != nil {
		return nil, err
	}
	b := new(Beside)
	if raw := config.get("tokenizer_class"); raw != nil && json.Unmarshal(raw, &b.class) != nil {
		b.class = "" // transformers takes no other for one
	}
	if raw := config.get("added_tokens_decoder"); raw != nil {
		b.explicit = true
		if b.decoder, err = parseDecoder(raw); err != nil {
			return nil, &Error{ConfigFile, fmt.Errorf("added_tokens_decoder: %w", err)}
		}
	}
	// additional_special_tokens is the older name of extra_special_tokens, which may be an object of tokens with names too.
	extra, err := tokensOf(config, "extra_special_tokens", false)
	if err == nil && len(extra.tokens) == 0 {
		var older list
		if older, err = tokensOf(config, "additional_special_tokens", false); older.given {
			extra = older
		}
	}
	if err != nil {
		return nil, &Error{ConfigFile, err}
	}
	// Tokens with a name of a model's own come in two lists, of which the first is of those that the file has as objects.
	named, own := b.nameTokens(ConfigFile, config), new(names)
	for _, f := range config {
		if f.raw[0] == '"' && !slices.Contains(standard(), f.name) {
			named.move(f.name, own)
		}
	}
	if own.setAll(extra); extra.names != nil {
		extra = list{}
	}
	if !b.explicit {
		if extra, err = b.legacy(config, named, own, extra, mapData, addedData); err != nil {
			return nil, err
		}
	}
	b.extra = extra.tokens
	b.names, b.named = named.sorted(own)
	return b, nil
}

// legacy reads the files that count where tokenizer_config.json has no added_tokens_decoder. It returns
// the special tokens without a name.
func (b *Beside) legacy(config object, named, own *names, extra list, mapData, addedData []byte) (list, error) {
	m, err := parseObject(MapFile, mapData)
	if err != nil {
		return list{}, err
	}
	of := b.nameTokens(MapFile, m)
	for i, name := range of.names {
		named.set(name, of.tokens[i])
	}
	for _, f := range m {
		if string(f.raw) == "null" { // takes away what the configuration says
			named.remove(f.name)
		}
	}
	// What the configuration has as objects is not known to be special yet.
	known := make(map[string]bool)
	for i, name := range named.names {
		if slices.Contains(standard(), name) && (named.tokens[i].text || slices.Contains(of.names, name)) {
			known[named.tokens[i].Content] = true
		}
	}
	more, err := tokensOf(m, "extra_special_tokens", true)
	if err != nil {
		return list{}, &Error{MapFile, err}
	}
	if own.setAll(more); more.names != nil {
		extra = list{}
	}
	for _, t := range more.tokens[:len(more.tokens)-len(more.names)] {
		if !slices.Contains(extra.tokens, t) {
			extra.tokens = append(extra.tokens, t)
		}
	}
	extra.given = extra.given || more.given && more.names == nil
	for _, t := range extra.tokens {
		if t.text || slices.Contains(more.tokens, t) {
			known[t.Content] = true
		}
	}
	if !extra.given {
		if extra, err = tokensOf(m, "additional_special_tokens", true); err != nil {
			return list{}, &Error{MapFile, err}
		}
	}
	tokens, err := parseObject(AddedFile, addedData)
	if err != nil {
		return list{}, err
	}
	for _, f := range tokens {
		id, err := strconv.Atoi(string(f.raw))
		if err != nil {
			return list{}, &Error{AddedFile, fmt.Errorf("the id of token %.40q is not an integer", f.name)}
		}
		b.decoder = append(b.decoder, Token{ID: id, Content: f.name, Normalized: !known[f.name], Special: known[f.name]})
	}
	return extra, nil
}

// parseDecoder reads added_tokens_decoder: tokens by id.
func parseDecoder(raw json.RawMessage) ([]Token, error) {
	var o object
	if err := json.Unmarshal(raw, &o); err != nil {
		return nil, errors.New("not a JSON object")
	}
	var all []Token
	for _, f := range o {
		id, err := strconv.Atoi(f.name)
		if err != nil {
			return nil, fmt.Errorf("%.40q is not an id", f.name)
		}
		t, ok := parseToken(f.raw, false)
		if !ok || t.text {
			return nil, fmt.Errorf("id %d: not an object with the content of a token", id)
		}
		t.ID = id
		all = append(all, t.Token)
	}
	return all, nil
}

// list is special tokens without a name of a field of their own.
type list struct {
	given  bool
	tokens []special
	names  []string // of them, where the file names them
}

// tokensOf reads a field that lists special tokens, or names some. isSpecial says that objects are special tokens.
func tokensOf(o object, name string, isSpecial bool) (list, error) {
	raw := o.get(name)
	if raw == nil {
		return list{}, nil
	}
	l := list{given: true}
	var raws []json.RawMessage
	switch raw[0] {
	case '[':
		if err := json.Unmarshal(raw, &raws); err != nil {
			return list{}, fmt.Errorf("%s: %w", name, err)
		}
	case '{':
		var named object
		if err := json.Unmarshal(raw, &named); err != nil {
			return list{}, fmt.Errorf("%s: %w", name, err)
		}
		l.names = []string{}
		for _, f := range named {
			l.names, raws = append(l.names, f.name), append(raws, f.raw)
		}
	default:
		return list{}, fmt.Errorf("%s is neither a list of tokens nor an object of such", name)
	}
	for i, raw := range raws {
		t, ok := parseToken(raw, isSpecial)
		if !ok {
			return list{}, fmt.Errorf("entry %d of %s is not a token", i, name)
		}
		l.tokens = append(l.tokens, t)
	}
	return l, nil
}

// names is special tokens with names, in the order of the file.
type names struct {
	names  []string
	tokens []special
}

func (n *names) set(name string, t special) {
	if i := slices.Index(n.names, name); i >= 0 {
		n.tokens[i] = t
		return
	}
	n.names, n.tokens = append(n.names, name), append(n.tokens, t)
}

func (n *names) remove(name string) {
	if i := slices.Index(n.names, name); i >= 0 {
		n.names, n.tokens = slices.Delete(n.names, i, i+1), slices.Delete(n.tokens, i, i+1)
	}
}

// move puts a token into others.
func (n *names) move(name string, others *names) {
	if i := slices.Index(n.names, name); i >= 0 {
		others.set(name, n.tokens[i])
		n.remove(name)
	}
}

// setAll sets the tokens of a list that names them.
func (n *names) setAll(l list) {
	for i, name := range l.names {
		n.set(name, l.tokens[i])
	}
}

// sorted puts the names that every tokenizer knows before those of a model's own, and more of these behind.
func (n *names) sorted(more *names) (named []string, tokens []special) {
	all := names{}
	for _, name := range standard() {
		n.move(name, &all)
	}
	for i, name := range n.names {
		all.set(name, n.tokens[i])
	}
	for i, name := range more.names {
		all.set(name, more.tokens[i])
	}
	return all.names, all.tokens
}

// nameTokens returns the special tokens that fields of their own name: those that every tokenizer knows, and what else
// ends in _token and is one.
func (b *Beside) nameTokens(file string, o object) *names {
	n := new(names)
	for _, f := range o {
		if !strings.HasSuffix(f.name, "_token") {
			continue
		}
		t, ok := parseToken(f.raw, false)
		switch {
		case ok:
			n.set(f.name, t)
		case b.bad == nil && string(f.raw) != "null" && slices.Contains(standard(), f.name):
			b.bad = &Error{file, fmt.Errorf("%s is no token", f.name)}
		}
	}
	return n
}
