#!/usr/bin/env python3
"""Opens what `lutq export --to gguf` writes in the programs that read GGUF files.

    scripts/interop_gguf.py LUTQ WORK --model MODEL... [--tokenizer TOKENIZER.json]... [--node DIR]

For each MODEL, a folder of a Llama or such in 16 or 32 bits, it quantizes, exports and checks

    gguf          gguf-py's dequantized weights are those of `lutq export --to dense`, bit for bit
    transformers  from_pretrained(gguf_file=) gives the logits of the dense folder, bit for bit
    llama.cpp     the distribution of every next token, by KL divergence from transformers' on the dense folder:
                  at most 3e-3 for quantized weights, which llama.cpp multiplies by inputs of 8 bits, 1e-6 for F16
    tokens        ids of 3000 random strings by llama.cpp are those of the tokenizers library

--families makes tiny random models of every family and checks llama.cpp's distribution on BF16 and F16 files.
--node is a folder with node_modules/node-llama-cpp; without it llama.cpp is left out. Exits with 3 when a check fails.
"""

import argparse
import json
import lzma
import os
import random
import re
import shutil
import subprocess
import sys
from pathlib import Path

os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("TQDM_DISABLE", "1")

import numpy as np
import torch
from gguf import GGUFReader
from gguf.quants import dequantize
from safetensors import safe_open
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.convert_slow_tokenizer import bytes_to_unicode
from transformers.utils import logging

from tokenizer_fuzz import FIXED, random_text

LENGTH, WINDOWS, STRINGS = 128, 2, 3000
# How each file is made: flags of quantize, flags of export, the largest KL divergence.
RECIPES = {
    "f16": (None, ["--kept", "f16"], 1e-6),
    "bf16": (None, [], 1e-4),
    "q4_0": (["--codebook", "q4", "--group", "32", "--scale", "mse"], [], 3e-3),
    "q4_0-g128": (["--codebook", "q4", "--group", "128", "--scale", "mse", "--scale-type", "bf16"], [], 3e-3),
    "q5_0": (["--bits", "5", "--codebook", "q5", "--group", "32", "--scale", "mse"], [], 3e-3),
    "iq4_nl": (["--codebook", "iq4nl", "--group", "32", "--scale", "mse"], [], 3e-3),
    "mxfp4": (["--codebook", "e2m1", "--group", "32", "--scale-type", "e8m0"], [], 3e-3),
}


class Checks:
    def __init__(self) -> None:
        self.failed = 0

    def __call__(self, what: str, value: float, most: float) -> None:
        good = value <= most
        self.failed += not good
        print(f"{'ok  ' if good else 'FAIL'}  {what:58} {value:.3g}  (at most {most:g})", flush=True)


def run(*command: object) -> None:
    r = subprocess.run([str(c) for c in command], capture_output=True, text=True)
    if r.returncode:
        sys.exit(f"{' '.join(map(str, command))}\n{r.stdout}{r.stderr}")


def dense_tensors(path: Path) -> dict[str, torch.Tensor]:
    out = {}
    for shard in sorted(path.glob("*.safetensors")):
        with safe_open(shard, "pt") as f:
            out |= {name: f.get_tensor(name) for name in f.keys()}
    return out


def weights_differ(file: Path, dense: Path) -> int:
    """How many weights of the linear layers of a Llama gguf-py reads otherwise than the dense folder has them."""
    config = json.loads((dense / "config.json").read_text())
    tensors = dense_tensors(dense)
    names = {
        "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj",
        "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
    }  # fmt: skip
    differ = 0
    for t in GGUFReader(file).tensors:
        if not t.name.startswith("blk.") or "norm" in t.name or t.name.endswith("bias"):
            continue
        _, block, module, _ = t.name.split(".")
        got = dequantize(t.data, t.tensor_type)
        want = tensors[f"model.layers.{block}.{names[module]}.weight"].float().numpy()
        heads = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}.get(module)
        if heads and config["model_type"] in ("llama", "mistral"):
            want = want.reshape(heads, 2, -1, want.shape[1]).swapaxes(1, 2).reshape(want.shape)
        differ += int((got.reshape(want.shape) != want).sum())
    return differ


