package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"sync/atomic"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/lutq/lutq/formats/folder"
	"github.com/lutq/lutq/formats/hf"
	"github.com/lutq/lutq/formats/input"
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

	noVerify bool
}

func newRepackCommand(u *ui) *cobra.Command {
	var o repackOptions
	c := &cobra.Command{
		Use:   "repack MODEL [OUT]",
		Short: "Derive a kernel's tiles from a quantized model",
		Long: withLimits(`Repack lays the quantized layers of MODEL out as a kernel reads them, and writes
them to the folder OUT, by default one named after the model's digest in the
user's cache folder. Tiles are a cache: they can be deleted, and made again from
MODEL. Every layer is checked by the SHA-256 that it was written with, unless
--no-verify is given, and turned back and compared before its tiles are written.

For the target cpu a layer P becomes P.panels and P.panel_scales, bytes in
16-row panels. For the target cuda it becomes P.tiles and P.tile_scales, bytes
in 16-row tiles, the same for every NVIDIA GPU. Both have P.codebook besides.
The documentation of package repack has the layouts bit by bit.`, input.Config, input.Index, input.Header),
		Args:              cobra.RangeArgs(1, 2),
		ValidArgsFunction: folders(2),
		RunE: func(c *cobra.Command, args []string) error {
			out := ""
			if len(args) == 2 {
				out = args[1]
			}
			return u.repack(c.Context(), args[0], out, o)
		},
	}
	f := c.Flags()
	f.Var(newWord(&o.target, "cpu", slices.Sorted(maps.Keys(targets()))...), "target", "target `NAME`: cpu or cuda")
	f.Var(newNumber(&o.threads, 0, 0, maxThreads), "threads", "`N` workers (default one for each processor)")
	f.BoolVar(&o.force, "force", false, "replace OUT if lutq wrote it")
	f.BoolVar(&o.noVerify, "no-verify", false, "do not check MODEL while reading it")
	f.BoolVar(&o.json, "json", false, "print the result as JSON")
	return c
}

func (u *ui) repack(ctx context.Context, dir, out string, o repackOptions) (err error) {
	target := targets()[o.target]
	defer func() { err = hintDiffers(err) }()
	m, err := openContainer(dir, o.noVerify)
	if err != nil {
		return err
	}
	defer m.Close()
	if err := checkMemory(m.Checkpoint(), false); err != nil {
		return err
	}
	if out == "" {
		cache, err := os.UserCacheDir()
		if err != nil {
			return err
		}
		out = filepath.Join(cache, "lutq", "tiles", m.Config().SHA256+"-"+o.target)
		if err := input.Private(filepath.Dir(out)); err != nil {
			return hintError{err, "name a folder OUT, or another cache folder with XDG_CACHE_HOME"}
		}
	}
	// A run that was killed is not gone on with: it takes seconds.
	work, err := folder.Create(out, folder.Options{Inputs: []string{dir}, Force: o.force, Plan: "repack"})
	if err != nil {
		return outputHint(err)
	}
	defer func() { err = errors.Join(err, work.Discard()) }() // nothing after Install
	bytes, err := u.writeTiles(ctx, m, target, work.Dir(), o.threads)
	if err != nil {
		return err
	}
	if err := work.Install(); err != nil {
		return outputHint(err)
	}
	if o.json {
		return u.printJSON(struct {
			Output string `json:"output"`
			Target string `json:"target"`
			Layers int    `json:"layers"`
			Bytes  int64  `json:"bytes"`
		}{out, o.target, len(m.Linears()), bytes})
	}
	return u.printLine("%s: %d layers in %s, %s", out, len(m.Linears()), target.unit, formatBytes(bytes))
}

// target is a layout that layers can be given.
type target struct {
	format string // in the files' metadata
	unit   string // what a matrix is cut into
	// entries returns the tensors that hold a layer of the shape and format of
	// m, whose data does not matter.
	entries func(layer string, m *lut.Matrix) []hf.Entry
	// pack lays m out and returns what the tensors hold, in their order, and m
	// made from that again.
	pack func(m *lut.Matrix) (data [][]byte, back *lut.Matrix, err error)
}

