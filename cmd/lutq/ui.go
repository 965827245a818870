package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/lutq/lutq/formats/input"
	"github.com/lutq/lutq/formats/source"
)

// ui is where a command reads from and prints to: results go to stdout,
// everything else to stderr.
type ui struct {
	stdin  io.Reader
	stdout io.Writer
	stderr io.Writer
	quiet  bool
	all    bool // help has its second view

	columns int // of the terminal that stdout is; 0: it is none

	models map[string]*source.Model // that the command opened, by path

	offline bool

	fetching func(item string) // what is coming beside the work at hand; nil: nobody shows it
	find     finder
}

// stdinOf returns the standard input, which is something of a kind. Reading it
// fails when the context ends: nobody may ever write there.
func (u *ui) stdinOf(ctx context.Context, kind input.Kind) io.Reader {
	return input.Limited(&untilDone{ctx, u.stdin}, kind)
}

// untilDone reads until its context ends.
type untilDone struct {
	ctx context.Context
	r   io.Reader
}

func (u *untilDone) Read(p []byte) (int, error) {
	type result struct {
		data []byte
		err  error
	}
	read := make(chan result, 1)
	go func() {
		data := make([]byte, len(p)) // p is the caller's again when this gives up
		n, err := u.r.Read(data)
		read <- result{data[:n], err}
	}()
	select {
	case r := <-read:
		return copy(p, r.data), r.err
	case <-u.ctx.Done():
		return 0, u.ctx.Err()
	}
}

// unlessDone does f, and returns soon after the context ends even where a step of f takes long: that is left to itself, so
// that f must write nothing that lasts.
func unlessDone(ctx context.Context, f func() error) error {
	const grace = 200 * time.Millisecond
	ended := make(chan error, 1)
	go func() { ended <- f() }()
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
	}
	select {
	case err := <-ended:
		return err
	case <-time.After(grace):
		return ctx.Err()
	}
}

// printJSON prints one object.
func (u *ui) printJSON(v any) error {
	enc := json.NewEncoder(u.stdout)
	enc.SetIndent("", "  ")
	return enc.Encode(v)
}

// note tells of something worth knowing that is no result.
func (u *ui) note(format string, args ...any) {
	if !u.quiet {
		fmt.Fprintf(u.stderr, "lutq: "+format+"\n", args...)
	}
}

// printLine prints a line, of which everything shows as what it is: it may
// hold names from a file.
func (u *ui) printLine(format string, args ...any) error {
	_, err := fmt.Fprintln(u.prose(), input.Printable(fmt.Sprintf(format, args...)))
	return err
}

// visible writes text to w of which each line shows as what it is.
type visible struct{ w io.Writer }

func (v visible) Write(p []byte) (int, error) {
	for line := range bytes.Lines(p) {
		text, end := bytes.CutSuffix(line, []byte("\n"))
		out := input.Printable(string(text))
		if end {
			out += "\n"
		}
		if _, err := io.WriteString(v.w, out); err != nil {
			return 0, err
		}
	}
	return len(p), nil
}

// formatBytes prints a size with three digits and a decimal unit.
func formatBytes(n int64) string {
	const units = "kMGTP"
	v, unit := float64(n), -1
	for v >= 999.5 && unit < len(units)-1 {
		v /= 1000
		unit++
	}
	if unit < 0 {
		return fmt.Sprintf("%d B", n)
	}
	return fmt.Sprintf("%s %cB", digits(v, 3), units[unit])
}

// digits prints v with n significant digits, without an exponent.
func digits(v float64, n int) string {
	if v == 0 || math.IsNaN(v) || math.IsInf(v, 0) {
		return strconv.FormatFloat(v, 'f', -1, 64)
	}
	return strconv.FormatFloat(v, 'f', max(0, n-1-int(math.Floor(math.Log10(math.Abs(v))))), 64)
}

// size is a flag of bytes: a number with an optional unit, kB, MB, GB in powers
// of 1000 and KiB, MiB, GiB of 1024.
type size int64

func (s *size) String() string {
	if *s == 0 {
		return ""
	}
	return strconv.FormatInt(int64(*s), 10)
}

// Type names the flag's value in help texts.
func (s *size) Type() string { return "SIZE" }

// Set implements pflag.Value.
func (s *size) Set(text string) error {
	number := strings.TrimRight(text, "kKMGTiB ")
	unit := strings.TrimSpace(text[len(number):])
	factors := map[string]float64{
		"": 1, "B": 1,
		"k": 1e3, "kB": 1e3, "K": 1e3, "KB": 1e3, "M": 1e6, "MB": 1e6, "G": 1e9, "GB": 1e9, "T": 1e12, "TB": 1e12,
		"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40,
	}
	f, ok := factors[unit]
	v, err := strconv.ParseFloat(strings.TrimSpace(number), 64)
	if !ok || err != nil || !(v > 0) || v*f > 1<<62 {
		return fmt.Errorf("%q is no size: want a number with kB, MB, GB, KiB, MiB or GiB", text)
	}
	*s = size(v * f)
	return nil
}
