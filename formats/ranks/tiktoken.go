package ranks

import (
	"encoding/base64"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/lutq/lutq/formats/added"
)

// kimiClass is the class of Kimi's and Moonlight's tokenizers. A tiktoken.model has no pattern, and of other classes that is not
// known.
const kimiClass = "TikTokenTokenizer"

// KimiPattern is how Kimi's models cut words.
const KimiPattern = `[\p{Han}]+` +
	`|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?` +
	`|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?` +
	`|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`

// kimiReserved is the number of special tokens behind the others.
const kimiReserved = 256

// readTiktoken reads a tiktoken.model: a line for each token, with its bytes in base64 and its rank. The special tokens follow behind
// the last rank, and tokenizer_config.json has the texts of some.
func readTiktoken(data []byte, beside *added.Beside) (*list, error) {
	if beside == nil {
		return nil, fmt.Errorf("it is no tokenizer without the %s beside it: name the folder", added.ConfigFile)
	}
	if class := beside.Class(); class != kimiClass {
		return nil, fmt.Errorf("it has no split pattern, and tokenizer_class of %s is %.60q: want %s, whose pattern is known",
			added.ConfigFile, class, kimiClass)
	}
	l := &list{pattern: KimiPattern}
	number := 0
	for line := range strings.Lines(string(data)) {
		number++
		if line = strings.TrimRight(line, "\r\n"); line == "" {
			continue
		}
		text, rank, ok := strings.Cut(line, " ")
		token, err := base64.StdEncoding.DecodeString(text)
		if !ok || err != nil {
			return nil, fmt.Errorf("line %d: %.40q is no token in base64 and rank", number, line)
		}
		if n, err := strconv.Atoi(rank); err != nil || n != len(l.tokens) {
			return nil, fmt.Errorf("line %d: rank %.20q: want %d", number, rank, len(l.tokens))
		}
		if len(l.tokens) == maxTokens {
			return nil, fmt.Errorf("line %d: more than %d tokens", number, maxTokens)
		}
		l.add(string(token))
	}
	if len(l.tokens) == 0 {
		return nil, errors.New("no tokens")
	}
	base := len(l.tokens)
	for id := base; id < base+kimiReserved; id++ {
		l.special = append(l.special, added.Token{ID: id, Content: fmt.Sprintf("<|reserved_token_%d|>", id), Special: true})
	}
	for _, t := range beside.Listed() {
		// As tiktoken takes them, which knows no spaces around a token, and no words.
		if at := t.ID - base; at >= 0 && at < kimiReserved {
			l.special[at].Content, l.special[at].Special = t.Content, t.Special
		}
	}
	return l, nil
}
