package quantize

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/lutq/lutq/formats/lutq"
	"github.com/lutq/lutq/formats/racetest"
	"github.com/lutq/lutq/formats/weight"
)

// container quantizes the tiny model by a recipe and opens what was written.
func container(t *testing.T, recipe string, shard int64) *lutq.Model {
	t.Helper()
	out := filepath.Join(t.TempDir(), "out")
	if _, err := plan(t, tiny, recipe).Run(t.Context(), out, RunOptions{MaxShardSize: shard}); err != nil {
		t.Fatal(err)
	}
	return openContainer(t, out)
}

func openContainer(t *testing.T, dir string) *lutq.Model {
	t.Helper()
	m, err := lutq.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Close() })
	return m
}

// convertTo converts a container, and holds the result to the same weights in another kind.
func convertTo(t *testing.T, m *lutq.Model, kind string) *lutq.Model {
	t.Helper()
	out := filepath.Join(t.TempDir(), "out")
	var done, total int64
	res, err := Convert(t.Context(), m, kind, out, ConvertOptions{Progress: func(d, of int64, _ string) { done, total = d, of }})
	if err != nil {
		t.Fatal(err)
	}
	if done != total || total == 0 {
		t.Errorf("progress ends at %d of %d bytes", done, total)
	}
	to := openContainer(t, out)
	report, err := to.Verify(t.Context(), lutq.VerifyOptions{Original: open(t, tiny)})
	if err != nil || len(report.Problems) > 0 || report.SHA256 != res.SHA256 {
		t.Errorf("verified: %+v, %v; sha256 %s", report, err, res.SHA256)
	}
	changed := 0
	for _, layer := range m.Linears() {
		a, err := m.Linear(layer)
		if err != nil {
			t.Fatal(err)
		}
		b, err := to.Linear(layer)
		if err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(weight.Dequantize(a), weight.Dequantize(b)) {
			t.Errorf("%s has other weights", layer)
		}
		if b.Kind() != kind || to.Spec(layer).Kind != kind {
			t.Errorf("%s is of kind %s, %s", layer, b.Kind(), to.Spec(layer).Kind)
		}
		if a.Kind() != b.Kind() {
			changed++
		}
		if x, y := m.Config().Tensors[layer], to.Config().Tensors[layer]; x.Error != y.Error || x.Shape != y.Shape {
			t.Errorf("%s: %+v became %+v", layer, x, y)
		}
	}
	if res.Changed != changed || res.Layers != len(m.Linears()) {
		t.Errorf("%d of %d layers changed: want %d of %d", res.Changed, res.Layers, changed, len(m.Linears()))
	}
	return to
}

// TestConvert turns tables of equal steps into binary codes and back, to the same digest.
func TestConvert(t *testing.T) {
	racetest.Skip(t)
	for _, tc := range []struct {
		recipe string
		stored string // the type of factors
		same   bool   // after turning back
	}{
		{`{"codebook": "q2", "group": 32}`, "f16", true},
		{`{"codebook": "q3", "scale_type": "bf16"}`, "bf16", true},
		{`{"codebook": "q4", "group": "row"}`, "f16", true},
		{`{"codebook": "q5", "tensors": [{"match": "down_proj", "bits": 3, "codebook": "q3"}]}`, "f16", true},
		{`{"codebook": "q4", "scale_type": "e8m0", "group": 32}`, "f16", false},
		{`{"codebook": "q4", "scale_type": "s1e4m3", "group": 32}`, "f16", false},
	} {
		t.Run(tc.recipe, func(t *testing.T) {
			m := container(t, tc.recipe, 300_000)
			binary := convertTo(t, m, "bcq")
			back := convertTo(t, binary, "lut")
			for _, layer := range m.Linears() {
				if got := binary.Spec(layer).ScaleType.String(); got != tc.stored {
					t.Errorf("%s: factors of type %s: want %s", layer, got, tc.stored)
				}
				if a, b := m.Spec(layer), back.Spec(layer); tc.same && (a.Codebook != b.Codebook || a.Bits != b.Bits || a.ScaleType != b.ScaleType) {
					t.Errorf("%s: %+v became %+v", layer, a, b)
				}
			}
			if same := back.Config().SHA256 == m.Config().SHA256; same != tc.same {
				t.Errorf("the same digest again: %v", same)
			}
			if want := m.Config().Command + "; lutq repack --to bcq OUT OTHER"; binary.Config().Command != want {
				t.Errorf("made by %s: want %s", binary.Config().Command, want)
			}
		})
	}
}

