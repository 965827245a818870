package arch

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

// TestGemma4 reads sizes of heads as checkpoints were published, and as transformers 5.24 writes them.
func TestGemma4(t *testing.T) {
	const sizes = `"model_type": "gemma4_text", "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 4, "num_attention_heads": 4,
		"num_key_value_heads": 2, "head_dim": 16, "vocab_size": 64, "hidden_size_per_layer_input": 0,
		"layer_types": ["sliding_attention", "full_attention", "sliding_attention", "full_attention"]`
	for _, test := range []struct {
		name, config string
		dims, kvs    []int
		from         []int // layer that each attends to
		turning      int   // pairs of a full layer
		err          string
	}{
		{
			name: "published", config: `"global_head_dim": 32, "num_global_key_value_heads": 1, "attention_k_eq_v": true`,
			dims: []int{16, 32, 16, 32}, kvs: []int{2, 1, 2, 1}, from: []int{0, 1, 2, 3}, turning: 4,
		},
		{
			name: "global keys of no equal values", config: `"global_head_dim": 32, "num_global_key_value_heads": 1`,
			dims: []int{16, 32, 16, 32}, kvs: []int{2, 2, 2, 2}, from: []int{0, 1, 2, 3}, turning: 4,
		},
		{
			name: "by layer", config: `"per_layer_config": {"1": {"head_dim": 48, "num_key_value_heads": 4}, "3": {"head_dim": 48, "num_key_value_heads": 4}},
				"rope_parameters": {"full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.5, "rope_theta": 1e6},
				"sliding_attention": {"rope_type": "default", "rope_theta": 1e4}}`,
			dims: []int{16, 48, 16, 48}, kvs: []int{2, 4, 2, 4}, from: []int{0, 1, 2, 3}, turning: 12,
		},
		{
			name: "shared", config: `"global_head_dim": 32, "num_kv_shared_layers": 2`,
			dims: []int{16, 32, 16, 32}, kvs: []int{2, 2, 2, 2}, from: []int{0, 1, 0, 1}, turning: 4,
		},
		{name: "nothing to share", config: `"num_kv_shared_layers": 3`, err: "num_kv_shared_layers: 3: no layer before has keys and values for layer 1"},
		{name: "all shared", config: `"num_kv_shared_layers": 4`, err: "num_kv_shared_layers: 4 of 4 layers"},
		{name: "looks ahead", config: `"use_bidirectional_attention": "all"`, err: "use_bidirectional_attention"},
		{name: "odd heads", config: `"global_head_dim": 31`, err: "num_attention_heads: layer 1"},
		{name: "unlike heads", config: `"per_layer_config": {"1": {"head_dim": 32}}`, err: "per_layer_config: layer 3: heads of 16 where others of its kind have 32"},
		{name: "unlike windows", config: `"per_layer_config": {"1": {"sliding_window": 3}}`, err: "per_layer_config: sliding_window: of a single layer is not supported"},
		{name: "few tokens", config: `"hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": 63`, err: "vocab_size_per_layer_input: 63 tokens of 64"},
		{name: "turns too far", config: `"rope_parameters": {"full_attention": {"rope_type": "proportional", "partial_rotary_factor": 1.5}}`, err: "partial_rotary_factor: want at most 1"},
		{name: "experts without a number", config: `"enable_moe_block": true, "top_k_experts": 2, "moe_intermediate_size": 8`, err: "num_experts: missing"},
	} {
		t.Run(test.name, func(t *testing.T) {
			// A key may not come twice.
			all := sizes
			if strings.Contains(test.config, "hidden_size_per_layer_input") {
				all = strings.Replace(all, `"hidden_size_per_layer_input": 0,`, "", 1)
			}
			d, err := Describe(fmt.Appendf(nil, `{%s, %s}`, all, test.config), nil)
			if test.err != "" {
				if err == nil || !strings.Contains(err.Error(), test.err) {
					t.Fatalf("error %v: want one with %q", err, test.err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			var dims, kvs, from []int
			for i := range d.Blocks {
				a := d.Blocks[i].Attn()
				dims, kvs = append(dims, a.Dim), append(kvs, a.KVHeads)
				from = append(from, slices.IndexFunc(d.Blocks, func(b Block) bool { return b.Attn() == a.Source() }))
			}
			if !slices.Equal(dims, test.dims) || !slices.Equal(kvs, test.kvs) || !slices.Equal(from, test.from) {
				t.Errorf("heads of %v, %v keys, of layers %v: want %v, %v, %v", dims, kvs, from, test.dims, test.kvs, test.from)
			}
			if r := d.Blocks[1].Attn().Rope; r.Turning != test.turning || r.Dim != test.dims[1] {
				t.Errorf("%d of %d pairs turn: want %d of %d", r.Turning, r.Dim/2, test.turning, test.dims[1]/2)
			}
		})
	}
}
