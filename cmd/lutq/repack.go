package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"sync/atomic"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/lutq/lutq/formats/hf"
	"github.com/lutq/lutq/formats/lutq"
	"github.com/lutq/lutq/formats/num"
	"github.com/lutq/lutq/quantize/lut"
	"github.com/lutq/lutq/repack"
)

type repackOptions struct {
	target  string
	threads int
	force   bool
	json    bool
}

func newRepackCommand(u *ui) *cobra.Command {
	var o repackOptions
	c := &cobra.Command{
		Use:   "repack MODEL [OUT]",
		Short: "Derive a kernel's tiles from a quantized model",
		Long: `Repack lays the quantized layers of MODEL out as a kernel reads them, and writes
them to the folder OUT, by default one named after the model's digest in the
user's cache folder. Tiles are a cache: they can be deleted, and made again from
MODEL. Every layer is turned back and compared before it is written.

For the target cpu a layer P becomes P.panels and P.panel_scales (bytes in
16-row panels; the documentation of package repack has the layout bit by bit)
and P.codebook.`,
		Args: cobra.RangeArgs(1, 2),
		RunE: func(c *cobra.Command, args []string) error {
			out := ""
			if len(args) == 2 {
				out = args[1]
			}
			return u.repack(c.Context(), args[0], out, o)
		},
	}
	f := c.Flags()
	f.StringVar(&o.target, "target", "cpu", "target `NAME`: cpu")
	f.IntVar(&o.threads, "threads", 0, "`N` workers (default one for each processor)")
	f.BoolVar(&o.force, "force", false, "replace OUT if it exists")
	f.BoolVar(&o.json, "json", false, "print the result as JSON")
	return c
}

func (u *ui) repack(ctx context.Context, dir, out string, o repackOptions) (err error) {
	if o.target != "cpu" {
		return usageError{fmt.Errorf("unknown target %q: want cpu", o.target)}
	}
	m, err := lutq.Open(dir)
	if err != nil {
		return err
	}
	defer m.Close()
	if out == "" {
		cache, err := os.UserCacheDir()
		if err != nil {
			return err
		}
		out = filepath.Join(cache, "lutq", "tiles", m.Config().SHA256+"-"+o.target)
	}
	if _, err := os.Stat(out); err == nil && !o.force {
		return hintError{fmt.Errorf("%s: already exists", out), "--force replaces it"}
	}
	if err := os.MkdirAll(filepath.Dir(filepath.Clean(out)), 0o755); err != nil {
		return err
	}
	work, err := os.MkdirTemp(filepath.Dir(filepath.Clean(out)), filepath.Base(out)+".partial-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(work)) }()
	bytes, err := u.writePanels(ctx, m, work, o.threads)
	if err != nil {
		return err
	}
	if err := os.RemoveAll(out); err != nil {
		return err
	}
	if err := os.Rename(work, out); err != nil {
		return err
	}
	if o.json {
		return u.printJSON(struct {
			Output string `json:"output"`
			Target string `json:"target"`
			Layers int    `json:"layers"`
			Bytes  int64  `json:"bytes"`
		}{out, o.target, len(m.Linears()), bytes})
	}
	fmt.Fprintf(u.stdout, "%s: %d layers in panels, %s\n", out, len(m.Linears()), formatBytes(bytes))
	return nil
}

// panelEntries returns the tensors that hold a layer's panels, in the order
// panels, scales, codebook.
func panelEntries(layer string, p *repack.CPUPanels) []hf.Entry {
	return []hf.Entry{
		{Name: layer + ".panels", DType: "U8", Shape: []int{p.PanelCount(), p.PanelBytes()}},
		{Name: layer + ".panel_scales", DType: "U8", Shape: []int{p.PanelCount(), p.PanelScaleBytes()}},
		{Name: layer + lutq.CodebookSuffix, DType: "F32", Shape: []int{1 << p.Bits}},
	}
}

// writePanels writes the panels of every layer to a folder and returns their
// size.
func (u *ui) writePanels(ctx context.Context, m *lutq.Model, dir string, threads int) (int64, error) {
	var entries []hf.Entry
	var total int64
	for _, layer := range m.Linears() {
		tc, f := m.Config().Tensors[layer], m.Format(layer)
		st, err := lut.ParseScaleType(f.ScaleType)
		if err != nil {
			return 0, fmt.Errorf("%s: %w", layer, err)
		}
		shape := &repack.CPUPanels{N: tc.Shape[0], K: tc.Shape[1], Bits: f.Bits, Group: f.Columns(tc.Shape[1]), ScaleType: st}
		for _, e := range panelEntries(layer, shape) {
			size, err := e.Bytes()
			if err != nil {
				return 0, err
			}
			total += size
			entries = append(entries, e)
		}
	}
	w, err := hf.NewWriter(dir, entries, hf.WriterOptions{Metadata: map[string]string{
		"format": "lutq-panels", "version": "1", "sha256": m.Config().SHA256,
	}})
	if err != nil {
		return 0, err
	}
	defer w.Abort() // does nothing after Commit
	bar := u.startProgress("repacking", total, true)
	defer bar.finish()
	var done atomic.Int64
	group, ctx := errgroup.WithContext(ctx)
	if threads <= 0 {
		threads = runtime.GOMAXPROCS(0)
	}
	group.SetLimit(threads)
	for _, layer := range m.Linears() {
		group.Go(func() error {
			if err := ctx.Err(); err != nil {
				return err
			}
			n, err := writeLayerPanels(w, m, layer)
			if err != nil {
				return fmt.Errorf("%s: %w", layer, err)
			}
			bar.set(done.Add(n), layer)
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		return 0, err
	}
	return total, w.Commit()
}

// writeLayerPanels lays one layer out, checks it, and writes it.
func writeLayerPanels(w *hf.Writer, m *lutq.Model, layer string) (int64, error) {
	mat, err := m.Linear(layer)
	if err != nil {
		return 0, err
	}
	p, err := repack.CPU(mat)
	if err != nil {
		return 0, err
	}
	back, err := p.Matrix()
	if err != nil {
		return 0, err
	}
	if string(back.Codes) != string(mat.Codes) || string(back.Scales) != string(mat.Scales) {
		return 0, errors.New("the panels do not turn back into the layer")
	}
	table := make([]byte, 4*len(p.Codebook))
	num.EncodeF32(table, p.Codebook)
	for i, data := range [][]byte{p.Panels, p.Scales, table} {
		if err := w.WriteAt(panelEntries(layer, p)[i].Name, data, 0); err != nil {
			return 0, err
		}
	}
	return p.Bytes(), nil
}
