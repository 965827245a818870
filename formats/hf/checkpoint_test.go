package hf

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/lutq/lutq/formats/arch"
	"pgregory.net/rapid"

	"github.com/lutq/lutq/formats/input"
	"github.com/lutq/lutq/formats/num"
)

// sameFile has cmp compare open files by identity.
func sameFile(a, b *input.File) bool { return a == b }

const (
	tinyDir   = "../../calib/testdata/lutq-tiny"
	sharedDir = "../../../shared"
)

// modelDirs returns the model folder of the repository and those beside it.
func modelDirs(t testing.TB) []string {
	t.Helper()
	dirs, err := filepath.Glob(sharedDir + "/models/*/config.json")
	if err != nil {
		t.Fatal(err)
	}
	for i := range dirs {
		dirs[i] = filepath.Dir(dirs[i])
	}
	if len(dirs) == 0 {
		t.Log("no shared models: only the tiny one is tested")
	}
	return append(dirs, tinyDir)
}

func shardPaths(t testing.TB, dir string) []string {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(dir, "*.safetensors"))
	if err != nil || len(paths) == 0 {
		t.Fatalf("no shards in %s: %v", dir, err)
	}
	return paths
}

func mustOpen(t testing.TB, dir string) *Checkpoint {
	t.Helper()
	c, err := Open(dir, FP8Scheme{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// folder creates a folder of the given files.
func folder(t testing.TB, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, content := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o777); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o666); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// TestOpenModels holds real models' tensors against their descriptions.
func TestOpenModels(t *testing.T) {
	for _, dir := range modelDirs(t) {
		t.Run(filepath.Base(dir), func(t *testing.T) {
			c := mustOpen(t, dir)
			d, err := arch.Read(dir, c.Has)
			if err != nil {
				t.Fatal(err)
			}
			for _, s := range d.Stored() {
				tensor, ok := c.Tensor(s.Tensor)
				if !ok {
					t.Fatalf("no %s", s.Tensor)
				}
				if !slices.Equal(tensor.Shape, s.Shape()) {
					t.Errorf("%s has shape %v: want %v", s.Tensor, tensor.Shape, s.Shape())
				}
			}
			for _, tensor := range c.Tensors() {
				if d.Role(tensor.Name) == arch.Other {
					t.Errorf("%s has no role", tensor.Name)
				}
			}
			if got := c.Metadata()["format"]; got != "pt" {
				t.Errorf("metadata format is %q: want pt", got)
			}
			side := c.SideFiles()
			for _, name := range []string{"config.json", "tokenizer.json"} {
				if !slices.Contains(side, name) {
					t.Errorf("side files %v lack %s", side, name)
				}
			}
			if c.Dir() != dir {
				t.Errorf("folder is %q: want %q", c.Dir(), dir)
			}
		})
	}
}

func TestTensorsAreInFileOrder(t *testing.T) {
	header := `{"b":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}}`
	c := mustOpen(t, folder(t, map[string]string{
		"2.safetensors": string(file(header, 8)),
		"1.safetensors": string(file(strings.NewReplacer(`"a"`, `"y"`, `"b"`, `"z"`).Replace(header), 8)),
		indexName:       `{"weight_map":{"a":"2.safetensors","b":"2.safetensors","y":"1.safetensors","z":"1.safetensors"}}`,
	}))
	var got []string
	for _, x := range c.Tensors() {
		got = append(got, x.Shard+" "+x.Name)
	}
	want := []string{"1.safetensors z", "1.safetensors y", "2.safetensors b", "2.safetensors a"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("order (-want +got):\n%s", diff)
	}
}

func TestBadFolders(t *testing.T) {
	one := func(name string) string {
		return string(file(`{"`+name+`":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}`, 4))
	}
	index := func(entries string) string { return `{"metadata":{"total_size":4},"weight_map":{` + entries + `}}` }
	tests := []struct {
		name  string
		files map[string]string
		want  string
	}{
		{"empty folder", nil, "no model.safetensors or model.safetensors.index.json"},
		{"weights of another format", map[string]string{"pytorch_model.bin": "x"}, "want safetensors"},
		{"pointer", map[string]string{singleName: "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n"}, "model.safetensors is a git-lfs pointer, not the file: run git lfs pull in "},
		{"page", map[string]string{singleName: "<!doctype html><html>" + strings.Repeat("x", 500)}, "model.safetensors is a web page"},
		{"torch's file", map[string]string{singleName: "PK\x03\x04" + strings.Repeat("x", 500)}, "model.safetensors is a zip file"},
		{"GGUF file", map[string]string{singleName: "GGUF\x03\x00\x00\x00\x00\x00"}, "model.safetensors is a GGUF file"},
		{"empty file", map[string]string{singleName: ""}, "model.safetensors is empty"},
		{"download in part", map[string]string{singleName: one("a")[:30]}, "exceeds the file of 30 bytes"},
		{"numbered shards of which one is missing", map[string]string{"model-00002-of-00002.safetensors": one("a")}, "1 of 2 shards are missing, such as model-00001-of-00002.safetensors"},
		{"numbered shards of two models", map[string]string{"model-00001-of-00001.safetensors": one("a"), "model-00001-of-00002.safetensors": one("a"), "model-00002-of-00002.safetensors": one("b")}, "no model.safetensors"},
		{"bad file", map[string]string{singleName: "x"}, "model.safetensors: file of 1 bytes is too short"},
		{"folder for a file", map[string]string{singleName + "/x": ""}, "model.safetensors is a folder"},
		{"index is a folder", map[string]string{indexName + "/x": ""}, "index.json is a folder"},
		{"index is no JSON", map[string]string{indexName: "{"}, "index.json: invalid JSON"},
		{"index with a byte order mark", map[string]string{indexName: "\ufeff{}"}, "begins with a byte order mark"},
		{"index is a list", map[string]string{indexName: "[]"}, "index.json: want a JSON object"},
		{"index of nothing", map[string]string{indexName: `{}`}, `no "weight_map"`},
		{"empty weight map", map[string]string{indexName: index("")}, "weight_map is empty"},
		{"weight map twice", map[string]string{indexName: `{"weight_map":{},"weight_map":{}}`}, `key "weight_map" appears twice`},
		{"weight map a list", map[string]string{indexName: `{"weight_map":[]}`}, "weight_map: want a JSON object"},
		{"tensor twice", map[string]string{indexName: index(`"a":"m.safetensors","a":"m.safetensors"`)}, `tensor "a" appears twice`},
		{"shard a number", map[string]string{indexName: index(`"a":1`)}, `tensor "a": want a string`},
		{"shard by a detour", map[string]string{indexName: index(`"a":"x/../m.safetensors"`)}, "want a file of the folder"},
		{"hidden folder", map[string]string{indexName: index(`"a":"x/.y/m.safetensors"`)}, "is hidden"},
		{"shard in the parent", map[string]string{indexName: index(`"a":"../m.safetensors"`)}, "want a file of the folder"},
		{"absolute shard", map[string]string{indexName: index(`"a":"/m.safetensors"`)}, "want a file of the folder"},
		{"shard path of another system", map[string]string{indexName: index(`"a":"x\\m.safetensors"`)}, "want a file of the folder"},
		{"shard on another drive", map[string]string{indexName: index(`"a":"c:m.safetensors"`)}, "want a file of the folder"},
		{"hidden shard", map[string]string{indexName: index(`"a":".safetensors"`)}, "is hidden"},
		{"nameless shard", map[string]string{indexName: index(`"a":""`)}, "want a file of the folder"},
		{"shard of another format", map[string]string{indexName: index(`"a":"m.bin"`)}, "does not end in .safetensors"},
		{"missing shard", map[string]string{indexName: index(`"a":"m.safetensors"`)}, "1 of 1 shards are missing, such as m.safetensors"},
		{"total size negative", map[string]string{indexName: `{"metadata":{"total_size":-1},"weight_map":{"a":"m.safetensors"}}`}, "total_size is -1"},
		{"total size a string", map[string]string{indexName: `{"metadata":{"total_size":"4"},"weight_map":{"a":"m.safetensors"}}`}, `total_size is "4": want a number`},
		{"total size null", map[string]string{indexName: `{"metadata":{"total_size":null},"weight_map":{"a":"m.safetensors"}}`}, "total_size is null: want a number"},
		{"metadata a list", map[string]string{indexName: `{"metadata":[1],"weight_map":{"a":"m.safetensors"}}`}, "metadata: want a JSON object"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c, err := Open(folder(t, tt.files))
			if err == nil {
				c.Close()
				t.Fatalf("folder is accepted: want an error with %q", tt.want)
			}
			if !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got error %q: want %q in it", err, tt.want)
			}
		})
	}
}

