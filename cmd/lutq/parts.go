package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/pflag"

	"github.com/lutq/lutq/calib/fit"
	"github.com/lutq/lutq/quantize"
)

// partOptions are the flags of work that several processes share.
type partOptions struct {
	part  quantize.Part
	merge bool
}

func (o *partOptions) register(f *pflag.FlagSet) {
	f.Var((*partFlag)(&o.part), "part", "make `I/N` of OUT alone: lutq help cluster")
	f.BoolVar(&o.merge, "merge", false, "make OUT of the parts that --part made")
	setLater(f, "part", "merge")
}

// one reports whether one part is to be made.
func (o *partOptions) one() bool { return o.part.N > 0 }

// on reports whether the work is shared.
func (o *partOptions) on() bool { return o.one() || o.merge }

// flag names the flag that says so.
func (o *partOptions) flag() string {
	if o.merge {
		return "--merge"
	}
	return "--part"
}

// partFlag implements pflag.Value.
type partFlag quantize.Part

func (p *partFlag) String() string {
	if p.N == 0 {
		return ""
	}
	return quantize.Part(*p).String()
}

func (p *partFlag) Set(s string) error {
	part, err := quantize.ParsePart(s)
	*p = partFlag(part)
	return err
}

func (*partFlag) Type() string { return "part" }

// checkParts refuses what cannot be made in parts, and what differs from machine to machine.
func (o *quantizeOptions) checkParts(r quantize.Recipe, after evaluation) error {
	flag := o.parts.flag()
	const whole = "%s: %s, which parts do not have"
	switch {
	case !o.parts.on():
		return nil
	case o.parts.one() && o.parts.merge:
		return usage("--part and --merge do not go together: parts first, and then, without --part, --merge")
	case o.dryRun, o.learn.control:
		return usage("%s does not go with --dry-run and --learn-control", flag)
	case o.shardsFrom != "":
		return usage("%s does not go with --shards-from", flag)
	case o.parts.one() && after.wanted():
		return usage("--part: a part cannot be evaluated: --eval-text goes with --merge")
	case o.learned(r):
		return usage(whole, flag, "scales are learned on the whole model")
	case o.mixed():
		return hintError{
			usage(whole, flag, "bits are mixed by what the whole model loses by them"),
			"--dry-run --json mixes them once, and prints under \"recipe\" what parts take with --recipe FILE",
		}
	case o.transform.name != "":
		return usage(whole, flag, "--transform changes the whole model")
	case !r.Calibrated():
		return nil
	case o.calib.stream != fit.StreamFloat:
		return hintError{
			usage("%s: layers are fitted to what those before them make of the text, which are other parts'", flag),
			"--stream float fits each to the original model, by itself: lutq help cluster",
		}
	case o.calib.device == "auto":
		return usage("%s: all parts and --merge name the same device: --device cpu or --device cuda", flag)
	case o.calib.self():
		return usage("%s: --calib self is written anew on each machine: name a file, or bundled", flag)
	}
	return nil
}

// partJSON is what quantize --part prints as JSON.
type partJSON struct {
	Part    string  `json:"part"`
	Files   int     `json:"files"`
	Found   int     `json:"found"` // of them, that were there
	Layers  int     `json:"layers"`
	Bytes   int64   `json:"bytes_out"`
	Done    int     `json:"files_done"` // of all parts
	All     int     `json:"files_of_all"`
	PeakRSS int64   `json:"peak_rss_bytes"`
	Seconds float64 `json:"seconds"`
}

// part makes a part of a plan.
func (u *ui) part(ctx context.Context, plan *quantize.Plan, out string, ro quantize.RunOptions, o quantizeOptions, begin time.Time) error {
	bar := u.startProgress("part "+o.parts.part.String(), plan.PartBytes(o.parts.part), true)
	defer bar.finish()
	ro.Progress = func(done int64, tensor string) { bar.set(done, tensor) }
	ro.Resumed = func(files int) { u.note("%d files of the part are there", files) }
	res, err := plan.RunPart(ctx, out, o.parts.part, ro)
	if err != nil {
		if errors.Is(err, context.Canceled) {
			return hintError{err, "the same command makes what is left of the part"}
		}
		return quantizeHint(err, out)
	}
	bar.finish()
	done := partJSON{res.Part.String(), res.Files, res.Found, res.Layers, res.Bytes, res.Done, res.All, peakRSS(), time.Since(begin).Seconds()}
	if o.json {
		return u.printJSON(done)
	}
	return u.facts(func(w io.Writer) {
		fmt.Fprintf(w, "part\t%s: %d files", done.Part, done.Files)
		if done.Found > 0 {
			fmt.Fprintf(w, ", %d of them were there", done.Found)
		}
		fmt.Fprintf(w, "\nmade\t%d layers, %s\n", done.Layers, formatBytes(done.Bytes))
		fmt.Fprintf(w, "all parts\t%d of %d files are there", done.Done, done.All)
		if done.Done == done.All {
			fmt.Fprint(w, ": --merge makes OUT of them")
		}
		fmt.Fprintf(w, "\ntime, memory\t%.1f s, %s\n", done.Seconds, formatBytes(done.PeakRSS))
	})
}

// mergeParts makes an output of its parts.
func (u *ui) mergeParts(ctx context.Context, plan *quantize.Plan, out string, ro quantize.RunOptions) (*quantize.Result, error) {
	bar := u.startProgress("merging", plan.Totals().BytesIn, true)
	defer bar.finish()
	ro.Progress = func(done int64, tensor string) { bar.set(done, tensor) }
	res, err := plan.Merge(ctx, out, ro)
	var missing *quantize.MissingError
	var damaged *quantize.DamagedError
	switch {
	case errors.As(err, &damaged):
		return nil, checkError{damaged} // and not of which file of MODEL it was made
	case errors.As(err, &missing):
		return nil, checkError{err}
	}
	return res, err
}
