package main

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"maps"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/lutq/lutq/formats/hf"
	"github.com/lutq/lutq/formats/num"
)

// eightBits writes a model of matrices in FP8, a file for each of some tensors, with scales in front or behind: parts of each layer
// lie in different files.
func eightBits(t *testing.T, layers, n, k, perFile int, scalesFirst bool) string {
	t.Helper()
	dir := t.TempDir()
	var codes, scales []hf.Entry
	for i := range layers {
		name := fmt.Sprintf("model.layers.%d.mlp.down_proj.weight", i)
		codes = append(codes, hf.Entry{Name: name, DType: "F8_E4M3", Shape: []int{n, k}})
		scales = append(scales, hf.Entry{Name: name + "_scale_inv", DType: "F32", Shape: []int{n / 128, k / 128}})
	}
	all := slices.Concat(codes, scales)
	if scalesFirst {
		all = slices.Concat(scales, codes)
	}
	w, err := hf.NewWriter(dir, all, hf.WriterOptions{MaxShardSize: int64(perFile * n * k)})
	if err != nil {
		t.Fatal(err)
	}
	rng := rand.New(rand.NewPCG(2, 2))
	for _, e := range all {
		size, err := e.Bytes()
		if err != nil {
			t.Fatal(err)
		}
		data := make([]byte, size)
		if e.DType == "F32" {
			values := make([]float32, size/4)
			for i := range values {
				values[i] = rng.Float32() + 0.5
			}
			num.EncodeF32(data, values)
		} else {
			for i := range data {
				data[i] = byte(rng.IntN(0x7f)) | byte(rng.IntN(2))<<7
				if data[i]&0x7f == 0x7f { // NaN
					data[i] = 0
				}
			}
		}
		if err := w.WriteAt(e.Name, data, 0); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Commit(); err != nil {
		t.Fatal(err)
	}
	config := `{"quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}}`
	if err := os.WriteFile(filepath.Join(dir, "config.json"), []byte(config), 0o644); err != nil {
		t.Fatal(err)
	}
	return dir
}

// onDisk returns what the files below some folders take of the disk.
func onDisk(dirs ...string) (sum int64) {
	for _, dir := range dirs {
		_ = filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error { // what goes meanwhile takes nothing
			if err != nil || e.IsDir() {
				return nil
			}
			if info, err := e.Info(); err == nil {
				sum += info.Sys().(*syscall.Stat_t).Blocks * 512
			}
			return nil
		})
	}
	return sum
}

// shardSizes returns the sizes of a model's files of weights.
func shardSizes(t *testing.T, dir string) map[string]int64 {
	t.Helper()
	sizes := make(map[string]int64)
	names, _ := filepath.Glob(filepath.Join(dir, "*.safetensors"))
	for _, name := range names {
		info, err := os.Stat(name)
		if err != nil {
			t.Fatal(err)
		}
		sizes[filepath.Base(name)] = info.Size()
	}
	return sizes
}

