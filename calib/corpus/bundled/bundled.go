// Package bundled has the text that is calibrated with where no other is named.
//
// It is of five kinds (prose in many languages, chat, code, mathematics, and pages as the web has them), and public domain
// or written for it: SOURCES.md states source and licence of each piece. The pieces are the files under pieces, of which
// go generate packs the one file that is embedded.
package bundled

import (
	"crypto/sha256"
	_ "embed" // the packed text
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
	"sync"
	"unicode/utf8"

	"github.com/lutq/lutq/calib/chat"
	"github.com/lutq/lutq/calib/corpus/bundled/internal/pieces"
)

//go:generate go run ./internal/pack

//go:embed pieces.jsonl.gz
var packed []byte

// Kind is a kind of text.
type Kind string

// The kinds.
const (
	Prose Kind = "prose"
	Chat  Kind = "chat"
	Code  Kind = "code"
	Math  Kind = "math"
	Web   Kind = "web"
)

// Kinds returns the kinds, in the order in which they take turns.
func Kinds() []Kind { return []Kind{Prose, Chat, Code, Math, Web} }

// kindWeights say how much of the text is of a kind as long as there is enough of each.
var kindWeights = map[string]float64{"prose": 5, "chat": 4, "code": 4, "math": 3, "web": 4}

// languages say the same of the languages of a kind, in the order in which they take turns. One that is not named has the
// weight otherLanguage.
var languages = []struct {
	name   string
	weight float64
}{
	{"en", 2}, {"zh", 1}, {"de", 1}, {"es", 1}, {"ru", 1}, {"fr", 1}, {"ja", 1}, {"pt", 1}, {"ar", 1}, {"it", 1}, {"hi", 1}, {"ko", 1},
}

const otherLanguage = 0.4

// Document is a part of the text that stands by itself.
type Document struct {
	Piece    string // the file that it is from: KIND/LANGUAGE/NAME
	Kind     Kind
	Language string // such as en; of code the programming language
	// Text is the document. That of a chat is its messages one after another, for models without a chat template.
	Text string
	// Messages are those of a chat, else nil.
	Messages []chat.Message
}

// DefaultSize is a length of documents that fills a window of 512 tokens or so.
const DefaultSize = 2048

var load = sync.OnceValues(func() ([]byte, error) { return pieces.Unpack(packed) })

// Digest returns the SHA-256 of the whole text, which names its version.
func Digest() (string, error) {
	lines, err := load()
	if err != nil {
		return "", fmt.Errorf("bundled text: %w", err)
	}
	sum := sha256.Sum256(lines)
	return hex.EncodeToString(sum[:]), nil
}

// Documents returns the text as documents of at most size bytes each, 0 for [DefaultSize], except that chats are whole.
// They are in a fixed order in which kinds, languages and pieces take turns: the first of them, however many, are a
// mixture.
func Documents(size int) ([]Document, error) {
	if size == 0 {
		size = DefaultSize
	}
	if size < 256 {
		return nil, fmt.Errorf("documents of %d bytes: want at least 256", size)
	}
	lines, err := load()
	if err != nil {
		return nil, fmt.Errorf("bundled text: %w", err)
	}
	all, err := pieces.Parse(lines)
	if err != nil {
		return nil, fmt.Errorf("bundled text: %w", err)
	}
	root := &group{}
	for _, k := range Kinds() {
		kind := root.child(string(k), kindWeights[string(k)])
		for _, l := range languages {
			kind.child(l.name, l.weight)
		}
		for _, p := range all {
			if p.Kind() == string(k) {
				kind.child(p.Language(), otherLanguage).child(p.Path, 1).documents = split(p, size)
			}
		}
	}
	var out []Document
	for {
		d, ok := root.next(size)
		if !ok {
			return out, nil
		}
		out = append(out, d)
	}
}

// group is documents, or groups that take turns by their weights.
type group struct {
	name      string
	weight    float64
	used      int // bytes
	children  []*group
	documents []Document
}

// child returns the child of a name. If there is none, it makes one of that weight.
func (g *group) child(name string, weight float64) *group {
	i := slices.IndexFunc(g.children, func(c *group) bool { return c.name == name })
	if i < 0 {
		i = len(g.children)
		g.children = append(g.children, &group{name: name, weight: weight})
	}
	return g.children[i]
}

// next takes the next document out of a group, if there is one. It is of the child that has the most left of its share
// after another document of that size.
func (g *group) next(size int) (Document, bool) {
	if len(g.documents) > 0 {
		d := g.documents[0]
		g.documents = g.documents[1:]
		g.used += len(d.Text)
		return d, true
	}
	for len(g.children) > 0 {
		least, at := 0.0, -1
		for i, c := range g.children {
			if share := float64(c.used+size) / c.weight; at < 0 || share < least {
				least, at = share, i
			}
		}
		if d, ok := g.children[at].next(size); ok {
			g.used += len(d.Text)
			return d, true
		}
		g.children = slices.Delete(g.children, at, at+1)
	}
	return Document{}, false
}

// split cuts a piece into documents.
func split(p pieces.Piece, size int) []Document {
	base := Document{Piece: p.Path, Kind: Kind(p.Kind()), Language: p.Language()}
	var out []Document
	for _, c := range p.Chats {
		d := base
		for _, m := range c {
			d.Messages = append(d.Messages, chat.Message{Role: m.Role, Content: m.Content})
		}
		d.Text = plain(d.Messages)
		out = append(out, d)
	}
	for rest := strings.TrimSpace(p.Text); rest != ""; {
		n := cut(rest, size)
		d := base
		d.Text = strings.TrimRight(rest[:n], " \n") + "\n"
		out = append(out, d)
		rest = strings.TrimLeft(rest[n:], "\n")
	}
	return out
}

// cut returns how many bytes of a text its first document has: it ends with a paragraph, a line or a sentence where one
// ends in its second half.
func cut(text string, size int) int {
	size-- // the end of the line
	if len(text) <= size {
		return len(text)
	}
	for !utf8.RuneStart(text[size]) {
		size--
	}
	for _, end := range []string{"\n\n", "\n", ". ", "。", "। ", "؟ ", " "} {
		if i := strings.LastIndex(text[:size], end); i >= size/2 {
			return i + len(end)
		}
	}
	return size
}

// plain writes messages as text.
func plain(messages []chat.Message) string {
	var b strings.Builder
	for i, m := range messages {
		if i > 0 {
			b.WriteString("\n\n")
		}
		role := m.Role
		if role != "" {
			role = strings.ToUpper(role[:1]) + role[1:]
		}
		b.WriteString(role + ": " + m.Content)
	}
	b.WriteString("\n")
	return b.String()
}