// TestOddIndexes: where there is one reading it is taken, which is that of transformers 5.24 but for a tensor in two
// shards, of which the index's counts: transformers takes the last. Each a is of its file's own value.
func TestOddIndexes(t *testing.T) {
	of := func(value byte, names ...string) string {
		var parts []string
		var data []byte
		for i, name := range names {
			parts = append(parts, fmt.Sprintf(`%q:{"dtype":"U8","shape":[1],"data_offsets":[%d,%d]}`, name, i, i+1))
			data = append(data, value)
		}
		return string(file("{"+strings.Join(parts, ",")+"}", 0)) + string(data)
	}
	index := func(entries string) string { return `{"weight_map":{` + entries + `}}` }
	for _, tc := range []struct {
		name  string
		files map[string]string
		value byte     // of a
		all   []string // tensors, sorted
		note  string   // "": none
		index string
	}{
		{
			"not in the index",
			map[string]string{indexName: index(`"a":"m.safetensors"`), "m.safetensors": of(1, "a", "b")},
			1,
			[]string{"a", "b"},
			"", indexName,
		},
		{
			"of another shard in the index",
			map[string]string{indexName: index(`"a":"m.safetensors","b":"n.safetensors"`), "m.safetensors": of(1, "b"), "n.safetensors": of(2, "a")},
			2,
			[]string{"a", "b"},
			"", indexName,
		},
		{
			"in two shards, the first in the index",
			map[string]string{indexName: index(`"a":"m.safetensors","b":"n.safetensors"`), "m.safetensors": of(1, "a"), "n.safetensors": of(2, "a", "b")},
			1,
			[]string{"a", "b"},
			`tensor "a" is in m.safetensors and in n.safetensors: taken from m.safetensors, as model.safetensors.index.json names that`, indexName,
		},
		{
			"in two shards, the last in the index",
			map[string]string{indexName: index(`"b":"m.safetensors","a":"n.safetensors"`), "m.safetensors": of(1, "a", "b"), "n.safetensors": of(2, "a", "b")},
			2,
			[]string{"a", "b"},
			`tensor "a" is in m.safetensors and in n.safetensors: taken from n.safetensors, as model.safetensors.index.json names that (and 1 more such)`, indexName,
		},
		{
			"in two shards, in the index nowhere",
			map[string]string{indexName: index(`"b":"m.safetensors","c":"n.safetensors"`), "m.safetensors": of(1, "a", "b"), "n.safetensors": of(2, "a", "c")},
			2,
			[]string{"a", "b", "c"},
			`taken from n.safetensors, as the last counts`, indexName,
		},
		{
			"only in the index",
			map[string]string{indexName: index(`"a":"m.safetensors","b":"m.safetensors"`), "m.safetensors": of(1, "a")},
			1,
			[]string{"a"},
			`model.safetensors.index.json names tensor "b", which no file has`, indexName,
		},
		{
			"one file beside an index",
			map[string]string{indexName: index(`"a":"m.safetensors"`), "m.safetensors": of(1, "a"), singleName: of(3, "a")},
			3,
			[]string{"a"},
			"holds model.safetensors as well as an index of other shards", "",
		},
		{
			"shard in a folder",
			map[string]string{indexName: index(`"a":"x/m.safetensors"`), "x/m.safetensors": of(1, "a")},
			1,
			[]string{"a"},
			"", indexName,
		},
		{
			"no index",
			map[string]string{"model-00001-of-00002.safetensors": of(1, "a"), "model-00002-of-00002.safetensors": of(2, "b")},
			1,
			[]string{"a", "b"},
			"has no model.safetensors.index.json: all of the 2 numbered shards are read", "",
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := mustOpen(t, folder(t, tc.files))
			a, _ := c.Tensor("a")
			var got [1]byte
			if _, err := a.ReadAt(got[:], 0); err != nil || got[0] != tc.value {
				t.Errorf("a is %d, %v: want %d", got[0], err, tc.value)
			}
			var all []string
			for _, x := range c.Tensors() {
				all = append(all, x.Name)
			}
			slices.Sort(all)
			if !slices.Equal(all, tc.all) {
				t.Errorf("tensors are %q: want %q", all, tc.all)
			}
			if c.Index() != tc.index {
				t.Errorf("index is %q: want %q", c.Index(), tc.index)
			}
			notes := strings.Join(c.Notes(), "\n")
			if (notes == "") != (tc.note == "") || !strings.Contains(notes, tc.note) {
				t.Errorf("notes are %q: want %q", notes, tc.note)
			}
			for _, shard := range c.Shards() {
				if _, err := c.Header(shard); err != nil {
					t.Error(err)
				}
				if _, err := c.Version(shard); err != nil {
					t.Error(err)
				}
			}
		})
	}
}

