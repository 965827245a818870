package model_test

import (
	"context"
	"errors"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/lutq/lutq/calib/model"
	"github.com/lutq/lutq/formats/arch"
	"github.com/lutq/lutq/formats/arch/archtest"
	"github.com/lutq/lutq/formats/racetest"
	"github.com/lutq/lutq/formats/weight"
	"github.com/lutq/lutq/formats/weight/lut"
)

// probeSets are the sets of a decoder's first and last blocks, and its ends.
func probeSets(d *arch.Decoder) [][]string {
	var sets [][]string
	add := func(ls ...*arch.Linear) {
		var paths []string
		for _, l := range ls {
			if !slices.Contains(paths, l.Stored.Path) {
				paths = append(paths, l.Stored.Path)
			}
		}
		if len(paths) > 0 {
			sets = append(sets, paths)
		}
	}
	for _, i := range []int{0, len(d.Blocks) - 1} {
		b := &d.Blocks[i]
		for _, stage := range b.Mixer.Stages() {
			add(stage...)
		}
		var in, out []*arch.Linear
		for _, m := range b.MLPs() {
			in, out = append(in, m.In()...), append(out, m.Down)
		}
		add(in...)
		add(out...)
	}
	sets = append(sets, []string{d.Embed})
	if !d.Tied {
		add(d.Head)
	}
	return sets
}

// TestProbe compares what a probe finds for each set with the divergence of a whole model in which that set is replaced, for every
// second family. To run the windows one by one changes nothing but the order of sums.
func TestProbe(t *testing.T) {
	racetest.Skip(t)
	for i, g := range archtest.Goldens(t) {
		if i%2 != 0 {
			continue
		}
		t.Run(g.Name, func(t *testing.T) {
			dir := t.TempDir()
			g.Write(t, dir)
			src := openCheckpoint(t, dir)
			d := src.Decoder()
			windows := walkWindows(g.Tokens)
			sets := probeSets(d)
			if d.Tied { // the one matrix may lie under the head's name
				if _, ok := src.Tensor(d.Embed + ".weight"); !ok {
					sets[len(sets)-1] = []string{d.Head.Stored.Path}
				}
			}
			v := newVisitor(t, src)
			layers := make(map[string]weight.Matrix)
			embedding := sets[len(sets)-1][0]
			if !d.Tied {
				embedding = sets[len(sets)-2][0]
			}
			for _, set := range sets {
				for _, path := range set {
					if tensor, ok := src.Tensor(path + ".weight"); ok && path == embedding {
						w := make([]float32, tensor.Elements())
						if err := tensor.ReadFloat32(w, 0); err != nil {
							t.Fatal(err)
						}
						table, err := lut.NewCodebook("nf", 3, 32)
						if err != nil {
							t.Fatal(err)
						}
						layers[path] = quantizeMatrix(t, w, d.Vocab, d.Hidden, lut.Format{Codebook: table, Group: 32, Scale: weight.Absmax, ScaleType: weight.F16})
						continue
					}
					layers[path] = v.nearest(path)
				}
			}
			ops := &watched{Ops: newOps(t, 2)}
			progress := 0
			o := model.ProbeOptions{
				Windows: windows, Sets: sets,
				Replace: func(_ context.Context, path string) (weight.Matrix, error) { return layers[path], nil },
				Progress: func(done, all int) {
					if progress++; done != progress || done > all {
						t.Errorf("%d of %d done, after %d", done, all, progress-1)
					}
				},
			}
			got, err := model.Probe(t.Context(), src, ops, o)
			if err != nil {
				t.Fatal(err)
			}
			if want := model.ProbePasses(d, sets) * len(windows); progress != want {
				t.Errorf("%d pieces of work, want %d", progress, want)
			}
			if ops.weights != 0 || ops.floats != 0 {
				t.Errorf("%d weights and %d floats are left on the device", ops.weights, ops.floats)
			}
			original := openModel(t, src)
			for i, set := range sets {
				own := &quantizedSource{Checkpoint: src, layers: make(map[string]weight.Matrix)}
				for _, path := range set {
					own.layers[path] = layers[path]
				}
				m := openModel(t, own)
				teacher, err := original.With(nil)
				if err != nil {
					t.Fatal(err)
				}
				var want float64
				positions := 0
				for _, w := range windows {
					l, err := divergence(m, teacher, w)
					if err != nil {
						t.Fatal(err)
					}
					want += l * float64(len(w)-1)
					positions += len(w) - 1
				}
				want /= float64(positions)
				if math.Abs(got[i]-want) > 1e-4*want+1e-7 || want <= 0 {
					t.Errorf("%v: a divergence of %v, want %v", set, got[i], want)
				}
			}
			o.Most, progress = 1, 0
			again, err := model.Probe(t.Context(), src, newOps(t, 3), o)
			if err != nil || !slices.EqualFunc(got, again, func(a, b float64) bool { return math.Abs(a-b) <= 1e-12 }) {
				t.Errorf("%v window by window, error %v: want %v", again, err, got)
			}
		})
	}
}

