package main

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/lutq/lutq/formats/hf"
	"github.com/lutq/lutq/formats/lutq"
	"github.com/lutq/lutq/formats/lutq/lutqtest"
	"github.com/lutq/lutq/formats/num"
	"github.com/lutq/lutq/formats/weight"
	"github.com/lutq/lutq/formats/weight/trellis"
	"github.com/lutq/lutq/formats/weight/trellis/trellistest"
)

// ringed writes the tiny model with random rings of every codebook, as layers of one block after the other.
func ringed(t *testing.T) string {
	t.Helper()
	return lutqtest.Trellis(t, tiny, func(layer string) lutqtest.Layer {
		for block, codebook := range trellis.Codebooks() {
			if !strings.HasPrefix(layer, fmt.Sprintf("model.layers.%d.", block)) {
				continue
			}
			l := lutqtest.Layer{Spec: trellistest.Spec(codebook, 4, weight.F16), Factors: strings.Contains(layer, "attn"), Table: strings.Contains(layer, "mlp.up")}
			if codebook == trellis.Pairs && strings.Contains(layer, "mlp") {
				l.Spec = trellistest.Spec(codebook, 7, weight.BF16)
			}
			return l
		}
		if layer == "model.embed_tokens" {
			return lutqtest.Layer{Spec: trellistest.Spec(trellis.Pairs, 9, weight.F16)}
		}
		return lutqtest.Layer{}
	})
}

