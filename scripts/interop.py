#!/usr/bin/env python3
"""Opens what `lutq export` writes in the programs that it is for: the logits must be those of the weights as they are.

    scripts/interop.py MODEL... --lutq ./lutq [--only REGEX] [--work FOLDER]

Quantizes every MODEL for each target (`quantize --for`), exports it there and as plain weights (`--to dense`), opens both
and compares the logits of random tokens: by transformers in bfloat16 for compressed-tensors, bitsandbytes, NVFP4 and MXFP4, where
they must be equal, and by mlx-lm in float32. GPTQ, AWQ and EXL3 are decoded here with numpy, and the weights must be those of the
float32 export; where gptqmodel is installed, which wants a compiler (requirements-gptqmodel.txt), they are opened by it and by
transformers through it too, in float16. Prints a line for each; the exit code is 3 when one does not hold.
"""

import argparse
import contextlib
import importlib.metadata
import importlib.util
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TQDM_DISABLE", "1")
os.environ["CUDA_VISIBLE_DEVICES"] = ""

import numpy as np
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM
from transformers.utils import logging

import rivals

# target, flags of quantize, how it is compared, the largest difference
CASES = [
    ("ct", ["--bits", "2"], "bfloat16", 0),
    ("ct", ["--bits", "3", "--group", "64"], "bfloat16", 0),
    ("ct", ["--bits", "4"], "bfloat16", 0),
    ("ct", ["--bits", "5", "--group", "32"], "bfloat16", 0),
    ("ct", ["--bits", "4", "--group", "row"], "bfloat16", 0),
    ("ct", ["--bits", "4", "--tensor", "down_proj=2"], "bfloat16", 0),
    ("bnb", [], "bfloat16", 0),
    ("bnb", ["--group", "128", "--scale-type", "bf16"], "bfloat16", 0),
    ("nvfp4", [], "bfloat16", 0),
    ("mxfp4", [], "bfloat16", 0),
    ("mlx", ["--bits", "3", "--group", "32"], "mlx", 1e-5),
    ("mlx", ["--bits", "4"], "mlx", 1e-5),
    ("mlx", ["--bits", "5", "--tensor", "down_proj=2"], "mlx", 1e-5),
    ("gptq", ["--bits", "2"], "weights", 0),
    ("gptq", ["--bits", "3", "--group", "32"], "weights", 0),
    ("gptq", ["--bits", "4"], "weights", 0),
    ("gptq", ["--bits", "3", "--group", "row"], "weights", 0),  # of 4 bits, gptqmodel's CPU kernel takes groups to 256 columns only
    ("gptq", ["--bits", "4", "--tensor", "down_proj=keep"], "weights", 0),
    ("gptq", ["--bits", "4", "--tensor", "layers.0.self_attn=keep"], "weights", 0),
    ("gptq", ["--bits", "4", "--tensor", "down_proj=2", "--tensor", "layers.0.self_attn=keep"], "weights", 0),
    ("awq", [], "weights", 0),
    ("awq", ["--group", "32"], "weights", 0),
    ("awq", ["--tensor", "down_proj=keep", "--tensor", "layers.0.self_attn=keep"], "weights", 0),
    ("exl3", ["--bits", "4"], "weights", 0),
    ("exl3", ["--bits", "2.5", "--tensor", "down_proj=3::mcg", "--tensor", "layers.0.self_attn=5::3inst"], "weights", 0),
]
CLIENT_BOUND = 2e-5  # the divergence that float16 products make, which gptqmodel does in another order than torch


def fields(words, bits, axis):
    """The codes of bits bits in a stream of 32-bit words along an axis, from the lowest bit of the first on."""
    w = np.moveaxis(words.view(np.uint32), axis, -1)
    one = (w[..., None] >> np.arange(32, dtype=np.uint32) & 1).reshape(*w.shape[:-1], -1, bits)
    return np.moveaxis((one << np.arange(bits)).sum(-1), -1, axis).astype(np.int64)