func targets() map[string]target {
	return map[string]target{
		"cpu": {
			format: "lutq-panels", unit: "panels",
			entries: func(layer string, m *lut.Matrix) []hf.Entry {
				p := &repack.CPUPanels{N: m.N, K: m.K, Bits: m.Bits, Group: m.Group, ScaleType: m.ScaleType}
				return entries(layer, m.Bits, p.PanelCount(), ".panels", p.PanelBytes(), ".panel_scales", p.PanelScaleBytes())
			},
			pack: func(m *lut.Matrix) ([][]byte, *lut.Matrix, error) {
				p, err := repack.CPU(m)
				if err != nil {
					return nil, nil, err
				}
				back, err := p.Matrix()
				return [][]byte{p.Panels, p.Scales, tableBytes(p.Codebook)}, back, err
			},
		},
		"cuda": {
			format: "lutq-tiles", unit: "tiles",
			entries: func(layer string, m *lut.Matrix) []hf.Entry {
				p := &repack.CUDATiles{N: m.N, K: m.K, Bits: m.Bits, Group: m.Group, ScaleType: m.ScaleType}
				return entries(layer, m.Bits, p.Tiles(), ".tiles", p.TileBytes(), ".tile_scales", p.TileScaleBytes())
			},
			pack: func(m *lut.Matrix) ([][]byte, *lut.Matrix, error) {
				p, err := repack.CUDA(m)
				if err != nil {
					return nil, nil, err
				}
				back, err := p.Matrix()
				return [][]byte{p.Codes, p.Scales, tableBytes(p.Codebook)}, back, err
			},
		},
	}
}

// entries returns the tensors of a layer in a number of panels or tiles: bytes
// of codes and of scales, and the table.
func entries(layer string, bits, count int, codes string, codeBytes int, scales string, scaleBytes int) []hf.Entry {
	return []hf.Entry{
		{Name: layer + codes, DType: "U8", Shape: []int{count, codeBytes}},
		{Name: layer + scales, DType: "U8", Shape: []int{count, scaleBytes}},
		{Name: layer + lutq.CodebookSuffix, DType: "F32", Shape: []int{1 << bits}},
	}
}

func tableBytes(table []float32) []byte {
	b := make([]byte, 4*len(table))
	num.EncodeF32(b, table)
	return b
}

// writeTiles writes every layer in a target's layout to a folder and returns
// their size.
func (u *ui) writeTiles(ctx context.Context, m *lutq.Model, t target, dir string, threads int) (int64, error) {
	var all []hf.Entry
	var total int64
	for _, layer := range m.Linears() {
		tc, f := m.Config().Tensors[layer], m.Format(layer)
		st, err := lut.ParseScaleType(f.ScaleType)
		if err != nil {
			return 0, fmt.Errorf("%s: %w", layer, err)
		}
		shape := &lut.Matrix{N: tc.Shape[0], K: tc.Shape[1], Bits: f.Bits, Group: f.Columns(tc.Shape[1]), ScaleType: st}
		for _, e := range t.entries(layer, shape) {
			size, err := e.Bytes()
			if err != nil {
				return 0, err
			}
			total += size
			all = append(all, e)
		}
	}
	w, err := hf.NewWriter(dir, all, hf.WriterOptions{Metadata: map[string]string{
		"format": t.format, "version": "1", "sha256": m.Config().SHA256,
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
			n, err := writeLayer(w, m, t, layer)
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

// writeLayer lays one layer out, checks it, writes it and returns its size.
func writeLayer(w *hf.Writer, m *lutq.Model, t target, layer string) (int64, error) {
	mat, err := m.Linear(layer)
	if err != nil {
		return 0, err
	}
	data, back, err := t.pack(mat)
	if err != nil {
		return 0, err
	}
	if string(back.Codes) != string(mat.Codes) || string(back.Scales) != string(mat.Scales) {
		return 0, fmt.Errorf("the %s do not turn back into the layer", t.unit)
	}
	var size int64
	for i, e := range t.entries(layer, mat) {
		if err := w.WriteAt(e.Name, data[i], 0); err != nil {
			return 0, err
		}
		size += int64(len(data[i]))
	}
	return size, nil
}