// meant writes what a container means in float32, with its config.json as it was.
func meant(t *testing.T, dir string) string {
	t.Helper()
	m, err := lutq.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	type tensor struct {
		hf.Entry
		data []byte
	}
	var tensors []tensor
	var entries []hf.Entry
	add := func(e hf.Entry, data []byte) { tensors, entries = append(tensors, tensor{e, data}), append(entries, e) }
	for _, name := range m.Linears() {
		mat, err := m.Linear(name)
		if err != nil {
			t.Fatal(err)
		}
		n, k := mat.Shape()
		data := make([]byte, 4*n*k)
		num.EncodeF32(data, weight.Dequantize(mat))
		add(hf.Entry{Name: name + lutq.WeightSuffix, DType: hf.F32, Shape: []int{n, k}}, data)
	}
	for _, x := range m.Checkpoint().Tensors() {
		if m.LayerOf(x.Name) != "" {
			continue
		}
		data := make([]byte, x.Bytes())
		if _, err := x.ReadAt(data, 0); err != nil {
			t.Fatal(err)
		}
		add(hf.Entry{Name: x.Name, DType: x.DType, Shape: x.Shape}, data)
	}
	out := t.TempDir()
	w, err := hf.NewWriter(out, entries, hf.WriterOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Abort()
	for _, x := range tensors {
		if err := w.WriteAt(x.Name, x.data, 0); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Commit(); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"} {
		data, err := os.ReadFile(filepath.Join(tiny, name))
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(out, name), data, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return out
}

// TestRings: a model of rings of all codebooks is what its weights say: to what lists it, checks it, evaluates it, speaks by it and exports
// it.
func TestRings(t *testing.T) {
	dir := ringed(t)
	plain := meant(t, dir)

	var in struct {
		Quantized     int
		Bytes         int64
		Parameters    int64
		BitsPerWeight float64 `json:"bits_per_weight"`
		Layers        []struct {
			Name     string
			Shape    []int
			BytesOut int64 `json:"bytes_out"`
			Kind     string
			Bits     int
			Half     bool
			Codebook string
		}
	}
	lutqJSON(t, &in, "inspect", dir)
	info, err := os.Stat(filepath.Join(dir, "model.safetensors"))
	if err != nil {
		t.Fatal(err)
	}
	// All but the header.
	if in.Quantized != 29 || in.Bytes > info.Size() || in.Bytes < info.Size()-16<<10 {
		t.Errorf("%d layers, %d bytes in a file of %d", in.Quantized, in.Bytes, info.Size())
	}
	if want := 8 * float64(in.Bytes) / float64(in.Parameters); in.BitsPerWeight != want {
		t.Errorf("%v bits a weight, want %v", in.BitsPerWeight, want)
	}
	for _, l := range in.Layers {
		want := map[string]int64{
			"model.embed_tokens":              4096*128*9/16 + 2*4096,                   // bits, scales
			"model.layers.0.mlp.up_proj":      384*128*7/16 + 2*384 + 4*trellis.Entries, // bits, scales, its own table
			"model.layers.0.self_attn.q_proj": 128*128*2/8 + 2*128 + 2*128,              // bits, scales, factors
			"model.layers.2.self_attn.k_proj": 128*128*2/8 + 2*128 + 2*128,              // padding to 128 rows
			"model.layers.3.mlp.down_proj":    128*384*2/8 + 2*128 + 2*384,              // EXL3's
		}[l.Name]
		if want != 0 && l.BytesOut != want {
			t.Errorf("%s takes %d bytes, want %d", l.Name, l.BytesOut, want)
		}
		if l.Name == "model.layers.0.mlp.up_proj" && (l.Kind != trellis.Name || l.Bits != 3 || !l.Half || l.Codebook != trellis.Pairs) {
			t.Errorf("%+v", l)
		}
	}
	code, table, _ := exec("inspect", dir)
	for _, want := range []string{"3.5:row:trellis::bf16:trellis", "4.5:row:trellis::f16:trellis", "2:row:3inst::f16:trellis"} {
		if code != exitDone || !strings.Contains(table, want) {
			t.Errorf("inspect does not list %s:\n%s", want, table)
		}
	}

	for _, args := range [][]string{{"verify", dir}, {"verify", dir, "--against", tiny}} {
		if code, stdout, stderr := exec(args...); code != exitDone || !strings.Contains(stdout, "29 layers, 9 other tensors") {
			t.Errorf("%q: exit code %d\n%s%s", args, code, stdout, stderr)
		}
	}

	text := filepath.Join("..", "..", "calib", "testdata", "harbour.txt")
	eval := func(model string) (r struct{ NLL, PPL float64 }) {
		lutqJSON(t, &r, "eval-ppl", model, "--text", text, "--ctx", "64", "--windows", "3", "--device", "cpu")
		return r
	}
	if got, want := eval(dir), eval(plain); !(math.Abs(got.NLL-want.NLL) < 1e-3) {
		t.Errorf("a perplexity of %v, of its weights %v", got.PPL, want.PPL)
	}
	speak := func(model string) (r struct{ Text string }) {
		lutqJSON(t, &r, "generate", model, "--prompt", "The harbour", "--max-tokens", "6", "--temperature", "0", "--device", "cpu")
		return r
	}
	if got, want := speak(dir), speak(plain); got.Text != want.Text || want.Text == "" {
		t.Errorf("it says %q, its weights %q", got.Text, want.Text)
	}

	out := filepath.Join(t.TempDir(), "dense")
	if code, _, stderr := exec("export", dir, out, "--to", "dense"); code != exitDone {
		t.Fatal(stderr)
	}
	got, err := hf.Open(out)
	if err != nil {
		t.Fatal(err)
	}
	defer got.Close()
	want, err := hf.Open(plain)
	if err != nil {
		t.Fatal(err)
	}
	defer want.Close()
	for _, x := range want.Tensors() {
		y, ok := got.Tensor(x.Name)
		if !ok || y.DType != hf.BF16 || !slices.Equal(y.Shape, x.Shape) {
			t.Fatalf("%s is %+v", x.Name, y)
		}
		v, w := make([]float32, y.Elements()), make([]float32, y.Elements())
		if err := y.ReadFloat32(v, 0); err != nil {
			t.Fatal(err)
		}
		if err := x.ReadFloat32(w, 0); err != nil {
			t.Fatal(err)
		}
		rounded := make([]byte, 2*len(w))
		num.EncodeBF16(rounded, w)
		num.DecodeBF16(w, rounded)
		if !slices.Equal(v, w) {
			t.Errorf("%s has other weights", x.Name)
		}
	}
}

// TestNoPlaceForRings: formats of other programs refuse layers of rings, and name what helps.
func TestNoPlaceForRings(t *testing.T) {
	dir := lutqtest.Trellis(t, tiny, func(layer string) lutqtest.Layer {
		if strings.HasSuffix(layer, "_proj") {
			return lutqtest.Layer{Spec: trellistest.Spec(trellis.Mul1, 5, weight.F16), Factors: true}
		}
		return lutqtest.Layer{}
	})
	for target, want := range map[string]string{
		"ct": "only lut will do here", "bnb": "only lut will do here", "gptq": "only lut will do here", "awq": "only lut will do here",
		"mlx": "only lut will do here", "nvfp4": "only lut will do here", "mxfp4": "only lut will do here", "gguf": "it has no table",
	} {
		out := filepath.Join(t.TempDir(), target)
		code, _, stderr := exec("export", dir, out, "--to", target)
		if code != exitFailed || !strings.Contains(stderr, "28 layers do not fit "+target) || !strings.Contains(stderr, want) || !strings.Contains(stderr, "hint: --requantize") {
			t.Errorf("%s: exit code %d\n%s", target, code, stderr)
		}
		if _, err := os.Stat(out); err == nil {
			t.Errorf("%s: something is written", target)
		}
	}
	for _, target := range []string{"marlin", "kbit", "lutgemm"} {
		if code, _, stderr := exec("repack", dir, filepath.Join(t.TempDir(), target), "--target", target); code != exitFailed || !strings.Contains(stderr, "28 layers do not fit "+target) {
			t.Errorf("%s: exit code %d\n%s", target, code, stderr)
		}
	}
	if code, _, stderr := exec("repack", dir, filepath.Join(t.TempDir(), "lut"), "--to", "lut"); code != exitFailed || !strings.Contains(stderr, "weights of kind trellis are not those of kind lut") {
		t.Errorf("exit code %d\n%s", code, stderr)
	}
}

// TestDamagedRings: verify finds what is damaged, and a table that is not this program's is refused.
func TestDamagedRings(t *testing.T) {
	dir := ringed(t)
	path := filepath.Join(dir, "model.safetensors")
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	data[len(data)-1] ^= 1
	if err := os.WriteFile(path, data, 0o644); err != nil {
		t.Fatal(err)
	}
	if code, stdout, _ := exec("verify", dir); code != exitCheck || !strings.Contains(stdout, "differs from what was written") {
		t.Errorf("exit code %d\n%s", code, stdout)
	}

	path = filepath.Join(dir, "config.json")
	if data, err = os.ReadFile(path); err != nil {
		t.Fatal(err)
	}
	var config map[string]any
	if err := json.Unmarshal(data, &config); err != nil {
		t.Fatal(err)
	}
	q := config["quantization_config"].(map[string]any)
	tables := q["tables"].(map[string]any)
	tables["3.5"] = tables["2"]
	if data, err = json.Marshal(config); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, data, 0o644); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{"verify", dir}, {"inspect", dir}, {"generate", dir, "--prompt", "x"}} {
		if code, _, stderr := exec(args...); code != exitFailed || !strings.Contains(stderr, "the table for 3.5 bits is not the one that this lutq has") {
			t.Errorf("%s: exit code %d\n%s", args[0], code, stderr)
		}
	}
}