def gptq(t, layer, config):
    """The weights of a layer of GPTQ, version 1."""
    scales, index = t[layer + ".scales"].astype(np.float32), t[layer + ".g_idx"]
    bits = t[layer + ".qweight"].shape[0] * 32 // len(index)
    codes, zeros = fields(t[layer + ".qweight"], bits, 0), fields(t[layer + ".qzeros"], bits, 1) + 1
    return ((codes - zeros[index]) * scales[index]).T


def awq(t, layer, config):
    """The weights of a layer of AWQ, as gemm has them."""
    def columns(words):
        c = fields(words, 4, 1).reshape(len(words), -1, 8)
        return c[..., np.argsort([0, 2, 4, 6, 1, 3, 5, 7])].reshape(len(words), -1)
    scales = t[layer + ".scales"].astype(np.float32)
    index = np.arange(len(t[layer + ".qweight"])) // config["group_size"]
    return ((columns(t[layer + ".qweight"]) - columns(t[layer + ".qzeros"])[index]) * scales[index]).T


def exl3(t, layer, config):
    """The weights of a layer of EXL3, with padding."""
    tiles, suh, svh = t[layer + ".trellis"], t[layer + ".suh"], t[layer + ".svh"]
    book = next((b for b in ("mul1", "mcg") if layer + "." + b in t), "3inst")
    w = rivals.exl3_mix(rivals.exl3_values(tiles.view(np.uint16), book, len(svh), len(suh)))
    w = rivals.exl3_mix(np.ascontiguousarray(w.T)) * np.float32(1 / 128)
    return w * svh.astype(np.float32)[:, None] * suh.astype(np.float32)


def tensors(folder):
    """All tensors, of bfloat16 as float32."""
    all = {k: v for f in sorted(Path(folder).glob("*.safetensors")) for k, v in load_file(f).items()}
    return {k: (v.float() if v.dtype == torch.bfloat16 else v).numpy() for k, v in all.items()}


def compare_weights(target, out, dense):
    """The largest difference of a weight."""
    decode, suffix = {"gptq": (gptq, ".qweight"), "awq": (awq, ".qweight"), "exl3": (exl3, ".trellis")}[target]
    config = json.loads((out / "config.json").read_text())["quantization_config"]
    t, d = tensors(out), tensors(dense)
    layers = [k.removesuffix(suffix) for k in t if k.endswith(suffix)]
    assert layers

    def off(layer):
        want = d[layer + ".weight"]
        return float(np.abs(decode(t, layer, config)[: len(want), : want.shape[1]] - want).max())
    return max(map(off, layers))


def transformers_model(folder, dtype):
    """The model by transformers. A tensor that it has and the folder has not is an error."""
    model, info = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, output_loading_info=True)
    lost = [k for k in info["missing_keys"] if not k.endswith("lm_head.weight")]
    if lost or info["unexpected_keys"]:
        raise SystemExit(f"{folder}: missing {lost[:3]}, unexpected {sorted(info['unexpected_keys'])[:3]}")
    return model.eval()


def logits(folder, tokens, dtype):
    """The logits by transformers."""
    model = transformers_model(folder, dtype)
    for m in model.modules():
        if hasattr(m, "support_avx512bf16_for_cpu"):
            m.support_avx512bf16_for_cpu = False  # where bitsandbytes rounds scales to bfloat16 and adds in another order
    with torch.no_grad():
        return model(tokens).logits.double()


def compare_mlx(out, dense, tokens):
    """The difference of logits by mlx-lm, as a part of them."""
    import mlx.core as mx
    from mlx_lm.utils import load_model

    model, _ = load_model(out)
    model.set_dtype(mx.float32)
    got = np.array(model(mx.array(tokens.numpy()))).astype(np.float64)
    want = logits(dense, tokens, torch.float32).numpy()
    return float(np.linalg.norm(got - want) / np.linalg.norm(want))


