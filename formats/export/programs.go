package export

import (
	"fmt"
	"slices"
	"strings"
)

// program is what a program opens, the first for most models.
type program struct {
	names []string // in lower case
	shown string
	opens []string
	note  string // of the first
}

// programs lists those that people name where a target is wanted.
func programs() []program {
	return []program{
		{names: []string{"llama.cpp", "llama-cpp", "llamacpp", "ollama", "lmstudio", "lm-studio", "koboldcpp"}, opens: []string{"gguf"}},
		{names: []string{"compressed-tensors", "compressed_tensors", "llm-compressor", "llmcompressor"}, opens: []string{"ct"}},
		{names: []string{"bitsandbytes"}, opens: []string{"bnb"}},
		{names: []string{"gptqmodel", "autogptq", "auto-gptq"}, opens: []string{"gptq"}},
		{names: []string{"autoawq", "auto-awq"}, opens: []string{"awq"}},
		{names: []string{"mlx-lm", "mlx_lm"}, opens: []string{"mlx"}},
		{names: []string{"exllamav3", "exllama", "tabbyapi"}, opens: []string{"exl3"}},
		{names: []string{"vllm"}, shown: "vLLM", opens: []string{"ct", "gptq", "awq", "nvfp4", "mxfp4"}, note: "of 4 bits"},
		{names: []string{"transformers", "hf", "huggingface"}, shown: "transformers", opens: []string{"ct", "bnb", "nvfp4", "mxfp4"}},
	}
}

// Meant returns the target that the name of a program stands for, or one in other letters. "" is for a name that is not known. An
// error says what a program opens that opens several.
func Meant(name string) (string, error) {
	name = strings.ToLower(name)
	if slices.Contains(Names(), name) {
		return name, nil
	}
	for _, p := range programs() {
		switch {
		case !slices.Contains(p.names, name):
		case len(p.opens) == 1:
			return p.opens[0], nil
		default:
			last, first := len(p.opens)-1, p.opens[0]
			if p.note != "" {
				first += " " + p.note
			}
			return "", fmt.Errorf("%s opens several: want %s for most models, or %s or %s", p.shown, first, strings.Join(p.opens[1:last], ", "), p.opens[last])
		}
	}
	return "", nil
}