// TestManyShards: of more shards than the process may have open files only some are open.
func TestManyShards(t *testing.T) {
	const n = 300
	files, entries := make(map[string]string, n+1), make([]string, n)
	for i := range n {
		shard := fmt.Sprintf("model-%05d-of-%05d.safetensors", i+1, n)
		files[shard] = string(file(fmt.Sprintf(`{"t%d":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}`, i), 0)) + string(rune(i%128))
		entries[i] = fmt.Sprintf(`"t%d":%q`, i, shard)
	}
	files[indexName] = `{"weight_map":{` + strings.Join(entries, ",") + `}}`
	c := mustOpen(t, folder(t, files))
	for range 2 {
		for i := range n {
			x, _ := c.Tensor(fmt.Sprintf("t%d", i))
			var got [1]byte
			if _, err := x.ReadAt(got[:], 0); err != nil || int(got[0]) != i%128 {
				t.Fatalf("tensor %d is %d, %v", i, got[0], err)
			}
		}
	}
	open, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Skip(err)
	}
	if len(open) > 150 {
		t.Errorf("%d files are open", len(open))
	}
}

func TestGoodIndexes(t *testing.T) {
	one := string(file(`{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}`, 4))
	for name, text := range map[string]string{
		"no metadata":     `{"weight_map":{"a":"model.safetensors"}}`,
		"null metadata":   `{"metadata":null,"weight_map":{"a":"model.safetensors"}}`,
		"wrong size":      `{"metadata":{"total_size":5},"weight_map":{"a":"model.safetensors"}}`,
		"size as a float": `{"metadata":{"total_size":4.0e0,"x":{"y":[1,"}"]}},"weight_map":{"a":"model.safetensors"}}`,
		"other keys":      `{"format":[{}],"weight_map":{"a":"model.safetensors"},"x":null}`,
	} {
		t.Run(name, func(t *testing.T) {
			c := mustOpen(t, folder(t, map[string]string{indexName: text, singleName: one}))
			if _, ok := c.Tensor("a"); !ok {
				t.Error("no tensor a")
			}
		})
	}
}

