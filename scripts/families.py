#!/usr/bin/env python3
"""Writes the golden files of model families: what transformers computes of a tiny checkpoint of each.

    scripts/families.py                 all of them, into formats/arch/archtest/testdata
    scripts/families.py --only gemma    those whose name has a match

A golden file holds no weights. transformers writes a checkpoint from a configuration; then every tensor is filled
from its name and a seed, by a function that archtest has in Go as well: numbers of at most 8 significant bits, which
bfloat16 and float16 hold exactly. The file has the config.json, the tensors' names, types and shapes, the tokens, and

    logits      of a few positions
    nll         the negative log-likelihood of every token but the first; loss is their mean
    gradients   of loss, for each linear layer W [N, K] and each of its experts: with r[n] = sum_k dloss/dW[n,k] W[n,k],
                which is the gradient by the logarithm of a scale of row n, alternating sum_n (-1)^n r[n] and |r|

and where rotary frequencies depend on the length of a text

    stepped     the logits when the text is read token by token, keys and values being kept

and there, and where a variant greedily writes

    written     what generate writes behind its first tokens, taking the most likely one: as many as asked for, each
                number of tokens giving the beginning of more

all by transformers' eager code in float64: what it casts to float32 on the way is held in float64 too, rotary
frequencies included. Its float32 run of the checkpoint on disk has to agree. Routers are kept away from ties: the
first seed is taken for which the last expert chosen leads the next by a margin at every token.
"""

import argparse
import base64
import json
import math
import os
import re
import sys
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import numpy as np
import torch
import transformers
from safetensors import safe_open
from safetensors.torch import save_file
from transformers.utils import logging

OUT = Path(__file__).parent.parent / "formats" / "arch" / "archtest" / "testdata"

WINDOW, ORIGINAL, LENGTH = 16, 32, 48  # of attention, of the context before it was extended, of the text
WRITTEN = 40  # tokens behind a prompt
GREEDY = 64  # likewise, where that is all that is asked for
MARGIN = 0.02  # of routers, in standard deviations of their logits
INDEXED = 20  # how many times less the last of many tokens that are seen may lead
FLOAT32 = 1e-5  # what transformers' float32 may differ by, relative to the largest number
BLOCK = 128  # side of a block of fp8 weights with one scale

Config = dict[str, Any]
Tensors = dict[str, torch.Tensor]
DTYPES = {
    "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "U8": torch.uint8, "F8_E4M3": torch.float8_e4m3fn,
}  # fmt: skip


@dataclass(frozen=True)
class Fill:
    """The numbers of a tensor: (base + k) 2^exp, k in [-64, 64). Of one with a span: bytes base + k, k in [0, span),
    those of F8_E4M3 with a random sign."""

    base: int = 0
    exp: int = 0
    span: int = 0


@dataclass(frozen=True)
class Entry:
    name: str
    dtype: str
    shape: tuple[int, ...]
    fill: Fill


def finalize(z: np.ndarray) -> np.ndarray:
    """The output function of splitmix64."""
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def tensor(e: Entry, seed: int) -> torch.Tensor:
    state = 0xCBF29CE484222325 + seed  # FNV-1a of the name
    for c in e.name.encode():
        state = (state ^ c) * 0x100000001B3 % 2**64
    counter = np.arange(1, math.prod(e.shape) + 1, dtype=np.uint64)
    h = finalize(np.uint64(state) + counter * np.uint64(0x9E3779B97F4A7C15))
    if e.fill.span:
        data = (h >> np.uint64(56)) * np.uint64(e.fill.span) >> np.uint64(8)
        data = data.astype(np.uint8) + np.uint8(e.fill.base)
        if e.dtype == "F8_E4M3":
            data |= (h & np.uint64(1)).astype(np.uint8) << np.uint8(7)
        return torch.from_numpy(data).view(DTYPES[e.dtype]).reshape(e.shape)
    k = (h >> np.uint64(57)).astype(np.int64) - 64 + e.fill.base
    values = torch.from_numpy(np.ldexp(k.astype(np.float64), e.fill.exp)).reshape(e.shape)
    out = values.to(DTYPES[e.dtype])
    assert torch.equal(out.double(), values), f"{e.name}: {e.fill} is not exact in {e.dtype}"
    return out


def fill(name: str, shape: tuple[int, ...], dtype: str, family: str, tied: bool) -> Fill:
    """Spreads that keep activations near 1, attention and routers away from both uniform and one-hot."""
    if dtype == "U8":  # powers of two around 2^-4, or two E2M1 numbers
        return Fill(base=121, span=4) if name.endswith("_scales") else Fill(span=256)
    if dtype == "F8_E4M3":  # up to 15, zero and subnormals included
        return Fill(span=0x58)
    if name.endswith("weight_scale_inv"):
        return Fill(base=96, exp=-12)
    if name.endswith(("q_norm.weight", "k_norm.weight")) and family.startswith("gemma4"):  # whose scores have no scale
        return Fill(base=64, exp=-8)
    if "norm" in name and name.endswith("weight") and len(shape) == 1:
        around0 = family.startswith(("gemma2", "gemma3", "qwen3_next", "qwen3_5")) and "linear_attn" not in name and "visual" not in name
        return Fill(exp=-8) if around0 else Fill(base=128, exp=-7)
    if name.endswith("A_log"):  # so that states last for some tokens
        return Fill(base=-160, exp=-6)
    if name.endswith(("layer_scalar", "router.scale", "per_expert_scale")):
        return Fill(base=96, exp=-7)
    if name.endswith("router.proj.weight"):  # which reads what has a norm of 1
        return Fill(exp=-5)
    if name.endswith("sinks"):
        return Fill(exp=-5)
    if name.endswith("bias"):
        return Fill(exp=-7)
    if "embed_tokens" in name or name.endswith("embeddings.weight"):
        return Fill(exp=-7 if tied else -6)
    if name.endswith(("router.weight", "router.layer.weight", "mlp.gate.weight", "block_sparse_moe.gate.weight", "mixer.gate.weight", "feed_forward.gate.weight")):
        return Fill(exp=-7)
    if name.endswith(("experts.gate_up_proj", "experts.down_proj")) and family == "gpt_oss":
        columns = shape[-2]
    else:
        columns = shape[-1] if shape else 1
    return Fill(exp=round(math.log2(2.6 / math.sqrt(columns))) - 6)


BASE = dict(
    vocab_size=64, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
    max_position_embeddings=128, rms_norm_eps=1e-3, pad_token_id=None, bos_token_id=1, eos_token_id=2,
)  # fmt: skip