// TestShardsFromHub: what is made of a model whose files come one at a time is what is made of its folder, each file comes once, and
// the disk never holds more of them than two, and what lies in several.
func TestShardsFromHub(t *testing.T) {
	apart := func(layers, n, k int) string {
		dir := filepath.Join(t.TempDir(), "model")
		shard(t, synthetic(t, layers, n, k), dir)
		return dir
	}
	family := filepath.Join(t.TempDir(), "model")
	shard(t, tiny, family)
	if err := os.Remove(filepath.Join(family, "golden.json")); err != nil { // which the hub would keep
		t.Fatal(err)
	}
	plain, small := apart(8, 256, 1024), apart(3, 128, 256)
	for _, tc := range []struct {
		name, dir string
		args      string
		bounded   bool // parts of layers that are kept are small
	}{
		{"nearest", plain, "--codebook nf", true},
		{"absmax, a layer kept", plain, "--codebook int --bits 3 --scale absmax --tensor layers\\.3=keep", true},
		{"binary codes", small, "--method bcq --bits 2", true},
		{"rings", small, "--codebook trellis --bits 2", true},
		{"tables chosen, by a name alone", plain, "--preset fast", true},
		{"tables chosen, of a family", family, "--preset fast --bits 3", false},
		{"tables chosen, the head's too", family, "--preset fast --embed-bits 4 --tensor layers\\.1=::int", false},
		{"a model of a family, with a tokenizer", family, "--codebook nf --bits 3 --embed-bits 4", false},
		{"bytes as scales", plain, "--codebook js --scale-type e4m3", true},
		{"k-bit", plain, "--kbit-encode bnb", true},
		{"scales in the first file", eightBits(t, 8, 256, 1024, 1, true), "--codebook nf", true},
		{"scales in the last file", eightBits(t, 8, 256, 1024, 1, false), "--codebook nf", false},
		{"two layers a file", eightBits(t, 8, 256, 1024, 2, true), "--codebook nf", true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			h := hubServer(t, tc.dir)
			t.Chdir(t.TempDir())
			t.Setenv("HF_ENDPOINT", h.URL)
			t.Setenv("HF_HUB_CACHE", "cache")
			t.Setenv("HF_HUB_OFFLINE", "0")
			t.Setenv("HF_TOKEN", "")
			args := append([]string{"quantize", tc.dir, "want", "--quiet", "--threads", "2"}, strings.Fields(tc.args)...)
			if code, _, stderr := exec(args...); code != exitDone {
				t.Fatal(stderr)
			}
			sizes := shardSizes(t, tc.dir)
			if len(sizes) < 3 {
				t.Fatalf("the model is in %d files", len(sizes))
			}
			var mu sync.Mutex
			var peak int64
			h.during = func(string) {
				mu.Lock()
				defer mu.Unlock()
				peak = max(peak, onDisk("out.partial", "out", "cache"))
			}
			args[1], args[2] = "org/tiny", "out"
			if code, _, stderr := exec(append(args, "--shards-from", "hub")...); code != exitDone {
				t.Fatal(stderr)
			}
			const blocks = 64 << 10 // of headers, marks and half-filled blocks
			largest := slices.Max(slices.Collect(maps.Values(sizes)))
			most := onDisk("out") + 2*largest + blocks
			if peak < largest/2 || tc.bounded && peak > most {
				t.Errorf("the disk holds %d bytes at most: want no more than %d", peak, most)
			}
			requests, sent := h.counts()
			for name, size := range sizes {
				// Its header, and all of it; and rows of a layer in several files, or what comes before it.
				if n := sent[name]; requests[name] != 2 && !strings.HasPrefix(tc.name, "tables chosen") || requests[name] > 3 || n < size || n > size+64<<10 {
					t.Errorf("%s of %d bytes was sent with %d, by %d requests", name, size, n, requests[name])
				}
			}
			if left, _ := filepath.Glob("out.*"); len(left) > 0 {
				t.Errorf("%v is left", left)
			}
			if kept, _ := filepath.Glob("cache/*/snapshots/*/*.safetensors"); len(kept) > 0 {
				t.Errorf("%v is in the cache", kept)
			}
			if err := os.Remove("out/README.md"); err != nil { // which names the model
				t.Fatal(err)
			}
			if err := os.Remove("want/README.md"); err != nil {
				t.Fatal(err)
			}
			sameFolders(t, "want", "out")
		})
	}
}

