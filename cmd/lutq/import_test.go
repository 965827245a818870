package main

import (
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"path/filepath"
	"strings"
	"testing"

	"github.com/lutq/lutq/formats/arch/archtest"
	"github.com/lutq/lutq/formats/hf"
	"github.com/lutq/lutq/formats/source/sourcetest"
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
			want := sum(t, append([]string{"quantize", "--preset", "fast", tiny, made}, tt.flags...)...)
			if code, _, stderr := exec("export", made, out, "--to", tt.target); code != 0 {
				t.Fatal(stderr)
			}
			if got := sum(t, "import", out, back); got != want {
				t.Errorf("taken over again it is %s: it was %s", got, want)
			}
		})
	}
}

// TestEXL3Again: what is taken over from EXL3 and exported again has the tensors that it had, byte for byte, but signs of old
// files, which become factors.
func TestEXL3Again(t *testing.T) {
	for _, name := range []string{"padded", "books"} {
		t.Run(name, func(t *testing.T) {
			from := filepath.Join("../../formats/exl3/testdata", name)
			made, out := filepath.Join(t.TempDir(), "made"), filepath.Join(t.TempDir(), "out")
			for _, args := range [][]string{{"import", from, made}, {"verify", made}, {"export", made, out, "--to", "exl3"}} {
				if code, _, stderr := exec(args...); code != 0 {
					t.Fatalf("%v: %s", args, stderr)
				}
			}
			was, is := tensors(t, from), tensors(t, out)
			for tensor, data := range was {
				again, old := tensor, false
				for _, suffix := range []string{".su", ".sv"} {
					if strings.HasSuffix(tensor, suffix) {
						again, old = tensor+"h", true
					}
				}
				switch {
				case is[again] == "":
					t.Errorf("%s is gone", tensor)
				case !old && is[again] != data:
					t.Errorf("%s is another", tensor)
				}
				delete(is, again)
			}
			for tensor := range is {
				t.Errorf("%s is new", tensor)
			}
		})
	}
}

// tensors returns type, shape and data of all tensors of a folder's files.
func tensors(t *testing.T, dir string) map[string]string {
	c, err := hf.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	all := make(map[string]string)
	for _, x := range c.Tensors() {
		data := make([]byte, x.Bytes())
		if _, err := x.ReadAt(data, 0); err != nil {
			t.Fatal(err)
		}
		all[x.Name] = fmt.Sprintf("%s %v %x", x.DType, x.Shape, data)
	}
	return all
}

// TestEXL3Dense: the weights of a folder of EXL3, of what is taken over from it and of what that is exported to are the same.
func TestEXL3Dense(t *testing.T) {
	from := "../../formats/exl3/testdata/padded"
	dir := t.TempDir()
	made, again := filepath.Join(dir, "made"), filepath.Join(dir, "again")
	var want map[string]string
	for _, args := range [][]string{{"import", from, made}, {"export", made, again, "--to", "exl3"}} {
		if code, _, stderr := exec(args...); code != 0 {
			t.Fatalf("%v: %s", args, stderr)
		}
	}
	for i, model := range []string{from, made, again} {
		out := filepath.Join(dir, fmt.Sprint(i))
		if code, _, stderr := exec("export", model, out, "--to", "dense", "--dtype", "f32"); code != 0 {
			t.Fatalf("%s: %s", model, stderr)
		}
		got := tensors(t, out)
		if i == 0 {
			want = got
		}
		if !maps.Equal(got, want) {
			t.Errorf("%s has other weights than %s", model, from)
		}
	}
}

