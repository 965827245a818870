package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
)

// mixedRun is what quantize --json says of mixed widths.
type mixedRun struct {
	LinearBits float64 `json:"linear_bits_per_weight"`
	BytesOut   int64   `json:"bytes_out"`
	SHA256     string
	Mix        *struct {
		Bytes       int64
		PredictedKL float64 `json:"predicted_kl"`
		UniformKL   float64 `json:"uniform_kl"`
		MeasuredKL  float64 `json:"measured_kl"`
		Memory      *struct {
			Runtime                        string
			Ctx                            int
			Total, Weights, Cache, Working int64
		}
		Sets []struct {
			Layers []string
			Bits   int
		}
	}
}

func runMixed(t *testing.T, args string) (r mixedRun) {
	t.Helper()
	code, stdout, stderr := exec(append(strings.Fields("quantize "+tiny+" "+args), "--json")...)
	if code != 0 {
		t.Fatal(stderr)
	}
	if err := json.Unmarshal([]byte(stdout), &r); err != nil {
		t.Fatal(err)
	}
	return r
}

const mixText = " --preset fast --calib ../../calib/testdata/harbour.txt --calib-ctx 128 --calib-windows 4 --device cpu"

// TestMix: a mean of bits is kept to and not missed by much, several widths make it up, the measured divergence is near the
// predicted one, and the command that the container holds makes the same bytes again without a probe.
func TestMix(t *testing.T) {
	out := filepath.Join(t.TempDir(), "out")
	r := runMixed(t, out+" --preset fast --bits 3.25"+mixText)
	if r.LinearBits > 3.25 || r.LinearBits < 3.2 {
		t.Errorf("%v bits in linear layers", r.LinearBits)
	}
	widths := make(map[int]bool)
	for _, s := range r.Mix.Sets {
		widths[s.Bits] = true
	}
	if len(widths) < 3 || len(r.Mix.Sets) != 17 { // the embedding has no width
		t.Errorf("widths %v in %d sets", widths, len(r.Mix.Sets))
	}
	if ratio := r.Mix.PredictedKL / r.Mix.MeasuredKL; ratio < 0.5 || ratio > 2 {
		t.Errorf("%v is predicted, %v measured", r.Mix.PredictedKL, r.Mix.MeasuredKL)
	}
	// So an interrupted run goes on.
	if p := runMixed(t, filepath.Join(t.TempDir(), "out")+" --dry-run --threads 1 --bits 3.25"+mixText); p.Mix.PredictedKL != r.Mix.PredictedKL || !reflect.DeepEqual(p.Mix.Sets, r.Mix.Sets) {
		t.Errorf("on one thread %+v, want %+v", p.Mix, r.Mix)
	}
	var config struct {
		Quantization struct {
			Command string
		} `json:"quantization_config"`
	}
	data, err := os.ReadFile(filepath.Join(out, "config.json"))
	if err == nil {
		err = json.Unmarshal(data, &config)
	}
	if err != nil {
		t.Fatal(err)
	}
	args := strings.Fields(strings.ReplaceAll(config.Quantization.Command, "'", ""))[1:]
	again := filepath.Join(t.TempDir(), "again")
	args[1], args[2] = tiny, again
	code, stdout, stderr := exec(append(args, "--json")...)
	if code != 0 {
		t.Fatal(stderr)
	}
	var same mixedRun
	if err := json.Unmarshal([]byte(stdout), &same); err != nil {
		t.Fatal(err)
	}
	if same.SHA256 != r.SHA256 || same.Mix != nil {
		t.Errorf("the recorded command makes %s, want %s", same.SHA256, r.SHA256)
	}
}

