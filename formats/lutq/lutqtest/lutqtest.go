// Package lutqtest writes containers for tests of layers that nothing has to quantize: random ones.
package lutqtest

import (
	"crypto/sha256"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"github.com/lutq/lutq/formats/hf"
	"github.com/lutq/lutq/formats/lutq"
	"github.com/lutq/lutq/formats/outdir"
	"github.com/lutq/lutq/formats/weight"
	"github.com/lutq/lutq/formats/weight/trellis"
	"github.com/lutq/lutq/formats/weight/trellis/trellistest"
)

// Layer is one that is stored as random rings.
type Layer struct {
	Spec           weight.Spec
	Factors, Table bool // stored
}

// Trellis writes a folder's model as a container in a new folder. Matrices that choose gives a spec with bits are random rings;
// what it says of others is not read, and they are copied. It is given the names of layers.
func Trellis(t testing.TB, model string, choose func(layer string) Layer) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "out")
	if err := write(model, dir, choose); err != nil {
		t.Fatal(err)
	}
	return dir
}

// piece is a tensor to write.
type piece struct {
	hf.Entry
	data []byte
}

func write(model, dir string, choose func(layer string) Layer) error {
	src, err := hf.Open(model)
	if err != nil {
		return err
	}
	defer src.Close()
	if err := os.Mkdir(dir, 0o755); err != nil {
		return err
	}
	rng := rand.New(rand.NewPCG(35, 0))
	digests := &lutq.Digests{Tensors: make(map[string]lutq.Sum), Files: make(map[string]lutq.Sum)}
	config := &lutq.Config{
		QuantMethod: lutq.Method, Spec: trellistest.Spec(trellis.Pairs, 4, weight.F16), Digests: digests,
		Tensors: make(map[string]lutq.TensorConfig),
	}
	config.Method = "gptq"
	var pieces []piece
	var sums []lutq.TensorSum
	for _, x := range src.Tensors() {
		var l Layer
		layer := x.Name[:max(len(x.Name)-len(lutq.WeightSuffix), 0)]
		if len(x.Shape) == 2 && layer+lutq.WeightSuffix == x.Name {
			l = choose(layer)
		}
		if l.Spec.Bits == 0 {
			data := make([]byte, x.Bytes())
			if _, err := x.ReadAt(data, 0); err != nil {
				return err
			}
			digests.Tensors[x.Name] = sha256.Sum256(data)
			pieces = append(pieces, piece{hf.Entry{Name: x.Name, DType: x.DType, Shape: x.Shape}, data})
			continue
		}
		n, k := x.Shape[0], x.Shape[1]
		m, err := trellistest.Matrix(rng, l.Spec, n, k, l.Factors, l.Table)
		if err != nil {
			return err
		}
		rel, err := relative(x, m)
		if err != nil {
			return err
		}
		config.Tensors[layer] = lutq.TensorConfig{Shape: [2]int{n, k}, Error: rel, Spec: l.Spec.Without(config.Spec)}
		parts, err := trellis.Kind{}.Parts(l.Spec, n, k)
		if err != nil {
			return err
		}
		for i, e := range lutq.Entries(layer, parts) {
			data := m.Parts()[i]
			if data == nil {
				continue
			}
			sum := lutq.Sum(sha256.Sum256(data))
			digests.Tensors[e.Name] = sum
			sums = append(sums, lutq.TensorSum{Entry: e, Sum: sum})
			pieces = append(pieces, piece{e, data})
		}
	}
	config.SHA256 = lutq.Digest(sums)
	var entries []hf.Entry
	for _, p := range pieces {
		entries = append(entries, p.Entry)
	}
	w, err := hf.NewWriter(dir, entries, hf.WriterOptions{})
	if err != nil {
		return err
	}
	defer w.Abort()
	for _, p := range pieces {
		if err := w.WriteAt(p.Name, p.data, 0); err != nil {
			return err
		}
	}
	if err := w.Commit(); err != nil {
		return err
	}
	return finish(src, dir, config)
}

// finish writes what is no tensor.
func finish(src *hf.Checkpoint, dir string, config *lutq.Config) error {
	out, err := hf.Open(dir)
	if err != nil {
		return err
	}
	defer out.Close()
	if config.Digests.Headers, err = lutq.HeaderSums(out); err != nil {
		return err
	}
	code := lutq.Code()
	if err := os.WriteFile(filepath.Join(dir, lutq.CodeName), code, 0o644); err != nil {
		return err
	}
	config.Digests.Files[lutq.CodeName] = sha256.Sum256(code)
	for _, name := range src.SideFiles() {
		if name == "config.json" || name == lutq.CodeName {
			continue
		}
		in, err := src.OpenFile(name)
		if err != nil {
			return err
		}
		sum, err := outdir.Copy(filepath.Join(dir, name), in)
		if err != nil {
			return err
		}
		config.Digests.Files[name] = sum
	}
	data, err := src.ConfigJSON()
	if err != nil {
		return err
	}
	if data, err = config.AddTo(data); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, "config.json"), data, 0o644)
}

// relative returns ‖W-Ŵ‖/‖W‖ for W in a tensor.
func relative(x *hf.Tensor, m weight.Matrix) (float64, error) {
	w := make([]float32, x.Elements())
	if err := x.ReadFloat32(w, 0); err != nil {
		return 0, err
	}
	var energy, squared float64
	for i, v := range weight.Dequantize(m) {
		d := float64(w[i]) - float64(v)
		energy, squared = energy+float64(w[i])*float64(w[i]), squared+d*d
	}
	return math.Sqrt(squared / energy), nil
}
