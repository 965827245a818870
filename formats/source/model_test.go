package source_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/lutq/lutq/formats/added"
	"github.com/lutq/lutq/formats/hf"
	"github.com/lutq/lutq/formats/input"
	"github.com/lutq/lutq/formats/lutq"
	"github.com/lutq/lutq/formats/ranks"
	"github.com/lutq/lutq/formats/source"
	"github.com/lutq/lutq/formats/source/modeltest"
	"github.com/lutq/lutq/formats/source/sourcetest"
	"github.com/lutq/lutq/quantize"
	"github.com/lutq/lutq/quantize/quantizetest"
)

const tiny = "../../calib/testdata/lutq-tiny"

// container quantizes a model, by rules of quantize's --tensor as well.
func container(t *testing.T, dir string, rules ...string) string {
	t.Helper()
	var r quantize.Recipe
	for _, text := range rules {
		rule, err := quantize.ParseRule(text)
		if err != nil {
			t.Fatal(err)
		}
		r.Rules = append(r.Rules, rule)
	}
	return quantizetest.Container(t, dir, r)
}

// TestOnce: what is opened and decided is so once, and told of once.
func TestOnce(t *testing.T) {
	dir := t.TempDir()
	if err := os.CopyFS(dir, os.DirFS(tiny)); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "model.safetensors.index.json"), []byte(`{"weight_map": {"a": "other.safetensors"}}`), 0o644); err != nil {
		t.Fatal(err)
	}
	var told []string
	m, err := source.Open(dir, source.Options{Note: func(line string) { told = append(told, line) }})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	if len(told) > 0 {
		t.Errorf("told %q before anything was read", told)
	}
	var weights []*hf.Checkpoint
	for range 2 {
		for _, open := range []func() (*hf.Checkpoint, error){m.Stored, m.Weights} {
			c, err := open()
			if err != nil {
				t.Fatal(err)
			}
			weights = append(weights, c)
		}
		if _, err := m.Decoder(); err != nil {
			t.Fatal(err)
		}
	}
	if len(slices.Compact(weights)) != 1 {
		t.Error("the weights were opened several times")
	}
	if len(told) != 1 || !strings.Contains(told[0], "as well as an index") {
		t.Errorf("told %q", told)
	}
}

// TestLazy: files beside weights are read whatever there is of these, and a file by itself is no folder.
func TestLazy(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, source.TokenizerFile)
	if err := os.WriteFile(file, []byte("{}"), 0o644); err != nil {
		t.Fatal(err)
	}
	m := modeltest.Open(t, dir)
	if data, err := m.File(source.TokenizerFile, input.Tokenizer); err != nil || string(data) != "{}" || m.Alone() {
		t.Errorf("read %s, %v", data, err)
	}
	var none *hf.NoWeightsError
	if _, err := m.Weights(); !errors.As(err, &none) {
		t.Errorf("without weights: %v", err)
	}
	if is, err := m.IsContainer(); is || err != nil {
		t.Errorf("without a config.json it is a container: %v, %v", is, err)
	}
	alone := modeltest.Open(t, file)
	var missing *hf.NotFoundError
	if _, err := alone.Weights(); !errors.As(err, &missing) || !missing.File || !alone.Alone() {
		t.Errorf("a file: %v", err)
	}
}

// TestContainer: files beside a container's weights are held against its digests, unless it is opened unchecked.
func TestContainer(t *testing.T) {
	dir := container(t, tiny)
	path := filepath.Join(dir, source.TokenizerFile)
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, append(data, ' '), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, unchecked := range []bool{false, true} {
		m, err := source.Open(dir, source.Options{Unchecked: unchecked})
		if err != nil {
			t.Fatal(err)
		}
		defer m.Close()
		if is, err := m.IsContainer(); !is || err != nil {
			t.Errorf("it is a container: %v, %v", is, err)
		}
		if err := m.Check(m.TokenizerFiles()...); errors.Is(err, lutq.ErrDiffers) == unchecked || (err == nil) != unchecked {
			t.Errorf("unchecked %v: %v", unchecked, err)
		}
		if _, err := m.Decoder(); err != nil {
			t.Error(err)
		}
	}
	if _, err := modeltest.Open(t, tiny).Container(); err == nil || !strings.Contains(err.Error(), "not a lutq container") {
		t.Errorf("a model that is none: %v", err)
	}
}

