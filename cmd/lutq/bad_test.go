package main

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/lutq/lutq/gemm/bench"
)

const tiny = "../../calib/testdata/lutq-tiny"

// progressLogged is what a log has of work that takes long, as any does on a slow machine.
var progressLogged = regexp.MustCompile(`(?m)^lutq: \w+ \d+ % \(.*\n`)

// exec runs a command line in this process. It leaves progress out.
func exec(args ...string) (code int, stdout, stderr string) {
	var out, errs bytes.Buffer
	code = run(args, strings.NewReader(""), &out, &errs)
	return code, out.String(), progressLogged.ReplaceAllString(errs.String(), "")
}

// victim is a copy of the tiny model, or of a container made from it, that a
// test may damage.
type victim struct {
	t   *testing.T
	dir string
}

func (m victim) path(name string) string { return filepath.Join(m.dir, name) }

func (m victim) read(name string) []byte {
	m.t.Helper()
	b, err := os.ReadFile(m.path(name))
	if err != nil {
		m.t.Fatal(err)
	}
	return b
}

func (m victim) write(name string, data []byte) {
	m.t.Helper()
	if err := os.WriteFile(m.path(name), data, 0o644); err != nil {
		m.t.Fatal(err)
	}
}

func (m victim) remove(name string) {
	m.t.Helper()
	if err := os.Remove(m.path(name)); err != nil {
		m.t.Fatal(err)
	}
}

// folder makes a folder beside the model, with a file of some text.
func (m victim) folder(name, file string) {
	m.t.Helper()
	dir := filepath.Join(filepath.Dir(m.dir), name)
	if err := os.Mkdir(dir, 0o755); err != nil {
		m.t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, file), []byte("not lutq's"), 0o644); err != nil {
		m.t.Fatal(err)
	}
}

// replace changes the first occurrence of a text in a file.
func (m victim) replace(name, old, with string) {
	m.t.Helper()
	b := m.read(name)
	if !bytes.Contains(b, []byte(old)) {
		m.t.Fatalf("%s has no %q", name, old)
	}
	m.write(name, bytes.Replace(b, []byte(old), []byte(with), 1))
}

// family renames the model's architecture, and its type to one that is not known: else that decides.
func (m victim) family(architecture string) {
	m.t.Helper()
	m.replace("config.json", "LlamaForCausalLM", architecture)
	m.replace("config.json", `"model_type": "llama"`, `"model_type": "mamba"`)
}

const weights = "model.safetensors"

// header replaces the JSON header of the weights, whose length it keeps right.
func (m victim) header(edit func(text string) string) {
	m.t.Helper()
	b := m.read(weights)
	n := binary.LittleEndian.Uint64(b)
	text := edit(string(b[8 : 8+n]))
	out := binary.LittleEndian.AppendUint64(nil, uint64(len(text)))
	m.write(weights, slices.Concat(out, []byte(text), b[8+n:]))
}

// data overwrites the beginning of a tensor.
func (m victim) data(tensor string, with []byte) {
	m.t.Helper()
	b := m.read(weights)
	n := binary.LittleEndian.Uint64(b)
	var h map[string]struct {
		Offsets []uint64 `json:"data_offsets"`
	}
	if err := json.Unmarshal(b[8:8+n], &h); err != nil {
		m.t.Fatal(err)
	}
	copy(b[8+n+h[tensor].Offsets[0]:], with)
	m.write(weights, b)
}

// shard makes the weights the second of two shards with an index.
func (m victim) shard(index string) {
	m.t.Helper()
	if err := os.Rename(m.path(weights), m.path("model-00001-of-00002.safetensors")); err != nil {
		m.t.Fatal(err)
	}
	m.write("model.safetensors.index.json", []byte(index))
}

const (
	qProj    = "model.layers.0.self_attn.q_proj.weight"
	config   = "config.json"
	tokJSON  = "tokenizer.json"
	downProj = "model.layers.1.mlp.down_proj"
)

