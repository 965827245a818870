#!/usr/bin/env python3
"""Compares lutq's gptq with gptqmodel's: the same model, tokens, bits and groups, integers with scales of
either program's own choice, on the CPU.

    scripts/compare_gptq.py MODEL WORK --lutq ./lutq --calib TEXT --calib TEXT --text TEXT [--text TEXT]
        [--bits 4,3] [--group 64] [--calib-windows 128] [--calib-ctx 512] [--windows 60] [--ctx 512]

gptqmodel gets the windows that `lutq quantize` draws with seed 0, from Go's PCG, and its defaults but for sym and
desc_act. What it writes is dequantized to a dense float32 folder, (q - zero)·scale, so that one program measures
both by the same arithmetic: `lutq eval-ppl --against MODEL`. lutq quantizes onto the table q4 or q3, which has
the same integers, to nearest with searched scales, and by gptq. WORK keeps what is finished. JSON on stdout:
mean KL and perplexity of each, and the seconds each took to quantize.
"""

import argparse
import contextlib
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
from safetensors import safe_open
from safetensors.numpy import save_file as save
from tokenizers import Tokenizer


class PCG:
    """math/rand/v2's PCG-DXSM, as far as Perm goes."""

    def __init__(self, hi: int, lo: int):
        self.state = hi << 64 | lo

    def uint64(self) -> int:
        mul, inc = 2549297995355413924 << 64 | 4865540595714422341, 6364136223846793005 << 64 | 1442695040888963407
        self.state = (self.state * mul + inc) % 2**128
        hi, lo = self.state >> 64, self.state % 2**64
        hi ^= hi >> 32
        hi = hi * 0xDA942042E4DD58B5 % 2**64
        hi ^= hi >> 48
        return hi * (lo | 1) % 2**64

    def below(self, n: int) -> int:
        if n & (n - 1) == 0:
            return self.uint64() & (n - 1)
        while True:
            product = (self.uint64() >> 32) * n
            if product % 2**32 >= 2**32 % n:
                return product >> 32

    def perm(self, n: int) -> list[int]:
        p = list(range(n))
        for i in range(n - 1, 0, -1):
            j = self.below(i + 1)
            p[i], p[j] = p[j], p[i]
        return p


def windows(model: Path, texts: list[Path], count: int, ctx: int) -> list[list[int]]:
    """The windows that lutq fits to with seed 0: drawn from each text, in turns, behind BOS where the tokenizer adds it."""
    tok = Tokenizer.from_file(str(model / "tokenizer.json"))
    begin = tok.encode("a").ids[: -len(tok.encode("a", add_special_tokens=False).ids)]
    parts = []
    for i, text in enumerate(texts):
        ids = tok.encode(text.read_text(encoding="utf-8"), add_special_tokens=False).ids
        step = ctx - len(begin)
        cut = [begin + ids[at : at + step] for at in range(0, len(ids) - step + 1, step)]
        share = count // len(texts) + (i < count % len(texts))
        parts.append([cut[j] for j in PCG(0, i).perm(len(cut))[:share]])
    return [p[j] for j in range(max(map(len, parts))) for p in parts if j < len(p)]


def gptqmodel(model: Path, out: Path, bits: int, group: int, text: list[list[int]]) -> float:
    """Quantizes with gptqmodel to a folder, and returns the seconds."""
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    count = os.cpu_count()
    os.cpu_count = lambda: max(count, 4)  # with fewer its thread pools do not fit each other
    model, out = model.resolve(), out.resolve()
    # It draws its progress on stdout, and leaves a folder of logs where it runs.
    with contextlib.redirect_stdout(sys.stderr), contextlib.chdir(out.parent):
        import torch
        from gptqmodel import GPTQModel, QuantizeConfig

        config = QuantizeConfig(bits=bits, group_size=group, sym=True, desc_act=True, device="cpu", offload_to_disk=False)
        m = GPTQModel.load(str(model), config, dtype=torch.float32)
        begin = time.time()
        m.quantize([{"input_ids": w, "attention_mask": [1] * len(w)} for w in text], batch_size=1)
        took = time.time() - begin
        m.save(str(out))
    return took


def stream(words: np.ndarray, bits: int) -> np.ndarray:
    """The codes in columns of 32-bit words, lowest bits first: [n·bits/32, m] to [n, m]."""
    flat = np.unpackbits(np.ascontiguousarray(words.T).view(np.uint8), axis=1, bitorder="little")
    return (flat.reshape(words.shape[1], -1, bits) @ (1 << np.arange(bits))).T