def logits(model: torch.nn.Module, windows: list[list[int]]) -> torch.Tensor:
    with torch.no_grad():
        return torch.stack([model(torch.tensor([w])).logits[0].double() for w in windows])


def llama_cpp(node: Path, file: Path, texts: list[str], windows: list[list[int]], vocab: int, work: Path) -> tuple[list, np.ndarray | None]:
    request = work / "request.json"
    request.write_text(json.dumps({"texts": texts, "windows": windows, "vocab": vocab}))
    run("node", Path(__file__).with_suffix(".mjs"), node, file, request, work / "answer")
    ids = json.loads((work / "answer.json").read_text())["ids"]
    if not windows:
        return ids, None
    p = np.fromfile(work / "answer.bin", "<f4").reshape(len(windows), -1, vocab)
    return ids, p.astype(np.float64)


def divergence(want: torch.Tensor, got: np.ndarray, median: bool = False) -> float:
    """The mean, or the median, of KL(want || got) over positions, in nats."""
    logp = torch.log_softmax(want, -1).numpy()
    p = np.exp(logp)
    # What llama.cpp rounds to 0 counts as the least float32.
    logq = np.log(np.maximum(got / got.sum(-1, keepdims=True), 1e-45))
    kl = (p * (logp - logq)).sum(-1)
    return float(np.median(kl) if median else kl.mean())


def texts_of(path: Path, seed: int, count: int) -> tuple[Tokenizer, list[str]]:
    raw = lzma.open(path).read() if path.suffix == ".xz" else path.read_bytes()
    t = Tokenizer.from_str(raw.decode())
    rng = random.Random(seed)
    # Special tokens in a text are another question: each program has its own answer.
    texts = [s for s in FIXED if "<|" not in s and "<s" not in s and "<unk" not in s]
    while len(texts) < count:
        texts.append(random_text(rng, []))
    # Nor do the two have the same version of Unicode.
    return t, [s for s in texts if "\0" not in s and "\U00010d40" not in s]


def windows_of(vocab: int) -> list[list[int]]:
    rng = random.Random(5)
    return [[rng.randrange(3, vocab) for _ in range(LENGTH)] for _ in range(WINDOWS)]


def export(lutq: Path, model: Path, out: Path, *flags: str) -> Path:
    run(lutq, "export", model, out, "--force", *flags)
    return out


def check_model(check: Checks, lutq: Path, model: Path, work: Path, node: Path | None, only: str) -> None:
    vocab = json.loads((model / "config.json").read_text())["vocab_size"]
    windows = windows_of(vocab)
    for name, (recipe, flags, most) in RECIPES.items():
        if not re.search(only, name):
            continue
        source = model
        if recipe is not None:
            source = work / name
            run(lutq, "quantize", model, source, "--force", "--quiet", *recipe)
        dtype = "f16" if name == "f16" else "f32"
        dense = export(lutq, source, work / f"{name}-dense", "--to", "dense", "--dtype", dtype)
        out = export(lutq, source, work / f"{name}-gguf", "--to", "gguf", *flags)
        file = out / "model.gguf"
        title = f"{model.name} {name}"
        check(f"{title}: weights that gguf-py reads otherwise", weights_differ(file, dense), 0)
        want = logits(AutoModelForCausalLM.from_pretrained(dense, dtype=torch.float32), windows)
        got = logits(AutoModelForCausalLM.from_pretrained(out, gguf_file=file.name, dtype=torch.float32), windows)
        check(f"{title}: logits by transformers", float((want - got).abs().max()), 0)
        if node:
            _, p = llama_cpp(node, file, [], windows, vocab, work)
            check(f"{title}: KL divergence of llama.cpp", divergence(want, p), most)
        for path in (dense, out, source):
            if path != model:
                shutil.rmtree(path)


