package main

import (
	"bytes"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/rivo/uniseg"

	"github.com/lutq/lutq/gemm/bench"
)

// terminal is a standard output of so many columns.
type terminal struct {
	bytes.Buffer
	columns int
}

func (t *terminal) Columns() int { return t.columns }

// widest returns the width of the widest line.
func widest(text string) int {
	most := 0
	for line := range strings.Lines(text) {
		most = max(most, uniseg.StringWidth(strings.TrimSuffix(line, "\n")))
	}
	return most
}

// TestNarrow: what commands print to a terminal is no wider than that, leaves out what matters least, and says so; what is
// printed elsewhere is all there.
func TestNarrow(t *testing.T) {
	out := filepath.Join(t.TempDir(), "a-model-of-a-rather-long-name-4bit")
	const text = "../../calib/testdata/harbour.txt"
	if code, _, stderr := exec("quantize", "--preset", "fast", tiny, out, "--quiet"); code != 0 {
		t.Fatal(stderr)
	}
	for _, tc := range []struct {
		name      string
		args      []string
		keeps     []string // at 60 columns
		leaves60  string   // after "columns left out: "
		leaves80  string
		anyLonger bool // whether the line in full is wider than 80
	}{
		{
			"quantize",
			[]string{"quantize", "--preset", "fast", tiny, out, "--force", "--quiet"},
			[]string{"output ", "sha256 ", "bits per weight "},
			"", "", true,
		},
		{
			"plan",
			[]string{"quantize", "--preset", "fast", tiny, out + "2", "--dry-run", "--quiet"},
			[]string{"0.mlp.down_proj.weight", "4:64:js:mse:f16"},
			"before, shape, from, after", "shape", true,
		},
		{"inspect", []string{"inspect", out}, []string{"0.mlp.down_proj", "4:64:js:mse:f16"}, "shape, bytes, error", "", true},
		{
			"evaluation",
			[]string{"eval-ppl", out, tiny, "--against", tiny, "--text", text, "--windows", "1", "--ctx", "64", "--device", "cpu", "--quiet"},
			[]string{"model ", "perplexity", "KL mean", "e-4bit"},
			"tokens/s, 99 %, median, ln ratio to the original", "tokens/s, 99 %, same top token", true,
		},
		{"export", []string{"export", out, filepath.Join(t.TempDir(), "x"), "--to", "dense", "--dry-run"}, []string{"would be"}, "", "", false},
		{"summary", []string{"inspect", out, "--summary"}, []string{"mlp.down_proj", "4:64:js:mse:f16", "4.260"}, "tensors, weights, error", "", true},
		{"verify", []string{"verify", out, "--against", tiny}, []string{"28 layers", "sha256"}, "", "", true},
		{"doctor", []string{"doctor"}, []string{"processor "}, "", "", false},
	} {
		print := func(columns int) string {
			to := &terminal{columns: columns}
			var stderr bytes.Buffer
			if code := run(tc.args, strings.NewReader(""), to, &stderr); code != 0 {
				t.Fatalf("%s: exit code %d\n%s", tc.name, code, stderr.String())
			}
			return to.String()
		}
		full := print(0)
		if strings.Contains(full, "left out") || strings.Contains(full, "…") || tc.anyLonger && widest(full) <= 80 {
			t.Errorf("%s without a terminal:\n%s", tc.name, full)
		}
		for columns, leaves := range map[int]string{60: tc.leaves60, 80: tc.leaves80} {
			got := print(columns)
			if w := widest(got); w > columns {
				t.Errorf("%s in %d columns has %d:\n%s", tc.name, columns, w, got)
			}
			said := strings.Join(strings.Fields(got), " ") // however the line is broken
			if want := "columns left out: " + leaves + "; --json or a wider terminal shows them"; leaves != "" && !strings.Contains(said, want) {
				t.Errorf("%s in %d columns does not say %q:\n%s", tc.name, columns, want, got)
			}
			for _, want := range tc.keeps {
				if !strings.Contains(got, want) {
					t.Errorf("%s in %d columns has no %q:\n%s", tc.name, columns, want, got)
				}
			}
		}
	}
}

// TestNarrowRows: of a GPU's rows the time and its ratios are kept, and a wide terminal changes nothing.
func TestNarrowRows(t *testing.T) {
	rows := []bench.Row{{
		Name: "model.layers.0.self_attn.q_proj", Layers: []string{"model.layers.0.self_attn.q_proj", "model.layers.1.self_attn.q_proj"},
		Device: "cuda", N: 28672, K: 8192, M: 1024, Bits: 4, Group: 128, DType: "f16", Kernel: "wgmma c64g4 a2 d2 and more",
		Us: 17.25, ReadOnlyRatio: 0.8986, DenseUs: 54, DenseRatio: 3.13, GBPerS: 3500, RelErr: 2e-4, PrepareUs: 2,
	}}
	print := func(columns int) string {
		var out bytes.Buffer
		if err := (&ui{stdout: &out, columns: columns}).printRows(rows, "table"); err != nil {
			t.Fatal(err)
		}
		return out.String()
	}
	full := print(0)
	if print(1000) != full {
		t.Errorf("a wide terminal has\n%s", print(1000))
	}
	for columns, want := range map[int][]string{
		80: {"layer", "kernel", "us", "read ratio", "dense ratio", "17.25", "0.899", "3.13"},
		60: {"layer", "us", "dense ratio", "17.25", "3.13", "proj (2)"},
	} {
		got := print(columns)
		if widest(got) > columns || !strings.Contains(got, "columns left out: dtype, table err, max err, rel err, GB/s") {
			t.Errorf("%d columns:\n%s", columns, got)
		}
		for _, w := range want {
			if !strings.Contains(got, w) {
				t.Errorf("%d columns have no %q:\n%s", columns, w, got)
			}
		}
	}
}

// TestWrap: text is broken at spaces, and words that are too long anywhere.
func TestWrap(t *testing.T) {
	for _, tc := range []struct {
		in      string
		columns int
		want    []string
	}{
		{"", 5, []string{""}},
		{"one two", 7, []string{"one two"}},
		{"one two", 6, []string{"one", "two"}},
		{"one two three", 7, []string{"one two", "three"}},
		{"0123456789", 4, []string{"0123", "4567", "89"}},
		{"a 0123456789", 4, []string{"a", "0123", "4567", "89"}},
		{"層層層", 4, []string{"層層", "層"}},
	} {
		if got := wrap(tc.in, tc.columns); !slices.Equal(got, tc.want) {
			t.Errorf("%q in %d: %q, want %q", tc.in, tc.columns, got, tc.want)
		}
	}
	for in, want := range map[string]string{"model.layers.0": "mod…ayers.0", "short": "short"} {
		if got := foldMiddle(in, 11); got != want {
			t.Errorf("%s is folded to %s, want %s", in, got, want)
		}
	}
}
