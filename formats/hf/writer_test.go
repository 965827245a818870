package hf

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/nlpodyssey/safetensors"
	"pgregory.net/rapid"

	"github.com/lutq/lutq/formats/input"
)

// write writes data, in order of entries, and commits.
func write(t testing.TB, dir string, entries []Entry, data [][]byte, o WriterOptions) {
	t.Helper()
	w, err := NewWriter(dir, entries, o)
	if err != nil {
		t.Fatal(err)
	}
	for i, e := range entries {
		if err := w.WriteAt(e.Name, data[i], 0); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Commit(); err != nil {
		t.Fatal(err)
	}
}

func listDir(t testing.TB, dir string) []string {
	t.Helper()
	found, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range found {
		names = append(names, e.Name())
	}
	return names
}

// TestRoundTrip: what is written in pieces by several goroutines is what comes
// back, through Open and through another reader.
func TestRoundTrip(t *testing.T) {
	types := []DType{"F64", "F32", "F16", "BF16", "U8", "I32", "BOOL", "F8_E4M3", "F4", "F6_E2M3", "C64"}
	rapid.Check(t, func(t *rapid.T) {
		dir, err := os.MkdirTemp("", "hf")
		if err != nil {
			t.Fatal(err)
		}
		defer os.RemoveAll(dir)

		names := rapid.SliceOfNDistinct(rapid.StringN(1, 12, -1), 1, 12, rapid.ID).
			Filter(func(s []string) bool { return !slices.Contains(s, metadataKey) }).Draw(t, "names")
		entries, data := make([]Entry, len(names)), make(map[string][]byte)
		for i, name := range names {
			d := rapid.SampledFrom(types).Draw(t, "dtype")
			shape := rapid.SliceOfN(rapid.IntRange(0, 9), 0, 3).Draw(t, "shape")
			if d.Bits() < 8 {
				shape = append(shape, 4) // whole bytes
			}
			entries[i] = Entry{name, d, shape}
			size, err := entries[i].Bytes()
			if err != nil {
				t.Fatal(err)
			}
			data[name] = rapid.SliceOfN(rapid.Byte(), int(size), int(size)).Draw(t, "data")
		}
		o := WriterOptions{
			MaxShardSize: rapid.Int64Range(1, 3000).Draw(t, "shard size"),
			Metadata:     rapid.MapOfN(rapid.String(), rapid.String(), 0, 3).Draw(t, "metadata"),
		}

		w, err := NewWriter(dir, entries, o)
		if err != nil {
			t.Fatal(err)
		}
		var all sync.WaitGroup
		errs := make(chan error, 2*len(names))
		for name, b := range data {
			half := len(b) / 2
			all.Go(func() { errs <- w.WriteAt(name, b[half:], int64(half)) })
			all.Go(func() { errs <- w.WriteAt(name, b[:half], 0) })
		}
		all.Wait()
		close(errs)
		for err := range errs {
			if err != nil {
				t.Fatal(err)
			}
		}
		for name, b := range data {
			got := make([]byte, len(b))
			if err := w.ReadAt(name, got, 0); err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(got, b) {
				t.Fatalf("tensor %q is read back as %x: want %x", name, got, b)
			}
		}
		if err := w.Commit(); err != nil {
			t.Fatal(err)
		}

		c, err := Open(dir)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if len(c.Tensors()) != len(entries) {
			t.Fatalf("%d tensors: want %d", len(c.Tensors()), len(entries))
		}
		if len(o.Metadata) > 0 {
			if diff := cmp.Diff(o.Metadata, c.Metadata()); diff != "" {
				t.Fatalf("metadata (-want +got):\n%s", diff)
			}
		}
		perShard := make(map[string]int64)
		for _, e := range entries {
			got, ok := c.Tensor(e.Name)
			if !ok {
				t.Fatalf("no tensor %q", e.Name)
			}
			if got.DType != e.DType || !slices.Equal(got.Shape, e.Shape) {
				t.Fatalf("tensor %q is %s %v: want %s %v", e.Name, got.DType, got.Shape, e.DType, e.Shape)
			}
			b := make([]byte, got.Bytes())
			if _, err := got.ReadAt(b, 0); err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(b, data[e.Name]) {
				t.Fatalf("tensor %q holds %x: want %x", e.Name, b, data[e.Name])
			}
			if got.offset%got.DType.align() != 0 {
				t.Fatalf("tensor %q of %s lies at byte %d", e.Name, e.DType, got.offset)
			}
			if perShard[got.Shard] > 0 && perShard[got.Shard]+got.Bytes() > o.MaxShardSize {
				t.Fatalf("%s holds more than %d bytes", got.Shard, o.MaxShardSize)
			}
			perShard[got.Shard] += got.Bytes()
		}
		for _, shard := range w.Shards() {
			raw, err := os.ReadFile(filepath.Join(dir, shard))
			if err != nil {
				t.Fatal(err)
			}
			checkWithOracle(t, raw, data)
		}
	})
}

func checkWithOracle(t *rapid.T, raw []byte, data map[string][]byte) {
	h, err := readBytes(raw)
	if err != nil {
		t.Fatal(err)
	}
	for i := range h.tensors {
		if _, err := safetensors.ParseDType(string(h.tensors[i].DType)); err != nil {
			return
		}
	}
	st, err := safetensors.Deserialize(raw)
	if err != nil {
		t.Fatalf("another reader refuses the file: %v", err)
	}
	for _, v := range st.Tensors() {
		if !bytes.Equal(v.TensorView.Data(), data[v.Name]) {
			t.Fatalf("another reader finds %x in %q: want %x", v.TensorView.Data(), v.Name, data[v.Name])
		}
	}
}

func TestShards(t *testing.T) {
	entry := func(name string, n int) Entry { return Entry{name, U8, []int{n}} }
	tests := []struct {
		name    string
		entries []Entry
		limit   int64
		want    []string // tensors of each shard
	}{
		{"one", []Entry{entry("a", 10), entry("b", 10)}, 20, []string{"a b"}},
		{"far below the limit", []Entry{entry("a", 10), entry("b", 10)}, defaultShardSize, []string{"a b"}},
		{"two", []Entry{entry("a", 10), entry("b", 10)}, 19, []string{"a", "b"}},
		{"a large one between", []Entry{entry("a", 1), entry("b", 100), entry("c", 1), entry("d", 1)}, 10, []string{"a", "b", "c d"}},
		{"a large one first and last", []Entry{entry("a", 100), entry("b", 1), entry("c", 100)}, 10, []string{"a", "b", "c"}},
		{"empty ones", []Entry{entry("a", 0), entry("b", 100), entry("c", 0), entry("d", 1)}, 10, []string{"a b", "c d"}},
		{"order is kept", []Entry{entry("z", 4), entry("a", 4), entry("m", 4)}, 8, []string{"z a", "m"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			shards, err := layOut(tt.entries, tt.limit, nil)
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for i, s := range shards {
				var names []string
				for _, e := range s.entries {
					names = append(names, e.Name)
				}
				got = append(got, strings.Join(names, " "))
				want := singleName
				if len(tt.want) > 1 {
					want = fmt.Sprintf("model-%05d-of-%05d.safetensors", i+1, len(tt.want))
				}
				if s.name != want {
					t.Errorf("shard %d is called %s: want %s", i, s.name, want)
				}
				if len(s.header)%8 != 0 {
					t.Errorf("header of shard %d takes %d bytes: want a multiple of 8", i, len(s.header))
				}
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("shards (-want +got):\n%s", diff)
			}
		})
	}
}

// TestFileBytes pins the bytes of a file: tensors of wide elements first, keys
// in order of offset, padding to 8.
func TestFileBytes(t *testing.T) {
	dir := t.TempDir()
	entries := []Entry{{"codes<", U8, []int{3, 1}}, {"scales", F16, []int{1}}, {"table", F32, []int{1}}, {"bits", U8, []int{2}}}
	write(t, dir, entries, [][]byte{{1, 2, 3}, {4, 5}, {6, 7, 8, 9}, {10, 11}}, WriterOptions{})
	got, err := os.ReadFile(filepath.Join(dir, singleName))
	if err != nil {
		t.Fatal(err)
	}
	header := `{"__metadata__":{"format":"pt"},` +
		`"table":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},` +
		`"scales":{"dtype":"F16","shape":[1],"data_offsets":[4,6]},` +
		`"codes<":{"dtype":"U8","shape":[3,1],"data_offsets":[6,9]},` +
		`"bits":{"dtype":"U8","shape":[2],"data_offsets":[9,11]}}`
	header += strings.Repeat(" ", -len(header)&7)
	want := append(file(header, 0), 6, 7, 8, 9, 4, 5, 1, 2, 3, 10, 11)
	if diff := cmp.Diff(string(want), string(got)); diff != "" {
		t.Errorf("file (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{singleName}, listDir(t, dir)); diff != "" {
		t.Errorf("folder (-want +got):\n%s", diff)
	}
}

func TestIndexBytes(t *testing.T) {
	dir := t.TempDir()
	entries := []Entry{{"b", U8, []int{3}}, {"a&", U8, []int{2}}}
	write(t, dir, entries, [][]byte{{1, 2, 3}, {4, 5}}, WriterOptions{MaxShardSize: 3})
	got, err := os.ReadFile(filepath.Join(dir, indexName))
	if err != nil {
		t.Fatal(err)
	}
	want := `{
  "metadata": {
    "total_size": 5
  },
  "weight_map": {
    "a&": "model-00002-of-00002.safetensors",
    "b": "model-00001-of-00002.safetensors"
  }
}
`
	if diff := cmp.Diff(want, string(got)); diff != "" {
		t.Errorf("index (-want +got):\n%s", diff)
	}
	names := []string{"model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors", indexName}
	if diff := cmp.Diff(names, listDir(t, dir)); diff != "" {
		t.Errorf("folder (-want +got):\n%s", diff)
	}
}

func TestNewWriterRefuses(t *testing.T) {
	a := Entry{"a", U8, []int{1}}
	tests := []struct {
		name    string
		files   map[string]string
		entries []Entry
		o       WriterOptions
		want    string
	}{
		{"nothing", nil, nil, WriterOptions{}, "no tensors to write"},
		{"twice", nil, []Entry{a, a}, WriterOptions{}, `tensor "a" appears twice`},
		{"metadata as a name", nil, []Entry{{metadataKey, U8, nil}}, WriterOptions{}, "cannot be named __metadata__"},
		{"invalid UTF-8", nil, []Entry{{"\xff", U8, nil}}, WriterOptions{}, "not valid UTF-8"},
		{"unknown dtype", nil, []Entry{{"a", "X8", nil}}, WriterOptions{}, `tensor "a": unknown dtype "X8"`},
		{"negative shape", nil, []Entry{{"a", U8, []int{-1}}}, WriterOptions{}, "negative dimension"},
		{"overflow", nil, []Entry{{"a", U8, []int{math.MaxInt, math.MaxInt}}}, WriterOptions{}, "overflows"},
		{"half a byte", nil, []Entry{{"a", "F4", []int{1}}}, WriterOptions{}, "whole bytes"},
		{"negative shard size", nil, []Entry{a}, WriterOptions{MaxShardSize: -1}, "negative"},
		{"file exists", map[string]string{singleName: "x"}, []Entry{a}, WriterOptions{}, "model.safetensors: file already exists"},
		{"index exists", map[string]string{indexName: "x"}, []Entry{a}, WriterOptions{}, "index.json: file already exists"},
		{"other shards", map[string]string{"model-00001-of-00003.safetensors": "x"}, []Entry{a}, WriterOptions{}, "is in the way"},
		{"other shards to resume", map[string]string{"model-00001-of-00003.safetensors": "x"}, []Entry{a}, WriterOptions{Resume: true}, "is in the way"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			dir := folder(t, tt.files)
			before := listDir(t, dir)
			_, err := NewWriter(dir, tt.entries, tt.o)
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got error %v: want %q in it", err, tt.want)
			}
			if diff := cmp.Diff(before, listDir(t, dir)); diff != "" {
				t.Errorf("folder changed (-before +after):\n%s", diff)
			}
		})
	}
	if _, err := NewWriter(filepath.Join(t.TempDir(), "no"), []Entry{a}, WriterOptions{}); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("got error %v: want %v", err, fs.ErrNotExist)
	}
}