def check_tokenizer(check: Checks, lutq: Path, path: Path, work: Path, node: Path | None) -> None:
    """Puts a tokenizer beside a model of one layer with as many tokens, and compares ids."""
    t, texts = texts_of(path, 1, STRINGS)
    want = [t.encode(s, add_special_tokens=False).ids for s in texts]
    model = work / "tokenizer"
    shutil.rmtree(model, ignore_errors=True)
    model.mkdir()
    tiny_llama(model, t.get_vocab_size())
    raw = lzma.open(path).read() if path.suffix == ".xz" else path.read_bytes()
    (model / "tokenizer.json").write_bytes(raw)
    config = path.parent / "tokenizer_config.json"
    if config.exists():
        shutil.copy(config, model)
    out = export(lutq, model, work / "tokenizer-gguf", "--to", "gguf")
    title = f"{path.parent.name} tokens"
    if node:
        ids, _ = llama_cpp(node, out / "model.gguf", texts, [], 0, work)
        differ = [i for i, (a, b) in enumerate(zip(want, ids)) if a != b]
        check(f"{title}: strings of {len(texts)} that llama.cpp cuts otherwise", len(differ), 0)
        for i in differ[:5]:
            print("     ", json.dumps(texts[i]), want[i], ids[i])
    if '"Digits"' in raw.decode():
        print(f"      {title}: transformers' GGUF reader does not know the pre-tokenizer smollm, and is left out")
        return
    if t.model.byte_fallback:
        # LlamaTokenizer, which it takes, puts no space before a text that begins with one. A file cannot say which is meant.
        texts = [s for s in texts if not s.startswith((" ", "▁"))]
        want = [t.encode(s, add_special_tokens=False).ids for s in texts]
    own = AutoTokenizer.from_pretrained(out, gguf_file="model.gguf")
    differ = [i for i, s in enumerate(texts) if own.encode(s, add_special_tokens=False) != want[i]]
    check(f"{title}: strings that transformers' GGUF reader cuts otherwise", len(differ), 0)
    for i in differ[:5]:
        print("     ", json.dumps(texts[i]), want[i], own.encode(texts[i], add_special_tokens=False))


def bytes_tokenizer() -> dict:
    """A tokenizer of the 256 bytes."""
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    return {
        "version": "1.0", "added_tokens": [], "normalizer": None, "pre_tokenizer": byte_level, "post_processor": None, "decoder": byte_level,
        "model": {"type": "BPE", "vocab": {c: b for b, c in bytes_to_unicode().items()}, "merges": []},
    }  # fmt: skip


def tiny_llama(out: Path, vocab: int) -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(1)
    config = LlamaConfig(
        vocab_size=vocab, hidden_size=32, intermediate_size=32, num_hidden_layers=1, num_attention_heads=1, num_key_value_heads=1,
        tie_word_embeddings=True, bos_token_id=None, eos_token_id=None,
    )  # fmt: skip
    LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(out)