// badInput is a case of input that cannot be worked with.
type badInput struct {
	name      string
	container bool // damage a container instead of the original
	damage    func(m victim)
	args      []string // MODEL, OUT, TEXT and DIR are replaced; quantize MODEL OUT if nil
	code      int      // 1 if 0
	want      string   // part of the message
}

func badInputs() []badInput {
	evalArgs := []string{"eval-ppl", "MODEL", "--text", "TEXT", "--windows", "1", "--ctx", "64"}
	tokenize := []string{"tokenize", "MODEL", "--text", "TEXT"}
	verify := []string{"verify", "MODEL"}
	index := func(weightMap string) func(m victim) {
		return func(m victim) { m.shard(`{"metadata": {"total_size": 1}, "weight_map": ` + weightMap + `}`) }
	}
	return []badInput{
		{name: "no folder", args: []string{"quantize", "--preset", "fast", "DIR/none", "OUT"}, want: "no such file"},
		{name: "a file for a folder", args: []string{"quantize", "--preset", "fast", "MODEL/config.json", "OUT"}, want: "config.json"},
		{name: "empty folder", damage: func(m victim) {
			if err := os.RemoveAll(m.dir); err != nil {
				m.t.Fatal(err)
			}
			if err := os.Mkdir(m.dir, 0o755); err != nil {
				m.t.Fatal(err)
			}
		}, want: "model.safetensors"},
		{name: "empty weights", damage: func(m victim) { m.write(weights, nil) }, want: weights},
		{name: "header length of terabytes", damage: func(m victim) { m.write(weights, []byte("\xff\xff\xff\xff\xff\x00\x00\x00{}")) }, want: weights},
		{name: "weights cut short", damage: func(m victim) { b := m.read(weights); m.write(weights, b[:len(b)-100]) }, want: weights},
		{name: "bytes after the weights", damage: func(m victim) { m.write(weights, append(m.read(weights), 0)) }, want: weights},
		{name: "header that is no object", damage: func(m victim) { m.header(func(s string) string { return "[" + s[1:] }) }, want: weights},
		{name: "header that is no UTF-8", damage: func(m victim) {
			m.header(func(s string) string { return strings.Replace(s, "q_proj", "q_\xffroj", 1) })
		}, want: "UTF-8"},
		{name: "tensor named twice", damage: func(m victim) {
			m.header(func(s string) string { return strings.Replace(s, "layers.1.mlp.up_proj", "layers.0.mlp.up_proj", 1) })
		}, want: "model.layers.0.mlp.up_proj.weight"},
		{name: "unknown type", damage: func(m victim) { m.header(func(s string) string { return strings.Replace(s, `"BF16"`, `"BF17"`, 1) }) }, want: "BF17"},
		{name: "size that is not shape times type", damage: func(m victim) { m.header(func(s string) string { return strings.Replace(s, `"BF16"`, `"F32"`, 1) }) }, want: weights},
		{name: "shape that overflows", damage: func(m victim) {
			m.header(func(s string) string {
				return strings.Replace(s, "[128,384]", "[4611686018427387904,4611686018427387904]", 1)
			})
		}, want: weights},
		{name: "negative shape", damage: func(m victim) {
			m.header(func(s string) string { return strings.Replace(s, "[128,384]", "[-128,384]", 1) })
		}, want: weights},
		{name: "index without its shard", damage: index(`{"a": "model-00002-of-00002.safetensors"}`), want: "model-00002-of-00002.safetensors"},
		{name: "index that leaves the folder", damage: index(`{"a": "../model-00001-of-00002.safetensors"}`), want: "../model-00001-of-00002.safetensors"},
		{name: "index with an absolute path", damage: index(`{"a": "/etc/passwd"}`), want: "/etc/passwd"},
		{name: "index that is no JSON", damage: func(m victim) { m.shard("{") }, want: "model.safetensors.index.json"},
		{name: "NaN weight", damage: func(m victim) { m.data(qProj, []byte{0, 0, 0xc0, 0x7f}) }, want: qProj + ": weight [0, 1] is NaN"},
		{name: "infinite weight", damage: func(m victim) { m.data(qProj, []byte{0x80, 0xff}) }, want: "weight [0, 0] is -Inf"},
		{name: "NaN norm", damage: func(m victim) { m.data("model.norm.weight", []byte{0xc0, 0x7f}) }, want: "model.norm.weight"},
		{name: "weights of integers", damage: func(m victim) { m.header(func(s string) string { return strings.ReplaceAll(s, `"BF16"`, `"I16"`) }) }, want: "weights of type I16 in no format that is known"},
		{name: "a layer of bytes among others", damage: func(m victim) {
			m.header(func(s string) string {
				return strings.Replace(s, `"`+qProj+`":{"dtype":"BF16","shape":[128,128]`, `"`+qProj+`":{"dtype":"I8","shape":[128,256]`, 1)
			})
		}, want: qProj + ": weights of type I8 in no format that is known"},
		{name: "no layer of a decoder", damage: func(m victim) {
			m.header(func(s string) string { return strings.ReplaceAll(s, "model.layers.", "model.towers.") })
		}, want: "no tensor of the checkpoint would be quantized: embedding (1), norm (9), outside the decoder's blocks (28)"},
		{name: "GPT-2", damage: func(m victim) { m.replace(config, `"model_type": "llama"`, `"model_type": "gpt2"`) }, want: "gpt2 stores its linear layers transposed"},
		{name: "weights of PyTorch", damage: func(m victim) { m.write("pytorch_model.bin", m.read(weights)); m.remove(weights) }, want: "save_pretrained(o)"},
		{
			name: "quantized by HQQ", damage: func(m victim) { m.replace(config, "{", `{"quantization_config": {"quant_method": "hqq"},`) },
			want: "MODEL: already quantized by HQQ: its config.json says so",
		},
		{
			name: "evaluation of weights quantized by HQQ", damage: func(m victim) { m.replace(config, "{", `{"quantization_config": {"quant_method": "hqq"},`) },
			args: evalArgs, want: "MODEL: already quantized by HQQ: its config.json says so",
		},
		{
			name: "evaluation of another family", damage: func(m victim) { m.family("MambaForCausalLM") },
			args: []string{"quantize", "--preset", "fast", "MODEL", "OUT", "--eval-text", "TEXT"}, want: "architecture \"MambaForCausalLM\" is not one that is known",
		},
		{
			name: "evaluation without a tokenizer", damage: func(m victim) { m.remove(tokJSON) },
			args: []string{"quantize", "--preset", "fast", "MODEL", "OUT", "--eval-text", "TEXT"}, want: tokJSON,
		},
		{name: "evaluation on no text", args: []string{"quantize", "--preset", "fast", "MODEL", "OUT", "--eval-text", "DIR/none"}, want: "no such file"},
		{
			name: "evaluation on too little text", damage: func(m victim) { m.write("short", []byte("a b c")) },
			args: []string{"quantize", "--preset", "fast", "MODEL", "OUT", "--eval-text", "MODEL/short"}, want: "fewer than one window",
		},
		{name: "no config", damage: func(m victim) { m.remove(config) }, want: config},
		{name: "config that is no JSON", damage: func(m victim) { m.write(config, []byte("{\"a\": ")) }, want: config},
		{name: "config that is an array", damage: func(m victim) { m.write(config, []byte("[]")) }, want: config},
		{name: "quantized already", container: true, want: "MODEL: already quantized by lutq: "},
		{name: "pattern that matches nothing", args: []string{"quantize", "--preset", "fast", "MODEL", "OUT", "--tensor", "dwn_proj=3"}, want: "dwn_proj"},
		{name: "pattern that is none", args: []string{"quantize", "--preset", "fast", "MODEL", "OUT", "--tensor", "(=3"}, code: 2, want: "missing closing"},
		{name: "bits out of range", args: []string{"quantize", "MODEL", "OUT", "--bits", "7"}, code: 2, want: "no codes of 7 bits"},
		{name: "bits that are no number", args: []string{"quantize", "MODEL", "OUT", "--bits", "four"}, code: 2, want: "four"},
		{name: "group that is not offered", args: []string{"quantize", "--preset", "fast", "MODEL", "OUT", "--group", "48"}, code: 2, want: "48"},
		{name: "unknown codebook", args: []string{"quantize", "MODEL", "OUT", "--codebook", "nf4"}, code: 2, want: "nf4"},
		{
			name: "codebook file with too few values", damage: func(m victim) { m.write("cb.json", []byte("[-1, 1]")) },
			args: []string{"quantize", "MODEL", "OUT", "--codebook", "file:MODEL/cb.json"}, want: "2 values",
		},
		{
			name: "recipe with an unknown key", damage: func(m victim) { m.write("r.json", []byte(`{"bit": 4}`)) },
			args: []string{"quantize", "MODEL", "OUT", "--recipe", "MODEL/r.json"}, want: "bit",
		},
		{
			name: "recipe with bits out of range", damage: func(m victim) { m.write("r.json", []byte(`{"tensors": [{"match": "down", "bits": 9}]}`)) },
			args: []string{"quantize", "MODEL", "OUT", "--recipe", "MODEL/r.json"}, want: "r.json: recipe: tensors[0]: 9 bits",
		},
		{
			name: "recipe that flags contradict", damage: func(m victim) { m.write("r.json", []byte(`{"codebook": "js"}`)) },
			args: []string{"quantize", "MODEL", "OUT", "--recipe", "MODEL/r.json", "--method", "nfl", "--calib", "TEXT", "--calib-ctx", "32"}, want: "method nfl is for the codebook nf",
		},
		{name: "fused layers that differ", args: []string{"quantize", "--preset", "fast", "MODEL", "OUT", "--tensor", "k_proj=5"}, want: "would differ in bits, group or kind"},
		{name: "too little memory", args: []string{"quantize", "--preset", "fast", "MODEL", "OUT", "--max-ram", "1MB"}, want: "memory"},
		{name: "size without sense", args: []string{"quantize", "MODEL", "OUT", "--max-ram", "lots"}, code: 2, want: "lots"},
		{name: "output that exists", args: []string{"quantize", "--preset", "fast", "MODEL", "DIR/model"}, want: "DIR/model"},
		{name: "output under a file", args: []string{"quantize", "--preset", "fast", "MODEL", "MODEL/config.json/out"}, want: "not a directory"},
		{name: "output on a read-only system", args: []string{"quantize", "--preset", "fast", "MODEL", "/sys/lutq"}, want: "/sys/lutq"},
		{name: "output under what cannot be quantized", container: true, args: []string{"quantize", "--preset", "fast", "MODEL", "DIR/a/b/out"}, want: "quantized"},
		{name: "output without a name", args: []string{"quantize", "--preset", "fast", "MODEL", ""}, code: 2, want: "an argument is empty"},
		{name: "output without a name, dry", args: []string{"quantize", "--preset", "fast", "MODEL", "", "--dry-run"}, code: 2, want: "an argument is empty"},
		{name: "output that is a file", args: []string{"quantize", "MODEL", "TEXT", "--force"}, want: "text.txt: is a file"},
		{name: "output that is the model", args: []string{"quantize", "MODEL", "MODEL", "--force"}, want: "is the input"},
		{name: "output that is the model in another spelling", args: []string{"quantize", "MODEL", "MODEL/../model/", "--force"}, want: "is the input"},
		{name: "output that holds the model", args: []string{"quantize", "MODEL", "DIR", "--force"}, want: "contains the input"},
		{name: "output in the model", args: []string{"quantize", "MODEL", "MODEL/out", "--force"}, want: "lies in the input"},
		{
			name: "output with the calibration text", args: []string{"quantize", "MODEL", "DIR/other", "--force", "--learn", "--calib", "DIR/other/text"},
			damage: func(m victim) { m.folder("other", "text") }, want: "contains the input",
		},
		{
			name: "output that lutq did not write", args: []string{"quantize", "MODEL", "DIR/other", "--force"},
			damage: func(m victim) { m.folder("other", "notes") }, want: "lutq did not write it",
		},
		{
			name: "work folder that lutq did not write", args: []string{"quantize", "MODEL", "OUT", "--force"},
			damage: func(m victim) { m.folder("out.partial", "notes") }, want: "out.partial: is in the way",
		},
		{
			name: "a GGUF of layers of another shape", args: []string{"export", "MODEL", "OUT", "--to", "gguf"},
			damage: func(m victim) { m.replace(config, `"intermediate_size": 384`, `"intermediate_size": 256`) }, want: "tensor model.layers.0.mlp.gate_proj.weight has shape [384 128]: by config.json it should be [256 128]",
		},
		{
			name: "a GGUF of another vocabulary", args: []string{"export", "MODEL", "OUT", "--to", "gguf"},
			damage: func(m victim) { m.replace(config, `"vocab_size": 4096`, `"vocab_size": 4000`) }, want: "tensor model.embed_tokens.weight has shape [4096 128]: by config.json it should be [4000 128]",
		},
		{name: "tiles over their model", container: true, args: []string{"repack", "MODEL", "MODEL", "--force"}, want: "is the input"},
		{name: "tiles without a name", container: true, args: []string{"repack", "MODEL", ""}, code: 2, want: "an argument is empty"},
		{
			name: "tiles over what lutq did not write", container: true, args: []string{"repack", "MODEL", "DIR/other", "--force"},
			damage: func(m victim) { m.folder("other", "notes") }, want: "lutq did not write it",
		},
		{
			name: "control over what lutq did not write", damage: func(m victim) { m.folder("other", "notes") },
			args: []string{"quantize", "MODEL", "DIR/other", "--force", "--learn", "--learn-control", "--calib", "TEXT"}, want: "lutq did not write it",
		},
		{name: "unknown flag", args: []string{"quantize", "--preset", "fast", "MODEL", "OUT", "--bit", "4"}, code: 2, want: "--bit"},
		{name: "missing argument", args: []string{"quantize", "--preset", "fast", "MODEL"}, code: 2, want: "accepts 2 arg"},
		{name: "unknown command", args: []string{"quantise", "MODEL"}, code: 2, want: "quantise"},

		{name: "digest", container: true, damage: func(m victim) { m.replace(config, `"sha256": "`, `"sha256": "0`) }, args: verify, code: 3, want: "config.json differs from what was written"},
		{name: "damaged norm", container: true, damage: func(m victim) { m.data("model.norm.weight", []byte{1}) }, args: evalArgs, code: 3, want: weights + ": model.norm.weight differs from what was written"},
		{name: "damaged codes", container: true, damage: func(m victim) { m.data(downProj+".codes", []byte{1, 2, 3}) }, args: evalArgs, code: 3, want: weights + ": " + downProj + ".codes differs from what was written"},
		{name: "damaged codes to time", container: true, damage: func(m victim) { m.data(downProj+".codes", []byte{1, 2, 3}) }, args: []string{"bench", "MODEL", "--device", "cpu"}, code: 3, want: weights + ": " + downProj + ".codes differs from what was written"},
		{name: "damaged codes to repack", container: true, damage: func(m victim) { m.data(downProj+".codes", []byte{1, 2, 3}) }, args: []string{"repack", "MODEL", "OUT"}, code: 3, want: weights + ": " + downProj + ".codes differs from what was written"},
		{name: "damaged config", container: true, damage: func(m victim) { m.replace(config, `10000.0`, `10001.0`) }, args: evalArgs, code: 3, want: "config.json differs from what was written"},
		{name: "damaged tokenizer", container: true, damage: func(m victim) { m.replace(tokJSON, `"version"`, `"vErsion"`) }, args: evalArgs, code: 3, want: "tokenizer.json differs from what was written"},
		{name: "quick and against", args: []string{"verify", "MODEL", "--quick", "--against", "MODEL"}, code: 2, want: "--quick"},
		{name: "container cut short", container: true, damage: func(m victim) { b := m.read(weights); m.write(weights, b[:len(b)/2]) }, args: verify, want: weights},
		{name: "container of a later version", container: true, damage: func(m victim) { m.replace(config, `"version": 1`, `"version": 9`) }, args: verify, want: "version 9"},
		{name: "container with another group", container: true, damage: func(m victim) { m.replace(config, `"group": 64`, `"group": 32`) }, args: verify, want: "has shape"},
		{name: "container without a tensor", container: true, damage: func(m victim) {
			m.header(func(s string) string { return strings.Replace(s, downProj+".scales", downProj+".scalez", 1) })
		}, args: verify, want: downProj + ".scales is missing"},
		{name: "no container", args: verify, want: "not a lutq container"},
		{name: "infinite scale", container: true, damage: func(m victim) { m.data(downProj+".scales", []byte{0, 0x7c}) }, args: append([]string{"eval-ppl", "--no-verify"}, evalArgs[1:]...), want: downProj + ": scale [0, 0]"},

		{name: "no tokenizer", damage: func(m victim) { m.remove(tokJSON) }, args: tokenize, want: tokJSON},
		{name: "tokenizer that is no JSON", damage: func(m victim) { m.write(tokJSON, []byte("BPE")) }, args: tokenize, want: tokJSON},
		{name: "unknown tokenizer model", damage: func(m victim) { m.replace(tokJSON, `"BPE"`, `"Unigram"`) }, args: tokenize, want: "Unigram"},
		{name: "split pattern that is none", damage: func(m victim) { m.replace(tokJSON, `\\p{N}{1,3}`, `(\\p{N}{1,3}`) }, args: tokenize, want: "pattern"},
		{name: "a million dimensions", damage: func(m victim) {
			m.header(func(s string) string {
				return strings.Replace(s, `"shape":[128]`, `"shape":[`+strings.Repeat("1,", 1_000_000)+`128]`, 1)
			})
		}, args: []string{"inspect", "MODEL"}, want: "more than 64 dimensions"},
		{name: "tensor's name of megabytes", damage: func(m victim) {
			m.header(func(s string) string {
				return strings.Replace(s, "model.norm.weight", strings.Repeat("n", 5_000_000), 1)
			})
		}, args: []string{"inspect", "MODEL"}, want: "name of 5000000 bytes"},
		{name: "architecture's name of megabytes", damage: func(m victim) {
			m.family(strings.Repeat("L", 5_000_000))
		}, args: evalArgs, want: "is not one that is known"},
		{
			name: "text that is not UTF-8", damage: func(m victim) { m.write("bad", []byte("text \xff and on")) },
			args: []string{"tokenize", "MODEL", "--text", "MODEL/bad"}, want: "MODEL/bad: text is not UTF-8 at byte 5",
		},
		{
			name: "text to evaluate that is not UTF-8", damage: func(m victim) { m.write("bad", []byte("text \xc3")) },
			args: []string{"eval-ppl", "MODEL", "--text", "MODEL/bad", "--ctx", "3"}, want: "MODEL/bad: text is not UTF-8 at byte 5",
		},
		{
			name: "text to learn on that is not UTF-8", damage: func(m victim) { m.write("bad", []byte("text \xe2\x82 more")) },
			args: []string{"quantize", "MODEL", "OUT", "--learn", "--calib", "MODEL/bad", "--calib-ctx", "3"}, want: "MODEL/bad: text is not UTF-8 at byte 5",
		},
		{name: "no text", args: []string{"eval-ppl", "MODEL", "--text", "DIR/none"}, want: "no such file"},
		{
			name: "text without a window", damage: func(m victim) { m.write("short", []byte("a b c")) },
			args: []string{"eval-ppl", "MODEL", "--text", "MODEL/short"}, want: "window",
		},
		{name: "unknown protocol", args: append(slices.Clone(evalArgs), "--protocol", "c4"), code: 2, want: "c4"},
		{name: "unknown architecture", damage: func(m victim) { m.family("MambaForCausalLM") }, args: evalArgs, want: "MambaForCausalLM"},
		{name: "unknown rope", damage: func(m victim) { m.replace(config, `"rope_type": "default"`, `"rope_type": "mrope", "factor": 4.0`) }, args: evalArgs, want: "mrope"},
		{name: "heads that do not divide", damage: func(m victim) { m.replace(config, `"num_key_value_heads": 2`, `"num_key_value_heads": 3`) }, args: evalArgs, want: "num_key_value_heads"},
		{name: "hidden size of another model", damage: func(m victim) { m.replace(config, `"hidden_size": 128`, `"hidden_size": 256`) }, args: evalArgs, want: "shape"},
		{name: "more layers than there are", damage: func(m victim) { m.replace(config, `"num_hidden_layers": 4`, `"num_hidden_layers": 5`) }, args: evalArgs, want: "model.layers.4."},
		{name: "weight missing", damage: func(m victim) {
			m.header(func(s string) string {
				return strings.Replace(s, "layers.0.self_attn.q_proj", "layers.0.self_attn.z_proj", 1)
			})
		}, args: evalArgs, want: "q_proj"},
		{name: "NaN in a model to evaluate", damage: func(m victim) { m.data(qProj, bytes.Repeat([]byte{0xc0, 0x7f}, 64)) }, args: evalArgs, want: "NaN"},
	}
}

