package main

import (
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/rivo/uniseg"
	"github.com/schollz/progressbar/v3"
	"golang.org/x/term"

	"github.com/lutq/lutq/formats/input"
)

// progress shows how far a long job is: one bar with the time left on a
// terminal, a line every ten seconds elsewhere. Its methods may be called from
// any goroutine.
type progress struct {
	mu    sync.Mutex
	bar   *progressbar.ProgressBar
	file  *os.File  // that the bar is drawn on
	log   io.Writer // for lines; nil for none
	at    status
	first int64 // what was done when the first news came, at the time begin
	begin time.Time
	last  time.Time // something was shown
}

// status is how far a job is.
type status struct {
	what, item  string // the job, and what is at hand
	done, total int64
	bytes       bool    // what done, total and rate count
	rate        float64 // a second; 0: not known
}

// The times between two lines of progress, and between two drawings of the bar.
const (
	logEvery  = 10 * time.Second
	drawEvery = 100 * time.Millisecond
)

// startProgress begins a job of total units, which are bytes or windows.
func (u *ui) startProgress(what string, total int64, bytes bool) *progress {
	p := &progress{at: status{what: what, total: total, bytes: bytes}}
	if u.quiet {
		return p
	}
	f, ok := u.stderr.(*os.File)
	if !ok || !term.IsTerminal(int(f.Fd())) || os.Getenv("TERM") == "dumb" {
		p.log, p.last = u.stderr, time.Now()
		return p
	}
	p.file = f
	p.bar = progressbar.NewOptions64(total,
		progressbar.OptionSetWriter(f),
		progressbar.OptionSetDescription(what),
		progressbar.OptionSetPredictTime(false), // the description says it
		progressbar.OptionSetElapsedTime(false),
		progressbar.OptionFullWidth(), // what the description leaves
		progressbar.OptionUseANSICodes(true),
		progressbar.OptionClearOnFinish(),
	)
	return p
}

// set tells how much is done and what is at hand.
func (p *progress) set(done int64, item string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.bar == nil && p.log == nil {
		return
	}
	// What an earlier run had done took this one no time.
	if p.begin.IsZero() {
		p.first, p.begin = done, time.Now()
	}
	p.at.done, p.at.item = done, input.Printable(item)
	if took := time.Since(p.begin).Seconds(); done > p.first && took > 0 {
		p.at.rate = float64(done-p.first) / took
	}
	p.show()
}

// note tells what is at hand where no more is done than before.
func (p *progress) note(item string) {
	p.mu.Lock()
	done := p.at.done
	p.mu.Unlock()
	p.set(done, item)
}

// show shows what was told last, unless something was shown just before.
func (p *progress) show() {
	done, item := p.at.done, p.at.item
	switch {
	case p.bar != nil && (time.Since(p.last) >= drawEvery || done >= p.at.total):
		p.last = time.Now()
		width, _, err := term.GetSize(int(p.file.Fd())) // which may have changed
		if err != nil {
			width = 80
		}
		p.bar.Describe(p.at.describe(width - barColumns(width)))
		_ = p.bar.Set64(done) // an error here is about drawing
	case p.log != nil && time.Since(p.last) >= logEvery:
		p.last = time.Now()
		line := fmt.Sprintf("lutq: %s %d %% (%s)", p.at.what, 100*done/max(p.at.total, 1), input.Name(item))
		if left := p.at.left(); left != "" {
			line += ", " + left
		}
		fmt.Fprintln(p.log, line)
	}
}

// keepTelling shows what was told last time and again, where nothing new comes for long, until stop is called, once or more.
func (p *progress) keepTelling(every time.Duration) (stop func()) {
	ticks, quit, ended := time.NewTicker(every), make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		for {
			select {
			case <-quit:
				return
			case <-ticks.C:
				p.mu.Lock()
				if !p.begin.IsZero() { // there are news
					p.show()
				}
				p.mu.Unlock()
			}
		}
	}()
	return sync.OnceFunc(func() {
		ticks.Stop()
		close(quit)
		<-ended
	})
}

// barColumns returns the columns of a terminal that the bar has at least: 12 of
// percent, ends and space, and a part of what a terminal of 20 does not have.
func barColumns(width int) int { return 12 + min(max((width-20)/5, 1), 20) }

// describe says in at most so many columns what there is to say besides the
// percentage. What matters least is left out first: the rate, then the item, the
// count, the time left.
func (s status) describe(columns int) string {
	const leastItem = 12
	text := cutEnd(s.what, columns)
	room := columns - uniseg.StringWidth(text)
	take := func(part, joint string) string {
		n := uniseg.StringWidth(joint + part)
		if n > room {
			room = min(room, 0) // nothing that matters less comes in its place
			return ""
		}
		room -= n
		return joint + part
	}
	left := ""
	if l := s.left(); l != "" {
		left = take(l, ", ")
	}
	count := take(s.count(), " ")
	item := ""
	if s.item != "" && room >= leastItem {
		n := min(room-2, 40)
		item = cutBegin(s.item, n)
		// To its full width, so that the bar beside it stands still.
		item = ", " + item + strings.Repeat(" ", n-uniseg.StringWidth(item))
		room -= n + 2
	}
	rate := ""
	if s.bytes && s.rate > 0 && room > 0 {
		rate = take(formatBytes(int64(s.rate))+"/s", ", ")
	}
	return text + count + rate + left + item
}

// count says how much is done of all.
func (s status) count() string {
	if s.bytes {
		return formatBytes(s.done) + " of " + formatBytes(s.total)
	}
	return fmt.Sprintf("%d of %d", s.done, s.total)
}

// left says how long the rest takes; it is "" where that is not known.
func (s status) left() string {
	if s.rate <= 0 || s.done >= s.total {
		return ""
	}
	seconds := int64(float64(s.total-s.done) / s.rate)
	switch h, m := seconds/3600, seconds/60; {
	case h >= 100:
		return fmt.Sprintf("%d days left", h/24)
	case h > 0:
		return fmt.Sprintf("%dh%02dm left", h, m%60)
	case m > 0:
		return fmt.Sprintf("%dm%02ds left", m, seconds%60)
	}
	return fmt.Sprintf("%ds left", seconds)
}

// pauser is part of what shows progress of its own in the middle of a longer job. pause, if
// set, takes that one's off the screen, and returns what brings it back.
type pauser struct{ pause func() (resume func()) }

// paused does so, and returns what ends it.
func (p *pauser) paused() (resume func()) {
	if p.pause == nil {
		return func() {}
	}
	return p.pause()
}

// resize changes the total.
func (p *progress) resize(total int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.at.total = total
	if p.bar != nil {
		p.bar.ChangeMax64(total)
	}
}

// finish clears the bar.
func (p *progress) finish() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.bar != nil {
		_ = p.bar.Finish()
	}
}

// cutBegin keeps the end of a name, which tells more than its beginning.
func cutBegin(s string, columns int) string {
	if uniseg.StringWidth(s) <= columns {
		return s
	}
	for s != "" && uniseg.StringWidth(s) >= columns {
		_, s, _, _ = uniseg.FirstGraphemeClusterInString(s, -1)
	}
	return strings.Repeat("…", min(columns, 1)) + s
}

// cutEnd keeps the beginning of a word.
func cutEnd(s string, columns int) string {
	if columns <= 0 {
		return ""
	}
	kept, rest, state := "", s, -1
	for rest != "" {
		var next string
		next, rest, _, state = uniseg.FirstGraphemeClusterInString(rest, state)
		if uniseg.StringWidth(kept+next) > columns {
			break
		}
		kept += next
	}
	return kept
}
