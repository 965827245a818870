package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/spf13/pflag"

	"github.com/lutq/lutq/formats/input"
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
	if code, _, stderr := exec("quantize", "--preset", "fast", tiny, container); code != 0 {
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
		{name: "quantize config", file: config, args: []string{"quantize", "--preset", "fast", "MODEL", "OUT"}},
		{name: "quantize weights", file: weights, any: true, args: []string{"quantize", "--preset", "fast", "MODEL", "OUT"}},
		{name: "quantize index", file: "model.safetensors.index.json", args: []string{"quantize", "--preset", "fast", "MODEL", "OUT"}},
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

// TestSecondSignal: the first signal ends work that looks at its context, and
// the second the process, whatever it is at.
func TestSecondSignal(t *testing.T) {
	for _, sig := range []os.Signal{os.Interrupt, syscall.SIGTERM} {
		t.Run(sig.String(), func(t *testing.T) {
			dir := t.TempDir()
			// Writing the result to a pipe that nobody reads blocks for good.
			r, w, err := os.Pipe()
			if err != nil {
				t.Fatal(err)
			}
			defer r.Close()
			text := filepath.Join(dir, "text")
			if err := os.WriteFile(text, []byte(strings.Repeat("many tokens ", 1<<16)), 0o644); err != nil {
				t.Fatal(err)
			}
			var stderr bytes.Buffer
			c := program(t, "tokenize", tiny, "--text", text)
			c.Stdout, c.Stderr = w, &stderr
			if err := c.Start(); err != nil {
				t.Fatal(err)
			}
			w.Close()
			if _, err := io.ReadFull(r, make([]byte, 1)); err != nil { // it is at work
				t.Fatal(err)
			}
			done := make(chan error, 1)
			go func() { done <- c.Wait() }()
			if err := c.Process.Signal(sig); err != nil {
				t.Fatal(err)
			}
			select {
			case err := <-done:
				t.Fatalf("one signal ended a blocked process: %v\n%s", err, stderr.String())
			case <-time.After(200 * time.Millisecond):
			}
			// Signals that come while another is pending are one: on a busy machine the second may be lost.
			for again := time.NewTicker(100 * time.Millisecond); ; <-again.C {
				if err := c.Process.Signal(sig); errors.Is(err, os.ErrProcessDone) {
					break
				}
			}
			<-done
			if code := c.ProcessState.ExitCode(); code != exitInterrupted || stderr.String() != interrupted+"\n" {
				t.Errorf("exit code %d, stderr %q", code, stderr.String())
			}
		})
	}
}

// TestSignalWhileReading: waiting for the standard input ends at the first signal.
func TestSignalWhileReading(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	defer r.Close()
	ctx, cancel := context.WithCancel(t.Context())
	u := &ui{stdin: r}
	cancel()
	if _, err := io.ReadAll(u.stdinOf(ctx, input.Text)); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
	large := &ui{stdin: zeros{}}
	var limit *input.TooLargeError
	if _, err := io.ReadAll(large.stdinOf(t.Context(), input.Codebook)); !errors.As(err, &limit) {
		t.Errorf("endless input: error %v", err)
	}
}

// zeros gives zeros for ever.
type zeros struct{}

func (zeros) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}

// hostileName is a tensor's name that would turn a terminal red, rename its
// window, turn the direction of writing and begin a line.
const hostileName = "model.layers.9.\x1b[31m\x1b]0;gone\a\u202e\u009b2J\n\tlutq: done"

