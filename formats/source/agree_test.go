package source

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/lutq/lutq/formats/arch"
	"github.com/lutq/lutq/formats/hf"
	"github.com/lutq/lutq/formats/source/sourcetest"
)

// open opens the weights of a folder, which the test closes.
func open(dir string) (*hf.Checkpoint, error) {
	m, err := Open(dir, Options{})
	if err != nil {
		return nil, err
	}
	return m.Weights()
}

// llama is the config.json of a model of a vocabulary of 3 and 2 features, with more members.
func llama(more string) string {
	return `{"architectures": ["LlamaForCausalLM"], "model_type": "llama", ` + more +
		`"vocab_size": 3, "hidden_size": 2, "intermediate_size": 4, "num_hidden_layers": 1, "num_attention_heads": 1}`
}

func matrix(name string, v ...float32) sourcetest.Tensor {
	return sourcetest.Of(name, hf.F32, []int{3, 2}, v...)
}

// TestHeadWithin: the same of a language model within another, whose config.json may say it in several places.
func TestHeadWithin(t *testing.T) {
	const embed, head = "language_model.model.embed_tokens.weight", "language_model.lm_head.weight"
	for _, config := range []string{
		`{"model_type": "llava", "tie_word_embeddings": true, "text_config": LLAMA}`,
		`{"model_type": "llava", "text_config": LLAMA}`,
		`{"model_type": "internvl_chat", "llm_config": LLAMA}`,
		`{"model_type": "x", "tie_word_embeddings": true, "thinker_config": {"tie_word_embeddings": true, "text_config": LLAMA}}`,
	} {
		config = strings.ReplaceAll(config, "LLAMA", llama(`"tie_word_embeddings": true, `))
		for _, last := range []float32{6, 7} {
			c, err := open(sourcetest.Folder(t, config, matrix(embed, 1, 2, 3, 4, 5, 6), matrix(head, 1, 2, 3, 4, 5, last)))
			if err != nil {
				t.Fatal(err)
			}
			d, err := arch.ReadFrom(c, c.Has)
			if err != nil || d.Tied != (last == 6) {
				t.Errorf("%s: last number %v, tied is %v, %v", config, last, d != nil && d.Tied, err)
			}
			if err := c.Close(); err != nil {
				t.Error(err)
			}
		}
	}
}