// TestNoWeights: a folder of other names lists them, and says what to do.
func TestNoWeights(t *testing.T) {
	for _, tc := range []struct {
		name       string
		files      map[string]string
		want, hint string
	}{
		{"nothing", map[string]string{configName: "{}"}, "no model.safetensors or model.safetensors.index.json", "a folder with config.json"},
		{"variant", map[string]string{"model.fp16.safetensors": "x"}, ": there is model.fp16.safetensors", "name it so: mv "},
		{"other name", map[string]string{"weights.safetensors": "x", "pytorch_model.bin": "x"}, ": there is weights.safetensors", "name it so: mv "},
		{"download in part", map[string]string{"model.safetensors.incomplete": "x"}, ": there is model.safetensors.incomplete", "did not come to its end"},
		{"of Mistral", map[string]string{"consolidated.safetensors": "x", "params.json": "{}"}, ": there is consolidated.safetensors", "other tensor names"},
		{"adapter", map[string]string{"adapter_model.safetensors": "x", "adapter_config.json": "{}"}, "the weights of an adapter", "merge_and_unload"},
		{
			"several",
			map[string]string{"a.safetensors": "", "b.safetensors": "", "c.safetensors": "", "d.safetensors": "", "model.safetensors.index.fp16.json": ""},
			": there are a.safetensors, b.safetensors, c.safetensors and 2 more", "model-0000x-of-0000y",
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, err := Open(folder(t, tc.files))
			var e *NoWeightsError
			if !errors.As(err, &e) || !strings.Contains(err.Error(), tc.want) || !strings.Contains(e.Hint(), tc.hint) {
				t.Errorf("got %v, want %q with a hint of %q", err, tc.want, tc.hint)
			}
		})
	}
}

