package main

import (
	"context"
	"errors"
	"fmt"
	"runtime"

	"github.com/spf13/cobra"

	"github.com/lutq/lutq/formats/input"
	"github.com/lutq/lutq/formats/lutq"
	"github.com/lutq/lutq/formats/source"
)

type verifyOptions struct {
	original    string
	quick, json bool
	threads     int
}

func newVerifyCommand(u *ui) *cobra.Command {
	var o verifyOptions
	c := &cobra.Command{
		Use:   "verify MODEL",
		Short: "Check a quantized model",
		Long: withLimits(`Verify reads all of the quantized model MODEL and names everything that is not
as it was written. Every tensor, the headers and index of the safetensors files,
config.json and every other file have a SHA-256. Verify also names missing and
additional tensors and files. It checks that tables and scales are numbers and
that unused bits are zero. In models that older versions wrote, only quantized
tensors have a SHA-256.

With --against it also recomputes each layer's error. It checks that each code
is the nearest one (method rtn), and that other tensors equal the original's.

With --quick it reads no tensor data: it checks headers, the index, the shape
and size of each tensor, config.json and all other files.

Exit code 3 means that something does not hold.`, input.Config, input.Index, input.Header),
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: folders(1),
		RunE: func(c *cobra.Command, args []string) error {
			return u.verify(c.Context(), args[0], o)
		},
	}
	f := c.Flags()
	f.StringVar(&o.original, "against", "", "compare with `FOLDER`, which MODEL was made from")
	f.BoolVar(&o.quick, "quick", false, "check everything but tensor data")
	f.Var(newNumber(&o.threads, 0, 0, maxThreads), "threads", "`N` workers (default one for each processor)")
	f.BoolVar(&o.json, "json", false, "print the result as JSON")
	return c
}

func (u *ui) verify(ctx context.Context, dir string, o verifyOptions) error {
	if o.quick && o.original != "" {
		return usageError{errors.New("verify: --against compares the tensors, which --quick does not read")}
	}
	model, err := u.open(dir, source.Options{Unchecked: true}) // what does not hold is reported
	if err != nil {
		return err
	}
	m, err := model.Container()
	if err != nil {
		return err
	}
	if !o.quick {
		if err := checkMemory(m.Checkpoint(), false); err != nil {
			return err
		}
	}
	if o.threads <= 0 {
		o.threads = runtime.GOMAXPROCS(0)
	}
	vo := lutq.VerifyOptions{Threads: o.threads, Quick: o.quick}
	if o.original != "" {
		original, err := u.open(o.original, source.Options{})
		if err != nil {
			return err
		}
		if original, err = untransformed(m, model, original); err != nil {
			return err
		}
		if vo.Original, err = original.Stored(); err != nil {
			return err
		}
	}
	bar := u.startProgress("verifying", 1, false)
	vo.Progress = func(done, total int, tensor string) {
		bar.resize(int64(total))
		bar.set(int64(done), tensor)
	}
	r, err := m.Verify(ctx, vo)
	bar.finish()
	if err != nil {
		return err
	}
	digests := m.Config().Digests != nil
	if o.json {
		err = u.printJSON(struct {
			OK       bool     `json:"ok"`
			Layers   int      `json:"layers"`
			Tensors  int      `json:"other_tensors"`
			Files    int      `json:"files"`
			Digests  bool     `json:"digests"` // whether the model has those of everything
			SHA256   string   `json:"sha256,omitempty"`
			Problems []string `json:"problems"`
		}{len(r.Problems) == 0, r.Layers, r.Tensors, r.Files, digests, r.SHA256, append([]string{}, r.Problems...)})
		if err != nil {
			return err
		}
	} else {
		for _, p := range r.Problems {
			if err := u.printLine("%s", p); err != nil {
				return err
			}
		}
	}
	if !digests {
		fmt.Fprintf(u.stderr, "lutq: %s was written without digests of everything: only quantized tensors can be checked, and no other tensor or file\n", dir)
	}
	if n := len(r.Problems); n > 0 {
		return checkError{fmt.Errorf("%s: %d problems", dir, n)}
	}
	if !o.json {
		return u.printLine("%s: %s", dir, verified(r, o.quick))
	}
	return nil
}

// verified says what a report without problems is about.
func verified(r *lutq.Report, quick bool) string {
	if quick && r.Files == 0 {
		return "tensors have the shapes and sizes that they should have; none was read"
	}
	if quick {
		return fmt.Sprintf("headers and %d files are as they should be; no tensor was read", r.Files)
	}
	what := fmt.Sprintf("%d layers", r.Layers)
	if r.Tensors > 0 {
		what += fmt.Sprintf(", %d other tensors", r.Tensors)
	}
	if r.Files > 0 {
		what += fmt.Sprintf(", %d files", r.Files)
	}
	return what + " are as they should be, sha256 " + r.SHA256
}