func TestWriterBounds(t *testing.T) {
	dir := t.TempDir()
	w, err := NewWriter(dir, []Entry{{"a", U8, []int{4}}, {"b", U8, []int{4}}}, WriterOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Abort()
	tests := []struct {
		name   string
		tensor string
		n      int
		off    int64
		want   string
	}{
		{"unknown tensor", "c", 1, 0, `tensor "c" is not in the layout`},
		{"negative offset", "a", 1, -1, `tensor "a": 1 bytes at -1 are outside its 4`},
		{"beyond the end", "a", 2, 3, `tensor "a": 2 bytes at 3 are outside its 4`},
		{"too long", "a", 5, 0, `tensor "a": 5 bytes at 0 are outside its 4`},
		{"far beyond", "a", 1, 1<<63 - 1, "outside its 4"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			p := slices.Repeat([]byte{9}, tt.n)
			for what, err := range map[string]error{"write": w.WriteAt(tt.tensor, p, tt.off), "read": w.ReadAt(tt.tensor, p, tt.off)} {
				if err == nil || !strings.Contains(err.Error(), tt.want) {
					t.Errorf("%s: got error %v: want %q in it", what, err, tt.want)
				}
			}
		})
	}
	for _, name := range []string{"a", "b"} {
		got := make([]byte, 4)
		if err := w.ReadAt(name, got, 0); err != nil || !bytes.Equal(got, make([]byte, 4)) {
			t.Errorf("after refused writes %q holds %v, %v: want zeros", name, got, err)
		}
	}
}