// TestSnapshots: a folder of the hub's cache is told apart, and which folder to name instead.
func TestSnapshots(t *testing.T) {
	for _, tc := range []struct {
		name  string
		files map[string]string
		hint  string
	}{
		{"one", map[string]string{"snapshots/abc/config.json": "{}", "refs/main": "abc", "blobs/x": ""}, "name its snapshot, DIR/snapshots/abc"},
		{"two", map[string]string{"snapshots/abc/x": "", "snapshots/def/x": "", "refs/main": "def\n"}, "name one of its 2 snapshots, such as DIR/snapshots/def"},
		{"two without a branch", map[string]string{"snapshots/abc/x": "", "snapshots/def/x": ""}, "name one of its 2 snapshots, such as DIR/snapshots/abc"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			dir := folder(t, tc.files)
			_, err := Open(dir)
			var e *SnapshotsError
			if !errors.As(err, &e) || strings.ReplaceAll(e.Hint(), dir, "DIR") != tc.hint {
				t.Errorf("got %v, want a hint of %q", err, tc.hint)
			}
		})
	}
}

// TestNotFound: the name of a model of the hub says how to download it, as its command-line tool spells that.
func TestNotFound(t *testing.T) {
	t.Chdir(folder(t, map[string]string{"models/x": ""}))
	for model, want := range map[string]string{
		"Qwen/Qwen3-0.6B":                         "hf download Qwen/Qwen3-0.6B --local-dir Qwen3-0.6B",
		"https://huggingface.co/Qwen/Qwen3-0.6B":  "hf download Qwen/Qwen3-0.6B --local-dir Qwen3-0.6B",
		"Qwen/Qwen3-0.6B@refs/pr/1":               "hf download Qwen/Qwen3-0.6B --revision refs/pr/1 --local-dir Qwen3-0.6B",
		"https://hf.co/Qwen/Qwen3-0.6B/tree/main": "hf download Qwen/Qwen3-0.6B --revision main --local-dir Qwen3-0.6B",
		"models/y": "a model is a folder",
		"./a/b":    "a model is a folder",
		"/a/b":     "a model is a folder",
		"a/b/c":    "a model is a folder",
		"tiny":     "a model is a folder",
		"models/x": "name the folder",
	} {
		_, err := Open(model)
		var e *NotFoundError
		if !errors.As(err, &e) || !strings.Contains(e.Hint(), want) {
			t.Errorf("%s: got %v with a hint of %q", model, err, want)
		}
	}
}

func TestOpenWhatIsNoFolder(t *testing.T) {
	dir := folder(t, map[string]string{"x": ""})
	if _, err := Open(filepath.Join(dir, "x")); err == nil || !strings.Contains(err.Error(), "is not a folder") {
		t.Errorf("got error %v: want that it is not a folder", err)
	}
	if _, err := Open(filepath.Join(dir, "y")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("got error %v: want %v", err, fs.ErrNotExist)
	}
}

func TestSideFiles(t *testing.T) {
	dir := folder(t, map[string]string{
		singleName:                      string(file(`{}`, 0)),
		"config.json":                   "{}",
		"LICENSE":                       "",
		"chat_template.jinja":           "",
		"tokenizer.model":               "",
		"vocab.json":                    "",
		"adapter_model.safetensors":     "",
		"Consolidated.SafeTensors":      "",
		"pytorch_model.bin":             "",
		"pytorch_model.bin.index.json":  "",
		"flax_model.msgpack":            "",
		"flax_model.msgpack.index.json": "",
		"model.gguf":                    "",
		"consolidated.00.pth":           "",
		"tf_model.h5":                   "",
		"model.onnx":                    "",
		".gitattributes":                "",
		"onnx/model.onnx":               "",
		"original/params.json":          "",
	})
	if err := os.Symlink(filepath.Join(dir, "LICENSE"), filepath.Join(dir, "NOTICE")); err != nil {
		t.Log(err)
	} else if err := os.Symlink("nowhere", filepath.Join(dir, "broken")); err != nil {
		t.Fatal(err)
	}
	want := []string{"LICENSE", "NOTICE", "chat_template.jinja", "config.json", "tokenizer.model", "vocab.json"}
	if diff := cmp.Diff(want, mustOpen(t, dir).SideFiles()); diff != "" {
		t.Errorf("side files (-want +got):\n%s", diff)
	}
}

