package lutq

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sync/errgroup"

	"github.com/lutq/lutq/formats/hf"
	"github.com/lutq/lutq/formats/outdir"
	"github.com/lutq/lutq/formats/weight"
)

// VerifyOptions say how a container is verified.
type VerifyOptions struct {
	// Original, if set, is what the container was made from: errors are
	// recomputed, codes of the methods rtn, bcq and magnitude must be nearest ones, and the
	// tensors that were not quantized must be equal.
	Original *hf.Checkpoint
	Quick    bool // leave the data of tensors alone
	Threads  int  // 0: one worker
	// Progress, if set, is told of every verified layer and other tensor, and how
	// many there are. It is called from several goroutines, one at a time.
	Progress func(done, total int, tensor string)
}

// Report is what verification found.
type Report struct {
	SHA256   string   // recomputed, "" by a quick one
	Layers   int      // quantized ones, verified
	Tensors  int      // other ones, verified
	Files    int      // verified: config.json, the index and side files
	Problems []string // one line each; none if all is well
}

// Verify reads all of a container and checks what can be checked: every tensor,
// header and file has its digest, and none is missing or was added; tables and
// scales are numbers, the bits after a row's last code are zero, the digest of
// what was quantized is the one in the configuration, and what
// [VerifyOptions.Original] adds. Of a container without digests it checks what
// was quantized. What does not hold is a problem in the report; an error means
// that the verification itself failed.
func (m *Model) Verify(ctx context.Context, o VerifyOptions) (*Report, error) {
	v := &verifier{model: m, opt: o}
	if err := v.frame(); err != nil {
		return nil, err
	}
	if o.Quick {
		return v.finish(), nil
	}
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(max(o.Threads, 1))
	// Copied tensors first: among them are the largest, which one worker reads alone.
	copied := v.copies()
	v.total = len(copied) + len(m.layers)
	for _, t := range copied {
		group.Go(func() error {
			if err := ctx.Err(); err != nil {
				return err
			}
			return v.copied(t)
		})
	}
	for _, layer := range m.layers {
		group.Go(func() error {
			if err := ctx.Err(); err != nil {
				return err
			}
			return v.layer(layer)
		})
	}
	if o.Original != nil {
		for _, t := range o.Original.Tensors() {
			_, copied := m.ckpt.Tensor(t.Name)
			if !copied && !m.quantized(t.Name) {
				v.problem("%s is missing from the container", t.Name)
			}
		}
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	v.report.Layers, v.report.Tensors = len(m.layers), len(copied)
	v.report.SHA256 = Digest(v.sums)
	if v.report.SHA256 != m.config.SHA256 && !v.named {
		v.problem("the digest is %s: the configuration says %s", v.report.SHA256, m.config.SHA256)
	}
	return v.finish(), nil
}

type verifier struct {
	model *Model
	opt   VerifyOptions
	total int // of layers and other tensors

	mu     sync.Mutex
	done   int
	sums   []TensorSum
	named  bool // some tensor differs from what was written
	report Report
}

func (v *verifier) problem(format string, args ...any) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.report.Problems = append(v.report.Problems, fmt.Sprintf(format, args...))
}

// finish returns the report.
func (v *verifier) finish() *Report {
	slices.Sort(v.report.Problems)
	return &v.report
}

// step notes a verified layer or other tensor.
func (v *verifier) step(name string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.done++
	if v.opt.Progress != nil {
		v.opt.Progress(v.done, v.total, name)
	}
}

// add notes the sum of a part of a layer.
func (v *verifier) add(s TensorSum) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.sums = append(v.sums, s)
}

// frame verifies everything but the data of tensors.
func (v *verifier) frame() error {
	m := v.model
	problems, err := m.frame()
	if err != nil {
		return err
	}
	if d := m.config.Digests; d != nil {
		var tensors []string
		for _, t := range m.ckpt.Tensors() {
			tensors = append(tensors, t.Name)
		}
		problems = append(problems, otherNames(tensors, d.Tensors)...)
		files, err := m.files()
		if err != nil {
			return err
		}
		problems = append(problems, files...)
		v.report.Files = len(d.Files) + 1
	}
	for _, p := range problems {
		v.problem("%v", p)
	}
	return nil
}

// files returns what differs from what was written among the index and the
// side files, and what else lies in the folder. Of hidden files only the mark
// counts, which lists the others. A model card may be edited, and left out, unless an older lutq wrote a digest of it.
func (m *Model) files() (problems []error, err error) {
	entries, err := os.ReadDir(m.ckpt.Dir())
	if err != nil {
		return nil, err
	}
	written := m.config.Digests.Files
	_, cardWritten := written[CardName]
	var found []string
	for _, e := range entries {
		name := e.Name()
		if name == configName || strings.HasPrefix(name, ".") || name == CardName && !cardWritten || slices.Contains(m.ckpt.Shards(), name) {
			continue
		}
		found = append(found, name)
	}
	problems = otherNames(found, written)
	for _, name := range found {
		want, ok := written[name]
		if !ok {
			continue
		}
		path := filepath.Join(m.ckpt.Dir(), name)
		if info, err := os.Stat(path); err != nil || !info.Mode().IsRegular() {
			problems = append(problems, differs(name)) // a dangling link, a folder, a pipe
			continue
		}
		got, err := FileSum(path)
		if err != nil {
			return nil, err
		}
		if got != want {
			problems = append(problems, differs(name))
		}
	}
	names := append(slices.Collect(maps.Keys(written)), configName)
	names = append(names, m.ckpt.Shards()...)
	sound, err := outdir.SoundMark(m.ckpt.Dir(), names)
	if !sound && err == nil && !cardWritten {
		sound, err = outdir.SoundMark(m.ckpt.Dir(), append(names, CardName))
	}
	if !sound {
		problems = append(problems, differs(outdir.MarkName))
	}
	return problems, err
}