@dataclass(frozen=True)
class Variant:
    config: type
    options: Config = field(default_factory=dict)
    dtype: str = "BF16"
    length: int = LENGTH
    original_format: bool = True  # names of tensors as the family's first checkpoints have them
    greedily: bool = False  # writes
    old_config: bool = False  # config.json as transformers 4 spells it
    change: Callable[[Config], None] = lambda config: None  # what of config.json is spelled otherwise yet
    quantize: Callable[["Variant", Config, list[Entry]], list[Entry]] | None = None


def rope(kind: str, **options: Any) -> Config:
    return dict(rope_parameters=dict(rope_type=kind, rope_theta=10000.0, **options))


def pattern(letters: str) -> list[str]:
    return [{"M": "linear_attention", "*": "full_attention", "-": "mlp", "E": "moe"}[x] for x in letters]


def by_pattern(letters: str) -> Callable[[Config], None]:
    """As NVIDIA publishes Nemotron-H."""

    def change(config: Config) -> None:
        config.pop("layers_block_type", None)
        config.pop("layer_types", None)
        config |= dict(hybrid_override_pattern=letters, num_hidden_layers=len(letters))

    return change


def factors(n: int, step: float) -> list[float]:
    return [1 + step * i for i in range(n)]


def fp8(scales: str) -> Callable[[Variant, Config, list[Entry]], list[Entry]]:
    """As DeepSeek (scales of F32) and Qwen (BF16) store checkpoints of 8 bits."""

    def quantize(v: Variant, config: Config, entries: list[Entry]) -> list[Entry]:
        config["quantization_config"] = {
            "activation_scheme": "dynamic", "fmt": "e4m3", "quant_method": "fp8", "weight_block_size": [BLOCK, BLOCK],
        }  # fmt: skip
        out = []
        for e in entries:
            if not is_linear(e.name, len(e.shape)) or e.name == "lm_head.weight":
                out.append(e)
                continue
            out.append(Entry(e.name, "F8_E4M3", e.shape, fill(e.name, e.shape, "F8_E4M3", "", False)))
            name = e.name + "_scale_inv"
            shape = tuple(-(-n // BLOCK) for n in e.shape)
            out.append(Entry(name, scales, shape, fill(name, shape, scales, "", False)))
        return out

    return quantize


def mxfp4(v: Variant, config: Config, entries: list[Entry]) -> list[Entry]:
    """As gpt-oss is published: rows of blocks of 32 numbers."""
    config["quantization_config"] = {
        "modules_to_not_convert": [
            "model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head",
        ],
        "quant_method": "mxfp4",
    }  # fmt: skip
    out = []
    for e in entries:
        if not re.search(r"experts\.(gate_up|down)_proj$", e.name):
            out.append(e)
            continue
        experts, columns, rows = e.shape
        for part, shape in ("_blocks", (experts, rows, columns // 32, 16)), ("_scales", (experts, rows, columns // 32)):
            out.append(Entry(e.name + part, "U8", shape, fill(e.name + part, shape, "U8", "", False)))
    return out


LLAMA, MISTRAL, MIXTRAL = transformers.LlamaConfig, transformers.MistralConfig, transformers.MixtralConfig
QWEN2, QWEN3 = transformers.Qwen2Config, transformers.Qwen3Config
QWEN2_MOE, QWEN3_MOE = transformers.Qwen2MoeConfig, transformers.Qwen3MoeConfig
GEMMA2, GEMMA3, GEMMA3_NESTED = transformers.Gemma2Config, transformers.Gemma3TextConfig, transformers.Gemma3Config
GEMMA4, GEMMA4_NESTED = transformers.Gemma4TextConfig, transformers.Gemma4Config
LLAMA4 = transformers.Llama4TextConfig
PHI3, GPT_OSS = transformers.Phi3Config, transformers.GptOssConfig
SMOLLM3, OLMO2, OLMO3 = transformers.SmolLM3Config, transformers.Olmo2Config, transformers.Olmo3Config
SEED_OSS, GRANITE, ERNIE4_5 = transformers.SeedOssConfig, transformers.GraniteConfig, transformers.Ernie4_5Config
HUNYUAN, MINISTRAL3 = transformers.HunYuanDenseV1Config, transformers.Ministral3Config
GLM4_MOE, MINIMAX_M2 = transformers.Glm4MoeConfig, transformers.MiniMaxM2Config
DEEPSEEK_V32, GLM_MOE_DSA = transformers.DeepseekV32Config, transformers.GlmMoeDsaConfig
DEEPSEEK_V2, DEEPSEEK_V3, GLM4_MOE_LITE, KIMI_K25 = transformers.DeepseekV2Config, transformers.DeepseekV3Config, transformers.Glm4MoeLiteConfig, transformers.Kimi_K25Config
LFM2, LFM2_MOE = transformers.Lfm2Config, transformers.Lfm2MoeConfig
GRANITE_HYBRID, NEMOTRON_H = transformers.GraniteMoeHybridConfig, transformers.NemotronHConfig
QWEN3_NEXT, QWEN3_5, QWEN3_5_MOE = transformers.Qwen3NextConfig, transformers.Qwen3_5TextConfig, transformers.Qwen3_5MoeTextConfig

SLIDING = dict(use_sliding_window=True, sliding_window=WINDOW)
EXPERTS = dict(num_experts=4, num_experts_per_tok=2, moe_intermediate_size=32)
SHARED = dict(shared_expert_intermediate_size=48, **EXPERTS)
MIXTRAL_EXPERTS = dict(num_local_experts=4, intermediate_size=48)
GEMMA3_OPTIONS = dict(
    num_hidden_layers=3, head_dim=32, sliding_window=WINDOW, sliding_window_pattern=3, query_pre_attn_scalar=24,
    rope_parameters=dict(
        full_attention=dict(rope_type="linear", factor=8.0, rope_theta=1e6), sliding_attention=dict(rope_type="default", rope_theta=1e4),
    ),
)  # fmt: skip
VISION = dict(
    hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2, image_size=28, patch_size=14,
    vision_use_head=False,
)  # fmt: skip
GEMMA4_OPTIONS = dict(
    num_hidden_layers=5, layer_types=["sliding_attention", "full_attention"] * 2 + ["full_attention"], head_dim=16, global_head_dim=32,
    sliding_window=WINDOW, hidden_size_per_layer_input=16, vocab_size_per_layer_input=64, num_kv_shared_layers=3,
    use_double_wide_mlp=True, final_logit_softcapping=3.0, tie_word_embeddings=True,
)  # fmt: skip
GEMMA4_LARGE = dict(
    num_hidden_layers=3, layer_types=["sliding_attention"] * 2 + ["full_attention"], head_dim=16, global_head_dim=32,
    sliding_window=WINDOW, hidden_size_per_layer_input=0, attention_k_eq_v=True, num_global_key_value_heads=1,
    tie_word_embeddings=False,
)  # fmt: skip
GEMMA4_SEES = dict(
    text_config=BASE | GEMMA4_OPTIONS | dict(pad_token_id=0), tie_word_embeddings=True,
    vision_config=dict(
        hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=2, head_dim=8,
        patch_size=4, position_embedding_size=16,
    ),
    audio_config=dict(
        hidden_size=16, num_hidden_layers=1, num_attention_heads=2, subsampling_conv_channels=[4, 4], output_proj_dims=24,
    ),
)  # fmt: skip
LLAMA4_OPTIONS = dict(
    num_hidden_layers=4, head_dim=16, intermediate_size=32, intermediate_size_mlp=96, num_local_experts=6, num_experts_per_tok=1,
    interleave_moe_layer_step=2, no_rope_layer_interval=3, attention_chunk_size=WINDOW, floor_scale=8, attn_scale=0.5,
    tie_word_embeddings=False,
)  # fmt: skip
GRANITE4 = dict(
    num_hidden_layers=3, layer_types=["linear_attention", "full_attention", "linear_attention"], intermediate_size=32,
    num_local_experts=4, num_experts_per_tok=2, shared_intermediate_size=48, mamba_n_heads=8, mamba_n_groups=2, mamba_d_state=12,
    embedding_multiplier=6.0, attention_multiplier=0.125, residual_multiplier=0.25, logits_scaling=4.0,
)  # fmt: skip
LFM2_OPTIONS = dict(
    num_hidden_layers=3, layer_types=["conv", "full_attention", "conv"], norm_eps=1e-3, **rope("default"),
)  # fmt: skip
LFM2_EXPERTS = LFM2_OPTIONS | dict(num_dense_layers=1, num_experts=8, num_experts_per_tok=3, moe_intermediate_size=32, routed_scaling_factor=1.5)
NEMOTRON = dict(
    layer_norm_epsilon=1e-3, head_dim=16, mamba_num_heads=8, mamba_head_dim=16, n_groups=2, ssm_state_size=12, chunk_size=16,
    n_routed_experts=8, num_experts_per_tok=3, moe_intermediate_size=32, moe_shared_expert_intermediate_size=48, n_group=4, topk_group=2,
    routed_scaling_factor=1.5,
)  # fmt: skip
NESTED = dict(
    text_config=BASE | GEMMA3_OPTIONS, vision_config=VISION, mm_tokens_per_image=4,
    boi_token_index=61, eoi_token_index=62, image_token_index=63,
)  # fmt: skip
LLAVA = dict(
    text_config=BASE | dict(model_type="llama"), vision_config=VISION | dict(model_type="clip_vision_model"), image_token_index=63,
)  # fmt: skip
SEES = dict(
    vision_start_token_id=61, vision_end_token_id=62, image_token_id=63, video_token_id=60, tie_word_embeddings=False,
)  # fmt: skip
QWEN2_SEES = dict(
    text_config=BASE | rope("default", mrope_section=[2, 3, 3]),
    vision_config=dict(depth=1, hidden_size=16, intermediate_size=16, num_heads=2, out_hidden_size=64, patch_size=14, fullatt_block_indexes=[0]),
    **SEES,
)  # fmt: skip
QWEN3_SEES = dict(
    text_config=BASE | dict(head_dim=32) | rope("default", mrope_section=[6, 5, 5], mrope_interleaved=True),
    vision_config=dict(
        depth=1, hidden_size=16, intermediate_size=16, num_heads=2, out_hidden_size=64, num_position_embeddings=16,
        deepstack_visual_indexes=[0],
    ),
    **SEES,
)  # fmt: skip
PHI3_LONG = dict(
    original_max_position_embeddings=ORIGINAL, num_key_value_heads=4,
    **rope("longrope", short_factor=factors(6, 0.25), long_factor=factors(6, 1.5), partial_rotary_factor=0.75),
)  # fmt: skip
HARMONY = dict(
    head_dim=16, intermediate_size=32, num_local_experts=4, num_experts_per_tok=2, sliding_window=WINDOW,
    **rope("yarn", factor=4.0, beta_fast=32.0, beta_slow=1.0, truncate=False, original_max_position_embeddings=ORIGINAL),
)  # fmt: skip
GROWING = rope(
    "yarn", factor=4.0, original_max_position_embeddings=ORIGINAL, mscale=1.0, mscale_all_dim=1.0, llama_4_scaling_beta=0.5,
)  # fmt: skip
MISTRAL3_SEES = dict(
    text_config=BASE | GROWING | dict(model_type="ministral3", head_dim=32, tie_word_embeddings=False),
    vision_config=VISION | dict(model_type="pixtral", head_dim=8), image_token_index=63, tie_word_embeddings=False,
)  # fmt: skip
GLM4_EXPERTS = dict(
    head_dim=32, attention_bias=True, use_qk_norm=True, num_hidden_layers=3, n_routed_experts=8, num_experts_per_tok=3,
    moe_intermediate_size=32, n_group=4, topk_group=2, routed_scaling_factor=1.5, first_k_dense_replace=1,
)  # fmt: skip
LATENT = dict(
    num_hidden_layers=3, num_key_value_heads=4, q_lora_rank=40, kv_lora_rank=48, qk_nope_head_dim=24, qk_rope_head_dim=16, v_head_dim=32,
    n_routed_experts=8, num_experts_per_tok=3, moe_intermediate_size=32, n_shared_experts=2, num_mtp_layers=0,
)  # fmt: skip
DEEPSEEK = LATENT | dict(n_group=4, topk_group=2, routed_scaling_factor=1.5, first_k_dense_replace=1)
INDEXER = dict(index_topk=12, index_head_dim=24, index_n_heads=8)
STRETCHED = rope("yarn", factor=4.0, original_max_position_embeddings=ORIGINAL, mscale=1.0, mscale_all_dim=0.8)
KIMI_SEES = dict(
    text_config=BASE | DEEPSEEK | dict(model_type="deepseek_v3", n_group=1, topk_group=1, tie_word_embeddings=False),
    vision_config=dict(
        hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2, patch_size=4, pos_emb_height=4, pos_emb_width=4,
    ),
    projection_hidden_size=16, image_token_id=63, video_token_id=62, vision_start_token_id=61, vision_end_token_id=60,
    tie_word_embeddings=False,
)  # fmt: skip
DELTA = dict(
    head_dim=32, num_hidden_layers=4, layer_types=None, linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=16,
    linear_value_head_dim=24, linear_conv_kernel_dim=4,
)  # fmt: skip
EVEN = dict(linear_key_head_dim=32, linear_value_head_dim=32, linear_num_value_heads=6)
QWEN3_5_SEES = dict(
    text_config=BASE | DELTA | rope("default", mrope_section=[2, 1, 1], mrope_interleaved=True, partial_rotary_factor=0.25),
    vision_config=dict(depth=1, hidden_size=16, intermediate_size=16, num_heads=2, out_hidden_size=64, patch_size=14, num_position_embeddings=16),
    **SEES,
)  # fmt: skip

VARIANTS = {
    "llama": Variant(LLAMA, dict(num_hidden_layers=3)),
    "llama-tied": Variant(LLAMA, dict(tie_word_embeddings=True), dtype="F16"),
    "llama-bias": Variant(LLAMA, dict(attention_bias=True, mlp_bias=True)),
    "llama-gelu": Variant(LLAMA, dict(hidden_act="gelu", num_hidden_layers=1)),
    "llama-gelu-new": Variant(LLAMA, dict(hidden_act="gelu_new", num_hidden_layers=1)),
    "llama-gelu-tanh": Variant(LLAMA, dict(hidden_act="gelu_pytorch_tanh", num_hidden_layers=1)),
    "llama-relu": Variant(LLAMA, dict(hidden_act="relu", num_hidden_layers=1), dtype="F32"),
    "llama-linear": Variant(LLAMA, rope("linear", factor=4.0)),
    "llama-dynamic": Variant(LLAMA, dict(max_position_embeddings=ORIGINAL, **rope("dynamic", factor=4.0))),
    "llama-llama3": Variant(
        LLAMA,
        rope("llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=ORIGINAL),
        old_config=True,
    ),
    "llama-yarn": Variant(LLAMA, rope("yarn", factor=4.0, original_max_position_embeddings=ORIGINAL)),
    "llama-yarn-mscale": Variant(
        LLAMA,
        rope(
            "yarn", factor=4.0, original_max_position_embeddings=ORIGINAL, beta_fast=4.0, beta_slow=0.5,
            mscale=1.4, mscale_all_dim=0.6, truncate=False,
        ),
    ),
    "llama-yarn-mscale-zero": Variant(
        LLAMA, rope("yarn", factor=4.0, original_max_position_embeddings=ORIGINAL, mscale=1.4, mscale_all_dim=0.0, beta_fast=0)
    ),
    "llama-llama3-bare": Variant(
        LLAMA,
        dict(num_hidden_layers=1, **rope("llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0)),
        change=lambda config: config["rope_parameters"].pop("original_max_position_embeddings"),
    ),
    "llama-partial": Variant(
        LLAMA, dict(num_hidden_layers=1), old_config=True, change=lambda config: config.update(partial_rotary_factor=0.5)
    ),
    "llama-ropes": Variant(
        LLAMA,
        dict(num_hidden_layers=1),
        change=lambda config: config.update(
            rope_theta=500.0, rope_scaling=dict(type="linear", factor=4.0), rope_parameters=dict(rope_type="linear", factor=2.0, rope_theta=100.0)
        ),
    ),
    "llama-longrope": Variant(
        LLAMA,
        rope(
            "longrope", short_factor=factors(8, 0.25), long_factor=factors(8, 1.5), factor=6.0,
            original_max_position_embeddings=ORIGINAL,
        ),
    ),
    "llama-fp8": Variant(
        LLAMA, dict(hidden_size=160, intermediate_size=288, head_dim=40, num_hidden_layers=1), quantize=fp8("F32")
    ),
    "mistral": Variant(MISTRAL, dict(sliding_window=WINDOW)),
    "mistral-head-dim": Variant(MISTRAL, dict(sliding_window=None, head_dim=32), old_config=True),
    "mixtral": Variant(MIXTRAL, MIXTRAL_EXPERTS, old_config=True),
    "mixtral-fused": Variant(MIXTRAL, dict(sliding_window=WINDOW, **MIXTRAL_EXPERTS), original_format=False),
    "qwen2": Variant(QWEN2, dict(tie_word_embeddings=True)),
    "qwen2-sliding": Variant(QWEN2, dict(num_hidden_layers=3, max_window_layers=1, **SLIDING), old_config=True),
    "qwen2-yarn": Variant(
        QWEN2,
        dict(num_hidden_layers=1, **rope("yarn", factor=4.0, original_max_position_embeddings=ORIGINAL)),
        old_config=True,
    ),
    "qwen2-moe": Variant(QWEN2_MOE, SHARED, old_config=True),
    "qwen2-moe-fused": Variant(
        QWEN2_MOE,
        dict(num_hidden_layers=3, norm_topk_prob=True, mlp_only_layers=[0], max_window_layers=3, **SLIDING, **SHARED),
        original_format=False,
    ),
    "qwen3": Variant(QWEN3, dict(head_dim=32)),
    "qwen3-sliding": Variant(QWEN3, dict(head_dim=32, num_hidden_layers=3, max_window_layers=2, attention_bias=True, **SLIDING)),
    "qwen3-fp8": Variant(
        QWEN3, dict(hidden_size=160, intermediate_size=288, head_dim=40, num_hidden_layers=1), quantize=fp8("BF16"), old_config=True
    ),
    "qwen3-moe": Variant(QWEN3_MOE, dict(head_dim=32, norm_topk_prob=True, **EXPERTS)),
    "qwen3-moe-mixed": Variant(
        QWEN3_MOE,
        dict(head_dim=32, num_hidden_layers=4, decoder_sparse_step=2, mlp_only_layers=[3], **SLIDING, **EXPERTS),
        old_config=True,
    ),
    "qwen3-moe-fused": Variant(QWEN3_MOE, dict(head_dim=32, norm_topk_prob=True, **EXPERTS), original_format=False),
    "qwen3-moe-fp8": Variant(QWEN3_MOE, dict(head_dim=32, norm_topk_prob=True, num_hidden_layers=1, **EXPERTS), quantize=fp8("BF16")),
    "gemma2": Variant(
        GEMMA2,
        dict(
            head_dim=32, sliding_window=WINDOW, query_pre_attn_scalar=24, attn_logit_softcapping=2.0,
            final_logit_softcapping=3.0,
        ),
        old_config=True,
    ),
    "gemma3": Variant(GEMMA3, GEMMA3_OPTIONS),
    "gemma3-old-config": Variant(GEMMA3, GEMMA3_OPTIONS, old_config=True),
    "gemma3-nested": Variant(GEMMA3_NESTED, NESTED),
    "gemma3-nested-inner": Variant(GEMMA3_NESTED, NESTED, original_format=False),
    "gemma4": Variant(GEMMA4, GEMMA4_OPTIONS | dict(tie_word_embeddings=False), greedily=True),
    "gemma4-large": Variant(GEMMA4, GEMMA4_LARGE, greedily=True),
    "gemma4-moe": Variant(
        GEMMA4, GEMMA4_LARGE | dict(enable_moe_block=True, num_experts=6, top_k_experts=2, moe_intermediate_size=32), greedily=True
    ),
    "gemma4-sees": Variant(GEMMA4_NESTED, GEMMA4_SEES),
    "llama4": Variant(LLAMA4, LLAMA4_OPTIONS, greedily=True),
    "llama4-even": Variant(LLAMA4, LLAMA4_OPTIONS | dict(no_rope_layer_interval=4, attention_chunk_size=8192, floor_scale=8192, attn_scale=0.1)),
    "llama4-plain": Variant(
        LLAMA4,
        LLAMA4_OPTIONS
        | dict(
            num_experts_per_tok=2, interleave_moe_layer_step=1, use_qk_norm=False, attn_temperature_tuning=False, attention_chunk_size=None,
            num_hidden_layers=3, **rope("llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=ORIGINAL),
        ),
        greedily=True,
    ),
    "llava": Variant(transformers.LlavaConfig, LLAVA),
    "llava-inner": Variant(
        transformers.LlavaConfig,
        LLAVA | dict(tie_word_embeddings=True),
        original_format=False,
        change=lambda config: [config["text_config"].pop(k) for k in ("model_type", "tie_word_embeddings", "architectures") if k in config["text_config"]],
    ),
    "qwen2-vl": Variant(transformers.Qwen2_5_VLConfig, QWEN2_SEES),
    "qwen3-vl": Variant(transformers.Qwen3VLConfig, QWEN3_SEES, original_format=False),
    "phi3": Variant(PHI3, dict(sliding_window=WINDOW)),
    "phi3-long": Variant(PHI3, PHI3_LONG),
    "phi3-short": Variant(PHI3, PHI3_LONG, length=ORIGINAL - 8, old_config=True),
    "gpt-oss": Variant(GPT_OSS, dict(swiglu_limit=2.0, **HARMONY)),
    "gpt-oss-bare": Variant(GPT_OSS, dict(num_hidden_layers=1, **HARMONY), change=lambda config: config.pop("rope_parameters")),
    "smollm3": Variant(SMOLLM3, dict(num_hidden_layers=4), greedily=True),
    "smollm3-sliding": Variant(
        SMOLLM3, dict(no_rope_layers=[1, 0], use_sliding_window=True, sliding_window=WINDOW, tie_word_embeddings=False)
    ),
    "olmo2": Variant(OLMO2, greedily=True),
    "olmo3": Variant(
        OLMO3,
        dict(
            num_hidden_layers=4, sliding_window=WINDOW,
            rope_parameters=dict(
                full_attention=dict(rope_type="yarn", factor=4.0, rope_theta=5e5, original_max_position_embeddings=ORIGINAL),
                sliding_attention=dict(rope_type="default", rope_theta=5e5),
            ),
        ),
        greedily=True,
    ),
    "seed-oss": Variant(SEED_OSS, dict(head_dim=32), greedily=True),
    "granite": Variant(
        GRANITE, dict(embedding_multiplier=6.0, attention_multiplier=0.125, residual_multiplier=0.25, logits_scaling=4.0), greedily=True
    ),
    "ernie4-5": Variant(ERNIE4_5, dict(head_dim=32, tie_word_embeddings=True), greedily=True),
    "hunyuan": Variant(HUNYUAN, dict(head_dim=32, **rope("dynamic", factor=1.0, alpha=50.0)), greedily=True),
    "ministral3": Variant(MINISTRAL3, dict(head_dim=32, **GROWING), greedily=True),
    "mistral3": Variant(transformers.Mistral3Config, MISTRAL3_SEES, greedily=True),
    "mistral3-inner": Variant(transformers.Mistral3Config, MISTRAL3_SEES, original_format=False),
    "glm4-moe": Variant(GLM4_MOE, GLM4_EXPERTS, greedily=True),
    "glm4-moe-fused": Variant(GLM4_MOE, GLM4_EXPERTS | dict(n_group=1, topk_group=1, norm_topk_prob=False, use_qk_norm=False), original_format=False),
    "minimax-m2": Variant(MINIMAX_M2, dict(head_dim=32, rotary_dim=16, num_experts_per_tok=2, **MIXTRAL_EXPERTS), greedily=True),
    "minimax-m2-fused": Variant(MINIMAX_M2, dict(head_dim=32, rotary_dim=16, num_experts_per_tok=2, **MIXTRAL_EXPERTS), original_format=False),
    "deepseek-v2": Variant(
        DEEPSEEK_V2, LATENT | dict(q_lora_rank=None, routed_scaling_factor=2.0, first_k_dense_replace=1) | STRETCHED, greedily=True
    ),
    "deepseek-v3": Variant(DEEPSEEK_V3, DEEPSEEK | STRETCHED, greedily=True),
    "deepseek-v3-plain": Variant(
        DEEPSEEK_V3,
        DEEPSEEK | dict(q_lora_rank=None, rope_interleave=False, attention_bias=True, v_head_dim=24, n_group=1, topk_group=1, norm_topk_prob=False),
        original_format=False, greedily=True,
    ),
    "deepseek-v3-fp8": Variant(DEEPSEEK_V3, DEEPSEEK | dict(num_hidden_layers=2, hidden_size=160), quantize=fp8("F32")),
    "kimi-k25": Variant(KIMI_K25, KIMI_SEES),  # writes no text, since transformers embeds the tokens of pictures as another
    "glm4-moe-lite": Variant(GLM4_MOE_LITE, LATENT | dict(v_head_dim=40, routed_scaling_factor=1.8), greedily=True),
    "deepseek-v32": Variant(DEEPSEEK_V32, DEEPSEEK | STRETCHED | INDEXER, greedily=True),
    "deepseek-v32-all": Variant(DEEPSEEK_V32, DEEPSEEK | dict(num_hidden_layers=2) | INDEXER | dict(index_topk=LENGTH)),
    "glm-moe-dsa": Variant(
        GLM_MOE_DSA, LATENT | dict(v_head_dim=40, routed_scaling_factor=1.8, first_k_dense_replace=1) | INDEXER | dict(indexer_types=["full", "shared", "full"]),
        greedily=True,
    ),
    "qwen3-next": Variant(QWEN3_NEXT, DELTA | SHARED | dict(mlp_only_layers=[1]), greedily=True),
    "qwen3-next-fused": Variant(
        QWEN3_NEXT, DELTA | SHARED | dict(num_hidden_layers=2, layer_types=["full_attention", "linear_attention"]), original_format=False
    ),
    "qwen3-5": Variant(QWEN3_5, DELTA, greedily=True),
    "qwen3-5-bias": Variant(QWEN3_5, DELTA | EVEN | dict(num_hidden_layers=2, layer_types=["full_attention", "linear_attention"], attention_bias=True)),
    "qwen3-5-sees": Variant(transformers.Qwen3_5Config, QWEN3_5_SEES, greedily=True),
    "qwen3-5-moe": Variant(QWEN3_5_MOE, DELTA | SHARED, greedily=True),
    # Heads of one size, as published models have them, and llama.cpp wants them.
    "qwen3-next-even": Variant(QWEN3_NEXT, DELTA | SHARED | EVEN),
    "qwen3-5-even": Variant(QWEN3_5, DELTA | EVEN),
    "qwen3-5-moe-even": Variant(QWEN3_5_MOE, DELTA | SHARED | EVEN | dict(linear_num_value_heads=2)),
    "lfm2": Variant(LFM2, LFM2_OPTIONS | dict(intermediate_size=96, block_multiple_of=16), greedily=True),
    "lfm2-bias": Variant(
        LFM2, LFM2_OPTIONS | dict(conv_bias=True, conv_L_cache=4, block_auto_adjust_ff_dim=False, tie_word_embeddings=False)
    ),
    "granite-hybrid": Variant(GRANITE_HYBRID, GRANITE4, greedily=True),
    "granite-hybrid-fused": Variant(GRANITE_HYBRID, GRANITE4, original_format=False),
    "granite-hybrid-dense": Variant(
        GRANITE_HYBRID,
        GRANITE4 | dict(num_local_experts=0, mamba_n_groups=1, mamba_conv_bias=False, mamba_proj_bias=True, position_embedding_type="rope"),
    ),
    "granite-hybrid-attends": Variant(
        GRANITE_HYBRID, GRANITE4 | dict(num_local_experts=0, layer_types=["full_attention"] * 3, position_embedding_type="rope"),
    ),
    "lfm2-moe": Variant(LFM2_MOE, LFM2_EXPERTS, greedily=True),
    "lfm2-moe-even": Variant(LFM2_MOE, LFM2_EXPERTS | dict(routed_scaling_factor=1.0)),
    "lfm2-moe-fused": Variant(LFM2_MOE, LFM2_EXPERTS | dict(use_expert_bias=False, norm_topk_prob=False), original_format=False),
    "nemotron-h": Variant(NEMOTRON_H, NEMOTRON | dict(layers_block_type=pattern("-MM*M-")), greedily=True),
    "nemotron-h-pattern": Variant(
        NEMOTRON_H, NEMOTRON | dict(layers_block_type=pattern("M*-"), use_bias=True, mlp_bias=True, use_conv_bias=False), change=by_pattern("M*-")
    ),
    "nemotron-h-moe": Variant(NEMOTRON_H, NEMOTRON | dict(layers_block_type=pattern("MEM*E")), greedily=True),
    "nemotron-h-latent": Variant(NEMOTRON_H, NEMOTRON | dict(layers_block_type=pattern("ME*E"), moe_latent_size=40, mlp_bias=True), greedily=True),
    "nemotron-h-moe-fused": Variant(NEMOTRON_H, NEMOTRON | dict(layers_block_type=pattern("E*M"), n_group=1, topk_group=1), original_format=False),
    "gpt-oss-mxfp4": Variant(GPT_OSS, HARMONY, quantize=mxfp4, old_config=True),
}  # fmt: skip


def is_linear(name: str, dimensions: int) -> bool:
    """Matrices of a decoder's blocks and its head; not embeddings, routers, gates of shared experts or indexers."""
    if re.search(r"vision_tower|audio_tower|multi_modal|visual\.|\.indexer\.", name):
        return False
    return dimensions > 1 and re.search(r"(_proj|_proj_with_mqa|_proj_qkvz?|_proj_z|\.w[123]|per_layer_input_gate|per_layer_projection|lm_head)(\.weight)?$", name) is not None


def older(config: Config, options: Config) -> Config:
    """The config.json that transformers 4 would have written."""
    config = dict(config)
    config["torch_dtype"] = config.pop("dtype")
    config["transformers_version"] = "4.57.0"
    config.pop("layer_types", None)
    config.pop("swiglu_alpha", None)
    if config["model_type"] == "qwen3_moe":
        config["num_experts"] = config.pop("num_local_experts")
    parameters = dict(config.pop("rope_parameters"))
    if "full_attention" in parameters:
        config.pop("_sliding_window_pattern")
        config["sliding_window_pattern"] = options["sliding_window_pattern"]
        config["rope_local_base_freq"] = parameters["sliding_attention"]["rope_theta"]
        parameters = dict(parameters["full_attention"])
    config["rope_theta"] = parameters.pop("rope_theta")
    if "partial_rotary_factor" in parameters:
        config["partial_rotary_factor"] = parameters.pop("partial_rotary_factor")
    if config["model_type"] == "phi3":
        parameters.pop("original_max_position_embeddings", None)
    kind = parameters["rope_type"]
    if config["model_type"] == "qwen2":
        parameters["type"] = parameters.pop("rope_type")  # the key of Qwen's own files
    config["rope_scaling"] = None if kind == "default" else parameters
    return dict(sorted(config.items()))


@contextmanager
def double() -> Iterator[None]:
    """Lets code that asks for float32 get float64."""
    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    with (
        mock.patch.object(torch, "float32", torch.float64),
        mock.patch.object(torch, "float", torch.float64),
        mock.patch.object(torch.Tensor, "float", torch.Tensor.double),
    ):
        try:
            yield
        finally:
            torch.set_default_dtype(default)


EAGER = dict(attn_implementation="eager", experts_implementation="eager")


def published(name: str) -> str:
    """The name that a tensor has where a model is published: for Kimi K2.5, transformers writes what it does not read."""
    return re.sub(r"^language_model\.model\.blocks\.", "language_model.model.layers.", name)


def write(v: Variant, path: Path) -> tuple[Config, list[Entry]]:
    """Has transformers write a checkpoint, and returns what the golden file has of it."""
    options = v.options if "text_config" in v.options else BASE | v.options
    config = v.config(**options)
    if "text_config" in options:
        model = transformers.AutoModelForImageTextToText.from_config(config, dtype=DTYPES[v.dtype])
    else:
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=DTYPES[v.dtype])
    model.save_pretrained(path, save_original_format=v.original_format)
    written = json.loads((path / "config.json").read_text())
    tied = written.get("tie_word_embeddings", False)
    entries = []
    with safe_open(path / "model.safetensors", "pt") as f:
        for name in f.keys():
            s = f.get_slice(name)
            shape, dtype = tuple(s.get_shape()), s.get_dtype()
            name = published(name)
            entries.append(Entry(name, dtype, shape, fill(name, shape, dtype, written["model_type"], tied)))
    if v.old_config:
        written = older(written, options)
    v.change(written)
    if v.quantize:
        entries = v.quantize(v, written, entries)
    return written, entries


E2M1 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], dtype=torch.float64)


def dequantize(tensors: Tensors) -> Tensors:
    """Replaces quantized tensors by those that the family has without."""
    out = dict(tensors)
    for name, q in tensors.items():
        if q.dtype == torch.float8_e4m3fn:
            s = out.pop(name + "_scale_inv").float()
            out[name] = q.float() * s.repeat_interleave(BLOCK, 0).repeat_interleave(BLOCK, 1)[: q.shape[0], : q.shape[1]]
        elif name.endswith("_blocks"):
            base = name.removesuffix("_blocks")
            blocks, scales = out.pop(name), out.pop(base + "_scales")
            numbers = torch.stack([E2M1[(blocks & 15).long()], E2M1[(blocks >> 4).long()]], -1).flatten(-2)
            numbers = numbers * torch.exp2(scales.double() - 127)[..., None]
            out[base] = numbers.flatten(-2).transpose(1, 2).float().contiguous()
    return out


def reference(config: Config, tensors: Tensors, path: Path) -> Any:
    """Opens the checkpoint with transformers in float32, without a quantization that it would want a GPU for."""
    config = {k: c for k, c in config.items() if k != "quantization_config"}
    (path / "config.json").write_text(json.dumps(config))
    save_file(dequantize(tensors), path / "model.safetensors", {"format": "pt"})
    cls = getattr(transformers, config["architectures"][0])
    model, info = cls.from_pretrained(path, dtype=torch.float32, output_loading_info=True, **EAGER)
    assert not any(info.values()), info
    return model.eval()


def margin(model: Any, ids: torch.Tensor) -> float:
    """The smallest lead of a router's last choice over the next expert."""
    leads = []

    def lead(scores: torch.Tensor, top: int) -> None:
        if top < scores.shape[-1]:
            ordered = scores.sort(-1, descending=True).values
            leads.append(float(((ordered[:, top - 1] - ordered[:, top]) / scores[scores.isfinite()].std()).min()))

    def hook(module: Any, inputs: Any, out: Any) -> None:
        scores = out[1] if type(module).__name__ == "Llama4Router" else out[0]
        bias = getattr(module, "e_score_correction_bias", inputs[-1] if len(inputs) > 1 else None)
        if bias is not None:
            scores = scores.sigmoid() + bias
        if (groups := getattr(module, "num_group", None) or 1) > 1:
            by_group = scores.view(len(scores), groups, -1)
            best = by_group.topk(2, -1).values.sum(-1)
            lead(best, module.topk_group)
            chosen = torch.zeros_like(best).scatter_(1, best.topk(module.topk_group).indices, 1).bool()
            scores = by_group.masked_fill(~chosen[..., None], -math.inf).flatten(1)
        lead(scores, top if (top := getattr(module, "top_k", None)) else module.config.top_k_experts)

    def topk(self: torch.Tensor, k: int, *args: Any, **kwargs: Any) -> Any:
        """Of an indexer, whose last choice leads by less: there are more of them, and nobody rounds what they are made of."""
        if any(self.shape[-1] == len(ids[0]) and k == m.index_topk for m in indexers):
            ordered = self.flatten(0, -2).sort(-1, descending=True).values
            seen = ordered > torch.finfo(torch.float32).min / 2
            gaps = (ordered[:, k - 1] - ordered[:, k])[seen[:, k]] if k < self.shape[-1] else torch.empty(0)
            leads.append(float(INDEXED * gaps.min() / ordered[seen].std()) if len(gaps) else math.inf)
        return chosen_by(self, k, *args, **kwargs)

    indexers, chosen_by = [m for m in model.modules() if hasattr(m, "index_topk")], torch.Tensor.topk
    hooks = [m.register_forward_hook(hook) for m in model.modules() if type(m).__name__.lower().endswith(("topkrouter", "gemma4textrouter", "llama4router"))]
    with torch.no_grad(), mock.patch.object(torch.Tensor, "topk", topk):
        model(ids)
    for h in hooks:
        h.remove()
    return min(leads, default=math.inf)


def nll(logits: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.cross_entropy(logits[0, :-1], ids[0, 1:], reduction="none")


def gradients(model: Any, v: Variant, path: Path) -> Tensors:
    """The gradients under the names of the tensors on disk: transformers takes apart and renames them like weights."""
    for p in model.parameters():
        p.data = torch.zeros_like(p) if p.grad is None else p.grad
    model.save_pretrained(path, save_original_format=v.original_format)
    with safe_open(path / "model.safetensors", "pt") as f:
        return {published(name): f.get_tensor(name) for name in f.keys()}


def stepped(model: Any, ids: torch.Tensor) -> torch.Tensor:
    """The logits of a text that is read token by token."""
    out, past = [], None
    with torch.no_grad():
        for token in ids[0]:
            step = model(token[None, None], past_key_values=past, use_cache=True)
            past = step.past_key_values
            out.append(step.logits[0, -1])
    return torch.stack(out)


def written(models: list[Any], ids: torch.Tensor, prompts: tuple[int, ...], most: int) -> list[dict[str, Any]]:
    """What generate writes behind the beginnings of a text, which all models have to agree on."""
    out = []
    for prompt in prompts:
        texts = []
        for model in models:
            model.generation_config.eos_token_id = None
            for tokens in (1, ORIGINAL - prompt, ORIGINAL + 1 - prompt, ORIGINAL + 2 - prompt, most):
                if tokens > 0:
                    model(ids[:, :1])  # or dynamic frequencies would be those of the text before
                    text = model.generate(ids[:, :prompt], max_new_tokens=tokens, do_sample=False, pad_token_id=0)
                    texts.append(text[0, prompt:].tolist())
        tokens = max(texts, key=len)
        assert all(t == tokens[: len(t)] for t in texts), f"behind {prompt} tokens: {texts}"
        out.append({"prompt": prompt, "tokens": tokens})
    return out


def by_rows(grads: Tensors, weights: Tensors, config: Config) -> dict[str, list[tuple[float, float]]]:
    """Of each linear layer, and each expert of it, the alternating sum of the rows' gradients and their norm."""
    out = {}
    for name, w in dequantize(weights).items():
        if not is_linear(name, w.dim()):
            continue
        scaled = grads[name].double() * w.double()
        if config["model_type"] in ("gpt_oss", "llama4_text") and w.dim() == 3:  # [experts, columns, rows]
            scaled = scaled.transpose(1, 2)
        rows = scaled.sum(-1)
        rows = rows if rows.dim() == 2 else rows[None]
        sign = torch.tensor([1.0, -1.0], dtype=torch.float64).repeat(rows.shape[-1] // 2 + 1)[: rows.shape[-1]]
        out[name.removesuffix(".weight")] = [(float((r * sign).sum()), float(r.norm())) for r in rows]
    return out


def fold(items: dict[str, Any]) -> list[tuple[str, list[str]]]:
    """Groups names of equal keys that differ in numbers between dots: a.{0,1}.b stands for a.0.b and a.1.b."""
    groups: dict[Any, list[str]] = {}
    for name, key in items.items():
        groups.setdefault((re.sub(r"(?<=\.)\d+(?=\.)", "#", name), key), []).append(name)
    out = []
    for (template, _), names in groups.items():
        indices = [tuple(int(i) for i in re.findall(r"(?<=\.)(\d+)(?=\.)", name)) for name in names]
        axes = [sorted(set(axis)) for axis in zip(*indices)]
        assert len(indices) == math.prod(len(a) for a in axes), f"{template} has gaps: {indices}"
        spread = [template]
        for axis in axes:
            spread = [s.replace("#", str(i), 1) for s in spread for i in axis]
        for axis in axes:
            text = str(axis[0]) if len(axis) == 1 else "{" + ",".join(map(str, axis)) + "}"
            template = template.replace("#", text, 1)
        out.append((template, spread))
    return out


def packed(x: torch.Tensor) -> str:
    return base64.b64encode(x.to(torch.float32).numpy().astype("<f4").tobytes()).decode()


def digits(values: list[float]) -> list[float]:
    return [float(f"{v:.7g}") for v in values]


def relative(got: torch.Tensor, want: torch.Tensor) -> float:
    return float((got.double() - want).abs().max() / want.abs().max())


def golden(name: str, v: Variant) -> tuple[str, dict[str, float]]:
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    ids = torch.from_numpy(rng.integers(3, 60, size=(1, v.length)))
    positions = [WINDOW // 2, v.length // 2 + 1, v.length - 1]
    with tempfile.TemporaryDirectory() as tmp:
        path = Path(tmp)
        config, entries = write(v, path)
        for seed in range(1000):
            weights = {e.name: tensor(e, seed) for e in entries}
            single = reference(config, weights, path)
            lead = margin(single, ids)
            if lead >= MARGIN:
                break
        else:
            raise SystemExit(f"{name}: no seed keeps routers away from ties")
        with double():
            model = type(single)._from_config(single.config, dtype=torch.float64, **EAGER).eval()
            model.load_state_dict(single.state_dict())
            logits = model(ids).logits
            each = nll(logits, ids)
            each.mean().backward()
        logits, each = logits.detach(), each.detach()
        with torch.no_grad():
            logits32 = single(ids).logits
        errors = {"logits": relative(logits32, logits), "nll": relative(nll(logits32, ids), each)}
        assert max(errors.values()) < FLOAT32, f"{name}: float32 differs by {errors}"
        by_length = {}
        if (getattr(single.config.get_text_config(), "rope_parameters", None) or {}).get("rope_type") in ("dynamic", "longrope") and v.length > ORIGINAL:
            with double():
                by_length["stepped"] = packed(stepped(model, ids)[positions])
                by_length["written"] = written([single, model], ids, (4, ORIGINAL - 1, ORIGINAL, ORIGINAL + 1, ORIGINAL + 8), WRITTEN)
        elif v.greedily:
            with double():
                by_length["written"] = written([single, model], ids, (6, WINDOW + 3), GREEDY)
        rows = by_rows(gradients(model, v, path), weights, config)

    alike = {e.name: (e.dtype, e.shape, e.fill) for e in entries}
    layers = fold({n: len(r) for n, r in rows.items() if n != "lm_head" or not config["tie_word_embeddings"]})
    out = {
        "transformers": transformers.__version__,
        "config": config,
        "seed": seed,
        "tensors": [
            {
                "names": names,
                "dtype": alike[spread[0]][0],
                "shape": alike[spread[0]][1],
                **{k: n for k, n in vars(alike[spread[0]][2]).items() if n},
                "crc32": zlib.crc32(b"".join(weights[n].reshape(-1).view(torch.uint8).numpy().tobytes() for n in spread)),
            }
            for names, spread in fold(alike)
        ],
        "tokens": ids[0].tolist(),
        "positions": positions,
        "logits": packed(logits[0, positions]),
        "nll": packed(each),
        "loss": float(f"{each.mean():.10g}"),
        **by_length,
        "gradients": [
            {
                "layers": names,
                "alternating": digits([a for n in spread for a, _ in rows[n]]),
                "norm": digits([b for n in spread for _, b in rows[n]]),
            }
            for names, spread in layers
        ],
    }
    return render(out), errors | {"lead": lead, "seed": seed}


def render(out: dict[str, Any]) -> str:
    """JSON with a line for each entry of the lists, so that a change can be read."""
    lines = []
    for key, value in out.items():
        if isinstance(value, list) and isinstance(value[0], dict):
            text = "[\n    " + ",\n    ".join(json.dumps(x) for x in value) + "\n  ]"
        else:
            text = json.dumps(value)
        lines.append(f'  "{key}": {text}')
    return "{\n" + ",\n".join(lines) + "\n}\n"


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--out", type=Path, default=OUT, help="folder to write to")
    p.add_argument("--only", default="", metavar="REGEX", help="families to write")
    args = p.parse_args()
    logging.disable_progress_bar()
    torch.set_num_threads(1)
    args.out.mkdir(parents=True, exist_ok=True)
    total = 0
    for name, v in VARIANTS.items():
        if not re.search(args.only, name):
            continue
        start = time.monotonic()
        text, notes = golden(name, v)
        (args.out / f"{name}.json").write_text(text)
        total += len(text)
        figures = "  ".join(f"{k} {x:.3g}" for k, x in notes.items())
        print(f"{name:20} {len(text):6} bytes  {figures}  {time.monotonic() - start:.1f} s", flush=True)
    print(f"{'':20} {total:6} bytes")


if __name__ == "__main__":
    sys.exit(main())