def dense(quantized: Path, model: Path, out: Path, bits: int) -> None:
    """Writes what gptqmodel stored as float32 weights."""
    tensors = {}
    for shard in sorted(quantized.glob("*.safetensors")):
        with safe_open(shard, framework="pt") as f:
            for name in f.keys():
                t = f.get_tensor(name)
                tensors[name] = t.float().numpy() if t.is_floating_point() else t.numpy()
    names = [n.removesuffix(".qweight") for n in tensors if n.endswith(".qweight")]
    config = json.loads((quantized / "config.json").read_text())["quantization_config"]
    version2 = config.get("checkpoint_format") == "gptq_v2"
    for n in names:
        parts = [tensors.pop(f"{n}.{p}") for p in ("qweight", "qzeros", "scales", "g_idx")]
        q, zero, scale, group = stream(parts[0], bits), stream(np.ascontiguousarray(parts[1].T), bits).T, parts[2], parts[3]
        zero = zero if version2 else zero + 1
        w = (q - zero[group].astype(np.int32)).astype(np.float32) * scale[group].astype(np.float32)
        tensors[n + ".weight"] = np.ascontiguousarray(w.T)
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    for f in model.iterdir():
        if f.is_file() and f.suffix != ".safetensors" and not f.name.endswith(".index.json"):
            shutil.copy(f, out)
    config = json.loads((model / "config.json").read_text())
    if config.get("tie_word_embeddings"):
        tensors.pop("lm_head.weight", None)
    config["torch_dtype"] = config["dtype"] = "float32"
    (out / "config.json").write_text(json.dumps(config))
    save(tensors, out / "model.safetensors", metadata={"format": "pt"})


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("model", type=Path)
    p.add_argument("work", type=Path)
    p.add_argument("--lutq", required=True)
    p.add_argument("--calib", type=Path, action="append", required=True)
    p.add_argument("--text", type=Path, action="append", required=True)
    p.add_argument("--bits", default="4,3")
    p.add_argument("--group", type=int, default=64)
    p.add_argument("--calib-windows", type=int, default=128)
    p.add_argument("--calib-ctx", type=int, default=512)
    p.add_argument("--windows", type=int, default=60)
    p.add_argument("--ctx", type=int, default=512)
    a = p.parse_args()

    text = windows(a.model, a.calib, a.calib_windows, a.calib_ctx)
    seconds_file = a.work / "seconds.json"
    seconds = json.loads(seconds_file.read_text()) if seconds_file.exists() else {}
    a.work.mkdir(parents=True, exist_ok=True)

    def note(name: str, took: float) -> None:
        seconds[name] = round(took, 1)
        seconds_file.write_text(json.dumps(seconds))

    def lutq(name: str, *args: str) -> Path:
        out = a.work / name
        if not out.exists():
            begin = time.time()
            subprocess.run([a.lutq, "quantize", a.model, out, "--group", str(a.group), "--quiet", *args], check=True, stdout=sys.stderr)
            note(name, time.time() - begin)
        return out

    calib = [x for t in a.calib for x in ("--calib", str(t))]
    calib += ["--calib-windows", str(a.calib_windows), "--calib-ctx", str(a.calib_ctx), "--device", "cpu", "--method", "gptq"]
    models = []
    for bits in map(int, a.bits.split(",")):
        theirs = a.work / f"gptqmodel{bits}"
        if not theirs.exists():
            half = a.work / f"gptqmodel{bits}.half"
            shutil.rmtree(half, ignore_errors=True)
            note(f"gptqmodel{bits}", gptqmodel(a.model, half, bits, a.group, text))
            half.rename(theirs)
        out = a.work / f"gptqmodel{bits}-dense"
        dense(theirs, a.model, out, bits)
        models += [out, lutq(f"nearest{bits}", "--codebook", f"q{bits}"), lutq(f"lutq{bits}", "--codebook", f"q{bits}", *calib)]
        models.append(lutq(f"lutq{bits}-plain", "--codebook", f"q{bits}", "--retarget", "0", *calib))

    result = {"seconds": seconds, "texts": {}}
    for t in a.text:
        run = [a.lutq, "eval-ppl", *models, "--against", a.model, "--text", t, "--windows", str(a.windows), "--ctx", str(a.ctx)]
        report = subprocess.run([*run, "--device", "cpu", "--json", "--quiet"], check=True, stdout=subprocess.PIPE).stdout
        result["texts"][t.name] = json.loads(report)
    json.dump(result, sys.stdout, indent=1)
    print()


if __name__ == "__main__":
    main()