// TestHostileNames: control characters in names are seen, and not obeyed.
func TestHostileNames(t *testing.T) {
	quoted := func(s string) string {
		return strings.NewReplacer("\x1b", `\u001b`, "\a", `\u0007`, "\n", `\n`, "\t", `\t`).Replace(s)
	}
	rename := func(m victim, from, to string) {
		m.header(func(s string) string { return strings.ReplaceAll(s, from, quoted(to)) })
	}
	const norm = "model.layers.0.input_layernorm.weight"
	hostileLayer := hostileName + ".mlp.down_proj"
	for _, tc := range []struct {
		name      string
		container bool
		damage    func(m victim)
		args      []string
		code      int
	}{
		{name: "inspect", damage: func(m victim) { rename(m, norm, hostileName) }, args: []string{"inspect", "MODEL"}},
		{name: "inspect a layer", container: true, damage: func(m victim) {
			rename(m, downProj, hostileLayer)
			m.write(config, bytes.Replace(m.read(config), []byte(downProj), []byte(quoted(hostileLayer)), 1))
		}, args: []string{"inspect", "MODEL"}},
		{name: "dry run", damage: func(m victim) { rename(m, downProj, hostileLayer) }, args: []string{"quantize", "--preset", "fast", "MODEL", "OUT", "--dry-run"}},
		{name: "quantize", damage: func(m victim) { rename(m, norm, hostileName) }, args: []string{"quantize", "--preset", "fast", "MODEL", "OUT"}},
		{name: "verify", container: true, damage: func(m victim) {
			rename(m, downProj, hostileLayer)
			m.write(config, bytes.Replace(m.read(config), []byte(downProj), []byte(quoted(hostileLayer)), 1))
			m.data(hostileLayer+".scales", bytes.Repeat([]byte{0, 0x7c}, 8))
		}, args: []string{"verify", "MODEL"}, code: exitCheck},
		{name: "not a number", damage: func(m victim) {
			rename(m, downProj, hostileLayer)
			m.data(hostileLayer+".weight", []byte{0xc0, 0x7f})
		}, args: []string{"quantize", "--preset", "fast", "MODEL", "OUT"}, code: exitFailed},
		{name: "shard", damage: func(m victim) {
			m.shard(`{"weight_map": {"a": "` + quoted(hostileName) + `.safetensors"}}`)
		}, args: []string{"inspect", "MODEL"}, code: exitFailed},
		{name: "made by", container: true, damage: func(m victim) {
			m.replace(config, `"command": "`, `"command": "`+quoted(hostileName))
		}, args: []string{"inspect", "MODEL"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			dir := t.TempDir()
			m := victim{t, filepath.Join(dir, "model")}
			if err := os.CopyFS(m.dir, os.DirFS(tiny)); err != nil {
				t.Fatal(err)
			}
			if tc.container {
				made := filepath.Join(dir, "made")
				if code, _, stderr := exec("quantize", "--preset", "fast", m.dir, made); code != 0 {
					t.Fatal(stderr)
				}
				m.dir = made
			}
			tc.damage(m)
			names := strings.NewReplacer("MODEL", m.dir, "OUT", filepath.Join(dir, "out"))
			for i := range tc.args {
				tc.args[i] = names.Replace(tc.args[i])
			}
			code, stdout, stderr := exec(tc.args...)
			if code != tc.code {
				t.Errorf("exit code %d, want %d", code, tc.code)
			}
			if tc.name != "quantize" && !strings.Contains(stdout+stderr, `\x1b`) {
				t.Errorf("the name is not shown:\n%s%s", stdout, stderr)
			}
			if whole := input.Printable(hostileName); tc.code == 0 && tc.name != "quantize" && !strings.Contains(stdout, whole) {
				t.Errorf("a name is not one cell: want %s in\n%s", whole, stdout)
			}
			for _, text := range []string{stdout, stderr} {
				for line := range strings.Lines(text) {
					line = strings.TrimSuffix(line, "\n")
					if shown := input.Printable(line); shown != line {
						t.Errorf("printed %q", line)
					}
					if strings.HasPrefix(line, "lutq: done") || len(line) > 1000 {
						t.Errorf("printed %.200q", line)
					}
				}
			}
			if tc.code != 0 || tc.args[0] != "inspect" {
				return
			}
			_, stdout, _ = exec(append(tc.args, "--json")...)
			if !strings.Contains(stdout, `\u001b[31m`) {
				t.Errorf("JSON is not exact:\n%s", stdout)
			}
		})
	}
}

