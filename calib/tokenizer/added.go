package tokenizer

import (
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/lutq/lutq/formats/added"
)

// A matcher finds added tokens: at every position the longest, from left to right.
type matcher struct {
	nodes []trieNode // nodes[0] is the root
	first [256]bool  // bytes that begin a token
}

type trieNode struct {
	next  map[byte]int32
	token *added.Token // ends here, or nil
}

func newMatcher() *matcher { return &matcher{nodes: make([]trieNode, 1)} }

// add enters a token under its spelling, which must not be empty. Of two tokens that normalize to one
// spelling the first stays; in the reference chance decides.
func (m *matcher) add(spelling string, token *added.Token) {
	m.first[spelling[0]] = true
	n := int32(0)
	for i := range len(spelling) {
		next, ok := m.nodes[n].next[spelling[i]]
		if !ok {
			next = int32(len(m.nodes))
			if m.nodes[n].next == nil {
				m.nodes[n].next = make(map[byte]int32)
			}
			m.nodes[n].next[spelling[i]] = next
			m.nodes = append(m.nodes, trieNode{})
		}
		n = next
	}
	if m.nodes[n].token == nil {
		m.nodes[n].token = token
	}
}

// longest returns the longest token that text begins with, and its length there.
func (m *matcher) longest(text string) (*added.Token, int) {
	var token *added.Token
	length := 0
	n := int32(0)
	for i := range len(text) {
		next, ok := m.nodes[n].next[text[i]]
		if !ok {
			break
		}
		n = next
		if m.nodes[n].token != nil {
			token, length = m.nodes[n].token, i+1
		}
	}
	return token, length
}

// cut calls emit for the stretches of text in order: id is that of an added
// token, or -1 for the text between two. Empty stretches are left out.
func (m *matcher) cut(text string, emit func(start, end int, id int32)) {
	done := 0
	for i := 0; len(m.nodes) > 1 && i < len(text); {
		if !m.first[text[i]] {
			i++
			continue
		}
		token, n := m.longest(text[i:])
		if token == nil {
			i++
			continue
		}
		start, end := i, i+n
		i = end
		// A token in the middle of a word is passed over whole: no shorter one is tried inside it.
		if token.SingleWord && (endsWithWord(text[:start]) || startsWithWord(text[end:])) {
			continue
		}
		if token.LStrip {
			start = max(done, len(strings.TrimRightFunc(text[:start], unicode.IsSpace)))
		}
		if token.RStrip {
			end = len(text) - len(strings.TrimLeftFunc(text[end:], unicode.IsSpace))
		}
		if done < start {
			emit(done, start, -1)
		}
		if start < end { // else a token before it has swallowed it
			emit(start, end, int32(token.ID))
		}
		done = end
	}
	if done < len(text) {
		emit(done, len(text), -1)
	}
}

func endsWithWord(s string) bool {
	r, n := utf8.DecodeLastRuneInString(s)
	return n > 0 && isWord(r)
}

func startsWithWord(s string) bool {
	r, n := utf8.DecodeRuneInString(s)
	return n > 0 && isWord(r)
}
