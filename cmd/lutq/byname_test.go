package main

import (
	"bytes"
	"crypto/sha1"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// standInHub is a hub with one model, org/tiny.
type standInHub struct {
	URL string
	// during, unless nil, is called while a file is sent, after each piece of it. It may end the connection by a panic.
	during func(name string)
	// refuse, unless nil, reports whether a file is not given.
	refuse func(name string) bool

	mu       sync.Mutex
	requests map[string]int   // by file, and of "list"
	sent     map[string]int64 // bytes by file
}

// hubServer serves the files of a folder.
func hubServer(t *testing.T, dir string) *standInHub {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	commit := strings.Repeat("c", 40)
	files := make(map[string][]byte)
	var siblings []map[string]any
	for _, e := range entries {
		data, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			t.Fatal(err)
		}
		files[e.Name()] = data
		f := map[string]any{"rfilename": e.Name(), "size": len(data), "blobId": fmt.Sprintf("%x", sha1.Sum(fmt.Appendf(nil, "blob %d\x00%s", len(data), data)))}
		if strings.HasSuffix(e.Name(), ".safetensors") {
			f["lfs"] = map[string]any{"sha256": fmt.Sprintf("%x", sha256.Sum256(data)), "size": len(data)}
		}
		siblings = append(siblings, f)
	}
	h := &standInHub{requests: make(map[string]int), sent: make(map[string]int64)}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		name, ok := strings.CutPrefix(r.URL.Path, "/org/tiny/resolve/"+commit+"/")
		switch data, there := files[name]; {
		case r.URL.Path == "/api/models/org/tiny/revision/main" || r.URL.Path == "/api/models/org/tiny/revision/"+commit:
			h.count("list", 0)
			_ = json.NewEncoder(w).Encode(map[string]any{"id": "org/tiny", "sha": commit, "siblings": siblings}) // an error shows in the test
		case ok && there && h.refuse != nil && h.refuse(name):
			w.WriteHeader(http.StatusForbidden)
		case ok && there:
			h.count(name, 0)
			http.ServeContent(&countedWriter{w, h, name}, r, "", time.Time{}, bytes.NewReader(data))
		default:
			http.NotFound(w, r)
		}
	}))
	t.Cleanup(s.Close)
	h.URL = s.URL
	return h
}

// count counts a request, or bytes of an answer.
func (h *standInHub) count(name string, n int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.sent[name] += int64(n); n == 0 {
		h.requests[name]++
	}
}

// counts returns how many requests there were for each file, and what was sent of it, since it was asked last.
func (h *standInHub) counts() (requests map[string]int, sent map[string]int64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	requests, sent = h.requests, h.sent
	h.requests, h.sent = make(map[string]int), make(map[string]int64)
	return requests, sent
}

// countedWriter counts what is sent of a file.
type countedWriter struct {
	http.ResponseWriter
	*standInHub
	name string
}

func (w *countedWriter) Write(p []byte) (int, error) {
	n, err := w.ResponseWriter.Write(p)
	if n > 0 {
		w.count(w.name, n)
	}
	if w.during != nil {
		w.during(w.name)
	}
	return n, err
}

