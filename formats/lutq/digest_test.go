package lutq_test

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/lutq/lutq/formats/hf"
	"github.com/lutq/lutq/formats/lutq"
	"github.com/lutq/lutq/formats/racetest"
	"github.com/lutq/lutq/formats/source/modeltest"
	"github.com/lutq/lutq/quantize"
)

// sharded quantizes the tiny model into several shards.
func sharded(t testing.TB) string {
	t.Helper()
	p, err := quantize.NewPlan(modeltest.Open(t, tiny), quantize.Recipe{})
	if err != nil {
		t.Fatal(err)
	}
	out := filepath.Join(t.TempDir(), "out")
	if _, err := p.Run(t.Context(), out, quantize.RunOptions{MaxShardSize: 1 << 20}); err != nil {
		t.Fatal(err)
	}
	return out
}

// flip turns a bit of a file over. Twice, it restores it.
func flip(t rapid.TB, path string, off int64, bit int) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var b [1]byte
	if _, err := f.ReadAt(b[:], off); err != nil {
		t.Fatal(err)
	}
	b[0] ^= 1 << bit
	if _, err := f.WriteAt(b[:], off); err != nil {
		t.Fatal(err)
	}
}

// verify returns the problems of a container, or why it cannot be opened.
func verify(t testing.TB, dir string, o lutq.VerifyOptions) []string {
	t.Helper()
	m, err := openUnchecked(dir)
	if err != nil {
		return []string{err.Error()}
	}
	defer m.Close()
	r, err := m.Verify(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	return r.Problems
}

// load reads every tensor of a container as a model does.
func load(dir string, open func(string) (*lutq.Model, error)) error {
	m, err := open(dir)
	if err != nil {
		return err
	}
	defer m.Close()
	r := m.Reader()
	for _, t := range m.Checkpoint().Tensors() {
		if _, err := r.Tensor(t); err != nil {
			return err
		}
	}
	return r.Wait()
}

// at returns where the data of a tensor begins in its shard.
func at(t *testing.T, dir, tensor string) (path string, off int64) {
	t.Helper()
	c := open(t, dir)
	for _, shard := range c.Shards() {
		header, err := c.Header(shard)
		if err != nil {
			t.Fatal(err)
		}
		var entries map[string]struct {
			Offsets [2]int64 `json:"data_offsets"`
		}
		if err := json.Unmarshal(header[8:], &entries); err != nil {
			t.Fatal(err)
		}
		if e, ok := entries[tensor]; ok {
			return filepath.Join(dir, shard), int64(len(header)) + e.Offsets[0]
		}
	}
	t.Fatalf("no tensor %s", tensor)
	return "", 0
}

// TestDamage turns single bits over in every kind of place: verification names
// each, and so does reading a tensor, unless it is told not to look.
func TestDamage(t *testing.T) {
	racetest.Skip(t)
	dir := sharded(t)
	if got := verify(t, dir, lutq.VerifyOptions{Threads: 2}); len(got) > 0 {
		t.Fatalf("undamaged: problems %q", got)
	}
	const differs = " differs from what was written"
	for _, tensor := range []string{
		"model.embed_tokens.weight", "model.norm.weight",
		"model.layers.0.input_layernorm.weight", "model.layers.3.post_attention_layernorm.weight",
		layer + ".codes", layer + ".scales", layer + ".codebook", "model.layers.0.self_attn.q_proj.codes",
	} {
		tt, ok := open(t, dir).Tensor(tensor)
		if !ok {
			t.Fatalf("no tensor %s", tensor)
		}
		path, begin := at(t, dir, tensor)
		for _, off := range []int64{0, tt.Bytes() / 2, tt.Bytes() - 1} {
			for _, bit := range []int{0, 7} {
				flip(t, path, begin+off, bit)
				want := tt.Shard + ": " + tensor + differs
				if got := verify(t, dir, lutq.VerifyOptions{Threads: 2}); !slices.Contains(got, want) || strings.Contains(strings.Join(got, ""), "the digest is") {
					t.Errorf("byte %d, bit %d of %s: problems %q", off, bit, tensor, got)
				}
				if err := load(dir, lutq.Open); !errors.Is(err, lutq.ErrDiffers) || err.Error() != want {
					t.Errorf("byte %d, bit %d of %s: reading it gives error %v", off, bit, tensor, err)
				}
				if err := load(dir, openUnchecked); err != nil {
					t.Errorf("byte %d, bit %d of %s: unchecked, reading it gives error %v", off, bit, tensor, err)
				}
				if got := verify(t, dir, lutq.VerifyOptions{Quick: true}); len(got) > 0 {
					t.Errorf("byte %d, bit %d of %s: a quick verification has problems %q", off, bit, tensor, got)
				}
				flip(t, path, begin+off, bit)
			}
		}
	}
}

// TestDamageAround does the same to what stands around the tensors.
func TestDamageAround(t *testing.T) {
	racetest.Skip(t)
	dir := sharded(t)
	const index, differs = "model.safetensors.index.json", " differs from what was written"
	for _, tc := range []struct {
		name, file, old, new string
		want                 string
		loads                bool // by its digest or its sense, reading finds it too
	}{
		{"a header's metadata", "model-00002-of-00002.safetensors", `"pt"`, `"pu"`, "model-00002-of-00002.safetensors: the header" + differs, true},
		{"the index", index, `"total_size": `, `"total_size": 1`, index + differs, false},
		{"the tokenizer", "tokenizer.json", `"merges"`, `"nerges"`, "tokenizer.json" + differs, false},
		{"a file that nobody reads", "golden.json", `1`, `2`, "golden.json" + differs, false},
		{"a value in config.json", "config.json", `"rms_norm_eps": 1e-0`, `"rms_norm_eps": 1e-1`, "config.json" + differs, true},
		{"white space in config.json", "config.json", "\n", "\r", "config.json" + differs, true},
		{"the command", "config.json", `lutq quantize`, `lutq quantise`, "config.json" + differs, true},
		{"the error of a layer", "config.json", `"error": 0.0`, `"error": 0.1`, "config.json" + differs, true},
		{"a tensor's digest", "config.json", `.codes": "`, `.codes": "0`, "is no SHA-256", true},
		{"the key of the digests", "config.json", `"digests"`, `"digestS"`, "config.json" + differs, true},
		{"the other key of the digests", "config.json", `"digests"`, `"digestr"`, "config.json" + differs, true},
		{"the key of config.json's own", "config.json", `"config_sha256"`, `"Config_sha256"`, "config.json" + differs, true},
		{"the other key of config.json's own", "config.json", `"config_sha256"`, `"config_sha257"`, "config.json" + differs, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			path := filepath.Join(dir, tc.file)
			whole, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			i := strings.Index(string(whole), tc.old)
			if i < 0 {
				t.Fatalf("%s has no %q", tc.file, tc.old)
			}
			damaged := slices.Concat(whole[:i], []byte(tc.new), whole[i+len(tc.old):])
			if err := os.WriteFile(path, damaged, 0o644); err != nil {
				t.Fatal(err)
			}
			defer os.WriteFile(path, whole, 0o644) //nolint:errcheck // the folder is this test's
			for _, quick := range []bool{false, true} {
				if got := strings.Join(verify(t, dir, lutq.VerifyOptions{Quick: quick}), "\n"); !strings.Contains(got, tc.want) {
					t.Errorf("quick %v: got problems %q, want %q", quick, got, tc.want)
				}
			}
			if err := load(dir, lutq.Open); (err != nil) != tc.loads {
				t.Errorf("reading it gives error %v", err)
			}
		})
	}
}

