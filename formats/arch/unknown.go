package arch

import (
	"regexp"
	"strings"
)

// inBlock matches names of what belongs to a decoder's layers.
var inBlock = regexp.MustCompile(`(^|\.)(layers|h|blocks)\.\d+\.`)

// outside matches names of what is in another part of a model of several modes than its language model.
var outside = regexp.MustCompile(`(^|\.)(vision\w*|visual\w*|vit|video_\w+|image_\w+|img_\w+|audio_\w+|speech_\w+|sound_\w+|embed_vision|embed_audio|` +
	`multi_modal_projector|mm_projector|projector|modality_projection|mlp1|connector|perceiver\w*|resampler|qformer|aligner|vpm|apm|sam_model|vqmodel|gen_\w+|` +
	`talker|token2wav|code2wav|tts|vocoder)\.`)

// OutsideByName is [Decoder.Outside] by a name alone.
func OutsideByName(tensor string) bool { return outside.MatchString(tensor) }

// further matches names of what predicts tokens behind the next one: layers that take part in no step of the model itself.
var further = regexp.MustCompile(`(^|\.)(mtp\w*|nextn\w*|eagle\w*|medusa\w*)\.`)

// FurtherByName is [Decoder.Further] by a name alone.
func FurtherByName(tensor string) bool { return further.MatchString(tensor) }

// Of a part that no description covers: names of modules that are no linear layers, or are so small or so far in front that
// nothing is gained by fewer bits, and of what such modules lie in.
var (
	unlikeLinear = regexp.MustCompile(`norm|^ln(_|\d|$)|^gate$|^router$|_gate$|position|pos_emb|^conv|^patch|^embed(ding)?s?(_tokens|_positions)|embed(ding)?s?$|^wte$|^wpe$|head$|table$|^codebook`)
	within       = regexp.MustCompile(`(^|\.)(patch_embed\w*|patchify|embeddings|subsample\w*|conv\w*|shared_head|router)\.`)
)

// LinearByName reports whether a matrix of a part that no description covers, such as a tower that sees, looks like the weight of
// a linear layer.
func LinearByName(tensor string) bool {
	layer, ok := strings.CutSuffix(tensor, ".weight")
	return ok && !within.MatchString(layer) && !unlikeLinear.MatchString(layer[strings.LastIndexByte(layer, '.')+1:])
}

// ByName says what a matrix is for by its name alone. It is the rule for models of
// families that this package does not know: a ".weight" below a numbered layer is a linear layer,
// unless it is called a norm, a gate or a router, or is in a part that sees or hears; embeddings and heads are those that are called so.
func ByName(tensor string) Role {
	layer, ok := strings.CutSuffix(tensor, ".weight")
	module := layer[strings.LastIndexByte(layer, '.')+1:]
	switch {
	case ok && strings.Contains(module, "norm"):
		return NormWeight
	case module == "gate" || module == "router" || strings.HasSuffix(module, "_gate"):
		return RouterWeight
	case !ok || OutsideByName(tensor):
		return Other
	case inBlock.MatchString(tensor):
		return LinearWeight
	case module == "lm_head" || module == "embed_out":
		return HeadWeight
	case strings.Contains(module, "embed") || module == "wte" || module == "wpe":
		return EmbeddingWeight
	}
	return Other
}

// FuseByName is [Linear].Fuse by the name of a layer alone.
func FuseByName(layer string) string {
	dot := strings.LastIndexByte(layer, '.')
	parent, module := layer[:max(dot, 0)], layer[dot+1:]
	switch module {
	case "q_proj", "k_proj", "v_proj":
		return parent + ".qkv"
	case "gate_proj", "up_proj":
		return parent + ".gate_up"
	}
	return ""
}