// TestByName: a model is taken by its name as it is from its folder.
func TestByName(t *testing.T) {
	tiny, err := filepath.Abs("../../calib/testdata/lutq-tiny")
	if err != nil {
		t.Fatal(err)
	}
	text, err := filepath.Abs("../../calib/testdata/harbour.txt")
	if err != nil {
		t.Fatal(err)
	}
	h := hubServer(t, tiny)
	counts := func() map[string]int {
		requests, _ := h.counts()
		return requests
	}
	t.Chdir(t.TempDir())
	t.Setenv("HF_ENDPOINT", h.URL)
	t.Setenv("HF_HUB_CACHE", filepath.Join(t.TempDir(), "hub"))
	t.Setenv("HF_TOKEN", "")
	do := func(args ...string) (stdout, stderr string) {
		t.Helper()
		code, stdout, stderr := exec(args...)
		if code != exitDone {
			t.Fatalf("%v: exit code %d\n%s%s", args, code, stdout, stderr)
		}
		return stdout, stderr
	}

	// Nothing is downloaded where that is not wanted.
	for _, line := range []string{"inspect org/tiny --offline", "inspect org/tiny"} {
		code, _, stderr := exec(strings.Fields(line)...)
		if code != exitFailed || !strings.HasPrefix(stderr, "lutq: org/tiny: is not in the cache, and nothing is downloaded offline") || !strings.Contains(stderr, "hint: leave out --offline") {
			t.Errorf("%s: exit code %d\n%s", line, code, stderr)
		}
	}
	t.Setenv("HF_HUB_OFFLINE", "0")

	// A tokenizer and shapes need no weights.
	want, _ := do("tokenize", tiny, "--text", text)
	if got, _ := do("tokenize", "org/tiny", "--text", text); got != want {
		t.Errorf("tokenize prints\n%.200s\nwant\n%.200s", got, want)
	}
	do("bench", "org/tiny", "--device", "cpu", "--bits", "4", "--m", "1", "--time", "1ms")
	if n := counts(); n["tokenizer.json"] != 1 || n["model.safetensors"] != 0 {
		t.Errorf("tokenize and bench asked for %v", n)
	}

	_, stderr := do("quantize", "--preset", "fast", "org/tiny", "out")
	if !strings.Contains(stderr, "lutq: org/tiny lies in ") {
		t.Errorf("quantize does not say where the model lies:\n%s", stderr)
	}
	card, err := os.ReadFile(filepath.Join("out", "README.md"))
	for _, want := range []string{"\nbase_model: org/tiny\n", "\n# tiny, quantized by lutq\n", "    lutq quantize org/tiny@" + strings.Repeat("c", 40) + " OUT --bits 4 "} {
		if err != nil || !strings.Contains("\n"+string(card), want) {
			t.Errorf("the card lacks %q (%v):\n%s", want, err, card)
		}
	}
	if n := counts(); n["model.safetensors"] != 1 || n["tokenizer.json"] != 0 {
		t.Errorf("quantize asked for %v", n)
	}
	do("quantize", "--preset", "fast", tiny, "want")
	for _, name := range []string{"model.safetensors", "tokenizer.json", "tokenizer_config.json", "generation_config.json"} {
		got, err := os.ReadFile(filepath.Join("out", name))
		if err != nil {
			t.Fatal(err)
		}
		want, err := os.ReadFile(filepath.Join("want", name))
		if err != nil || string(got) != string(want) {
			t.Errorf("%s is another than from the folder (%v)", name, err)
		}
	}

	// Every command finds it, and asks nobody any more.
	for _, line := range []string{
		"inspect org/tiny", "inspect https://huggingface.co/org/tiny", "verify out --against org/tiny", "generate org/tiny --prompt a --max-tokens 2 --device cpu",
		"eval-ppl out --against hf://org/tiny --device cpu --windows 1 --ctx 64 --text " + text, "export org/tiny dense --to dense",
		"quantize org/tiny again --bits 3 --dry-run --offline",
	} {
		do(strings.Fields(line)...)
	}
	if n := counts(); len(n) > 0 {
		t.Errorf("of what was in the cache %v was asked for", n)
	}

	// What lutq quantized is whole, whatever other files it has.
	t.Setenv("HF_ENDPOINT", hubServer(t, "out").URL)
	t.Setenv("HF_HUB_CACHE", filepath.Join(t.TempDir(), "hub"))
	do("generate", "org/tiny", "--prompt", "a", "--max-tokens", "2", "--device", "cpu")
	do("verify", "org/tiny", "--against", tiny)

	code, _, stderr := exec("inspect", "org/other")
	if code != exitFailed || !strings.HasPrefix(stderr, "lutq: org/other: there is no such model, or it is private") {
		t.Errorf("exit code %d\n%s", code, stderr)
	}
}
