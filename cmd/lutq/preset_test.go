package main

import (
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"
)

// TestPreset: a preset says what flags leave open, and nothing else.
func TestPreset(t *testing.T) {
	text := []string{"--calib", "../../calib/testdata/harbour.txt", "--calib-windows", "2", "--calib-ctx", "64", "--device", "cpu"}
	for _, test := range []struct {
		name     string
		args     []string
		preset   string
		codebook string
		method   string
		learned  bool
	}{
		{"fast", []string{"--preset", "fast"}, "fast", "js", "rtn", false},
		{"good", append([]string{"--preset", "good"}, text...), "good", "js", "gptq", false},
		{"a text alone", text, "good", "js", "gptq", false},
		{"good by a table", append([]string{"--preset", "good", "--codebook", "nf"}, text...), "good", "nf", "gptq", false},
		{"best", append([]string{"--preset", "best", "--bits", "2"}, text...), "best", "trellis", "gptq", true},
		{"best without learning", append([]string{"--preset", "best", "--bits", "2", "--learn=false"}, text...), "best", "trellis", "gptq", false},
		{"best of a group", append([]string{"--preset", "best", "--group", "32", "--bits", "4"}, text...), "best", "js", "gptq", false},
		{"best for a target", append([]string{"--preset", "best", "--for", "gguf", "--group", "32"}, text...), "best", "iq4nl", "gptq", false},
		{"best of binary codes", []string{"--preset", "best", "--method", "bcq", "--bits", "3", "--bcq-rounds", "0"}, "best", "", "bcq", false},
		{"flags that say how", []string{"--method", "rtn", "--codebook", "nf"}, "", "nf", "rtn", false},
	} {
		t.Run(test.name, func(t *testing.T) {
			out := filepath.Join(t.TempDir(), "out")
			code, stdout, stderr := exec(append([]string{"quantize", tiny, out, "--json"}, test.args...)...)
			if code != 0 {
				t.Fatal(stderr)
			}
			var got quantizeJSON
			if err := json.Unmarshal([]byte(stdout), &got); err != nil {
				t.Fatal(err)
			}
			if got.Preset.Preset != test.preset || (got.Learn != nil) != test.learned {
				t.Errorf("preset %+v, learned %v", got.Preset, got.Learn != nil)
			}
			for _, l := range got.Layers {
				if l.DType == "" && (l.Codebook != test.codebook || strings.TrimSuffix(l.Method, "+learn") != test.method) {
					t.Errorf("%s: table %q by %s", l.Name, l.Codebook, l.Method)
				}
			}
		})
	}
}