def families() -> dict:
    """Tiny models of every family that can be exported, as llama.cpp computes them."""
    import transformers as tf

    base = dict(
        vocab_size=256, hidden_size=128, intermediate_size=192, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2,
        max_position_embeddings=512, bos_token_id=1, eos_token_id=2, pad_token_id=0, rms_norm_eps=1e-5,
    )  # fmt: skip
    llama3 = dict(rope_type="llama3", rope_theta=1e4, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=64)
    yarn = dict(rope_type="yarn", rope_theta=1e4, factor=4.0, original_max_position_embeddings=128)
    gemma = dict(base, head_dim=32, query_pre_attn_scalar=32, num_hidden_layers=7, sliding_window=32, rms_norm_eps=1e-6)
    moe = dict(num_experts=4, num_experts_per_tok=2, moe_intermediate_size=64, decoder_sparse_step=1, mlp_only_layers=[])
    longrope = dict(
        rope_type="longrope", rope_theta=1e4, short_factor=[1 + i / 8 for i in range(16)], long_factor=[2 + i / 4 for i in range(16)],
        original_max_position_embeddings=256, factor=2.0,
    )  # fmt: skip
    latent = dict(
        base, num_key_value_heads=4, kv_lora_rank=64, qk_nope_head_dim=32, qk_rope_head_dim=32, v_head_dim=32, rms_norm_eps=1e-6,
    )  # fmt: skip
    gemma4 = dict(
        base, num_hidden_layers=5, head_dim=32, sliding_window=32, final_logit_softcapping=30.0,
        rope_parameters={
            "full_attention": dict(rope_type="proportional", rope_theta=1e6, partial_rotary_factor=0.25),
            "sliding_attention": dict(rope_type="default", rope_theta=1e4),
        },
    )  # fmt: skip
    conv = dict(base, norm_eps=1e-5, layer_types=["conv", "full_attention", "conv"], rope_parameters=dict(rope_type="default", rope_theta=1e4))
    granite4 = dict(
        base, intermediate_size=64, shared_intermediate_size=96, layer_types=["mamba", "attention", "mamba"], mamba_n_heads=4, mamba_d_state=32,
        mamba_n_groups=2, embedding_multiplier=6.0, residual_multiplier=0.4, logits_scaling=2.0, attention_multiplier=0.1,
    )  # fmt: skip
    hybrid = dict(
        base, num_hidden_layers=4, head_dim=64, linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=32, linear_value_head_dim=32,
        linear_conv_kernel_dim=4, layer_types=["linear_attention"] * 3 + ["full_attention"],
    )  # fmt: skip
    glm = dict(
        n_routed_experts=8, num_experts_per_tok=3, n_shared_experts=1, moe_intermediate_size=64, first_k_dense_replace=1, n_group=4, topk_group=2,
        routed_scaling_factor=1.5, norm_topk_prob=True,
    )  # fmt: skip
    return {
        "llama": tf.LlamaConfig(**base),
        "llama-bias": tf.LlamaConfig(**base, attention_bias=True, mlp_bias=True),
        "llama-llama3": tf.LlamaConfig(**base, rope_parameters=llama3),
        "llama-linear": tf.LlamaConfig(**base, rope_parameters=dict(rope_type="linear", rope_theta=1e4, factor=4.0)),
        "llama-yarn": tf.LlamaConfig(**base, rope_parameters=yarn),
        "mistral": tf.MistralConfig(**base, head_dim=64, sliding_window=None),
        "mixtral": tf.MixtralConfig(**base, num_local_experts=4, num_experts_per_tok=2),
        "qwen2": tf.Qwen2Config(**base),
        "qwen2-moe": tf.Qwen2MoeConfig(**base, **moe, shared_expert_intermediate_size=96, norm_topk_prob=False),
        "qwen3": tf.Qwen3Config(**base, head_dim=64),
        "qwen3-yarn": tf.Qwen3Config(**base, head_dim=64, rope_parameters=yarn),
        "qwen3-moe": tf.Qwen3MoeConfig(**base, **moe, head_dim=64, norm_topk_prob=True),
        "gemma2": tf.Gemma2Config(**gemma, attn_logit_softcapping=50.0, final_logit_softcapping=30.0),
        "gemma3": tf.Gemma3TextConfig(**gemma),
        "phi3": tf.Phi3Config(**base, original_max_position_embeddings=512),
        "phi3-longrope": tf.Phi3Config(**base, original_max_position_embeddings=256, rope_parameters=longrope),
        "gpt-oss": tf.GptOssConfig(
            **dict(base, max_position_embeddings=512), head_dim=32, num_local_experts=4, num_experts_per_tok=2, sliding_window=32,
            rope_parameters=dict(yarn, truncate=True, beta_fast=32.0, beta_slow=1.0),
        ),
        "smollm3": tf.SmolLM3Config(**dict(base, num_hidden_layers=4), no_rope_layers=[1, 1, 1, 0], use_sliding_window=False),
        "olmo2": tf.Olmo2Config(**base),
        "olmo3": tf.Olmo3Config(**dict(base, num_hidden_layers=4), sliding_window=32, rope_parameters=dict(yarn)),
        "seed-oss": tf.SeedOssConfig(**base, head_dim=64, attention_bias=True, attention_out_bias=False),
        "granite": tf.GraniteConfig(**base, embedding_multiplier=6.0, residual_multiplier=0.4, logits_scaling=2.0, attention_multiplier=0.1),
        "ernie4-5": tf.Ernie4_5Config(**base, head_dim=64),
        "hunyuan": tf.HunYuanDenseV1Config(**base, head_dim=64),
        "ministral3": tf.Ministral3Config(
            **base, head_dim=64, sliding_window=None,
            rope_parameters=dict(yarn, original_max_position_embeddings=32, mscale=1.0, mscale_all_dim=1.0, llama_4_scaling_beta=0.5, beta_fast=32.0, beta_slow=1.0),
        ),
        "glm4-moe": tf.Glm4MoeConfig(**base, **glm, head_dim=64, use_qk_norm=True, attention_bias=True),
        "minimax-m2": tf.MiniMaxM2Config(
            **dict(base, intermediate_size=64), head_dim=64, num_local_experts=8, num_experts_per_tok=3, rotary_dim=32,
            rope_parameters=dict(rope_type="default", rope_theta=1e4, partial_rotary_factor=0.5),
        ),
        "deepseek-v3": tf.DeepseekV3Config(**latent, **glm, q_lora_rank=64, rope_parameters=dict(yarn, mscale=1.0, mscale_all_dim=1.0)),
        "deepseek-v3-mscale": tf.DeepseekV3Config(**latent, **glm, q_lora_rank=64, rope_parameters=dict(yarn, mscale=1.0, mscale_all_dim=0.8)),
        "deepseek-v2": tf.DeepseekV2Config(
            **latent, **(glm | dict(n_group=None, topk_group=None, norm_topk_prob=False)), q_lora_rank=None, topk_method="greedy",
            rope_parameters=dict(yarn, mscale=0.7, mscale_all_dim=0.7),
        ),
        "glm4-moe-lite": tf.Glm4MoeLiteConfig(
            **latent, **{k: v for k, v in glm.items() if k != "first_k_dense_replace"} | dict(n_group=1, topk_group=1), q_lora_rank=64,
            mlp_layer_types=["dense", "sparse", "sparse"], rope_parameters=dict(rope_type="default", rope_theta=1e4),
        ),
        "lfm2": tf.Lfm2Config(**conv, block_auto_adjust_ff_dim=False),
        "lfm2-moe": tf.Lfm2MoeConfig(**conv, num_experts=8, num_experts_per_tok=3, moe_intermediate_size=64, num_dense_layers=1),
        "granite-hybrid": tf.GraniteMoeHybridConfig(**granite4, num_local_experts=4, num_experts_per_tok=2),
        "granite-hybrid-dense": tf.GraniteMoeHybridConfig(**granite4, num_local_experts=0),
        "llama4": tf.Llama4TextConfig(
            **dict(base, num_hidden_layers=4, intermediate_size=64), intermediate_size_mlp=192, head_dim=32, num_local_experts=4, num_experts_per_tok=1,
            interleave_moe_layer_step=2, attention_chunk_size=8192, rope_parameters=llama3,
        ),
        "gemma4": tf.Gemma4TextConfig(
            **gemma4, layer_types=["sliding_attention", "full_attention"] * 2 + ["full_attention"], num_kv_shared_layers=3, hidden_size_per_layer_input=32,
            vocab_size_per_layer_input=256, use_double_wide_mlp=True, per_layer_config={i: {"head_dim": 64} for i in "134"},
        ),
        "gemma4-large": tf.Gemma4TextConfig(
            **gemma4, layer_types=["sliding_attention"] * 4 + ["full_attention"], num_kv_shared_layers=0, hidden_size_per_layer_input=0,
            attention_k_eq_v=True, per_layer_config={"4": {"head_dim": 64, "num_key_value_heads": 1}},
        ),
        "gemma4-moe": tf.Gemma4TextConfig(
            **gemma4, layer_types=["sliding_attention"] * 4 + ["full_attention"], num_kv_shared_layers=0, hidden_size_per_layer_input=0,
            attention_k_eq_v=True, per_layer_config={"4": {"head_dim": 64, "num_key_value_heads": 1}},
            enable_moe_block=True, num_experts=4, top_k_experts=2, moe_intermediate_size=64,
        ),
        "qwen3-next": tf.Qwen3NextConfig(**hybrid, **moe, norm_topk_prob=True, shared_expert_intermediate_size=96),
        "qwen3-5": tf.Qwen3_5TextConfig(**hybrid),
        "qwen3-5-moe": tf.Qwen3_5MoeTextConfig(**hybrid, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=64, shared_expert_intermediate_size=96),
    }  # fmt: skip


