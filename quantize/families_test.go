package quantize_test

import (
	"context"
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/lutq/lutq/calib/model"
	modelcpu "github.com/lutq/lutq/calib/model/cpu"
	"github.com/lutq/lutq/formats/arch"
	"github.com/lutq/lutq/formats/arch/archtest"
	"github.com/lutq/lutq/formats/hf"
	"github.com/lutq/lutq/formats/lutq"
	"github.com/lutq/lutq/formats/num"
	"github.com/lutq/lutq/formats/racetest"
	"github.com/lutq/lutq/formats/source/modeltest"
	"github.com/lutq/lutq/formats/weight"
	"github.com/lutq/lutq/gemm/cpu"
	"github.com/lutq/lutq/quantize"
)

// TestFamilies quantizes a tiny model of every family, and computes the losses of the container
// and of a checkpoint that has the container's weights in the original's places: they are
// the same only if every row of every layer is where the other reader looks for it.
func TestFamilies(t *testing.T) {
	racetest.Skip(t)
	e, err := cpu.New(cpu.Options{Threads: 2})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	ops := modelcpu.New(e)
	table := quantize.Recipe{Default: weight.Spec{Bits: 4, Group: 32, Codebook: "nf"}}
	for _, g := range archtest.Goldens(t) {
		t.Run(g.Name, func(t *testing.T) { checkFamily(t, ops, g, table) })
	}
	for _, g := range archtest.Goldens(t) { // without experts, and with stacks of them as [N, K] and as [K, N]
		if slices.Contains([]string{"llama", "mixtral-fused", "gpt-oss"}, g.Name) {
			t.Run(g.Name+"/lut24", func(t *testing.T) {
				checkFamily(t, ops, g, quantize.Recipe{Default: weight.Spec{Bits: 4, Group: 32, Method: "magnitude"}})
			})
			t.Run(g.Name+"/bcq", func(t *testing.T) {
				checkFamily(t, ops, g, quantize.Recipe{
					Default: weight.Spec{Bits: 3, Group: 32, Method: "bcq"},
					Methods: quantize.MethodOptions{BCQ: quantize.BCQOptions{Rounds: 3, Offset: true}},
				})
			})
		}
	}
}

func checkFamily(t *testing.T, ops model.Ops, g archtest.Golden, recipe quantize.Recipe) {
	dir, out, dense := t.TempDir(), filepath.Join(t.TempDir(), "out"), t.TempDir()
	g.Write(t, dir)
	model := modeltest.Open(t, dir)
	src, err := model.Weights()
	if err != nil {
		t.Fatal(err)
	}
	plan, err := quantize.NewPlan(model, recipe)
	if err != nil {
		t.Fatal(err)
	}
	if family, why := plan.Family(); why != nil {
		t.Fatalf("family %q: %v", family, why)
	}
	if _, err := plan.Run(t.Context(), out, quantize.RunOptions{Threads: 2}); err != nil {
		t.Fatal(err)
	}
	c, err := lutq.Open(out)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	report, err := c.Verify(t.Context(), lutq.VerifyOptions{Original: src})
	if err != nil {
		t.Fatal(err)
	}
	if len(report.Problems) > 0 {
		t.Errorf("verify: %q", report.Problems)
	}
	writeDense(t, dense, g, src, c)
	got, want := loss(t, ops, out, g.Tokens), loss(t, ops, dense, g.Tokens)
	if !(math.Abs(got-want) <= 2e-5*want) {
		t.Errorf("loss %.7f of the container, %.7f of its weights", got, want)
	}
	if !(math.Abs(want-g.Loss) > 1e-5*want) {
		t.Errorf("quantized, the loss is that of the original, %.7f", want)
	}
}

func loss(t *testing.T, ops model.Ops, dir string, tokens []int) float64 {
	t.Helper()
	m, err := model.Open(modeltest.Open(t, dir), ops, model.OpenOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	l, err := m.Loss(context.Background(), tokens, nil)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// writeDense writes a checkpoint in float32 whose quantized layers are what the container means.
func writeDense(t *testing.T, dir string, g archtest.Golden, src *hf.Checkpoint, c *lutq.Model) {
	t.Helper()
	plain := g
	plain.Config = withoutQuantization(t, g.Config)
	// Experts that were stored in 4 bits lie the other way round in 16.
	d, err := arch.Describe(plain.Config, func(name string) bool { _, ok := src.Tensor(name); return ok })
	if err != nil {
		t.Fatal(err)
	}
	shapes := make(map[string][]int)
	for _, s := range d.Stored() {
		shapes[s.Tensor] = s.Shape()
	}
	values := make(map[string][]float32)
	var entries []hf.Entry
	for _, tensor := range src.Tensors() {
		v := make([]float32, tensor.Elements())
		if err := tensor.ReadFloat32(v, 0); err != nil {
			t.Fatal(err)
		}
		values[tensor.Name] = v
		shape, ok := shapes[tensor.Name]
		if !ok {
			shape = tensor.Shape
		}
		entries = append(entries, hf.Entry{Name: tensor.Name, DType: hf.F32, Shape: shape})
	}
	for _, s := range d.Stored() {
		if _, ok := c.Config().Tensors[s.Path]; !ok {
			continue // the head
		}
		m, err := c.Linear(s.Path)
		if err != nil {
			t.Fatal(err)
		}
		place(values[s.Tensor], m, s)
	}
	w, err := hf.NewWriter(dir, entries, hf.WriterOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for name, v := range values {
		data := make([]byte, 4*len(v))
		num.EncodeF32(data, v)
		if err := w.WriteAt(name, data, 0); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Commit(); err != nil {
		t.Fatal(err)
	}
	writeFile(t, filepath.Join(dir, "config.json"), plain.Config)
}

// place writes the rows of a matrix where a checkpoint has them.
func place(to []float32, m weight.Matrix, s *arch.Stored) {
	from := weight.Dequantize(m)
	if !s.Transposed {
		copy(to, from)
		return
	}
	for e := range s.Matrices() {
		at := e * s.N * s.K
		for n := range s.N {
			for k := range s.K {
				to[at+k*s.N+n] = from[at+n*s.K+k]
			}
		}
	}
}

func withoutQuantization(t *testing.T, config []byte) []byte {
	t.Helper()
	var keys map[string]any
	if err := json.Unmarshal(config, &keys); err != nil {
		t.Fatal(err)
	}
	delete(keys, "quantization_config")
	text, err := json.Marshal(keys)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func writeFile(t *testing.T, path string, data []byte) {
	t.Helper()
	if err := os.WriteFile(path, data, 0o644); err != nil {
		t.Fatal(err)
	}
}
