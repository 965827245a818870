package corpus

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"hash"
	"io"
	"math/rand/v2"
	"path/filepath"
	"slices"
)

// Mixture is the windows of one or more texts, of which each gives an equal part: what
// weights are fitted on.
type Mixture struct {
	Windows, Valid [][]int // of tokens: to fit on, and to hold out
	Context        int     // tokens of a window, BOS included; of documents the most
	BOS            BOS     // where it went: none, window or half
	Texts          []File
}

// File is a text by the name of its file, without the folder, and its SHA-256.
type File struct{ Name, SHA256 string }

// Tokens returns the number of tokens in the windows to fit on, BOS included.
func (m *Mixture) Tokens() int {
	n := 0
	for _, w := range m.Windows {
		n += len(w)
	}
	return n
}

// MixOptions say which windows of texts are used.
type MixOptions struct {
	Windows, Valid int  // to fit on, and to hold out
	Context        int  // tokens of a window, BOS included
	BOS            BOS  // BOSDefault: BOSHalf where the tokenizer adds one, for models are run with BOS and in the middle of texts
	BOSToken       *int // as in [Options]
	// InOrder takes the first windows of every text. Otherwise they are drawn from all of it.
	InOrder bool
	Seed    uint64
	// Made are texts that are no files, by the paths that mean them.
	Made map[string]Text
}

// MixFiles reads texts and mixes them as [Mix] does. Files named .jsonl are of documents.
func MixFiles(paths []string, tok Tokenizer, o MixOptions) (*Mixture, error) {
	if o.BOS == BOSDefault {
		o.BOS = BOSNone
		if _, added := tok.BOS(); added {
			o.BOS = BOSHalf
		}
	}
	most := 0 // windows are drawn from all of a text
	if o.InOrder {
		most = o.Windows + o.Valid
	}
	var texts []Text
	var sums []hash.Hash
	for _, path := range paths {
		if text, ok := o.Made[path]; ok {
			texts, sums = append(texts, text), append(sums, nil)
			continue
		}
		f, err := Open(path, most)
		if err != nil {
			return nil, err
		}
		defer f.Close()
		sum := sha256.New()
		sums = append(sums, sum)
		texts = append(texts, Text{Name: path, Text: io.TeeReader(f, sum), Documents: isDocuments(path)})
	}
	m := &Mixture{Context: o.Context, BOS: o.BOS}
	var err error
	if m.Windows, m.Valid, err = Mix(texts, tok, o); err != nil {
		return nil, err
	}
	for i, text := range texts {
		if text.Windows != nil {
			m.Texts = append(m.Texts, File{Name: text.Name, SHA256: text.sum})
			continue
		}
		// The sum is of the whole file, also where a part of it sufficed.
		if _, err := io.Copy(io.Discard, text.Text); err != nil {
			return nil, fmt.Errorf("%s: %w", text.Name, err)
		}
		name := filepath.Base(text.Name)
		if _, ok := o.Made[name]; ok {
			name = "./" + name // which is the file
		}
		m.Texts = append(m.Texts, File{Name: name, SHA256: hex.EncodeToString(sums[i].Sum(nil))})
	}
	return m, nil
}

// Text is a text with a name for messages.
type Text struct {
	Name string
	Text io.Reader
	// Documents says that it is many, in JSON lines, each an object whose "text" it is. No window has tokens of
	// two, and the last of each may be shorter than others.
	Documents bool
	// Windows, if set, makes windows in place of Text: the first of it, most at most. They are taken in their order. It returns
	// the SHA-256 of the text too.
	Windows func(context, most int, bos BOS) (windows [][]int, sum string, err error)

	sum string // that Windows returned
}

// Mix cuts texts into windows of tokens. Every text gives an equal part of
// both sets, the first ones a window more where that does not come out even,
// and the texts take turns.
func Mix(texts []Text, tok Tokenizer, o MixOptions) (train, valid [][]int, err error) {
	if len(texts) == 0 || o.Windows < len(texts) {
		return nil, nil, fmt.Errorf("%d windows of %d texts: want at least one of each", o.Windows, len(texts))
	}
	if o.Valid < 0 {
		return nil, nil, fmt.Errorf("%d held-out windows: want 0 or more", o.Valid)
	}
	parts := make([][2][][]int, len(texts))
	for i := range texts {
		text := &texts[i]
		learn, hold := share(o.Windows, len(texts), i), share(o.Valid, len(texts), i)
		co := Options{BOS: o.BOS, Context: o.Context, BOSToken: o.BOSToken}
		if o.BOS == BOSHalf {
			co.BOS = BOSWindow
		}
		if o.InOrder {
			co.MaxWindows = learn + hold
		}
		windows, err := text.windows(tok, co, learn+hold)
		if err != nil {
			return nil, nil, fmt.Errorf("%s: %w", text.Name, err)
		}
		if len(windows) < learn+hold {
			of := ""
			if text.Documents {
				of = "up to "
			}
			return nil, nil, fmt.Errorf("%s has %d windows of %s%d tokens: want %d to learn on and %d to hold out",
				text.Name, len(windows), of, o.Context, learn, hold)
		}
		if !o.InOrder && text.Windows == nil {
			order := rand.New(rand.NewPCG(o.Seed, uint64(i))).Perm(len(windows))
			drawn := make([][]int, learn+hold)
			for j := range drawn {
				drawn[j] = windows[order[j]]
			}
			windows = drawn
		}
		if o.BOS == BOSHalf {
			windows = halved(windows)
		}
		parts[i] = [2][][]int{windows[:learn], windows[learn : learn+hold]}
	}
	var out [2][][]int
	for which := range out {
		for j := range parts[0][which] {
			for i := range parts {
				if j < len(parts[i][which]) {
					out[which] = append(out[which], parts[i][which][j])
				}
			}
		}
	}
	return out[0], out[1], nil
}

// halved returns windows without the first token of every second one, of those that have two more.
func halved(windows [][]int) [][]int {
	windows = slices.Clone(windows)
	for i := 1; i < len(windows); i += 2 {
		if w := windows[i]; len(w) > 2 {
			windows[i] = w[1:]
		}
	}
	return windows
}

// windows cuts a text, of which so many windows are needed.
func (t *Text) windows(tok Tokenizer, o Options, need int) (windows [][]int, err error) {
	if t.Windows != nil {
		windows, t.sum, err = t.Windows(o.Context, need, o.BOS)
		return windows, err
	}
	build := Build
	if t.Documents {
		build = buildDocuments
	}
	set, err := build(t.Text, tok, o)
	if err != nil {
		return nil, err
	}
	for _, w := range set.Windows {
		windows = append(windows, w.Tokens)
	}
	return windows, nil
}

// share is the i-th of parts nearly equal parts of n.
func share(n, parts, i int) int {
	s := n / parts
	if i < n%parts {
		s++
	}
	return s
}