// TestBadInput gives every command input that it cannot work with: each must
// be met with one line, a hint at most, the right exit code, and no file.
func TestBadInput(t *testing.T) {
	text, err := os.ReadFile("../../calib/testdata/harbour.txt")
	if err != nil {
		t.Fatal(err)
	}
	base := t.TempDir()
	container := filepath.Join(base, "container")
	if code, _, stderr := exec("quantize", "--preset", "fast", tiny, container); code != 0 {
		t.Fatal(stderr)
	}
	for _, tc := range badInputs() {
		t.Run(tc.name, func(t *testing.T) {
			dir := t.TempDir()
			m := victim{t, filepath.Join(dir, "model")}
			from := tiny
			if tc.container {
				from = container
			}
			if err := os.CopyFS(m.dir, os.DirFS(from)); err != nil {
				t.Fatal(err)
			}
			textFile := filepath.Join(dir, "text.txt")
			if err := os.WriteFile(textFile, text, 0o644); err != nil {
				t.Fatal(err)
			}
			if tc.damage != nil {
				tc.damage(m)
			}
			args := slices.Clone(tc.args)
			if args == nil {
				args = []string{"quantize", "--preset", "fast", "MODEL", "OUT"}
			}
			names := strings.NewReplacer("MODEL", m.dir, "OUT", filepath.Join(dir, "out"), "TEXT", textFile, "DIR", dir)
			for i := range args {
				args[i] = names.Replace(args[i])
			}
			before := tree(t, dir)
			code, stdout, stderr := exec(args...)
			checkRefused(t, tc.code, code, stderr)
			if want := names.Replace(tc.want); !strings.Contains(stderr+stdout, want) {
				t.Errorf("the message does not say %q:\n%s", want, stderr)
			}
			if after := tree(t, dir); !slices.Equal(before, after) {
				t.Errorf("files before:\n%v\nafter:\n%v", before, after)
			}
		})
	}
}

