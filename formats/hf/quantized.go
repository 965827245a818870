package hf

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/lutq/lutq/formats/input"
)

// QuantizedError means that the weights of a folder were quantized before, so
// that they cannot be taken for the model's own.
type QuantizedError struct {
	Dir    string
	By     string // the format's or the tool's name, such as "GPTQ"
	Tensor string // one that shows it; empty where config.json says it
}

func (e *QuantizedError) Error() string {
	how := "its config.json says so"
	if e.Tensor != "" {
		how = "it has " + e.Tensor
	}
	return fmt.Sprintf("%s: already quantized by %s: %s", e.Dir, e.By, how)
}

// Hint says what to do about it.
func (e *QuantizedError) Hint() string {
	return "take the model that it was made from, or one in a format that is read: lutq help formats lists them"
}

// UnreadableError means that a folder has weights, but none in safetensors.
type UnreadableError struct {
	Dir  string
	File string // base name of the largest
}

func (e *UnreadableError) Error() string {
	return fmt.Sprintf("%s: its weights are in %s: want safetensors", e.Dir, e.File)
}

// Hint says how to come by safetensors.
func (e *UnreadableError) Hint() string {
	switch filepath.Ext(strings.ToLower(e.File)) {
	case ".bin", ".pt", ".pth", ".ckpt":
		return fmt.Sprintf(`convert them, with torch and transformers installed: python3 -c "from transformers import AutoModelForCausalLM as M, `+
			`AutoTokenizer as T; d = '%[1]s'; o = d + '-safetensors'; M.from_pretrained(d, torch_dtype='auto').save_pretrained(o); `+
			`T.from_pretrained(d).save_pretrained(o)"`, strings.TrimRight(e.Dir, "/"))
	case ".gguf", ".ggml":
		return "take the model that the file was made from, which has safetensors"
	}
	return "transformers converts them: load the model and call its save_pretrained"
}

// TransposedError means that a model's linear layers are stored as [in, out],
// by the module Conv1D of transformers, where others have [out, in].
type TransposedError struct{ Dir, ModelType string }

func (e *TransposedError) Error() string {
	return fmt.Sprintf("%s: model type %s stores its linear layers transposed, as [in, out]: not supported", e.Dir, e.ModelType)
}

// conv1D lists the model types of transformers whose linear layers are of its
// module Conv1D, which GPT-2 has from its first code in TensorFlow.
func conv1D() []string { return []string{"gpt2", "openai-gpt", "imagegpt", "decision_transformer"} }

// CheckPlain returns nil for a checkpoint whose linear layers are matrices
// [out, in] of the model's own weights, or are decoded to such, as far as
// config.json and the names of tensors tell, and otherwise a [QuantizedError]
// or a [TransposedError]. A folder whose config.json cannot be read is an error
// too.
func (c *Checkpoint) CheckPlain() error {
	config, err := c.config()
	if err != nil {
		return err
	}
	if err := c.checkUnquantized(config); err != nil {
		return err
	}
	var t string
	if json.Unmarshal(config["model_type"], &t) == nil && slices.Contains(conv1D(), t) {
		return &TransposedError{Dir: c.dir, ModelType: t}
	}
	return c.checkMade()
}

// CheckUnquantized is the part of [Checkpoint.CheckPlain] that says whether
// the weights were quantized before.
func (c *Checkpoint) CheckUnquantized() error {
	config, err := c.config()
	if err != nil {
		return err
	}
	return c.checkUnquantized(config)
}

// config reads config.json, whatever it describes.
func (c *Checkpoint) config() (object, error) {
	text, err := c.File(configName, input.Config)
	if err != nil {
		return nil, fmt.Errorf("read config: %w", err)
	}
	var config object
	if err := json.Unmarshal(text, &config); err != nil {
		return nil, fmt.Errorf("%s: %w", filepath.Join(c.dir, configName), err)
	}
	return config, nil
}

func (c *Checkpoint) checkUnquantized(config object) error {
	if by := config.quantizedBy(); by != "" && !c.decodes {
		return &QuantizedError{Dir: c.dir, By: by}
	}
	if by, tensor := c.packedBy(); by != "" {
		return &QuantizedError{Dir: c.dir, By: by, Tensor: tensor}
	}
	return nil
}

// object is a JSON object, value by value.
type object map[string]json.RawMessage

// has reports whether a key is there with a value.
func (o object) has(key string) bool { return o[key] != nil && string(o[key]) != "null" }

// textPart is the key of the language model in the config.json of a model of several
// parts, which may say there how it is quantized.
const textPart = "text_config"

// parts returns a config.json and what it has of its language model.
func (o object) parts() []object {
	parts := []object{o}
	var in object
	if o.has(textPart) && json.Unmarshal(o[textPart], &in) == nil {
		parts = append(parts, in)
	}
	return parts
}

// quantizedBy names what a config.json says it was quantized by, "" where it
// says nothing.
func (o object) quantizedBy() string {
	for _, f := range o.parts() {
		for _, key := range quantizationKeys() {
			if f.has(key) {
				return toolName(key, f[key])
			}
		}
	}
	return ""
}

// toolName names the tool that left a value under a key of config.json.
func toolName(key string, value json.RawMessage) string {
	var q struct {
		Method string `json:"quant_method"`
		In4    bool   `json:"load_in_4bit"`
		In8    bool   `json:"load_in_8bit"`
	}
	// A value of another type still says that the model is quantized.
	_ = json.Unmarshal(value, &q)
	switch {
	case q.Method != "":
		return methodName(q.Method)
	case q.In4, q.In8: // whose older versions did not name themselves
		return methodName("bitsandbytes")
	case key == "compression_config":
		return methodName("compressed-tensors")
	case key == "quantization":
		return "MLX"
	}
	return "a tool that it does not name"
}