// TestHostileNumbers gives every flag that takes a number those that make no
// sense: a usage error each, before any work.
func TestHostileNumbers(t *testing.T) {
	numbers := map[string]bool{"int": true, "float64": true, "uint64": true, "SIZE": true}
	// Those that make sense, and fail for want of a folder.
	const sizes = "seed max-ram max-shard-size size fit"
	valid := map[string]string{
		"0": "seed damp retarget learn-rate threads learn-recode valid-windows windows", "1e9": "max-ram max-shard-size size fit",
		"2147483648": sizes, "4611686018427387904": sizes, "9223372036854775807": "seed", "9223372036854775808": "seed",
	}
	seen := 0
	for _, c := range newRoot(nil, io.Discard, io.Discard).Commands() {
		c.Flags().VisitAll(func(f *pflag.Flag) {
			if !numbers[f.Value.Type()] {
				return
			}
			seen++
			for _, value := range []string{"0", "-1", "2147483648", "4611686018427387904", "9223372036854775807", "9223372036854775808", "NaN", "Inf", "1e9", ""} {
				args := []string{c.Name(), "NONE", "NONE", "--" + f.Name + "=" + value}
				code, _, stderr := exec(args...)
				want := exitUsage
				if slices.Contains(strings.Fields(valid[value]), f.Name) && code == exitFailed {
					want = exitFailed
				}
				if code != want || !strings.HasPrefix(stderr, "lutq: ") || len(stderr) > 400 {
					t.Errorf("%q: exit code %d\n%s", args, code, stderr)
				}
			}
		})
	}
	if seen < 15 {
		t.Errorf("%d flags take numbers", seen)
	}
	for _, tc := range []struct {
		args string
		code int
		want string
	}{
		{"--m 100000000 --shapes 64x64", exitUsage, "1 to 65536"},
		{"--m 0 --shapes 64x64", exitUsage, "1 to 65536"},
		{"--bits 9 --shapes 64x64", exitUsage, "2 to 5"},
		{"--shapes 9223372036854775807x2", exitUsage, "shape"},
		{"--shapes -1x2", exitUsage, "shape"},
		{"--shapes NaNx2", exitUsage, "shape"},
		{"--m 65536 --shapes 1x2147483647", exitFailed, "of memory"},
		{"--m 65536 --shapes 64x64,2147483647x1", exitFailed, "of memory"},
	} {
		code, stdout, stderr := exec(append([]string{"bench", "--device", "cpu"}, strings.Fields(tc.args)...)...)
		checkRefused(t, tc.code, code, stderr)
		if !strings.Contains(stderr, tc.want) || stdout != "" {
			t.Errorf("%s: want %q\n%s%s", tc.args, tc.want, stdout, stderr)
		}
	}
}

