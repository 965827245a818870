package report

import (
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"github.com/lutq/lutq/formats/hf"
	"github.com/lutq/lutq/formats/num"
)

// write makes a checkpoint of float32 matrices.
func write(t *testing.T, shape [2]int, tensors map[string][]float32) *hf.Checkpoint {
	t.Helper()
	dir := t.TempDir()
	var entries []hf.Entry
	for name := range tensors {
		entries = append(entries, hf.Entry{Name: name, DType: hf.F32, Shape: shape[:]})
	}
	w, err := hf.NewWriter(dir, entries, hf.WriterOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for name, v := range tensors {
		data := make([]byte, 4*len(v))
		num.EncodeF32(data, v)
		if err := w.WriteAt(name, data, 0); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Commit(); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "config.json"), []byte("{}"), 0o644); err != nil {
		t.Fatal(err)
	}
	c, err := hf.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// TestSample: the column that is ten times as large is found, and the error of weights that are a tenth off.
func TestSample(t *testing.T) {
	const n, k, outlier = 200, 64, 13
	rng := rand.New(rand.NewPCG(5, 6))
	w, off := make([]float32, n*k), make([]float32, n*k)
	for i := range w {
		w[i] = float32(rng.NormFloat64())
		if i%k == outlier {
			w[i] *= 10
		}
		off[i] = w[i] * 1.1
	}
	const name = "model.layers.0.mlp.up_proj"
	original, own := write(t, [2]int{n, k}, map[string][]float32{name + ".weight": w}), write(t, [2]int{n, k}, map[string][]float32{name + ".weight": off})
	m := Model{Layers: []Layer{{Name: name, Shape: [2]int{n, k}}, {Name: "model.layers.0.absent", Shape: [2]int{n, k}}, {Name: name, Shape: [2]int{k, n}}}}
	if err := m.Sample(t.Context(), own, original); err != nil {
		t.Fatal(err)
	}
	l := m.Layers[0]
	if l.Column != outlier || l.Outlier < 60 || l.Outlier > 160 {
		t.Errorf("column %d, %v medians; want %d, about 100", l.Column, l.Outlier, outlier)
	}
	if math.Abs(l.Error-0.1) > 1e-6 {
		t.Errorf("an error of %v", l.Error)
	}
	for _, l := range m.Layers[1:] {
		if l.Error != 0 || l.Outlier != 0 {
			t.Errorf("%+v is not in the original", l)
		}
	}
}

func TestEvenly(t *testing.T) {
	for _, c := range []struct {
		count, n int
		want     string
	}{{10, 2, "[2 7]"}, {3, 5, "[0 1 2]"}, {0, 4, "[]"}, {128, 1, "[64]"}} {
		if got := fmt.Sprint(evenly(c.count, c.n)); got != c.want {
			t.Errorf("%d of %d: %s, want %s", c.n, c.count, got, c.want)
		}
	}
}
