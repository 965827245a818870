package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	osexec "os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/lutq/lutq/formats/hf"
	"github.com/lutq/lutq/formats/num"
	"github.com/lutq/lutq/gemm"
)

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){"lutq": main})
}

func TestScripts(t *testing.T) {
	data, err := filepath.Abs("../../calib/testdata")
	if err != nil {
		t.Fatal(err)
	}
	testscript.Run(t, testscript.Params{
		Dir: "testdata/script",
		Setup: func(e *testscript.Env) error {
			e.Setenv("DATA", data)
			return nil
		},
		Condition: func(name string) (bool, error) {
			if name != "gpu" {
				return false, fmt.Errorf("unknown condition %q", name)
			}
			_, err := gemm.GPU()
			return err == nil, nil
		},
	})
}

// TestHelp holds the help texts to the rules of the command line: every
// command has an example or a long text, and every flag a description.
func TestHelp(t *testing.T) {
	root := newRoot(nil, &bytes.Buffer{}, &bytes.Buffer{})
	for _, c := range root.Commands() {
		if c.Name() == "help" || c.Name() == "completion" || c.IsAdditionalHelpTopicCommand() {
			continue
		}
		if c.Short == "" || len(c.Long) < 100 {
			t.Errorf("%s has no long help", c.Name())
		}
		if c.Flags().Lookup("json") == nil {
			t.Errorf("%s has no --json", c.Name())
		}
	}
}

// synthetic writes a checkpoint of random bf16 layers.
func synthetic(t *testing.T, layers, n, k int) string {
	t.Helper()
	dir := t.TempDir()
	var entries []hf.Entry
	for i := range layers {
		entries = append(entries, hf.Entry{Name: fmt.Sprintf("model.layers.%d.mlp.down_proj.weight", i), DType: "BF16", Shape: []int{n, k}})
	}
	w, err := hf.NewWriter(dir, entries, hf.WriterOptions{MaxShardSize: int64(layers) * int64(n) * int64(k)})
	if err != nil {
		t.Fatal(err)
	}
	rng := rand.New(rand.NewPCG(1, 1))
	values, data := make([]float32, n*k), make([]byte, 2*n*k)
	for _, e := range entries {
		for i := range values {
			values[i] = float32(rng.NormFloat64())
		}
		num.EncodeBF16(data, values)
		if err := w.WriteAt(e.Name, data, 0); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Commit(); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "config.json"), []byte("{}"), 0o644); err != nil {
		t.Fatal(err)
	}
	return dir
}

// TestKill kills a run again and again until one finishes: its digest and
// files must be those of a run left alone, and so must the files of one that
// was killed when they were in place.
func TestKill(t *testing.T) {
	text, err := filepath.Abs("../../calib/testdata/harbour.txt")
	if err != nil {
		t.Fatal(err)
	}
	tiny, err := filepath.Abs("../../calib/testdata/lutq-tiny")
	if err != nil {
		t.Fatal(err)
	}
	learning := []string{"--method", "nfl", "--calib", text, "--calib-windows", "12", "--calib-ctx", "64", "--valid-windows", "1", "--device", "cpu"}
	for _, tc := range []struct {
		name, src string
		args      []string
	}{
		{"rtn", synthetic(t, 24, 512, 1024), []string{"--codebook", "jt"}},
		{"learned", tiny, append(learning[:len(learning):len(learning)], "--bits", "3", "--learn-recode", "5")},
		{"learned as FLUTE does", tiny, append(learning[:len(learning):len(learning)], "--learn-mode", "flute")},
	} {
		t.Run(tc.name, func(t *testing.T) { killed(t, tc.src, tc.args...) })
	}
}

// killed is TestKill for some arguments.
func killed(t *testing.T, src string, args ...string) {
	base := t.TempDir()
	quantize := func(out string) *osexec.Cmd {
		return osexec.Command("lutq", append([]string{"quantize", src, out, "--threads", "2", "--json"}, args...)...)
	}
	begin := time.Now()
	want, err := quantize(filepath.Join(base, "want")).Output()
	if err != nil {
		t.Fatal(err)
	}
	whole := time.Since(begin)
	rng := rand.New(rand.NewPCG(uint64(begin.UnixNano()), 0))
	out := filepath.Join(base, "out")
	var got []byte
	kills := 0
	for tries := 0; got == nil; tries++ {
		c := quantize(out)
		var stdout, stderr bytes.Buffer
		c.Stdout, c.Stderr = &stdout, &stderr
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		// Of a run's length a random part, which grows so that one gets through.
		limit := time.Duration(float64(whole) * (0.1 + 0.2*float64(tries)) * rng.Float64())
		timer := time.AfterFunc(limit, func() { _ = c.Process.Kill() })
		err := c.Wait()
		timer.Stop()
		switch {
		case err == nil:
			got = stdout.Bytes()
		case !strings.Contains(err.Error(), "killed"):
			t.Fatalf("%v\n%s", err, stderr.String())
		default:
			kills++
			// Killed on its way out, it leaves the output, whole: then once more from the start.
			if _, err := os.Stat(out); err == nil {
				sameFolders(t, filepath.Join(base, "want"), out)
				if err := os.RemoveAll(out); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	if kills == 0 {
		t.Skip("no run was slow enough to be killed")
	}
	t.Logf("killed %d times", kills)
	var a, b struct {
		SHA256  string
		Resumed int
	}
	if err := json.Unmarshal(want, &a); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(got, &b); err != nil {
		t.Fatal(err)
	}
	if a.SHA256 != b.SHA256 {
		t.Errorf("digest %s, want %s", b.SHA256, a.SHA256)
	}
	sameFolders(t, filepath.Join(base, "want"), out)
}

func sameFolders(t *testing.T, want, got string) {
	t.Helper()
	if d, err := osexec.Command("diff", "-r", want, got).CombinedOutput(); err != nil {
		t.Fatalf("the folders differ: %v\n%s", err, d)
	}
}

// TestLearnMemory checks what a dry run says of learning's memory against a run
// that may take as much.
func TestLearnMemory(t *testing.T) {
	quantize := func(args ...string) []byte {
		args = append([]string{
			"quantize", tiny, filepath.Join(t.TempDir(), "out"), "--json", "--quiet", "--method", "nfl", "--device", "cpu",
			"--calib", "../../calib/testdata/harbour.txt", "--calib-windows", "2", "--calib-ctx", "700", "--valid-windows", "1",
		}, args...)
		out, err := osexec.Command("lutq", args...).Output()
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	var said struct {
		Bytes int64 `json:"peak_ram_bytes"`
	}
	var took struct {
		Bytes int64 `json:"peak_rss_bytes"`
	}
	if err := json.Unmarshal(quantize("--dry-run"), &said); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(quantize("--max-ram", fmt.Sprint(said.Bytes)), &took); err != nil {
		t.Fatal(err)
	}
	if took.Bytes > said.Bytes || said.Bytes > took.Bytes*8/5 {
		t.Errorf("learning was to take %d bytes and took %d", said.Bytes, took.Bytes)
	}
}
