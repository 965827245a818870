package learn

import (
	"fmt"
	"io"
	"math/rand/v2"

	"github.com/lutq/lutq/calib/corpus"
)

// Text is a text to learn on.
type Text struct {
	Name string // for messages
	Text io.Reader
}

// WindowOptions say which windows of texts are used.
type WindowOptions struct {
	Windows, Valid int // to learn on, and to hold out
	Context        int // tokens of a window, BOS included
	BOS            corpus.BOS
	BOSToken       *int // as in corpus.Options
	// InOrder takes the first windows of every text. Otherwise they are drawn from all of it.
	InOrder bool
	Seed    uint64
}

// Windows cuts texts into windows of tokens. Every text gives an equal part of
// both sets, the first ones a window more where that does not come out even,
// and the texts take turns.
func Windows(texts []Text, tok corpus.Tokenizer, o WindowOptions) (train, valid [][]int, err error) {
	if len(texts) == 0 || o.Windows < len(texts) {
		return nil, nil, fmt.Errorf("%d windows of %d texts: want at least one of each", o.Windows, len(texts))
	}
	if o.Valid < 0 {
		return nil, nil, fmt.Errorf("%d held-out windows: want 0 or more", o.Valid)
	}
	parts := make([][2][][]int, len(texts))
	for i, text := range texts {
		learn, hold := share(o.Windows, len(texts), i), share(o.Valid, len(texts), i)
		co := corpus.Options{BOS: o.BOS, Context: o.Context, BOSToken: o.BOSToken}
		if o.InOrder {
			co.MaxWindows = learn + hold
		}
		set, err := corpus.Build(text.Text, tok, co)
		if err != nil {
			return nil, nil, fmt.Errorf("%s: %w", text.Name, err)
		}
		if len(set.Windows) < learn+hold {
			return nil, nil, fmt.Errorf("%s has %d windows of %d tokens: want %d to learn on and %d to hold out",
				text.Name, len(set.Windows), set.Context, learn, hold)
		}
		order := rand.New(rand.NewPCG(o.Seed, uint64(i))).Perm(len(set.Windows))
		for j := range learn + hold {
			at := order[j]
			if o.InOrder {
				at = j
			}
			which := 0
			if j >= learn {
				which = 1
			}
			parts[i][which] = append(parts[i][which], set.Windows[at].Tokens)
		}
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

// share is the i-th of parts nearly equal parts of n.
func share(n, parts, i int) int {
	s := n / parts
	if i < n%parts {
		s++
	}
	return s
}