def compare_gptqmodel(out, dense, tokens):
    """The divergence of the logits by transformers and by gptqmodel, whichever is more, after a look at what became of the layers."""
    from gptqmodel import GPTQModel
    from gptqmodel.nn_modules.qlinear import BaseQuantLinear

    packed = {k.removesuffix(".qweight") for k in tensors(out) if k.endswith(".qweight")}
    want = logits(dense, tokens, torch.float16).log_softmax(-1)
    worst = 0.0
    mixed = any(name.startswith("+:") for name in json.loads((out / "config.json").read_text())["quantization_config"].get("dynamic", {}))
    # Transformers has one form of GPTQ for all layers of a model.
    for load in ([] if mixed else [transformers_model]) + [lambda folder, dtype: GPTQModel.load(str(folder), device="cpu", dtype=dtype).model]:
        model = load(out, torch.float16)
        if packed != (opened := {k for k, m in model.named_modules() if isinstance(m, BaseQuantLinear)}):
            raise SystemExit(f"{out}: packed in the folder or in the client alone: {sorted(packed ^ opened)[:3]}")
        with torch.no_grad():
            got = model.eval()(tokens).logits.double().log_softmax(-1)
        worst = max(worst, (want.exp() * (want - got)).sum(-1).mean().item())
    return worst


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("model", nargs="+", type=Path)
    p.add_argument("--lutq", default="./lutq", help="the program")
    p.add_argument("--only", default="", help="cases whose name matches")
    p.add_argument("--work", type=Path, help="folder for what is written (default: one that is deleted)")
    p.add_argument("--tokens", type=int, default=128)
    p.add_argument("--seed", type=int, default=0)
    o = p.parse_args()
    logging.disable_progress_bar()
    client = all(importlib.util.find_spec(p) for p in ("gptqmodel", "optimum"))
    if client:
        cores = os.cpu_count()
        os.cpu_count = lambda: max(cores, 4)  # with fewer its thread pools do not fit each other
    packed_3_bits = importlib.metadata.version("compressed-tensors") >= "0.18"

    def lutq(*args):
        r = subprocess.run([o.lutq, *map(str, args)], capture_output=True, text=True)
        if r.returncode:
            raise SystemExit(f"lutq {' '.join(map(str, args))}: {r.stderr}")
        return r.stdout

    failed = False
    with tempfile.TemporaryDirectory() as tmp:
        work = o.work or Path(tmp)
        work.mkdir(parents=True, exist_ok=True)
        for model in o.model:
            vocabulary = json.loads((model / "config.json").read_text())["vocab_size"]
            tokens = torch.randint(vocabulary, (1, o.tokens), generator=torch.Generator().manual_seed(o.seed))
            for target, flags, how, bound in CASES:
                name = " ".join([target, *flags])
                if not re.search(o.only, name):
                    continue
                if target == "ct" and any(b in flags for b in ("3", "5")) and not packed_3_bits:
                    print(f"{model.name:14} {name:34} left out: compressed-tensors packs such codes otherwise before 0.18")
                    continue
                made, out, dense = work / "made", work / "out", work / "dense"
                lutq("quantize", model, made, "--for", target, *flags, "--force", "--quiet")
                outcome = json.loads(lutq("export", made, out, "--to", target, "--json", "--force"))["outcome"]
                lutq("export", made, dense, "--to", "dense", "--force", "--quiet", *([] if how == "bfloat16" else ["--dtype", "f32"]))
                if how == "weights":
                    found = [(how, compare_weights(target, out, dense), bound)]
                    if client and target != "exl3":  # which takes a GPU: exl3_check.py
                        with contextlib.redirect_stdout(sys.stderr):  # where it tells of its progress
                            found.append(("gptqmodel", compare_gptqmodel(out, dense, tokens), CLIENT_BOUND))
                elif how == "mlx":
                    found = [(how, compare_mlx(out, dense, tokens), bound)]
                else:
                    dtype = getattr(torch, how)
                    found = [(how, (logits(out, tokens, dtype) - logits(dense, tokens, dtype)).abs().max().item(), bound)]
                for how, off, bound in found:
                    good = outcome == "loss-free" and off <= bound
                    failed |= not good
                    print(f"{model.name:14} {name:34} {outcome:18} {how:9} {off:<8.3g} {'' if good else 'WRONG'}", flush=True)
    if not client:
        print("gptqmodel and optimum are not installed: GPTQ and AWQ were decoded here alone")
    return 3 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
