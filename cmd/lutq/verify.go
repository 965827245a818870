package main

import (
	"context"
	"fmt"
	"runtime"

	"github.com/spf13/cobra"

	"github.com/lutq/lutq/formats/hf"
	"github.com/lutq/lutq/formats/lutq"
)

func newVerifyCommand(u *ui) *cobra.Command {
	var original string
	var threads int
	var asJSON bool
	c := &cobra.Command{
		Use:   "verify MODEL",
		Short: "Check a quantized model",
		Long: `Verify reads all of the quantized model MODEL and recomputes what can be
recomputed: the shape and size of every tensor, tables and scales that are
numbers, unused bits that are zero, and the SHA-256 over what was quantized.
With --against it also recomputes every layer's error, checks that each code is
the nearest one (method rtn), and that all other tensors equal the original's.

Exit code 3 means that something does not hold.`,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: folders(1),
		RunE: func(c *cobra.Command, args []string) error {
			return u.verify(c.Context(), args[0], original, threads, asJSON)
		},
	}
	c.Flags().StringVar(&original, "against", "", "the model `FOLDER` that MODEL was made from")
	c.Flags().Var(newNumber(&threads, 0, 0, 0), "threads", "`N` workers (default one for each processor)")
	c.Flags().BoolVar(&asJSON, "json", false, "print the result as JSON")
	return c
}

func (u *ui) verify(ctx context.Context, dir, original string, threads int, asJSON bool) error {
	m, err := lutq.Open(dir)
	if err != nil {
		return err
	}
	defer m.Close()
	if threads <= 0 {
		threads = runtime.GOMAXPROCS(0)
	}
	total := len(m.Linears())
	o := lutq.VerifyOptions{Threads: threads}
	if original != "" {
		if o.Original, err = hf.Open(original); err != nil {
			return err
		}
		defer o.Original.Close()
		total = len(o.Original.Tensors())
	}
	bar := u.startProgress("verifying", int64(total), false)
	done := int64(0)
	o.Progress = func(tensor string) {
		done++
		bar.set(done, tensor)
	}
	r, err := m.Verify(ctx, o)
	bar.finish()
	if err != nil {
		return err
	}
	if asJSON {
		err = u.printJSON(struct {
			OK       bool     `json:"ok"`
			Layers   int      `json:"layers"`
			SHA256   string   `json:"sha256"`
			Problems []string `json:"problems"`
		}{len(r.Problems) == 0, r.Layers, r.SHA256, append([]string{}, r.Problems...)})
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
	if n := len(r.Problems); n > 0 {
		return checkError{fmt.Errorf("%s: %d problems", dir, n)}
	}
	if !asJSON {
		return u.printLine("%s: %d layers are as they should be, sha256 %s", dir, r.Layers, r.SHA256)
	}
	return nil
}
