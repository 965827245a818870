package corpus

import (
	"errors"
	"iter"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// documents yields some, and an error behind them unless it is nil.
func documents(docs [][]int, err error) iter.Seq2[[]int, error] {
	return func(yield func([]int, error) bool) {
		for _, d := range docs {
			if !yield(d, nil) {
				return
			}
		}
		if err != nil {
			yield(nil, err)
		}
	}
}

func TestPack(t *testing.T) {
	const bos = 9
	docs := [][]int{{1, 2}, {3, 4, 5, 6, 7}, {}, {bos, 1}, {2}, {3, 4, 5}}
	first := bos
	if got, err := Pack(documents([][]int{{bos, 1}, {bos, 2}}, nil), 2, 10, &first); err != nil || len(got) != 2 || !slices.Equal(got[1], []int{bos, 2}) {
		t.Errorf("documents that have BOS themselves are packed as %v, error %v", got, err)
	}
	for _, tc := range []struct {
		name string
		size int
		most int
		bos  *int
		want [][]int
	}{
		{"without BOS", 4, 10, nil, [][]int{{1, 2, 3, 4}, {5, 6, 7, bos}, {1, 2, 3, 4}}},
		{"no more than asked for", 4, 2, nil, [][]int{{1, 2, 3, 4}, {5, 6, 7, bos}}},
		{"BOS in every window", 4, 10, &first, [][]int{{bos, 1, 2, 3}, {bos, 4, 5, 6}, {bos, 7, bos, 1}, {bos, 2, 3, 4}}},
		{"too few tokens", 20, 10, nil, nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, err := Pack(documents(docs, nil), tc.size, tc.most, tc.bos)
			if err != nil || !slices.EqualFunc(got, tc.want, slices.Equal) {
				t.Errorf("packed as %v, error %v: want %v", got, err, tc.want)
			}
		})
	}
	bad := errors.New("bad")
	if _, err := Pack(documents(docs, bad), 4, 10, nil); !errors.Is(err, bad) {
		t.Errorf("error %v: want that of the documents", err)
	}
}

// TestPackWhole: windows without the BOS put in front of them are the documents one behind the other, as far as they fill
// windows. A document that begins a window with BOS gets no second one.
func TestPackWhole(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const bos = 7
		docs := rapid.SliceOfN(rapid.SliceOfN(rapid.IntRange(0, 6), 0, 9), 0, 20).Draw(t, "documents")
		size := rapid.IntRange(2, 8).Draw(t, "window")
		var first *int
		id := bos
		if rapid.Bool().Draw(t, "bos") {
			first = &id
		}
		windows, err := Pack(documents(docs, nil), size, 1000, first)
		if err != nil {
			t.Fatal(err)
		}
		var got []int
		for _, w := range windows {
			if len(w) != size {
				t.Fatalf("a window of %d tokens: want %d", len(w), size)
			}
			if first != nil {
				if w[0] != bos {
					t.Fatalf("a window begins with %d", w[0])
				}
				w = w[1:]
			}
			got = append(got, w...)
		}
		all := slices.Concat(docs...)
		if len(got) > len(all) || !slices.Equal(got, all[:len(got)]) || len(all)-len(got) >= size {
			t.Fatalf("windows hold %v of %v", got, all)
		}
	})
}