// TestMixWhole: mixed at a whole width a model takes no more than with one width, and is predicted to lose less. Rings have halves of
// bits by themselves, and are mixed where that is asked for.
func TestMixWhole(t *testing.T) {
	out := " " + filepath.Join(t.TempDir(), "out") + " --dry-run"
	alike := runMixed(t, out+" --bits 3 --method gptq"+mixText)
	mixed := runMixed(t, out+" --bits 3 --mix --method gptq"+mixText)
	if alike.Mix != nil || mixed.Mix == nil || mixed.BytesOut > alike.BytesOut || mixed.Mix.PredictedKL >= mixed.Mix.UniformKL {
		t.Errorf("%+v, with one width %+v", mixed, alike)
	}
	if rings := runMixed(t, out+" --bits 2.5 --codebook trellis"); rings.Mix != nil {
		t.Error("rings of one width are mixed")
	}
	rings := runMixed(t, out+" --bits 2.4 --codebook trellis"+mixText)
	if rings.Mix == nil || rings.LinearBits > 2.4 || rings.LinearBits < 2.3 {
		t.Errorf("rings of %v bits", rings.LinearBits)
	}
}

// TestMixSize: all files of an output are within its size, and near it; the embedding is among the choices, but where its width is
// named. Shards and their index count as well.
func TestMixSize(t *testing.T) {
	for _, tc := range []struct {
		args string
		goal int64
	}{
		{"--size 1MB", 1e6},
		{"--size 1.7MB --embed-bits 16", 1.7e6},
		{"--size 900kB --max-shard-size 100kB", 900e3},
	} {
		out := filepath.Join(t.TempDir(), "out")
		r := runMixed(t, out+" --preset fast "+tc.args+mixText)
		var sum int64
		files, err := os.ReadDir(out)
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range files {
			info, err := f.Info()
			if err != nil {
				t.Fatal(err)
			}
			sum += info.Size()
		}
		if sum > tc.goal || sum < tc.goal*96/100 {
			t.Errorf("%s: %d bytes", tc.args, sum)
		}
		kept := r.Mix.Sets[16].Bits == 0
		if kept != strings.Contains(tc.args, "embed-bits") {
			t.Errorf("%s: the embedding is kept: %v", tc.args, kept)
		}
	}
}

// TestMixFit: what an output is estimated to take in memory is within the goal, and near it.
func TestMixFit(t *testing.T) {
	for _, runtime := range []string{"lutq", "vllm"} {
		const goal = 2_000_000_000
		r := runMixed(t, filepath.Join(t.TempDir(), "out")+" --preset fast --dry-run --fit 2GB --fit-ctx 512 --fit-runtime "+runtime+mixText)
		m := r.Mix.Memory
		if m == nil || m.Total > goal || m.Weights != r.BytesOut || m.Weights+m.Cache+m.Working > m.Total || m.Ctx != 512 || m.Runtime != runtime {
			t.Errorf("%s: %+v", runtime, m)
		}
	}
}

// TestMixBad: what cannot be reached is said with what can.
func TestMixBad(t *testing.T) {
	for _, tc := range []struct{ args, want string }{
		{"--bits 1.5 --codebook js" + mixText, "--bits 1.5: linear layers take 2.13 bits a weight at least, scales included\nhint: --codebook trellis"},
		{"--bits 3.25 --mix=false", "--bits 3.25 is a mean of widths, which --mix=false leaves alike"},
		{"--bits 3.25 --for gguf", "--for gguf takes one width"},
		{"--bits 3.25 --codebook q4", "codebook q4 has one width"},
		{"--bits 3 --mix --method bcq", "weights of kind bcq are not mixed"},
		{"--size 600kB" + mixText, "lutq: --size 600 kB: the least possible is "},
		{"--size 1.2MB --embed-bits 16" + mixText, "other files and tensors that stay take"},
		{"--fit 600MB" + mixText, "lutq: --fit 600 MB: lutq takes 633 MB at least: weights"},
		{"--fit 1GB --size 1GB", "--size and --fit are two goals"},
		{"--size 1GB --bits 3", "without --bits"},
		{"--size 1GB --mix=false", "which --mix=false forbids"},
		{"--fit-ctx 100", "--fit-ctx and --fit-runtime are for --fit"},
		{"--bits 9.5", "want a number, 1 to 8"},
	} {
		code, _, stderr := exec(append(strings.Fields("quantize "+tiny+" out --dry-run"), strings.Fields(tc.args)...)...)
		if code == 0 || !strings.Contains(stderr, tc.want) {
			t.Errorf("%s: exit code %d, %q: want %q", tc.args, code, stderr, tc.want)
		}
	}
}
