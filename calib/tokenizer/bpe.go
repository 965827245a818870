package tokenizer

import (
	"fmt"
	"math"
	"strings"
	"time"
	"unicode/utf8"
)

// bpe is byte pair encoding: a word starts as its characters (or bytes), and of
// all adjacent pairs that the merge table lists, the one of lowest rank, leftmost
// first, is joined until none is left.
type bpe struct {
	vocab        map[string]int32
	merges       map[pair]uint32 // rank of a pair
	merged       []int32         // by rank: what the pair becomes
	ignoreMerges bool            // a word that is a token needs no merging
	fuseUnknown  bool            // neighbouring unknown characters become one unknown token

	unknown     int32      // id of the unknown token, or none
	needUnknown bool       // the file names an unknown token
	fallback    []int32    // by byte: id of <0x00> to <0xFF> or none; nil without byte fallback
	ascii       [128]int32 // id of a character or none: a fast way into vocab
	byteLevel   bool       // words are spelled byte by byte
	spelling    [256]string
	bytes       [256]int32 // id of a byte's spelling or none

	// joints holds the pairs of initial symbols at which some merge joins its two
	// halves. No token ever spans another pair, so a word may be cut there. It makes
	// text without pre-tokenizer, one word of a megabyte, many short ones. Nil: unknown.
	joints map[pair]struct{}
}

// none stands where there is no id.
const none = -1

// pair is two neighbouring symbols, the left one in the upper half.
type pair uint64

func pairOf(left, right int32) pair { return pair(uint32(left))<<32 | pair(uint32(right)) }

// noRank is the rank of a pair that does not merge; it is greater than all others.
const noRank = math.MaxUint32

const (
	cachedWord  = 64      // bytes; longer words are too rare to remember
	cachedWords = 1 << 15 // then the cache starts afresh
	fewSymbols  = 40      // up to here scanning for the best pair beats a heap
	keptSymbols = 1 << 16 // larger scratch space is given back
)

// state is what one Encode call works with. It holds no results of consequence, so any state serves any call.
type state struct {
	out      []int
	unknown  bool // the unknown token was needed and is not there
	deadline time.Time
	cache    map[string][]int32

	spelled []byte
	symbols []int32
	ranks   []uint32
	prev    []int32
	next    []int32
	heap    []uint64
}

// reset prepares for a text of n bytes.
func (s *state) reset(n int) {
	s.out = make([]int, 0, n/4+8)
	s.unknown = false
	if cap(s.symbols) > keptSymbols {
		s.symbols, s.prev, s.next, s.heap = nil, nil, nil, nil
	}
}

// bpeOptions are the model's settings.
type bpeOptions struct {
	unknown      *string
	fuseUnknown  bool
	byteFallback bool
	ignoreMerges bool
	byteLevel    bool
}

// newBPE prepares the merging of a vocabulary; merges come in order of rank.
func newBPE(vocab map[string]int32, merges [][2]string, o bpeOptions) (*bpe, error) {
	m := &bpe{
		vocab:        vocab,
		merges:       make(map[pair]uint32, len(merges)),
		merged:       make([]int32, len(merges)),
		ignoreMerges: o.ignoreMerges,
		fuseUnknown:  o.fuseUnknown,
		unknown:      none,
		byteLevel:    o.byteLevel,
	}
	for rank, operands := range merges {
		var ids [3]int32
		for i, token := range [...]string{operands[0], operands[1], operands[0] + operands[1]} {
			id, ok := vocab[token]
			if !ok {
				return nil, fmt.Errorf("merge %d (%s and %s): token %s is not in the vocabulary",
					rank, quote(operands[0]), quote(operands[1]), quote(token))
			}
			ids[i] = id
		}
		m.merges[pairOf(ids[0], ids[1])] = uint32(rank) // of two equal entries the reference keeps the last
		m.merged[rank] = ids[2]
	}
	if o.unknown != nil {
		m.needUnknown, m.unknown = true, m.id(*o.unknown)
	}
	if o.byteFallback {
		m.fallback = make([]int32, 256)
		for b := range m.fallback {
			m.fallback[b] = m.id(fmt.Sprintf("<0x%02X>", b))
		}
	}
	for c := range m.ascii {
		m.ascii[c] = m.id(string(rune(c)))
	}
	if !o.byteLevel {
		m.joints = m.findJoints(merges)
		return m, nil
	}
	for b, r := range byteRunes() {
		m.spelling[b] = string(r)
		m.bytes[b] = m.id(m.spelling[b])
	}
	return m, nil
}

// Len implements added.Vocabulary.
func (m *bpe) Len() int { return len(m.vocab) }

// ID implements added.Vocabulary.
func (m *bpe) ID(token string) (id int, ok bool) {
	i, ok := m.vocab[token]
	return int(i), ok
}

