package lutq_test

import (
	"bytes"
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/lutq/lutq/formats/hf"
	"github.com/lutq/lutq/formats/lutq"
	"github.com/lutq/lutq/formats/num"
	"github.com/lutq/lutq/formats/racetest"
	"github.com/lutq/lutq/formats/source/modeltest"
	"github.com/lutq/lutq/formats/weight"
	"github.com/lutq/lutq/quantize"
	"github.com/lutq/lutq/quantize/quantizetest"
)

const tiny = "../../calib/testdata/lutq-tiny"

// container quantizes the tiny model.
func container(t testing.TB, recipe string) string {
	t.Helper()
	return quantizetest.Container(t, tiny, quantizetest.Recipe(t, recipe))
}

// binary quantizes the tiny model into a container with binary codes and, in one layer,
// a table.
func binary(t testing.TB, offset bool) string {
	t.Helper()
	p, err := quantize.NewPlan(modeltest.Open(t, tiny), quantize.Recipe{
		Default: weight.Spec{Bits: 3, Group: 64, Method: "bcq"},
		Rules:   []quantize.Rule{{Match: regexp.MustCompile("layers.1.mlp.down_proj"), Format: weight.Spec{Kind: "lut"}}},
		Methods: quantize.MethodOptions{BCQ: quantize.BCQOptions{Rounds: 2, Offset: offset}},
	})
	if err != nil {
		t.Fatal(err)
	}
	out := filepath.Join(t.TempDir(), "out")
	if _, err := p.Run(t.Context(), out, quantize.RunOptions{}); err != nil {
		t.Fatal(err)
	}
	return out
}

// openUnchecked opens a container without a look at its digests.
func openUnchecked(dir string) (*lutq.Model, error) {
	c, err := hf.Open(dir)
	if err != nil {
		return nil, err
	}
	m, err := lutq.Of(c, false)
	if err != nil {
		c.Close()
	}
	return m, err
}

func open(t testing.TB, dir string) *hf.Checkpoint {
	t.Helper()
	c, err := hf.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// editConfig changes the quantization_config of a container and takes its
// digests away: it is then as one written before there were any.
func editConfig(t *testing.T, dir string, edit func(q map[string]any)) {
	t.Helper()
	path := filepath.Join(dir, "config.json")
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var config map[string]any
	if err := json.Unmarshal(data, &config); err != nil {
		t.Fatal(err)
	}
	q := config["quantization_config"].(map[string]any)
	delete(q, "digests")
	delete(q, "config_sha256")
	edit(q)
	if data, err = json.Marshal(config); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, data, 0o644); err != nil {
		t.Fatal(err)
	}
}

// patch overwrites bytes of a stored tensor.
func patch(t *testing.T, dir, tensor string, off int64, data []byte) {
	t.Helper()
	path := filepath.Join(dir, "model.safetensors")
	file, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	size := int64(file[0]) | int64(file[1])<<8 | int64(file[2])<<16
	var header map[string]struct {
		Offsets [2]int64 `json:"data_offsets"`
	}
	text := file[8 : 8+size]
	if err := json.Unmarshal(text, &header); err != nil {
		t.Fatal(err)
	}
	at, ok := header[tensor]
	if !ok {
		t.Fatalf("no tensor %s", tensor)
	}
	copy(file[8+size+at.Offsets[0]+off:], data)
	if err := os.WriteFile(path, file, 0o644); err != nil {
		t.Fatal(err)
	}
}

const layer = "model.layers.2.mlp.down_proj"

func float32Bytes(v float32) []byte {
	b := make([]byte, 4)
	num.EncodeF32(b, []float32{v})
	return b
}

