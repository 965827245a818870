package decode

import (
	"strings"

	"github.com/lutq/lutq/calib/tokenizer"
)

// Printer makes text of the tokens of a text as they come, up to the first of some texts that stop it.
type Printer struct {
	speller *tokenizer.Speller
	stops   []string
	held    string // may be the beginning of a stop
}

// NewPrinter returns the printer of what follows a prompt.
func NewPrinter(t *tokenizer.Tokenizer, prompt []int, stops []string) *Printer {
	return &Printer{speller: t.Spell(prompt), stops: stops}
}

// Add returns the text that a token settles, and whether a stop was found, which is no part of it. What may be the
// beginning of a stop, or of a character, is held back.
func (p *Printer) Add(token int) (text string, stopped bool, err error) {
	more, err := p.speller.Next(token)
	if err != nil {
		return "", false, err
	}
	text, stopped = p.settle(more)
	return text, stopped, nil
}

// Rest returns what is held back when no more tokens come.
func (p *Printer) Rest() (string, error) {
	more, err := p.speller.Rest()
	if err != nil {
		return "", err
	}
	text, stopped := p.settle(more)
	if !stopped {
		text += p.held
	}
	p.held = ""
	return text, nil
}

// settle adds to what is held back and returns what need not be.
func (p *Printer) settle(more string) (text string, stopped bool) {
	all := p.held + more
	first := len(all)
	for _, stop := range p.stops {
		if i := strings.Index(all, stop); i >= 0 && i < first {
			first, stopped = i, true
		}
	}
	if stopped {
		p.held = ""
		return all[:first], true
	}
	for _, stop := range p.stops {
		// The longest end of the text that the stop begins with.
		for n := min(len(stop)-1, len(all)); n > len(all)-first; n-- {
			if strings.HasPrefix(stop, all[len(all)-n:]) {
				first = len(all) - n
				break
			}
		}
	}
	p.held = all[first:]
	return all[:first], false
}