// copies returns the tensors that were not quantized, as far as there is
// something to hold them against.
func (v *verifier) copies() (ts []*hf.Tensor) {
	if v.model.config.Digests == nil && v.opt.Original == nil {
		return nil
	}
	for _, t := range v.model.ckpt.Tensors() {
		if v.model.LayerOf(t.Name) == "" {
			ts = append(ts, t)
		}
	}
	return ts
}

// check holds a tensor's digest against the one that was written, where there
// is one: what was not written has been named.
func (v *verifier) check(t *hf.Tensor, sum Sum) {
	d := v.model.config.Digests
	if d == nil {
		return
	}
	if _, ok := d.Tensors[t.Name]; !ok {
		return
	}
	if err := v.model.check(t, sum); err != nil {
		v.problem("%v", err)
		v.mu.Lock()
		defer v.mu.Unlock()
		v.named = true
	}
}

func (v *verifier) layer(layer string) error {
	defer v.step(layer)
	parts := v.model.parts[layer]
	data := make([][]byte, len(parts))
	for i, t := range parts {
		if t == nil {
			continue
		}
		var err error
		if data[i], err = readAll(t); err != nil {
			return err
		}
		sum := Sum(sha256.Sum256(data[i]))
		v.check(t, sum)
		v.add(TensorSum{Entry: hf.Entry{Name: t.Name, DType: t.DType, Shape: t.Shape}, Sum: sum})
	}
	mat, err := v.model.matrix(layer, data)
	if err != nil {
		v.problem("%v", err)
		return nil
	}
	if err := mat.CheckPadding(); err != nil {
		v.problem("%s: %v", layer, err)
	}
	if v.opt.Original == nil {
		return nil
	}
	return v.against(layer, mat)
}

// errorSlack is by how much a recomputed relative error may differ from the
// one noted, which is rounded and was summed in another order.
const errorSlack = 1e-4

// against holds a layer against the weights that it was made from.
func (v *verifier) against(layer string, m weight.Matrix) error {
	tc := v.model.config.Tensors[layer]
	name, shape := tc.Original(layer)
	t, ok := v.opt.Original.Tensor(name)
	if !ok {
		v.problem("%s is not in the original", name)
		return nil
	}
	if !slices.Equal(t.Shape, shape) {
		v.problem("%s has shape %v: the original's is %v", layer, shape, t.Shape)
		return nil
	}
	nearest := slices.Contains([]string{"rtn", "bcq", "magnitude"}, v.model.Spec(layer).Method)
	n, k := m.Shape()
	unit := 1 // rows that are read together
	if tc.Transposed {
		unit = n / tc.Experts
	}
	rows, read := make([]float32, unit*k), weight.NewReader(m)
	var energy, squared float64
	for n := range n {
		if n%unit == 0 {
			at := int64(n) * int64(k)
			original := func() error { return t.ReadFloat32(rows, at) }
			if tc.Transposed {
				original = func() error { return t.ReadTransposed(rows, at, k, unit) }
			}
			if err := original(); err != nil {
				return err
			}
		}
		w := rows[n%unit*k:][:k]
		for i, v := range read.Row(n) {
			d := float64(w[i]) - float64(v)
			energy += float64(w[i]) * float64(w[i])
			squared += d * d
		}
		if nearest {
			if k := m.Farther(n, w); k >= 0 {
				v.problem("%s: the code of weight [%d, %d] is not the nearest", layer, n, k)
				return nil
			}
		}
	}
	var rel float64
	if energy > 0 {
		rel = math.Sqrt(squared / energy)
	}
	if noted := v.model.config.Tensors[layer].Error; !(math.Abs(rel-noted) <= errorSlack*max(rel, noted)) {
		v.problem("%s has a relative error of %.6g: the configuration says %.6g", layer, rel, noted)
	}
	return nil
}

// copied verifies a tensor that was not quantized, by its digest and against
// the original.
func (v *verifier) copied(t *hf.Tensor) error {
	defer v.step(t.Name)
	original := v.original(t)
	differs := false
	back := make([]byte, min(t.Bytes(), 1<<20))
	sum, err := SumOf(t.Bytes(), func(p []byte, off int64) error {
		if err := readFull(t, p, off); err != nil || original == nil {
			return err
		}
		err := readFull(original, back[:len(p)], off)
		differs = differs || !bytes.Equal(p, back[:len(p)])
		return err
	})
	if err != nil {
		return err
	}
	v.check(t, sum)
	if differs {
		v.problem("%s differs from the original", t.Name)
	}
	return nil
}

// original returns what a copied tensor is a copy of, nil where that is not
// known, or where it is a problem.
func (v *verifier) original(t *hf.Tensor) *hf.Tensor {
	if v.opt.Original == nil {
		return nil
	}
	o, ok := v.opt.Original.Tensor(t.Name)
	switch {
	case !ok:
		v.problem("%s is not in the original", t.Name)
		return nil
	case o.DType != t.DType || !slices.Equal(o.Shape, t.Shape):
		v.problem("%s is %s %v: the original's is %s %v", t.Name, t.DType, t.Shape, o.DType, o.Shape)
		return nil
	}
	return o
}

// readFull fills p from a tensor's data.
func readFull(t *hf.Tensor, p []byte, off int64) error {
	if _, err := t.ReadAt(p, off); err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	return nil
}
