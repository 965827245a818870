package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// hooked calls do when something is written for the first time.
type hooked struct {
	io.Writer
	do func()
}

func (h *hooked) Write(p []byte) (int, error) {
	if h.do != nil {
		h.do()
		h.do = nil
	}
	return h.Writer.Write(p)
}

// TestEvaluationLeft: where the evaluation after quantizing is interrupted or fails, nothing of what is done is lost:
// the summary is printed, the hint says what is left, and the same command prints it again and does that alone.
func TestEvaluationLeft(t *testing.T) {
	harbour, err := os.ReadFile("../../calib/testdata/harbour.txt")
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		name string
		args []string
		fail bool // in the place of an interruption
	}{
		{"rtn", []string{"--bits", "3"}, false},
		{"failed", []string{"--bits", "2", "--max-shard-size", "300kB"}, true},
		{"transformed", []string{"--bits", "3", "--codebook", "nf", "--transform", "awq", "--calib-windows", "6"}, false},
		{"learned after gptq", []string{"--method", "gptq", "--learn", "--calib-windows", "6", "--valid-windows", "1"}, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			dir := t.TempDir()
			text, out := filepath.Join(dir, "text"), filepath.Join(dir, "out")
			if err := os.WriteFile(text, harbour[:9000], 0o644); err != nil {
				t.Fatal(err)
			}
			args := append([]string{"quantize", "--preset", "fast", tiny, out, "--eval-text", text}, tc.args...)
			if len(tc.args) > 2 && !tc.fail {
				args = append(args, "--calib", "../../calib/testdata/harbour.txt", "--calib-ctx", "32", "--device", "cpu")
			}
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			stop := cancel
			if tc.fail {
				stop = func() { _ = os.Remove(text) }
			}
			var first, said bytes.Buffer
			root := newRoot(nil, &hooked{&first, stop}, &said)
			root.SetArgs(args)
			err := root.ExecuteContext(ctx)
			if err == nil || !tc.fail && !errors.Is(err, context.Canceled) {
				t.Fatalf("got error %v; stderr:\n%s", err, said.String())
			}
			printHint(&said, err)
			if want := out + " is finished: the same command goes on with its evaluation\n"; !strings.HasSuffix(said.String(), want) {
				t.Errorf("stderr is\n%swant at its end\n%s", said.String(), want)
			}
			if tc.fail {
				if err := os.WriteFile(text, harbour[:9000], 0o644); err != nil {
					t.Fatal(err)
				}
			}
			if code, stdout, _ := exec("verify", out, "--against", tiny); code != exitDone {
				t.Errorf("what is finished does not hold:\n%s", stdout)
			}
			code, _, stderr := exec(append(args, "--group", "32")...)
			if code != exitFailed || !strings.Contains(stderr, out+": already exists\nhint: --force replaces it\n") {
				t.Errorf("another command: exit code %d\n%s", code, stderr)
			}
			before := files(t, out)

			code, second, stderr := exec(args...)
			if code != exitDone || !strings.Contains(stderr, "lutq: "+out+" is finished: going on with its evaluation\n") {
				t.Fatalf("the same command: exit code %d\n%s", code, stderr)
			}
			differ := regexp.MustCompile(`(?m)^(time, memory|learned|learning took) .*\n`) // as runs differ
			want := differ.ReplaceAllString(first.String(), "")
			rest, ok := strings.CutPrefix(differ.ReplaceAllString(second, ""), want)
			if !ok || !strings.Contains(want, "sha256") || !strings.Contains(rest, "perplexity") {
				t.Errorf("the second run prints\n%swant after\n%san evaluation", second, want)
			}
			after := files(t, out)
			if before[".lutq"] == after[".lutq"] {
				t.Error("the mark does not tell that nothing is left")
			}
			if card, err := os.ReadFile(filepath.Join(out, "README.md")); err != nil || before["README.md"] == after["README.md"] || !strings.Contains(string(card), "| KL, mean over tokens |") {
				t.Errorf("the card does not tell what was measured (%v):\n%s", err, card)
			}
			if code, stdout, _ := exec("verify", out, "--against", tiny); code != exitDone {
				t.Errorf("with what was measured it does not hold:\n%s", stdout)
			}
			for _, name := range []string{".lutq", "README.md"} {
				delete(before, name)
				delete(after, name)
			}
			for name, file := range before {
				if after[name] != file {
					t.Errorf("%s was written again", name)
				}
			}
			if code, _, stderr := exec(args...); code != exitFailed || !strings.Contains(stderr, "already exists") {
				t.Errorf("when all is done: exit code %d\n%s", code, stderr)
			}
		})
	}
}

// files returns the files of a folder, with the time that each was written.
func files(t *testing.T, dir string) map[string]string {
	t.Helper()
	all := make(map[string]string)
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		info, err := e.Info()
		if err != nil {
			t.Fatal(err)
		}
		all[e.Name()] = info.ModTime().String()
	}
	return all
}

// TestEvaluationLeftJSON: with --json there is one object, of the run that comes to the end.
func TestEvaluationLeftJSON(t *testing.T) {
	harbour, err := os.ReadFile("../../calib/testdata/harbour.txt")
	if err != nil {
		t.Fatal(err)
	}
	text, out := filepath.Join(t.TempDir(), "text"), filepath.Join(t.TempDir(), "out")
	if err := os.WriteFile(text, harbour[:9000], 0o644); err != nil {
		t.Fatal(err)
	}
	args := []string{"quantize", "--preset", "fast", tiny, out, "--eval-text", text, "--force"}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	root := newRoot(nil, &hooked{io.Discard, cancel}, io.Discard)
	root.SetArgs(args)
	if err := root.ExecuteContext(ctx); !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	code, stdout, stderr := exec(append(args, "--json")...)
	var r struct {
		SHA256  string
		Error   float64
		Resumed int
		Tensors int
	}
	if err := json.Unmarshal([]byte(stdout), &r); code != exitDone || err != nil || r.SHA256 == "" || !(r.Error > 0) || r.Resumed != r.Tensors {
		t.Errorf("exit code %d, %v\n%s\n%s", code, err, stdout, stderr)
	}
}