func TestOpen(t *testing.T) {
	racetest.Skip(t)
	tensor := func(q map[string]any) map[string]any { return q["tensors"].(map[string]any)[layer].(map[string]any) }
	for _, tc := range []struct {
		name string
		edit func(q map[string]any)
		want string
	}{
		{"version", func(q map[string]any) { q["version"] = 4 }, "container version 4: this lutq reads versions 1 to 3"},
		{"kind of version 3 before that", func(q map[string]any) { q["version"] = 2; tensor(q)["kind"] = "trellis" }, "version 2 knows no layers of kind trellis"},
		{"kind before there were any", func(q map[string]any) { tensor(q)["kind"] = "bcq" }, "version 1 knows no kinds of layers"},
		{"default kind before there were any", func(q map[string]any) { q["kind"] = "lut" }, "version 1 knows no kinds of layers"},
		{"unknown kind", func(q map[string]any) { q["version"] = 2; tensor(q)["kind"] = "zip" }, `unknown kind "zip"`},
		{"another kind", func(q map[string]any) { q["version"] = 2; tensor(q)["kind"] = "bcq" }, "down_proj.planes is missing"},
		{"method", func(q map[string]any) { q["quant_method"] = "gptq" }, "not of quant_method lutq"},
		{"bits", func(q map[string]any) { q["bits"] = 9 }, "bits is 9"},
		{"group", func(q map[string]any) { q["group"] = -3 }, "group is -3"},
		{"scale type", func(q map[string]any) { q["scale_type"] = "f8" }, "unknown scale type"},
		{"type of a field", func(q map[string]any) { q["bits"] = "four" }, "cannot unmarshal string"},
		{"shape", func(q map[string]any) { tensor(q)["shape"] = []int{128, 0} }, "has shape [128 0]"},
		{"other shape", func(q map[string]any) { tensor(q)["shape"] = []int{64, 384} }, "down_proj.scales has shape [128 6]: want [64 6]"},
		{"other bits", func(q map[string]any) { tensor(q)["bits"] = 3 }, "has shape"},
		{"other group", func(q map[string]any) { tensor(q)["group"] = 32 }, "scales has shape [128 6]: want [128 12]"},
		{"other scales", func(q map[string]any) { tensor(q)["scale_type"] = "bf16" }, "is of type F16: want BF16"},
		{"missing layer", func(q map[string]any) { q["tensors"].(map[string]any)["x"] = tensor(q) }, "tensor x.codebook is missing"},
		{"unnamed layer", func(q map[string]any) { delete(q["tensors"].(map[string]any), layer) }, "is not in the quantization_config"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			dir := container(t, `{}`)
			editConfig(t, dir, tc.edit)
			m, err := lutq.Open(dir)
			if err == nil {
				m.Close()
			}
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got error %v, want %q", err, tc.want)
			}
		})
	}
	if _, err := lutq.Open(tiny); err == nil || !strings.Contains(err.Error(), "not a lutq container") {
		t.Errorf("a model that is not quantized: got error %v", err)
	}
}

func TestVerify(t *testing.T) {
	racetest.Skip(t)
	for _, tc := range []struct {
		name   string
		tensor string // to patch
		off    int64
		data   []byte
		want   []string // problems without and with the original
	}{
		{"a code", layer + ".codes", 17, []byte{0xff}, []string{"model.safetensors: " + layer + ".codes differs from what was written", "is not the nearest"}},
		{"a scale", layer + ".scales", 2, []byte{0x11}, []string{layer + ".scales differs from what was written", "nearest"}},
		{"an infinite scale", layer + ".scales", 1, []byte{0x7c, 0}, []string{"scale [0, 0]", "scale [0, 0]"}},
		{"a table that descends", layer + ".codebook", 60, float32Bytes(-2), []string{"is below the one before it", "is below"}},
		{"a NaN in a table", layer + ".codebook", 60, float32Bytes(float32(math.NaN())), []string{"is NaN", "is NaN"}},
		{"a norm", "model.norm.weight", 3, []byte{0x01}, []string{"model.norm.weight differs from what was written", "model.norm.weight differs from the original"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			dir := container(t, `{}`)
			patch(t, dir, tc.tensor, tc.off, tc.data)
			m, err := openUnchecked(dir)
			if err != nil {
				t.Fatal(err)
			}
			defer m.Close()
			for i, o := range []lutq.VerifyOptions{{}, {Original: open(t, tiny), Threads: 2}} {
				r, err := m.Verify(t.Context(), o)
				if err != nil {
					t.Fatal(err)
				}
				got := strings.Join(r.Problems, "\n")
				if !strings.Contains(got, tc.want[i]) {
					t.Errorf("with original %v: got problems %q, want %q", o.Original != nil, got, tc.want[i])
				}
			}
		})
	}
}

// TestVerifyOtherOriginal verifies against a model that the container was not
// made from.
func TestVerifyOtherOriginal(t *testing.T) {
	racetest.Skip(t)
	const norm = "model.norm.weight"
	for _, tc := range []struct {
		name, tensor string
		edit         func(e *hf.Entry) bool // of that tensor of the original, or false: it has none
		want         string
	}{
		{"no layer", layer + lutq.WeightSuffix, func(*hf.Entry) bool { return false }, layer + ".weight is not in the original"},
		{"layer's shape", layer + lutq.WeightSuffix, func(e *hf.Entry) bool { e.Shape = []int{384, 128}; return true }, layer + " has shape [128 384]: the original's is [384 128]"},
		{"no norm", norm, func(*hf.Entry) bool { return false }, norm + " is not in the original"},
		{"norm's type", norm, func(e *hf.Entry) bool { e.DType = hf.F32; return true }, norm + " is BF16 [128]: the original's is F32 [128]"},
		{"norm's shape", norm, func(e *hf.Entry) bool { e.Shape = []int{2, 64}; return true }, norm + " is BF16 [128]: the original's is BF16 [2 64]"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			src, dir := open(t, tiny), t.TempDir()
			var entries []hf.Entry
			for _, x := range src.Tensors() {
				e := hf.Entry{Name: x.Name, DType: x.DType, Shape: x.Shape}
				if x.Name != tc.tensor || tc.edit(&e) {
					entries = append(entries, e)
				}
			}
			w, err := hf.NewWriter(dir, entries, hf.WriterOptions{})
			if err != nil {
				t.Fatal(err)
			}
			for _, e := range entries {
				x, ok := src.Tensor(e.Name)
				if !ok {
					t.Fatalf("no tensor %s", e.Name)
				}
				data := make([]byte, x.Bytes())
				if _, err := x.ReadAt(data, 0); err != nil {
					t.Fatal(err)
				}
				if e.DType != x.DType {
					data = append(data, data...) // twice as wide
				}
				if err := w.WriteAt(e.Name, data, 0); err != nil {
					t.Fatal(err)
				}
			}
			if err := w.Commit(); err != nil {
				t.Fatal(err)
			}
			m, err := lutq.Open(container(t, `{}`))
			if err != nil {
				t.Fatal(err)
			}
			defer m.Close()
			r, err := m.Verify(t.Context(), lutq.VerifyOptions{Original: open(t, dir)})
			if err != nil {
				t.Fatal(err)
			}
			if got := strings.Join(r.Problems, "\n"); got != tc.want {
				t.Errorf("got problems %q, want %q", got, tc.want)
			}
		})
	}
}

