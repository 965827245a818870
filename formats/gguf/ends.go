package gguf

import "slices"

// endNames lists the tokens that llama.cpp ends a text at wherever they are in a vocabulary, as llama_vocab::impl::load has
// them, and turnNames those of them that it takes for the end of a turn.
func endNames() []string {
	return append(turnNames(), "<|return|>", "<|call|>", "<|flush|>", "<|calls|>", "</s>", "<|eom_id|>", "[EOS]", "<eos>", "<turn|>", "<|tool_response>", "[e~[")
}

func turnNames() []string {
	return []string{
		"<|eot_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>", "<|endoftext|>", "<|end_of_text|>", "<EOT>", "_<EOT>", "[EOT]",
		"<｜end▁of▁sentence｜>", "<end_of_utterance>",
	}
}

// named lists the tokens that llama.cpp ends a text at for what they are called. Where tools are called by some of them, it
// makes exceptions.
func named(tokens []string) []int {
	names := endNames()
	has := func(all ...string) bool {
		for _, name := range all {
			if !slices.Contains(tokens, name) {
				return false
			}
		}
		return true
	}
	without := func(name string) { names = slices.DeleteFunc(names, func(n string) bool { return n == name }) }
	if has("<|return|>", "<|call|>") || has("<|return|>", "<|calls|>") || has("<|call|>", "<|flush|>") || has("<|calls|>", "<|flush|>") {
		without("<|end|>")
	}
	if has("<|tool_response>") {
		without("</s>")
	}
	var ids []int
	for id, token := range tokens {
		if slices.Contains(names, token) {
			ids = append(ids, id)
		}
	}
	return ids
}

// ends returns the tokens that end a text: those that the file lists, or where lutq did not write it those that llama.cpp
// takes, but for such as part files of code.
func (f *File) ends() []int {
	tokens, _ := f.Meta["tokenizer.ggml.tokens"].([]string)
	if own, err := f.Meta.ints(ownEnds); err == nil && f.Meta[ownEnds] != nil {
		var ends []int
		for _, id := range own {
			if id >= 0 && id < int64(len(tokens)) {
				ends = append(ends, int(id))
			}
		}
		return ends
	}
	var ends []int
	for _, key := range []string{"eos", endOfTurn, endOfMessage} {
		if id, ok := f.tokenID(key); ok && !slices.Contains(ends, id) {
			ends = append(ends, id)
		}
	}
	for _, id := range named(tokens) {
		if !slices.Contains(ends, id) {
			ends = append(ends, id)
		}
	}
	return ends
}

// endKVs has the pairs for the tokens that end a text, of which eos, unless nil, is the end of texts' own. llama.cpp has a
// place for two beside it, and needs none for those that it knows by name. It also returns those that have no place, and those
// that llama.cpp ends a text at where the model does not.
func endKVs(tokens []string, eos *int, ends []int) (kvs []KV, lost, more []int) {
	known := named(tokens)
	if eos != nil {
		known = append(known, *eos)
		if !slices.Contains(ends, *eos) {
			more = append(more, *eos)
		}
	}
	for _, id := range named(tokens) {
		if !slices.Contains(ends, id) && !slices.Contains(more, id) {
			more = append(more, id)
		}
	}
	free := []string{endOfTurn, endOfMessage}
	for _, id := range ends {
		if slices.Contains(known, id) {
			continue
		}
		if len(free) == 0 {
			lost = append(lost, id)
			continue
		}
		kvs = append(kvs, KV{idKey(free[0]), uint32(id)})
		free = free[1:]
	}
	if len(lost) > 0 || len(more) > 0 {
		list := make([]int32, len(ends))
		for i, id := range ends {
			list[i] = int32(id)
		}
		kvs = append(kvs, KV{ownEnds, list})
	}
	return kvs, lost, more
}

// idKey is the key of the id of a special token.
func idKey(name string) string { return "tokenizer.ggml." + name + "_token_id" }
