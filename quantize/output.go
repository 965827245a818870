package quantize

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/lutq/lutq/formats/card"
	"github.com/lutq/lutq/formats/hf"
	"github.com/lutq/lutq/formats/lutq"
	"github.com/lutq/lutq/formats/outdir"
)

// result gathers what the records say.
func (p *Plan) result(records []record, resumed int, ref *refined) *Result {
	res := &Result{Totals: p.Totals(), Kept: p.Kept(), Decoded: p.Decoded(), Resumed: resumed}
	if ref != nil {
		res.Learn = ref.Learning
	}
	if c := p.Recipe.Calibrate; c != nil {
		res.Calib = c.Record()
	}
	if t := p.Recipe.Transform; t != nil {
		res.Transform = t.Record()
	}
	res.sums = make(map[string]lutq.Sum)
	var sums []lutq.TensorSum
	var energy, squared float64
	for i := range p.Items {
		it, rec := &p.Items[i], &records[i]
		for j, s := range it.stored {
			res.sums[s.Name] = rec.Sums[j]
		}
		if !it.Quantized() {
			continue
		}
		for j, s := range it.stored {
			sums = append(sums, lutq.TensorSum{Entry: s.Entry, Sum: rec.Sums[j]})
		}
		for _, remark := range rec.Remarks {
			res.Remarks = append(res.Remarks, LayerRemark{it.Layer, it.Experts, remark})
		}
		energy += rec.Energy
		squared += rec.Squared
		res.Fit.addAll(rec.Fit)
		format := it.Format
		if rec.Refined {
			format.Method = learnedMethod(format)
		}
		res.Layers = append(res.Layers, LayerResult{
			Layer: it.Layer, N: it.N, K: it.K, Experts: it.Experts, Transposed: it.Transposed, Format: format,
			BytesIn: it.Tensor.StoredBytes(), BytesOut: it.BytesOut, Error: relative(rec.Squared, rec.Energy), OutputError: relative(rec.OutputSquared, rec.Output), Fit: rec.Fit, Narrow: rec.Narrow,
		})
	}
	var outputs, fitted float64
	for _, l := range res.Layers {
		if l.OutputError > 0 {
			outputs += l.OutputError * l.OutputError
			fitted++
		}
	}
	res.OutputError = relative(outputs, fitted)
	res.Experts = p.experts(records)
	res.Family, _ = p.Family()
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

// complete fails where a tensor of the source is neither in an output nor are the tensors that replace it.
func (p *Plan) complete(dir string) error {
	out, err := hf.Open(dir)
	if err != nil {
		return err
	}
	defer out.Close()
	for _, t := range p.Source.Tensors() {
		it := p.item(t.Name)
		if it == nil || len(it.stored) == 0 {
			return fmt.Errorf("%s: %s would be missing from the output", p.Source.Dir(), t.Name)
		}
		for _, s := range it.stored {
			if got, ok := out.Tensor(s.Name); !ok || got.DType != s.DType || !slices.Equal(got.Shape, s.Shape) {
				return fmt.Errorf("%s: %s of %s is missing from the output, or of another shape", p.Source.Dir(), s.Name, t.Name)
			}
		}
	}
	return nil
}

// sideFiles copies what is no tensor, and writes the code for transformers and the new config.json.
func (p *Plan) sideFiles(work string, res *Result) error {
	digests, err := frameDigests(work)
	if err != nil {
		return err
	}
	digests.Tensors = res.sums
	origin, original, err := p.origin()
	if err != nil {
		return err
	}
	for _, name := range p.Source.SideFiles() {
		to := name
		switch {
		case name == configName || name == lutq.CodeName || name == lutq.FactorsName:
			continue
		case name == card.FileName && original == "":
			continue
		case name == card.FileName:
			to = original
		}
		in, err := p.Source.OpenFile(name)
		if err != nil {
			return err
		}
		sum, err := outdir.Copy(filepath.Join(work, to), in)
		if err != nil {
			return err
		}
		digests.Files[to] = sum
	}
	code := lutq.Code()
	if err := os.WriteFile(filepath.Join(work, lutq.CodeName), code, 0o644); err != nil {
		return err
	}
	digests.Files[lutq.CodeName] = sha256.Sum256(code)
	if t := p.Recipe.Transform; t != nil {
		factors, err := t.File()
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(work, lutq.FactorsName), factors, 0o644); err != nil {
			return err
		}
		digests.Files[lutq.FactorsName] = sha256.Sum256(factors)
	}
	c := p.config(res, digests)
	config, err := p.configJSON(&c)
	if err != nil {
		return err
	}
	res.OwnCode = lutq.OwnCode(config)
	if err := os.WriteFile(filepath.Join(work, configName), config, 0o644); err != nil {
		return err
	}
	return writeCard(work, origin, nil)
}