// TestHead: what transformers 5.24 takes for the output head, which is what the config.json of the checkpoint says then.
func TestHead(t *testing.T) {
	const embed, head = "model.embed_tokens.weight", "lm_head.weight"
	numbers := matrix(embed, 1, 2, 3, 4, 5, 6)
	const yes, no = `"tie_word_embeddings": true, `, `"tie_word_embeddings": false, `
	for _, tc := range []struct {
		name, config string
		tensors      []sourcetest.Tensor
		tied         bool
		wrong        string
	}{
		{"tied", yes, []sourcetest.Tensor{numbers}, true, ""},
		{"tied, the same head", yes, []sourcetest.Tensor{numbers, matrix(head, 1, 2, 3, 4, 5, 6)}, true, ""},
		{"tied, the same head in another type", yes, []sourcetest.Tensor{numbers, sourcetest.F16(head, []int{3, 2}, 1, 2, 3, 4, 5, 6)}, true, ""},
		{"tied, another head", yes, []sourcetest.Tensor{numbers, matrix(head, 1, 2, 3, 4, 5, 7)}, false, ""},
		{"tied, a head of another shape", yes, []sourcetest.Tensor{numbers, sourcetest.Of[float32](head, hf.F32, []int{2, 2}, 1, 2, 3, 4)}, false, ""},
		{"tied, no embedding", yes, []sourcetest.Tensor{matrix(head, 1, 2, 3, 4, 5, 6)}, true, ""},
		{"not tied", no, []sourcetest.Tensor{numbers, matrix(head, 1, 2, 3, 4, 5, 6)}, false, ""},
		{"not tied, no head", no, []sourcetest.Tensor{numbers}, false, "config.json says that the output head is not the embedding (tie_word_embeddings), and there is no tensor lm_head.weight"},
		{"not said, no head", "", []sourcetest.Tensor{numbers}, false, "there is no tensor lm_head.weight"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c, err := open(sourcetest.Folder(t, llama(tc.config), tc.tensors...))
			if tc.wrong != "" {
				if err == nil || !strings.Contains(err.Error(), tc.wrong) {
					t.Fatalf("got %v: want %q", err, tc.wrong)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			d, err := arch.ReadFrom(c, c.Has)
			if err != nil || d.Tied != tc.tied {
				t.Errorf("tied is %v, %v: want %v", d != nil && d.Tied, err, tc.tied)
			}
			text, err := c.ConfigJSON()
			if err != nil || strings.Contains(string(text), no) != !tc.tied {
				t.Errorf("config.json is %s, %v", text, err)
			}
			if notes := c.Notes(); len(notes) != strings.Count(tc.config, "true")-strings.Count(fmt.Sprint(tc.tied), "true") {
				t.Errorf("notes are %q", notes)
			}
			if tc.tied == strings.Contains(tc.config, "true") && string(text) != llama(tc.config) {
				t.Errorf("config.json has become %s", text)
			}
		})
	}
}

// TestNestedHead: a model of several modes says it in two places.
func TestNestedHead(t *testing.T) {
	config := `{"architectures": ["Gemma3ForConditionalGeneration"], "model_type": "gemma3", "text_config": {"model_type": "gemma3_text", ` +
		`"vocab_size": 3, "hidden_size": 2, "intermediate_size": 4, "num_hidden_layers": 1, "num_attention_heads": 1, "num_key_value_heads": 1, "head_dim": 2}}`
	const root = "language_model.model."
	c, err := open(sourcetest.Folder(t, config, matrix(root+"embed_tokens.weight", 1, 2, 3, 4, 5, 6), matrix("language_model.lm_head.weight", 6, 5, 4, 3, 2, 1)))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	text, err := c.ConfigJSON()
	if err != nil || strings.Count(string(text), `"tie_word_embeddings": false`) != 2 {
		t.Errorf("config.json is %s, %v", text, err)
	}
	if d, err := arch.ReadFrom(c, c.Has); err != nil || d.Tied {
		t.Errorf("the head is the embedding, or %v", err)
	}
}

// TestUnnamed: tensors that config.json has no place for are zeros that change nothing, or the model is refused by all who
// open it, but not by who looks at what is stored.
func TestUnnamed(t *testing.T) {
	const tied = `"tie_word_embeddings": true, `
	vector := func(name string, v ...float32) sourcetest.Tensor {
		return sourcetest.Of(name, hf.F32, []int{len(v)}, v...)
	}
	zero := float32(0)
	for _, tc := range []struct {
		config  string
		tensor  sourcetest.Tensor
		refused bool
	}{
		{tied, vector("model.layers.0.self_attn.q_proj.bias", 0, 0), false},
		{tied, vector("model.layers.0.self_attn.q_proj.bias", 0, -zero), false},
		{tied, vector("model.layers.0.self_attn.q_proj.bias", 0, 1), true},
		{tied, vector("model.layers.0.self_attn.o_proj.bias", 0, 1), true},
		{tied, vector("model.layers.0.mlp.down_proj.bias", 0, 1), true},
		{tied, vector("lm_head.bias", 0, 0, 1), true},
		{tied, vector("lm_head.bias", 0, 0, 0), false},
		{tied, vector("model.layers.0.self_attn.q_norm.weight", 0, 0), true},
		{tied, vector("model.layers.0.self_attn.k_norm.weight", 1, 1), true},
		{tied, vector("model.layers.0.self_attn.rotary_emb.inv_freq", 1, 1), false},
		{tied + `"attention_bias": true, `, vector("model.layers.0.self_attn.q_proj.bias", 0, 1), false},
		{tied + `"mlp_bias": true, `, vector("model.layers.0.self_attn.q_proj.bias", 0, 1), true},
		{tied + `"mlp_bias": true, `, vector("model.layers.0.mlp.down_proj.bias", 0, 1), false},
	} {
		name := fmt.Sprintf("%s %v in %s", tc.tensor.Name, slices.Max(tc.tensor.Data), tc.config)
		dir := sourcetest.Folder(t, llama(tc.config), matrix("model.embed_tokens.weight", 1, 2, 3, 4, 5, 6), tc.tensor)
		c, err := open(dir)
		if unnamed, ok := errors.AsType[*UnnamedError](err); ok != tc.refused || ok && unnamed.Tensor != tc.tensor.Name {
			t.Errorf("%s: got %v: refused is to be %v", name, err, tc.refused)
		}
		if err == nil {
			c.Close()
		}
		m, err := Open(dir, Options{})
		if err != nil {
			t.Fatal(err)
		}
		if c, err = m.Stored(); err != nil {
			t.Errorf("%s: %v", name, err)
		} else {
			c.Close()
		}
	}
}