func TestCommitMissesData(t *testing.T) {
	w, err := NewWriter(t.TempDir(), []Entry{{"a", U8, []int{4}}, {"b", U8, []int{4}}}, WriterOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if err := w.WriteAt("a", make([]byte, 4), 0); err != nil {
		t.Fatal(err)
	}
	if err := w.WriteAt("b", make([]byte, 3), 1); err != nil {
		t.Fatal(err)
	}
	const want = `tensor "b": 3 of 4 bytes were written`
	if err := w.Commit(); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("got error %v: want %q in it", err, want)
	}
	if err := w.WriteAt("b", make([]byte, 1), 0); !errors.Is(err, fs.ErrClosed) {
		t.Errorf("writing afterwards: got error %v: want %v", err, fs.ErrClosed)
	}
}

func TestCommitTwice(t *testing.T) {
	w, err := NewWriter(t.TempDir(), []Entry{{"a", U8, []int{0}}}, WriterOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Commit(); err != nil {
		t.Fatal(err)
	}
	w.Abort()
	if err := w.Commit(); !errors.Is(err, fs.ErrClosed) {
		t.Errorf("got error %v: want %v", err, fs.ErrClosed)
	}
}

// TestResume: shards of the right size and header keep their data; others are
// made anew.
func TestResume(t *testing.T) {
	entries := []Entry{{"a", U8, []int{4}}, {"b", U8, []int{4}}, {"c", U8, []int{4}}, {"d", U8, []int{4}}}
	o := WriterOptions{MaxShardSize: 4, Resume: true}
	dir := t.TempDir()
	w, err := NewWriter(dir, entries, o)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if w.Resumed(e.Name) {
			t.Errorf("tensor %q of a new folder is resumed", e.Name)
		}
		if err := w.WriteAt(e.Name, []byte(strings.Repeat(e.Name, 4)), 0); err != nil {
			t.Fatal(err)
		}
	}
	w.Abort()

	// One shard stays, one is cut short, one has another header, one is a link.
	shard := func(i int) string { return filepath.Join(dir, w.Shards()[i]) }
	if err := os.Truncate(shard(1), 20); err != nil {
		t.Fatal(err)
	}
	raw, err := os.ReadFile(shard(2))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(shard(2), bytes.Replace(raw, []byte(`"c"`), []byte(`"x"`), 1), 0o666); err != nil {
		t.Fatal(err)
	}
	original := filepath.Join(t.TempDir(), "original")
	if err := os.Rename(shard(3), original); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(original, shard(3)); err != nil {
		t.Skip(err)
	}
	if err := os.WriteFile(filepath.Join(dir, indexName), []byte("stale"), 0o666); err != nil {
		t.Fatal(err)
	}

	w, err = NewWriter(dir, entries, o)
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []string{"aaaa", "\x00\x00\x00\x00", "\x00\x00\x00\x00", "\x00\x00\x00\x00"} {
		name := entries[i].Name
		if kept := w.Resumed(name); kept != (i == 0) {
			t.Errorf("tensor %q: resumed is %v", name, kept)
		}
		got := make([]byte, 4)
		if err := w.ReadAt(name, got, 0); err != nil {
			t.Fatal(err)
		}
		if string(got) != want {
			t.Errorf("tensor %q holds %q: want %q", name, got, want)
		}
	}
	if _, err := os.Stat(filepath.Join(dir, indexName)); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the stale index is still there: %v", err)
	}
	for _, name := range []string{"b", "c", "d"} {
		if err := w.WriteAt(name, []byte("done"), 0); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Commit(); err != nil {
		t.Fatal(err)
	}
	linked, err := os.ReadFile(original)
	if err != nil || !bytes.HasSuffix(linked, []byte("dddd")) {
		t.Errorf("the file behind the link changed: %q, %v", linked, err)
	}
	c := mustOpen(t, dir)
	b := make([]byte, 4)
	for name, want := range map[string]string{"a": "aaaa", "b": "done", "c": "done", "d": "done"} {
		x, _ := c.Tensor(name)
		if _, err := x.ReadAt(b, 0); err != nil || string(b) != want {
			t.Errorf("tensor %q holds %q, %v: want %q", name, b, err, want)
		}
	}
}