// config returns what config.json says of a result.
func (p *Plan) config(res *Result, digests *lutq.Digests) lutq.Config {
	c := lutq.Config{
		QuantMethod: lutq.Method,
		Spec:        p.Recipe.Default, Command: p.Command(), SHA256: res.SHA256,
		Transform: res.Transform, Calib: res.Calib, Learn: res.Learn, Digests: digests, Tensors: make(map[string]lutq.TensorConfig, len(res.Layers)),
	}
	if p.Recipe.Refine != nil {
		c.Method = learnedMethod(c.Spec)
	}
	if c.Codebook == AutoCodebook {
		c.Codebook = mostChosen(res.Layers)
	}
	c.Codebook = storedName(c.Codebook)
	for _, l := range res.Layers {
		c.Tensors[l.Layer] = lutq.TensorConfig{
			Shape: [2]int{l.N, l.K}, Experts: l.Experts, Transposed: l.Transposed, Error: round6(l.Error), Spec: l.Format.Without(c.Spec),
		}
	}
	return c
}

// What the size of an output has room for besides what is known before it is made: the card, which has the command as well, the mark
// of the folder, and what is said of learned scales.
const (
	cardRoom = 8 << 10
	markRoom = 4 << 10
)

// OutBytes returns what all files of the plan's output take, at most: tensors with their headers and index, side files, config.json, the code
// for transformers and the card.
func (p *Plan) OutBytes(o RunOptions) (int64, error) {
	sum, err := hf.WrittenBytes(p.entries(), hf.WriterOptions{MaxShardSize: o.MaxShardSize})
	if err != nil {
		return 0, err
	}
	digests := &lutq.Digests{Headers: make(map[string]lutq.Sum), Files: make(map[string]lutq.Sum)}
	for _, name := range p.Source.SideFiles() {
		if name == configName || name == lutq.CodeName || name == lutq.FactorsName {
			continue
		}
		n, err := p.sideBytes(name)
		if err != nil {
			return 0, err
		}
		sum += n
		digests.Files[name] = lutq.Sum{}
	}
	if t := p.Recipe.Transform; t != nil {
		factors, err := t.File()
		if err != nil {
			return 0, err
		}
		sum += int64(len(factors))
	}
	records := make([]record, len(p.Items))
	for i := range p.Items {
		records[i] = record{Sums: make([]lutq.Sum, len(p.Items[i].stored)), rowSums: rowSums{Energy: 1, Squared: 0.015241}} // of six digits
	}
	res := p.result(records, 0, nil)
	res.SHA256 = lutq.Digest(nil)
	digests.Tensors = res.sums
	const shard = "model-00000-of-00000.safetensors"
	per := o.MaxShardSize
	if per == 0 {
		per = defaultShardBytes
	}
	for i := range 2*(sum/per) + 1 { // files that are half full at worst
		digests.Headers[fmt.Sprint(shard, i)] = lutq.Sum{}
	}
	c := p.config(res, digests)
	config, err := p.configJSON(&c)
	if err != nil {
		return 0, err
	}
	return sum + int64(len(config)+len(lutq.Code())+cardRoom+markRoom+len(p.Command())), nil
}

// defaultShardBytes is what a file of tensors has at most where nothing is said, or less.
const defaultShardBytes = 4 << 30

// sideBytes returns the size of a side file.
func (p *Plan) sideBytes(name string) (int64, error) {
	in, err := p.Source.OpenFile(name)
	if err != nil {
		return 0, err
	}
	n, err := io.Copy(io.Discard, in)
	return n, errors.Join(err, in.Close())
}

// mostChosen returns the table of [autoTables] that most layers have, the first of equals.
func mostChosen(layers []LayerResult) string {
	tables := autoTables()
	counts := make([]int, len(tables))
	for i := range layers {
		if t := slices.Index(tables, layers[i].Format.Codebook); t >= 0 {
			counts[t]++
		}
	}
	return tables[slices.Index(counts, slices.Max(counts))]
}

// dropSideFiles removes what an interrupted run copied: the model may have
// other side files now.
func dropSideFiles(work string) error {
	entries, err := os.ReadDir(work)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if filepath.Ext(e.Name()) == ".safetensors" {
			continue
		}
		if err := os.Remove(filepath.Join(work, e.Name())); err != nil {
			return err
		}
	}
	return nil
}

// configJSON returns the source's config.json with c in it.
func (p *Plan) configJSON(c *lutq.Config) ([]byte, error) {
	config, err := p.Source.ConfigJSON()
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

// frameDigests returns the digests of what stands around the tensors in a work
// folder: the headers of the shards and their index.
func frameDigests(work string) (*lutq.Digests, error) {
	ckpt, err := hf.Open(work)
	if err != nil {
		return nil, err
	}
	defer ckpt.Close()
	d := &lutq.Digests{Files: make(map[string]lutq.Sum)}
	if d.Headers, err = lutq.HeaderSums(ckpt); err != nil {
		return nil, err
	}
	if index := ckpt.Index(); index != "" {
		if d.Files[index], err = lutq.FileSum(filepath.Join(work, index)); err != nil {
			return nil, err
		}
	}
	return d, nil
}
