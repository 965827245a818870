package lutq_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/lutq/lutq/formats/lutq"
	"github.com/lutq/lutq/formats/num"
	"github.com/lutq/lutq/formats/racetest"
	"github.com/lutq/lutq/formats/weight"
)

// binaryCodes stands for a container with offsets, and a layer with a table; randomRings for one of rings of every
// codebook, and oddRings for shapes that nothing divides.
const (
	binaryCodes = "binary codes"
	randomRings = "random rings"
	oddRings    = "rings of odd shapes"
)

// TestPythonReader compares the weights of containers in many formats, bit for
// bit, with those that scripts/read_container.py reads with numpy and the
// Python safetensors library.
func TestPythonReader(t *testing.T) {
	racetest.Skip(t)
	python := interpreter(t)
	for _, recipe := range []string{
		`{}`,
		`{"bits": 3, "group": 32, "codebook": "js", "scale_type": "bf16"}`,
		`{"bits": 5, "group": 256, "codebook": "int", "scale_type": "f32"}`,
		`{"bits": 2, "group": "row", "codebook": "js"}`,
		`{"bits": 4, "group": 32, "codebook": "jt", "scale_type": "e4m4"}`,
		`{"bits": 4, "group": 32, "codebook": "js", "scale_type": "s1e4m3"}`,
		`{"codebook": "e2m1", "group": 32, "scale_type": "e8m0"}`,
		`{"codebook": "iq4nl", "group": 32}`,
		`{"method": "bcq", "bits": 3, "group": 32}`,
		binaryCodes,
		randomRings,
		oddRings,
		`{"codebook": "trellis", "bits": 2, "tensors": [{"match": "down_proj", "bits": 3.5}]}`,
		`{"method": "magnitude", "bits": 3, "group": 32}`,
		`{"method": "magnitude", "group": "row", "scale_type": "e4m4"}`,
		`{"bits": 4, "group": 128, "codebook": "fp", "tensors": [{"match": "down_proj", "bits": 3, "group": 32, "codebook": "kbit", "scale_type": "e4m4"}, {"match": "embed", "bits": 5}]}`,
	} {
		t.Run(recipe, func(t *testing.T) {
			var dir string
			switch recipe {
			case binaryCodes:
				dir = binary(t, true)
			case randomRings:
				dir = rings(t)
			case oddRings:
				dir = odd(t)
			default:
				dir = container(t, recipe)
			}
			cmd := exec.Command(python, "../../scripts/read_container.py", dir, "--json")
			var stderr bytes.Buffer
			cmd.Stderr = &stderr
			out, err := cmd.Output()
			if err != nil {
				t.Fatalf("%v\n%s", err, stderr.String())
			}
			var read struct {
				SHA256 string            `json:"sha256"`
				Layers map[string]string `json:"layers"`
			}
			if err := json.Unmarshal(out, &read); err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
			m, err := lutq.Open(dir)
			if err != nil {
				t.Fatal(err)
			}
			defer m.Close()
			if len(read.Layers) != len(m.Linears()) {
				t.Errorf("Python reads %d layers, want %d", len(read.Layers), len(m.Linears()))
			}
			for _, layer := range m.Linears() {
				mat, err := m.Linear(layer)
				if err != nil {
					t.Fatal(err)
				}
				w := weight.Dequantize(mat)
				data := make([]byte, 4*len(w))
				num.EncodeF32(data, w)
				sum := sha256.Sum256(data)
				if want := hex.EncodeToString(sum[:]); read.Layers[layer] != want {
					t.Errorf("%s: Python's weights hash to %s, want %s", layer, read.Layers[layer], want)
				}
			}
		})
	}
}

// TestPythonLoader holds the weights of rings of every codebook, as the file for transformers unpacks them, against those of
// scripts/read_container.py: all, and some rows.
func TestPythonLoader(t *testing.T) {
	racetest.Skip(t)
	python := interpreter(t)
	if err := exec.Command(python, "-c", "import importlib.util as u; assert u.find_spec('torch') and u.find_spec('transformers')").Run(); err != nil {
		t.Skip("no PyTorch or no transformers: scripts/venv.sh interop installs them")
	}
	out, err := exec.Command(python, "../../scripts/interop_hf.py", "--container", rings(t), "--container", odd(t)).CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if lines := bytes.Count(out, []byte("model.")); lines != 29+48 {
		t.Errorf("%d layers:\n%s", lines, out)
	}
}

// interpreter returns the one that has what scripts need.
func interpreter(t *testing.T) string {
	t.Helper()
	python, err := filepath.Abs("../../.venv/bin/python")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(python); err != nil {
		t.Skip("no .venv: scripts/venv.sh makes it")
	}
	return python
}
