#!/usr/bin/env python3
"""Writes a synthetic checkpoint shaped like Llama-3-8B, for trying large inputs: quantizing,
resuming, memory limits. It needs numpy and little memory, and writes as fast as the disk takes it.

    scripts/synthetic.py OUTDIR --gigabytes 16      32 layers, the size of the original
    scripts/synthetic.py OUTDIR --gigabytes 1       fewer layers: the first ones of the same model

Weights are bfloat16, normal with a deviation around 0.02. A pool of normals is drawn once and kept in
several spreads; each piece of a tensor is a stretch of one of them from a random start, under a random
sign: rows differ, nothing is constant, and the same seed gives the same bytes. Norm weights are near 1.
There is no tokenizer: the folder is for work on weights.
"""

import argparse
import json
import struct
import sys
import time
from pathlib import Path

import numpy as np

HIDDEN, INTERMEDIATE, HEADS, KV_HEADS, HEAD_DIM, VOCAB, LAYERS = 4096, 14336, 32, 8, 128, 128256, 32
POOL = 1 << 23  # values; 16 MB for each of the spreads
SPREADS = (0.7, 0.85, 1.0, 1.2, 1.4)
PIECE = 1 << 20  # values of a tensor that share a start, a sign and a spread

Shape = tuple[int, ...]


def shapes(layers: int) -> dict[str, Shape]:
    out: dict[str, Shape] = {"model.embed_tokens.weight": (VOCAB, HIDDEN)}
    for i in range(layers):
        p = f"model.layers.{i}"
        out |= {
            f"{p}.input_layernorm.weight": (HIDDEN,),
            f"{p}.self_attn.q_proj.weight": (HEADS * HEAD_DIM, HIDDEN),
            f"{p}.self_attn.k_proj.weight": (KV_HEADS * HEAD_DIM, HIDDEN),
            f"{p}.self_attn.v_proj.weight": (KV_HEADS * HEAD_DIM, HIDDEN),
            f"{p}.self_attn.o_proj.weight": (HIDDEN, HEADS * HEAD_DIM),
            f"{p}.post_attention_layernorm.weight": (HIDDEN,),
            f"{p}.mlp.gate_proj.weight": (INTERMEDIATE, HIDDEN),
            f"{p}.mlp.up_proj.weight": (INTERMEDIATE, HIDDEN),
            f"{p}.mlp.down_proj.weight": (HIDDEN, INTERMEDIATE),
        }
    return out | {"model.norm.weight": (HIDDEN,), "lm_head.weight": (VOCAB, HIDDEN)}


def size(shape: Shape) -> int:
    return 2 * int(np.prod(shape))


def layers_for(gigabytes: float) -> int:
    """The layers that come closest to a size in 10^9 bytes; at least 1."""
    outside = sum(map(size, shapes(0).values()))
    layer = sum(map(size, shapes(1).values())) - outside
    return max(1, round((gigabytes * 1e9 - outside) / layer))


def to_bf16(x: np.ndarray) -> np.ndarray:
    bits = x.astype(np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype("<u2")


class Source:
    """Random bfloat16 bits."""

    def __init__(self, seed: int):
        self.rng = np.random.default_rng(seed)
        normals = self.rng.standard_normal(POOL, np.float32) * np.float32(0.02)
        self.pools = [to_bf16(normals * np.float32(s)) for s in SPREADS]
        self.buffer = np.empty(PIECE, "<u2")

    def pieces(self, shape: Shape):
        """Yields the data of a tensor, in buffers that the next piece overwrites."""
        left = int(np.prod(shape))
        if len(shape) == 1:
            yield to_bf16(1 + 0.1 * self.rng.standard_normal(left))
            return
        while left:
            n = min(left, PIECE)
            pool = self.pools[self.rng.integers(len(self.pools))]
            start = self.rng.integers(POOL - n)
            sign = np.uint16(self.rng.integers(2) << 15)
            yield np.bitwise_xor(pool[start : start + n], sign, out=self.buffer[:n])
            left -= n


def write(out: Path, tensors: dict[str, Shape], shard_bytes: int, seed: int) -> int:
    shards: list[dict[str, Shape]] = [{}]
    room = shard_bytes
    for name, shape in tensors.items():
        if shards[-1] and size(shape) > room:
            shards.append({})
            room = shard_bytes
        shards[-1][name] = shape
        room -= size(shape)

    source, index, total = Source(seed), {}, 0
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
            for shape in shard.values():
                for piece in source.pieces(shape):
                    f.write(piece)
        total += offset
        print(f"{file}: {offset / 1e9:.2f} GB", file=sys.stderr)
    metadata = {"metadata": {"total_size": total}, "weight_map": index}
    (out / "model.safetensors.index.json").write_text(json.dumps(metadata, indent=2) + "\n", encoding="utf-8")
    return total


def config(layers: int) -> dict:
    return {
        "architectures": ["LlamaForCausalLM"],
        "attention_bias": False,
        "bos_token_id": 128000,
        "dtype": "bfloat16",
        "eos_token_id": 128001,
        "head_dim": HEAD_DIM,
        "hidden_act": "silu",
        "hidden_size": HIDDEN,
        "intermediate_size": INTERMEDIATE,
        "max_position_embeddings": 8192,
        "mlp_bias": False,
        "model_type": "llama",
        "num_attention_heads": HEADS,
        "num_hidden_layers": layers,
        "num_key_value_heads": KV_HEADS,
        "rms_norm_eps": 1e-05,
        "rope_parameters": {"rope_theta": 500000.0, "rope_type": "default"},
        "tie_word_embeddings": False,
        "vocab_size": VOCAB,
    }


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("outdir", type=Path)
    p.add_argument("--gigabytes", type=float, default=16, help="about this size, in 10^9 bytes (default 16: 32 layers)")
    p.add_argument("--shard", type=float, default=5, help="largest shard in 10^9 bytes (default 5)")
    p.add_argument("--seed", type=int, default=0)
    args = p.parse_args()

    layers = layers_for(args.gigabytes)
    args.outdir.mkdir(parents=True, exist_ok=True)
    start = time.perf_counter()
    total = write(args.outdir, shapes(layers), int(args.shard * 1e9), args.seed)
    (args.outdir / "config.json").write_text(json.dumps(config(layers), indent=2) + "\n", encoding="utf-8")
    took = time.perf_counter() - start
    print(f"{args.outdir}: {layers} layers, {total / 1e9:.2f} GB in {took:.0f} s ({total / 1e9 / took:.2f} GB/s)")


if __name__ == "__main__":
    main()
