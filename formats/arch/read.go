package arch

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/lutq/lutq/formats/input"
)

// family is one entry of the list: how its models are known, and what describes them.
type family struct {
	name          string
	modelTypes    []string // of config.json, or of its text_config
	architectures []string // for configs without a type that is known
	describe      func(*builder)
}

// families lists every family there is. A new one is a file and a line here.
func families() []family {
	return []family{
		llama(), mistral(), qwen2(), qwen3(),
		mixtral(), qwen2MoE(), qwen3MoE(),
		gemma2(), gemma3(), gemma4(), phi3(), gptOSS(),
		smolLM3(), olmo2(), olmo3(), seedOSS(), granite(), ernie45(), hunyuan(), ministral3(),
		llama4(), glm4MoE(), glm4MoELite(), miniMaxM2(), deepseekV2(), deepseekV3(), deepseekV32(), glmMoeDSA(), qwen3Next(), qwen35(), qwen35MoE(),
		lfm2(), lfm2MoE(), graniteHybrid(), nemotronH(),
	}
}

// Names lists the families, sorted.
func Names() []string {
	var names []string
	for _, f := range families() {
		names = append(names, f.name)
	}
	slices.Sort(names)
	return names
}

// UnknownError is the error for a model of no family that this package knows.
type UnknownError struct {
	Architecture, ModelType string
}

func (e *UnknownError) Error() string {
	name := e.Architecture
	if name == "" {
		name = e.ModelType
	}
	if name == "" {
		return "config names no architecture"
	}
	names := Names()
	return fmt.Sprintf("architecture %.80q is not one that is known: want one of %d families, from %s to %s", name, len(names), names[0], names[len(names)-1])
}

// Hint says where they are named.
func (e *UnknownError) Hint() string { return "lutq help eval-ppl names the families" }

// Read reads the description of the model in a folder, or of a config.json; see [Describe].
func Read(path string, has func(tensor string) bool) (*Decoder, error) {
	if info, err := os.Stat(path); err == nil && info.IsDir() {
		path = filepath.Join(path, configName)
	}
	text, err := input.ReadFile(path, input.Config)
	if err != nil {
		return nil, err
	}
	d, err := Describe(text, has)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return d, nil
}

// Folder is a model that hands out the files beside its weights.
type Folder interface {
	Dir() string
	File(name string, kind input.Kind) ([]byte, error)
}

// ReadFrom reads the description of the model in a folder that is open; see [Describe].
func ReadFrom(f Folder, has func(tensor string) bool) (*Decoder, error) {
	text, err := f.File(configName, input.Config)
	if err != nil {
		return nil, err
	}
	d, err := Describe(text, has)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", filepath.Join(f.Dir(), configName), err)
	}
	return d, nil
}

const configName = "config.json"

// Describe makes the description of a model of its config.json. has reports
// whether the checkpoint has a tensor, for families whose models are stored in
// more than one way; nil is for a config without a checkpoint, which is taken
// to be stored as its family mostly is.
//
// A model of no known family gives an [UnknownError]. Any other error names
// the key whose value is missing, makes no sense or is not supported.
func Describe(config []byte, has func(tensor string) bool) (*Decoder, error) {
	outer, err := readFields(config)
	if err != nil {
		return nil, err
	}
	in, nested, err := textConfig(outer)
	if err != nil {
		return nil, err
	}
	arch, modelType := outer.architecture(), textType(outer, in, nested)
	known := arch
	if nested {
		known = in.architecture()
	}
	f, ok := find(known, modelType)
	if !ok {
		if modelType == "" {
			modelType = outer.text("model_type", "")
		}
		return nil, &UnknownError{arch, modelType}
	}
	_, several := multis()[outer.text("model_type", "")]
	b := &builder{
		fields: in, hasTensor: has, modes: nested || several, nested: nested,
		d: &Decoder{Family: f.name, Architecture: arch, ModelType: modelType, EmbedScale: 1, LogitScale: 1, roles: make(map[string]Role)},
	}
	b.names()
	b.tie(outer)
	f.describe(b)
	b.tokens(outer)
	b.d.DType = in.text("dtype", in.text("torch_dtype", outer.text("dtype", outer.text("torch_dtype", ""))))
	for _, from := range []*fields{outer, in} {
		if b.d.Quantization == nil {
			b.d.Quantization = from.object("quantization_config")
		}
	}
	for _, from := range []*fields{in, outer} {
		if from.err != nil {
			return nil, from.err
		}
	}
	return b.d, nil
}

// find returns the family of a model: by its type, as transformers does, whatever class of that type wrote it, or where
// that is not known by its architecture.
func find(arch, modelType string) (family, bool) {
	for _, f := range families() {
		if slices.Contains(f.modelTypes, modelType) {
			return f, true
		}
	}
	for _, f := range families() {
		if slices.Contains(f.architectures, arch) {
			return f, true
		}
	}
	return family{}, false
}
