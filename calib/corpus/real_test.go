package corpus_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/lutq/lutq/calib/corpus"
	"github.com/lutq/lutq/calib/tokenizer"
)

// shared is where real tokenizers and texts are, if they are.
const shared = "../../../shared"

// loadTokenizer loads a tokenizer.json, which may be packed.
func loadTokenizer(t *testing.T, path string) *tokenizer.Tokenizer {
	t.Helper()
	if _, err := os.Stat(path); err != nil {
		t.Skipf("%s is not here", path)
	}
	if filepath.Ext(path) == ".xz" {
		data, err := exec.Command("xz", "-dc", path).Output()
		if err != nil {
			t.Skipf("xz: %v", err)
		}
		path = filepath.Join(t.TempDir(), "tokenizer.json")
		if err := os.WriteFile(path, data, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	tok, err := tokenizer.Load(path)
	if err != nil {
		t.Fatal(err)
	}
	return tok
}

// The counts that papers' code and llama-perplexity print for WikiText-2.
// transformers warns that its test text has 341469 tokens for Llama 2 and
// 289077 for Llama 3, BOS included; llama.cpp evaluates 564 chunks on Llama 3.
// Of Llama 3 there are tokenizer.json files that leave BOS to the program.
func TestWikiTextCounts(t *testing.T) {
	for _, tt := range []struct {
		name, tokenizer string
		protocol        corpus.Protocol
		bos             corpus.BOS
		id              int
		tokens, windows int // tokens with BOS; 0: not published
	}{
		{"llama-2 gptq", "llama-2/tokenizer.json", corpus.GPTQ, corpus.BOSDefault, 1, 341469, 166},
		{"llama-3 gptq", "llama-3/tokenizer.json.xz", corpus.GPTQ, corpus.BOSStart, 128000, 289077, 141},
		{"llama-3 llama.cpp", "llama-3/tokenizer.json.xz", corpus.LlamaCPP, corpus.BOSWindow, 128000, 0, 564},
	} {
		t.Run(tt.name, func(t *testing.T) {
			tok := loadTokenizer(t, filepath.Join(shared, "tokenizers", tt.tokenizer))
			path := filepath.Join(shared, "text/wiki.test.raw")
			if _, err := os.Stat(path); err != nil {
				t.Skipf("%s is not here", path)
			}
			set, err := corpus.BuildFile(path, tok, corpus.Options{Protocol: tt.protocol, BOS: tt.bos, BOSToken: &tt.id})
			if err != nil {
				t.Fatal(err)
			}
			if got := set.TextTokens + 1; tt.tokens > 0 && got != tt.tokens {
				t.Errorf("got %d tokens with BOS, want %d", got, tt.tokens)
			}
			if len(set.Windows) != tt.windows {
				t.Errorf("got %d windows, want %d", len(set.Windows), tt.windows)
			}
			if got := set.Windows[0].Tokens[0]; got != tt.id {
				t.Errorf("first token: got %d, want BOS, %d", got, tt.id)
			}
		})
	}
}
