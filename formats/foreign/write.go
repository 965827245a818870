package foreign

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"

	"golang.org/x/sync/errgroup"

	"github.com/lutq/lutq/formats/hf"
	"github.com/lutq/lutq/formats/input"
	"github.com/lutq/lutq/formats/outdir"
	"github.com/lutq/lutq/formats/weight"
)

// ConfigName is the file that says how a folder's weights are stored.
const ConfigName = "config.json"

// Packer is a format in which layers are tensors of a Hugging Face folder of their own.
type Packer interface {
	// Entries returns the tensors that store a layer, which is not [Dense].
	Entries(l *Layer) ([]hf.Entry, error)
	// Pack returns their data.
	Pack(l *Layer, s Source) ([][]byte, error)
}

// Folder is what a Hugging Face folder has besides tensors.
type Folder struct {
	Edits    []Member          // to config.json
	Files    map[string][]byte // that are added
	Metadata map[string]string // of the shards; nil is {"format": "pt"}
	// Kept is the type that a kept tensor is stored in; nil leaves all as they are.
	Kept func(t *hf.Tensor) hf.DType
	// Turn tells of kept stacks of matrices whose rows are to be columns; nil is for none.
	Turn func(t *hf.Tensor) bool
	// Skip tells of kept tensors that are written with a layer; nil is for none.
	Skip func(t *hf.Tensor) bool
}

// WriteFolder writes a model as a Hugging Face folder: layers as the packer has them, kept tensors
// bit for bit, side files as they are, and config.json as it is but for the edits.
func WriteFolder(ctx context.Context, dir string, s Source, p Packer, f Folder) error {
	m := s.Model()
	w := &folderWriter{source: s, packer: p, kept: f.Kept, turn: f.Turn}
	copied := m.Kept
	if f.Skip != nil {
		copied = slices.DeleteFunc(slices.Clone(copied), f.Skip)
	}
	entries, err := w.plan(m, copied)
	if err != nil {
		return err
	}
	metadata, err := f.metadata(m)
	if err != nil {
		return err
	}
	if w.writer, err = hf.NewWriter(dir, entries, hf.WriterOptions{Metadata: metadata}); err != nil {
		return err
	}
	defer w.writer.Abort() // does nothing after Commit
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(runtime.GOMAXPROCS(0))
	for _, l := range m.Layers {
		group.Go(func() error { return w.layer(ctx, l) })
	}
	for _, t := range copied {
		group.Go(func() error { return w.keep(ctx, t) })
	}
	if err := group.Wait(); err != nil {
		return err
	}
	if err := w.writer.Commit(); err != nil {
		return err
	}
	return writeFiles(dir, m, f)
}

// OriginKey is the key of the shards' metadata under which a JSON object has the [Origin] of each
// layer.
const OriginKey = "lutq"

// Origin is what a layer had in the container where the target may have something else that means
// the same, so that the container can be made again.
type Origin struct {
	ScaleType weight.ScaleType `json:"scale_type"`
	Group     int              `json:"group"` // columns that share a scale, or [weight.RowGroup]
	Top       float32          `json:"top"`   // the largest magnitude in the table
}

// metadata returns that of the shards.
func (f Folder) metadata(m *Model) (map[string]string, error) {
	all := maps.Clone(f.Metadata)
	if all == nil {
		all = map[string]string{"format": "pt"}
	}
	origins := make(map[string]Origin)
	for _, l := range m.Layers {
		if l.As == AsIs && len(l.Table) > 0 {
			origins[l.Name] = Origin{l.Stored.ScaleType, l.Stored.Group, max(-slices.Min(l.Table), slices.Max(l.Table))}
		}
	}
	if len(origins) == 0 {
		return all, nil
	}
	text, err := json.Marshal(origins)
	all[OriginKey] = string(text)
	return all, err
}