def check_families(check: Checks, lutq: Path, work: Path, node: Path, only: str) -> None:
    for name, config in families().items():
        if only and only not in name:
            continue
        torch.manual_seed(3)
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="eager").eval()
        with torch.no_grad():
            for key, p in model.named_parameters():
                # Wide enough that attention and experts matter, and not so wide that rounding does.
                wide = 0.25 if "norm" in key or "bias" in key or "sinks" in key or "scal" in key else 1.4 / p.shape[-1] ** 0.5
                noise = torch.randn_like(p) * wide
                if ("norm" in key or "scale" in key) and name not in ("gemma2", "gemma3"):
                    noise += 1
                p.copy_(noise.to(torch.bfloat16))
        path = work / "family"
        shutil.rmtree(path, ignore_errors=True)
        model.to(torch.bfloat16).save_pretrained(path)
        (path / "tokenizer.json").write_text(json.dumps(bytes_tokenizer()))
        windows = windows_of(config.vocab_size)
        want = logits(AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32, attn_implementation="eager"), windows)
        # A router near a tie may choose otherwise for a rounding, so that of mixtures the mean says little.
        median = getattr(config, "num_experts_per_tok", None) is not None or name == "gemma4-moe"
        for kept, most in (("bf16", 1e-3), ("f16", 1e-3), ("f32", 1e-5)):
            out = export(lutq, path, work / "family-gguf", "--to", "gguf", "--kept", kept)
            _, p = llama_cpp(node, out / "model.gguf", [], windows, config.vocab_size, work)
            check(f"{name} {kept}: KL divergence of llama.cpp", divergence(want, p, median), most)
        quantized = work / "family-q4"
        run(lutq, "quantize", path, quantized, "--force", "--quiet", *RECIPES["q4_0"][0])
        dense = export(lutq, quantized, work / "family-dense", "--to", "dense", "--dtype", "f32")
        out = export(lutq, quantized, work / "family-gguf", "--to", "gguf")
        want = logits(AutoModelForCausalLM.from_pretrained(dense, dtype=torch.float32, attn_implementation="eager"), windows)
        _, p = llama_cpp(node, out / "model.gguf", [], windows, config.vocab_size, work)
        check(f"{name} q4_0: KL divergence of llama.cpp", divergence(want, p, median), 2e-2)


def main() -> int:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("lutq", type=Path, help="the binary")
    p.add_argument("work", type=Path, help="folder to work in")
    p.add_argument("--model", type=Path, action="append", default=[], help="model folder")
    p.add_argument("--tokenizer", type=Path, action="append", default=[], help="tokenizer.json, or one in xz")
    p.add_argument("--families", nargs="?", const="", metavar="NAME", help="tiny models of every family, or those whose name has NAME in it")
    p.add_argument("--only", default="", metavar="REGEX", help="files of models to make")
    p.add_argument("--node", type=Path, help="folder with node_modules/node-llama-cpp")
    args = p.parse_args()
    logging.disable_progress_bar()
    torch.set_num_threads(2)
    args.work.mkdir(parents=True, exist_ok=True)
    check = Checks()
    for model in args.model:
        check_model(check, args.lutq, model, args.work, args.node, args.only)
    for path in args.tokenizer:
        check_tokenizer(check, args.lutq, path, args.work, args.node)
    if args.families is not None and args.node:
        check_families(check, args.lutq, args.work, args.node, args.families)
    return 3 if check.failed else 0


if __name__ == "__main__":
    sys.exit(main())