// TestFlips turns a random bit over in a random file but the card, which may be edited: verification finds it
// wherever it is, and reading does in the tensors and config.json.
func TestFlips(t *testing.T) {
	racetest.Skip(t)
	dir := sharded(t)
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	entries = slices.DeleteFunc(entries, func(e os.DirEntry) bool { return e.Name() == lutq.CardName })
	rapid.Check(t, func(rt *rapid.T) {
		e := rapid.SampledFrom(entries).Draw(rt, "file")
		info, err := e.Info()
		if err != nil {
			rt.Fatal(err)
		}
		path := filepath.Join(dir, e.Name())
		// Half of them in the first bytes, where headers are.
		size := info.Size()
		if rapid.Bool().Draw(rt, "early") {
			size = min(size, 4096)
		}
		off, bit := rapid.Int64Range(0, size-1).Draw(rt, "offset"), rapid.IntRange(0, 7).Draw(rt, "bit")
		flip(rt, path, off, bit)
		defer flip(rt, path, off, bit)
		if len(verify(t, dir, lutq.VerifyOptions{})) == 0 {
			rt.Errorf("verification finds nothing")
		}
		if loaded := e.Name() == "config.json" || strings.HasSuffix(e.Name(), ".safetensors"); loaded && load(dir, lutq.Open) == nil {
			rt.Errorf("reading finds nothing")
		}
	})
}