func TestFullDisk(t *testing.T) {
	full, err := os.OpenFile("/dev/full", os.O_RDWR, 0)
	if err != nil {
		t.Skipf("no device that is always full: %v", err)
	}
	w, err := NewWriter(t.TempDir(), []Entry{{"a", U8, []int{4}}}, WriterOptions{})
	if err != nil {
		t.Fatal(err)
	}
	w.files[0].Close()
	if w.files[0].File, err = input.NewPool().Add(full, os.O_RDWR); err != nil {
		t.Fatal(err)
	}
	defer w.Abort()
	err = w.WriteAt("a", make([]byte, 4), 0)
	if !errors.Is(err, syscall.ENOSPC) {
		t.Fatalf("got error %v: want %v", err, syscall.ENOSPC)
	}
	for _, want := range []string{`tensor "a"`, "/dev/full"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("got error %q: want %q in it", err, want)
		}
	}
	if err := w.Commit(); err == nil || !strings.Contains(err.Error(), "0 of 4 bytes") {
		t.Errorf("got error %v: want that nothing was written", err)
	}
}

// TestNewWriterCleansUp: what NewWriter created is gone when it fails.
func TestNewWriterCleansUp(t *testing.T) {
	entries := []Entry{{"a", U8, []int{4}}, {"b", U8, []int{4}}}
	// A folder that is not empty takes the place of the second shard.
	dir := folder(t, map[string]string{"model-00002-of-00002.safetensors/x": ""})
	if _, err := NewWriter(dir, entries, WriterOptions{MaxShardSize: 4, Resume: true}); err == nil {
		t.Fatal("a folder in place of a shard is accepted")
	}
	if diff := cmp.Diff([]string{"model-00002-of-00002.safetensors"}, listDir(t, dir)); diff != "" {
		t.Errorf("folder (-want +got):\n%s", diff)
	}
}

