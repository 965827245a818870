package quantize

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/lutq/lutq/formats/input"
	"github.com/lutq/lutq/formats/lutq"
)

// checkOutput refuses an output that exists or that is the source.
func (p *Plan) checkOutput(out string, force bool) error {
	src, err := filepath.EvalSymlinks(p.Source.Dir())
	if err != nil {
		return err
	}
	if dst, err := filepath.EvalSymlinks(out); err == nil && dst == src {
		return fmt.Errorf("%s: the output is the model itself", out)
	}
	entries, err := os.ReadDir(out)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	case len(entries) > 0 && !force:
		return fmt.Errorf("%s: %w", out, ErrExists)
	}
	return nil
}

// install moves the finished folder to its place. A folder that stands there
// goes only when the new one is ready.
func install(work, out string) error {
	err := os.Rename(work, out)
	if err == nil {
		return nil
	}
	if _, statErr := os.Stat(out); statErr != nil {
		return err
	}
	old := filepath.Clean(out) + ".replaced"
	if err := os.RemoveAll(old); err != nil {
		return err
	}
	if err := os.Rename(out, old); err != nil {
		return err
	}
	if err := os.Rename(work, out); err != nil {
		return errors.Join(err, os.Rename(old, out))
	}
	return os.RemoveAll(old)
}

// result gathers what the records say.
func (p *Plan) result(records []record, resumed int, ref *refined) *Result {
	res := &Result{Totals: p.Totals(), Kept: p.Kept(), Resumed: resumed}
	if ref != nil {
		res.Learn = ref.learning
	}
	var sums []lutq.TensorSum
	var energy, squared float64
	for i := range p.Items {
		it, rec := &p.Items[i], &records[i]
		if !it.Quantized() {
			continue
		}
		for j, s := range it.stored {
			sums = append(sums, lutq.TensorSum{Entry: s.Entry, Sum: rec.Sums[j]})
		}
		energy += rec.Energy
		squared += rec.Squared
		format := it.Format
		if ref != nil && ref.better[it.Layer] {
			format.Method = refinedMethod(format)
		}
		res.Layers = append(res.Layers, LayerResult{
			Layer: it.Layer, N: it.N, K: it.K, Format: format,
			BytesIn: it.Tensor.Bytes(), BytesOut: it.BytesOut, Error: relative(rec.Squared, rec.Energy),
		})
	}
	res.SHA256 = lutq.Digest(sums)
	res.Error = relative(squared, energy)
	return res
}

func relative(squared, energy float64) float64 {
	if energy == 0 {
		return 0
	}
	return math.Sqrt(squared / energy)
}

// sideFiles copies what is no tensor and writes the new config.json.
func (p *Plan) sideFiles(work string, res *Result) error {
	for _, name := range p.Source.SideFiles() {
		if name == configName {
			continue
		}
		if err := copyFile(filepath.Join(work, name), filepath.Join(p.Source.Dir(), name)); err != nil {
			return err
		}
	}
	c := lutq.Config{
		QuantMethod: lutq.Method, Version: lutq.Version,
		Format: p.Recipe.Default, Command: p.Recipe.Command(), SHA256: res.SHA256,
		Learn: res.Learn, Tensors: make(map[string]lutq.TensorConfig, len(res.Layers)),
	}
	if p.Recipe.Refine != nil {
		c.Method = refinedMethod(c.Format)
	}
	c.Codebook = storedName(c.Codebook)
	for _, l := range res.Layers {
		c.Tensors[l.Layer] = lutq.TensorConfig{
			Shape: [2]int{l.N, l.K}, Error: round6(l.Error), Format: l.Format.Without(c.Format),
		}
	}
	config, err := p.configJSON(&c)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(work, configName), config, 0o644)
}

// configJSON returns the source's config.json with c in it.
func (p *Plan) configJSON(c *lutq.Config) ([]byte, error) {
	config, err := input.ReadFile(filepath.Join(p.Source.Dir(), configName), input.Config)
	if err != nil {
		return nil, err
	}
	if config, err = c.AddTo(config); err != nil {
		return nil, fmt.Errorf("%s: %w", p.Source.Dir(), err)
	}
	return config, nil
}

const configName = "config.json"

// storedName is a codebook's name without the folder of its file.
func storedName(codebook string) string {
	if path, ok := strings.CutPrefix(codebook, filePrefix); ok {
		return filePrefix + filepath.Base(path)
	}
	return codebook
}

// round6 keeps six significant digits.
func round6(x float64) float64 {
	x, _ = strconv.ParseFloat(strconv.FormatFloat(x, 'g', 6, 64), 64)
	return x
}

func copyFile(dst, src string) error {
	in, err := input.Open(src)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.Create(dst)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Close())
}
