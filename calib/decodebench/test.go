// Package decodebench times how fast a model reads prompts, writes tokens, and is evaluated.
//
// Weights are those of a folder, or random ones in the shapes of a config.json: see [NewRandom].
package decodebench

import (
	"fmt"
	"strconv"
	"strings"
)

// Test is what is timed: the reading of a prompt, the writing of tokens, or the evaluation of a window of text.
type Test struct {
	Prompt int // tokens of the prompt, where it is that
	Window int // tokens of the window, where it is that
	Tokens int // tokens that are written, else
	Depth  int // tokens that a text has before
}

// most is the largest number in a test: no sum of two overflows.
const most = 1 << 24

// ParseTest reads a test as llama-bench calls it: pp512 is a prompt of 512 tokens, tg128 are 128 tokens
// one by one, and @d4096 behind either means after a text of 4096 tokens.
func ParseTest(s string) (Test, error) {
	var t Test
	name, depth, deep := strings.Cut(s, "@d")
	ok := true
	if deep {
		t.Depth, ok = count(depth)
	}
	prompt, isPrompt := strings.CutPrefix(name, "pp")
	window, isWindow := strings.CutPrefix(name, "eval")
	tokens, isTokens := strings.CutPrefix(name, "tg")
	var named bool
	switch {
	case isPrompt:
		t.Prompt, named = count(prompt)
	case isWindow:
		t.Window, named = count(window)
		named = named && t.Window > 1 && !deep
	case isTokens:
		t.Tokens, named = count(tokens)
	}
	if !ok || !named {
		return Test{}, fmt.Errorf("test %q: want ppN, tgN or evalN, such as pp512, tg128, tg128@d4096 or eval2048", s)
	}
	return t, nil
}

// count reads a number of tokens.
func count(s string) (n int, ok bool) {
	n, err := strconv.Atoi(s)
	return n, err == nil && n > 0 && n <= most
}

// Name returns the test's name without its depth.
func (t Test) Name() string {
	switch {
	case t.Prompt > 0:
		return "pp" + strconv.Itoa(t.Prompt)
	case t.Window > 0:
		return "eval" + strconv.Itoa(t.Window)
	}
	return "tg" + strconv.Itoa(t.Tokens)
}

// String is what [ParseTest] reads.
func (t Test) String() string {
	if t.Depth > 0 {
		return fmt.Sprintf("%s@d%d", t.Name(), t.Depth)
	}
	return t.Name()
}

// before returns how many tokens a text has when the clock starts. What is written follows at least one.
func (t Test) before() int {
	if t.Tokens > 0 {
		return max(t.Depth, 1)
	}
	return t.Depth
}

// Context returns how many tokens a text has in the end.
func (t Test) Context() int { return t.before() + t.tokens() }

// tokens returns how many tokens of a text are timed.
func (t Test) tokens() int { return t.Prompt + t.Window + t.Tokens }