// TestOtherFiles takes files and tensors away and adds some.
func TestOtherFiles(t *testing.T) {
	racetest.Skip(t)
	for _, tc := range []struct {
		name   string
		change func(dir string) error
		want   string
	}{
		{"a file is missing", func(dir string) error { return os.Remove(filepath.Join(dir, "tokenizer.json")) }, "tokenizer.json is missing"},
		{"a file more", func(dir string) error { return os.WriteFile(filepath.Join(dir, "notes"), nil, 0o644) }, "notes is no part of what was written"},
		{"weights more", func(dir string) error { return os.WriteFile(filepath.Join(dir, "x.safetensors"), nil, 0o644) }, "x.safetensors is no part of what was written"},
		{"a folder more", func(dir string) error { return os.Mkdir(filepath.Join(dir, "original"), 0o755) }, "original is no part of what was written"},
		{"a folder instead of a file", func(dir string) error {
			path := filepath.Join(dir, "golden.json")
			return errors.Join(os.Remove(path), os.Mkdir(path, 0o755))
		}, "golden.json differs from what was written"},
		{"a hidden file more", func(dir string) error { return os.WriteFile(filepath.Join(dir, ".gitattributes"), nil, 0o644) }, ""},
		{
			"one shard instead of two", func(dir string) error { return rewrite(dir, "", hf.Entry{}) },
			"model-00001-of-00002.safetensors is missing\nmodel-00002-of-00002.safetensors is missing\nmodel.safetensors is no part of what was written",
		},
		{"a tensor is missing", func(dir string) error { return rewrite(dir, "model.norm.weight", hf.Entry{}) }, "model.norm.weight is missing"},
		{"a tensor more", func(dir string) error {
			return rewrite(dir, "", hf.Entry{Name: "x.bias", DType: "F32", Shape: []int{4}})
		}, "x.bias is no part of what was written"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			dir := sharded(t)
			if err := tc.change(dir); err != nil {
				t.Fatal(err)
			}
			got := strings.Join(verify(t, dir, lutq.VerifyOptions{}), "\n")
			if !strings.Contains(got, tc.want) || (got == "") != (tc.want == "") {
				t.Errorf("got problems %q, want %q", got, tc.want)
			}
		})
	}
}

// rewrite writes the tensors of a folder to one shard, without one of them and
// with another, which is empty.
func rewrite(dir, without string, with hf.Entry) error {
	src, err := hf.Open(dir)
	if err != nil {
		return err
	}
	defer src.Close()
	var entries []hf.Entry
	for _, t := range src.Tensors() {
		if t.Name != without {
			entries = append(entries, hf.Entry{Name: t.Name, DType: t.DType, Shape: t.Shape})
		}
	}
	if with.Name != "" {
		entries = append(entries, with)
	}
	work := filepath.Join(dir, ".work")
	if err := os.Mkdir(work, 0o755); err != nil {
		return err
	}
	w, err := hf.NewWriter(work, entries, hf.WriterOptions{})
	if err != nil {
		return err
	}
	for _, e := range entries {
		if e.Name == with.Name {
			size, _ := e.Bytes()
			err = w.WriteAt(e.Name, make([]byte, size), 0)
		} else {
			t, _ := src.Tensor(e.Name)
			err = w.CopyTensor(context.Background(), t)
		}
		if err != nil {
			return err
		}
	}
	if err := w.Commit(); err != nil {
		return err
	}
	for _, shard := range src.Shards() {
		if err := os.Remove(filepath.Join(dir, shard)); err != nil {
			return err
		}
	}
	if err := os.Remove(filepath.Join(dir, src.Index())); err != nil {
		return err
	}
	return os.Rename(filepath.Join(work, "model.safetensors"), filepath.Join(dir, "model.safetensors"))
}

// TestWithoutDigests opens a container as it was written before there were
// digests of everything: what was quantized is still checked by the one there is.
func TestWithoutDigests(t *testing.T) {
	dir := container(t, `{}`)
	editConfig(t, dir, func(map[string]any) {})
	if got := verify(t, dir, lutq.VerifyOptions{}); len(got) > 0 {
		t.Fatalf("undamaged: problems %q", got)
	}
	patch(t, dir, "model.norm.weight", 3, []byte{0x01})
	if got := verify(t, dir, lutq.VerifyOptions{}); len(got) > 0 {
		t.Errorf("a norm that nothing is known of: problems %q", got)
	}
	patch(t, dir, layer+".codes", 17, []byte{0xff})
	if got := verify(t, dir, lutq.VerifyOptions{}); len(got) != 1 || !strings.HasPrefix(got[0], "the digest is ") {
		t.Errorf("a code: problems %q", got)
	}
	if err := load(dir, lutq.Open); err != nil {
		t.Errorf("reading it: %v", err)
	}
}

