#!/usr/bin/env python3
"""Writes a synthetic checkpoint shaped like Llama-3-8B, or like Qwen3-30B-A3B, which has 128 experts a layer, for
trying large inputs: quantizing, resuming, memory limits, learned scales. It needs numpy and little memory, and
writes on all processors as fast as the disk takes it.

    scripts/synthetic.py OUTDIR --gigabytes 16      32 layers, the size of the original
    scripts/synthetic.py OUTDIR --gigabytes 1       fewer layers: the first ones of the same model
    scripts/synthetic.py OUTDIR --like qwen3-30b-a3b --gigabytes 8    6 of 48 layers

Weights are bfloat16, normal with a deviation around 0.02, as such models are initialized, so that activations stay
in range and the loss on any text is that of guessing, about 12.6 nats. A pool of normals is drawn once and kept in
several spreads; each piece of a tensor is a stretch of one of them from a random start, under a random sign: rows
differ, nothing is constant, and the same seed gives the same bytes. Norm weights are near 1.

The tokenizer is one of bytes, with Llama-3's BOS: a token for each byte of a text, so that any text of 262 kB holds
128 windows of 2048 tokens. It uses 257 of the 128256 tokens.
"""

import argparse
import json
import os
import struct
import sys
import time
import zlib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np


@dataclass(frozen=True)
class Model:
    hidden: int
    intermediate: int  # of the MLP, or of each expert
    heads: int
    kv_heads: int
    vocab: int
    experts: int = 0
    chosen: int = 0  # experts of a token
    head_dim: int = 128


MODELS = {
    "llama-3-8b": Model(4096, 14336, 32, 8, 128256),
    "qwen3-30b-a3b": Model(2048, 768, 32, 4, 151936, experts=128, chosen=8),
}
BOS = 128000
POOL = 1 << 23  # values; 16 MB for each of the spreads
SPREADS = (0.7, 0.85, 1.0, 1.2, 1.4)
PIECE = 1 << 20  # values of a tensor that share a start, a sign and a spread

Shape = tuple[int, ...]


def shapes(m: Model, layers: int) -> dict[str, Shape]:
    out: dict[str, Shape] = {"model.embed_tokens.weight": (m.vocab, m.hidden)}
    for i in range(layers):
        p = f"model.layers.{i}"
        out |= {
            f"{p}.input_layernorm.weight": (m.hidden,),
            f"{p}.self_attn.q_proj.weight": (m.heads * m.head_dim, m.hidden),
            f"{p}.self_attn.k_proj.weight": (m.kv_heads * m.head_dim, m.hidden),
            f"{p}.self_attn.v_proj.weight": (m.kv_heads * m.head_dim, m.hidden),
            f"{p}.self_attn.o_proj.weight": (m.hidden, m.heads * m.head_dim),
            f"{p}.post_attention_layernorm.weight": (m.hidden,),
        }
        if m.experts:
            out |= {f"{p}.self_attn.{n}_norm.weight": (m.head_dim,) for n in "qk"}
            out[f"{p}.mlp.gate.weight"] = (m.experts, m.hidden)
        for mlp in [f"{p}.mlp.experts.{e}" for e in range(m.experts)] or [f"{p}.mlp"]:
            out |= {
                f"{mlp}.gate_proj.weight": (m.intermediate, m.hidden),
                f"{mlp}.up_proj.weight": (m.intermediate, m.hidden),
                f"{mlp}.down_proj.weight": (m.hidden, m.intermediate),
            }
    return out | {"model.norm.weight": (m.hidden,), "lm_head.weight": (m.vocab, m.hidden)}


def size(shape: Shape) -> int:
    return 2 * int(np.prod(shape))


def layers_for(m: Model, gigabytes: float) -> int:
    """The layers that come closest to a size in 10^9 bytes; at least 1."""
    outside = sum(map(size, shapes(m, 0).values()))
    layer = sum(map(size, shapes(m, 1).values())) - outside
    return max(1, round((gigabytes * 1e9 - outside) / layer))


