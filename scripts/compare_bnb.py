#!/usr/bin/env python3
"""Compares lutq's 4-bit NormalFloat with bitsandbytes' on the CPU: bit by bit, and in speed.

    scripts/compare_bnb.py --lutq ./lutq [--threads 2] [--millions 64] [--keep DIR]

It writes a checkpoint of hard cases (normals, outliers, subnormal and zero blocks, values on and next
to the midpoints between table values, random bit patterns) and one of plain bfloat16 normals for
timing, quantizes both with `lutq quantize --bits 4 --group 64 --codebook nf --scale absmax --scale-type f32` and with
bitsandbytes.functional.quantize_4bit, and compares every code and every scale. One JSON object on
stdout; the exit code is 3 when anything differs.

bitsandbytes 0.50.2 has no 4-bit quantizer of its own for the CPU and uses PyTorch operations:
    absmax = max|w|, inv = 1 / max(absmax, 1e-38), x = clamp(w * inv, -1, 1),
    code = number of float32 midpoints of the table below x
all in float32, so that blocks smaller than 1e-38 shrink towards zero and a block of zeros gets code 7.

Both are timed on the same threads: bitsandbytes in memory, and from file to file as lutq works.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import bitsandbytes.functional as bnb
import numpy as np
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from read_container import Folder

BLOCK = 64
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 512,
    "intermediate_size": 512,
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
    "num_hidden_layers": 1,
    "vocab_size": 256,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
    "max_position_embeddings": 2048,
    "tie_word_embeddings": True,
}


def hard_cases(seed: int) -> dict[str, torch.Tensor]:
    rng = np.random.default_rng(seed)
    n, k = 256, 512
    normal = rng.standard_normal((n, k)).astype(np.float32)
    blocks = (n, k // BLOCK, BLOCK)

    def per_block(low: float, high: float) -> np.ndarray:
        return np.exp2(rng.uniform(low, high, (n, k // BLOCK, 1)))

    def scaled(x: np.ndarray, scale: np.ndarray) -> np.ndarray:
        return (x.reshape(blocks) * scale).astype(np.float32).reshape(n, k)

    table = bnb.get_4bit_type("nf4", device="cpu").numpy()
    midpoints = (table[1:] + table[:-1]) / np.float32(2)
    on = midpoints[rng.integers(0, 15, (n, k))]
    on[:, ::BLOCK] = 1
    near = scaled(on, np.exp(rng.standard_normal((n, k // BLOCK, 1)).astype(np.float32)))
    near = (near.view(np.int32) + rng.integers(-2, 3, near.shape, np.int32)).view(np.float32)

    zeros = np.where(rng.random((n, k)) < 0.5, np.float32(0), np.float32(-0.0))
    zeros = np.where(rng.random(blocks[:2] + (1,)) < 0.5, zeros.reshape(blocks), normal.reshape(blocks)).reshape(n, k)
    # No case goes beyond 2^57: squared errors, which lutq reports too, are summed in float32.
    pattern = rng.integers(0, 2**32, (n, k), np.uint64).astype(np.uint32).view(np.float32)
    outliers = normal * np.where(rng.random((n, k)) < 0.01, rng.standard_normal((n, k)) * 1e4, 1)

    cases = {
        "normal": normal,
        "outliers": outliers,
        "zero blocks": zeros,
        "subnormal blocks": scaled(normal, per_block(-149, -126)),
        "around 1e-38": scaled(normal, per_block(-132, -122)),
        "huge": scaled(np.clip(normal, -4, 4), per_block(40, 55)),
        "on midpoints": scaled(on, np.exp2(np.round(np.log2(per_block(-40, 40))))),
        "next to midpoints": near,
        "random bits": np.where(np.abs(pattern) < 2.0**57, pattern, 0),
    }
    out = {name: torch.from_numpy(np.ascontiguousarray(w, dtype=np.float32)) for name, w in cases.items()}
    out["bfloat16"] = out["normal"].to(torch.bfloat16)
    out["bfloat16 subnormal blocks"] = out["subnormal blocks"].to(torch.bfloat16)
    out["float16"] = out["normal"].to(torch.float16)
    return out


def plain(millions: int, seed: int) -> dict[str, torch.Tensor]:
    g = torch.Generator().manual_seed(seed)
    layer = 16 << 20
    return {
        f"plain {i}": (torch.randn(4096, layer // 4096, generator=g) * 0.02).to(torch.bfloat16)
        for i in range(max(1, millions * 1_000_000 // layer))
    }


def module(i: int) -> str:
    return f"model.layers.{i}.mlp.down_proj"


def checkpoint(path: Path, cases: dict[str, torch.Tensor]) -> None:
    path.mkdir(parents=True)
    tensors = {f"{module(i)}.weight": w for i, w in enumerate(cases.values())}
    save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})
    (path / "config.json").write_text(json.dumps({**CONFIG, "num_hidden_layers": len(cases)}, indent=2) + "\n")


def quantize_lutq(binary: str, model: Path, out: Path, threads: int) -> dict:
    command = [binary, "quantize", str(model), str(out), "--bits", "4", "--group", str(BLOCK), "--codebook", "nf"]
    command += ["--scale", "absmax", "--scale-type", "f32", "--threads", str(threads), "--json"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"compare_bnb.py: lutq failed ({done.returncode}): {done.stderr.strip()}")
    return json.loads(done.stdout)


def quantize_bnb(w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Packed codes and absmax."""
    packed, state = bnb.quantize_4bit(w, blocksize=BLOCK, quant_type="nf4")
    return packed, state.absmax


