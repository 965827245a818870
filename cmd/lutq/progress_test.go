package main

import (
	"bytes"
	"context"
	"errors"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rivo/uniseg"
)

// statuses are what a bar may have to show.
func statuses() map[string]status {
	const layer = "model.layers.31.block_sparse_moe.experts.7.down_proj.weight"
	return map[string]status{
		"begun":      {what: "quantizing", item: layer, total: 140e9, bytes: true},
		"on its way": {what: "quantizing", item: layer, done: 98765432100, total: 140e9, bytes: true, rate: 123456789},
		"windows":    {what: "evaluating", item: "perplexity so far 22.896", done: 7, total: 141, rate: 0.02},
		"slow":       {what: "learning", item: "loss 0.1234 (held out 0.2345), 123 tokens/s", done: 1, total: 1 << 40, rate: 1e-3},
		"done":       {what: "verifying", item: layer, done: 300, total: 300, rate: 17},
		"nothing":    {what: "timing", total: 1},
		"wide names": {what: "quantizing", item: strings.Repeat("層", 60), done: 5, total: 9, rate: 1},
		"odd names":  {what: "quantizing", item: "e\u0301\U0001F468\u200d\U0001F469\u200d\U0001F467" + strings.Repeat("é", 50), done: 5, total: 9, rate: 1},
	}
}

// TestDescribe lays every status out in every width.
func TestDescribe(t *testing.T) {
	for name, s := range statuses() {
		t.Run(name, func(t *testing.T) {
			parts := 0
			for columns := range 200 {
				text := s.describe(columns)
				if n := uniseg.StringWidth(text); n > columns {
					t.Fatalf("%d columns in %d: %q", n, columns, text)
				}
				if columns >= len(s.what) && !strings.HasPrefix(text, s.what) {
					t.Fatalf("%d columns do not name the job: %q", columns, text)
				}
				now := 0
				for _, part := range []string{s.left(), s.count()} {
					if part != "" && strings.Contains(text, part) {
						now++
					}
				}
				if now < parts {
					t.Fatalf("%d columns show less than fewer do: %q", columns, text)
				}
				parts = now
			}
			if parts == 0 {
				t.Error("no width shows a count")
			}
		})
	}
	s := statuses()["on its way"]
	for columns, want := range map[int]string{
		5:   "quant",
		10:  "quantizing",
		20:  "quantizing",
		22:  "quantizing, 5m34s left",
		70:  "quantizing 98.8 GB of 140 GB, 5m34s left, ….experts.7.down_proj.weight",
		100: "quantizing 98.8 GB of 140 GB, 123 MB/s, 5m34s left, …k_sparse_moe.experts.7.down_proj.weight",
	} {
		if got := s.describe(columns); got != want {
			t.Errorf("%d columns: got  %q\nwant %q", columns, got, want)
		}
	}
}

func TestLeft(t *testing.T) {
	for seconds, want := range map[int64]string{
		0: "", 1: "1s left", 59: "59s left", 60: "1m00s left", 3599: "59m59s left", 3600: "1h00m left", 360000: "4 days left", 359999: "99h59m left",
	} {
		if got := (status{total: seconds, rate: 1}).left(); got != want {
			t.Errorf("%d s: got %q, want %q", seconds, got, want)
		}
	}
}

// TestProgressLines: what is no terminal gets lines, at their time.
func TestProgressLines(t *testing.T) {
	var b bytes.Buffer
	u := &ui{stderr: &b}
	p := u.startProgress("quantizing", 100, true)
	p.set(40, "a") // done before
	p.begin = time.Now().Add(-10 * time.Second)
	p.set(60, "b")
	if b.Len() != 0 {
		t.Errorf("lines in the first ten seconds: %q", b.String())
	}
	p.last = time.Now().Add(-logEvery)
	p.set(60, "model.c\x1b")
	p.finish()
	got := strings.Fields(b.String())
	if want := []string{"lutq:", "quantizing", "60", "%"}; len(got) < 6 || !slices.Equal(got[:4], want) || got[len(got)-1] != "left" {
		t.Errorf("got %q", b.String())
	}
	if !strings.Contains(b.String(), "20s left") && !strings.Contains(b.String(), "19s left") {
		t.Errorf("20 in ten seconds leave 40 for twenty: %q", b.String())
	}
	u.quiet = true
	b.Reset()
	p = u.startProgress("quantizing", 100, true)
	p.last = time.Time{}
	p.set(60, "c")
	p.finish()
	if b.Len() != 0 {
		t.Errorf("printed with --quiet: %q", b.String())
	}
}

// TestKeepTelling: what takes long without news is told of all the same, and no longer than it takes.
func TestKeepTelling(t *testing.T) {
	var log bytes.Buffer
	p := (&ui{stderr: &log}).startProgress("timing", 4, false)
	stop := p.keepTelling(time.Millisecond)
	p.set(1, "tuning 8x8")
	for range 3 {
		p.mu.Lock()
		p.last = time.Now().Add(-logEvery)
		lines := strings.Count(log.String(), "\n")
		p.mu.Unlock()
		for told := false; !told; {
			time.Sleep(time.Millisecond)
			p.mu.Lock()
			told = strings.Count(log.String(), "\n") > lines
			p.mu.Unlock()
		}
	}
	stop()
	stop()
	if want := strings.Repeat("lutq: timing 25 % (tuning 8x8)\n", 3); log.String() != want {
		t.Errorf("got %q, want %q", log.String(), want)
	}
}

// TestUnlessDone: what blocks is left behind when the context ends.
func TestUnlessDone(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	block := make(chan bool)
	defer close(block)
	time.AfterFunc(time.Millisecond, cancel)
	start := time.Now()
	err := unlessDone(ctx, func() error { <-block; return nil })
	if took := time.Since(start); !errors.Is(err, context.Canceled) || took > 10*time.Second { // on a busy machine
		t.Errorf("got %v after %v", err, took)
	}
	if err := unlessDone(t.Context(), func() error { return io.EOF }); err != io.EOF {
		t.Errorf("got %v", err)
	}
}
