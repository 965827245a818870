package learn

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"path/filepath"
	"strings"
	"testing"

	"github.com/lutq/lutq/calib/model"
	"github.com/lutq/lutq/formats/arch"
	"github.com/lutq/lutq/formats/hf"
	"github.com/lutq/lutq/formats/lutq"
	"github.com/lutq/lutq/formats/weight"
	"github.com/lutq/lutq/formats/weight/trellis"
	"github.com/lutq/lutq/formats/weight/trellis/trellistest"
	"github.com/lutq/lutq/quantize/rings"
	"github.com/lutq/lutq/quantize/rounding"
)

// ringedLayers are layers of rings as a test made them, and what was learned for them.
type ringedLayers struct{ initial, learned map[string]*trellis.Matrix }

func (l *ringedLayers) Read(path string) (weight.Matrix, error) {
	m := *l.initial[path]
	m.Rings, m.Scales = bytes.Clone(m.Rings), bytes.Clone(m.Scales)
	return &m, nil
}

func (l *ringedLayers) Write(path string, of weight.Matrix) error {
	m := of.(*trellis.Matrix)
	if m.Rings != nil {
		return fmt.Errorf("%s: rings are written that did not change", path)
	}
	m.Rings = l.initial[path].Rings
	l.learned[path] = m
	return nil
}

func (l *ringedLayers) shapes() map[string]weight.Matrix {
	out := make(map[string]weight.Matrix)
	for path, m := range l.initial {
		out[path] = &trellis.Matrix{N: m.N, K: m.K, Code: m.Code, ScaleType: m.ScaleType}
	}
	return out
}

// ringedTiny rounds the linear layers of the small model's blocks that match.
func ringedTiny(t testing.TB, match string, rate int, st weight.ScaleType) *ringedLayers {
	t.Helper()
	c, err := hf.Open(tinyDir)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	code, err := trellis.NewCode(trellis.Pairs, rate)
	if err != nil {
		t.Fatal(err)
	}
	q, err := rings.NewQuantizer(rings.Options{Code: code, ScaleType: st})
	if err != nil {
		t.Fatal(err)
	}
	out := &ringedLayers{make(map[string]*trellis.Matrix), make(map[string]*trellis.Matrix)}
	for _, tensor := range c.Tensors() {
		layer, ok := strings.CutSuffix(tensor.Name, lutq.WeightSuffix)
		if !ok || !strings.Contains(layer, match) || !strings.HasSuffix(layer, "_proj") {
			continue
		}
		n, k := tensor.Shape[0], tensor.Shape[1]
		w := make([]float32, n*k)
		if err := tensor.ReadFloat32(w, 0); err != nil {
			t.Fatal(err)
		}
		l := code.Layout()
		m := &trellis.Matrix{N: n, K: k, Code: code, ScaleType: st, Scales: make([]byte, n*st.Size())}
		m.Rings = make([]byte, (n+l.Rows-1)/l.Rows*((k+l.Cols-1)/l.Cols)*l.Bytes())
		if err := q.Rows([][]byte{m.Rings, m.Scales}, make([]rounding.RowError, n), w); err != nil {
			t.Fatal(err)
		}
		out.initial[layer] = m
	}
	if len(out.initial) == 0 {
		t.Fatalf("no layer matches %q", match)
	}
	return out
}

// ringLoss evaluates layers in the model, through the packed weights.
func ringLoss(t *testing.T, m *model.Model, matrices map[string]*trellis.Matrix, windows [][]int) float64 {
	t.Helper()
	weights := make(map[string]model.Weight)
	for name, mat := range matrices {
		w, err := m.Ops().Packed(mat)
		if err != nil {
			t.Fatal(err)
		}
		defer m.Ops().FreeWeight(w)
		weights[name] = w
	}
	q, err := m.With(weights)
	if err != nil {
		t.Fatal(err)
	}
	defer q.Close()
	var sum float64
	for _, w := range windows {
		l, err := q.Loss(t.Context(), w, m)
		if err != nil {
			t.Fatal(err)
		}
		sum += l / float64(len(windows))
	}
	return sum
}

// TestRings: the scales of rows of rings are learned, the rings stay what they are, and what is returned is what was measured.
func TestRings(t *testing.T) {
	train, hold := texts(t, 6, 2, 48)
	m := openTiny(t, 2)
	layers := ringedTiny(t, "layers.", 3, weight.F16)
	report, err := Run(t.Context(), m, layers.shapes(), layers, Options{Mode: Lutq, Rate: .01, Windows: train, Valid: hold, Epochs: 3})
	if err != nil {
		t.Fatal(err)
	}
	rows := 0
	for name, was := range layers.initial {
		is := layers.learned[name]
		if is == nil {
			t.Fatalf("nothing was learned of %s", name)
		}
		if bytes.Equal(is.Scales, was.Scales) {
			t.Errorf("%s: no scale moved", name)
		}
		rows += was.N
	}
	if report.Parameters != rows {
		t.Errorf("%d parameters: want the %d rows", report.Parameters, rows)
	}
	if got := ringLoss(t, m, layers.learned, hold); math.Abs(got-report.Loss) > 1e-4*report.Loss {
		t.Errorf("the loss of the matrices returned is %v, the report says %v", got, report.Loss)
	}
	for what, windows := range map[string][][]int{"what was learned": train, "held-out windows": hold} {
		if was, is := ringLoss(t, m, layers.initial, windows), ringLoss(t, m, layers.learned, windows); !(is < was) {
			t.Errorf("the loss on %s went from %v to %v", what, was, is)
		}
	}
}

