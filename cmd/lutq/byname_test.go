package main

import (
	"crypto/sha1"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// hubServer serves a folder as model org/tiny of a hub, and counts the requests for each file.
func hubServer(t *testing.T, dir string) (url string, counts func() map[string]int) {
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
	requests := make(chan string, 1000)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		name, ok := strings.CutPrefix(r.URL.Path, "/org/tiny/resolve/"+commit+"/")
		switch data, there := files[name]; {
		case r.URL.Path == "/api/models/org/tiny/revision/main":
			requests <- "list"
			_ = json.NewEncoder(w).Encode(map[string]any{"id": "org/tiny", "sha": commit, "siblings": siblings}) // an error shows in the test
		case ok && there:
			requests <- name
			_, _ = w.Write(data)
		default:
			http.NotFound(w, r)
		}
	}))
	t.Cleanup(s.Close)
	return s.URL, func() map[string]int {
		n := make(map[string]int)
		for {
			select {
			case name := <-requests:
				n[name]++
			default:
				return n
			}
		}
	}
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
	url, counts := hubServer(t, tiny)
	t.Chdir(t.TempDir())
	t.Setenv("HF_ENDPOINT", url)
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
	published, _ := hubServer(t, "out")
	t.Setenv("HF_ENDPOINT", published)
	t.Setenv("HF_HUB_CACHE", filepath.Join(t.TempDir(), "hub"))
	do("generate", "org/tiny", "--prompt", "a", "--max-tokens", "2", "--device", "cpu")
	do("verify", "org/tiny", "--against", tiny)

	code, _, stderr := exec("inspect", "org/other")
	if code != exitFailed || !strings.HasPrefix(stderr, "lutq: org/other: there is no such model, or it is private") {
		t.Errorf("exit code %d\n%s", code, stderr)
	}
}