func TestReadAt(t *testing.T) {
	raw := file(`{"a":{"dtype":"U8","shape":[10],"data_offsets":[0,10]},"b":{"dtype":"U8","shape":[5],"data_offsets":[10,15]}}`, 15)
	data := raw[len(raw)-15:][:10]
	c := mustOpen(t, folder(t, map[string]string{singleName: string(raw)}))
	a, _ := c.Tensor("a")
	tests := []struct {
		name    string
		n       int
		off     int64
		want    []byte
		wantErr error
	}{
		{"all", 10, 0, data, nil},
		{"middle", 4, 3, data[3:7], nil},
		{"up to the end", 4, 6, data[6:], nil},
		{"beyond the end", 4, 8, data[8:], io.EOF},
		{"from the end", 4, 10, nil, io.EOF},
		{"nothing at the end", 0, 10, nil, nil},
		{"far beyond", 4, math.MaxInt64, nil, io.EOF},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			p := make([]byte, tt.n)
			n, err := a.ReadAt(p, tt.off)
			if n != len(tt.want) || err != tt.wantErr {
				t.Fatalf("got %d bytes and error %v: want %d and %v", n, err, len(tt.want), tt.wantErr)
			}
			if !slices.Equal(p[:n], tt.want) {
				t.Errorf("got %v: want %v", p[:n], tt.want)
			}
		})
	}
	if _, err := a.ReadAt(make([]byte, 1), -1); err == nil {
		t.Error("a negative offset is accepted")
	}
	if got, err := io.ReadAll(io.NewSectionReader(a, 0, a.Bytes())); err != nil || !slices.Equal(got, data) {
		t.Errorf("section reader gives %v, %v: want %v", got, err, data)
	}
}

func TestFileShrinks(t *testing.T) {
	dir := folder(t, map[string]string{singleName: string(file(`{"a":{"dtype":"F32","shape":[1000],"data_offsets":[0,4000]}}`, 4000))})
	c := mustOpen(t, dir)
	a, _ := c.Tensor("a")
	if err := os.Truncate(filepath.Join(dir, singleName), 2000); err != nil {
		t.Fatal(err)
	}
	if err := a.ReadFloat32(make([]float32, 10), 0); err != nil {
		t.Errorf("what is still there cannot be read: %v", err)
	}
	err := a.ReadFloat32(make([]float32, 1000), 0)
	if !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Fatalf("got error %v: want %v", err, io.ErrUnexpectedEOF)
	}
	for _, want := range []string{`tensor "a"`, singleName, "shorter than when it was opened"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("got error %q: want %q in it", err, want)
		}
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	if err := a.ReadFloat32(make([]float32, 1), 0); !errors.Is(err, fs.ErrClosed) {
		t.Errorf("after Close: got error %v: want %v", err, fs.ErrClosed)
	}
}

func TestReadFloat32Refuses(t *testing.T) {
	c := mustOpen(t, folder(t, map[string]string{singleName: string(file(
		`{"f":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},"i":{"dtype":"I32","shape":[1],"data_offsets":[24,28]}}`, 28))}))
	f, _ := c.Tensor("f")
	i, _ := c.Tensor("i")
	tests := []struct {
		name   string
		tensor *Tensor
		n      int
		start  int64
		want   string
	}{
		{"type", i, 1, 0, "elements of type I32"},
		{"negative start", f, 1, -1, "elements -1 to 0 of 6"},
		{"beyond the end", f, 2, 5, "elements 5 to 7 of 6"},
		{"far beyond", f, 1, math.MaxInt64 - 1, "of 6"},
		{"too many", f, 7, 0, "elements 0 to 7 of 6"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			err := tt.tensor.ReadFloat32(make([]float32, tt.n), tt.start)
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got error %v: want %q in it", err, tt.want)
			}
		})
	}
	if err := f.ReadFloat32(nil, 6); err != nil {
		t.Errorf("no elements at the end: %v", err)
	}
}