// TestNoVerify has damage taken as it is.
func TestNoVerify(t *testing.T) {
	dir := t.TempDir()
	m := victim{t, filepath.Join(dir, "model")}
	if code, _, stderr := exec("quantize", "--preset", "fast", tiny, m.dir); code != 0 {
		t.Fatal(stderr)
	}
	m.data("model.norm.weight", []byte{1})
	m.data(downProj+".codes", []byte{1, 2, 3})
	m.replace(config, `10000.0`, `10001.0`)
	m.replace(tokJSON, `"version"`, `"vErsion"`)
	for _, args := range [][]string{
		{"eval-ppl", m.dir, "--text", "../../calib/testdata/harbour.txt", "--ctx", "64", "--windows", "1", "--device", "cpu"},
		{"repack", m.dir, filepath.Join(dir, "tiles")},
	} {
		if code, _, _ := exec(args...); code != exitCheck {
			t.Errorf("%v: exit code %d, want %d", args, code, exitCheck)
		}
		if code, _, stderr := exec(append(args, "--no-verify")...); code != exitDone {
			t.Errorf("%v: exit code %d: %s", args, code, stderr)
		}
	}
	// Of bench, what reads: the rest takes long.
	var o bench.Options
	if err := (&benchOptions{noVerify: true}).addLayers(t.Context(), &ui{}, &o, m.dir, "cpu"); err != nil || len(o.Layers) != 28 {
		t.Errorf("%d layers to time, %v", len(o.Layers), err)
	}
}