// TestShardsInterrupted: a run whose network fails goes on with what it has: neither what is finished nor what has come of a file is
// asked for again.
func TestShardsInterrupted(t *testing.T) {
	dir := eightBits(t, 8, 256, 1024, 1, true)
	h := hubServer(t, dir)
	sizes := shardSizes(t, dir)
	fails := slices.Sorted(maps.Keys(sizes))[5]
	t.Chdir(t.TempDir())
	t.Setenv("HF_ENDPOINT", h.URL)
	t.Setenv("HF_HUB_CACHE", "cache")
	t.Setenv("HF_HUB_OFFLINE", "0")
	args := []string{"quantize", "org/tiny", "out", "--codebook", "nf", "--quiet", "--shards-from", "hub"}
	var mu sync.Mutex
	var sent int64
	h.during = func(name string) {
		mu.Lock()
		defer mu.Unlock()
		if name == fails {
			if sent += 32 << 10; sent > 5*32<<10 { // its header, and some of what it has
				panic(http.ErrAbortHandler)
			}
		}
	}
	h.refuse = func(name string) bool { // which ends the run
		mu.Lock()
		defer mu.Unlock()
		return sent > 5*32<<10
	}
	code, _, stderr := exec(args...)
	if code != exitFailed || !strings.Contains(stderr, "lutq: org/tiny: "+fails+": the server forbids it") || !strings.Contains(stderr, "; the same command goes on where this one stopped\n") {
		t.Fatalf("exit code %d\n%s", code, stderr)
	}
	if n := onDisk("out.partial"); n == 0 {
		t.Fatal("nothing is kept of what was done")
	}
	h.during, h.refuse = nil, nil
	h.counts()
	code, stdout, stderr := exec(append(args, "--json")...)
	if code != exitDone {
		t.Fatal(stderr)
	}
	var res struct{ Resumed int }
	if err := json.Unmarshal([]byte(stdout), &res); err != nil || res.Resumed < 3 {
		t.Errorf("%d layers were taken over (%v)", res.Resumed, err)
	}
	_, again := h.counts()
	for name, size := range sizes {
		switch n := again[name]; {
		case name < fails && name != slices.Min(slices.Collect(maps.Keys(sizes))) && n > 64<<10: // the first has all scales
			t.Errorf("%s came again, with %d bytes", name, n)
		case name == fails && n > size:
			t.Errorf("%s did not go on: %d bytes of %d came", name, n, size)
		}
	}
	if code, _, stderr := exec("quantize", dir, "want", "--codebook", "nf", "--quiet"); code != exitDone {
		t.Fatal(stderr)
	}
	for _, out := range []string{"out", "want"} {
		if err := os.Remove(filepath.Join(out, "README.md")); err != nil {
			t.Fatal(err)
		}
	}
	sameFolders(t, "want", "out")
}

