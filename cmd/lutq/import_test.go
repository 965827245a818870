package main

import (
	"encoding/json"
	"path/filepath"
	"testing"
)

// TestImportAgain: what is exported and taken over again has the codes, scales and tables that it
// had, by their SHA-256.
func TestImportAgain(t *testing.T) {
	const tiny = "../../calib/testdata/lutq-tiny"
	sum := func(t *testing.T, args ...string) string {
		code, stdout, stderr := exec(append(args, "--json")...)
		var res struct{ SHA256 string }
		if err := json.Unmarshal([]byte(stdout), &res); code != 0 || err != nil {
			t.Fatalf("%v: %d, %v: %s", args, code, err, stderr)
		}
		return res.SHA256
	}
	q := func(flags ...string) []string { return flags }
	for _, tt := range []struct {
		name, target string
		flags        []string
	}{
		{"2 bits", "ct", q("--codebook", "q2", "--scale-type", "bf16")},
		{"3 bits", "ct", q("--codebook", "q3", "--group", "32", "--scale-type", "bf16")},
		{"4 bits", "ct", q("--codebook", "q4", "--group", "128", "--scale-type", "bf16")},
		{"5 bits of rows", "ct", q("--codebook", "q5", "--group", "row", "--scale-type", "bf16")},
		{"mixed bits", "ct", q("--codebook", "q4", "--group", "32", "--scale-type", "bf16", "--tensor", "down_proj=5:32:q5::bf16")},
		{"integers", "gptq", q("--codebook", "q4", "--group", "32", "--scale-type", "f16")},
		{"integers", "awq", q("--codebook", "q4", "--group", "32", "--scale-type", "f16")},
		{"integers", "mlx", q("--codebook", "q3", "--group", "64", "--scale-type", "bf16")},
		{"f32", "bnb", q("--codebook", "nf", "--bits", "4", "--group", "64", "--scale-type", "f32")},
		{"f16", "bnb", q("--codebook", "nf", "--bits", "4", "--group", "64", "--scale-type", "f16")},
		{"bf16", "bnb", q("--codebook", "nf", "--bits", "4", "--group", "32", "--scale-type", "bf16")},
		{"a byte", "nvfp4", q("--codebook", "e2m1", "--group", "32", "--scale-type", "s1e4m3", "--scale", "absmax")},
		{"a byte, searched", "nvfp4", q("--codebook", "e2m1", "--group", "32", "--scale-type", "s1e4m3")},
		{"a byte", "bnb", q("--codebook", "nf", "--bits", "4", "--group", "128", "--scale-type", "e4m3")},
		{"a wide group", "ct", q("--codebook", "q4", "--group", "256", "--scale-type", "bf16")},
		{"powers of two", "mxfp4", q("--codebook", "e2m1", "--group", "32", "--scale-type", "e8m0")},
	} {
		t.Run(tt.target+" "+tt.name, func(t *testing.T) {
			dir := t.TempDir()
			made, out, back := filepath.Join(dir, "made"), filepath.Join(dir, "out"), filepath.Join(dir, "back")
			want := sum(t, append([]string{"quantize", tiny, made}, tt.flags...)...)
			if code, _, stderr := exec("export", made, out, "--to", tt.target); code != 0 {
				t.Fatal(stderr)
			}
			if got := sum(t, "import", out, back); got != want {
				t.Errorf("taken over again it is %s: it was %s", got, want)
			}
		})
	}
}
