package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/lutq/lutq/formats/lutq"
	"github.com/lutq/lutq/quantize"
)

// readers says, method by method, which flags of those that not all read have a part in what it makes: a line for
// each flag, a column for each method, x where it does, and l where it does if scales are learned after it.
const readers = `
                rtn nfl gptq bcq bnb-kbit magnitude wanda sparsegpt
codebook         x   x    x   .     x         x       x       x
scale            x   x    x   .     x         x       x       x
bcq-rounds       .   .    .   x     .         .       .       .
bcq-offset       .   .    .   x     .         .       .       .
calib            l   x    x   .     .         .       x       x
calib-windows    l   x    x   .     .         .       x       x
calib-ctx        l   x    x   .     .         .       x       x
calib-bos        l   x    x   .     .         .       x       x
seed             l   x    x   .     .         .       x       x
device           l   x    x   .     .         .       x       x
stream           .   .    x   .     .         .       x       x
devices          l   x    x   .     .         .       x       x
damp             .   .    x   .     .         .       .       x
retarget         .   .    x   .     .         .       .       x
rescale          .   .    x   .     .         .       .       .
learn            l   x    l   .     .         .       .       .
valid-windows    l   x    l   .     .         .       .       .
learn-mode       l   x    l   .     .         .       .       .
learn-objective  l   x    l   .     .         .       .       .
learn-rate       l   x    l   .     .         .       .       .
learn-epochs     l   x    l   .     .         .       .       .
learn-batch      l   x    l   .     .         .       .       .
learn-recode     l   x    l   .     .         .       .       .
learn-grad       l   x    l   .     .         .       .       .
learn-params     l   x    l   .     .         .       .       .
learn-table      l   x    l   .     .         .       .       .
learn-control    l   x    .   .     .         .       .       .
`

// TestSettings gives every method every flag that not all methods read: one that it does not read is a usage error
// that names the flag, the method and who reads it.
func TestSettings(t *testing.T) {
	t.Chdir(t.TempDir())
	lines := strings.Split(strings.TrimSpace(readers), "\n")
	methods := strings.Fields(lines[0])
	if want := quantize.Methods(); !slices.Equal(slices.Sorted(slices.Values(methods)), slices.Sorted(slices.Values(want))) {
		t.Fatalf("the table has the methods %v, want %v", methods, want)
	}
	if len(lines)-1 != len(quantize.Settings()) {
		t.Errorf("the table has %d flags, want %d", len(lines)-1, len(quantize.Settings()))
	}
	values := map[string]string{
		"codebook": "nf", "scale": "absmax", "bcq-offset": "true", "calib": "none", "device": "cpu", "devices": "0,1", "learn": "true", "learn-mode": "lutq",
		"learn-objective": "kl", "learn-rate": "0.001", "learn-grad": "lsq", "learn-params": "f32", "learn-table": "true", "learn-control": "true",
		"damp": "0.2", "stream": "float", "retarget": "0.2", "calib-ctx": "64", "calib-bos": "none", "rescale": "true",
	}
	for _, line := range lines[1:] {
		fields := strings.Fields(line)
		flag := fields[0]
		value := values[flag]
		if value == "" {
			value = "3"
		}
		for i, reads := range fields[1:] {
			method := methods[i]
			for _, learned := range []bool{false, true} {
				if learned && reads != "l" {
					continue
				}
				t.Run(fmt.Sprint(flag, " ", method, " ", learned), func(t *testing.T) {
					args := []string{"quantize", "none", "out", "--method", method, "--" + flag + "=" + value}
					if method == "bnb-kbit" && flag == "codebook" {
						args[5] = "--codebook=kbit"
					}
					if learned && flag != "learn" {
						args = append(args, "--learn")
					}
					if flag != "calib" && (learned || reads == "x" && slices.Contains([]string{"nfl", "gptq", "wanda", "sparsegpt"}, method)) {
						args = append(args, "--calib", "none")
					}
					code, _, stderr := exec(args...)
					if reads == "x" || learned {
						if code != exitFailed || !strings.Contains(stderr, "lutq: open model folder: none") {
							t.Errorf("exit code %d, want that of a model that is not there:\n%s", code, stderr)
						}
						return
					}
					if flag == "learn" && reads == "l" {
						return // which learns, then
					}
					want := fmt.Sprintf("lutq: --%s is not read by method %s: it is for ", flag, method)
					if code != exitUsage || !strings.HasPrefix(stderr, want) || strings.Count(stderr, "\n") != 1 {
						t.Errorf("exit code %d, want %d:\n%swant a line that begins with\n%s", code, exitUsage, stderr, want)
					}
				})
			}
		}
	}
}