func TestVerifyError(t *testing.T) {
	dir := container(t, `{}`)
	editConfig(t, dir, func(q map[string]any) {
		q["tensors"].(map[string]any)[layer].(map[string]any)["error"] = 0.08
	})
	m, err := lutq.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	r, err := m.Verify(t.Context(), lutq.VerifyOptions{Original: open(t, tiny)})
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Problems) != 1 || !strings.Contains(r.Problems[0], "the configuration says 0.08") {
		t.Errorf("got problems %q", r.Problems)
	}
}

func TestAddTo(t *testing.T) {
	c := lutq.Config{QuantMethod: lutq.Method, Version: 1}
	for _, tc := range []struct{ name, config, fail string }{
		{"pretty", "{\n  \"a\": 1\n}\n", ""},
		{"one line", `{"a": {"b": "}"}}`, ""},
		{"empty object", `{}`, ""},
		{"quantized already", `{"quantization_config": {}}`, "is quantized"},
		{"not an object", `[1]`, "not a JSON object"},
		{"null", `null`, "not a JSON object"},
		{"not JSON", `{"a": `, "not a JSON object"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			out, err := c.AddTo([]byte(tc.config))
			if tc.fail != "" {
				if err == nil || !strings.Contains(err.Error(), tc.fail) {
					t.Errorf("got error %v, want %q", err, tc.fail)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if !json.Valid(out) || !lutq.IsContainer(lutq.QuantizationConfig(out)) {
				t.Errorf("got %s", out)
			}
			if head := strings.TrimRight(tc.config, "}\n "); !bytes.HasPrefix(out, []byte(head)) {
				t.Errorf("%s does not begin as %s", out, tc.config)
			}
		})
	}
}

func FuzzParseConfig(f *testing.F) {
	f.Add([]byte(`{"quant_method": "lutq", "version": 1, "bits": 4, "group": 64, "codebook": "nf", "scale_type": "f16", "sha256": "", "tensors": {"a": {"shape": [4, 4], "error": 0.1, "bits": 3}}}`))
	f.Add([]byte(`{"quant_method": "lutq", "version": 1, "bits": 4, "group": -1, "scale_type": "e4m4", "tensors": {"a": {"shape": [-1, 4]}}}`))
	f.Add([]byte(`{"quant_method": "lutq", "version": 2, "kind": "bcq", "bits": 7, "group": 64, "scale_type": "f32", "sha256": "", "tensors": {"a": {"shape": [4, 5], "error": 0.1, "kind": "lut", "bits": 3}, "b": {"shape": [1, 1]}}}`))
	f.Add([]byte(`{"quant_method": "lutq", "version": 2, "bits": 4, "group": 64, "scale_type": "e4m4", "tensors": {"a": {"shape": [4, 5], "kind": "bcq"}}}`))
	f.Add([]byte(`{"quant_method": "gptq", "bits": 4}`))
	f.Add([]byte(`{"quant_method": "lutq", "version": 3, "kind": "trellis", "bits": 2, "half": true, "group": -1, "codebook": "mul1", "scale_type": "f16", "sha256": "", "tensors": {"a": {"shape": [4, 5], "error": 0.1, "bits": 7}, "b": {"shape": [1, 1], "codebook": "mcg", "bits": 1}}}`))
	f.Add([]byte(`{"quant_method": "lutq", "version": 3, "bits": 2, "group": -1, "codebook": "nf", "scale_type": "f16", "tables": {"2": "AAAA"}, "tensors": {"a": {"shape": [4, 5], "kind": "trellis", "codebook": "trellis"}, "b": {"shape": [4, 5], "kind": "trellis"}}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		c, err := lutq.ParseConfig(data)
		if err != nil {
			return
		}
		for name, tc := range c.Tensors {
			if c.Version == lutq.Version1 && tc.Or(c.Spec).Kind != "" {
				t.Fatalf("%s: a kind in version 1", name)
			}
			kind, err := lutq.KindOf(tc.Or(c.Spec).Kind)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := kind.Parts(tc.Or(c.Spec), tc.Shape[0], tc.Shape[1]); err != nil {
				t.Fatalf("%s: a parsed spec has no parts: %v", name, err)
			}
		}
	})
}
