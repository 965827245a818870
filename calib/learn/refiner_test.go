package learn

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/lutq/lutq/calib/corpus"
	"github.com/lutq/lutq/calib/model"
	modelcpu "github.com/lutq/lutq/calib/model/cpu"
	"github.com/lutq/lutq/calib/tokenizer"
	"github.com/lutq/lutq/formats/arch"
	"github.com/lutq/lutq/formats/arch/archtest"
	"github.com/lutq/lutq/formats/hf"
	"github.com/lutq/lutq/formats/lutq"
	"github.com/lutq/lutq/formats/racetest"
	"github.com/lutq/lutq/formats/source/modeltest"
	"github.com/lutq/lutq/formats/weight"
	"github.com/lutq/lutq/formats/weight/lut"
	"github.com/lutq/lutq/gemm/cpu"
)

// refiner learns on the small text with the small model, and counts what it opens.
func refiner(t *testing.T, o Options) (r *Refiner, open *int) {
	t.Helper()
	open = new(int)
	tok, err := tokenizer.Load(tinyDir)
	if err != nil {
		t.Fatal(err)
	}
	text, err := corpus.MixFiles([]string{"../testdata/harbour.txt"}, tok, corpus.MixOptions{Windows: 3, Valid: 1, Context: 32, Seed: o.Seed})
	if err != nil {
		t.Fatal(err)
	}
	r, err = NewRefiner(modeltest.Open(t, tinyDir), RefinerOptions{
		Options: o, Text: text, Device: "cpu",
		Open: func(int64) ([]model.Ops, func() error, error) {
			e, err := cpu.New(cpu.Options{Threads: 2})
			if err != nil {
				return nil, nil, err
			}
			*open++
			return []model.Ops{modelcpu.New(e)}, func() error { *open--; e.Close(); return nil }, nil
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	return r, open
}

// TestRefiner: what a refiner returns is that of Run on the same windows, and what is
// kept of it tells where they come from.
func TestRefiner(t *testing.T) {
	begun := 0
	r, open := refiner(t, Options{Mode: Lutq, Seed: 5})
	r.o.Begin = func() { begun++ }
	initial := quantized(t, "_proj", 2, 32, weight.F16)
	layers := &inMemory{initial: initial, learned: make(map[string]*lut.Matrix)}
	record, err := r.Refine(context.Background(), shapes(initial), layers, "")
	if err != nil {
		t.Fatal(err)
	}
	tok, err := tokenizer.Load(tinyDir)
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile("../testdata/harbour.txt")
	if err != nil {
		t.Fatal(err)
	}
	train, hold, err := corpus.Mix([]corpus.Text{{Name: "harbour.txt", Text: bytes.NewReader(text)}}, tok, corpus.MixOptions{
		Windows: 3, Valid: 1, Context: 32, BOS: corpus.BOSHalf, Seed: 5,
	})
	if err != nil {
		t.Fatal(err)
	}
	want, report, err := learned(context.Background(), openTiny(t, 2), initial, Options{Mode: Lutq, Seed: 5, Windows: train, Valid: hold})
	if err != nil {
		t.Fatal(err)
	}
	if !same(layers.learned, want) {
		t.Error("the matrices are not those of Run")
	}
	if report.BestStep == 0 {
		t.Fatal("nothing was learned")
	}
	sum := sha256.Sum256(text)
	diff := cmp.Diff(&lutq.Learning{
		Mode: "lutq", Objective: "kl", Texts: []lutq.CalibText{{Name: "harbour.txt", SHA256: hex.EncodeToString(sum[:])}},
		Windows: 3, Context: 32, BOS: string(corpus.BOSHalf), Tokens: 95, Steps: 3, Rate: report.Rate, Seed: 5, Device: "cpu",
		ValidWindows: 1, InitialLoss: report.InitialLoss, Loss: report.Loss, BestStep: report.BestStep,
	}, record)
	if diff != "" {
		t.Errorf("what is kept (-want +got):\n%s", diff)
	}
	if begun != 1 || *open != 0 {
		t.Errorf("begun %d times, and %d devices are open: want 1 and 0", begun, *open)
	}
}

// TestWriteControl: the weights of the layers are multiplied and in float32, all else is
// as it was, the given shapes too.
func TestWriteControl(t *testing.T) {
	racetest.Skip(t)
	r, open := refiner(t, Options{Mode: Lutq, Objective: NLL})
	const layer = "model.layers.1.self_attn.q_proj"
	shape := shapes(quantized(t, "layers.1.self_attn.q_proj", 2, 32, weight.F16))[layer].(*lut.Matrix)
	dir := t.TempDir()
	if err := r.WriteControl(context.Background(), dir, map[string]weight.Matrix{layer: shape}, ""); err != nil {
		t.Fatal(err)
	}
	if shape.ScaleType != weight.F16 || shape.Codes != nil || shape.Scales != nil || *open != 0 {
		t.Errorf("shape %+v, %d devices open", shape, *open)
	}
	factors, _, err := Control(context.Background(), openTiny(t, 2), map[string]weight.Matrix{layer: shape}, r.o.Options)
	if err != nil {
		t.Fatal(err)
	}
	got, err := hf.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer got.Close()
	for _, was := range r.src.Tensors() {
		now, ok := got.Tensor(was.Name)
		if !ok {
			t.Errorf("%s is missing", was.Name)
			continue
		}
		a, b := make([]float32, was.Elements()), make([]float32, was.Elements())
		if err := was.ReadFloat32(a, 0); err != nil {
			t.Fatal(err)
		}
		if err := now.ReadFloat32(b, 0); err != nil {
			t.Fatal(err)
		}
		if was.Name == layer+".weight" {
			for i := range a {
				a[i] *= factors[layer].Values[i/32]
			}
			if now.DType != hf.F32 || !cmp.Equal(a, b) {
				t.Errorf("%s of type %s is not multiplied by what was learned", was.Name, now.DType)
			}
		} else if now.DType != was.DType || !cmp.Equal(a, b) {
			t.Errorf("%s of type %s has changed", was.Name, now.DType)
		}
	}
	for _, name := range r.src.SideFiles() {
		want, err := os.ReadFile(filepath.Join(tinyDir, name))
		if err != nil {
			t.Fatal(err)
		}
		if text, err := os.ReadFile(filepath.Join(dir, name)); err != nil || string(text) != string(want) {
			t.Errorf("%s is not copied (%v)", name, err)
		}
	}
}

// TestHostMemory: where a GPU has the model, learning the scales of one of 8 billion weights
// takes less of the host than the weights do in 6 bits.
func TestHostMemory(t *testing.T) {
	dir := t.TempDir()
	config := `{"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
		"num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256, "rms_norm_eps": 1e-5, "max_position_embeddings": 8192}`
	if err := os.WriteFile(filepath.Join(dir, "config.json"), []byte(config), 0o644); err != nil {
		t.Fatal(err)
	}
	d, err := arch.Read(dir, nil)
	if err != nil {
		t.Fatal(err)
	}
	shapes := make(map[string]weight.Matrix)
	for l := range d.Linears() {
		shapes[l.Stored.Path] = &lut.Matrix{N: l.N, K: l.K, Bits: 4, Group: 64, ScaleType: weight.F16}
	}
	o := Options{Mode: Lutq, Windows: [][]int{make([]int, 2048)}}
	if gpu, cpu := HostMemory(d, 16e9, shapes, "cuda", o), HostMemory(d, 16e9, shapes, "cpu", o); gpu > 6e9 || cpu < 10*gpu {
		t.Errorf("learning takes %d bytes beside a GPU and %d without", gpu, cpu)
	}
}

// TestRefinerRefuses: a model without gradients is refused before anything is opened.
func TestRefinerRefuses(t *testing.T) {
	for _, g := range archtest.Goldens(t) {
		if !slices.Contains([]string{"qwen3-next", "lfm2", "granite-hybrid", "deepseek-v32"}, g.Name) { // the last sees 12 tokens
			continue
		}
		dir := t.TempDir()
		g.Write(t, dir)
		_, err := NewRefiner(modeltest.Open(t, dir), RefinerOptions{Device: "cpu", Text: &corpus.Mixture{Windows: [][]int{make([]int, 13)}}})
		if err == nil || !strings.Contains(err.Error(), "scales cannot be learned") {
			t.Errorf("%s: error %v", g.Name, err)
		}
	}
}