// TestConvertMixed leaves layers of the kind alone, in their own format.
func TestConvertMixed(t *testing.T) {
	racetest.Skip(t)
	m := container(t, `{"codebook": "q4", "tensors": [{"match": "down_proj", "kind": "bcq", "bits": 7}]}`, 0)
	to := convertTo(t, m, "bcq")
	again := convertTo(t, to, "bcq")
	if again.Config().SHA256 != to.Config().SHA256 {
		t.Error("converted twice it is another model")
	}
	const down = "model.layers.0.mlp.down_proj"
	if s := to.Spec(down); s.Bits != 7 || s.Method != "bcq" {
		t.Errorf("%s became %+v", down, s)
	}
	_, err := Convert(t.Context(), m, "lut", filepath.Join(t.TempDir(), "out"), ConvertOptions{})
	if err == nil || !strings.Contains(err.Error(), "4 of 28 layers cannot be of kind lut with the same weights: "+down+": 7 bits: tables have 2 to 5") {
		t.Errorf("got error %v", err)
	}
}

// TestConvertFails writes nothing where a layer cannot be converted, or is not what was written.
func TestConvertFails(t *testing.T) {
	racetest.Skip(t)
	dir := t.TempDir()
	out := filepath.Join(dir, "out")
	gone := func(name string) {
		t.Helper()
		if entries, err := os.ReadDir(dir); err != nil || len(entries) > 0 {
			t.Errorf("%s: %v stand there, %v", name, entries, err)
		}
	}
	_, err := Convert(t.Context(), container(t, `{}`, 0), "bcq", out, ConvertOptions{})
	var inexact *InexactError
	if !errors.As(err, &inexact) || len(inexact.Layers) != 28 || !strings.Contains(err.Error(), "equal steps, as binary codes have them") {
		t.Errorf("a table of unequal steps: got error %v", err)
	}
	gone("a table of unequal steps")
	if _, err := Convert(t.Context(), container(t, `{}`, 0), "zip", out, ConvertOptions{}); err == nil || !strings.Contains(err.Error(), `unknown kind "zip"`) {
		t.Errorf("got error %v", err)
	}
	for _, name := range []string{"model.embed_tokens.weight", "model.layers.1.mlp.up_proj.codes", "tokenizer.json"} {
		m := container(t, `{"codebook": "q4"}`, 0)
		path, at := filepath.Join(m.Checkpoint().Dir(), name), int64(100)
		if tensor, ok := m.Checkpoint().Tensor(name); ok {
			path = filepath.Join(m.Checkpoint().Dir(), tensor.Shard)
			header, err := m.Checkpoint().Header(tensor.Shard)
			if err != nil {
				t.Fatal(err)
			}
			data := make([]byte, 64)
			if _, err := tensor.ReadAt(data, 0); err != nil {
				t.Fatal(err)
			}
			file, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			at = int64(len(header) + strings.Index(string(file[len(header):]), string(data)))
		}
		flip(t, path, at)
		if _, err := Convert(t.Context(), m, "bcq", out, ConvertOptions{}); !errors.Is(err, lutq.ErrDiffers) || !strings.Contains(err.Error(), name) {
			t.Errorf("%s is damaged: got error %v", name, err)
		}
		gone(name)
	}
}

// flip flips a bit of a file.
func flip(t *testing.T, path string, at int64) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var b [1]byte
	if _, err := f.ReadAt(b[:], at); err != nil {
		t.Fatal(err)
	}
	b[0] ^= 1
	if _, err := f.WriteAt(b[:], at); err != nil {
		t.Fatal(err)
	}
}