// id returns the id of a token of the vocabulary, or none.
func (m *bpe) id(token string) int32 {
	if id, ok := m.vocab[token]; ok {
		return id
	}
	return none
}

// findJoints returns m.joints.
func (m *bpe) findJoints(merges [][2]string) map[pair]struct{} {
	opaque := map[int32]bool{m.unknown: true} // symbols that do not spell the characters they stand for
	for _, id := range m.fallback {
		opaque[id] = true
	}
	joints := make(map[pair]struct{})
	for _, operands := range merges {
		if opaque[m.vocab[operands[0]]] || opaque[m.vocab[operands[1]]] {
			return nil
		}
		_, n := utf8.DecodeLastRuneInString(operands[0])
		left := m.id(operands[0][len(operands[0])-n:])
		_, n = utf8.DecodeRuneInString(operands[1])
		right := m.id(operands[1][:n])
		if left >= 0 && right >= 0 { // otherwise no text leads to this merge
			joints[pairOf(left, right)] = struct{}{}
		}
	}
	return joints
}

// encode appends the ids of a word to s.out.
func (m *bpe) encode(word string, s *state) {
	if len(word) > cachedWord {
		s.append(m.tokens(word, s))
		return
	}
	ids, ok := s.cache[word]
	if !ok {
		ids = append([]int32(nil), m.tokens(word, s)...)
		if len(s.cache) >= cachedWords {
			clear(s.cache)
		}
		if !s.unknown {
			s.cache[strings.Clone(word)] = ids
		}
	}
	s.append(ids)
}

func (s *state) append(ids []int32) {
	for _, id := range ids {
		s.out = append(s.out, int(id))
	}
}

// tokens returns the ids of a word; they last until the next call.
func (m *bpe) tokens(word string, s *state) []int32 {
	if m.ignoreMerges {
		if id := m.wholeWord(word, s); id >= 0 {
			s.symbols = append(s.symbols[:0], id)
			return s.symbols
		}
	}
	m.initial(word, s)
	if m.joints == nil {
		return m.merge(s.symbols, s)
	}
	done, start := 0, 0
	for i := 1; i <= len(s.symbols); i++ {
		if i < len(s.symbols) {
			if _, ok := m.joints[pairOf(s.symbols[i-1], s.symbols[i])]; ok {
				continue
			}
		}
		done += copy(s.symbols[done:], m.merge(s.symbols[start:i], s))
		start = i
	}
	return s.symbols[:done]
}

// wholeWord returns the id of the token that is the whole word, or none.
func (m *bpe) wholeWord(word string, s *state) int32 {
	if !m.byteLevel {
		return m.id(word)
	}
	s.spelled = s.spelled[:0]
	for i := range len(word) {
		s.spelled = append(s.spelled, m.spelling[word[i]]...)
	}
	if id, ok := m.vocab[string(s.spelled)]; ok {
		return id
	}
	return none
}

// initial sets s.symbols to the symbols that a word starts from.
func (m *bpe) initial(word string, s *state) {
	s.symbols = s.symbols[:0]
	unknown := false // an unknown token is due; as in the reference, byte tokens overtake it
	flush := func() {
		if unknown {
			s.symbols = append(s.symbols, m.unknown)
			unknown = false
		}
	}
	missing := func(char string) {
		if m.appendFallback(char, s) {
			return
		}
		if !m.needUnknown {
			return
		}
		if m.unknown < 0 {
			s.unknown = true
			return
		}
		if !m.fuseUnknown {
			flush()
		}
		unknown = true
	}
	for i := 0; i < len(word); {
		id, char := int32(none), word[i:i+1]
		switch {
		case m.byteLevel:
			id = m.bytes[word[i]]
			if id < 0 {
				char = m.spelling[word[i]]
			}
			i++
		case word[i] < utf8.RuneSelf:
			id = m.ascii[word[i]]
			i++
		default:
			_, n := utf8.DecodeRuneInString(word[i:])
			char = word[i : i+n]
			id = m.id(char)
			i += n
		}
		if id < 0 {
			missing(char)
			continue
		}
		flush()
		s.symbols = append(s.symbols, id)
	}
	flush()
}

// appendFallback appends the byte tokens of a character if the vocabulary has all of them.
func (m *bpe) appendFallback(char string, s *state) bool {
	if m.fallback == nil {
		return false
	}
	n := len(s.symbols)
	for i := range len(char) {
		id := m.fallback[char[i]]
		if id < 0 {
			s.symbols = s.symbols[:n]
			return false
		}
		s.symbols = append(s.symbols, id)
	}
	return true
}

func (m *bpe) rank(left, right int32) uint32 {
	if rank, ok := m.merges[pairOf(left, right)]; ok {
		return rank
	}
	return noRank
}