// writeFiles writes what is no tensor.
func writeFiles(dir string, m *Model, f Folder) error {
	for _, name := range m.Side {
		if f.Files[name] != nil {
			continue
		}
		in, err := m.openFile(name)
		if err != nil {
			return err
		}
		if _, err := outdir.Copy(filepath.Join(dir, name), in); err != nil {
			return err
		}
	}
	config, err := Edit(m.Config, f.Edits...)
	if err != nil {
		return fmt.Errorf("%s: %w", filepath.Join(m.Dir, ConfigName), err)
	}
	if err := os.WriteFile(filepath.Join(dir, ConfigName), config, 0o666); err != nil {
		return err
	}
	for name, data := range f.Files {
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o666); err != nil {
			return err
		}
	}
	return nil
}

type folderWriter struct {
	source Source
	packer Packer
	kept   func(t *hf.Tensor) hf.DType
	turn   func(t *hf.Tensor) bool
	writer *hf.Writer
}

// plan returns all tensors of the folder: the layers', and those that are copied.
func (w *folderWriter) plan(m *Model, copied []*hf.Tensor) ([]hf.Entry, error) {
	var all []hf.Entry
	for _, l := range m.Layers {
		entries, err := w.entries(l)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", l.Name, err)
		}
		all = append(all, entries...)
	}
	for _, t := range copied {
		e := hf.Entry{Name: t.Name, DType: w.dtype(t), Shape: t.Shape}
		if w.turns(t) {
			e.Shape = []int{t.Shape[0], t.Shape[2], t.Shape[1]}
		}
		all = append(all, e)
	}
	return all, nil
}

func (w *folderWriter) entries(l *Layer) ([]hf.Entry, error) {
	if l.As != Dense {
		return w.packer.Entries(l)
	}
	t := hf.DType(w.source.Model().DType.DType())
	return []hf.Entry{{Name: l.Tensor, DType: t, Shape: l.Shape}}, nil
}

// dtype returns the type that a kept tensor is stored in.
func (w *folderWriter) dtype(t *hf.Tensor) hf.DType {
	if w.kept == nil {
		return t.DType
	}
	return w.kept(t)
}

// layer writes a layer's tensors.
func (w *folderWriter) layer(ctx context.Context, l *Layer) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if l.As == Dense {
		if err := w.dense(ctx, l); err != nil {
			return fmt.Errorf("%s: %w", l.Name, err)
		}
		return nil
	}
	entries, err := w.packer.Entries(l)
	if err != nil {
		return fmt.Errorf("%s: %w", l.Name, err)
	}
	data, err := w.packer.Pack(l, w.source)
	if err != nil {
		return fmt.Errorf("%s: %w", l.Name, err)
	}
	for i, e := range entries {
		if size, err := e.Bytes(); err != nil || size != int64(len(data[i])) {
			return errors.Join(err, fmt.Errorf("%s takes %d bytes: %d are to be written", e.Name, size, len(data[i])))
		}
		if err := w.writer.WriteAt(e.Name, data[i], 0); err != nil {
			return err
		}
		w.source.Wrote(int64(len(data[i])), l.Name)
	}
	return nil
}

// denseRows is how many weights are written at a time.
const denseRows = 1 << 18

// dense writes the weights that a layer stands for.
func (w *folderWriter) dense(ctx context.Context, l *Layer) error {
	mat, err := w.source.Weights(l)
	if err != nil {
		return err
	}
	t := w.source.Model().DType
	rows := l.N
	if l.Experts > 0 {
		rows /= l.Experts
	}
	// A matrix of a stack that is stored transposed is turned as a whole.
	step := max(1, min(denseRows/l.K, rows))
	if l.Transposed {
		step = rows
	}
	values, turned := make([]float32, step*l.K), []float32(nil)
	data, read := make([]byte, step*l.K*t.Size()), weight.NewReader(mat)
	for n := 0; n < l.N; n += step {
		if err := ctx.Err(); err != nil {
			return err
		}
		step := min(step, l.N-n)
		for i := range step {
			copy(values[i*l.K:], read.Row(n+i))
		}
		v := values[:step*l.K]
		if l.Transposed {
			turned = transposed(turned, v, step, l.K)
			v = turned
		}
		d := data[:len(v)*t.Size()]
		t.Encode(d, v)
		if i := hf.DType(t.DType()).FirstNotFinite(d); i >= 0 {
			return fmt.Errorf("weight %d, %v, is beyond %v", n*l.K+i, v[i], t)
		}
		if err := w.writer.WriteAt(l.Tensor, d, int64(n)*int64(l.K)*int64(t.Size())); err != nil {
			return err
		}
		w.source.Wrote(int64(len(d)), l.Name)
	}
	return nil
}

