// Package card writes model cards: the README.md with which a folder tells people, and the Hugging Face hub, what model it
// holds, how it was made, how close it is to its original, and what opens it.
//
// A card depends on nothing but the model: no times, no versions, no paths.
package card

import (
	"bytes"
	"encoding/json"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/lutq/lutq/formats/input"
	"github.com/lutq/lutq/formats/lutq"
)

const (
	// FileName is the card's.
	FileName = lutq.CardName
	// OriginalName is what the card of the original is called beside it.
	OriginalName = "ORIGINAL_README.md"
)

// Origin is what is known of the model that a folder was made from.
type Origin struct {
	Name   string `json:"name"`             // without what stands before it: an owner, or folders
	Repo   string `json:"repo,omitempty"`   // its name on the hub, owner/model; "": not known
	Commit string `json:"commit,omitempty"` // "": not known

	front []block // of its card, as far as it is carried over
}

// block is a key of a front matter, with the lines that belong to it as they stand.
type block struct {
	key   string
	lines []string
}

// carried are the keys that hold for a quantized model as they do for its original.
func carried() []string {
	return []string{"license", "license_name", "license_link", "language", "pipeline_tag"}
}

// The keys that name the original.
const (
	baseKey     = "base_model"
	relationKey = "base_model_relation"
	quantized   = "quantized" // the relation
)

// The line that a card ends with, around an [Origin] in JSON.
const (
	markBegin = "<!-- lutq "
	markEnd   = " -->"
)

// Read reads a card. Where lutq wrote it, the origin is that of its model; of any other it is what the card says that a
// model made from this one takes over.
func Read(text []byte) (o Origin, ours bool) {
	front := frontMatter(text)
	if at := bytes.LastIndex(text, []byte("\n"+markBegin)); at >= 0 {
		line, _, _ := bytes.Cut(text[at+1+len(markBegin):], []byte("\n"))
		if mark, ok := bytes.CutSuffix(bytes.TrimRight(line, "\r"), []byte(markEnd)); ok {
			var read Origin
			if json.Unmarshal(mark, &read) == nil && read.Name != "" {
				o, ours = read.sound(), true
			}
		}
	}
	keys := carried()
	of := func(key string) (b block) {
		if i := slices.IndexFunc(front, func(b block) bool { return b.key == key }); i >= 0 {
			b = front[i]
		}
		return b
	}
	if base := of(baseKey); of(relationKey).value() == quantized && (o.Repo == "" || base.value() != o.Repo) {
		// The model is a quantized one itself, and another the original.
		keys = append([]string{baseKey, relationKey}, keys...)
	}
	for _, key := range keys {
		if b := of(key); b.key != "" {
			o.front = append(o.front, b)
		}
	}
	return o, ours
}

// sound returns the origin without what is no name.
func (o Origin) sound() Origin {
	if !regexp.MustCompile(`^[A-Za-z0-9._-]+/[A-Za-z0-9._-]+$`).MatchString(o.Repo) {
		o.Repo, o.Commit = "", ""
	}
	if !regexp.MustCompile(`^[0-9a-f]{40}$`).MatchString(o.Commit) {
		o.Commit = ""
	}
	o.Name = input.Name(o.Name)
	return o
}

// named reports whether the origin has a block of a key.
func (o Origin) named(key string) bool {
	return slices.ContainsFunc(o.front, func(b block) bool { return b.key == key })
}

// value returns what a block of one line says.
func (b block) value() string {
	if len(b.lines) != 1 {
		return ""
	}
	_, v, _ := strings.Cut(b.lines[0], ":")
	return strings.Trim(v, " \t\"'")
}

// maxFront is the most bytes of a front matter that are looked at.
const maxFront = 1 << 16

// frontMatter returns the keys of a card's YAML, each once, as they stand between two lines "---". It leaves out what is no
// key with its value in the lines that follow, and what would not show as itself.
func frontMatter(text []byte) []block {
	text = bytes.TrimPrefix(text, []byte("\ufeff"))
	var all []block
	for i, line := range strings.Split(string(text[:min(len(text), maxFront)]), "\n") {
		line = strings.TrimRight(line, " \t\r")
		switch {
		case i == 0 && line != "---":
			return nil
		case i == 0 || line == "" || strings.HasPrefix(strings.TrimLeft(line, " "), "#"):
		case line == "---":
			return slices.DeleteFunc(all, func(b block) bool { return !b.plain() })
		case strings.ContainsAny(line[:1], " -"):
			if len(all) > 0 {
				last := &all[len(all)-1]
				last.lines = append(last.lines, line)
			}
		default:
			key, _, ok := strings.Cut(line, ":")
			if !ok || slices.ContainsFunc(all, func(b block) bool { return b.key == key }) {
				key = "" // whose lines belong to nothing
			}
			all = append(all, block{key, []string{line}})
		}
	}
	return nil // it has no end
}

// plain reports whether all of a block may be taken over: a word or a list of words, each in its line.
func (b block) plain() bool {
	list := false // in the lines after the key's
	for i, line := range slices.Backward(b.lines) {
		word := strings.TrimLeft(line, " ")
		if !utf8.ValidString(line) || input.Printable(line) != line || len(line) > 300 {
			return false
		}
		if i == 0 {
			_, word, _ = strings.Cut(line, ":")
			if word != "" && word[0] != ' ' || (word == "") != list {
				return false
			}
		} else if list = strings.HasPrefix(word, "- "); !list {
			return false
		}
		if !plainWord(strings.Trim(strings.TrimPrefix(word, "- "), " ")) {
			return false
		}
	}
	return b.key != "" && len(b.lines) <= 300
}

// plainWord reports whether a value is a word, quoted or not, or a list of such in brackets: nothing that goes on in another
// line, or points elsewhere.
func plainWord(word string) bool {
	if word == "" {
		return true
	}
	inside := word
	switch word[0] {
	case '"', '\'':
		if len(word) < 2 || word[len(word)-1] != word[0] {
			return false
		}
		inside = word[1 : len(word)-1]
	case '[':
		if word[len(word)-1] != ']' {
			return false
		}
		for part := range strings.SplitSeq(word[1:len(word)-1], ",") {
			if part = strings.Trim(part, " "); part == "" || part[0] == '[' || !plainWord(part) {
				return false
			}
		}
		return true
	}
	return !strings.ContainsAny(inside, "\"'\\[]{}#,") && !strings.ContainsAny(inside[:min(1, len(inside))], "|>&*!%@`?-:") &&
		!strings.Contains(inside, ": ") && !strings.HasSuffix(inside, ":")
}