// merge joins pairs of symbols in place and returns what remains.
func (m *bpe) merge(symbols []int32, s *state) []int32 {
	if len(symbols) > fewSymbols {
		return m.mergeMany(symbols, s)
	}
	return m.mergeFew(symbols, s)
}

// mergeFew takes time quadratic in the number of symbols.
func (m *bpe) mergeFew(symbols []int32, s *state) []int32 {
	ranks := s.ranks[:0] // of the pair that begins at each symbol but the last
	for i := 1; i < len(symbols); i++ {
		ranks = append(ranks, m.rank(symbols[i-1], symbols[i]))
	}
	s.ranks = ranks
	for {
		best, at := uint32(noRank), 0
		for i, rank := range ranks {
			if rank < best {
				best, at = rank, i
			}
		}
		if best == noRank {
			return symbols
		}
		symbols[at] = m.merged[best]
		symbols = append(symbols[:at+1], symbols[at+2:]...)
		ranks = append(ranks[:at], ranks[at+1:]...)
		if at > 0 {
			ranks[at-1] = m.rank(symbols[at-1], symbols[at])
		}
		if at < len(ranks) {
			ranks[at] = m.rank(symbols[at], symbols[at+1])
		}
	}
}

// mergeMany takes n log n time: a list of the symbols, linked by position, and a
// heap of the pairs, ordered by rank and position. Heap entries whose pair has gone are skipped when they come up.
func (m *bpe) mergeMany(symbols []int32, s *state) []int32 {
	n := len(symbols)
	s.prev, s.next, s.heap = s.prev[:0], s.next[:0], s.heap[:0]
	for i := range n {
		s.prev, s.next = append(s.prev, int32(i-1)), append(s.next, int32(i+1))
		if i+1 < n {
			if rank := m.rank(symbols[i], symbols[i+1]); rank != noRank {
				s.heap = append(s.heap, heapEntry(rank, i))
			}
		}
	}
	prev, next, h := s.prev, s.next, minHeap(s.heap)
	h.init()
	push := func(left, right int32) {
		if rank := m.rank(symbols[left], symbols[right]); rank != noRank {
			h.push(heapEntry(rank, int(left)))
		}
	}
	for len(h) > 0 {
		top := h.pop()
		rank, at := uint32(top>>32), int32(uint32(top))
		right := next[at]
		if symbols[at] == none || int(right) == n || m.rank(symbols[at], symbols[right]) != rank {
			continue
		}
		symbols[at] = m.merged[rank]
		symbols[right] = none
		after := next[right]
		next[at] = after
		if before := prev[at]; before >= 0 {
			push(before, at)
		}
		if int(after) < n {
			prev[after] = at
			push(at, after)
		}
	}
	s.heap = h[:0]
	done := 0
	for i := int32(0); int(i) < n; i = next[i] {
		symbols[done] = symbols[i]
		done++
	}
	return symbols[:done]
}

func heapEntry(rank uint32, position int) uint64 { return uint64(rank)<<32 | uint64(position) }

// minHeap is a heap with four children to a node: half the levels, and so half
// the cache misses, of a binary one.
type minHeap []uint64

func (h minHeap) init() {
	for i := (len(h) - 2) / 4; i >= 0; i-- {
		h.down(i)
	}
}

func (h *minHeap) push(e uint64) {
	*h = append(*h, e)
	a := *h
	i := len(a) - 1
	for i > 0 {
		parent := (i - 1) / 4
		if a[parent] <= e {
			break
		}
		a[i] = a[parent]
		i = parent
	}
	a[i] = e
}

func (h *minHeap) pop() uint64 {
	a := *h
	top, last := a[0], len(a)-1
	a[0] = a[last]
	*h = a[:last]
	h.down(0)
	return top
}

func (h minHeap) down(i int) {
	if i >= len(h) {
		return
	}
	e := h[i]
	for {
		child := 4*i + 1
		if child >= len(h) {
			break
		}
		for c := child + 1; c < min(4*i+5, len(h)); c++ {
			if h[c] < h[child] {
				child = c
			}
		}
		if h[child] >= e {
			break
		}
		h[i] = h[child]
		i = child
	}
	h[i] = e
}

// byteRunes is the alphabet of byte-level vocabularies (GPT-2's bytes_to_unicode): printable
// Latin-1 characters stand for their own code, the other bytes, in order, for U+0100 and up.
func byteRunes() [256]rune {
	var runes [256]rune
	next := rune(256)
	for b := range runes {
		r := rune(b)
		if '!' <= r && r <= '~' || '¡' <= r && r <= '¬' || '®' <= r && r <= 'ÿ' {
			runes[b] = r
			continue
		}
		runes[b] = next
		next++
	}
	return runes
}