// TestQuantizedHead: a container whose output head is not the embedding, and quantized, has one.
func TestQuantizedHead(t *testing.T) {
	config := `{"architectures": ["LlamaForCausalLM"], "model_type": "llama", "tie_word_embeddings": false, "vocab_size": 64, "hidden_size": 64, ` +
		`"intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 1}`
	var tensors []sourcetest.Tensor
	for _, name := range []string{"model.embed_tokens", "lm_head", "model.layers.0.mlp.up_proj"} {
		tensors = append(tensors, sourcetest.Of[float32](name+".weight", hf.F32, []int{64, 64}))
	}
	m := modeltest.Open(t, container(t, sourcetest.Folder(t, config, tensors...), "lm_head=4"))
	if _, err := m.Weights(); err != nil {
		t.Error(err)
	}
	d, err := m.Decoder()
	if err != nil || d.Tied {
		t.Errorf("the head is the embedding, or %v", err)
	}
	c, err := m.Container()
	if err != nil || !slices.Contains(c.Linears(), "lm_head") {
		t.Errorf("the head is not quantized, or %v", err)
	}
}

// TestEntries: every tensor is told once, be it as a part of the layer that it stores.
func TestEntries(t *testing.T) {
	plain, err := modeltest.Open(t, tiny).Entries()
	if err != nil {
		t.Fatal(err)
	}
	bytes := make(map[string]int64)
	for _, e := range plain {
		if e.Layer != nil || e.Tensor == nil || e.Bytes != e.Tensor.StoredBytes() {
			t.Errorf("%s is told as %+v", e.Name, e)
		}
		bytes[e.Name] = e.Bytes
	}
	m := modeltest.Open(t, container(t, tiny))
	entries, err := m.Entries()
	if err != nil {
		t.Fatal(err)
	}
	c, err := m.Container()
	if err != nil {
		t.Fatal(err)
	}
	layers, told, stored := 0, int64(0), int64(0)
	for _, e := range entries {
		told += e.Bytes
		if e.Layer == nil {
			if e.Bytes != bytes[e.Name] {
				t.Errorf("%s has %d bytes: want %d", e.Name, e.Bytes, bytes[e.Name])
			}
			continue
		}
		layers++
		if e.Tensor != nil || e.Layer.Spec != c.Spec(e.Name) || !(e.Bytes < bytes[e.Name+lutq.WeightSuffix]) {
			t.Errorf("%s is told as %+v", e.Name, e)
		}
	}
	for _, x := range c.Checkpoint().Tensors() {
		stored += x.Bytes()
	}
	if len(entries) != len(plain) || layers != len(c.Linears()) || told != stored {
		t.Errorf("%d entries of %d bytes, %d of them layers", len(entries), told, layers)
	}
}

// TestRanks: of a model without tokenizer.json, the file of ranks is what its tokenizer is read from.
func TestRanks(t *testing.T) {
	dir := t.TempDir()
	if err := os.CopyFS(dir, os.DirFS(tiny)); err != nil {
		t.Fatal(err)
	}
	m := modeltest.Open(t, dir)
	before, err := m.TokenizerSum()
	if err != nil || m.TokenizerFiles()[0] != source.TokenizerFile {
		t.Fatalf("%q, %v", m.TokenizerFiles(), err)
	}
	for _, name := range []string{source.TokenizerFile, added.ConfigFile} {
		if err := os.Remove(filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := m.TokenizerSum(); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("without a tokenizer: %v", err)
	}
	sums := []string{before}
	for _, text := range []string{"{}", "{ }"} {
		if err := os.WriteFile(filepath.Join(dir, ranks.TekkenFile), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		sum, err := m.TokenizerSum()
		if err != nil || slices.Contains(sums, sum) || m.TokenizerFiles()[0] != ranks.TekkenFile {
			t.Errorf("%q: another tokenizer has the same sum, or %v", m.TokenizerFiles(), err)
		}
		sums = append(sums, sum)
	}
	if tokens, err := m.SpecialTokens(); err != nil || tokens["bos_token"] != "<s>" || tokens["eos_token"] != "</s>" {
		t.Errorf("special tokens %v, %v", tokens, err)
	}
	if err := os.WriteFile(filepath.Join(dir, added.ConfigFile), []byte(`{"bos_token": "[BOS]"}`), 0o644); err != nil {
		t.Fatal(err)
	}
	if tokens, err := m.SpecialTokens(); err != nil || len(tokens) != 1 || tokens["bos_token"] != "[BOS]" {
		t.Errorf("special tokens that are named %v, %v", tokens, err)
	}
}