// TestEXL3Fused: what exllamav3 has as several layers is one matrix of ours that comes back, its weights the same. Where one of the
// layers would begin within a band of rows it is refused.
func TestEXL3Fused(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	model := func(heads int) string {
		q := 64 * heads
		config := fmt.Sprintf(`{"architectures": ["Phi3ForCausalLM"], "model_type": "phi3", "hidden_size": %d, "intermediate_size": 128, "num_hidden_layers": 1,
			"num_attention_heads": %d, "num_key_value_heads": %d, "vocab_size": 40, "pad_token_id": 0, "tie_word_embeddings": false}`, q, heads, heads)
		var all []sourcetest.Tensor
		for name, shape := range map[string][]int{
			"model.embed_tokens.weight": {40, q}, "lm_head.weight": {40, q}, "model.norm.weight": {q},
			"model.layers.0.input_layernorm.weight": {q}, "model.layers.0.post_attention_layernorm.weight": {q},
			"model.layers.0.self_attn.qkv_proj.weight": {3 * q, q}, "model.layers.0.self_attn.o_proj.weight": {q, q},
			"model.layers.0.mlp.gate_up_proj.weight": {256, q}, "model.layers.0.mlp.down_proj.weight": {q, 128},
		} {
			n := shape[0]
			if len(shape) > 1 {
				n *= shape[1]
			}
			v := make([]float32, n)
			for i := range v {
				v[i] = float32(r.NormFloat64())
			}
			all = append(all, sourcetest.F16(name, shape, v...))
		}
		return sourcetest.Folder(t, config, all...)
	}
	dir := t.TempDir()
	made, out := filepath.Join(dir, "made"), filepath.Join(dir, "out")
	for _, args := range [][]string{{"quantize", model(2), made, "--for", "exl3", "--bits", "4"}, {"export", made, out, "--to", "exl3"}} {
		if code, _, stderr := exec(args...); code != 0 {
			t.Fatalf("%v: %s", args, stderr)
		}
	}
	stored := tensors(t, out)
	for _, name := range []string{"self_attn.q_proj", "self_attn.v_proj", "mlp.up_proj"} {
		if want := "I16 [8 8 64]"; !strings.HasPrefix(stored["model.layers.0."+name+".trellis"], want) {
			t.Errorf("%s is not stored as %s", name, want)
		}
	}
	var want map[string]string
	for i, from := range []string{made, out} {
		plain := filepath.Join(dir, fmt.Sprint(i))
		if code, _, stderr := exec("export", from, plain, "--to", "dense", "--dtype", "f32"); code != 0 {
			t.Fatal(stderr)
		}
		if got := tensors(t, plain); i == 0 {
			want = got
		} else if !maps.Equal(got, want) {
			t.Error("other weights come back")
		}
	}
	if code, _, stderr := exec("import", out, filepath.Join(dir, "back")); code == 0 || !strings.Contains(stderr, "several layers, whose columns have factors of their own") {
		t.Errorf("import: %d, %s", code, stderr)
	}
	small := filepath.Join(dir, "small")
	if code, _, stderr := exec("quantize", model(1), small, "--for", "exl3"); code != 0 {
		t.Fatal(stderr)
	}
	if code, _, stderr := exec("export", small, filepath.Join(dir, "none"), "--to", "exl3"); code == 0 || !strings.Contains(stderr, "one of which begins within rows that are mixed") {
		t.Errorf("export: %d, %s", code, stderr)
	}
}

// TestEXL3Biases: a model with biases, whose matrices are not of multiples of 128, comes back as it was.
func TestEXL3Biases(t *testing.T) {
	for _, g := range archtest.Goldens(t) {
		if g.Name != "qwen2" {
			continue
		}
		dir := t.TempDir()
		model, made, out, back := t.TempDir(), filepath.Join(dir, "made"), filepath.Join(dir, "out"), filepath.Join(dir, "back")
		g.Write(t, model)
		for _, args := range [][]string{
			{"quantize", model, made, "--for", "exl3", "--bits", "4"}, {"export", made, out, "--to", "exl3"}, {"import", out, back},
		} {
			if code, _, stderr := exec(args...); code != 0 {
				t.Fatalf("%v: %s", args, stderr)
			}
		}
		want, got := tensors(t, made), tensors(t, back)
		for name, data := range want {
			if strings.HasSuffix(name, ".bias") { // which become float16
				continue
			}
			if got[name] != data {
				t.Errorf("%s is another", name)
			}
		}
		if bias := tensors(t, out)["model.layers.0.self_attn.q_proj.bias"]; !strings.HasPrefix(bias, "F16 [128] ") {
			t.Errorf("a bias is stored as %.20s", bias)
		}
	}
}
