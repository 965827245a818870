package tokenizer

import (
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// TestSpell puts the pieces of texts together, in tokenizers of both kinds.
func TestSpell(t *testing.T) {
	words := []string{"Once", " upon", "\n", "\n\n", "  ", "é", "ß", "日本", "語", "👩‍👩‍👧", "\ufffd", "’s", "<0x0A>", "a", "\t", "Zürich", "🇨🇭"}
	for _, file := range []string{tinyFile, spFile} {
		tok := load(t, file)
		t.Run(file, func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) {
				text := strings.Join(rapid.SliceOfN(rapid.SampledFrom(words), 1, 20).Draw(t, "words"), "")
				ids, err := tok.Encode(text, false)
				if err != nil {
					t.Fatal(err)
				}
				want, err := tok.Decode(ids)
				if err != nil {
					t.Fatal(err)
				}
				// A prompt ends where a character does.
				at := rapid.IntRange(0, len(ids)).Draw(t, "prompt")
				prompt, err := tok.Decode(ids[:at])
				if err != nil {
					t.Fatal(err)
				}
				if !strings.HasPrefix(want, prompt) || strings.HasSuffix(prompt, "\ufffd") {
					return
				}
				s := tok.Spell(ids[:at])
				got := prompt
				for _, id := range ids[at:] {
					piece, err := s.Next(id)
					if err != nil {
						t.Fatal(err)
					}
					if strings.HasSuffix(piece, "\ufffd") {
						t.Fatalf("%q came before it was settled", piece)
					}
					got += piece
				}
				rest, err := s.Rest()
				if err != nil {
					t.Fatal(err)
				}
				if got += rest; got != want {
					t.Fatalf("pieces make %q, want %q", got, want)
				}
			})
		})
	}
}

// TestSpellPieces: a character comes when its last byte does, a special token and an id without a token never, and
// bytes that become no character at the end.
func TestSpellPieces(t *testing.T) {
	tok := load(t, tinyFile)
	ids, err := tok.Encode("a 語 b", false)
	if err != nil {
		t.Fatal(err)
	}
	cut := slices.IndexFunc(ids, func(id int) bool { text, _ := tok.Decode([]int{id}); return strings.Contains(text, "\ufffd") })
	if cut < 0 {
		t.Fatal("no token ends within a character")
	}
	ids = slices.Insert(ids, cut+1, 5000)              // between the bytes of a character
	ids = append(ids[:len(ids):len(ids)], 1, ids[cut]) // 1 ends a text
	s := tok.Spell(nil)
	var pieces []string
	for _, id := range ids {
		piece, err := s.Next(id)
		if err != nil {
			t.Fatal(err)
		}
		pieces = append(pieces, piece)
	}
	if all := strings.Join(pieces, ""); all != "a 語 b" {
		t.Errorf("pieces %q", pieces)
	}
	if pieces[cut] != "" {
		t.Errorf("%q came of a part of a character", pieces[cut])
	}
	if rest, err := s.Rest(); err != nil || !strings.HasSuffix(rest, "\ufffd") {
		t.Errorf("the rest is %q, %v", rest, err)
	}
	for _, id := range []int{-1, tok.VocabSize()} {
		if text, err := s.Next(id); err != nil || text != "" {
			t.Errorf("id %d is spelled %q, %v", id, text, err)
		}
	}
}
