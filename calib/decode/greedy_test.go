package decode_test

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/lutq/lutq/calib/decode"
	"github.com/lutq/lutq/calib/tokenizer"
	"github.com/lutq/lutq/formats/racetest"
)

// TestGreedy holds the most likely tokens against transformers', several texts side by side;
// scripts/greedy.py makes the golden file. Models that are no part of the repository may be absent: LUTQ_SMOLLM2 names
// the folder that scripts/smollm2.py writes.
func TestGreedy(t *testing.T) {
	racetest.Skip(t)
	data, err := os.ReadFile("testdata/greedy.json")
	if err != nil {
		t.Fatal(err)
	}
	type text struct {
		Model, Prompt, Text string
		IDs, Tokens         []int
	}
	var golden struct{ Cases []text }
	if err := json.Unmarshal(data, &golden); err != nil {
		t.Fatal(err)
	}
	models := make(map[string][]text)
	for _, c := range golden.Cases {
		models[c.Model] = append(models[c.Model], c)
	}
	for name, cases := range models {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join("../testdata", name)
			if _, err := os.Stat(dir); err != nil {
				if testing.Short() {
					t.Skip("a larger model")
				}
				dir = filepath.Join("../../../shared/models", name)
				if named := os.Getenv("LUTQ_SMOLLM2"); name == "smollm2" && named != "" {
					dir = named
				}
			}
			if _, err := os.Stat(dir); err != nil {
				t.Skipf("%s is not here", dir)
			}
			tok, err := tokenizer.Load(dir)
			if err != nil {
				t.Fatal(err)
			}
			var prompts [][]int
			for _, c := range cases {
				ids, err := tok.Encode(c.Prompt, true)
				if err != nil || !slices.Equal(ids, c.IDs) {
					t.Fatalf("%q has tokens %v, want %v (%v)", c.Prompt, ids, c.IDs, err)
				}
				prompts = append(prompts, ids)
			}
			m := open(t, dir)
			written := make([]strings.Builder, len(cases))
			var printers []*decode.Printer
			for _, ids := range prompts {
				printers = append(printers, decode.NewPrinter(tok, ids, nil))
			}
			s := session(t, m, decode.Options{Slots: len(cases), Context: 300})
			texts, err := decode.Write(context.Background(), s, prompts, decode.WriteOptions{MaxTokens: len(cases[0].Tokens)}, func(i, token int) bool {
				text, _, err := printers[i].Add(token)
				if err != nil {
					t.Error(err)
				}
				written[i].WriteString(text)
				return true
			})
			if err != nil {
				t.Fatal(err)
			}
			for i, c := range cases {
				if got := texts[i].Tokens; !slices.Equal(got, c.Tokens) {
					at := 0
					for at < len(got) && got[at] == c.Tokens[at] {
						at++
					}
					t.Errorf("after %q token %d of %d is another", c.Prompt, at, len(c.Tokens))
				}
				rest, err := printers[i].Rest()
				if err != nil {
					t.Fatal(err)
				}
				written[i].WriteString(rest)
				if got := written[i].String(); got != c.Text {
					t.Errorf("after %q: text %q, want %q", c.Prompt, got, c.Text)
				}
			}
		})
	}
}

// TestPrinter stops before the first of some texts, and holds back no more than may begin one.
func TestPrinter(t *testing.T) {
	tok, err := tokenizer.Load(tiny)
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		text, want string
		stops      []string
		stopped    bool
	}{
		{"one two three", "one two three", nil, false},
		{"one two three", "one ", []string{"two"}, true},
		{"one two three", "one ", []string{"three", "two thre"}, true},
		{"one two three", "one two three", []string{"three!", "threes"}, false},
		{"a\n\nb\n\n\nc", "a\n\nb", []string{"\n\n\n"}, true},
		{"aabaabaac", "aaba", []string{"abaac"}, true},
		{"日本語 text", "日本", []string{"語"}, true},
	} {
		ids, err := tok.Encode(test.text, false)
		if err != nil {
			t.Fatal(err)
		}
		p := decode.NewPrinter(tok, nil, test.stops)
		got, stopped := "", false
		for _, id := range ids {
			var more string
			if more, stopped, err = p.Add(id); err != nil {
				t.Fatal(err)
			}
			if got += more; stopped {
				break
			}
			if len(test.stops) == 0 && more == "" && !strings.ContainsAny(test.text, "日") {
				t.Errorf("%q: nothing came of token %d", test.text, id)
			}
		}
		if !stopped {
			rest, err := p.Rest()
			if err != nil {
				t.Fatal(err)
			}
			got += rest
		}
		if got != test.want || stopped != test.stopped {
			t.Errorf("%q up to %q: got %q, stopped %v: want %q, %v", test.text, test.stops, got, stopped, test.want, test.stopped)
		}
	}
}