def to_bf16(x: np.ndarray) -> np.ndarray:
    bits = x.astype(np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype("<u2")


class Source:
    """Random bfloat16 bits: of a tensor by its name, whatever is drawn before or beside it."""

    def __init__(self, seed: int):
        self.seed = seed
        normals = np.random.default_rng(seed).standard_normal(POOL, np.float32) * np.float32(0.02)
        self.pools = [to_bf16(normals * np.float32(s)) for s in SPREADS]

    def pieces(self, name: str, shape: Shape):
        """Yields the data of a tensor, in a buffer that the next piece overwrites."""
        rng = np.random.default_rng([self.seed, zlib.crc32(name.encode())])
        left = int(np.prod(shape))
        if len(shape) == 1:
            yield to_bf16(1 + 0.1 * rng.standard_normal(left))
            return
        buffer = np.empty(PIECE, "<u2")
        while left:
            n = min(left, PIECE)
            pool = self.pools[rng.integers(len(self.pools))]
            start = rng.integers(POOL - n)
            sign = np.uint16(rng.integers(2) << 15)
            yield np.bitwise_xor(pool[start : start + n], sign, out=buffer[:n])
            left -= n


def write_tensor(file: int, offset: int, source: Source, name: str, shape: Shape) -> None:
    for piece in source.pieces(name, shape):
        data = memoryview(piece).cast("B")
        while data:
            n = os.pwrite(file, data, offset)
            data, offset = data[n:], offset + n


def write(out: Path, tensors: dict[str, Shape], shard_bytes: int, seed: int, threads: int) -> int:
    shards: list[dict[str, Shape]] = [{}]
    room = shard_bytes
    for name, shape in tensors.items():
        if shards[-1] and size(shape) > room:
            shards.append({})
            room = shard_bytes
        shards[-1][name] = shape
        room -= size(shape)

    source, index, total = Source(seed), {}, 0
    with ThreadPoolExecutor(threads) as pool:  # numpy and pwrite work side by side
        for i, shard in enumerate(shards, 1):
            file = f"model-{i:05d}-of-{len(shards):05d}.safetensors"
            header, offset = {"__metadata__": {"format": "pt"}}, 0
            for name, shape in shard.items():
                header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [offset, offset + size(shape)]}
                offset += size(shape)
                index[name] = file
            text = json.dumps(header, separators=(",", ":")).encode()
            text += b" " * (-len(text) % 8)
            with (out / file).open("wb") as f:
                f.write(struct.pack("<Q", len(text)) + text)
                f.flush()
                start = 8 + len(text)
                jobs = [
                    pool.submit(write_tensor, f.fileno(), start + header[name]["data_offsets"][0], source, name, shape)
                    for name, shape in shard.items()
                ]
                for job in jobs:
                    job.result()
            total += offset
            print(f"{file}: {offset / 1e9:.2f} GB", file=sys.stderr)
    metadata = {"metadata": {"total_size": total}, "weight_map": index}
    (out / "model.safetensors.index.json").write_text(json.dumps(metadata, indent=2) + "\n", encoding="utf-8")
    return total


def tokenizer() -> dict:
    """A byte-level BPE without merges, its bytes spelled as GPT-2 does. BOS is in its vocabulary: elsewhere it would be token 256."""
    printable = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [b for b in range(256) if b not in printable]
    spelling = {b: chr(b) for b in printable} | {b: chr(256 + i) for i, b in enumerate(others)}
    bos = "<|begin_of_text|>"
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {"id": BOS, "content": bos, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
        ],
        "normalizer": None,
        "pre_tokenizer": byte_level,
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": bos, "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {bos: {"id": bos, "ids": [BOS], "tokens": [bos]}},
        },
        "decoder": byte_level,
        "model": {
            "type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None, "end_of_word_suffix": None,
            "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
            "vocab": {spelling[b]: b for b in range(256)} | {bos: BOS}, "merges": [],
        },
    }  # fmt: skip


def config(m: Model, layers: int) -> dict:
    c = {
        "architectures": ["LlamaForCausalLM"],
        "attention_bias": False,
        "bos_token_id": BOS,
        "dtype": "bfloat16",
        "eos_token_id": 128001,
        "head_dim": m.head_dim,
        "hidden_act": "silu",
        "hidden_size": m.hidden,
        "intermediate_size": m.intermediate,
        "max_position_embeddings": 8192,
        "mlp_bias": False,
        "model_type": "llama",
        "num_attention_heads": m.heads,
        "num_hidden_layers": layers,
        "num_key_value_heads": m.kv_heads,
        "rms_norm_eps": 1e-05,
        "rope_parameters": {"rope_theta": 500000.0, "rope_type": "default"},
        "tie_word_embeddings": False,
        "vocab_size": m.vocab,
    }
    if m.experts:
        c |= {
            "architectures": ["Qwen3MoeForCausalLM"],
            "decoder_sparse_step": 1,
            "mlp_only_layers": [],
            "model_type": "qwen3_moe",
            "moe_intermediate_size": m.intermediate,
            "norm_topk_prob": True,
            "num_experts": m.experts,
            "num_experts_per_tok": m.chosen,
        }
    return c


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("outdir", type=Path)
    p.add_argument("--like", choices=MODELS, default="llama-3-8b", help="model whose shape it has (default llama-3-8b)")
    p.add_argument("--gigabytes", type=float, default=16, help="about this size, in 10^9 bytes (default 16: 32 layers)")
    p.add_argument("--shard", type=float, default=5, help="largest shard in 10^9 bytes (default 5)")
    p.add_argument("--seed", type=int, default=0)
    p.add_argument("--threads", type=int, default=min(os.cpu_count() or 1, 16), help="tensors written at a time (default one a processor)")
    args = p.parse_args()

    model = MODELS[args.like]
    layers = layers_for(model, args.gigabytes)
    args.outdir.mkdir(parents=True, exist_ok=True)
    start = time.perf_counter()
    total = write(args.outdir, shapes(model, layers), int(args.shard * 1e9), args.seed, args.threads)
    (args.outdir / "config.json").write_text(json.dumps(config(model, layers), indent=2) + "\n", encoding="utf-8")
    (args.outdir / "tokenizer.json").write_text(json.dumps(tokenizer(), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    took = time.perf_counter() - start
    print(f"{args.outdir}: {layers} layers, {total / 1e9:.2f} GB in {took:.0f} s ({total / 1e9 / took:.2f} GB/s)")


if __name__ == "__main__":
    main()