// openModel reads a model from a source.
func openModel(t *testing.T, src model.Source) *model.Model {
	t.Helper()
	m, err := model.New(src, newOps(t, 2))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(m.Close)
	return m
}

// divergence computes a model's from another's, in float64 from the logits of both.
func divergence(m, teacher *model.Model, tokens []int) (float64, error) {
	read := func(m *model.Model) ([]float32, error) {
		h, err := m.Hidden(context.Background(), tokens)
		if err != nil {
			return nil, err
		}
		y := m.Ops().Floats(len(tokens) * m.Vocab())
		if err := m.Logits(y, h, len(tokens)); err != nil {
			return nil, err
		}
		v := make([]float32, y.Len())
		m.Ops().Read(v, y)
		return v, m.Ops().Err()
	}
	q, err := read(m)
	if err != nil {
		return 0, err
	}
	p, err := read(teacher)
	if err != nil {
		return 0, err
	}
	logs := func(x []float32) []float64 {
		var sum float64
		for _, v := range x {
			sum += math.Exp(float64(v))
		}
		out := make([]float64, len(x))
		for i, v := range x {
			out[i] = float64(v) - math.Log(sum)
		}
		return out
	}
	var sum float64
	for i := range len(tokens) - 1 {
		a, b := logs(p[i*m.Vocab():][:m.Vocab()]), logs(q[i*m.Vocab():][:m.Vocab()])
		for j := range a {
			sum += math.Exp(a[j]) * (a[j] - b[j])
		}
	}
	return sum / float64(len(tokens)-1), nil
}

// TestProbeBad: sets of no layers, of layers that are none and of two blocks are refused, and what stands against a layer's
// replacement is told.
func TestProbeBad(t *testing.T) {
	src := openCheckpoint(t, "../testdata/lutq-tiny")
	stop := errors.New("no replacement")
	window := []int{1, 2, 3}
	q := src.Decoder().Blocks[0].Attn().Q.Stored.Path
	for name, tc := range map[string]struct {
		sets    [][]string
		windows [][]int
		want    string
	}{
		"nothing":     {[][]string{{}}, [][]int{window}, "a set of no layers"},
		"unknown":     {[][]string{{"nose"}}, [][]int{window}, "no layer nose"},
		"two blocks":  {[][]string{{q, src.Decoder().Blocks[1].Attn().Q.Stored.Path}}, [][]int{window}, "is not of the block of"},
		"one token":   {[][]string{{q}}, [][]int{{1}}, "two tokens at least"},
		"no windows":  {[][]string{{q}}, nil, "no windows"},
		"replacement": {[][]string{{q}}, [][]int{window}, stop.Error()},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := model.Probe(t.Context(), src, newOps(t, 1), model.ProbeOptions{
				Windows: tc.windows, Sets: tc.sets,
				Replace: func(context.Context, string) (weight.Matrix, error) { return nil, stop },
			})
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("error %v, want %q", err, tc.want)
			}
		})
	}
}