// methodName is a quant_method as its authors write it.
func methodName(method string) string {
	switch m := strings.ToLower(method); m {
	case "gptq", "awq", "aqlm", "hqq", "eetq", "vptq", "spqr", "gguf":
		return strings.ToUpper(m)
	case "fp8":
		return "FP8 in blocks"
	case "fbgemm_fp8":
		return "FP8 (FBGEMM)"
	case "mxfp4":
		return "MXFP4"
	case "intel/auto-round", "auto-round", "auto_round":
		return "AutoRound"
	case "bitnet":
		return "BitNet"
	case "modelopt", "modelopt_fp4":
		return "ModelOpt"
	case "higgs", "quark", "quanto", "torchao", "bitsandbytes", "compressed-tensors", "lutq", "exl2", "exl3":
		return m
	}
	return fmt.Sprintf("%.40q", method)
}

// packing is how a format names the tensors of a layer P: P and each suffix.
type packing struct {
	by    string
	parts []string
	dtype DType // of the first part; "" is any
}

// packings lists the formats that are told by their tensors. Of two that have
// the same parts the one that wants more comes first.
func packings() []packing {
	return []packing{
		{by: "lutq", parts: []string{".codes", ".scales", ".codebook"}},
		{by: "GPTQ", parts: []string{".qweight", ".qzeros", ".scales", ".g_idx"}},
		{by: "AWQ", parts: []string{".qweight", ".qzeros", ".scales"}},
		{by: "GPTQ", parts: []string{".qweight", ".scales"}},
		{by: "k-bit", parts: []string{".kbit_packed", ".kbit_absmax", ".kbit_codebook"}},
		{by: "LUT-GEMM", parts: []string{".bWeight", ".alpha"}, dtype: "I32"},
		{by: "MARLIN", parts: []string{".B", ".s"}, dtype: "I32"},
		{by: "compressed-tensors", parts: []string{".weight_packed"}},
		{by: "bitsandbytes (4 bits)", parts: []string{".weight", ".weight.absmax"}},
		{by: "bitsandbytes (8 bits)", parts: []string{".weight", ".SCB"}},
		{by: "bitsandbytes (8 bits)", parts: []string{".weight", ".weight.SCB"}},
		{by: "FP8 in blocks", parts: []string{".weight", ".weight_scale_inv"}},
		{by: "NVFP4", parts: []string{".weight", ".weight_scale", ".weight_scale_2"}, dtype: U8},
		{by: "FP8", parts: []string{".weight", ".weight_scale"}, dtype: "F8_E4M3"},
		{by: "FP8", parts: []string{".weight", ".weight_scale"}, dtype: "F8_E5M2"},
		{by: "int8 with scales", parts: []string{".weight", ".weight_scale"}, dtype: "I8"},
		{by: "EETQ", parts: []string{".weight", ".weight_scales"}, dtype: "I8"},
		{by: "BitNet", parts: []string{".weight", ".weight_scale"}, dtype: U8},
		{by: "MXFP4", parts: []string{"_blocks", "_scales"}, dtype: U8},
		{by: "MLX", parts: []string{".weight", ".scales"}, dtype: "U32"},
		{by: "torchao", parts: []string{"._weight_qdata"}},
		{by: "torchao", parts: []string{".weight:qdata"}},
		{by: "quanto", parts: []string{".weight._data", ".weight._scale"}},
		{by: "HQQ", parts: []string{".W_q"}},
		{by: "AQLM", parts: []string{".codes", ".codebooks", ".scales"}},
		{by: "VPTQ", parts: []string{".indices", ".centroids.weight"}},
		{by: "QuIP#", parts: []string{".Qidxs"}},
		{by: "exl3", parts: []string{".trellis"}},
		{by: "exl2", parts: []string{".q_weight", ".q_scale"}},
	}
}

// packedBy returns the format of the first layer that is packed in a known one,
// and the tensor that shows it, or "".
func (c *Checkpoint) packedBy() (by, tensor string) {
	known := packings()
	for _, t := range c.tensors {
		for _, p := range known {
			layer, ok := strings.CutSuffix(t.Name, p.parts[0])
			if !ok || p.dtype != "" && t.DType != p.dtype {
				continue
			}
			if !slices.ContainsFunc(p.parts[1:], func(s string) bool { return c.byName[layer+s] == nil }) {
				return p.by, layer + p.parts[len(p.parts)-1]
			}
		}
	}
	return "", ""
}

// Packed reports whether a tensor looks like weights that somebody packed:
// a matrix of bytes, of integers, or of floats of 8 bits and less. Indexes
// (I64) and masks (BOOL, or named bias or mask) are none.
func (t *Tensor) Packed() bool {
	switch t.DType {
	case F64, F32, F16, BF16, "C64", "BOOL":
		return false
	}
	name := t.Name[strings.LastIndexByte(t.Name, '.')+1:]
	if strings.HasPrefix(string(t.DType), "F") { // F8 and less are weights, or scales of some
		return t.Elements() > 0
	}
	if len(t.Shape) < 2 || t.DType == "I64" && name != "weight" {
		return false
	}
	return name != "bias" && !strings.Contains(name, "mask") && t.Elements() > 0
}