// transposed returns the matrix [n, k] of values as [k, n], in dst where that has room.
func transposed(dst, values []float32, n, k int) []float32 {
	if len(dst) < len(values) {
		dst = make([]float32, len(values))
	}
	for i := range n {
		for j, v := range values[i*k : (i+1)*k] {
			dst[j*n+i] = v
		}
	}
	return dst[:len(values)]
}

// keep copies a tensor, or its values in another type.
func (w *folderWriter) keep(ctx context.Context, t *hf.Tensor) error {
	to := w.dtype(t)
	if w.turns(t) {
		return w.keepTurned(ctx, t, to)
	}
	if to == t.DType {
		return w.source.Copy(t, func(p []byte, off int64) error {
			if err := ctx.Err(); err != nil {
				return err
			}
			w.source.Wrote(int64(len(p)), t.Name)
			return w.writer.WriteAt(t.Name, p, off)
		})
	}
	st, err := ScaleType(to)
	if err != nil {
		return fmt.Errorf("%s: %w", t.Name, err)
	}
	values, data := make([]float32, min(t.Elements(), denseRows)), make([]byte, min(t.Elements(), denseRows)*int64(st.Size()))
	for at := int64(0); at < t.Elements(); at += int64(len(values)) {
		if err := ctx.Err(); err != nil {
			return err
		}
		v := values[:min(int64(len(values)), t.Elements()-at)]
		if err := t.ReadFloat32(v, at); err != nil {
			return err
		}
		d := data[:len(v)*st.Size()]
		st.Encode(d, v)
		if err := w.writer.WriteAt(t.Name, d, at*int64(st.Size())); err != nil {
			return err
		}
		w.source.Wrote(int64(len(d)), t.Name)
	}
	return nil
}

// turns reports whether a tensor is a stack whose matrices are turned.
func (w *folderWriter) turns(t *hf.Tensor) bool {
	return w.turn != nil && len(t.Shape) == 3 && w.turn(t)
}

// keepTurned writes a stack of matrices with their rows for columns.
func (w *folderWriter) keepTurned(ctx context.Context, t *hf.Tensor, to hf.DType) error {
	st, err := ScaleType(to)
	if err != nil {
		return fmt.Errorf("%s: %w", t.Name, err)
	}
	n, k := t.Shape[1], t.Shape[2]
	values, turned, data := make([]float32, n*k), []float32(nil), make([]byte, n*k*st.Size())
	for e := range int64(t.Shape[0]) {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := t.ReadFloat32(values, e*int64(len(values))); err != nil {
			return err
		}
		turned = transposed(turned, values, n, k)
		st.Encode(data, turned)
		if err := w.writer.WriteAt(t.Name, data, e*int64(len(data))); err != nil {
			return err
		}
		w.source.Wrote(int64(len(data)), t.Name)
	}
	return nil
}

// JSON returns a value as a file of its own.
func JSON(v any) ([]byte, error) {
	text, err := json.MarshalIndent(v, "", "  ")
	return append(text, '\n'), err
}

// ReadFile reads a file beside the weights, which is something of a kind. The error of one that is not there wraps
// [fs.ErrNotExist].
func (m *Model) ReadFile(name string, kind input.Kind) ([]byte, error) {
	in, err := m.openFile(name)
	if err != nil {
		return nil, err
	}
	defer in.Close()
	data, err := input.ReadAll(in, kind, 0)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", filepath.Join(m.Dir, name), err)
	}
	return data, nil
}

func (m *Model) openFile(name string) (io.ReadCloser, error) {
	if m.OpenFile != nil {
		return m.OpenFile(name)
	}
	return input.Open(filepath.Join(m.Dir, name))
}