// TestCopyModels rewrites the test models in other shards, byte for byte.
func TestCopyModels(t *testing.T) {
	for _, dir := range modelDirs(t) {
		t.Run(filepath.Base(dir), func(t *testing.T) {
			c := mustOpen(t, dir)
			var entries []Entry
			total := int64(0)
			for _, x := range c.Tensors() {
				entries = append(entries, Entry{x.Name, x.DType, x.Shape})
				total += x.Bytes()
			}
			out := t.TempDir()
			w, err := NewWriter(out, entries, WriterOptions{MaxShardSize: total / 3})
			if err != nil {
				t.Fatal(err)
			}
			for _, x := range c.Tensors() {
				if err := w.CopyTensor(t.Context(), x); err != nil {
					t.Fatal(err)
				}
			}
			if err := w.Commit(); err != nil {
				t.Fatal(err)
			}
			copied := mustOpen(t, out)
			if n := len(shardPaths(t, out)); n < 3 {
				t.Errorf("%d shards: want 3 at least", n)
			}
			for _, want := range c.Tensors() {
				got, ok := copied.Tensor(want.Name)
				if !ok {
					t.Fatalf("no tensor %q", want.Name)
				}
				a, b := make([]byte, want.Bytes()), make([]byte, got.Bytes())
				if _, err := want.ReadAt(a, 0); err != nil {
					t.Fatal(err)
				}
				if _, err := got.ReadAt(b, 0); err != nil {
					t.Fatal(err)
				}
				if !bytes.Equal(a, b) {
					t.Errorf("tensor %q differs", want.Name)
				}
			}
			var x struct {
				Metadata struct {
					TotalSize int64 `json:"total_size"`
				}
			}
			text, err := os.ReadFile(filepath.Join(out, indexName))
			if err != nil {
				t.Fatal(err)
			}
			if err := json.Unmarshal(text, &x); err != nil || x.Metadata.TotalSize != total {
				t.Errorf("index has total_size %d, %v: want %d", x.Metadata.TotalSize, err, total)
			}
		})
	}
}

