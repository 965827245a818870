package corpus

import "iter"

// Pack puts documents one behind the other and cuts the row into windows of so many tokens, most at most. A document that a
// window has no room for goes on in the next one. bos, unless nil, is first in every window, and of documents in none but
// where it is theirs.
func Pack(docs iter.Seq2[[]int, error], context, most int, bos *int) (windows [][]int, err error) {
	var row []int
	for doc, err := range docs {
		if err != nil {
			return nil, err
		}
		for len(doc) > 0 {
			if len(row) == 0 && bos != nil && doc[0] != *bos {
				row = append(make([]int, 0, context), *bos)
			}
			n := min(context-len(row), len(doc))
			row, doc = append(row, doc[:n]...), doc[n:]
			if len(row) < context {
				continue
			}
			if windows = append(windows, row); len(windows) == most {
				return windows, nil
			}
			row = nil
		}
	}
	return windows, nil
}