// backwards writes a model whose files have its tensors from the last to the first, one in each.
func backwards(t *testing.T, from string) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "model")
	shard(t, from, dir)
	names, err := filepath.Glob(filepath.Join(dir, "*.safetensors"))
	if err != nil {
		t.Fatal(err)
	}
	index := filepath.Join(dir, "model.safetensors.index.json")
	data, err := os.ReadFile(index)
	if err != nil {
		t.Fatal(err)
	}
	text := string(data)
	for i, name := range names {
		other := filepath.Base(names[len(names)-1-i])
		text = strings.ReplaceAll(text, strconv.Quote(filepath.Base(name)), strconv.Quote("new-"+other))
		if err := os.Rename(name, filepath.Join(dir, "new-"+other)); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range names {
		if err := os.Rename(filepath.Join(dir, "new-"+filepath.Base(name)), name); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(index, []byte(strings.ReplaceAll(text, `"new-`, `"`)), 0o644); err != nil {
		t.Fatal(err)
	}
	return dir
}

// TestShardsTables: tables are chosen as from a folder where files come in another order than layers, and where a run is interrupted
// goes on without asking again for what came before.
func TestShardsTables(t *testing.T) {
	ordered := filepath.Join(t.TempDir(), "model")
	shard(t, tiny, ordered)
	for name, dir := range map[string]string{"in order": ordered, "backwards": backwards(t, tiny)} {
		t.Run(name, func(t *testing.T) {
			if err := os.RemoveAll(filepath.Join(dir, "golden.json")); err != nil { // which the hub would keep
				t.Fatal(err)
			}
			h := hubServer(t, dir)
			t.Chdir(t.TempDir())
			t.Setenv("HF_ENDPOINT", h.URL)
			t.Setenv("HF_HUB_CACHE", "cache")
			t.Setenv("HF_HUB_OFFLINE", "0")
			sizes := shardSizes(t, dir)
			files := slices.Sorted(maps.Keys(sizes))
			var asked atomic.Int32
			h.refuse = func(name string) bool { // which ends the run, behind the header
				return name == files[20] && asked.Add(1) > 1
			}
			args := []string{"quantize", "org/tiny", "out", "--quiet", "--shards-from", "hub"}
			if code, _, stderr := exec(args...); code != exitFailed || !strings.Contains(stderr, files[20]) {
				t.Fatalf("exit code %d\n%s", code, stderr)
			}
			h.refuse = nil
			h.counts()
			code, stdout, stderr := exec(append(args, "--json")...)
			var res struct{ Resumed int }
			if err := json.Unmarshal([]byte(stdout), &res); code != exitDone || err != nil || name == "in order" && res.Resumed < 3 {
				t.Fatalf("exit code %d, %d layers were taken over (%v)\n%s", code, res.Resumed, err, stderr)
			}
			_, again := h.counts()
			if name == "in order" {
				for _, file := range files[:10] {
					if again[file] > 64<<10 && again[file] >= sizes[file] {
						t.Errorf("%s of %d bytes came again, with %d bytes", file, sizes[file], again[file])
					}
				}
			}
			if code, _, stderr := exec("quantize", dir, "want", "--preset", "fast", "--quiet"); code != exitDone {
				t.Fatal(stderr)
			}
			for _, out := range []string{"out", "want"} {
				if err := os.Remove(filepath.Join(out, "README.md")); err != nil {
					t.Fatal(err)
				}
			}
			sameFolders(t, "want", "out")
		})
	}
}

// TestShardsRefused: what reads weights more than once is refused before the server is asked for anything.
func TestShardsRefused(t *testing.T) {
	h := hubServer(t, synthetic(t, 4, 64, 128))
	t.Chdir(t.TempDir())
	t.Setenv("HF_ENDPOINT", h.URL)
	t.Setenv("HF_HUB_CACHE", "cache")
	t.Setenv("HF_HUB_OFFLINE", "0")
	if err := os.WriteFile("text", []byte("text"), 0o644); err != nil {
		t.Fatal(err)
	}
	for args, want := range map[string]string{
		"--codebook nf --tensor zzz=:::::lut24":  "no tensor that can be quantized matches",
		"--method gptq":                          "method gptq runs a text through the whole model",
		"--preset good":                          "method gptq runs a text",
		"--codebook nf --learn":                  "learning and transforms run a text",
		"--bits 3.25 --codebook nf":              "bits that differ by layer are chosen by the whole model",
		"--codebook nf --eval-text text":         "--eval-text runs the whole model",
		"--codebook nf --offline":                "its weights are on the hub, and nothing is downloaded offline",
		"--codebook nf --tensor down=::::::gptq": "method rtn or gptq runs a text",
	} {
		code, _, stderr := exec(append([]string{"quantize", "org/tiny", "out", "--shards-from", "hub"}, strings.Fields(args)...)...)
		if code == exitDone || !strings.Contains(stderr, want) {
			t.Errorf("%s: exit code %d, stderr %q: want %q", args, code, stderr, want)
		}
		requests, sent := h.counts()
		for name := range sent {
			if strings.HasSuffix(name, ".safetensors") && !strings.Contains(want, "matches") {
				t.Errorf("%s: %s was asked for %d times", args, name, requests[name])
			}
		}
	}
	code, stdout, stderr := exec("quantize", "org/tiny", "out", "--shards-from", "hub", "--codebook", "nf", "--dry-run", "--json")
	var plan struct {
		FetchFiles int   `json:"fetch_files"`
		FetchBytes int64 `json:"fetch_bytes"`
	}
	if err := json.Unmarshal([]byte(stdout), &plan); code != exitDone || err != nil || plan.FetchFiles != 2 || plan.FetchBytes < 4*64*128*2 {
		t.Errorf("a dry run says %+v (exit code %d, %v)\n%s", plan, code, err, stderr)
	}
	if left, _ := filepath.Glob("out*"); len(left) > 0 {
		t.Errorf("a dry run leaves %v", left)
	}
}