// TestProgress counts the layers and other tensors that verification tells of.
func TestProgress(t *testing.T) {
	dir := sharded(t)
	var told []int
	names := make(map[string]bool)
	got := verify(t, dir, lutq.VerifyOptions{Threads: 3, Progress: func(done, total int, tensor string) {
		if total != 38 {
			t.Errorf("%d of %d", done, total)
		}
		told, names[tensor] = append(told, done), true
	}})
	if len(got) > 0 || len(told) != 38 || len(names) != 38 || told[0] != 1 || told[37] != 38 || !slices.IsSorted(told) {
		t.Errorf("problems %q, told of %d tensors: %v", got, len(names), told)
	}
}

// TestMissingAgainst looks for the original's tensors in a container without
// digests, which knows of none that is gone.
func TestMissingAgainst(t *testing.T) {
	racetest.Skip(t)
	dir := sharded(t)
	if err := rewrite(dir, "model.norm.weight", hf.Entry{}); err != nil {
		t.Fatal(err)
	}
	editConfig(t, dir, func(map[string]any) {})
	got := verify(t, dir, lutq.VerifyOptions{Original: open(t, tiny)})
	if !slices.Equal(got, []string{"model.norm.weight is missing from the container"}) {
		t.Errorf("got problems %q", got)
	}
}

func TestCheckFiles(t *testing.T) {
	check := func(dir, name string) error {
		config, err := os.ReadFile(filepath.Join(dir, "config.json"))
		if err != nil {
			t.Fatal(err)
		}
		return lutq.CheckFiles(dir, config, "config.json", name)
	}
	dir := container(t, `{}`)
	path := filepath.Join(dir, "tokenizer.json")
	for _, step := range []struct {
		name string
		do   func()
		fail bool
	}{
		{"as it was written", func() {}, false},
		{"damaged", func() { flip(t, path, 100, 3) }, true},
		{"missing", func() { os.Remove(path) }, false},
	} {
		step.do()
		if err := check(dir, "tokenizer.json"); errors.Is(err, lutq.ErrDiffers) != step.fail || (err != nil) != step.fail {
			t.Errorf("%s: got error %v", step.name, err)
		}
	}
	for _, other := range []struct{ dir, name string }{{dir, "unknown"}, {tiny, "tokenizer.json"}} {
		if err := check(other.dir, other.name); err != nil {
			t.Errorf("%s in %s: %v", other.name, other.dir, err)
		}
	}
}

// TestReaderWaits has tensors wait for each other: the second for the hash of
// the first.
func TestReaderWaits(t *testing.T) {
	m, err := lutq.Open(container(t, `{}`))
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	r := m.Reader()
	r.Limit(1000)
	for _, layer := range m.Linears() {
		if _, err := r.Linear(layer); err != nil {
			t.Fatal(err)
		}
	}
	if err := r.Wait(); err != nil {
		t.Error(err)
	}
}

// TestReadsShortFile has a shard cut short after it was opened, which is not
// damage but an error of its own.
func TestReadsShortFile(t *testing.T) {
	dir := container(t, `{}`)
	m, err := lutq.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	if err := os.Truncate(filepath.Join(dir, "model.safetensors"), 1<<16); err != nil {
		t.Fatal(err)
	}
	r := m.Reader()
	embed, _ := m.Checkpoint().Tensor("model.embed_tokens.weight")
	if _, err := r.Tensor(embed); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("got error %v", err)
	}
	if err := r.Wait(); err != nil {
		t.Errorf("of what could not be read, got error %v", err)
	}
}

// FuzzSeal seals any configuration: it holds as it is, and with no byte changed.
func FuzzSeal(f *testing.F) {
	f.Add([]byte("{\n  \"a\": 1\n}\n"), 3, byte(1))
	f.Add([]byte(`{"config_sha256": "0000000000000000000000000000000000000000000000000000000000000000"}`), 20, byte(0x20))
	f.Add([]byte(`{"config_sha256": "`), 1000, byte(4))
	f.Fuzz(func(t *testing.T, config []byte, at int, with byte) {
		lutq.Sealed(config) // whatever it is
		c := lutq.Config{QuantMethod: lutq.Method, Version: lutq.Version1, Digests: &lutq.Digests{}}
		text, err := c.AddTo(config)
		if err != nil {
			return
		}
		if !lutq.Sealed(text) {
			t.Fatalf("not sealed: %s", text)
		}
		if at < 0 || with == 0 {
			return
		}
		text[at%len(text)] ^= with
		if lutq.Sealed(text) {
			t.Fatalf("sealed in spite of a change at %d: %s", at%len(text), text)
		}
	})
}