// TestRingsResume stops a run at every step: continued, it ends as one that was left alone. A state of other rings is put aside.
func TestRingsResume(t *testing.T) {
	train, hold := texts(t, 5, 1, 24)
	o := Options{Mode: Lutq, Rate: .01, Windows: train, Valid: hold}
	layers := ringedTiny(t, "layers.1.self_attn.", 4, weight.F16)
	if _, err := Run(t.Context(), openTiny(t, 1), layers.shapes(), layers, o); err != nil {
		t.Fatal(err)
	}
	want := layers.learned
	layers.learned = make(map[string]*trellis.Matrix)
	o.State = filepath.Join(t.TempDir(), "state")
	var warned []string
	o.Warn = func(s string) { warned = append(warned, s) }
	m, stopped := openTiny(t, 2), 0
	for len(layers.learned) == 0 {
		ctx, cancel := context.WithCancel(t.Context())
		left := 2
		o.Progress = func(Progress) {
			if left--; left == 0 {
				cancel()
			}
		}
		_, err := Run(ctx, m, layers.shapes(), layers, o)
		cancel()
		if err == nil {
			break
		}
		if !errors.Is(err, context.Canceled) {
			t.Fatal(err)
		}
		stopped++
	}
	for name, m := range want {
		if got := layers.learned[name]; got == nil || !bytes.Equal(got.Scales, m.Scales) {
			t.Errorf("%s differs from that of a run that was left alone", name)
		}
	}
	if stopped < 2 || len(warned) > 0 {
		t.Errorf("stopped %d times, warned %q", stopped, warned)
	}
	other := ringedTiny(t, "layers.1.self_attn.", 4, weight.F16)
	for _, m := range other.initial {
		m.Rings[0] ^= 1
	}
	o.Progress = nil
	if _, err := Run(t.Context(), m, other.shapes(), other, o); err != nil || len(warned) != 1 || !strings.Contains(warned[0], "other options") {
		t.Errorf("with other rings: error %v, warned %q", err, warned)
	}
}

// TestRingsRefused: what has no meaning for rings is refused before anything is read.
func TestRingsRefused(t *testing.T) {
	train, _ := texts(t, 1, 0, 16)
	m := openTiny(t, 1)
	layers := ringedTiny(t, "layers.0.self_attn.k_proj", 4, weight.F16)
	for _, tc := range []struct {
		name, want string
		o          Options
	}{
		{"flute", "cannot choose them anew", Options{Mode: Flute}},
		{"new codes", "cannot choose them anew", Options{Mode: Lutq, Recode: 2}},
		{"lsq", "as the gradient of LSQ has it", Options{Mode: Lutq, LSQ: true}},
		{"table", "tables of pairs", Options{Mode: Lutq, Table: true}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r, _ := refiner(t, tc.o)
			checked := r.Check(layers.shapes())
			tc.o.Windows = train
			_, err := Run(context.Background(), m, layers.shapes(), layers, tc.o)
			for _, err := range []error{err, checked} {
				if err == nil || !strings.Contains(err.Error(), tc.want) || !strings.Contains(err.Error(), "layers.0.self_attn.k_proj") {
					t.Errorf("error %v: want one with %q", err, tc.want)
				}
			}
		})
	}
}

// TestStoredRows: what a part of a matrix is made of, and what is set of it, are those rows of the matrix.
func TestStoredRows(t *testing.T) {
	const first, step = 3, 2
	exl3, err := trellistest.Matrix(rand.New(rand.NewPCG(1, 2)), trellistest.Spec(trellis.Mul1, 5, weight.F16), 150, 136, true, false)
	if err != nil {
		t.Fatal(err)
	}
	for name, m := range map[string]weight.Matrix{
		"EXL3's rings, with factors": exl3,
		"rings":                      ringedTiny(t, "layers.0.self_attn.k_proj", 4, weight.F16).initial["model.layers.0.self_attn.k_proj"],
		"table":                      quantized(t, "layers.0.self_attn.k_proj", 3, 32, weight.F16)["model.layers.0.self_attn.k_proj"],
	} {
		t.Run(name, func(t *testing.T) {
			all, k := m.Shape()
			want := weight.Dequantize(m)
			of := &arch.Linear{Stored: &arch.Stored{N: all, K: k}, N: 7, K: k, Row: first, Step: step}
			part, err := partOf(m, of)
			if err != nil {
				t.Fatal(err)
			}
			s := part.shape()
			if s.n != 7 || s.k != k {
				t.Fatalf("a part of %d×%d: want 7×%d", s.n, s.k, k)
			}
			w := model.Trainable{Scales: make([]float32, s.n*s.groups())}
			values := part.weights(&w)
			st, err := storedOf(m)
			if err != nil {
				t.Fatal(err)
			}
			scales := make([]byte, len(w.Scales)*s.scaleType.Size())
			for n := range s.n {
				for i := range k {
					v := float32(0)
					if values != nil {
						v = values[n*k+i]
					} else {
						v = w.Table[w.Codes[n*k+i]]
					}
					got, want := float64(v)*float64(w.Scales[n*s.groups()+i/s.group]), float64(want[(first+n*step)*k+i])
					if math.Abs(got-want) > 1e-6*math.Abs(want) {
						t.Fatalf("weight %d of row %d is %v: want %v", i, n, got, want)
					}
				}
			}
			for i := range w.Scales {
				w.Scales[i] *= 2
			}
			s.scaleType.Encode(scales, w.Scales)
			st.set(outcome{rows: s.n, scales: scales}, first, step)
			for i, got := range weight.Dequantize(m) {
				by := float32(1)
				if n := i/k - first; n >= 0 && n%step == 0 && n/step < s.n {
					by = 2
				}
				if got != by*want[i] {
					t.Fatalf("weight %d of row %d became %v: want %v times %v", i%k, i/k, got, by, want[i])
				}
			}
		})
	}
}