// TestSettingsOfRules: a flag is read where the method of any rule reads it, and by a kind whatever the method.
func TestSettingsOfRules(t *testing.T) {
	t.Chdir(t.TempDir())
	for _, tc := range []struct {
		line string
		want string // of stderr
	}{
		{"--damp 0.2 --calib none --tensor q_proj=::::::gptq", "lutq: open model folder: none"},
		{"--method wanda --damp 0.2 --calib none --tensor q_proj=:::::lut24:sparsegpt", "lutq: open model folder: none"},
		{"--method gptq --calib none --bcq-rounds 3 --tensor q_proj=:::::bcq", "lutq: open model folder: none"},
		{"--method gptq --calib none --bcq-rounds 3", "lutq: --bcq-rounds is not read by method gptq: it is for weights of kind bcq\n"},
		{"--method wanda --damp 5 --calib none", "lutq: --damp is not read by method wanda: it is for gptq or sparsegpt\n"},
		{"--damp 5", "lutq: --damp is not read by method rtn: it is for gptq or sparsegpt\n"},
		{"--retarget 1 --tensor q_proj=:::::lut24:magnitude", "lutq: --retarget is not read by method rtn, magnitude: it is for gptq or sparsegpt\n"},
		{"--kbit-encode bnb --damp 5", "lutq: --damp is not read by method bnb-kbit: it is for gptq or sparsegpt\n"},
		{"--learn-rate .1", "lutq: --learn-rate is not read by method rtn: it is for nfl or --learn\n"},
		{"--method nfl --calib none --learn-mode flute --seed 3", "lutq: --seed is not read by --learn-mode flute: it takes the first windows in their order\n"},
	} {
		t.Run(tc.line, func(t *testing.T) {
			code, _, stderr := exec(append([]string{"quantize", "--preset", "fast", "none", "out"}, strings.Fields(tc.line)...)...)
			if want := exitFailed; code != want && strings.HasPrefix(tc.want, "lutq: open") || code != exitUsage && strings.HasPrefix(tc.want, "lutq: --") || !strings.HasPrefix(stderr, tc.want) {
				t.Errorf("exit code %d, stderr\n%swant\n%s", code, stderr, tc.want)
			}
		})
	}
}

// TestSettingsOfRecipes: a recipe file may not name a setting that its method does not read, nor a flag.
func TestSettingsOfRecipes(t *testing.T) {
	t.Chdir(t.TempDir())
	for _, tc := range []struct{ recipe, want string }{
		{`{"method": "bcq", "codebook": "nf"}`, "lutq: weights of kind bcq have neither a codebook nor a scale method\n"},
		{`{"method": "bcq", "scale": "mse"}`, "lutq: weights of kind bcq have neither a codebook nor a scale method\n"},
		{`{"tensors": [{"match": "q", "kind": "bcq", "scale": "mse"}]}`, "lutq: r.json: recipe: tensors[0]: weights of kind bcq have neither"},
		{`{"method": "wanda", "damp": 5}`, "lutq: r.json: recipe: \"damp\" is no field: --damp is a flag\n"},
		{`{"method": "wanda", "tensors": [{"match": "q", "retarget": 1}]}`, "lutq: r.json: recipe: \"retarget\" is no field: --retarget is a flag\n"},
		{`{"method": "wanda", "dump": 5}`, "lutq: r.json: recipe: json: unknown field \"dump\"\n"},
	} {
		t.Run(tc.recipe, func(t *testing.T) {
			if err := os.WriteFile("r.json", []byte(tc.recipe), 0o644); err != nil {
				t.Fatal(err)
			}
			if code, _, stderr := exec("quantize", "none", "out", "--recipe", "r.json"); code != exitFailed || !strings.HasPrefix(stderr, tc.want) {
				t.Errorf("exit code %d, stderr\n%swant\n%s", code, stderr, tc.want)
			}
		})
	}
}

// TestDamp: damping and retargeting have a part in what is made, and are what help says where none is given.
func TestDamp(t *testing.T) {
	dir := t.TempDir()
	made := func(method string, args ...string) (sum string, damp, retarget float64) {
		t.Helper()
		args = append([]string{
			"quantize", tiny, filepath.Join(dir, "out"), "--force", "--json", "--quiet", "--method", method, "--calib", "../../calib/testdata/harbour.txt",
			"--calib-windows", "6", "--calib-ctx", "32", "--device", "cpu", "--tensor", "layers\\.[1-9]=keep",
		}, args...)
		code, stdout, stderr := exec(args...)
		var r struct {
			SHA256 string
			Calib  lutq.Calibration
		}
		if err := json.Unmarshal([]byte(stdout), &r); code != exitDone || err != nil {
			t.Fatal(err, stderr)
		}
		return r.SHA256, r.Calib.Damp, r.Calib.Retarget
	}
	for _, method := range []string{"gptq", "sparsegpt"} {
		plain, damp, retarget := made(method)
		if damp != 0.1 || retarget != 0.5 {
			t.Errorf("%s: damped by %v and retargeted by %v", method, damp, retarget)
		}
		if got, _, _ := made(method, "--damp", "0.1", "--retarget", "0.5"); got != plain {
			t.Errorf("%s: %s, and %s with its defaults", method, plain, got)
		}
		seen := map[string]string{plain: "the defaults"}
		for _, other := range []string{"--damp=0.01", "--damp=1", "--retarget=0", "--retarget=1"} {
			got, _, _ := made(method, other)
			if as := seen[got]; as != "" {
				t.Errorf("%s: %s makes what %s makes", method, other, as)
			}
			seen[got] = other
		}
	}
	if _, damp, retarget := made("wanda"); damp != 0 || retarget != 0 {
		t.Errorf("wanda notes that it damps by %v and retargets by %v", damp, retarget)
	}
}
