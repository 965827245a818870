package lutq

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sync/errgroup"

	"github.com/lutq/lutq/formats/hf"
	"github.com/lutq/lutq/quantize/lut"
)

// VerifyOptions say how a container is verified.
type VerifyOptions struct {
	// Original, if set, is what the container was made from: errors are
	// recomputed, codes of the method rtn must be nearest ones, and the
	// tensors that were not quantized must be equal.
	Original *hf.Checkpoint
	Threads  int // 0: one worker
	// Progress, if set, is told of every verified tensor. It is called from
	// several goroutines, one at a time.
	Progress func(tensor string)
}

// Report is what verification found.
type Report struct {
	SHA256   string // recomputed
	Layers   int
	Problems []string // one line each; none if all is well
}

// Verify reads all of a container and checks what can be checked: tables and
// scales are numbers, the bits after a row's last code are zero, the digest is
// the one in the configuration, and what [VerifyOptions.Original] adds. What
// does not hold is a problem in the report; an error means that the
// verification itself failed.
func (m *Model) Verify(ctx context.Context, o VerifyOptions) (*Report, error) {
	v := &verifier{model: m, opt: o}
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(max(o.Threads, 1))
	for _, layer := range m.layers {
		group.Go(func() error {
			if err := ctx.Err(); err != nil {
				return err
			}
			return v.layer(layer)
		})
	}
	if o.Original != nil {
		for _, t := range m.ckpt.Tensors() {
			if _, ok := m.config.Tensors[layerOf(t.Name)]; ok {
				continue
			}
			group.Go(func() error {
				if err := ctx.Err(); err != nil {
					return err
				}
				return v.copied(t)
			})
		}
		for _, t := range o.Original.Tensors() {
			if _, ok := m.ckpt.Tensor(t.Name); !ok && !slices.Contains(m.layers, layerOf(t.Name)) {
				v.problem("%s is missing from the container", t.Name)
			}
		}
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	r := &Report{SHA256: Digest(v.sums), Layers: len(m.layers), Problems: v.problems}
	if r.SHA256 != m.config.SHA256 {
		r.Problems = append(r.Problems, fmt.Sprintf("the digest is %s: the configuration says %s", r.SHA256, m.config.SHA256))
	}
	slices.Sort(r.Problems)
	return r, nil
}

// layerOf strips a tensor's last component.
func layerOf(tensor string) string {
	return tensor[:max(strings.LastIndexByte(tensor, '.'), 0)]
}

type verifier struct {
	model *Model
	opt   VerifyOptions

	mu       sync.Mutex
	sums     []TensorSum
	problems []string
}

func (v *verifier) problem(format string, args ...any) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.problems = append(v.problems, fmt.Sprintf(format, args...))
}

// done notes a verified tensor and its sums.
func (v *verifier) done(name string, sums ...TensorSum) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.sums = append(v.sums, sums...)
	if v.opt.Progress != nil {
		v.opt.Progress(name)
	}
}

func (v *verifier) layer(layer string) error {
	var sums []TensorSum
	for _, suffix := range []string{CodebookSuffix, CodesSuffix, ScalesSuffix} {
		t, _ := v.model.ckpt.Tensor(layer + suffix) // Open saw to it
		sum, err := SumOf(t.Bytes(), func(p []byte, off int64) error { return readFull(t, p, off) })
		if err != nil {
			return err
		}
		sums = append(sums, TensorSum{Entry: hf.Entry{Name: t.Name, DType: t.DType, Shape: t.Shape}, Sum: sum})
	}
	v.done(layer, sums...)
	mat, err := v.model.Linear(layer)
	if err != nil {
		v.problem("%v", err)
		return nil
	}
	if n := strayBits(mat); n >= 0 {
		v.problem("%s: row %d has bits set after its last code", layer, n)
	}
	if v.opt.Original == nil {
		return nil
	}
	return v.against(layer, mat)
}

// strayBits returns the first row with a bit set after its last code, or -1.
func strayBits(m *lut.Matrix) int {
	used := m.K * m.Bits % 8
	if used == 0 {
		return -1
	}
	rb := m.RowBytes()
	for n := range m.N {
		if m.Codes[(n+1)*rb-1]>>used != 0 {
			return n
		}
	}
	return -1
}

// errorSlack is by how much a recomputed relative error may differ from the
// one noted, which is rounded and was summed in another order.
const errorSlack = 1e-4

// against holds a layer against the weights that it was made from.
func (v *verifier) against(layer string, m *lut.Matrix) error {
	t, ok := v.opt.Original.Tensor(layer + WeightSuffix)
	if !ok {
		v.problem("%s%s is not in the original", layer, WeightSuffix)
		return nil
	}
	if !slices.Equal(t.Shape, []int{m.N, m.K}) {
		v.problem("%s has shape [%d %d]: the original's is %v", layer, m.N, m.K, t.Shape)
		return nil
	}
	nearest := v.model.Format(layer).Method == "rtn"
	w, codes, scales := make([]float32, m.K), make([]uint8, m.K), make([]float32, m.Groups())
	var energy, squared float64
	for n := range m.N {
		if err := t.ReadFloat32(w, int64(n)*int64(m.K)); err != nil {
			return err
		}
		m.RowCodes(codes, n)
		m.RowScales(scales, n)
		for k, c := range codes {
			s := scales[k/m.Group]
			d := float64(w[k]) - float64(m.Codebook[c]*s)
			energy += float64(w[k]) * float64(w[k])
			squared += d * d
			if nearest && !isNearest(m.Codebook, int(c), s, w[k]) {
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

// isNearest reports whether no neighbour of code c is nearer to w, but for
// rounding.
func isNearest(table []float32, c int, s, w float32) bool {
	d := math.Abs(float64(w) - float64(table[c]*s))
	slack := 1e-5 * (math.Abs(float64(w)) + math.Abs(float64(s)))
	for _, other := range []int{c - 1, c + 1} {
		if other >= 0 && other < len(table) && math.Abs(float64(w)-float64(table[other]*s)) < d-slack {
			return false
		}
	}
	return true
}

// copied holds a tensor that was not quantized against the original.
func (v *verifier) copied(t *hf.Tensor) error {
	defer v.done(t.Name)
	o, ok := v.opt.Original.Tensor(t.Name)
	switch {
	case !ok:
		v.problem("%s is not in the original", t.Name)
		return nil
	case o.DType != t.DType || !slices.Equal(o.Shape, t.Shape):
		v.problem("%s is %s %v: the original's is %s %v", t.Name, t.DType, t.Shape, o.DType, o.Shape)
		return nil
	}
	a, b := make([]byte, min(t.Bytes(), 1<<20)), make([]byte, min(t.Bytes(), 1<<20))
	for off := int64(0); off < t.Bytes(); off += int64(len(a)) {
		n := min(int64(len(a)), t.Bytes()-off)
		if err := errors.Join(readFull(t, a[:n], off), readFull(o, b[:n], off)); err != nil {
			return err
		}
		if !bytes.Equal(a[:n], b[:n]) {
			v.problem("%s differs from the original", t.Name)
			return nil
		}
	}
	return nil
}

// readFull fills p from a tensor's data.
func readFull(t *hf.Tensor, p []byte, off int64) error {
	if _, err := t.ReadAt(p, off); err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	return nil
}