// TestReadFloat32 reads any range, across the buffers' edges, of every type.
func TestReadFloat32(t *testing.T) {
	const n = 3*chunk/4 + 77 // F32 takes several buffers
	want := make([]float32, n)
	for i := range want {
		want[i] = float32(i%2039-1000) / 8 // exact in all types but BF16
	}
	bf16 := make([]float32, n)
	for i, v := range want {
		bf16[i] = num.BF16ToF32(num.F32ToBF16(v))
	}
	types := map[DType]struct {
		encode func([]byte, []float32)
		want   []float32
	}{
		F64: {num.EncodeF64, want}, F32: {num.EncodeF32, want}, F16: {num.EncodeF16, want}, BF16: {num.EncodeBF16, bf16},
	}
	var entries []Entry
	for _, d := range slices.Sorted(maps.Keys(types)) {
		entries = append(entries, Entry{string(d), d, []int{n}})
	}
	dir := t.TempDir()
	w, err := NewWriter(dir, entries, WriterOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		size, _ := e.Bytes()
		raw := make([]byte, size)
		types[e.DType].encode(raw, want)
		if err := w.WriteAt(e.Name, raw, 0); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Commit(); err != nil {
		t.Fatal(err)
	}
	c := mustOpen(t, dir)
	for d, typ := range types {
		t.Run(string(d), func(t *testing.T) {
			x, _ := c.Tensor(string(d))
			var all sync.WaitGroup
			got := make([]float32, n)
			const parts = 5
			for i := range parts {
				all.Go(func() {
					lo, hi := i*n/parts, (i+1)*n/parts
					if err := x.ReadFloat32(got[lo:hi], int64(lo)); err != nil {
						t.Error(err)
					}
				})
			}
			all.Wait()
			if !slices.Equal(got, typ.want) {
				t.Fatal("five goroutines read other values than were written")
			}
			rapid.Check(t, func(t *rapid.T) {
				start := rapid.IntRange(0, n).Draw(t, "start")
				count := rapid.IntRange(0, min(n-start, 5000)).Draw(t, "count")
				got := make([]float32, count)
				if err := x.ReadFloat32(got, int64(start)); err != nil {
					t.Fatal(err)
				}
				if !slices.Equal(got, typ.want[start:start+count]) {
					t.Fatalf("elements %d to %d differ", start, start+count)
				}
			})
		})
	}
}

// FuzzIndex: an index that is accepted names only plain files, of which the
// shard set is made up.
func FuzzIndex(f *testing.F) {
	f.Add([]byte(`{"metadata":{"total_size":4},"weight_map":{"a":"model-00001-of-00002.safetensors","b":"model-00002-of-00002.safetensors"}}`))
	f.Add([]byte(`{"weight_map":{"a":"../x.safetensors"}}`))
	f.Add([]byte(`{"weight_map":{"a":"\u002e\u002e/x.safetensors"},"x":[{"y":"]"}]}`))
	f.Add([]byte(`{"metadata":{"total_size":1e400},"weight_map":{}}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		x, err := parseIndex(b)
		if err != nil {
			if strings.ContainsRune(err.Error(), '\n') {
				t.Fatalf("error %q has several lines", err)
			}
			return
		}
		if len(x.weightMap) == 0 {
			t.Fatal("an index of nothing is accepted")
		}
		for name, shard := range x.weightMap {
			if !x.shards[shard] {
				t.Fatalf("tensor %q: shard %q is not in the set", name, shard)
			}
			if !filepath.IsLocal(shard) || strings.Contains(shard, `\`) || strings.Contains("/"+shard, "/.") {
				t.Fatalf("shard name %q is accepted", shard)
			}
		}
	})
}

func BenchmarkReadFloat32(b *testing.B) {
	const n = 8 << 20
	header := `{"a":{"dtype":"BF16","shape":[8388608],"data_offsets":[0,16777216]}}`
	raw := binary.LittleEndian.AppendUint64(nil, uint64(len(header)))
	raw = append(append(raw, header...), make([]byte, 2*n)...)
	c := mustOpen(b, folder(b, map[string]string{singleName: string(raw)}))
	a, _ := c.Tensor("a")
	dst := make([]float32, n)
	b.SetBytes(2 * n)
	for b.Loop() {
		if err := a.ReadFloat32(dst, 0); err != nil {
			b.Fatal(err)
		}
	}
}

func TestNewTensor(t *testing.T) {
	made, err := NewTensor("a.weight", BF16, 3, 5)
	if err != nil || made.Elements() != 15 || made.Bytes() != 30 {
		t.Fatalf("got %+v, %v", made, err)
	}
	if _, err := made.ReadAt(make([]byte, 4), 0); err == nil || !strings.Contains(err.Error(), `tensor "a.weight" in no file: `) {
		t.Errorf("reading it: got error %v", err)
	}
	for name, shape := range map[string][]int{"negative": {2, -1}, "large": {1 << 40, 1 << 40}} {
		if _, err := NewTensor(name, F32, shape...); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: got error %v", name, err)
		}
	}
}
