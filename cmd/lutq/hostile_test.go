package main

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
)

// replaceFile puts another file in a file's place.
type replaceFile struct {
	name string
	put  func(path string) error
	want string // of the message
}

// odd are what a user may find in place of a file. None of them may be read
// as one.
func oddFiles() []replaceFile {
	return []replaceFile{
		{"pipe", func(path string) error { return syscall.Mkfifo(path, 0o644) }, "is a pipe"},
		{"device", func(path string) error { return os.Symlink("/dev/zero", path) }, "is a device"},
		{"folder", func(path string) error { return os.Mkdir(path, 0o755) }, "is a folder"},
		{"sparse file of 64 GB", func(path string) error {
			if err := os.WriteFile(path, nil, 0o644); err != nil {
				return err
			}
			return os.Truncate(path, 64<<30)
		}, "may have at most"},
	}
}

// TestOddFiles puts pipes, devices, folders and huge files where files are
// expected: all are refused at once, in one line that names them.
func TestOddFiles(t *testing.T) {
	base := t.TempDir()
	container := filepath.Join(base, "container")
	if code, _, stderr := exec("quantize", tiny, container); code != 0 {
		t.Fatal(stderr)
	}
	const harbour = "../../calib/testdata/harbour.txt"
	evalArgs := []string{"eval-ppl", "MODEL", "--text", harbour, "--windows", "1", "--ctx", "64", "--device", "cpu"}
	for _, tc := range []struct {
		name      string
		file      string // in MODEL
		container bool
		any       bool // its size is not limited, only what is read of it
		args      []string
	}{
		{name: "quantize config", file: config, args: []string{"quantize", "MODEL", "OUT"}},
		{name: "quantize weights", file: weights, any: true, args: []string{"quantize", "MODEL", "OUT"}},
		{name: "quantize index", file: "model.safetensors.index.json", args: []string{"quantize", "MODEL", "OUT"}},
		{name: "quantize recipe", file: "recipe.json", args: []string{"quantize", "MODEL", "OUT", "--recipe", "MODEL/recipe.json"}},
		{name: "quantize codebook", file: "cb.json", args: []string{"quantize", "MODEL", "OUT", "--codebook", "file:MODEL/cb.json"}},
		{name: "quantize calibration text", file: "text", any: true, args: []string{"quantize", "MODEL", "OUT", "--learn", "--calib", "MODEL/text", "--device", "cpu"}},
		{name: "inspect config", file: config, args: []string{"inspect", "MODEL"}},
		{name: "inspect weights", file: weights, any: true, args: []string{"inspect", "MODEL"}},
		{name: "verify config", container: true, file: config, args: []string{"verify", "MODEL"}},
		{name: "repack config", container: true, file: config, args: []string{"repack", "MODEL", "OUT"}},
		{name: "bench config", file: config, args: []string{"bench", "MODEL/" + config, "--device", "cpu"}},
		{name: "bench folder", file: config, args: []string{"bench", "MODEL", "--device", "cpu"}},
		{name: "tokenize tokenizer", file: tokJSON, args: []string{"tokenize", "MODEL"}},
		{name: "tokenize text", file: "text", args: []string{"tokenize", "MODEL", "--text", "MODEL/text"}},
		{name: "evaluate config", file: config, args: evalArgs},
		{name: "evaluate tokenizer", file: tokJSON, args: evalArgs},
		{name: "evaluate text", file: "text", any: true, args: []string{"eval-ppl", "MODEL", "--text", "MODEL/text", "--windows", "1", "--device", "cpu"}},
	} {
		for _, odd := range oddFiles() {
			t.Run(tc.name+" "+odd.name, func(t *testing.T) {
				dir := t.TempDir()
				m := victim{t, filepath.Join(dir, "model")}
				from := tiny
				if tc.container {
					from = container
				}
				if err := os.CopyFS(m.dir, os.DirFS(from)); err != nil {
					t.Fatal(err)
				}
				if err := os.Remove(m.path(tc.file)); err != nil && !errors.Is(err, os.ErrNotExist) {
					t.Fatal(err)
				}
				if err := odd.put(m.path(tc.file)); err != nil {
					t.Fatal(err)
				}
				names := strings.NewReplacer("MODEL", m.dir, "OUT", filepath.Join(dir, "out"))
				args := slices.Clone(tc.args)
				for i := range args {
					args[i] = names.Replace(args[i])
				}
				var before, after runtime.MemStats
				runtime.ReadMemStats(&before)
				code, stdout, stderr := exec(args...)
				runtime.ReadMemStats(&after)
				checkRefused(t, exitFailed, code, stderr)
				if odd.name == "folder" && strings.Contains(args[1], config) {
					return // it is taken for the model's
				}
				if !strings.Contains(stderr, filepath.Join(m.dir, tc.file)) {
					t.Errorf("the message does not name %s:\n%s", tc.file, stderr)
				}
				if !strings.Contains(stderr, odd.want) && !(tc.any && strings.HasPrefix(odd.name, "sparse")) {
					t.Errorf("the message does not say %q:\n%s", odd.want, stderr)
				}
				if stdout != "" {
					t.Errorf("output:\n%s", stdout)
				}
				if n := after.TotalAlloc - before.TotalAlloc; n > 128<<20 {
					t.Errorf("%d MB of memory allocated", n>>20)
				}
				if _, err := os.Stat(filepath.Join(dir, "out")); err == nil {
					t.Error("there is an output")
				}
			})
		}
	}
}