// checkRefused checks an exit code and that the message is one line with at
// most a hint.
func checkRefused(t *testing.T, want, code int, stderr string) {
	t.Helper()
	if want == 0 {
		want = exitFailed
	}
	if code != want {
		t.Errorf("exit code %d, want %d; stderr:\n%s", code, want, stderr)
	}
	lines := strings.Split(strings.TrimSuffix(stderr, "\n"), "\n")
	if !strings.HasPrefix(lines[0], "lutq: ") || len(lines) > 2 || len(lines) == 2 && !strings.HasPrefix(lines[1], "hint: ") {
		t.Errorf("want one line and a hint at most, got:\n%s", stderr)
	}
	if len(lines[0]) > 400 {
		t.Errorf("a line of %d bytes:\n%s", len(lines[0]), lines[0])
	}
}

// tree lists the files below a folder with their sizes.
func tree(t *testing.T, dir string) []string {
	t.Helper()
	var files []string
	err := filepath.Walk(dir, func(path string, info os.FileInfo, err error) error {
		files = append(files, fmt.Sprint(path, " ", info.Size()))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// TestZeroGroups: a group of zeros is odd but not bad.
func TestZeroGroups(t *testing.T) {
	dir := t.TempDir()
	m := victim{t, filepath.Join(dir, "model")}
	if err := os.CopyFS(m.dir, os.DirFS(tiny)); err != nil {
		t.Fatal(err)
	}
	m.data(qProj, make([]byte, 2*128*3))
	out := filepath.Join(dir, "out")
	if code, _, stderr := exec("quantize", m.dir, out, "--codebook", "js"); code != 0 {
		t.Fatal(stderr)
	}
	if code, _, stderr := exec("verify", out, "--against", m.dir); code != 0 {
		t.Fatal(stderr)
	}
	code, stdout, stderr := exec("eval-ppl", out, "--text", "../../calib/testdata/harbour.txt", "--ctx", "64", "--windows", "2", "--json")
	var r struct{ PPL float64 }
	if err := json.Unmarshal([]byte(stdout), &r); err != nil || code != 0 || math.IsNaN(r.PPL) || r.PPL <= 1 {
		t.Errorf("evaluation: exit code %d, %v\n%s%s", code, err, stdout, stderr)
	}
}

// TestStacks: experts in one tensor are copied, and said to be.
func TestStacks(t *testing.T) {
	dir := t.TempDir()
	m := victim{t, filepath.Join(dir, "model")}
	if err := os.CopyFS(m.dir, os.DirFS(tiny)); err != nil {
		t.Fatal(err)
	}
	m.header(func(s string) string {
		return strings.Replace(s, `"model.layers.0.mlp.up_proj.weight":{"dtype":"BF16","shape":[384,128]`, `"model.layers.0.mlp.experts.up_proj":{"dtype":"BF16","shape":[3,128,128]`, 1)
	})
	code, stdout, stderr := exec("quantize", "--preset", "fast", m.dir, filepath.Join(dir, "out"))
	if want := "lutq: 98.3 kB of 2.62 MB stay as they are: stacks of matrices in one tensor are not quantized (model.layers.*.mlp.experts.up_proj)\n"; code != 0 || stderr != want {
		t.Errorf("exit code %d, stderr %q, want %q", code, stderr, want)
	}
	if !strings.Contains(stdout, "stack of matrices: 1, 98.3 kB (model.layers.*.mlp.experts.up_proj)") {
		t.Errorf("the report does not name the stack:\n%s", stdout)
	}
}