// TestLongText evaluates two windows of 64 GB: no more is read than they need, and
// what they are does not depend on what follows.
func TestLongText(t *testing.T) {
	text, err := os.ReadFile("../../calib/testdata/harbour.txt")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	long, short := filepath.Join(dir, "long"), filepath.Join(dir, "short")
	if err := os.WriteFile(long, bytes.Repeat(text, 10<<20/len(text)+1), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(long, 64<<30); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(short, text, 0o644); err != nil {
		t.Fatal(err)
	}
	var ppl [2]string
	for i, path := range []string{short, long} {
		args := []string{"eval-ppl", tiny, "--text", path, "--ctx", "64", "--windows", "2", "--device", "cpu"}
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		code, stdout, stderr := exec(append(args, "--json")...)
		runtime.ReadMemStats(&after)
		if code != 0 {
			t.Fatal(stderr)
		}
		if n := after.TotalAlloc - before.TotalAlloc; n > 512<<20 {
			t.Errorf("%s: %d MB of memory allocated", path, n>>20)
		}
		// Of what was not read nothing is told.
		if told := strings.Contains(stdout, `"text_tokens"`); told != (path == short) {
			t.Errorf("%s: the text's tokens are told: %t", path, told)
		}
		var r struct{ PPL json.Number }
		if err := json.Unmarshal([]byte(stdout), &r); err != nil {
			t.Fatal(err)
		}
		ppl[i] = r.PPL.String()
		want := " 2 of "
		if path == long {
			want = " the first 2 windows of 64 tokens"
		}
		if _, stdout, _ := exec(args...); !strings.Contains(stdout, want) {
			t.Errorf("%s: want %q:\n%s", path, want, stdout)
		}
	}
	if ppl[0] != ppl[1] {
		t.Errorf("perplexity %s, and %s of the long text", ppl[0], ppl[1])
	}
	code, _, stderr := exec("eval-ppl", tiny, "--text", long, "--device", "cpu")
	checkRefused(t, exitFailed, code, stderr)
	if !strings.Contains(stderr, "a text may have at most") || !strings.Contains(stderr, "--windows") {
		t.Errorf("all of 64 GB:\n%s", stderr)
	}
}

// TestHugeModel: a model that no machine has memory for can be listed, and is
// refused where it would have to be in memory.
func TestHugeModel(t *testing.T) {
	dir := t.TempDir()
	m := victim{t, filepath.Join(dir, "model")}
	if err := os.CopyFS(m.dir, os.DirFS(tiny)); err != nil {
		t.Fatal(err)
	}
	const rows, hidden = 1<<31 - 1, 128
	m.write(weights, nil)
	header := fmt.Appendf(nil, `{"model.embed_tokens.weight":{"dtype":"F32","shape":[%d,%d],"data_offsets":[0,%d]}}`, rows, hidden, 4*rows*hidden)
	m.write(weights, append(binary.LittleEndian.AppendUint64(nil, uint64(len(header))), header...))
	if err := os.Truncate(m.path(weights), int64(8+len(header)+4*rows*hidden)); err != nil {
		t.Fatal(err)
	}
	m.replace(config, `"vocab_size": 4096`, fmt.Sprintf(`"vocab_size": %d`, rows))
	if code, stdout, stderr := exec("inspect", m.dir); code != 0 || !strings.Contains(stdout, "1.10 TB") {
		t.Errorf("exit code %d\n%s%s", code, stdout, stderr)
	}
	const harbour = "../../calib/testdata/harbour.txt"
	code, stdout, stderr := exec("eval-ppl", m.dir, "--text", harbour, "--device", "cpu", "--windows", "1", "--ctx", "64")
	checkRefused(t, exitFailed, code, stderr)
	if !strings.Contains(stderr, "needs 1.10 TB of memory") || stdout != "" {
		t.Errorf("got:\n%s%s", stdout, stderr)
	}

	made := victim{t, filepath.Join(dir, "made")}
	if code, _, stderr := exec("quantize", "--preset", "fast", tiny, made.dir); code != 0 {
		t.Fatal(stderr)
	}
	const codes = 64
	header = fmt.Appendf(nil, `{"P.codes":{"dtype":"U8","shape":[%d,%d],"data_offsets":[0,%d]},`+
		`"P.scales":{"dtype":"F16","shape":[%d,2],"data_offsets":[%d,%d]},"P.codebook":{"dtype":"F32","shape":[16],"data_offsets":[%d,%d]}}`,
		8*rows, codes, 8*rows*codes, 8*rows, 8*rows*codes, 8*rows*(codes+4), 8*rows*(codes+4), 8*rows*(codes+4)+64)
	made.write(weights, append(binary.LittleEndian.AppendUint64(nil, uint64(len(header))), header...))
	if err := os.Truncate(made.path(weights), int64(8+len(header)+8*rows*(codes+4)+64)); err != nil {
		t.Fatal(err)
	}
	made.write(config, fmt.Appendf(nil, `{"quantization_config": {"quant_method": "lutq", "version": 1, "bits": 4, "group": 64, "codebook": "nf",
		"method": "rtn", "scale": "absmax", "scale_type": "f16", "sha256": "", "tensors": {"P": {"shape": [%d, %d], "error": 0}}}}`, 8*rows, 2*codes))
	for _, args := range [][]string{
		{"verify", made.dir}, {"repack", made.dir, filepath.Join(dir, "out"), "--no-verify"}, {"bench", made.dir, "--device", "cpu", "--no-verify"},
	} {
		code, stdout, stderr := exec(args...)
		checkRefused(t, exitFailed, code, stderr)
		if !strings.Contains(stderr, "needs 1.10 TB of memory") && !strings.Contains(stderr, "needs 1.17 TB of memory") || stdout != "" {
			t.Errorf("%q: got:\n%s%s", args, stdout, stderr)
		}
	}
}

// TestNoPreTokenizer: a GGUF file that does not say how text is cut is read as llama.cpp reads it, which says so as well.
func TestNoPreTokenizer(t *testing.T) {
	dir := t.TempDir()
	out, file := filepath.Join(dir, "g"), filepath.Join(dir, "g", "model.gguf")
	var stdout, stderr bytes.Buffer
	if code := run([]string{"export", "../../calib/testdata/lutq-tiny", out, "--to", "gguf"}, nil, &stdout, &stderr); code != 0 {
		t.Fatal(stderr.String())
	}
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct{ key, args, want string }{
		{"tokenizer.ggml.pre", "tokenize", ""},
		{"tokenizer.ggml.prx", "tokenize", "names no tokenizer.ggml.pre: text is cut as llama.cpp does it then"},
		{"tokenizer.ggml.prx", "import --dry-run", "names no tokenizer.ggml.pre"},
	} {
		if err := os.WriteFile(file, bytes.Replace(data, []byte("tokenizer.ggml.pre"), []byte(tt.key), 1), 0o666); err != nil {
			t.Fatal(err)
		}
		stderr.Reset()
		args := strings.Fields(tt.args)
		args = append(args, file)
		if args[0] == "import" {
			args = append(args, filepath.Join(dir, "no"))
		}
		run(args, strings.NewReader("a"), &stdout, &stderr)
		if got := stderr.String(); !strings.Contains(got, tt.want) || strings.Contains(got, "names no") != (tt.want != "") || strings.Count(got, "names no") > 1 {
			t.Errorf("%s of %s says %q: want %q", tt.args, tt.key, got, tt.want)
		}
	}
}
