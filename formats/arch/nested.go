package arch

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// TextKeys returns the keys under which the config of a model of several modes has that of its language model, or of a part that has
// it.
func TextKeys() []string {
	return []string{"text_config", "llm_config", "language_config", "thinker_config"}
}

// textConfig returns the part of a config that describes the language model, and whether that is not all of it.
func textConfig(outer *fields) (in *fields, nested bool, err error) {
	in = outer
	// A thinker_config has a text_config of its own.
	for range 2 {
		for _, key := range TextKeys() {
			if !in.has(key) {
				continue
			}
			inner, err := readFields(in.values[key])
			if err != nil {
				return nil, false, fmt.Errorf("%s: %w", key, err)
			}
			in, nested = inner, true
			break
		}
	}
	return in, nested, nil
}

// multi is a model type of several modes whose language model is of a family.
type multi struct {
	text string // the type of its language model where that names none
	tied bool   // by default
}

// multis lists them by model type, as the config classes of transformers 5.24 have it.
func multis() map[string]multi {
	return map[string]multi{
		"llava": {"llama", false}, "llava_next": {"llama", false}, "llava_next_video": {"llama", false}, "vipllava": {"llama", false},
		"video_llava": {"llama", false}, "idefics3": {"llama", false}, "smolvlm": {"llama", false}, "perception_lm": {"llama", false},
		"voxtral": {"llama", false}, "deepseek_vl": {"llama", true}, "deepseek_vl_hybrid": {"llama", true}, "janus": {"llama", true},
		"glmasr":   {"llama", true},
		"llama4":   {"llama4_text", false},
		"mistral3": {"mistral", true}, "idefics2": {"mistral", false},
		"llava_onevision": {"qwen2", false}, "internvl": {"qwen2", true}, "qwen2_audio": {"qwen2", false}, "audioflamingo3": {"qwen2", false},
		"got_ocr2": {"qwen2", true}, "ovis2": {"qwen2", true}, "fast_vlm": {"qwen2", false}, "video_llama_3": {"qwen2", false}, "vibevoice": {"qwen2", false},
		"qwen2_vl": {"qwen2_vl_text", false}, "qwen2_5_vl": {"qwen2_5_vl_text", false}, "qwen2_5_omni_thinker": {"qwen2_5_omni_text", false},
		"qwen3_vl": {"qwen3_vl_text", false}, "qianfan_ocr": {"qwen3", false}, "lighton_ocr": {"qwen3", true}, "qwen3_asr": {"qwen3", true},
		"qwen3_5": {"qwen3_5_text", false}, "qwen3_5_moe": {"qwen3_5_moe_text", false},
		"kimi_k25": {"deepseek_v3", true},
		"gemma3":   {"gemma3_text", true}, "gemma4": {"gemma4_text", true}, "shieldgemma2": {"gemma3_text", true},
	}
}

// textType returns the type of the language model of a config.
func textType(outer, in *fields, nested bool) string {
	own := outer.text("model_type", "")
	if !nested {
		return own
	}
	if t := in.text("model_type", ""); t != "" {
		return t
	}
	if of := multis()[own].text; of != "" {
		return of
	}
	// Code that comes with a model may go by what is in there alone.
	if in.architecture() != "" {
		return ""
	}
	return own
}

// place is where the modules of a language model and its head are in a model.
type place struct{ root, head string }

// places lists where language models are: on their own, or without a head, and in models of several modes, as
// versions of transformers and other programs name them.
func places(modes bool) []place {
	alone := []place{{"model.", "lm_head"}, {"", "lm_head"}}
	if !modes {
		return alone
	}
	return append([]place{
		{"language_model.model.", "language_model.lm_head"},
		{"model.language_model.", "lm_head"},
		{"model.text_model.", "lm_head"},
		{"thinker.model.", "thinker.lm_head"},
		{"llm.model.", "llm.lm_head"},
		{"language_model.", "lm_head"},
	}, alone...)
}

// Within reports whether a checkpoint has any of the decoder's matrices, which tells whether its names are the description's.
func (d *Decoder) Within(has func(tensor string) bool) bool {
	return has(d.Embed+".weight") || has(d.Head.Stored.Tensor) || slices.ContainsFunc(d.Stored(), func(s *Stored) bool { return has(s.Tensor) })
}

// Outside reports whether a tensor is of another part of a model of several modes than its language model, such as the tower
// that sees: by where the language model's modules are.
func (d *Decoder) Outside(tensor string) bool {
	return d.roles[tensor] == Other && !d.Further(tensor) && (d.modes && !strings.HasPrefix(tensor, d.root) || OutsideByName(tensor))
}

// Further reports whether a tensor is of layers that predict tokens behind the next one (multi-token prediction), which no step of
// the model passes: by its name, or as a layer behind the last one.
func (d *Decoder) Further(tensor string) bool {
	if d.roles[tensor] != Other {
		return false
	}
	if rest, ok := strings.CutPrefix(tensor, d.root+"layers."); ok {
		number, _, _ := strings.Cut(rest, ".")
		if n, err := strconv.Atoi(number); err == nil && n >= len(d.Blocks) {
			return true
		}
	}
	return FurtherByName(tensor)
}
