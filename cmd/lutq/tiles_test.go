package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestTiles evaluates a model from what repack has laid out.
func TestTiles(t *testing.T) {
	const data = "../../calib/testdata/"
	dir := t.TempDir()
	t.Setenv("XDG_CACHE_HOME", filepath.Join(dir, "cache"))
	run := func(args ...string) {
		t.Helper()
		if code, _, stderr := exec(args...); code != 0 {
			t.Fatalf("%v: %s", args, stderr)
		}
	}
	path := func(name string) string { return filepath.Join(dir, name) }
	evaluate := func(flags ...string) (ppl float64, code int, stderr string) {
		t.Helper()
		code, stdout, stderr := exec(append([]string{
			"eval-ppl", path("model"), "--text", data + "harbour.txt",
			"--ctx", "64", "--windows", "2", "--device", "cpu", "--json",
		}, flags...)...)
		var r struct {
			PPL float64 `json:"ppl"`
		}
		if code == 0 {
			if err := json.Unmarshal([]byte(stdout), &r); err != nil {
				t.Fatal(err)
			}
		}
		return r.PPL, code, stderr
	}
	// flip changes a byte of the last layer in a folder.
	flip := func(dir string) {
		t.Helper()
		file := filepath.Join(dir, "model.safetensors")
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		b[len(b)*9/10] ^= 1
		if err := os.WriteFile(file, b, 0o644); err != nil {
			t.Fatal(err)
		}
	}

	run("quantize", "--preset", "fast", data+"lutq-tiny", path("model"), "--bits", "3", "--quiet")
	run("quantize", "--preset", "fast", data+"lutq-tiny", path("other"), "--bits", "4", "--quiet")
	want, _, _ := evaluate()
	run("repack", path("model"))
	run("repack", path("model"), path("panels"))
	run("repack", path("model"), path("tiles"), "--target", "cuda")
	run("repack", path("other"), path("others"))

	check := func(name string, wantCode int, wantErr string, flags ...string) {
		t.Helper()
		got, code, stderr := evaluate(flags...)
		if code != wantCode || code == 0 && got != want {
			t.Errorf("%s: perplexity %v, exit code %d: want %v, %d\n%s", name, got, code, want, wantCode, stderr)
		}
		if (wantErr == "") != (stderr == "") || !strings.Contains(stderr, wantErr) {
			t.Errorf("%s: stderr is %q: want %q", name, stderr, wantErr)
		}
	}
	check("cache", 0, "")
	check("folder", 0, "", "--tiles", path("panels"))
	check("another device's", 1, "tiles of another model, or for another device than cpu", "--tiles", path("tiles"))
	check("another model's", 1, "tiles of another model, or for another device than cpu", "--tiles", path("others"))
	check("one of two", 1, "others: tiles of another model", "--tiles", path("panels"), "--tiles", path("others"))
	check("a model", 1, "not a folder that lutq repack has written", "--tiles", path("other"))
	check("nothing", 1, "no such file", "--tiles", path("absent"))

	cached, err := filepath.Glob(path("cache/lutq/tiles/*-cpu"))
	if err != nil || len(cached) != 1 {
		t.Fatalf("the cache has %v, %v", cached, err)
	}
	flip(cached[0])
	check("damaged cache", 0, "lutq: tiles in the cache are left alone: "+cached[0])
	flip(path("model"))
	if err := os.RemoveAll(cached[0]); err != nil {
		t.Fatal(err)
	}
	check("damaged model", 3, "differs from what was written")
	// Of a layer that is laid out the model's own codes are not read.
	check("folder of a damaged model", 0, "", "--tiles", path("panels"))
	bench := []string{"bench", path("model"), "--device", "cpu", "--m", "1", "--threads", "1", "--json", "--cache", "1MB", "--time", "10ms", "--tiles"}
	if code, _, stderr := exec(append(bench, path("others"))...); code != 1 || !strings.Contains(stderr, "tiles of another model") {
		t.Errorf("bench with another model's: exit code %d, %s", code, stderr)
	}
	flip(path("panels"))
	if code, _, stderr := exec(append(bench, path("panels"))...); code != 1 || !strings.Contains(stderr, "damaged") {
		t.Errorf("bench with a damaged folder: exit code %d, %s", code, stderr)
	}
	check("damaged folder", 1, "damaged: its checksum is another", "--tiles", path("panels"))
}
