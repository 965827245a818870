package tokenizer

import (
	"unicode"
	"unicode/utf8"
)

// The split patterns of the known tokenizers, as their files spell them, and
// hand-written scanners for them, which are many times faster than regular expressions.
//
// A scanner returns the length of the word at the start of a text that is not
// empty. Every character belongs to a word: each pattern ends in alternatives for
// letters, numbers, white space and everything else.
type scanner func(s string) int

const (
	gpt2Pattern   = `'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`
	llama3Pattern = `(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`
	qwen2Pattern  = `(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`
)

// scannerFor returns the scanner of a split pattern, or nil for one it does not know.
func scannerFor(pattern string) scanner {
	switch pattern {
	case gpt2Pattern:
		return scanGPT2
	case llama3Pattern:
		return func(s string) int { return scanLlama3(s, 3) }
	case qwen2Pattern:
		return func(s string) int { return scanLlama3(s, 1) }
	}
	return nil
}

// class is the part of Unicode that a character belongs to.
type class uint8

const (
	endOfText class = iota
	letter          // \p{L}
	number          // \p{N}
	space           // \s but for newline
	newline         // [\r\n]
	other
)

// classAt returns the class of the character at s[i] and its length in bytes.
func classAt(s string, i int) (class, int) {
	if i >= len(s) {
		return endOfText, 0
	}
	if c := s[i]; c < utf8.RuneSelf {
		switch {
		case 'a' <= c|0x20 && c|0x20 <= 'z':
			return letter, 1
		case c == ' ':
			return space, 1
		case '0' <= c && c <= '9':
			return number, 1
		case c == '\n' || c == '\r':
			return newline, 1
		case '\t' <= c && c < '\r':
			return space, 1
		}
		return other, 1
	}
	r, n := utf8.DecodeRuneInString(s[i:])
	switch {
	case isLetter(r):
		return letter, n
	case isNumber(r):
		return number, n
	case unicode.IsSpace(r):
		return space, n
	}
	return other, n
}

// run returns where the characters of class c that begin at s[i] end.
func run(s string, i int, c class) int {
	for {
		d, n := classAt(s, i)
		if d != c {
			return i
		}
		i += n
	}
}

// scanGPT2 implements gpt2Pattern.
func scanGPT2(s string) int {
	if n := contraction(s, false); n > 0 {
		return n
	}
	i := 0
	if s[0] == ' ' {
		i = 1
	}
	switch c, n := classAt(s, i); c {
	case letter, number, other:
		return run(s, i+n, c)
	}
	return whiteSpace(s)
}

// scanLlama3 implements llama3Pattern with up to so many digits in a word; qwen2Pattern has one.
func scanLlama3(s string, digits int) int {
	if n := contraction(s, true); n > 0 {
		return n
	}
	c, n := classAt(s, 0)
	switch c {
	case letter:
		return run(s, n, letter)
	case number:
		for range digits - 1 {
			c, m := classAt(s, n)
			if c != number {
				break
			}
			n += m
		}
		return n
	case space, other:
		if d, m := classAt(s, n); d == letter {
			return run(s, n+m, letter)
		}
	}
	i := 0
	if s[0] == ' ' {
		i = 1
	}
	if c, n := classAt(s, i); c == other {
		return run(s, run(s, i+n, other), newline)
	}
	if n := throughNewline(s); n > 0 {
		return n
	}
	return whiteSpace(s)
}

// contraction returns the length of 's, 't, 're, 've, 'm, 'll or 'd at the start of s,
// or 0. With fold set it takes capitals, and the long s that folds to s.
func contraction(s string, fold bool) int {
	if s[0] != '\'' || len(s) < 2 {
		return 0
	}
	at := func(i int) byte {
		if i >= len(s) {
			return 0
		}
		c := s[i]
		if fold && 'A' <= c && c <= 'Z' {
			c += 'a' - 'A'
		}
		return c
	}
	switch at(1) {
	case 's', 't', 'm', 'd':
		return 2
	case 'r', 'v':
		if at(2) == 'e' {
			return 3
		}
	case 'l':
		if at(2) == 'l' {
			return 3
		}
	}
	const longS = "\u017f"
	if fold && len(s) > len(longS) && s[1:1+len(longS)] == longS {
		return 1 + len(longS)
	}
	return 0
}

// throughNewline implements \s*[\r\n]+: white space up to the last newline in it, or 0 if there is none.
func throughNewline(s string) int {
	last := 0
	for i := 0; ; {
		c, n := classAt(s, i)
		if c != space && c != newline {
			return last
		}
		i += n
		if c == newline {
			last = i
		}
	}
}

// whiteSpace implements \s+(?!\S)|\s+: all white space where the text ends behind
// it; otherwise all but its last character, which the next word may take; that
// character if it is alone.
func whiteSpace(s string) int {
	last := 0 // where the last character begins
	for i := 0; ; {
		c, n := classAt(s, i)
		switch {
		case c == endOfText:
			return i
		case c != space && c != newline:
			if last == 0 {
				return i
			}
			return last
		}
		last = i
		i += n
	}
}