def bnb_files(model: Path, out: Path) -> float:
    """Seconds from a checkpoint to a file of packed codes and absmax."""
    start = time.perf_counter()
    tensors = {}
    with safe_open(model / "model.safetensors", framework="pt") as f:
        for name in f.keys():
            tensors[name], tensors[f"{name}.absmax"] = quantize_bnb(f.get_tensor(name))
    save_file(tensors, out)
    return time.perf_counter() - start


def compare(folder: Folder, cases: dict[str, torch.Tensor]) -> list[dict]:
    rows = []
    for i, (name, w) in enumerate(cases.items()):
        packed, absmax = quantize_bnb(w)
        packed = packed.view(torch.uint8).numpy().reshape(w.shape[0], -1)
        theirs = np.stack([packed >> 4, packed & 15], axis=-1).reshape(w.shape)
        packed = folder.array(f"{module(i)}.codes")
        ours = np.stack([packed & 15, packed >> 4], axis=-1).reshape(w.shape)
        scales = folder.array(f"{module(i)}.scales")
        # +0 and -0 are different bits, as they should be here.
        scales_differ = scales.view(np.uint32) != absmax.numpy().reshape(scales.shape).view(np.uint32)
        row = {
            "case": name,
            "weights": w.numel(),
            "codes_differ": int((ours != theirs).sum()),
            "scales_differ": int(scales_differ.sum()),
        }
        if row["codes_differ"]:
            n, k = np.argwhere(ours != theirs)[0].tolist()
            row["first"] = {
                "at": [n, k],
                "weight": float(w[n, k]),
                "absmax": float(absmax.reshape(scales.shape)[n, k // BLOCK]),
                "lutq": int(ours[n, k]),
                "bitsandbytes": int(theirs[n, k]),
            }
        rows.append(row)
    return rows


def run(args: argparse.Namespace, work: Path) -> dict:
    report = {"cases": []}
    for part, cases in (("hard", hard_cases(args.seed)), ("plain", plain(args.millions, args.seed))):
        checkpoint(work / part, cases)
        ours = quantize_lutq(args.lutq, work / part, work / f"{part}-lutq", args.threads)
        report["cases"] += compare(Folder(work / f"{part}-lutq"), cases)

    weights = sum(w.numel() for w in cases.values())
    seconds = {"lutq": ours["seconds"], "bitsandbytes_files": bnb_files(work / "plain", work / "bnb.safetensors")}
    start = time.perf_counter()
    for w in cases.values():
        quantize_bnb(w)
    seconds["bitsandbytes_memory"] = time.perf_counter() - start
    report["threads"] = args.threads
    report["weights_timed"] = weights
    report["weights_per_second"] = {name: round(weights / s) for name, s in seconds.items()}
    report["codes_differ"] = sum(r["codes_differ"] for r in report["cases"])
    report["scales_differ"] = sum(r["scales_differ"] for r in report["cases"])
    report["weights"] = sum(r["weights"] for r in report["cases"])
    return report


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--lutq", required=True, metavar="BINARY")
    p.add_argument("--threads", type=int, default=2, help="CPU threads of both (default 2)")
    p.add_argument("--millions", type=int, default=64, help="millions of weights to time (default 64)")
    p.add_argument("--seed", type=int, default=0)
    p.add_argument("--keep", type=Path, metavar="DIR", help="work in this new folder and keep it")
    args = p.parse_args()

    torch.set_num_threads(args.threads)
    if args.keep:
        report = run(args, args.keep)
    else:
        with tempfile.TemporaryDirectory() as work:
            report = run(args, Path(work))
    print(json.dumps(report, indent=1))
    if report["codes_differ"] or report["scales_differ"]:
        sys.exit(3)


if __name__ == "__main__":
    main()