func TestCopyTensorRefuses(t *testing.T) {
	const n = 3 * chunk / 2
	c := mustOpen(t, folder(t, map[string]string{singleName: string(file(
		fmt.Sprintf(`{"a":{"dtype":"U8","shape":[%d],"data_offsets":[0,%d]},"b":{"dtype":"U8","shape":[1],"data_offsets":[%d,%d]}}`, n, n, n, n+1), n+1))}))
	a, _ := c.Tensor("a")
	b, _ := c.Tensor("b")
	open := func(e Entry) *Writer {
		w, err := NewWriter(t.TempDir(), []Entry{e}, WriterOptions{})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(w.Abort)
		return w
	}
	if err := open(Entry{"a", U8, []int{n}}).CopyTensor(t.Context(), b); err == nil || !strings.Contains(err.Error(), `tensor "b" is not in the layout`) {
		t.Errorf("another name: got error %v", err)
	}
	for _, e := range []Entry{{"a", "I8", []int{n}}, {"a", U8, []int{n - 1}}} {
		if err := open(e).CopyTensor(t.Context(), a); err == nil || !strings.Contains(err.Error(), "cannot copy U8") {
			t.Errorf("to %v: got error %v", e, err)
		}
	}
	w := open(Entry{"a", U8, []int{n}})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := w.CopyTensor(ctx, a); !errors.Is(err, context.Canceled) {
		t.Errorf("got error %v: want %v", err, context.Canceled)
	}
	if err := w.CopyTensor(t.Context(), a); err != nil {
		t.Fatal(err)
	}
	want, got := make([]byte, n), make([]byte, n)
	if _, err := a.ReadAt(want, 0); err != nil {
		t.Fatal(err)
	}
	if err := w.ReadAt("a", got, 0); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(want, got) {
		t.Error("a tensor of one and a half buffers is not copied as it is")
	}
}

// TestAnyOrder: the files do not depend on the order in which data arrives.
func TestAnyOrder(t *testing.T) {
	var entries []Entry
	for i := range 30 {
		entries = append(entries, Entry{fmt.Sprintf("t%d", i), []DType{U8, F32, BF16}[i%3], []int{i, 3}})
	}
	var first []byte
	for seed := range uint64(3) {
		dir := t.TempDir()
		w, err := NewWriter(dir, entries, WriterOptions{Metadata: map[string]string{"b": "2", "a": "1"}})
		if err != nil {
			t.Fatal(err)
		}
		for _, i := range rand.New(rand.NewPCG(seed, 0)).Perm(len(entries)) {
			size, _ := entries[i].Bytes()
			if err := w.WriteAt(entries[i].Name, slices.Repeat([]byte{byte(i)}, int(size)), 0); err != nil {
				t.Fatal(err)
			}
		}
		if err := w.Commit(); err != nil {
			t.Fatal(err)
		}
		got, err := os.ReadFile(filepath.Join(dir, singleName))
		if err != nil {
			t.Fatal(err)
		}
		if first == nil {
			first = got
		}
		if !bytes.Equal(got, first) {
			t.Fatal("the same tensors in another order give another file")
		}
	}
}

func TestFreeSpace(t *testing.T) {
	n, err := FreeSpace(t.TempDir())
	if errors.Is(err, errors.ErrUnsupported) {
		t.Skip(err)
	}
	if err != nil || n <= 0 {
		t.Errorf("got %d bytes, %v: want some", n, err)
	}
	if runtime.GOOS != "linux" {
		return
	}
	if _, err := FreeSpace("/does/not/exist"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("got error %v: want %v", err, fs.ErrNotExist)
	}
}

// TestManyShardsWritten writes more shards than are kept open.
func TestManyShardsWritten(t *testing.T) {
	const n = 300
	var entries []Entry
	var data [][]byte
	for i := range n {
		entries = append(entries, Entry{fmt.Sprintf("t%d", i), U8, []int{1}})
		data = append(data, []byte{byte(i)})
	}
	dir := t.TempDir()
	w, err := NewWriter(dir, entries, WriterOptions{MaxShardSize: 1})
	if err != nil {
		t.Fatal(err)
	}
	if open, err := os.ReadDir("/proc/self/fd"); err == nil && len(open) > 150 {
		t.Errorf("%d files are open", len(open))
	}
	for i, e := range entries {
		if err := w.WriteAt(e.Name, data[i], 0); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Commit(); err != nil {
		t.Fatal(err)
	}
	c := mustOpen(t, dir)
	for i, e := range entries {
		x, _ := c.Tensor(e.Name)
		var got [1]byte
		if _, err := x.ReadAt(got[:], 0); err != nil || got[0] != data[i][0] {
			t.Fatalf("%s is %d, %v", e.Name, got[0], err)
		}
	}
}
